//! The barrier between quanta: which host thread runs which node, which nodes have arrived, and which quantum follows.
//!
//! A node arrives at the barrier when a thread has run the node through a quantum. After a quantum in which all nodes end by default,
//! every thread works out the next quantum by itself. The thread then waits only until the other nodes have arrived. A thread that
//! has a single node waits without leaving the code that runs the node's vCPU ([`QuantumBarrier::arrive_and_wait`]).
//!
//! A sleeping node reports to the barrier the time until which the node sleeps ([`Arrival::Asleep`]). Until then no thread checks the node:
//! the node counts as arrived at the end of every quantum that ends before that time. The node's clock advances when a thread accesses the
//! node or wakes the node up.
//!
//! Data that different threads write lies in different lines of the host's cache ([`CachePadded`]). Where nodes are quick, a
//! quantum takes a few microseconds, and messages between its threads move between cores at some 100 ns a line. Therefore each node
//! has one line for which other threads wait.

use std::sync::PoisonError;

use crate::batch::{BarrierSummary, QuantumBatch};
use crate::parker::{Parker, SHORT_SPINS};
use crate::sync::{AtomicBool, AtomicU64, CachePadded, Mutex, Ordering, spin_loop};

/// A quantum and the batch that the quantum is part of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantum {
    /// Number of the quantum. Numbers begin at 1 and continue over all batches.
    pub number: u64,
    /// End of the quantum, picoseconds.
    pub target_ps: u64,
    /// True if a thread must decide what follows, whatever the nodes' arrivals are: frames wait in the network, or the run has other
    /// processes.
    pub needs_decision: bool,
    pub batch: QuantumBatch,
}

impl Quantum {
    /// Returns the next quantum where all nodes end this quantum by default, or `None` where the batch ends.
    fn next(mut self) -> Option<Self> {
        let target_ps = self
            .batch
            .next_end(self.target_ps, BarrierSummary::DEFAULT)?;
        Some(Self {
            number: self.number + 1,
            target_ps,
            ..self
        })
    }
}

/// Step after a quantum at whose end all nodes have arrived.
pub enum NextStep {
    /// Run another quantum, which follows by default or was announced.
    Run(Quantum),
    /// The batch of quanta ends.
    EndBatch,
    /// A thread must decide what follows.
    Decide,
}

/// The last quantum that was announced to all threads. A quantum is announced if it does not follow from the previous quantum by default.
#[derive(Default)]
struct Announcement {
    /// Number of the announced quantum, which waiting threads read.
    number: AtomicU64,
    stop: AtomicBool,
    quantum: Mutex<Quantum>,
}

/// State of a node as it arrives at the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The default end of a quantum: a vCPU runs, and nothing need be known about the node to continue.
    Awake,
    /// A thread must decide what follows: the node has output or frames, has stopped, runs its vCPUs in parallel, or neither sleeps nor
    /// ends the quantum by default.
    NeedsDecision,
    /// All vCPUs sleep until this time in picoseconds, or until a frame arrives, and no thread waits for output of the node.
    Asleep(u64),
}

/// Bits of [`NodeProgress::finished`] below the quantum's number, and the number of these bits.
const NEEDS_DECISION: u64 = 1;
const ASLEEP: u64 = 2;
const ARRIVAL_BITS: u32 = 2;

/// Progress of one node, through which threads coordinate.
#[derive(Default)]
struct NodeProgress {
    /// Number of the last quantum that the node has finished, or [`CLAIMED`]. The thread that replaces the number by `CLAIMED` runs the
    /// node.
    claim: CachePadded<AtomicU64>,
    /// Number of the last quantum that the node has finished, shifted by [`ARRIVAL_BITS`], and the node's [`Arrival`].
    finished: CachePadded<AtomicU64>,
}

/// Value of [`NodeProgress::claim`] while a thread runs the node, and no other thread may.
const CLAIMED: u64 = u64::MAX;

/// The barrier that the host threads of a cluster share.
pub struct QuantumBarrier {
    progress: Vec<NodeProgress>,
    /// Times until which the nodes sleep, picoseconds; 0 where a node is awake, or where the time is unknown. The times are adjacent in
    /// memory: every thread reads all of them in each quantum, and the times seldom change.
    asleep_until_ps: Vec<AtomicU64>,
    /// Number of threads. A thread owns the nodes whose index, modulo this number, is the thread's number.
    threads: CachePadded<AtomicU64>,
    announced: CachePadded<Announcement>,
    /// Number of the last quantum for whose end a thread has claimed the decision.
    decided: CachePadded<AtomicU64>,
    /// Number of the last quantum of the last batch that has ended.
    batch_end: CachePadded<AtomicU64>,
    /// Parks threads that wait for nodes to arrive or for a quantum to begin.
    pub parker: CachePadded<Parker>,
}

