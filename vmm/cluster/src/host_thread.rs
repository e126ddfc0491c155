//! The work of each host thread from the beginning of a batch of quanta to its end. `tests/interleavings` checks this code and
//! [`QuantumBarrier`] for every order in which two threads can act, with at most two interruptions.

use crate::barrier::{Arrival, NextStep, Quantum, QuantumBarrier};

/// Nodes, and the operations of host threads on them.
pub trait Work {
    /// Returns the barrier at which the nodes arrive.
    fn barrier(&self) -> &QuantumBarrier;

    /// Returns the number of nodes that run in this process.
    fn nodes(&self) -> usize;

    /// Runs a node through a quantum. The caller has claimed the node. With `may_continue` the node continues through the quanta that
    /// [`QuantumBarrier::arrive_and_wait`] returns. Returns the last quantum that the node has finished, and the node's arrival there;
    /// `None` where [`QuantumBarrier::arrive_and_wait`] has recorded that arrival.
    fn run_node(
        &self,
        index: usize,
        quantum: Quantum,
        may_continue: bool,
    ) -> (Quantum, Option<Arrival>);

    /// Returns whether each node stays with its thread even where the thread is late. Moving to another thread takes some nodes long.
    fn nodes_stay(&self) -> bool {
        false
    }

    /// Begins the next quantum, or ends the batch. All nodes have arrived at the end of this quantum, and [`QuantumBarrier::next_step`] has
    /// asked for a decision.
    fn decide(&self, quantum: Quantum);
}

/// Runs all nodes through a batch that begins with this quantum, together with the helper threads. Returns the last quantum, or `None` if
/// the threads were stopped.
pub fn run_leader(work: &impl Work, first: Quantum, threads: usize) -> Option<Quantum> {
    work.barrier().set_threads(threads);
    work.barrier().begin(first);
    let last = run_batch(work, first, 0, threads)?;
    work.barrier().end_batch(last.number);
    Some(last)
}

/// Runs nodes through all batches until the threads are stopped.
pub fn run_helper(work: &impl Work, thread: usize, threads: usize) {
    let barrier = work.barrier();
    let mut seen = 0;
    loop {
        let begins = || barrier.is_past(seen) || barrier.is_stopped();
        barrier.parker.wait_until(begins, || ());
        if barrier.is_stopped() {
            return;
        }
        match run_batch(work, barrier.latest(), thread, threads) {
            Some(last) => seen = last.number,
            None => return,
        }
    }
}

/// Runs this thread's nodes from a quantum on to the end of the batch. Returns the last quantum of the batch, or `None` if the threads were
/// stopped.
fn run_batch(work: &impl Work, from: Quantum, thread: usize, threads: usize) -> Option<Quantum> {
    let barrier = work.barrier();
    let mut quantum = from;
    loop {
        quantum = run_own_nodes(work, quantum, thread, threads);
        let number = quantum.number;
        let mut all_arrived = barrier.all_arrived(quantum);
        let done = || all_arrived() || barrier.is_stopped();
        let steal = || {
            if !work.nodes_stay() {
                steal_nodes(work, quantum);
            }
        };
        barrier.parker.wait_until(done, steal);
        if barrier.is_stopped() {
            return None;
        }
        match barrier.next_step(quantum) {
            NextStep::Run(next) => quantum = next,
            NextStep::EndBatch => return Some(quantum),
            NextStep::Decide => {
                if barrier.claim_decision(number) {
                    work.decide(quantum);
                }
                let past = || barrier.is_past(number);
                barrier.parker.wait_until(
                    || past() || barrier.batch_end() >= number || barrier.is_stopped(),
                    || (),
                );
                if barrier.is_stopped() {
                    return None;
                }
                if !past() {
                    return Some(quantum);
                }
                quantum = barrier.latest();
            }
        }
    }
}

/// Runs this thread's own nodes through a quantum, except sleeping nodes. A single awake node continues as long as it can. Returns the
/// quantum for whose end this thread then waits.
fn run_own_nodes(work: &impl Work, quantum: Quantum, thread: usize, threads: usize) -> Quantum {
    let barrier = work.barrier();
    let mut own = (thread..work.nodes())
        .step_by(threads)
        .filter(|&index| !barrier.sleeps_until(index, quantum.target_ps));
    let Some(first) = own.next() else {
        return quantum;
    };
    let Some(second) = own.next() else {
        return claim_and_run(work, first, quantum, true);
    };
    for index in [first, second].into_iter().chain(own) {
        claim_and_run(work, index, quantum, false);
    }
    quantum
}

/// Runs the nodes of threads that are late (work stealing).
fn steal_nodes(work: &impl Work, quantum: Quantum) {
    for index in 0..work.nodes() {
        if !work.barrier().sleeps_until(index, quantum.target_ps) {
            claim_and_run(work, index, quantum, false);
        }
    }
}

/// Runs a node through a quantum if no other thread has claimed the node, and through further quanta with `may_continue`. A thread that
/// wakes up late finds every node claimed. Returns the last quantum through which this thread ran the node; `quantum` if another thread has
/// claimed it.
fn claim_and_run(work: &impl Work, index: usize, quantum: Quantum, may_continue: bool) -> Quantum {
    let barrier = work.barrier();
    if !barrier.claim(index, quantum.number) {
        return quantum;
    }
    let (last, arrival) = work.run_node(index, quantum, may_continue);
    let arrive = |arrival| barrier.arrive(index, last.number, arrival);
    match arrival {
        // Once other threads see the node asleep, they continue without it. So the node is released last: until then no other thread may
        // run it.
        Some(Arrival::Asleep(_)) => {
            arrival.map(arrive);
            barrier.release(index, last.number);
        }
        // Other threads run the node's next quantum once they have seen the node arrive, so the node must be released by then.
        _ => {
            barrier.release(index, last.number);
            arrival.map(arrive);
        }
    }
    last
}
