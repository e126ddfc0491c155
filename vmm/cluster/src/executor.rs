//! Runs nodes on host threads, in quanta of virtual time.
//!
//! All nodes run to the same virtual time, and arrive there at a barrier. On the portable engine a quantum is no longer than the fabric's
//! lookahead. Nothing that one node does can therefore reach another node before the quantum's end. Before any network interface is up, a
//! quantum is longer: a frame of the first interface that comes up arrives at the quantum's end at the earliest. Results of the portable
//! engine do not depend on the number of threads, nor on which thread runs which node. On KVM a quantum may be longer than the lookahead,
//! and frames then arrive late.
//!
//! As long as all nodes end their quanta by default, one quantum follows the other without a decision. Where a decision is needed, the
//! first thread that finds all nodes at the barrier decides: the thread forwards the frames and begins the next quantum or ends the batch.
//!
//! Nodes may run in several processes ([`Distribution`]). Then every quantum ends with a decision, which is the same in all processes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodescope_devices::virtio::net::Frame;
use nodescope_engine::EngineError;
use nodescope_fabric::{Delivery, SentFrame};
use nodescope_machine::motherboard::NodeEvent;
use nodescope_machine::node::{Node, NodeError, NodeStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::barrier::{Arrival, Quantum, QuantumBarrier};
use crate::batch::BarrierSummary;
use crate::distribution::{Distribution, NodeFailure, NodeReport, PeerError};
use crate::host_thread::{self, Work};
use crate::network::Network;
use crate::outcome::RunError;
use crate::pace::NodePace;
use crate::sync::CachePadded;

pub use crate::batch::QuantumBatch;

/// State of a node at the end of a quantum. Threads read the report and not the node, whose state is in another core's caches.
struct Report {
    result: Result<NodeStatus, NodeError>,
    /// [`Node::next_activity`] in picoseconds, 0 where a vCPU runs. The other fields are [`Node::instructions`], [`Node::has_output`],
    /// [`Node::wants_attention`], [`Node::has_frames`], [`Node::is_connected`] and [`Node::wants_interval`].
    next_activity_ps: u64,
    instructions: u64,
    has_output: bool,
    wants_attention: bool,
    has_frames: bool,
    connected: bool,
    wants_interval: bool,
}

/// Returns a value for [`Report::next_activity_ps`].
fn next_activity_ps(node: &mut Node) -> u64 {
    match node.next_activity() {
        u64::MAX => u64::MAX,
        cycles if cycles <= node.now() => 0,
        cycles => node.clock().ps(cycles),
    }
}

impl Report {
    fn of(node: &mut Node, result: Result<NodeStatus, NodeError>) -> Self {
        Self {
            result,
            next_activity_ps: next_activity_ps(node),
            instructions: node.instructions(),
            has_output: node.has_output(),
            wants_attention: node.wants_attention(),
            has_frames: node.has_frames(),
            connected: node.is_connected(),
            wants_interval: node.wants_interval(),
        }
    }

    /// Returns the result. Leaves a status in the report, and replaces an error by the status `Running`.
    fn take_result(&mut self) -> Result<NodeStatus, NodeError> {
        let status = *self.result.as_ref().unwrap_or(&NodeStatus::Running);
        std::mem::replace(&mut self.result, Ok(status))
    }

    fn is_quiescent(&self) -> bool {
        matches!(self.result, Ok(NodeStatus::Running)) && !self.wants_attention
    }

    fn summary(&self) -> BarrierSummary {
        BarrierSummary {
            quiescent: self.is_quiescent(),
            next_activity_ps: self.next_activity_ps,
            connected: self.connected,
        }
    }
}

/// Returns the node's pace, which [`Executor::of`] has set.
fn pace(node: &mut Node) -> &mut NodePace {
    node.pace().expect("every node of a cluster has one")
}

/// A node and its last report.
struct Slot {
    node: CachePadded<Mutex<Node>>,
    report: CachePadded<Mutex<Report>>,
    /// True if the report describes the node's present state.
    fresh: CachePadded<AtomicBool>,
}

/// The nodes of a cluster and the state that the host threads share. Nodes have their numbers within the cluster. Slots contain the nodes
/// that run in this process.
pub struct Executor {
    slots: Vec<Slot>,
    /// Number of the first node of this process.
    first: usize,
    /// Share of this process in the run; `None` if the run has only this process.
    distribution: Option<Distribution>,
    network: CachePadded<Mutex<Network>>,
    barrier: Arc<QuantumBarrier>,
    /// End of the last quantum, picoseconds. The clocks of sleeping nodes may be behind.
    reached_ps: AtomicU64,
    /// True if no node moves to another thread, see [`Executor::keep_on_threads`].
    nodes_stay: AtomicBool,
    /// False if the host could not start all threads.
    all_threads_started: AtomicBool,
}

impl Executor {
    /// Returns an executor of all nodes of a cluster, with the network between them.
    pub fn new(nodes: Vec<Node>, network: Network) -> Self {
        Self::of(nodes, network, None)
    }

    /// Returns an executor of the nodes of this process and of the network between the nodes of all processes.
    ///
    /// # Errors
    ///
    /// A process that is lost.
    pub fn distributed(
        nodes: Vec<Node>,
        network: Network,
        distribution: Distribution,
    ) -> Result<Self, PeerError> {
        let executor = Self::of(nodes, network, Some(distribution));
        executor.gather()?;
        Ok(executor)
    }

    fn of(nodes: Vec<Node>, network: Network, distribution: Option<Distribution>) -> Self {
        let barrier = Arc::new(QuantumBarrier::new(nodes.len()));
        let slot = |(index, mut node): (usize, Node)| {
            node.set_pace(Box::new(NodePace {
                barrier: Arc::clone(&barrier),
                node: index,
                clock: node.clock(),
                quantum: Quantum::default(),
            }));
            Slot {
                report: CachePadded::new(Mutex::new(Report::of(
                    &mut node,
                    Ok(NodeStatus::Running),
                ))),
                node: CachePadded::new(Mutex::new(node)),
                fresh: CachePadded::default(),
            }
        };
        Self {
            slots: nodes.into_iter().enumerate().map(slot).collect(),
            first: distribution.as_ref().map_or(0, |of| of.own().start),
            distribution,
            network: CachePadded::new(Mutex::new(network)),
            barrier,
            reached_ps: AtomicU64::new(0),
            nodes_stay: AtomicBool::new(false),
            all_threads_started: AtomicBool::new(true),
        }
    }

    /// Sets whether nodes stay with their threads, without work stealing. When a vCPU of KVM runs on another thread than before, the kernel
    /// first waits for all its readers of the vCPU's thread (virt/kvm/kvm_main.c, `KVM_RUN`), which takes milliseconds.
    pub fn keep_on_threads(&self, stay: bool) {
        self.nodes_stay.store(stay, Ordering::Relaxed);
    }

    /// Returns the number of nodes of all processes.
    pub fn len(&self) -> usize {
        let distribution = self.distribution.as_ref();
        distribution.map_or(self.slots.len(), Distribution::nodes)
    }

    /// Returns whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the numbers of the nodes that run in this process.
    pub fn own(&self) -> Range<usize> {
        self.first..self.first + self.slots.len()
    }

    /// Returns the share of this process; `None` if the run has only this process.
    pub fn distribution(&self) -> Option<&Distribution> {
        self.distribution.as_ref()
    }

    fn node(&self, slot: usize) -> MutexGuard<'_, Node> {
        // A panic of a worker ends the run through the thread scope, and the data is not used after the panic.
        let node = self.slots[slot].node.lock();
        node.unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the network between the nodes. Callers must do so between batches.
    pub fn network(&self) -> MutexGuard<'_, Network> {
        let network = self.network.lock();
        network.unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, slot: usize) -> MutexGuard<'_, Report> {
        let report = self.slots[slot].report.lock();
        report.unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with a node of this process, between quanta. `index` is the node's number within the cluster.
    pub fn with_node<R>(&self, index: usize, f: impl FnOnce(&mut Node) -> R) -> R {
        let slot = index - self.first;
        self.slots[slot].fresh.store(false, Ordering::Relaxed);
        let mut node = self.awake_node(
            slot,
            self.barrier.batch_end(),
            self.reached_ps.load(Ordering::Relaxed),
        );
        f(&mut node)
    }

    /// Locks a node after a quantum at whose end all nodes have arrived. Advances the clock of a sleeping node to the time of the other
    /// nodes; the barrier then counts the node as awake.
    fn awake_node(&self, slot: usize, number: u64, reached_ps: u64) -> MutexGuard<'_, Node> {
        let mut node = self.node(slot);
        if self.barrier.asleep_until_ps(slot) > 0 {
            let reached = node.clock().cycles(reached_ps);
            node.sleep_until(reached);
            self.barrier.set_asleep_until(slot, number, 0);
        }
        node
    }

    /// Calls a function with each node of this process, and returns the results in the order of nodes.
    pub fn with_own<R>(&self, mut f: impl FnMut(&mut Node) -> R) -> Vec<R> {
        self.own()
            .map(|index| self.with_node(index, &mut f))
            .collect()
    }

    /// Locks the report of a node of this process. Updates the report first if the node may have changed.
    fn fresh_report(&self, slot: usize) -> MutexGuard<'_, Report> {
        let mut report = self.report(slot);
        if !self.slots[slot].fresh.swap(true, Ordering::Relaxed) {
            let result = report.take_result();
            *report = Report::of(&mut self.node(slot), result);
        }
        report
    }

    /// Returns a value of a node: from the node's own report in a run of one process, otherwise from the report that all processes have
    /// exchanged.
    fn known<R>(
        &self,
        index: usize,
        own: impl FnOnce(&Report) -> R,
        of_all: impl FnOnce(&NodeReport) -> R,
    ) -> R {
        match &self.distribution {
            None => own(&self.fresh_report(index)),
            Some(distribution) => of_all(&distribution.reports()[index]),
        }
    }

    /// Returns the time at which something can happen next in a node, picoseconds: see [`Node::next_activity`].
    pub fn next_activity_ps(&self, index: usize) -> u64 {
        self.known(index, |own| own.next_activity_ps, |of| of.next_activity_ps)
    }

    /// Returns the number of instructions that a node has retired.
    pub fn instructions(&self, index: usize) -> u64 {
        self.known(index, |own| own.instructions, |of| of.instructions)
    }

    /// Returns whether code of unknown cost runs on a node, between intervals of a sampled window.
    pub fn wants_interval(&self, index: usize) -> bool {
        self.known(index, |own| own.wants_interval, |of| of.wants_interval)
    }

    /// Returns whether a node has console output or hypercalls for [`Executor::take_output`].
    pub fn has_output(&self, index: usize) -> bool {
        let some = |of: &NodeReport| !of.console.is_empty() || !of.events.is_empty();
        self.known(index, |own| own.has_output, some)
    }

    /// Takes the console output and the hypercalls that a node has produced since the last call.
    pub fn take_output(&self, index: usize) -> (Vec<u8>, Vec<NodeEvent>) {
        match &self.distribution {
            None => self.with_node(index, |n| (n.take_console(), n.take_events())),
            Some(distribution) => {
                let of = &mut distribution.reports()[index];
                (
                    std::mem::take(&mut of.console),
                    std::mem::take(&mut of.events),
                )
            }
        }
    }

    /// Returns the number of bytes that a node has sent as files so far.
    pub fn file_bytes(&self, index: usize) -> u64 {
        match &self.distribution {
            None => self.with_node(index, |n| n.file_bytes()),
            Some(distribution) => distribution.reports()[index].file_bytes,
        }
    }

    /// Returns the status of each node of all processes. Callers must call this between batches.
    pub fn statuses(&self) -> Vec<NodeStatus> {
        match &self.distribution {
            None => self.with_own(|n| n.status()),
            Some(distribution) => (distribution.reports().iter())
                .map(|of| of.result.as_ref().copied().unwrap_or(NodeStatus::Running))
                .collect(),
        }
    }

    /// Returns the virtual time that all nodes have reached, picoseconds: the last quantum's end, unless a node stopped before.
    pub fn reached_ps(&self) -> u64 {
        let reached = match &self.distribution {
            None => self.with_own(|node| node.clock().ps(node.now())),
            Some(distribution) => {
                let reports = distribution.reports();
                reports.iter().map(|of| of.reached_ps).collect()
            }
        };
        reached.into_iter().min().unwrap_or(0)
    }

    /// Returns whether any node has a network interface that is up.
    pub fn any_connected(&self) -> bool {
        (0..self.len()).any(|index| self.known(index, |own| own.connected, |of| of.connected))
    }

    /// Returns whether the user has interrupted the run. With several processes, returns true only once all processes know of it.
    pub fn is_interrupted(&self, interrupted: &AtomicBool) -> bool {
        match &self.distribution {
            None => interrupted.load(Ordering::Relaxed),
            Some(distribution) => distribution.is_interrupted(),
        }
    }

    /// Returns whether a snapshot is requested, which sets `flag`. With several processes, returns true only once all processes know of it.
    pub(crate) fn is_snapshot_requested(&self, flag: &AtomicBool) -> bool {
        match &self.distribution {
            None => flag.load(Ordering::Relaxed),
            Some(distribution) => distribution.is_snapshot_requested(flag),
        }
    }

    /// Returns the notes for the user of each node, by the node's number. Notes of nodes in lost processes are missing.
    pub fn gather_notes(&self) -> BTreeMap<usize, Vec<String>> {
        let own: Vec<(usize, Vec<String>)> = self.own().zip(self.with_own(|n| n.notes())).collect();
        let all = self.gather_parts(own.clone());
        all.map_or(own, |all| all.into_iter().flatten().collect())
            .into_iter()
            .collect()
    }

    /// Exchanges a value with all processes, and returns the values of all, in the order of processes and so of their nodes. Returns `None`
    /// if a process is lost.
    pub fn gather_parts<T: Serialize + DeserializeOwned>(&self, own: T) -> Option<Vec<T>> {
        match &self.distribution {
            None => Some(vec![own]),
            Some(distribution) => distribution.gather_json(&own).ok(),
        }
    }

    /// Exchanges the reports of all nodes with all processes. Does nothing in a run of one process.
    ///
    /// # Errors
    ///
    /// A process that is lost.
    pub fn gather(&self) -> Result<(), PeerError> {
        let Some(distribution) = &self.distribution else {
            return Ok(());
        };
        let report = |slot: usize| {
            let own = self.fresh_report(slot);
            let mut node = self.node(slot);
            let result = match &own.result {
                Ok(NodeStatus::Running) => Ok(node.status()),
                Ok(status) => Ok(*status),
                Err(error) => Err(NodeFailure {
                    text: error.to_string(),
                    of_host: matches!(
                        error,
                        NodeError::Thread { .. }
                            | NodeError::Engine {
                                source: EngineError::Host { .. },
                                ..
                            }
                    ),
                }),
            };
            NodeReport {
                result,
                next_activity_ps: own.next_activity_ps,
                instructions: own.instructions,
                connected: own.connected,
                wants_interval: own.wants_interval,
                reached_ps: node.clock().ps(node.now()),
                file_bytes: node.file_bytes(),
                console: node.take_console(),
                events: node.take_events(),
            }
        };
        let own = (0..self.slots.len()).map(report).collect();
        for slot in &self.slots {
            slot.fresh.store(false, Ordering::Relaxed);
        }
        distribution.gather_nodes(own)
    }

    /// Runs `body` with `threads` host threads for the nodes. `body` gets a function that runs all nodes through a batch of quanta. The
    /// batch ends at the latest after the first quantum in which a node wants attention or stops. The function returns the virtual time
    /// that the nodes have reached, and the status of each node or the first error.
    pub fn run<R>(
        &self,
        threads: usize,
        body: impl FnOnce(&mut dyn FnMut(QuantumBatch) -> (u64, Result<Vec<NodeStatus>, RunError>)) -> R,
    ) -> R {
        let helpers = threads.clamp(1, self.slots.len().max(1)) - 1;
        self.barrier.stop(false);
        std::thread::scope(|scope| {
            for thread in 1..=helpers {
                let helper = std::thread::Builder::new()
                    .spawn_scoped(scope, move || self.help(thread, helpers + 1));
                // The threads that have started also run the nodes of those that have not.
                if let Err(error) = helper {
                    tracing::warn!(
                        "the host gives no more than {thread} of {} threads ({error}); the run goes on with these",
                        helpers + 1
                    );
                    self.all_threads_started.store(false, Ordering::Relaxed);
                    break;
                }
            }
            // The scope waits for the helpers, even after a panic of `body`.
            let _stop_on_drop = StopOnDrop {
                executor: self,
                only_in_panic: false,
            };
            body(&mut |batch| self.run_batch(batch, helpers + 1))
        })
    }

    fn run_batch(
        &self,
        batch: QuantumBatch,
        threads: usize,
    ) -> (u64, Result<Vec<NodeStatus>, RunError>) {
        let first = Quantum {
            number: self.barrier.batch_end() + 1,
            target_ps: batch.first_end_ps,
            needs_decision: self.distribution.is_some() || self.network().next_ps().is_some(),
            batch,
        };
        let last = host_thread::run_leader(self, first, threads);
        let last = last.expect("a thread that runs nodes has panicked");
        self.reached_ps.store(last.target_ps, Ordering::Relaxed);
        let gathered = self.gather();
        let statuses = (0..self.slots.len())
            .map(|slot| self.report(slot).take_result())
            .collect::<Result<Vec<_>, _>>();
        let statuses = match (&self.distribution, gathered) {
            (None, _) => statuses.map_err(RunError::from),
            (Some(_), Err(lost)) => Err(lost.into()),
            (Some(distribution), Ok(())) => (distribution.reports().iter())
                .map(|of| of.result.clone())
                .collect::<Result<_, _>>()
                .map_err(|NodeFailure { text, of_host }| RunError::Elsewhere { text, of_host }),
        };
        (last.target_ps, statuses)
    }

    /// Takes the frames that nodes of this process sent in the quantum that has just ended.
    fn take_frames(&self) -> Vec<SentFrame> {
        let mut frames = Vec::new();
        for slot in (0..self.slots.len()).filter(|&slot| self.barrier.needs_decision(slot)) {
            if !std::mem::take(&mut self.report(slot).has_frames) {
                continue;
            }
            let mut node = self.node(slot);
            let clock = node.clock();
            frames.extend(node.take_frames().into_iter().map(|frame| SentFrame {
                time_ps: clock.ps(frame.time),
                port: self.first + slot,
                bytes: frame.bytes,
                missing: 0,
                checksum_valid: frame.checksum_valid,
            }));
        }
        frames
    }

    /// Forwards the frames of the quantum that has just ended, and delivers those for nodes of this process. Returns the node and the time
    /// in picoseconds of each delivery to a node of any process.
    fn forward(&self, frames: Vec<SentFrame>, quantum: Quantum) -> Vec<(usize, u64)> {
        let mut network = self.network();
        if frames.is_empty() && network.next_ps().is_none() {
            return Vec::new();
        }
        let deliveries = network.forward(frames, quantum.target_ps);
        let all = deliveries.iter().map(|to| (to.port, to.time_ps)).collect();
        let own = self.own();
        for delivery in deliveries.into_iter().filter(|to| own.contains(&to.port)) {
            self.deliver(delivery, quantum);
        }
        all
    }

    fn deliver(&self, delivery: Delivery, quantum: Quantum) {
        let slot = delivery.port - self.first;
        let slept = self.barrier.asleep_until_ps(slot) > 0;
        let mut node = self.awake_node(slot, quantum.number, quantum.target_ps);
        let time = node.clock().cycles(delivery.time_ps).max(node.now());
        node.inject(Frame {
            time,
            bytes: delivery.bytes,
            checksum_valid: delivery.checksum_valid,
        });
        let next_ps = next_activity_ps(&mut node);
        self.report(slot).next_activity_ps = next_ps;
        if slept {
            self.barrier.set_asleep_until(slot, quantum.number, next_ps);
        }
    }

    /// Returns the time at which the first frame that still waits for a link will be sent, picoseconds; `u64::MAX` if none waits. Returns
    /// 0, which ends the batch, where the capture of frames has failed.
    fn waiting_ps(&self) -> u64 {
        let network = self.network();
        // In a run of several processes, only the master has a capture, and the others would not end the batch.
        if network.has_failed() && self.distribution.is_none() {
            return 0;
        }
        network.next_ps().unwrap_or(u64::MAX)
    }

    /// Returns the summary of the nodes of this process.
    fn own_summary(&self) -> BarrierSummary {
        let mut all = BarrierSummary {
            quiescent: true,
            next_activity_ps: u64::MAX,
            connected: false,
        };
        for slot in 0..self.slots.len() {
            let asleep_until_ps = self.barrier.asleep_until_ps(slot);
            if asleep_until_ps > 0 {
                all.next_activity_ps = all.next_activity_ps.min(asleep_until_ps);
                all.connected = all.connected || self.report(slot).connected;
            } else if self.barrier.needs_decision(slot) {
                all = all.merge(self.report(slot).summary());
            } else {
                all = all.merge(BarrierSummary::DEFAULT);
            }
        }
        all
    }

    /// Forwards the frames of a quantum. Returns the summary of the nodes of all processes after that.
    fn exchange(&self, quantum: Quantum) -> Result<BarrierSummary, PeerError> {
        let frames = self.take_frames();
        let Some(distribution) = &self.distribution else {
            self.forward(frames, quantum);
            return Ok(self.own_summary());
        };
        let own = self.own_summary();
        let ended = (quantum.number, quantum.target_ps);
        let frames = {
            let network = self.network();
            let has_receiver = |frame: &SentFrame, nodes| network.has_receiver(frame, nodes);
            distribution.gather_quantum(ended, frames, own, has_receiver)?
        };
        let delivered = self.forward(frames, quantum);
        // A frame may wake its node up before all others.
        let own_ps = || self.own_summary().next_activity_ps;
        distribution.gather_activity(quantum.target_ps, delivered.into_iter(), own_ps)
    }

    fn help(&self, thread: usize, threads: usize) {
        let _stop_on_drop = StopOnDrop {
            executor: self,
            only_in_panic: true,
        };
        host_thread::run_helper(self, thread, threads);
    }
}

