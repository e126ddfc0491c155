//! Clusters that are small enough to be checked as a whole: two threads, and nodes that do nothing but note what they were run through.
//! With three threads the checker lets two that wait for the third take turns for ever.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::crew::{self, Work};
use crate::meetings::{Meetings, Quantum, Rest};
use crate::stretch::{Meeting, Stretch};

/// Length of a quantum, picoseconds.
const LENGTH_PS: u64 = 10;

/// Length of a quantum that somebody decided on.
const DECIDED_PS: u64 = 30;

/// A cluster to check.
#[derive(Clone, Copy)]
struct Model {
    threads: usize,
    nodes: usize,
    /// Stretches, one after the other, and quanta of each at most.
    stretches: u64,
    quanta: u64,
    /// A node that has something to say in a quantum, as (node, quantum).
    speaks: Option<(usize, u64)>,
    /// True if the stretch ends after the quantum in which a node speaks.
    ends: bool,
    /// A node that sleeps behind a quantum, until the end of another, as (node, quantum, quantum).
    sleeps: Option<(usize, u64, u64)>,
    /// Whoever decides what follows wakes that node up.
    wakes: bool,
    /// The thread that runs a node through a quantum panics and sends all home, as (node, quantum).
    panics: Option<(usize, u64)>,
    /// Times at most that a thread is interrupted where it could go on.
    interrupted: usize,
}

const PLAIN: Model = Model {
    threads: 2,
    nodes: 2,
    stretches: 1,
    quanta: 2,
    speaks: None,
    ends: false,
    sleeps: None,
    wakes: false,
    panics: None,
    interrupted: 2,
};

struct Cluster {
    model: Model,
    meetings: Meetings,
    /// Quanta that each node was run through. Only the meetings keep threads apart here. The checker finds two threads that run one
    /// node at once, and a thread that looks at a node without seeing all that was done to it.
    nodes: Vec<UnsafeCell<Vec<u64>>>,
    /// Quanta behind which somebody decided what follows.
    decided: UnsafeCell<Vec<u64>>,
}

// SAFETY: the checker fails where two threads use a cell at once.
unsafe impl Sync for Cluster {}

impl Work for Cluster {
    fn meetings(&self) -> &Meetings {
        &self.meetings
    }

    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn run_node(&self, index: usize, quantum: Quantum, goes_on: bool) -> (Quantum, Option<Rest>) {
        let mut quantum = quantum;
        loop {
            let number = quantum.number;
            for other in 0..self.nodes() {
                let last = self.meetings.last(other);
                let slept = |(node, from, _)| node == other && from < number;
                assert!(
                    last + 1 >= number || self.model.sleeps.is_some_and(slept),
                    "node {index} begins quantum {number} while node {other} has ended {last}"
                );
            }
            // SAFETY: no reference outlives the closure, and the checker fails if another thread uses the node.
            self.nodes[index].with_mut(|node| unsafe { (*node).push(number) });
            if self.model.panics == Some((index, number)) {
                self.meetings.stop(true);
            }
            if self.model.speaks == Some((index, number)) {
                return (quantum, Some(Rest::Speaks));
            }
            if let Some((node, from, until)) = self.model.sleeps
                && (node, from) == (index, number)
            {
                let until_ps = quantum.target_ps + (until - from) * LENGTH_PS;
                return (quantum, Some(Rest::Asleep(until_ps)));
            }
            if !goes_on {
                return (quantum, Some(Rest::Awake));
            }
            match self.meetings.go_on(index, quantum) {
                Some(next) => quantum = next,
                None => return (quantum, None),
            }
        }
    }

