//! Nodes on host threads, in quanta of virtual time.
//!
//! All nodes run to the same virtual time, then meet; a quantum is no longer than the fabric's lookahead, so nothing that
//! one node does can reach another before the quantum's end. Before any network interface is up it is longer: a frame of the first
//! that comes up arrives at the quantum's end at the earliest. Which thread runs which node, and how many threads there
//! are, changes nothing.
//!
//! As long as no node has anything to say that somebody waits for, one quantum follows the other without anybody being asked: the
//! thread that is through last hands frames over and begins the next.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nodescope_devices::virtio::net::Frame;
use nodescope_fabric::SentFrame;
use nodescope_machine::node::{Node, NodeError, NodeStatus};

use crate::gate::Gate;
use crate::network::Network;
use crate::stretch::Meeting;

pub use crate::stretch::Stretch;

/// Keeps what different threads write apart: a line of the host's cache (and its neighbour, which is fetched with it) for each.
///
/// Where nodes are quick, a quantum takes a few microseconds, and what its threads tell each other moves between cores at some
/// 100 ns a line: one for the quantum, and one for each report.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// What all threads are to do.
#[derive(Default)]
struct Quantum {
    /// Its number; advances when it may begin.
    number: AtomicU64,
    /// Its end in picoseconds.
    target_ps: AtomicU64,
    stop: AtomicBool,
}

/// What decides when all nodes are through with a quantum: a line of the host's cache.
struct End {
    /// Nodes that are not, and [`UNUSUAL`] for each other of which more must be known than that it is through, and for the network
    /// if frames wait there.
    missing: AtomicU64,
    stretch: Mutex<Stretch>,
}

const _: () = assert!(size_of::<End>() <= 64);

/// See [`End::missing`].
const UNUSUAL: u64 = 1 << 32;

/// What a node's thread says about it, which decides then.
#[derive(Default)]
struct Signal {
    /// See [`Report::next_activity_ps`].
    next_activity_ps: AtomicU64,
    /// The node runs on, and nobody waits for what it says.
    quiet: AtomicBool,
    /// The node has sent frames.
    sends: AtomicBool,
    /// Its network interface is up.
    connected: AtomicBool,
}

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
    /// The node has not been touched since.
    fresh: bool,
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
            fresh: true,
        }
    }

    fn is_quiet(&self) -> bool {
        matches!(self.result, Ok(NodeStatus::Running)) && !self.wants_attention
    }

    /// Nothing else need be known of the node before the next quantum begins.
    fn is_usual(&self) -> bool {
        self.is_quiet() && !self.has_frames && self.next_activity_ps == 0 && self.connected
    }
}

/// The nodes of a cluster and the state that the host threads share.
pub struct Executor {
    nodes: Vec<Apart<Mutex<Node>>>,
    network: Mutex<Network>,
    quantum: Apart<Quantum>,
    end: Apart<End>,
    /// The last quantum of a stretch that all nodes are through with.
    over: Apart<AtomicU64>,
    /// The quantum that each node has begun last: who raises it runs the node.
    begun: Vec<Apart<AtomicU64>>,
    signals: Vec<Apart<Signal>>,
    reports: Vec<Apart<Mutex<Report>>>,
    /// Threads that sleep until the quantum begins or is through.
    gate: Gate,
}

impl Executor {
    /// Take the nodes, and what connects them.
    pub fn new(nodes: Vec<Node>, network: Network) -> Self {
        let mut nodes = nodes;
        let report = |node| Apart(Mutex::new(Report::of(node, Ok(NodeStatus::Running))));
        Self {
            begun: nodes.iter().map(|_| Apart::default()).collect(),
            signals: nodes.iter().map(|_| Apart::default()).collect(),
            reports: nodes.iter_mut().map(report).collect(),
            nodes: nodes.into_iter().map(|n| Apart(Mutex::new(n))).collect(),
            network: Mutex::new(network),
            quantum: Apart::default(),
            end: Apart(End {
                missing: AtomicU64::new(0),
                stretch: Mutex::new(Stretch::default()),
            }),
            over: Apart::default(),
            gate: Gate::default(),
        }
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn node(&self, index: usize) -> MutexGuard<'_, Node> {
        // A panic of a worker ends the run through the scope; the data is never used after it.
        let node = self.nodes[index].0.lock();
        node.unwrap_or_else(PoisonError::into_inner)
    }

