//! The work of each host thread from the beginning of a stretch of quanta to its end. `tests/interleavings` checks this code and
//! [`Meetings`] for every order in which two threads can act, with at most two interruptions.

use crate::meetings::{After, Meetings, Quantum, Rest};

/// Nodes, and what is done with them.
pub trait Work {
    /// The state by which threads tell each other their progress.
    fn meetings(&self) -> &Meetings;

    /// Number of nodes.
    fn nodes(&self) -> usize;

    /// Run a node through a quantum, which nobody else does, and through those that follow if it `goes_on` and [`Meetings::go_on`]
    /// has them. Returns the last quantum that the node was run through, and how the node came out of it;
    /// `None` where [`Meetings::go_on`] has told the others that the node is through with that quantum.
    fn run_node(&self, index: usize, quantum: Quantum, goes_on: bool) -> (Quantum, Option<Rest>);

    /// Whether each node stays with its thread even where that is late: nodes that take long to move to another.
    fn nodes_stay(&self) -> bool {
        false
    }

    /// All nodes are through with a quantum, and some, or the network, have something to say: begin the next one, or end the stretch.
    fn decide(&self, quantum: Quantum);
}

/// Run all nodes through a stretch whose first quantum is this, together with the other threads. Returns the last quantum; None if
/// threads are sent home.
pub fn lead(work: &impl Work, first: Quantum, threads: usize) -> Option<Quantum> {
    work.meetings().set_threads(threads);
    work.meetings().begin(first);
    let last = follow(work, first, 0, threads)?;
    work.meetings().end(last.number);
    Some(last)
}

/// Run nodes through all stretches until threads are sent home.
pub fn help(work: &impl Work, thread: usize, threads: usize) {
    let meetings = work.meetings();
    let mut seen = 0;
    loop {
        let begins = || meetings.is_past(seen) || meetings.is_stopped();
        meetings.gate.wait(begins, || ());
        if meetings.is_stopped() {
            return;
        }
        match follow(work, meetings.latest(), thread, threads) {
            Some(last) => seen = last.number,
            None => return,
        }
    }
}

/// Run this thread's nodes from a quantum on to the end of the stretch, whose last quantum is the result; None if threads are sent home.
fn follow(work: &impl Work, from: Quantum, thread: usize, threads: usize) -> Option<Quantum> {
    let meetings = work.meetings();
    let mut quantum = from;
    loop {
        quantum = take_own(work, quantum, thread, threads);
        let number = quantum.number;
        let mut all_through = meetings.all_through(quantum);
        let through = || all_through() || meetings.is_stopped();
        let help_others = || {
            if !work.nodes_stay() {
                take_all(work, quantum);
            }
        };
        meetings.gate.wait(through, help_others);
        if meetings.is_stopped() {
            return None;
        }
        match meetings.after(quantum) {
            After::Quantum(next) => quantum = next,
            After::Over => return Some(quantum),
            After::Undecided => {
                if meetings.claim_decision(number) {
                    work.decide(quantum);
                }
                let past = || meetings.is_past(number);
                meetings.gate.wait(
                    || past() || meetings.over() >= number || meetings.is_stopped(),
                    || (),
                );
                if meetings.is_stopped() {
                    return None;
                }
                if !past() {
                    return Some(quantum);
                }
                quantum = meetings.latest();
            }
        }
    }
}

/// Run this thread's own nodes through a quantum, but for those that sleep. A single one goes on as long as it can. Returns the quantum
/// that they have reached.
fn take_own(work: &impl Work, quantum: Quantum, thread: usize, threads: usize) -> Quantum {
    let meetings = work.meetings();
    let mut own = (thread..work.nodes())
        .step_by(threads)
        .filter(|&index| !meetings.sleeps_through(index, quantum.target_ps));
    let Some(first) = own.next() else {
        return quantum;
    };
    let Some(second) = own.next() else {
        return take(work, first, quantum, true);
    };
    for index in [first, second].into_iter().chain(own) {
        take(work, index, quantum, false);
    }
    quantum
}

/// Run the nodes of threads that are late.
fn take_all(work: &impl Work, quantum: Quantum) {
    for index in 0..work.nodes() {
        if !work.meetings().sleeps_through(index, quantum.target_ps) {
            take(work, index, quantum, false);
        }
    }
}

/// Run a node through a quantum, and through those that follow if it `goes_on`, if no thread has begun to. A thread that wakes late
/// finds every node begun. Returns the last quantum that the node was run through.
fn take(work: &impl Work, index: usize, quantum: Quantum, goes_on: bool) -> Quantum {
    let meetings = work.meetings();
    if !meetings.claim(index, quantum.number) {
        return quantum;
    }
    let (last, rest) = work.run_node(index, quantum, goes_on);
    let tell = |rest| meetings.is_through(index, last.number, rest);
    match rest {
        // Others go on once they see how long the node sleeps, and must not run the node before they can see all of this.
        Some(Rest::Asleep(_)) => {
            rest.map(tell);
            meetings.let_go(index, last.number);
        }
        // From here on another thread may have the node, unless nobody knows yet that it is through.
        _ => {
            meetings.let_go(index, last.number);
            rest.map(tell);
        }
    }
    last
}