    fn decide(&self, quantum: Quantum) {
        // The thread that decides looks at all nodes.
        for (index, node) in self.nodes.iter().enumerate() {
            // SAFETY: as above.
            let last = node.with(|node| unsafe { (*node).last().copied() });
            let asleep = self.meetings.sleeps_through(index, quantum.target_ps);
            assert!(asleep || last == Some(quantum.number));
        }
        if let Some((node, ..)) = self.model.sleeps
            && self.model.wakes
        {
            self.meetings.wakes(node, quantum.number, 0);
        }
        // SAFETY: as above.
        self.decided
            .with_mut(|decided| unsafe { (*decided).push(quantum.number) });
        let mut stretch = quantum.stretch;
        let apart = Meeting {
            connected: false,
            ..Meeting::USUAL
        };
        let nodes = (0..self.nodes()).map(|node| Meeting {
            quiet: !(self.model.ends && self.meetings.speaks(node)),
            ..apart
        });
        let all = nodes.fold(apart, Meeting::and);
        match stretch.following(quantum.target_ps, all) {
            Some(target_ps) => self.meetings.begin(Quantum {
                number: quantum.number + 1,
                target_ps,
                waits: false,
                stretch,
            }),
            None => self.meetings.end(quantum.number),
        }
    }
}

impl Model {
    fn check(self) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(self.interrupted);
        builder.max_branches = 10_000;
        builder.check(move || self.run());
    }

    /// One order of events.
    fn run(self) {
        let cluster = Arc::new(Cluster {
            model: self,
            meetings: Meetings::new(self.nodes),
            nodes: (0..self.nodes).map(|_| UnsafeCell::default()).collect(),
            decided: UnsafeCell::default(),
        });
        let helpers: Vec<_> = (1..self.threads)
            .map(|thread| {
                let cluster = cluster.clone();
                thread::spawn(move || crew::help(&*cluster, thread, self.threads))
            })
            .collect();
        let mut last = Some(Quantum::default());
        for _ in 0..self.stretches {
            let Some(before) = last else { break };
            last = crew::lead(&*cluster, self.first_after(before), self.threads);
            if let Some(last) = last {
                // Between stretches nodes are the leader's alone.
                for (index, node) in cluster.nodes.iter().enumerate() {
                    // SAFETY: as in `run_node`.
                    let ran = node.with(|node| unsafe { (*node).clone() });
                    assert_eq!(ran, self.runs(index, last.number));
                }
            }
        }
        cluster.meetings.stop(true);
        for helper in helpers {
            helper.join().unwrap();
        }
        // SAFETY: as in `run_node`.
        let decided = cluster
            .decided
            .with(|decided| unsafe { (*decided).clone() });
        if self.panics.is_some() {
            assert!(decided.is_empty());
            return;
        }
        let spoke = self.decided();
        assert_eq!(decided, spoke.into_iter().collect::<Vec<_>>());
        let ended = spoke.filter(|_| self.ends);
        let expected = match ended {
            // The others are as long as they can be.
            Some(number) => number + (self.stretches - 1) * self.quanta,
            None => self.stretches * self.quanta,
        };
        let last = last.unwrap();
        assert_eq!(last.number, expected);
        // A quantum that opens a stretch has the stretch's length.
        let inside = |number: u64| !number.is_multiple_of(self.quanta);
        let long = spoke.filter(|&number| !self.ends && inside(number));
        let longer_ps = long.map_or(0, |_| DECIDED_PS - LENGTH_PS);
        assert_eq!(last.target_ps, expected * LENGTH_PS + longer_ps);
    }

    /// The quantum behind which somebody decides: in which a node speaks, or behind which all sleep.
    fn decided(self) -> Option<u64> {
        let all_sleep = self.sleeps.filter(|_| self.nodes == 1);
        let speaks = self.speaks.map(|(_, number)| number);
        speaks.or(all_sleep.map(|(_, number, _)| number))
    }

    /// The quanta that a node is run through, up to a last one: not those that it sleeps through.
    fn runs(self, index: usize, last: u64) -> Vec<u64> {
        let Some((_, from, until)) = self.sleeps.filter(|(node, ..)| *node == index) else {
            return (1..=last).collect();
        };
        let until = match self.decided() {
            // The quantum behind a decision is longer than what is left of the sleep.
            Some(decided) if decided < until => decided,
            _ => until,
        };
        (1..=from).chain(until + 1..=last).collect()
    }

    fn first_after(self, before: Quantum) -> Quantum {
        let first_ps = before.target_ps + LENGTH_PS;
        Quantum {
            number: before.number + 1,
            target_ps: first_ps,
            waits: false,
            stretch: Stretch {
                first_ps,
                lookahead_ps: LENGTH_PS,
                apart_ps: DECIDED_PS,
                limit_ps: u64::MAX,
                until_ps: u64::MAX,
                most: self.quanta,
            },
        }
    }
}

