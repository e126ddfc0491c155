//! Nodes on host threads, in quanta of virtual time.
//!
//! All nodes run to the same virtual time, then meet; a quantum is no longer than the fabric's lookahead, so nothing that
//! one node does can reach another before the quantum's end. Before any network interface is up it is longer: a frame of the first
//! that comes up arrives at the quantum's end at the earliest. Which thread runs which node, and how many threads there
//! are, changes nothing.
//!
//! As long as no node has anything to say that somebody waits for, one quantum follows the other without anybody being asked. Where
//! there is something to be decided, the first thread that finds all nodes through with a quantum does so: it hands frames over and begins the next.
//!
//! Nodes may run in several processes ([`Distribution`]). Then every quantum ends with a decision, which all processes take alike.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodescope_devices::virtio::net::Frame;
use nodescope_engine::EngineError;
use nodescope_fabric::{Delivery, SentFrame};
use nodescope_machine::board::NodeEvent;
use nodescope_machine::node::{Node, NodeError, NodeStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::crew::{self, Work};
use crate::distribution::{Distribution, NodeFailure, NodeReport, PeerError};
use crate::meetings::{Meetings, Quantum, Rest};
use crate::network::Network;
use crate::outcome::RunError;
use crate::pace::NodePace;
use crate::stretch::Meeting;
use crate::sync::CachePadded;

pub use crate::stretch::Stretch;

/// How a node came out of a quantum, so that nobody has to look at the node itself, whose state is in another core's caches.
struct Report {
    result: Result<NodeStatus, NodeError>,
    /// [`Node::next_activity`] in picoseconds (0 where a vCPU runs), [`Node::instructions`], [`Node::has_output`],
    /// [`Node::wants_attention`], [`Node::has_frames`] and [`Node::is_connected`].
    next_activity_ps: u64,
    instructions: u64,
    has_output: bool,
    wants_attention: bool,
    has_frames: bool,
    connected: bool,
}

/// See [`Report::next_activity_ps`].
fn activity_ps(node: &mut Node) -> u64 {
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
            next_activity_ps: activity_ps(node),
            instructions: node.instructions(),
            has_output: node.has_output(),
            wants_attention: node.wants_attention(),
            has_frames: node.has_frames(),
            connected: node.is_connected(),
        }
    }

    /// Takes the error, if there is one. A status stays.
    fn take_result(&mut self) -> Result<NodeStatus, NodeError> {
        let status = *self.result.as_ref().unwrap_or(&NodeStatus::Running);
        std::mem::replace(&mut self.result, Ok(status))
    }

    fn is_quiet(&self) -> bool {
        matches!(self.result, Ok(NodeStatus::Running)) && !self.wants_attention
    }

    fn meeting(&self) -> Meeting {
        Meeting {
            quiet: self.is_quiet(),
            activity_ps: self.next_activity_ps,
            connected: self.connected,
        }
    }
}

/// What [`Executor::new`] gave the node.
fn pace(node: &mut Node) -> &mut NodePace {
    node.pace().expect("every node of a cluster has one")
}

/// A node, and what is known of it.
struct Slot {
    node: CachePadded<Mutex<Node>>,
    report: CachePadded<Mutex<Report>>,
    /// The report is about the node as it is now.
    fresh: CachePadded<AtomicBool>,
}

/// The nodes of a cluster and the state that the host threads share. Nodes have their numbers within the cluster; slots hold those that run
/// in this process.
pub struct Executor {
    slots: Vec<Slot>,
    /// Number of the first node of this process.
    first: usize,
    /// Other processes have other nodes.
    distribution: Option<Distribution>,
    network: CachePadded<Mutex<Network>>,
    meetings: Arc<Meetings>,
    /// The end of the last quantum, picoseconds. Nodes that slept through it may be behind.
    reached_ps: AtomicU64,
    /// See [`Executor::keep_on_threads`].
    stay: AtomicBool,
    /// The host has given all threads.
    complete: AtomicBool,
}

impl Executor {
    /// Take the nodes, and what connects them.
    pub fn new(nodes: Vec<Node>, network: Network) -> Self {
        Self::of(nodes, network, None)
    }

