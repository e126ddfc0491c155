//! Nodes on host threads, in quanta of virtual time.
//!
//! All nodes run to the same virtual time, then meet; a quantum is no longer than the fabric's lookahead, so nothing that
//! one node does can reach another before the quantum's end. Before any network interface is up it is longer: a frame of the first
//! that comes up arrives at the quantum's end at the earliest. Which thread runs which node, and how many threads there
//! are, changes nothing.
//!
//! As long as no node has anything to say that somebody waits for, one quantum follows the other without anybody being asked. Where
//! there is something to be decided, the first thread that finds all nodes through with a quantum does so: it hands frames over and begins the next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodescope_devices::virtio::net::Frame;
use nodescope_fabric::SentFrame;
use nodescope_machine::node::{Node, NodeError, NodeStatus};

use crate::crew::{self, Work};
use crate::meetings::{Meetings, Quantum};
use crate::network::Network;
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

/// The nodes of a cluster and the state that the host threads share.
pub struct Executor {
    slots: Vec<Slot>,
    network: CachePadded<Mutex<Network>>,
    meetings: Arc<Meetings>,
    /// See [`Executor::keep_on_threads`].
    stay: AtomicBool,
    /// The host has given all threads.
    complete: AtomicBool,
}

impl Executor {
    /// Take the nodes, and what connects them.
    pub fn new(nodes: Vec<Node>, network: Network) -> Self {
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
            network: CachePadded::new(Mutex::new(network)),
            meetings,
            stay: AtomicBool::new(false),
            complete: AtomicBool::new(true),
        }
    }

    /// Whether nodes stay with their threads. When a vCPU of KVM runs on another thread than before, the kernel waits for all
    /// its readers of the vCPU's thread first (virt/kvm/kvm_main.c, `KVM_RUN`), which takes milliseconds.
    pub fn keep_on_threads(&self, stay: bool) {
        self.stay.store(stay, Ordering::Relaxed);
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn node(&self, index: usize) -> MutexGuard<'_, Node> {
        // A panic of a worker ends the run through the scope; the data is never used after it.
        let node = self.slots[index].node.lock();
        node.unwrap_or_else(PoisonError::into_inner)
    }

    /// What connects the nodes; between stretches.
    pub fn network(&self) -> MutexGuard<'_, Network> {
        let network = self.network.lock();
        network.unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, index: usize) -> MutexGuard<'_, Report> {
        let report = self.slots[index].report.lock();
        report.unwrap_or_else(PoisonError::into_inner)
    }

    /// Look at a node between quanta.
    pub fn with_node<R>(&self, index: usize, f: impl FnOnce(&mut Node) -> R) -> R {
        self.slots[index].fresh.store(false, Ordering::Relaxed);
        f(&mut self.node(index))
    }

    /// The report about a node, as it is now.
    fn fresh_report(&self, index: usize) -> MutexGuard<'_, Report> {
        let mut report = self.report(index);
        if !self.slots[index].fresh.swap(true, Ordering::Relaxed) {
            let result = std::mem::replace(&mut report.result, Ok(NodeStatus::Running));
            *report = Report::of(&mut self.node(index), result);
        }
        report
    }

    /// When something can happen next in a node, picoseconds: see [`Node::next_activity`].
    pub fn next_activity_ps(&self, index: usize) -> u64 {
        self.fresh_report(index).next_activity_ps
    }

    /// Instructions that a node has retired.
    pub fn instructions(&self, index: usize) -> u64 {
        self.fresh_report(index).instructions
    }

    /// Whether a node has something to be collected.
    pub fn has_output(&self, index: usize) -> bool {
        self.fresh_report(index).has_output
    }

    /// The virtual time that all nodes have reached, picoseconds. Where they are not stopped, that is the last quantum's end.
    pub fn reached_ps(&self) -> u64 {
        let reached = (0..self.len()).map(|index| {
            let node = self.node(index);
            node.clock().ps(node.now())
        });
        reached.min().unwrap_or(0)
    }

    /// Whether any node has a network interface that is up.
    pub fn any_connected(&self) -> bool {
        (0..self.len()).any(|index| self.fresh_report(index).connected)
    }

    /// Run `body` with `threads` host threads at its service. Each call of the function it is given runs all nodes through a
    /// stretch of quanta, of which the last is the first one after which a node wants attention or does not run on. It tells the
    /// virtual time that they have reached, and how each came out, the first error standing for all.
    pub fn run<R>(
        &self,
        threads: usize,
        body: impl FnOnce(&mut dyn FnMut(Stretch) -> (u64, Result<Vec<NodeStatus>, NodeError>)) -> R,
    ) -> R {
        let helpers = threads.clamp(1, self.len().max(1)) - 1;
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

    fn quanta(
        &self,
        stretch: Stretch,
        threads: usize,
    ) -> (u64, Result<Vec<NodeStatus>, NodeError>) {
        let first = Quantum {
            number: self.meetings.over() + 1,
            target_ps: stretch.first_ps,
            waits: self.network().next_ps().is_some(),
            stretch,
        };
        let last = crew::lead(self, first, threads);
        let last = last.expect("a thread that runs nodes has panicked");
        let statuses = (0..self.len())
            .map(|i| std::mem::replace(&mut self.report(i).result, Ok(NodeStatus::Running)))
            .collect();
        (last.target_ps, statuses)
    }

    /// Hand over the frames of the quantum that has just ended, at this time. When the first of those that still wait for a link will be sent; 0
    /// where somebody must look at the network.
    fn exchange(&self, until_ps: u64) -> u64 {
        let mut network = self.network();
        let mut frames = Vec::new();
        for port in (0..self.len()).filter(|&node| self.meetings.speaks(node)) {
            if !std::mem::take(&mut self.report(port).has_frames) {
                continue;
            }
            let mut node = self.node(port);
            let clock = node.clock();
            frames.extend(node.take_frames().into_iter().map(|frame| SentFrame {
                time_ps: clock.ps(frame.time),
                port,
                bytes: frame.bytes,
                checksum_valid: frame.checksum_valid,
            }));
        }
        if frames.is_empty() && network.next_ps().is_none() {
            return u64::MAX;
        }
        for delivery in network.forward(frames, until_ps) {
            let mut node = self.node(delivery.port);
            let time = node.clock().cycles(delivery.time_ps).max(node.now());
            node.inject(Frame {
                time,
                bytes: delivery.bytes,
                checksum_valid: delivery.checksum_valid,
            });
            let next_ps = activity_ps(&mut node);
            self.report(delivery.port).next_activity_ps = next_ps;
        }
        if network.has_failed() {
            return 0;
        }
        network.next_ps().unwrap_or(u64::MAX)
    }

    /// What is to be known of all nodes; `waiting_ps`: see [`Executor::exchange`].
    fn meeting(&self, waiting_ps: u64) -> Meeting {
        let nodes = (0..self.len()).map(|node| match self.meetings.speaks(node) {
            true => self.report(node).meeting(),
            false => Meeting::USUAL,
        });
        let network = Meeting {
            quiet: waiting_ps > 0,
            activity_ps: waiting_ps,
            connected: false,
        };
        nodes.fold(network, Meeting::and)
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
        self.len()
    }

    fn run_node(&self, index: usize, quantum: Quantum, goes_on: bool) -> (Quantum, Option<bool>) {
        let mut node = self.node(index);
        let target = node.clock().cycles(quantum.target_ps);
        let fresh = &self.slots[index].fresh;
        fresh.store(false, Ordering::Relaxed);
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
        let usual = matches!(result, Ok(NodeStatus::Running)) && node.is_usual();
        let report = (!usual).then(|| Report::of(&mut node, result));
        drop(node);
        if let Some(report) = report {
            *self.report(index) = report;
            fresh.store(true, Ordering::Relaxed);
        }
        (last, Some(usual))
    }

    fn nodes_stay(&self) -> bool {
        self.stay.load(Ordering::Relaxed) && self.complete.load(Ordering::Relaxed)
    }

    fn decide(&self, quantum: Quantum) {
        let waiting_ps = self.exchange(quantum.target_ps);
        let all = self.meeting(waiting_ps);
        let mut stretch = quantum.stretch;
        match stretch.following(quantum.target_ps, all) {
            Some(target_ps) => self.meetings.begin(Quantum {
                number: quantum.number + 1,
                target_ps,
                waits: waiting_ps != u64::MAX,
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
