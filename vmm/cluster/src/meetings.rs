//! Where host threads meet between quanta: who runs what, who is through with it, and what follows.
//!
//! What follows a quantum after which nobody has anything to say, every thread works out by itself, so that nobody waits for
//! more than the others' word that they are through with it. A thread that has a single node does so without leaving the code
//! that runs its vCPU ([`NodePace`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nodescope_machine::board::Pace;
use nodescope_machine::clock::NodeClock;

use crate::gate::{Gate, PATIENCE};
use crate::stretch::{Meeting, Stretch};

/// Keeps what different threads write apart: a line of the host's cache (and its neighbour, which is fetched with it) for each.
///
/// Where nodes are quick, a quantum takes a few microseconds, and what its threads tell each other moves between cores at some
/// 100 ns a line: one for each node that others wait for.
#[derive(Default)]
#[repr(align(128))]
pub struct Apart<T>(pub T);

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
    claim: Apart<AtomicU64>,
    /// Twice the number of the quantum that it is through with, plus one where what follows must be decided.
    through: Apart<AtomicU64>,
}

/// Who runs a node goes on with it by itself, and no other thread may run it through any quantum.
const HELD: u64 = u64::MAX;

/// What all threads know.
pub struct Meetings {
    places: Vec<Place>,
    begun: Apart<Begun>,
    /// The last quantum of which somebody has set out to decide what follows.
    decided: Apart<AtomicU64>,
    /// The last quantum of a stretch that is over.
    over: Apart<AtomicU64>,
    /// Threads that sleep until something is through, or begins.
    pub gate: Apart<Gate>,
}

impl Meetings {
    /// Of so many nodes.
    pub fn new(nodes: usize) -> Self {
        Self {
            places: (0..nodes).map(|_| Place::default()).collect(),
            begun: Apart::default(),
            decided: Apart::default(),
            over: Apart::default(),
            gate: Apart::default(),
        }
    }

    /// Tell all threads to begin a quantum.
    pub fn begin(&self, quantum: Quantum) {
        let begun = &self.begun.0;
        *begun.quantum.lock().unwrap_or_else(PoisonError::into_inner) = quantum;
        begun.number.store(quantum.number, Ordering::Release);
        self.gate.0.open();
    }

    /// The quantum that they were last told to begin.
    pub fn latest(&self) -> Quantum {
        let quantum = self.begun.0.quantum.lock();
        *quantum.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether they were told to begin one after this.
    pub fn is_past(&self, number: u64) -> bool {
        self.begun.0.number.load(Ordering::Acquire) > number
    }

    /// Send all threads home, or take that back.
    pub fn stop(&self, stop: bool) {
        self.begun.0.stop.store(stop, Ordering::Release);
        self.gate.0.open();
    }

    pub fn is_stopped(&self) -> bool {
        self.begun.0.stop.load(Ordering::Acquire)
    }

    /// The stretch ends with this quantum.
    pub fn end(&self, number: u64) {
        self.over.0.store(number, Ordering::Release);
        self.gate.0.open();
    }

    /// The last quantum of the last stretch that is over.
    pub fn over(&self) -> u64 {
        self.over.0.load(Ordering::Acquire)
    }

    /// Whether it is this thread's to decide what follows a quantum.
    pub fn claim_decision(&self, number: u64) -> bool {
        self.decided.0.fetch_max(number, Ordering::AcqRel) < number
    }

    /// Whether it is this thread's to run a node through a quantum.
    pub fn claim(&self, node: usize, number: u64) -> bool {
        let claim = &self.places[node].claim.0;
        // Looking first leaves the line to the node's own thread where that is through.
        claim.load(Ordering::Relaxed) < number && claim.fetch_max(number, Ordering::AcqRel) < number
    }

    /// A node whose quantum this thread has claimed goes on by itself until it is let go of.
    pub fn hold(&self, node: usize) {
        self.places[node].claim.0.store(HELD, Ordering::Relaxed);
    }

    /// It has gone on up to this quantum, which it has begun, and any thread may run it through the next.
    pub fn let_go(&self, node: usize, number: u64) {
        self.places[node].claim.0.store(number, Ordering::Release);
    }

    /// A node is through with a quantum; `usual`: nothing need be known about it to go on. Who sees this sees what was stored before.
    pub fn is_through(&self, node: usize, number: u64, usual: bool) {
        let through = number << 1 | u64::from(!usual);
        self.places[node]
            .through
            .0
            .store(through, Ordering::Release);
        self.gate.0.open();
    }

    fn through(&self, node: usize) -> u64 {
        self.places[node].through.0.load(Ordering::Acquire)
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
}

/// Lets a node go on from one quantum to the next as long as nothing is to be decided and the others keep up.
///
/// Between what a thread tells the others and what it does next there is no locked instruction, which would wait until the others'
/// caches have heard of it: some 100 to 400 cycles.
pub struct NodePace {
    pub meetings: Arc<Meetings>,
    pub node: usize,
    pub clock: NodeClock,
    /// The one that the node is in.
    pub quantum: Quantum,
}

impl Pace for NodePace {
    fn next(&mut self) -> Option<u64> {
        let meetings = &self.meetings;
        meetings.is_through(self.node, self.quantum.number, true);
        let mut all_through = meetings.all_through(self.quantum.number);
        // Where it takes longer, the executor waits.
        let mut spins = 0;
        while !all_through() {
            if spins == PATIENCE {
                return None;
            }
            spins += 1;
            std::hint::spin_loop();
        }
        match meetings.after(self.quantum) {
            After::Quantum(next) if !meetings.is_stopped() => {
                self.quantum = next;
                Some(self.clock.cycles(next.target_ps))
            }
            _ => None,
        }
    }
}