    /// Takes the nodes of this process, and what connects the nodes of all processes.
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
        let meetings = Arc::new(Meetings::new(nodes.len()));
        let slot = |(index, mut node): (usize, Node)| {
            node.set_pace(Box::new(NodePace {
                meetings: Arc::clone(&meetings),
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
            meetings,
            reached_ps: AtomicU64::new(0),
            stay: AtomicBool::new(false),
            complete: AtomicBool::new(true),
        }
    }

    /// Whether nodes stay with their threads. When a vCPU of KVM runs on another thread than before, the kernel waits for all
    /// its readers of the vCPU's thread first (virt/kvm/kvm_main.c, `KVM_RUN`), which takes milliseconds.
    pub fn keep_on_threads(&self, stay: bool) {
        self.stay.store(stay, Ordering::Relaxed);
    }

    /// Number of nodes, of all processes.
    pub fn len(&self) -> usize {
        let distribution = self.distribution.as_ref();
        distribution.map_or(self.slots.len(), Distribution::nodes)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The nodes that run in this process.
    pub fn own(&self) -> Range<usize> {
        self.first..self.first + self.slots.len()
    }

    /// The share of this process, where there are others.
    pub fn distribution(&self) -> Option<&Distribution> {
        self.distribution.as_ref()
    }

    fn node(&self, slot: usize) -> MutexGuard<'_, Node> {
        // A panic of a worker ends the run through the scope; the data is never used after it.
        let node = self.slots[slot].node.lock();
        node.unwrap_or_else(PoisonError::into_inner)
    }

    /// What connects the nodes; between stretches.
    pub fn network(&self) -> MutexGuard<'_, Network> {
        let network = self.network.lock();
        network.unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, slot: usize) -> MutexGuard<'_, Report> {
        let report = self.slots[slot].report.lock();
        report.unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a node of this process between quanta.
    pub fn with_node<R>(&self, index: usize, f: impl FnOnce(&mut Node) -> R) -> R {
        let slot = index - self.first;
        self.slots[slot].fresh.store(false, Ordering::Relaxed);
        let mut node = self.awake_node(
            slot,
            self.meetings.over(),
            self.reached_ps.load(Ordering::Relaxed),
        );
        f(&mut node)
    }

    /// A node of which nobody knows any more that it sleeps, at the time of the others, after the quantum that all are through with.
    fn awake_node(&self, slot: usize, number: u64, reached_ps: u64) -> MutexGuard<'_, Node> {
        let mut node = self.node(slot);
        if self.meetings.asleep_ps(slot) > 0 {
            let reached = node.clock().cycles(reached_ps);
            node.sleep_until(reached);
            self.meetings.wakes(slot, number, 0);
        }
        node
    }

    /// Looks at all nodes of this process.
    pub fn with_own<R>(&self, mut f: impl FnMut(&mut Node) -> R) -> Vec<R> {
        self.own()
            .map(|index| self.with_node(index, &mut f))
            .collect()
    }

