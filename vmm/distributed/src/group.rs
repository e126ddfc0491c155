//! Groups of processes that exchange messages.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nodescope_cluster::{PeerError, Peers};
use zmq::Socket;

use crate::message::Message;
use crate::socket::{Connection, Threads, receive, send as send_frames};

/// Time without a message after which a process checks whether the other processes still run.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The connections of a process to the other processes of its group.
pub(crate) enum Link {
    /// The master's socket, with the libzmq identities of the workers from rank 1 on.
    Master(Socket, Vec<Vec<u8>>),
    /// A worker's connection to the master.
    Worker(Connection),
}

/// The processes of a run, as one of them sees the group.
pub struct Group {
    rank: usize,
    /// Name of each process for messages, by rank.
    names: Vec<String>,
    /// Connections of this process; none once they are closed.
    link: Mutex<Option<Link>>,
    _threads: Option<Threads>,
}

impl Group {
    pub(crate) fn new(
        rank: usize,
        names: Vec<String>,
        link: Link,
        threads: Option<Threads>,
    ) -> Self {
        Self {
            rank,
            names,
            link: Mutex::new(Some(link)),
            _threads: threads,
        }
    }

    /// Returns the name of each process for messages, by rank.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    fn link(&self) -> MutexGuard<'_, Option<Link>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn died(&self, rank: usize) -> PeerError {
        PeerError::Died {
            peer: self.names[rank].clone(),
        }
    }

    fn unreadable(&self, rank: usize, why: impl Into<String>) -> PeerError {
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

    /// Gathers on the master, which forwards each worker's message to all other workers.
    fn gather_as_master(
        &self,
        socket: &Socket,
        workers: &[Vec<u8>],
        own: &[u8],
    ) -> Result<Vec<Vec<u8>>, PeerError> {
        let send = |rank: usize, message: &[u8]| {
            let sent = send_frames(socket, Some(&workers[rank - 1]), message, 0);
            sent.map_err(|_| self.died(rank))
        };
        let message = Message::Gather(0, own).encode();
        for rank in 1..=workers.len() {
            send(rank, &message)?;
        }
        let mut all: Vec<Option<Vec<u8>>> = vec![None; workers.len() + 1];
        all[0] = Some(own.to_vec());
        while all.iter().any(Option::is_none) {
            let Some(parts) = receive(socket, POLL_INTERVAL).map_err(|_| self.died(0))? else {
                for (rank, _) in all
                    .iter()
                    .enumerate()
                    .filter(|(_, message)| message.is_none())
                {
                    send(rank, &Message::Probe.encode())?;
                }
                continue;
            };
            let Some((identity, frames)) = parts.split_first() else {
                continue;
            };
            // A process that connected too late is not part of the run.
            let Some(index) = workers.iter().position(|worker| worker == identity) else {
                continue;
            };
            let rank = index + 1;
            let message = frames.concat();
            let decoded = Message::decode(&message).map_err(|why| self.unreadable(rank, why))?;
            match decoded {
                Message::Gather(_, content) => {
                    if all[rank].is_some() {
                        return Err(self.unreadable(rank, "it comes too early"));
                    }
                    let passed = Message::Gather(rank, content).encode();
                    for other in (1..all.len()).filter(|&other| other != rank) {
                        send(other, &passed)?;
                    }
                    all[rank] = Some(content.to_vec());
                }
                Message::Leave(_, why) => return Err(self.left(rank, why)),
                Message::Probe => {}
                _ => return Err(self.unreadable(rank, "it is not expected")),
            }
        }
        Ok(all.into_iter().flatten().collect())
    }

    fn gather_as_worker(&self, master: &Connection, own: &[u8]) -> Result<Vec<Vec<u8>>, PeerError> {
        let sent = master.send(&Message::Gather(self.rank, own).encode());
        sent.map_err(|_| self.died(0))?;
        let mut all: Vec<Option<Vec<u8>>> = vec![None; self.names.len()];
        all[self.rank] = Some(own.to_vec());
        while all.iter().any(Option::is_none) {
            let received = master.receive(POLL_INTERVAL).map_err(|_| self.died(0))?;
            let Some(message) = received else {
                continue;
            };
            match Message::decode(&message).map_err(|why| self.unreadable(0, why))? {
                Message::Gather(rank, content) => match all.get_mut(rank) {
                    Some(place @ None) => *place = Some(content.to_vec()),
                    _ => return Err(self.unreadable(0, "it is not expected")),
                },
                Message::Leave(rank, why) => return Err(self.left(rank, why)),
                Message::Probe => {}
                _ => return Err(self.unreadable(0, "it is not expected")),
            }
        }
        Ok(all.into_iter().flatten().collect())
    }
}

/// Sends a message to all workers. Errors of dead workers are ignored.
fn send_to_workers(socket: &Socket, workers: &[Vec<u8>], message: &Message<'_>) {
    for worker in workers {
        let _ = send_frames(socket, Some(worker), &message.encode(), 0);
    }
}

impl Peers for Group {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.names.len()
    }

    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, PeerError> {
        match &*self.link() {
            Some(Link::Master(socket, workers)) => {
                let gathered = self.gather_as_master(socket, workers, own);
                gathered.inspect_err(|error| {
                    // The other workers must end, too, so they receive the reason.
                    send_to_workers(socket, workers, &Message::Leave(0, &error.to_string()));
                })
            }
            Some(Link::Worker(master)) => self.gather_as_worker(master, own),
            None => Err(self.died(self.rank)),
        }
    }

    fn leave(&self, why: &str) {
        let message = Message::Leave(self.rank, why);
        match &*self.link() {
            Some(Link::Master(socket, workers)) => send_to_workers(socket, workers, &message),
            Some(Link::Worker(master)) => {
                // If the master is gone, the error has no consequence.
                let _ = master.send(&message.encode());
            }
            None => {}
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The threads end only after all other sockets are closed.
        self.link().take();
    }
}