#[test]
fn nodes_go_on_by_themselves() {
    PLAIN.check();
}

#[test]
fn one_thread_decides_what_follows() {
    Model {
        speaks: Some((1, 2)),
        ..PLAIN
    }
    .check();
}

#[test]
fn what_a_node_says_ends_the_stretch_for_all() {
    Model {
        speaks: Some((0, 2)),
        ends: true,
        ..PLAIN
    }
    .check();
}

#[test]
fn a_thread_has_several_nodes() {
    Model {
        nodes: 3,
        quanta: 2,
        ..PLAIN
    }
    .check();
}

#[test]
fn stretches_follow_each_other() {
    Model {
        stretches: 2,
        quanta: 1,
        ..PLAIN
    }
    .check();
}

/// A thread that slept while quanta went by reads the one that was begun last. If the number were told later than the quantum, the thread
/// could run on and tell higher numbers, which the late one would then replace.
#[test]
fn a_quantum_is_read_no_earlier_than_its_number() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let meetings = Arc::new(Meetings::new(1));
        let quantum = |number| Quantum {
            number,
            ..Quantum::default()
        };
        let leader = {
            let meetings = meetings.clone();
            thread::spawn(move || (1..=2).for_each(|number| meetings.begin(quantum(number))))
        };
        if meetings.is_past(0) {
            let latest = meetings.latest().number;
            assert!(meetings.is_past(latest - 1), "{latest} is not begun");
        }
        leader.join().unwrap();
    });
}

#[test]
fn nobody_waits_for_a_thread_that_panicked() {
    Model {
        panics: Some((1, 2)),
        ..PLAIN
    }
    .check();
}

#[test]
fn a_node_sleeps_and_wakes_by_itself() {
    Model {
        sleeps: Some((1, 1, 2)),
        quanta: 3,
        interrupted: 1,
        ..PLAIN
    }
    .check();
}

#[test]
fn a_thread_goes_on_with_one_node_until_another_wakes() {
    Model {
        nodes: 3,
        sleeps: Some((2, 1, 2)),
        quanta: 3,
        interrupted: 0,
        ..PLAIN
    }
    .check();
}

#[test]
fn a_decision_wakes_a_node_that_sleeps() {
    Model {
        speaks: Some((0, 2)),
        sleeps: Some((1, 1, 4)),
        wakes: true,
        quanta: 3,
        interrupted: 1,
        ..PLAIN
    }
    .check();
}

#[test]
fn a_node_sleeps_through_a_decision() {
    Model {
        speaks: Some((0, 2)),
        sleeps: Some((1, 1, 2)),
        quanta: 3,
        interrupted: 1,
        ..PLAIN
    }
    .check();
}

#[test]
fn somebody_decides_where_all_sleep() {
    Model {
        nodes: 1,
        sleeps: Some((0, 1, 2)),
        quanta: 2,
        ..PLAIN
    }
    .check();
}

#[test]
fn a_node_sleeps_from_one_stretch_to_the_next() {
    Model {
        sleeps: Some((1, 1, 2)),
        stretches: 3,
        quanta: 1,
        interrupted: 1,
        ..PLAIN
    }
    .check();
}