impl Work for Executor {
    fn barrier(&self) -> &QuantumBarrier {
        &self.barrier
    }

    fn nodes(&self) -> usize {
        self.slots.len()
    }

    fn run_node(
        &self,
        index: usize,
        quantum: Quantum,
        may_continue: bool,
    ) -> (Quantum, Option<Arrival>) {
        let mut node = self.node(index);
        let target = node.clock().cycles(quantum.target_ps);
        let fresh = &self.slots[index].fresh;
        fresh.store(false, Ordering::Relaxed);
        let before = node.status();
        let (result, last) = if may_continue {
            pace(&mut node).quantum = quantum;
            let result = node.run_from(target);
            (result, pace(&mut node).quantum)
        } else {
            (node.run_until(target), quantum)
        };
        if self.barrier.last_finished(index) == last.number {
            // The node has recorded its arrival in `arrive_and_wait`.
            debug_assert!(matches!(result, Ok(NodeStatus::Running)));
            return (last, None);
        }
        if matches!(result, Ok(NodeStatus::Running)) && node.is_at_default_end() {
            return (last, Some(Arrival::Awake));
        }
        // A node that has just stopped needs a decision, but only in that quantum.
        let stopped = result.as_ref().map_or(true, |status| *status != before);
        let needs_decision =
            stopped || node.wants_attention() || node.has_frames() || node.runs_in_parallel();
        let report = Report::of(&mut node, result);
        drop(node);
        let next_ps = report.next_activity_ps;
        *self.report(index) = report;
        fresh.store(true, Ordering::Relaxed);
        let asleep = !needs_decision && next_ps > last.target_ps;
        let rest = if asleep {
            Arrival::Asleep(next_ps)
        } else {
            Arrival::NeedsDecision
        };
        (last, Some(rest))
    }