    /// The report about a node of this process, as it is now.
    fn fresh_report(&self, slot: usize) -> MutexGuard<'_, Report> {
        let mut report = self.report(slot);
        if !self.slots[slot].fresh.swap(true, Ordering::Relaxed) {
            let result = report.take_result();
            *report = Report::of(&mut self.node(slot), result);
        }
        report
    }

    /// A value that is known of each node: as it is now in a single process, and else as all processes know it.
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

    /// When something can happen next in a node, picoseconds: see [`Node::next_activity`].
    pub fn next_activity_ps(&self, index: usize) -> u64 {
        self.known(index, |own| own.next_activity_ps, |of| of.next_activity_ps)
    }

    /// Instructions that a node has retired.
    pub fn instructions(&self, index: usize) -> u64 {
        self.known(index, |own| own.instructions, |of| of.instructions)
    }

    /// Whether a node has something to be collected.
    pub fn has_output(&self, index: usize) -> bool {
        let some = |of: &NodeReport| !of.console.is_empty() || !of.events.is_empty();
        self.known(index, |own| own.has_output, some)
    }

    /// Takes what a node has written to its console, and its hypercalls.
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

    /// The bytes that a node's files count so far.
    pub fn file_bytes(&self, index: usize) -> u64 {
        match &self.distribution {
            None => self.with_node(index, |n| n.file_bytes()),
            Some(distribution) => distribution.reports()[index].file_bytes,
        }
    }

    /// Status of each node between stretches.
    pub fn statuses(&self) -> Vec<NodeStatus> {
        match &self.distribution {
            None => self.with_own(|n| n.status()),
            Some(distribution) => (distribution.reports().iter())
                .map(|of| of.result.as_ref().copied().unwrap_or(NodeStatus::Running))
                .collect(),
        }
    }

    /// The virtual time that all nodes have reached, picoseconds. Where they are not stopped, that is the last quantum's end.
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

    /// Whether any node has a network interface that is up.
    pub fn any_connected(&self) -> bool {
        (0..self.len()).any(|index| self.known(index, |own| own.connected, |of| of.connected))
    }

    /// Whether the run is to end: where there are several processes, as soon as all know.
    pub fn is_interrupted(&self, interrupted: &AtomicBool) -> bool {
        match &self.distribution {
            None => interrupted.load(Ordering::Relaxed),
            Some(distribution) => distribution.is_interrupted(),
        }
    }

    /// Returns the sentences of nodes for the user, by node: of all that can still be asked.
    pub fn gather_notes(&self) -> BTreeMap<usize, Vec<String>> {
        let own: Vec<(usize, Vec<String>)> = self.own().zip(self.with_own(|n| n.notes())).collect();
        let all = self.gather_parts(own.clone());
        all.map_or(own, |all| all.into_iter().flatten().collect())
            .into_iter()
            .collect()
    }

    /// Returns the parts of all processes, in the order of nodes, of something that each has a part of; nothing if a process is lost.
    pub fn gather_parts<T: Serialize + DeserializeOwned>(&self, own: T) -> Option<Vec<T>> {
        match &self.distribution {
            None => Some(vec![own]),
            Some(distribution) => distribution.gather_json(&own).ok(),
        }
    }

    /// Lets all processes know the state of all nodes; nothing where there is one.
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

    /// Run `body` with `threads` host threads at its service. Each call of the function it is given runs all nodes through a
    /// stretch of quanta, of which the last is the first one after which a node wants attention or does not run on. It tells the
    /// virtual time that they have reached, and how each came out, the first error standing for all.
    pub fn run<R>(
        &self,
        threads: usize,
        body: impl FnOnce(&mut dyn FnMut(Stretch) -> (u64, Result<Vec<NodeStatus>, RunError>)) -> R,
    ) -> R {
        let helpers = threads.clamp(1, self.slots.len().max(1)) - 1;
        self.meetings.stop(false);
        std::thread::scope(|scope| {
            for thread in 1..=helpers {
                let helper = std::thread::Builder::new()
                    .spawn_scoped(scope, move || self.help(thread, helpers + 1));
                // Threads that are there run the nodes of those that are not.
                if let Err(error) = helper {
                    tracing::warn!(
                        "the host gives no more than {thread} of {} threads ({error}); the run goes on with these",
                        helpers + 1
                    );
                    self.complete.store(false, Ordering::Relaxed);
                    break;
                }
            }
            // However this ends: the scope waits for the helpers.
            let _dismissal = Dismissal {
                executor: self,
                only_in_panic: false,
            };
            body(&mut |stretch| self.quanta(stretch, helpers + 1))
        })
    }

    fn quanta(&self, stretch: Stretch, threads: usize) -> (u64, Result<Vec<NodeStatus>, RunError>) {
        let first = Quantum {
            number: self.meetings.over() + 1,
            target_ps: stretch.first_ps,
            waits: self.distribution.is_some() || self.network().next_ps().is_some(),
            stretch,
        };
        let last = crew::lead(self, first, threads);
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

    /// Takes the frames that nodes of this process have sent in the quantum that has just ended.
    fn take_frames(&self) -> Vec<SentFrame> {
        let mut frames = Vec::new();
        for slot in (0..self.slots.len()).filter(|&slot| self.meetings.speaks(slot)) {
            if !std::mem::take(&mut self.report(slot).has_frames) {
                continue;
            }
            let mut node = self.node(slot);
            let clock = node.clock();
            frames.extend(node.take_frames().into_iter().map(|frame| SentFrame {
                time_ps: clock.ps(frame.time),
                port: self.first + slot,
                bytes: frame.bytes,
                checksum_valid: frame.checksum_valid,
            }));
        }
        frames
    }

    /// Hands over the frames of the quantum that has just ended at this time. Returns whether any frame goes to a node of any
    /// process.
    fn forward(&self, frames: Vec<SentFrame>, quantum: Quantum) -> bool {
        let mut network = self.network();
        if frames.is_empty() && network.next_ps().is_none() {
            return false;
        }
        let deliveries = network.forward(frames, quantum.target_ps);
        let any = !deliveries.is_empty();
        let own = self.own();
        for delivery in deliveries.into_iter().filter(|to| own.contains(&to.port)) {
            self.deliver(delivery, quantum);
        }
        any
    }

    fn deliver(&self, delivery: Delivery, quantum: Quantum) {
        let slot = delivery.port - self.first;
        let slept = self.meetings.asleep_ps(slot) > 0;
        let mut node = self.awake_node(slot, quantum.number, quantum.target_ps);
        let time = node.clock().cycles(delivery.time_ps).max(node.now());
        node.inject(Frame {
            time,
            bytes: delivery.bytes,
            checksum_valid: delivery.checksum_valid,
        });
        let next_ps = activity_ps(&mut node);
        self.report(slot).next_activity_ps = next_ps;
        if slept {
            self.meetings.wakes(slot, quantum.number, next_ps);
        }
    }

    /// When the first of the frames that still wait for a link will be sent; 0 where somebody must look at the network.
    fn waiting_ps(&self) -> u64 {
        let network = self.network();
        // Other processes have no capture, and would not look.
        if network.has_failed() && self.distribution.is_none() {
            return 0;
        }
        network.next_ps().unwrap_or(u64::MAX)
    }

    /// What is to be known of the nodes of this process.
    fn own_meeting(&self) -> Meeting {
        let mut all = Meeting {
            quiet: true,
            activity_ps: u64::MAX,
            connected: false,
        };
        for slot in 0..self.slots.len() {
            let asleep_ps = self.meetings.asleep_ps(slot);
            if asleep_ps > 0 {
                all.activity_ps = all.activity_ps.min(asleep_ps);
                all.connected = all.connected || self.report(slot).connected;
            } else if self.meetings.speaks(slot) {
                all = all.and(self.report(slot).meeting());
            } else {
                all = all.and(Meeting::USUAL);
            }
        }
        all
    }

    /// Hands over the frames of a quantum. Returns what is then to be known of the nodes of all processes.
    fn exchange(&self, quantum: Quantum) -> Result<Meeting, PeerError> {
        let frames = self.take_frames();
        let Some(distribution) = &self.distribution else {
            self.forward(frames, quantum);
            return Ok(self.own_meeting());
        };
        let own = self.own_meeting();
        let (frames, mut all) = distribution.gather_quantum(quantum.number, frames, own)?;
        // A frame may wake a node up before all others, which its own process alone can tell.
        if self.forward(frames, quantum) && all.activity_ps > quantum.target_ps {
            all.activity_ps = distribution.gather_activity(self.own_meeting().activity_ps)?;
        }
        Ok(all)
    }

    fn help(&self, thread: usize, threads: usize) {
        let _dismissal = Dismissal {
            executor: self,
            only_in_panic: true,
        };
        crew::help(self, thread, threads);
    }
}

