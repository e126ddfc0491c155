//! Where host threads meet between quanta: who runs what, who is through with it, and what follows.
//!
//! After a quantum in which no node has anything to say, every thread works out the next quantum by itself. A thread then waits
//! only until the others are through with the quantum. A thread that has a single node does so without leaving the code that runs
//! its vCPU ([`Meetings::go_on`]).
//!
//! A node that sleeps says until when ([`Rest::Asleep`]). Until then no thread looks at it: it counts as through with every quantum that ends
//! before. Its time moves on when somebody looks at it, or wakes it up.
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

/// How a node comes out of a quantum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// A vCPU runs, and nothing need be known about the node to go on.
    Awake,
    /// Somebody must decide what follows.
    Speaks,
    /// All vCPUs sleep until this time in picoseconds, or until a frame arrives, and nobody waits for what the node says.
    Asleep(u64),
}

/// Bits of [`Place::through`] below the quantum's number.
const SPEAKS: u64 = 1;
const ASLEEP: u64 = 2;
const REST_BITS: u32 = 2;

/// What threads tell each other about one node.
#[derive(Default)]
struct Place {
    /// The quantum that it was last run through, or [`HELD`]: who raises it runs the node.
    claim: CachePadded<AtomicU64>,
    /// The number of the quantum that it was last run through, shifted by [`REST_BITS`], and how it came out.
    through: CachePadded<AtomicU64>,
}

/// A thread runs the node, and no other may run it through any quantum.
const HELD: u64 = u64::MAX;

/// What all threads know.
pub struct Meetings {
    places: Vec<Place>,
    /// Until when each node sleeps, picoseconds; 0 where it does not, or where that is not known. Side by side: every thread reads all of
    /// them in each quantum, and they change seldom.
    asleep: Vec<AtomicU64>,
    /// Number of threads: each runs the nodes whose index has its own remainder.
    threads: CachePadded<AtomicU64>,
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
            asleep: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
            threads: CachePadded::new(AtomicU64::new(1)),
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

    /// Returns whether this thread is the one to run a node through a quantum, until it lets the node go.
    pub fn claim(&self, node: usize, number: u64) -> bool {
        let claim = &self.places[node].claim;
        // Looking first leaves the line to the node's own thread where that is through.
        let mut last = claim.load(Ordering::Relaxed);
        while last < number {
            let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            match claim.compare_exchange_weak(last, HELD, done, failed) {
                Ok(_) => return true,
                Err(other) => last = other,
            }
        }
        false
    }

    /// A node was run up to this quantum, and any thread may run it through the next.
    pub fn let_go(&self, node: usize, number: u64) {
        self.places[node].claim.store(number, Ordering::Release);
    }

    /// So many threads run the nodes.
    pub fn set_threads(&self, threads: usize) {
        self.threads.store(threads as u64, Ordering::Relaxed);
    }

    /// A node has been run through a quantum. Who sees this sees what was stored before.
    pub fn is_through(&self, node: usize, number: u64, rest: Rest) {
        let (asleep_ps, bits) = match rest {
            Rest::Awake => (0, 0),
            Rest::Speaks => (0, SPEAKS),
            Rest::Asleep(until_ps) => (until_ps, ASLEEP),
        };
        // Before the quantum's number, behind which the time must not be an old one.
        let asleep = &self.asleep[node];
        if asleep.load(Ordering::Relaxed) != asleep_ps {
            asleep.store(asleep_ps, Ordering::Release);
        }
        let through = number << REST_BITS | bits;
        self.places[node].through.store(through, Ordering::Release);
        self.gate.open();
    }

    /// Tells that a node sleeps until another time than it said, 0 where that is not known. Only while no thread runs nodes: after a quantum
    /// with this number, which all nodes are through with.
    pub fn wakes(&self, node: usize, number: u64, asleep_ps: u64) {
        // First the quantum that the node has slept through: a thread that still waits for its end must neither wait for the node nor run it.
        let Place { claim, through } = &self.places[node];
        // Its thread may not have told all yet.
        let let_go = || claim.load(Ordering::Acquire) != HELD;
        self.gate.wait(let_go, || ());
        claim.fetch_max(number, Ordering::AcqRel);
        if through.load(Ordering::Relaxed) >> REST_BITS < number {
            through.store(number << REST_BITS | ASLEEP, Ordering::Release);
        }
        self.asleep[node].store(asleep_ps, Ordering::Release);
    }

    /// Until when a node sleeps, picoseconds; 0 where it is awake or where nobody knows.
    pub fn asleep_ps(&self, node: usize) -> u64 {
        self.asleep[node].load(Ordering::Acquire)
    }

    /// Whether a node sleeps through a quantum that ends at this time.
    pub fn sleeps_through(&self, node: usize, target_ps: u64) -> bool {
        self.asleep_ps(node) >= target_ps
    }

    fn through(&self, node: usize) -> u64 {
        self.places[node].through.load(Ordering::Acquire)
    }

    /// The quantum that a node was last run through.
    pub fn last(&self, node: usize) -> u64 {
        self.through(node) >> REST_BITS
    }

    /// Whether a node had something to say when it was last run through a quantum.
    pub fn speaks(&self, node: usize) -> bool {
        self.through(node) & SPEAKS != 0
    }

    /// A function that tells whether all nodes are through with a quantum. Who was is not asked again.
    pub fn all_through(&self, quantum: Quantum) -> impl FnMut() -> bool {
        let Quantum {
            number, target_ps, ..
        } = quantum;
        let mut late = 0;
        move || {
            while late < self.places.len()
                && (self.sleeps_through(late, target_ps) || self.last(late) >= number)
            {
                late += 1;
            }
            late == self.places.len()
        }
    }

    /// What comes after a quantum, with which all nodes are through.
    pub fn after(&self, quantum: Quantum) -> After {
        let number = quantum.number;
        // Others may be further already. Then nothing was to be decided, or it has been, which is asked after this.
        let (mut undecided, mut awake) = (quantum.waits, false);
        for node in 0..self.places.len() {
            let through = self.through(node);
            undecided |= through == number << REST_BITS | SPEAKS;
            awake |= through == number << REST_BITS || through >> REST_BITS > number;
        }
        if self.is_past(number) {
            return After::Quantum(self.latest());
        }
        // Where all sleep, somebody must find who wakes up first.
        if undecided || !awake {
            return After::Undecided;
        }
        quantum.following().map_or(After::Over, After::Quantum)
    }

    /// The next quantum for a node that a thread holds, once the node is through with this one. None if something is to be decided,
    /// if another node of the thread wakes up, or if the others do not keep up.
    ///
    /// No locked instruction follows a thread's message to the others: it would wait some 100 to 400 cycles until their caches have
    /// the message.
    pub fn go_on(&self, node: usize, quantum: Quantum) -> Option<Quantum> {
        self.is_through(node, quantum.number, Rest::Awake);
        let mut all_through = self.all_through(quantum);
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
            After::Quantum(next) if !self.is_stopped() && self.is_alone(node, next) => Some(next),
            _ => None,
        }
    }

    /// Whether all other nodes of a node's thread sleep through a quantum.
    fn is_alone(&self, node: usize, quantum: Quantum) -> bool {
        let threads = self.threads.load(Ordering::Relaxed) as usize;
        (node % threads..self.places.len())
            .step_by(threads)
            .all(|other| other == node || self.sleeps_through(other, quantum.target_ps))
    }
}
