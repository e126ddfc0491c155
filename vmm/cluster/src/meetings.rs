//! Where host threads meet between quanta: who runs what, who is through with it, and what follows.
//!
//! After a quantum in which no node has anything to say, every thread works out the next quantum by itself. A thread then waits
//! only until the others are through with the quantum. A thread that has a single node does so without leaving the code that runs
//! its vCPU ([`Meetings::go_on`]).
//!
//! Data that different threads write lies in different lines of the host's cache ([`CachePadded`]). Where nodes are quick, a
//! quantum takes a few microseconds, and messages between its threads move between cores at some 100 ns a line: one line for each
//! node that others wait for.

use std::sync::PoisonError;

use crate::gate::{Gate, PATIENCE};
use crate::stretch::{Meeting, Stretch};
use crate::sync::{AtomicBool, AtomicU64, CachePadded, Mutex, Ordering, spin_loop};

/// A quantum, and what is to follow it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantum {
    /// Numbered from 1, over all stretches.
    pub number: u64,
    /// Its end in picoseconds.
    pub target_ps: u64,
    /// Frames wait in the network: what follows must be decided, whatever the nodes say.
    pub waits: bool,
    pub stretch: Stretch,
}

impl Quantum {
    /// The one that follows where nobody has anything to say, if one does.
    fn following(mut self) -> Option<Self> {
        let target_ps = self.stretch.following(self.target_ps, Meeting::USUAL)?;
        Some(Self {
            number: self.number + 1,
            target_ps,
            ..self
        })
    }
}

/// What comes after a quantum that all nodes are through with.
pub enum After {
    /// Another, by itself or as all threads were told.
    Quantum(Quantum),
    /// The stretch is over.
    Over,
    /// What somebody must decide.
    Undecided,
}

/// The quantum that all threads were last told to begin: one that does not follow from the one before by itself.
#[derive(Default)]
struct Begun {
    /// Its number, for those that wait.
    number: AtomicU64,
    stop: AtomicBool,
    quantum: Mutex<Quantum>,
}

/// What threads tell each other about one node.
#[derive(Default)]
struct Place {
    /// The quantum that it has begun last, or [`HELD`]: who raises it runs the node.
    claim: CachePadded<AtomicU64>,
    /// Twice the number of the quantum that it is through with, plus one where what follows must be decided.
    through: CachePadded<AtomicU64>,
}

/// Who runs a node goes on with it by itself, and no other thread may run it through any quantum.
const HELD: u64 = u64::MAX;

/// What all threads know.
pub struct Meetings {
    places: Vec<Place>,
    begun: CachePadded<Begun>,
    /// The last quantum of which somebody has set out to decide what follows.
    decided: CachePadded<AtomicU64>,
    /// The last quantum of a stretch that is over.
    over: CachePadded<AtomicU64>,
    /// Threads that sleep until something is through, or begins.
    pub gate: CachePadded<Gate>,
}

impl Meetings {
    /// Of so many nodes.
    pub fn new(nodes: usize) -> Self {
        Self {
            places: (0..nodes).map(|_| Place::default()).collect(),
            begun: CachePadded::default(),
            decided: CachePadded::default(),
            over: CachePadded::default(),
            gate: CachePadded::default(),
        }
    }

    /// Tell all threads to begin a quantum.
    pub fn begin(&self, quantum: Quantum) {
        let begun = &self.begun;
        let mut latest = begun.quantum.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = quantum;
        // Under the lock: a thread that read this quantum before its number could begin the next ones, and this number would replace theirs.
        begun.number.store(quantum.number, Ordering::Release);
        drop(latest);
        self.gate.open();
    }

