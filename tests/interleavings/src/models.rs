//! Clusters that are small enough for a complete check: at most two threads, and nodes that only record the quanta that they run. With
//! three threads the checker would let two waiting threads alternate for ever.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::barrier::{Arrival, Quantum, QuantumBarrier};
use crate::batch::{BarrierSummary, QuantumBatch};
use crate::host_thread::{self, Work};

/// Length of a quantum that follows no decision, and of the first quantum of each batch, in picoseconds.
const LENGTH_PS: u64 = 10;

/// Length of a quantum that follows a decision within a batch, in picoseconds. It is longer, since each decision finds the network
/// disconnected.
const DECIDED_PS: u64 = 30;

/// A cluster to check, and what its nodes do.
#[derive(Clone, Copy)]
struct Model {
    threads: usize,
    nodes: usize,
    /// Number of batches. `quanta` is the largest number of quanta in a batch.
    batches: u64,
    quanta: u64,
    /// The node that needs a decision after a quantum, as (node, quantum).
    needs_decision: Option<(usize, u64)>,
    /// True if the batch ends after the quantum that needs a decision.
    ends: bool,
    /// The node that sleeps from the end of a quantum to the end of a later quantum, as (node, quantum, later quantum).
    sleeps: Option<(usize, u64, u64)>,
    /// True if the deciding thread wakes the sleeping node.
    wakes: bool,
    /// The node and quantum, as (node, quantum), in which a thread stops all threads, as a thread that panics does.
    panics: Option<(usize, u64)>,
    /// Largest number of times that the checker preempts a thread that could continue.
    interruptions: usize,
}

const PLAIN: Model = Model {
    threads: 2,
    nodes: 2,
    batches: 1,
    quanta: 2,
    needs_decision: None,
    ends: false,
    sleeps: None,
    wakes: false,
    panics: None,
    interruptions: 2,
};

/// The second of two nodes sleeps from the end of the first quantum to the end of the second; the batch has three quanta.
const SLEEPER: Model = Model {
    sleeps: Some((1, 1, 2)),
    quanta: 3,
    interruptions: 1,
    ..PLAIN
};

struct Cluster {
    model: Model,
    barrier: QuantumBarrier,
    /// Quanta that each node has run. Only the barrier prevents two threads from using a node at the same time. The checker reports two
    /// threads that use one node at the same time, and a thread that reads a node without seeing all earlier changes.
    nodes: Vec<UnsafeCell<Vec<u64>>>,
    /// Quanta after which a thread has decided.
    decided: UnsafeCell<Vec<u64>>,
}

// SAFETY: the checker fails if two threads use a cell at the same time.
unsafe impl Sync for Cluster {}

impl Work for Cluster {
    fn barrier(&self) -> &QuantumBarrier {
        &self.barrier
    }

    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn run_node(
        &self,
        index: usize,
        quantum: Quantum,
        may_continue: bool,
    ) -> (Quantum, Option<Arrival>) {
        let mut quantum = quantum;
        loop {
            let number = quantum.number;
            for other in 0..self.nodes() {
                let last = self.barrier.last_finished(other);
                let slept = |(node, from, _)| node == other && from < number;
                assert!(
                    last + 1 >= number || self.model.sleeps.is_some_and(slept),
                    "node {index} begins quantum {number} while node {other} has ended {last}"
                );
            }
            // SAFETY: no reference outlives the closure, and the checker fails if another thread uses the node at the same time.
            self.nodes[index].with_mut(|node| unsafe { (*node).push(number) });
            if self.model.panics == Some((index, number)) {
                self.barrier.stop(true);
            }
            if self.model.needs_decision == Some((index, number)) {
                return (quantum, Some(Arrival::NeedsDecision));
            }
            if let Some((node, from, until)) = self.model.sleeps
                && (node, from) == (index, number)
            {
                let until_ps = quantum.target_ps + (until - from) * LENGTH_PS;
                return (quantum, Some(Arrival::Asleep(until_ps)));
            }
            if !may_continue {
                return (quantum, Some(Arrival::Awake));
            }
            match self.barrier.arrive_and_wait(index, quantum) {
                Some(next) => quantum = next,
                None => return (quantum, None),
            }
        }
    }