    /// What connects the nodes; between stretches.
    pub fn network(&self) -> MutexGuard<'_, Network> {
        let network = self.network.lock();
        network.unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, index: usize) -> MutexGuard<'_, Report> {
        let report = self.reports[index].0.lock();
        report.unwrap_or_else(PoisonError::into_inner)
    }

    /// Look at a node between quanta.
    pub fn with_node<R>(&self, index: usize, f: impl FnOnce(&mut Node) -> R) -> R {
        self.report(index).fresh = false;
        f(&mut self.node(index))
    }

    /// The report about a node, as it is now.
    fn fresh_report(&self, index: usize) -> MutexGuard<'_, Report> {
        let mut report = self.report(index);
        if !report.fresh {
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
        self.quantum.0.stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for thread in 1..=helpers {
                scope.spawn(move || self.help(thread, helpers + 1));
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
        *self.stretch() = stretch;
        let (shared, over) = (&self.quantum.0, &self.over.0);
        let mut quantum = shared.number.load(Ordering::Relaxed) + 1;
        let waits = self.network().next_ps().is_some();
        self.begin(quantum, stretch.first_ps, waits);
        loop {
            self.take_own(quantum, 0, threads);
            let next = |order| over.load(order) >= quantum || shared.number.load(order) != quantum;
            self.gate.wait(next, || self.take_all(quantum));
            if over.load(Ordering::Acquire) >= quantum {
                break;
            }
            assert!(
                !shared.stop.load(Ordering::Acquire),
                "a thread that runs nodes has panicked"
            );
            quantum = shared.number.load(Ordering::Acquire);
        }
        let statuses = (0..self.len())
            .map(|i| std::mem::replace(&mut self.report(i).result, Ok(NodeStatus::Running)))
            .collect();
        (shared.target_ps.load(Ordering::Relaxed), statuses)
    }

    fn stretch(&self) -> MutexGuard<'_, Stretch> {
        let stretch = self.end.0.stretch.lock();
        stretch.unwrap_or_else(PoisonError::into_inner)
    }

    /// Let all threads run their nodes to a virtual time; `waits`: frames wait in the network.
    fn begin(&self, quantum: u64, target_ps: u64, waits: bool) {
        let missing = self.len() as u64 + if waits { UNUSUAL } else { 0 };
        self.end.0.missing.store(missing, Ordering::Relaxed);
        self.quantum.0.target_ps.store(target_ps, Ordering::Relaxed);
        // What was stored before is seen by who sees the number.
        self.quantum.0.number.store(quantum, Ordering::SeqCst);
        self.gate.open();
    }

    /// All nodes are through with a quantum; `usual`: and there is nothing else to be known. What others know is in their cores' caches,
    /// and nearly always not worth the way there.
    fn end(&self, quantum: u64, usual: bool) {
        let (all, waits) = if usual {
            (Meeting::USUAL, false)
        } else {
            let waiting_ps = self.exchange();
            (self.meeting(waiting_ps), waiting_ps != u64::MAX)
        };
        let now_ps = self.quantum.0.target_ps.load(Ordering::Relaxed);
        let following = self.stretch().following(now_ps, all);
        match following {
            Some(target_ps) => self.begin(quantum + 1, target_ps, waits),
            None => {
                self.over.0.store(quantum, Ordering::SeqCst);
                self.gate.open();
            }
        }
    }

    /// Hand over the frames of the quantum that has just ended. When the first of those that still wait for a link will be sent; 0
    /// where somebody must look at the network.
    fn exchange(&self) -> u64 {
        let until_ps = self.quantum.0.target_ps.load(Ordering::Relaxed);
        let mut network = self.network();
        let mut frames = Vec::new();
        for (port, signal) in self.signals.iter().enumerate() {
            if !signal.0.sends.swap(false, Ordering::Relaxed) {
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
            self.report(port).has_frames = false;
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
            let signal = &self.signals[delivery.port].0;
            signal.next_activity_ps.store(next_ps, Ordering::Relaxed);
        }
        if network.has_failed() {
            return 0;
        }
        network.next_ps().unwrap_or(u64::MAX)
    }

    /// What is to be known of all nodes; `waiting_ps`: see [`Executor::exchange`].
    fn meeting(&self, waiting_ps: u64) -> Meeting {
        let signals = || self.signals.iter().map(|signal| &signal.0);
        let activity_ps = signals().map(|s| s.next_activity_ps.load(Ordering::Relaxed));
        Meeting {
            quiet: waiting_ps > 0 && signals().all(|s| s.quiet.load(Ordering::Relaxed)),
            activity_ps: activity_ps.min().unwrap_or(u64::MAX).min(waiting_ps),
            connected: signals().any(|s| s.connected.load(Ordering::Relaxed)),
        }
    }

    fn help(&self, thread: usize, threads: usize) {
        let _dismissal = Dismissal {
            executor: self,
            only_in_panic: true,
        };
        let mut seen = 0;
        loop {
            let begins = |order| self.quantum.0.number.load(order) != seen;
            self.gate.wait(begins, || self.take_all(seen));
            seen = self.quantum.0.number.load(Ordering::Acquire);
            if self.quantum.0.stop.load(Ordering::Relaxed) {
                return;
            }
            self.take_own(seen, thread, threads);
        }
    }

    /// Run this thread's own nodes.
    fn take_own(&self, quantum: u64, thread: usize, threads: usize) {
        for index in (thread..self.len()).step_by(threads) {
            self.take(index, quantum);
        }
    }

    /// Run the nodes of threads that are late.
    fn take_all(&self, quantum: u64) {
        for index in 0..self.len() {
            self.take(index, quantum);
        }
    }

    /// Run a node through a quantum, if no thread has begun to. A thread that wakes late finds that all have.
    fn take(&self, index: usize, quantum: u64) {
        let begun = &self.begun[index].0;
        // Looking first leaves the line to the node's own thread where that is through.
        if begun.load(Ordering::Relaxed) >= quantum
            || begun.fetch_max(quantum, Ordering::AcqRel) >= quantum
        {
            return;
        }
        let mut node = self.node(index);
        let end = self.quantum.0.target_ps.load(Ordering::Relaxed);
        let target = node.clock().cycles(end);
        let result = node.run_until(target);
        let report = Report::of(&mut node, result);
        drop(node);
        let signal = &self.signals[index].0;
        let usual = report.is_usual();
        signal.quiet.store(report.is_quiet(), Ordering::Relaxed);
        signal.sends.store(report.has_frames, Ordering::Relaxed);
        signal.connected.store(report.connected, Ordering::Relaxed);
        signal
            .next_activity_ps
            .store(report.next_activity_ps, Ordering::Relaxed);
        *self.report(index) = report;
        // The last one sees what the others have stored.
        let through = if usual {
            1
        } else {
            1_u64.wrapping_sub(UNUSUAL)
        };
        let missing = &self.end.0.missing;
        let left = missing
            .fetch_sub(through, Ordering::AcqRel)
            .wrapping_sub(through);
        if left % UNUSUAL == 0 {
            self.end(quantum, left == 0);
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
            let quantum = &self.executor.quantum.0;
            quantum.stop.store(true, Ordering::Release);
            quantum.number.fetch_add(1, Ordering::SeqCst);
            self.executor.gate.open();
        }
    }
}
