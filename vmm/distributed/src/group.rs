//! Groups of processes that exchange messages.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::control::{Control, PROBE_INTERVAL};
use crate::exchange_clock::{ExchangeClock, ExchangeTimes};
use crate::mpi::{MpiError, MpiMessages, World};
use crate::ring::{Outgoing, RingPair};
use crate::wait::{REASON_LIMIT, SPINS, Wait};
use nodescope_cluster::{PeerError, Peers};

/// Way of the messages between this process and another one of its host or of another host.
pub(crate) enum Way {
    /// Memory that both processes share.
    Memory(RingPair),
    /// The control line.
    Control,
}

/// Ways of the messages to all other processes.
enum Ways {
    Each(Vec<Way>),
    Mpi(MpiMessages),
}

struct Connections {
    control: Control,
    clock: ExchangeClock,
    ways: Ways,
    /// True once a process is lost: transfers of MPI then stay open.
    broken: bool,
}

/// The processes of a run, as one of them sees the group.
pub struct Group {
    rank: usize,
    /// Name of each process for messages, by rank.
    names: Vec<String>,
    /// Polls before this process offers its core to others.
    spins: u32,
    connections: Mutex<Option<Connections>>,
}

impl Group {
    /// Returns a group whose messages all go by the control line.
    pub(crate) fn new(rank: usize, names: Vec<String>, control: Control) -> Self {
        let ways = names.iter().map(|_| Way::Control).collect();
        Self {
            rank,
            names,
            spins: SPINS,
            connections: Mutex::new(Some(Connections {
                control,
                clock: ExchangeClock::default(),
                ways: Ways::Each(ways),
                broken: false,
            })),
        }
    }

    /// Sends messages to a process by memory from now on.
    pub(crate) fn use_memory(&mut self, other: usize, ring: RingPair) {
        if let Some(Connections {
            ways: Ways::Each(ways),
            ..
        }) = &mut *self.connections()
        {
            ways[other] = Way::Memory(ring);
        }
    }