impl Work for Executor {
    fn meetings(&self) -> &Meetings {
        &self.meetings
    }

    fn nodes(&self) -> usize {
        self.slots.len()
    }

    fn run_node(&self, index: usize, quantum: Quantum, goes_on: bool) -> (Quantum, Option<Rest>) {
        let mut node = self.node(index);
        let target = node.clock().cycles(quantum.target_ps);
        let fresh = &self.slots[index].fresh;
        fresh.store(false, Ordering::Relaxed);
        let before = node.status();
        let (result, last) = if goes_on {
            pace(&mut node).quantum = quantum;
            let result = node.run_from(target);
            (result, pace(&mut node).quantum)
        } else {
            (node.run_until(target), quantum)
        };
        if self.meetings.last(index) == last.number {
            // Its last turn ended there.
            debug_assert!(matches!(result, Ok(NodeStatus::Running)));
            return (last, None);
        }
        if matches!(result, Ok(NodeStatus::Running)) && node.is_usual() {
            return (last, Some(Rest::Awake));
        }
        // A node that has just stopped says so, once.
        let says = result.as_ref().map_or(true, |status| *status != before);
        let says = says || node.wants_attention() || node.has_frames() || node.runs_at_once();
        let report = Report::of(&mut node, result);
        drop(node);
        let next_ps = report.next_activity_ps;
        *self.report(index) = report;
        fresh.store(true, Ordering::Relaxed);
        let asleep = !says && next_ps > last.target_ps;
        let rest = if asleep {
            Rest::Asleep(next_ps)
        } else {
            Rest::Speaks
        };
        (last, Some(rest))
    }

    fn nodes_stay(&self) -> bool {
        self.stay.load(Ordering::Relaxed) && self.complete.load(Ordering::Relaxed)
    }

    fn decide(&self, quantum: Quantum) {
        let Ok(nodes) = self.exchange(quantum) else {
            // The error is kept where the stretch ends.
            self.meetings.end(quantum.number);
            return;
        };
        let waiting_ps = self.waiting_ps();
        let all = nodes.and(Meeting {
            quiet: waiting_ps > 0,
            activity_ps: waiting_ps,
            connected: false,
        });
        let mut stretch = quantum.stretch;
        match stretch.following(quantum.target_ps, all) {
            Some(target_ps) => self.meetings.begin(Quantum {
                number: quantum.number + 1,
                target_ps,
                waits: waiting_ps != u64::MAX || self.distribution.is_some(),
                stretch,
            }),
            None => self.meetings.end(quantum.number),
        }
    }
}

/// Sends all threads home when it is dropped: the quantum that they wait for would never end.
struct Dismissal<'a> {
    executor: &'a Executor,
    only_in_panic: bool,
}

impl Drop for Dismissal<'_> {
    fn drop(&mut self) {
        if !self.only_in_panic || std::thread::panicking() {
            self.executor.meetings.stop(true);
        }
    }
}
