//! The control line: libzmq connections of the workers to the master. The control line finds processes that died, tells why a process
//! leaves, and relays messages between processes that have no other way.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nodescope_cluster::PeerError;
use zmq::Socket;

use crate::gate::Gate;
use crate::message::Message;
use crate::socket::{Connection, Threads, receive, send};

/// Time without a message after which the master checks whether the other processes still run.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(200);

/// The connections of a process.
pub enum Link {
    /// The master's socket, with the libzmq identities of the workers from rank 1 on.
    Master(Socket, Vec<Vec<u8>>),
    /// A worker's connection to the master.
    Worker(Connection),
}

/// The control line as one process has it.
pub struct Control {
    rank: usize,
    /// Name of each process for messages, by rank.
    names: Vec<String>,
    link: Link,
    /// Messages of other processes that came by the control line, by rank.
    relayed: Vec<VecDeque<Vec<u8>>>,
    probed: Instant,
    /// Error of an earlier call of [`Control::read`]: libzmq reports the end of a connection once.
    broken: Option<PeerError>,
    /// The master's port, and the number of its connections that had ended when the workers were last checked.
    gate: Option<Gate>,
    ended: usize,
    /// Threads of the master's sockets. They end only after the other sockets are closed, so this field is the last one.
    _threads: Option<Threads>,
}

impl Control {
    /// Returns the control line of a process. The master has a port with threads.
    pub fn new(rank: usize, names: Vec<String>, link: Link, port: Option<(Gate, Threads)>) -> Self {
        let (gate, threads) = port.unzip();
        Self {
            rank,
            relayed: names.iter().map(|_| VecDeque::new()).collect(),
            names,
            link,
            probed: Instant::now(),
            broken: None,
            ended: gate.as_ref().map_or(0, Gate::ended),
            gate,
            _threads: threads,
        }
    }

    pub fn died(&self, rank: usize) -> PeerError {
        PeerError::Died {
            peer: self.names[rank].clone(),
        }
    }

    pub fn unreadable(&self, rank: usize, why: impl Into<String>) -> PeerError {
        PeerError::Message {
            peer: self.names[rank].clone(),
            why: why.into(),
        }
    }

    fn left(&self, rank: usize, why: &str) -> PeerError {
        match self.names.get(rank) {
            Some(name) => PeerError::Left {
                peer: name.clone(),
                why: why.into(),
            },
            None => self.unreadable(0, format!("there is no process {rank}")),
        }
    }

    /// Sends a message to a process by way of the master.
    pub fn send(&self, to: usize, content: &[u8]) -> Result<(), PeerError> {
        match &self.link {
            Link::Master(..) => self.pass(to, &Message::Data(0, content)),
            Link::Worker(master) => {
                let sent = master.send(&Message::Data(to, content).encode());
                sent.map_err(|_| self.died(0))
            }
        }
    }

    /// Sends a message of the master to a worker.
    fn pass(&self, to: usize, message: &Message<'_>) -> Result<(), PeerError> {
        let Link::Master(socket, workers) = &self.link else {
            return Ok(());
        };
        let sent = send(socket, Some(&workers[to - 1]), &message.encode(), 0);
        sent.map_err(|_| self.died(to))
    }

    /// Returns the next message that a process has sent by the control line.
    pub fn take(&mut self, from: usize) -> Option<Vec<u8>> {
        self.relayed[from].pop_front()
    }

    /// Reads all messages that have come. Waits for the first one, `within` at most. Returns whether there was a message.
    ///
    /// # Errors
    ///
    /// A process that is gone, or that leaves.
    pub fn read(&mut self, within: Duration) -> Result<bool, PeerError> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let (mut any, mut wait) = (false, within);
        loop {
            match self.read_one(wait) {
                Ok(true) => (any, wait) = (true, Duration::ZERO),
                Ok(false) => return Ok(any),
                Err(error) => {
                    self.broken = Some(error.clone());
                    // What came before the error comes first.
                    return if any { Ok(true) } else { Err(error) };
                }
            }
        }
    }

    /// Reads one message, if one comes within this time.
    fn read_one(&mut self, within: Duration) -> Result<bool, PeerError> {
        let (from, message) = match &self.link {
            Link::Master(socket, workers) => {
                let Some(parts) = receive(socket, within).map_err(|_| self.died(0))? else {
                    return Ok(false);
                };
                let sender = parts.split_first().and_then(|(identity, frames)| {
                    let index = workers.iter().position(|worker| worker == identity)?;
                    Some((index + 1, frames.concat()))
                });
                // A process that connected too late is not part of the run.
                let Some(sender) = sender else {
                    return Ok(true);
                };
                sender
            }
            Link::Worker(master) => match master.receive(within).map_err(|_| self.died(0))? {
                Some(message) => (0, message),
                None => return Ok(false),
            },
        };
        self.accept(from, &message)?;
        Ok(true)
    }

    /// Acts on a message that came from the master or from a worker.
    fn accept(&mut self, sender: usize, message: &[u8]) -> Result<(), PeerError> {
        let decoded = Message::decode(message).map_err(|why| self.unreadable(sender, why))?;
        let is_master = self.rank == 0;
        match decoded {
            // A worker's message has the number of the receiver, and the master's the number of the process that sent it.
            Message::Data(rank, content) => match self.names.get(rank) {
                None => {
                    return Err(self.unreadable(sender, format!("there is no process {rank}")));
                }
                Some(_) if is_master && rank != 0 => {
                    self.pass(rank, &Message::Data(sender, content))?
                }
                Some(_) => {
                    let from = if is_master { sender } else { rank };
                    self.relayed[from].push_back(content.to_vec());
                }
            },
            Message::Leave(rank, why) => {
                return Err(self.left(if is_master { sender } else { rank }, why));
            }
            Message::Probe => {}
            _ => return Err(self.unreadable(sender, "it is not expected")),
        }
        Ok(())
    }

    /// Checks whether these processes still run, where nothing has come for a while, or a connection has ended. Only the master can find out; workers get its word.
    pub fn probe(&mut self, ranks: &[usize]) -> Result<(), PeerError> {
        let ended = self.gate.as_ref().map_or(0, Gate::ended);
        if ended == self.ended && self.probed.elapsed() < PROBE_INTERVAL {
            return Ok(());
        }
        self.ended = ended;
        self.probed = Instant::now();
        if matches!(self.link, Link::Master(..)) {
            for &rank in ranks {
                self.pass(rank, &Message::Probe)?;
            }
        }
        Ok(())
    }

    /// Reports to the other processes why this process ends or the run does. Processes that are gone are passed over.
    pub fn leave(&self, why: &str) {
        let message = Message::Leave(self.rank, why);
        match &self.link {
            Link::Master(_, workers) => {
                for to in 1..=workers.len() {
                    let _ = self.pass(to, &message);
                }
            }
            Link::Worker(master) => {
                let _ = master.send(&message.encode());
            }
        }
    }
}