    /// The quantum that they were last told to begin.
    pub fn latest(&self) -> Quantum {
        let quantum = self.begun.quantum.lock();
        *quantum.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether they were told to begin one after this.
    pub fn is_past(&self, number: u64) -> bool {
        self.begun.number.load(Ordering::Acquire) > number
    }

    /// Send all threads home, or take that back.
    pub fn stop(&self, stop: bool) {
        self.begun.stop.store(stop, Ordering::Release);
        self.gate.open();
    }

    pub fn is_stopped(&self) -> bool {
        self.begun.stop.load(Ordering::Acquire)
    }

    /// The stretch ends with this quantum.
    pub fn end(&self, number: u64) {
        self.over.store(number, Ordering::Release);
        self.gate.open();
    }

    /// The last quantum of the last stretch that is over.
    pub fn over(&self) -> u64 {
        self.over.load(Ordering::Acquire)
    }

    /// Whether it is this thread's to decide what follows a quantum.
    pub fn claim_decision(&self, number: u64) -> bool {
        self.decided.fetch_max(number, Ordering::AcqRel) < number
    }

    /// Returns whether this thread is the one to run a node through a quantum; a node that `goes_on` runs on by itself until it is
    /// released.
    pub fn claim(&self, node: usize, number: u64, goes_on: bool) -> bool {
        let claim = &self.places[node].claim;
        let claimed = if goes_on { HELD } else { number };
        // Looking first leaves the line to the node's own thread where that is through.
        let mut last = claim.load(Ordering::Relaxed);
        while last < number {
            let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            match claim.compare_exchange_weak(last, claimed, done, failed) {
                Ok(_) => return true,
                Err(other) => last = other,
            }
        }
        false
    }

    /// It has gone on up to this quantum, which it has begun, and any thread may run it through the next.
    pub fn let_go(&self, node: usize, number: u64) {
        self.places[node].claim.store(number, Ordering::Release);
    }

    /// A node is through with a quantum; `usual`: nothing need be known about it to go on. Who sees this sees what was stored before.
    pub fn is_through(&self, node: usize, number: u64, usual: bool) {
        let through = number << 1 | u64::from(!usual);
        self.places[node].through.store(through, Ordering::Release);
        self.gate.open();
    }

    fn through(&self, node: usize) -> u64 {
        self.places[node].through.load(Ordering::Acquire)
    }

    /// The quantum that a node was last through with.
    pub fn last(&self, node: usize) -> u64 {
        self.through(node) >> 1
    }

    /// Whether a node had something to say when it was last through with a quantum.
    pub fn speaks(&self, node: usize) -> bool {
        self.through(node) & 1 == 1
    }

    /// A function that tells whether all nodes are through with a quantum. Who was is not asked again.
    pub fn all_through(&self, number: u64) -> impl FnMut() -> bool {
        let mut late = 0;
        move || {
            while late < self.places.len() && self.last(late) >= number {
                late += 1;
            }
            late == self.places.len()
        }
    }

    /// What comes after a quantum, with which all nodes are through.
    pub fn after(&self, quantum: Quantum) -> After {
        let number = quantum.number;
        // Others may be further already. Then nothing was to be decided, or it has been, which is asked after this.
        let undecided = (0..self.places.len()).any(|node| self.through(node) == number << 1 | 1);
        if self.is_past(number) {
            return After::Quantum(self.latest());
        }
        if quantum.waits || undecided {
            return After::Undecided;
        }
        quantum.following().map_or(After::Over, After::Quantum)
    }

    /// The next quantum for a node that a thread holds, once the node is through with this one. None if something is to be decided,
    /// or if the others do not keep up.
    ///
    /// No locked instruction follows a thread's message to the others: it would wait some 100 to 400 cycles until their caches have
    /// the message.
    pub fn go_on(&self, node: usize, quantum: Quantum) -> Option<Quantum> {
        self.is_through(node, quantum.number, true);
        let mut all_through = self.all_through(quantum.number);
        // Where it takes longer, the executor waits.
        let mut spins = 0;
        while !all_through() {
            if spins == PATIENCE {
                return None;
            }
            spins += 1;
            spin_loop();
        }
        match self.after(quantum) {
            After::Quantum(next) if !self.is_stopped() => Some(next),
            _ => None,
        }
    }
}