    fn decide(&self, quantum: Quantum) {
        // The deciding thread reads all nodes.
        for (index, node) in self.nodes.iter().enumerate() {
            // SAFETY: as in `run_node`: no reference outlives the closure, and the checker fails if another thread uses the node at the
            // same time.
            let last = node.with(|node| unsafe { (*node).last().copied() });
            let asleep = self.barrier.sleeps_until(index, quantum.target_ps);
            assert!(asleep || last == Some(quantum.number));
        }
        if let Some((node, ..)) = self.model.sleeps
            && self.model.wakes
        {
            self.barrier.set_asleep_until(node, quantum.number, 0);
        }
        // SAFETY: as in `run_node`, for the list of decisions.
        self.decided
            .with_mut(|decided| unsafe { (*decided).push(quantum.number) });
        let mut batch = quantum.batch;
        let disconnected = BarrierSummary {
            connected: false,
            ..BarrierSummary::DEFAULT
        };
        let nodes = (0..self.nodes()).map(|node| BarrierSummary {
            quiescent: !(self.model.ends && self.barrier.needs_decision(node)),
            ..disconnected
        });
        let all = nodes.fold(disconnected, BarrierSummary::merge);
        match batch.next_end(quantum.target_ps, all) {
            Some(target_ps) => self.barrier.begin(Quantum {
                number: quantum.number + 1,
                target_ps,
                needs_decision: false,
                batch,
            }),
            None => self.barrier.end_batch(quantum.number),
        }
    }
}

impl Model {
    fn check(self) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(self.interruptions);
        builder.max_branches = 10_000;
        builder.check(move || self.run());
    }

    /// Runs the model once, in one order of the threads' actions.
    fn run(self) {
        let cluster = Arc::new(Cluster {
            model: self,
            barrier: QuantumBarrier::new(self.nodes),
            nodes: (0..self.nodes).map(|_| UnsafeCell::default()).collect(),
            decided: UnsafeCell::default(),
        });
        let helpers: Vec<_> = (1..self.threads)
            .map(|thread| {
                let cluster = cluster.clone();
                thread::spawn(move || host_thread::run_helper(&*cluster, thread, self.threads))
            })
            .collect();
        let mut last = Some(Quantum::default());
        for _ in 0..self.batches {
            let Some(before) = last else { break };
            last = host_thread::run_leader(&*cluster, self.first_after(before), self.threads);
            if let Some(last) = last {
                // Between batches only the leader uses the nodes.
                for (index, node) in cluster.nodes.iter().enumerate() {
                    // SAFETY: no reference outlives the closure, and the checker fails if another thread uses the node at the same time.
                    let ran = node.with(|node| unsafe { (*node).clone() });
                    assert_eq!(ran, self.runs(index, last.number));
                }
            }
        }
        cluster.barrier.stop(true);
        for helper in helpers {
            helper.join().unwrap();
        }
        // SAFETY: no reference outlives the closure, and the checker fails if another thread uses the list at the same time.
        let decided = cluster
            .decided
            .with(|decided| unsafe { (*decided).clone() });
        if self.panics.is_some() {
            assert!(decided.is_empty());
            return;
        }
        let decision = self.decided();
        assert_eq!(decided, decision.into_iter().collect::<Vec<_>>());
        let ended = decision.filter(|_| self.ends);
        let expected = match ended {
            // The other batches have their largest number of quanta.
            Some(number) => number + (self.batches - 1) * self.quanta,
            None => self.batches * self.quanta,
        };
        let last = last.unwrap();
        assert_eq!(last.number, expected);
        // The first quantum of a batch has the length `LENGTH_PS`, even if it follows a decision.
        let inside = |number: u64| !number.is_multiple_of(self.quanta);
        let long = decision.filter(|&number| !self.ends && inside(number));
        let longer_ps = long.map_or(0, |_| DECIDED_PS - LENGTH_PS);
        assert_eq!(last.target_ps, expected * LENGTH_PS + longer_ps);
    }

    /// Returns the quantum after which a thread decides, since a node needs a decision or all nodes sleep. None: no thread decides.
    fn decided(self) -> Option<u64> {
        let all_sleep = self.sleeps.filter(|_| self.nodes == 1);
        let needs_decision = self.needs_decision.map(|(_, number)| number);
        needs_decision.or(all_sleep.map(|(_, number, _)| number))
    }

    /// Returns the quanta that a node runs, up to `last`, without those in which the node sleeps.
    fn runs(self, index: usize, last: u64) -> Vec<u64> {
        let Some((_, from, until)) = self.sleeps.filter(|(node, ..)| *node == index) else {
            return (1..=last).collect();
        };
        let until = match self.decided() {
            // The quantum after a decision is longer than the rest of the sleep.
            Some(decided) if decided < until => decided,
            _ => until,
        };
        (1..=from).chain(until + 1..=last).collect()
    }

    fn first_after(self, before: Quantum) -> Quantum {
        let first_end_ps = before.target_ps + LENGTH_PS;
        Quantum {
            number: before.number + 1,
            target_ps: first_end_ps,
            needs_decision: false,
            batch: QuantumBatch {
                first_end_ps,
                lookahead_ps: LENGTH_PS,
                disconnected_lookahead_ps: DECIDED_PS,
                end_limit_ps: u64::MAX,
                start_limit_ps: u64::MAX,
                quanta_left: self.quanta,
            },
        }
    }
}