impl QuantumBarrier {
    /// Returns a barrier for this number of nodes.
    pub fn new(nodes: usize) -> Self {
        Self {
            progress: (0..nodes).map(|_| NodeProgress::default()).collect(),
            asleep_until_ps: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
            threads: CachePadded::new(AtomicU64::new(1)),
            announced: CachePadded::default(),
            decided: CachePadded::default(),
            batch_end: CachePadded::default(),
            parker: CachePadded::default(),
        }
    }

    /// Announces to all threads that a quantum begins.
    pub fn begin(&self, quantum: Quantum) {
        let announced = &self.announced;
        let mut latest = (announced.quantum.lock()).unwrap_or_else(PoisonError::into_inner);
        *latest = quantum;
        // The number is stored under the lock. Otherwise a thread could read this quantum before its number and begin the next ones, and
        // this number would replace theirs.
        announced.number.store(quantum.number, Ordering::Release);
        drop(latest);
        self.parker.unpark_all();
    }

    /// Returns the last quantum that was announced.
    pub fn latest(&self) -> Quantum {
        let quantum = self.announced.quantum.lock();
        *quantum.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a quantum after this quantum was announced.
    pub fn is_past(&self, number: u64) -> bool {
        self.announced.number.load(Ordering::Acquire) > number
    }

    /// Stops all threads, or withdraws the stop.
    pub fn stop(&self, stop: bool) {
        self.announced.stop.store(stop, Ordering::Release);
        self.parker.unpark_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.announced.stop.load(Ordering::Acquire)
    }

    /// Ends the batch with this quantum.
    pub fn end_batch(&self, number: u64) {
        self.batch_end.store(number, Ordering::Release);
        self.parker.unpark_all();
    }

    /// Returns the number of the last quantum of the last batch that has ended.
    pub fn batch_end(&self) -> u64 {
        self.batch_end.load(Ordering::Acquire)
    }

    /// Claims the decision about what follows a quantum. Returns whether this thread is the first one to claim the decision.
    pub fn claim_decision(&self, number: u64) -> bool {
        self.decided.fetch_max(number, Ordering::AcqRel) < number
    }

    /// Claims a node for a quantum. Returns whether this thread is to run the node, until the thread releases the node.
    pub fn claim(&self, node: usize, number: u64) -> bool {
        let claim = &self.progress[node].claim;
        // A load first leaves the cache line with the node's own thread if that thread has finished the node already.
        let mut last = claim.load(Ordering::Relaxed);
        while last < number {
            let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            match claim.compare_exchange_weak(last, CLAIMED, done, failed) {
                Ok(_) => return true,
                Err(other) => last = other,
            }
        }
        false
    }

    /// Releases a node that has finished this quantum: any thread may run the node through the next quantum.
    pub fn release(&self, node: usize, number: u64) {
        self.progress[node].claim.store(number, Ordering::Release);
    }

    /// Sets the number of threads that run the nodes.
    pub fn set_threads(&self, threads: usize) {
        self.threads.store(threads as u64, Ordering::Relaxed);
    }

    /// Records that a node has finished a quantum. A thread that sees the arrival sees all earlier stores of this thread.
    pub fn arrive(&self, node: usize, number: u64, arrival: Arrival) {
        let (asleep_until_ps, bits) = match arrival {
            Arrival::Awake => (0, 0),
            Arrival::NeedsDecision => (0, NEEDS_DECISION),
            Arrival::Asleep(until_ps) => (until_ps, ASLEEP),
        };
        // The time is stored before the quantum's number: a thread that reads the new number must not then read the old time.
        let asleep = &self.asleep_until_ps[node];
        if asleep.load(Ordering::Relaxed) != asleep_until_ps {
            asleep.store(asleep_until_ps, Ordering::Release);
        }
        let finished = number << ARRIVAL_BITS | bits;
        self.progress[node]
            .finished
            .store(finished, Ordering::Release);
        self.parker.unpark_all();
    }

    /// Changes the time until which a node sleeps; 0 where the time is unknown. The caller must call this function after the quantum
    /// `number`, at whose end all nodes have arrived, while no thread runs nodes.
    pub fn set_asleep_until(&self, node: usize, number: u64, until_ps: u64) {
        // The arrival is raised first: a thread that still waits for the end of the quantum must neither wait for the sleeping node nor run
        // it.
        let NodeProgress { claim, finished } = &self.progress[node];
        // The node's thread may have recorded the arrival without having released the node.
        let released = || claim.load(Ordering::Acquire) != CLAIMED;
        self.parker.wait_until(released, || ());
        claim.fetch_max(number, Ordering::AcqRel);
        if finished.load(Ordering::Relaxed) >> ARRIVAL_BITS < number {
            finished.store(number << ARRIVAL_BITS | ASLEEP, Ordering::Release);
        }
        self.asleep_until_ps[node].store(until_ps, Ordering::Release);
    }

    /// Returns until when a node sleeps, picoseconds; 0 where the node is awake or the time is unknown.
    pub fn asleep_until_ps(&self, node: usize) -> u64 {
        self.asleep_until_ps[node].load(Ordering::Acquire)
    }

    /// Returns whether a node sleeps during the whole of a quantum that ends at this time.
    pub fn sleeps_until(&self, node: usize, target_ps: u64) -> bool {
        self.asleep_until_ps(node) >= target_ps
    }

    fn finished(&self, node: usize) -> u64 {
        self.progress[node].finished.load(Ordering::Acquire)
    }

    /// Returns the number of the last quantum that a node has finished.
    pub fn last_finished(&self, node: usize) -> u64 {
        self.finished(node) >> ARRIVAL_BITS
    }

    /// Returns whether the last arrival of a node was [`Arrival::NeedsDecision`].
    pub fn needs_decision(&self, node: usize) -> bool {
        self.finished(node) & NEEDS_DECISION != 0
    }

    /// Returns a function that checks whether all nodes have arrived at the end of a quantum. Once the function has found a node there, it
    /// does not check that node again.
    pub fn all_arrived(&self, quantum: Quantum) -> impl FnMut() -> bool {
        let Quantum {
            number, target_ps, ..
        } = quantum;
        let mut late = 0;
        move || {
            while late < self.progress.len()
                && (self.sleeps_until(late, target_ps) || self.last_finished(late) >= number)
            {
                late += 1;
            }
            late == self.progress.len()
        }
    }

    /// Returns what follows a quantum at whose end all nodes have arrived.
    pub fn next_step(&self, quantum: Quantum) -> NextStep {
        let number = quantum.number;
        // Other nodes may already have finished later quanta. Then no decision was needed, or it was made, which `is_past` shows below.
        let (mut needs_decision, mut awake) = (quantum.needs_decision, false);
        for node in 0..self.progress.len() {
            let finished = self.finished(node);
            needs_decision |= finished == number << ARRIVAL_BITS | NEEDS_DECISION;
            awake |= finished == number << ARRIVAL_BITS || finished >> ARRIVAL_BITS > number;
        }
        if self.is_past(number) {
            return NextStep::Run(self.latest());
        }
        // Where all nodes sleep, a thread must find the node that wakes up first.
        if needs_decision || !awake {
            return NextStep::Decide;
        }
        quantum.next().map_or(NextStep::EndBatch, NextStep::Run)
    }

    /// Records that a node has finished a quantum by default, and waits for the other nodes. The calling thread keeps the node. Returns the
    /// next quantum. Returns `None` if a decision is needed, the batch ends, the threads are stopped, another node of the thread wakes up,
    /// or the other nodes arrive late.
    ///
    /// No locked instruction follows the store by which the node arrives: the instruction would wait some 100 to 400 cycles until the
    /// caches of the other cores have the store.
    pub fn arrive_and_wait(&self, node: usize, quantum: Quantum) -> Option<Quantum> {
        self.arrive(node, quantum.number, Arrival::Awake);
        let mut all_arrived = self.all_arrived(quantum);
        // A longer wait is the executor's, which parks the thread.
        let mut spins = 0;
        while !all_arrived() {
            if spins == SHORT_SPINS {
                return None;
            }
            spins += 1;
            spin_loop();
        }
        match self.next_step(quantum) {
            NextStep::Run(next) if !self.is_stopped() && self.others_sleep(node, next) => {
                Some(next)
            }
            _ => None,
        }
    }

    /// Returns whether all other nodes of a node's thread sleep during the whole of a quantum.
    fn others_sleep(&self, node: usize, quantum: Quantum) -> bool {
        let threads = self.threads.load(Ordering::Relaxed) as usize;
        (node % threads..self.progress.len())
            .step_by(threads)
            .all(|other| other == node || self.sleeps_until(other, quantum.target_ps))
    }
}