    /// Tells the group how many of its processes run on this host.
    pub(crate) fn share_host(&mut self, processes: usize) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // A process that keeps a core from the process it waits for waits longer.
        self.spins = if processes > cores { 0 } else { SPINS };
    }

    /// Sends all messages by MPI from now on.
    pub(crate) fn use_mpi(&mut self, world: World) {
        if let Some(connections) = &mut *self.connections() {
            connections.ways = Ways::Mpi(world.into_messages());
        }
    }

    /// Returns the name of each process for messages, by rank.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the times of all exchanges but the last.
    pub fn times(&self) -> ExchangeTimes {
        let connections = self.connections();
        connections
            .as_ref()
            .map_or_else(ExchangeTimes::default, |of| of.clock.times())
    }

    /// Returns the way of the messages between this process and another one, for people.
    pub fn way(&self, other: usize) -> &'static str {
        match &*self.connections() {
            Some(Connections {
                ways: Ways::Mpi(_), ..
            }) => "MPI",
            Some(Connections {
                ways: Ways::Each(ways),
                ..
            }) => match ways[other] {
                Way::Memory(_) => "memory",
                Way::Control => "sockets",
            },
            None => "nothing",
        }
    }

    /// Calls a function with the connections. After an error, the master tells the workers the reason, since they must end, too.
    fn with<R>(
        &self,
        f: impl FnOnce(&mut Connections) -> Result<R, PeerError>,
    ) -> Result<R, PeerError> {
        let mut connections = self.connections();
        let Some(connections) = &mut *connections else {
            return Err(PeerError::Died {
                peer: self.names[self.rank].clone(),
            });
        };
        f(connections).inspect_err(|error| {
            connections.broken = true;
            if self.rank == 0 {
                connections.control.leave(&error.to_string());
            }
        })
    }

    fn connections(&self) -> MutexGuard<'_, Option<Connections>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    /// Returns the error for a failed call of MPI: the process that is gone, if the control line tells within a while.
    fn mpi_failed(&mut self, error: &MpiError, others: &[usize]) -> PeerError {
        let begin = Instant::now();
        while begin.elapsed() < REASON_LIMIT {
            let told = self.control.read(PROBE_INTERVAL);
            if let Err(reason) = told.and_then(|_| self.control.probe(others)) {
                return reason;
            }
        }
        PeerError::Left {
            peer: "this process".into(),
            why: error.to_string(),
        }
    }

    /// Sends a message to a process.
    fn send(&mut self, to: usize, message: &[u8], wait: &mut Wait) -> Result<(), PeerError> {
        let Self { control, ways, .. } = self;
        match ways {
            Ways::Mpi(messages) => {
                let mut rest = Some(message);
                loop {
                    match messages.send(to, &mut rest) {
                        Ok(true) => return Ok(()),
                        Ok(false) => wait.pause(control, &[to])?,
                        Err(error) => return Err(self.mpi_failed(&error, &[to])),
                    }
                }
            }
            Ways::Each(ways) => {
                let Way::Memory(_) = &ways[to] else {
                    return control.send(to, message);
                };
                let mut out = Outgoing::new(message);
                loop {
                    if let Way::Memory(ring) = &mut ways[to]
                        && ring.write(&mut out)
                    {
                        return Ok(());
                    }
                    // The other process may wait for room as well.
                    for (from, way) in ways.iter_mut().enumerate() {
                        if let Way::Memory(ring) = way {
                            ring.gather().map_err(|why| control.unreadable(from, why))?;
                        }
                    }
                    wait.pause(control, &[to])?;
                }
            }
        }
    }

    /// Returns the next message of a process, if it has come.
    fn receive(&mut self, from: usize) -> Result<Option<Vec<u8>>, PeerError> {
        let Self { control, ways, .. } = self;
        match ways {
            Ways::Mpi(messages) => {
                let received = messages.receive(from);
                received.map_err(|error| self.mpi_failed(&error, &[from]))
            }
            Ways::Each(ways) => match &mut ways[from] {
                Way::Memory(ring) => {
                    let received = ring.receive();
                    received.map_err(|why| control.unreadable(from, why))
                }
                Way::Control => Ok(control.take(from)),
            },
        }
    }

    fn goes_by_control(&self, rank: usize) -> bool {
        matches!(&self.ways, Ways::Each(ways) if matches!(ways[rank], Way::Control))
    }

    /// Exchanges messages, to which the exchange's clock adds what it needs.
    fn exchange(
        &mut self,
        rank: usize,
        own: &[Vec<u8>],
        senders: &[bool],
        spins: u32,
    ) -> Result<Vec<Vec<u8>>, PeerError> {
        let begin = Instant::now();
        let own: Vec<_> = own.iter().map(|of| self.clock.stamped(of)).collect();
        let mut all = self.exchange_stamped(rank, &own, senders, spins)?;
        let taken = self.clock.take_stamps(rank, senders, &mut all);
        taken.map_err(|from| self.control.unreadable(from, "it is too short"))?;
        self.clock.end(begin.elapsed(), rank, senders);
        Ok(all)
    }

    fn exchange_stamped(
        &mut self,
        rank: usize,
        own: &[Vec<u8>],
        senders: &[bool],
        spins: u32,
    ) -> Result<Vec<Vec<u8>>, PeerError> {
        let mut wait = Wait::new(spins);
        if senders[rank] {
            // The master comes last: once it has its message, it has passed on those for others.
            for to in (0..own.len()).rev().filter(|&to| to != rank) {
                self.send(to, &own[to], &mut wait)?;
            }
        }
        let mut all = vec![Vec::new(); own.len()];
        let mut awaited: Vec<usize> = (0..own.len())
            .filter(|&from| from != rank && senders[from])
            .collect();
        loop {
            let mut index = 0;
            while let Some(&from) = awaited.get(index) {
                match self.receive(from)? {
                    Some(message) => {
                        all[from] = message;
                        awaited.swap_remove(index);
                    }
                    None => index += 1,
                }
            }
            if awaited.is_empty() {
                return Ok(all);
            }
            self.wait(&mut wait, &awaited)?;
        }
    }

    /// Waits a moment for messages of these processes.
    fn wait(&mut self, wait: &mut Wait, awaited: &[usize]) -> Result<(), PeerError> {
        let by_control = awaited.iter().filter(|&&from| self.goes_by_control(from));
        match by_control.count() {
            0 => {}
            count if count == awaited.len() => {
                // This read has waited for a message. Polls by `wait` after it would delay the look for lost processes by minutes.
                return match self.control.read(PROBE_INTERVAL)? {
                    true => Ok(()),
                    false => self.control.probe(awaited),
                };
            }
            _ if self.control.read(Duration::ZERO)? => return Ok(()),
            _ => {}
        }
        wait.pause(&mut self.control, awaited).or_else(|error| {
            // A master that has this exchange's messages may end before this worker has them.
            let is_master = error == self.control.died(0);
            match !is_master || awaited.contains(&0) || wait.is_long() {
                true => Err(error),
                false => Ok(()),
            }
        })
    }
}

impl Peers for Group {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.names.len()
    }

    fn exchange(&self, own: &[Vec<u8>], senders: &[bool]) -> Result<Vec<Vec<u8>>, PeerError> {
        self.with(|connections| connections.exchange(self.rank, own, senders, self.spins))
    }

    fn send(&self, to: usize, message: &[u8]) -> Result<(), PeerError> {
        self.with(|connections| connections.send(to, message, &mut Wait::new(self.spins)))
    }

    fn receive(&self, from: usize) -> Result<Vec<u8>, PeerError> {
        self.with(|connections| {
            let mut wait = Wait::new(self.spins);
            loop {
                if let Some(message) = connections.receive(from)? {
                    return Ok(message);
                }
                connections.wait(&mut wait, &[from])?;
            }
        })
    }

    fn leave(&self, why: &str) {
        if let Some(connections) = &mut *self.connections() {
            connections.broken = true;
            connections.control.leave(why);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(Connections {
            ways: Ways::Mpi(messages),
            control,
            broken,
            ..
        }) = self.connections().take()
        else {
            return;
        };
        match broken {
            // MPI may still write into the memory of open transfers.
            true => std::mem::forget(messages),
            false => {
                if let Err(error) = messages.end() {
                    tracing::warn!("MPI does not end: {error}");
                }
            }
        }
        drop(control);
    }
}