#[test]
fn nodes_continue_by_default() {
    PLAIN.check();
}

#[test]
fn one_thread_decides() {
    Model {
        needs_decision: Some((1, 2)),
        ..PLAIN
    }
    .check();
}

#[test]
fn a_decision_ends_the_batch_for_all() {
    Model {
        needs_decision: Some((0, 2)),
        ends: true,
        ..PLAIN
    }
    .check();
}

#[test]
fn a_thread_has_several_nodes() {
    Model {
        nodes: 3,
        quanta: 1,
        ..PLAIN
    }
    .check();
}

#[test]
fn a_thread_goes_on_with_several_nodes() {
    Model {
        nodes: 3,
        interruptions: 1,
        ..PLAIN
    }
    .check();
}

#[test]
#[ignore = "the long campaign: six minutes of processor time"]
fn a_thread_goes_on_with_several_nodes_long() {
    Model { nodes: 3, ..PLAIN }.check();
}

#[test]
fn batches_follow_each_other() {
    Model {
        batches: 2,
        quanta: 1,
        ..PLAIN
    }
    .check();
}

/// A thread that slept during some quanta reads the last announced quantum. If its number were stored after the quantum, the thread could
/// run on and announce higher numbers, which the late store would then overwrite.
#[test]
fn a_quantum_is_read_no_earlier_than_its_number() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let barrier = Arc::new(QuantumBarrier::new(1));
        let quantum = |number| Quantum {
            number,
            ..Quantum::default()
        };
        let leader = {
            let barrier = barrier.clone();
            thread::spawn(move || (1..=2).for_each(|number| barrier.begin(quantum(number))))
        };
        if barrier.is_past(0) {
            let latest = barrier.latest().number;
            assert!(barrier.is_past(latest - 1), "{latest} is not begun");
        }
        leader.join().unwrap();
    });
}

#[test]
fn no_thread_waits_for_a_thread_that_panicked() {
    Model {
        panics: Some((1, 2)),
        ..PLAIN
    }
    .check();
}

#[test]
fn a_node_sleeps_and_wakes_by_itself() {
    SLEEPER.check();
}

#[test]
fn a_thread_continues_with_one_node_until_another_wakes() {
    Model {
        nodes: 3,
        sleeps: Some((2, 1, 2)),
        interruptions: 0,
        ..SLEEPER
    }
    .check();
}

#[test]
fn a_decision_wakes_a_node_that_sleeps() {
    Model {
        needs_decision: Some((0, 2)),
        sleeps: Some((1, 1, 4)),
        wakes: true,
        ..SLEEPER
    }
    .check();
}

#[test]
fn a_node_sleeps_through_a_decision() {
    Model {
        needs_decision: Some((0, 2)),
        ..SLEEPER
    }
    .check();
}

#[test]
fn a_thread_decides_where_all_nodes_sleep() {
    Model {
        nodes: 1,
        sleeps: Some((0, 1, 2)),
        ..PLAIN
    }
    .check();
}

#[test]
fn a_node_sleeps_from_one_batch_to_the_next() {
    Model {
        batches: 3,
        quanta: 1,
        ..SLEEPER
    }
    .check();
}