    fn nodes_stay(&self) -> bool {
        self.nodes_stay.load(Ordering::Relaxed) && self.all_threads_started.load(Ordering::Relaxed)
    }

    fn decide(&self, quantum: Quantum) {
        let Ok(nodes) = self.exchange(quantum) else {
            // `Executor::run_batch` gets the error again when it exchanges the reports.
            self.barrier.end_batch(quantum.number);
            return;
        };
        let waiting_ps = self.waiting_ps();
        let all = nodes.merge(BarrierSummary {
            quiescent: waiting_ps > 0,
            next_activity_ps: waiting_ps,
            connected: false,
        });
        let mut batch = quantum.batch;
        match batch.next_end(quantum.target_ps, all) {
            Some(target_ps) => self.barrier.begin(Quantum {
                number: quantum.number + 1,
                target_ps,
                needs_decision: waiting_ps != u64::MAX || self.distribution.is_some(),
                batch,
            }),
            None => self.barrier.end_batch(quantum.number),
        }
    }
}

/// Stops all threads on drop, with `only_in_panic` only while the thread panics: the quantum for which they wait would never end.
struct StopOnDrop<'a> {
    executor: &'a Executor,
    only_in_panic: bool,
}

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        if !self.only_in_panic || std::thread::panicking() {
            self.executor.barrier.stop(true);
        }
    }
}
