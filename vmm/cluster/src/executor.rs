//! Nodes on host threads, in quanta of virtual time.
//!
//! All nodes run to the same virtual time, then meet; a quantum is no longer than the fabric's lookahead, so nothing that
//! one node does can reach another before the quantum's end. Before any network interface is up it is longer: a frame of the first
//! that comes up arrives at the quantum's end at the earliest. Which thread runs which node, and how many threads there
//! are, changes nothing.
//!
//! As long as no node has anything to say that somebody waits for, one quantum follows the other without anybody being asked. Where
//! there is something to be decided, the first thread that finds all nodes through with a quantum does so: it hands frames over and begins the next.

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
/// 100 ns a line: one for each node that others wait for.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// A quantum, and what is to follow it.
#[derive(Clone, Copy, Debug, Default)]
struct Quantum {
    /// Numbered from 1, over all stretches.
    number: u64,
    /// Its end in picoseconds.
    target_ps: u64,
    /// Frames wait in the network: what follows must be decided, whatever the nodes say.
    waits: bool,
    stretch: Stretch,
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

/// The quantum that all threads were last told to begin: one that does not follow from the one before by itself.
#[derive(Default)]
struct Begun {
    /// Its number, for those that wait.
    number: AtomicU64,
    stop: AtomicBool,
    quantum: Mutex<Quantum>,
}

/// What a node's thread says about it.
#[derive(Default)]
struct Signal {
    /// Twice the number of the quantum that it is through with, plus one where what follows must be decided.
    through: AtomicU64,
    /// The report is about the node as it is now.
    fresh: AtomicBool,
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

/// Of a node that runs on, nothing else need be known before the next quantum begins.
fn is_usual(node: &mut Node) -> bool {
    !node.wants_attention() && !node.has_frames() && activity_ps(node) == 0 && node.is_connected()
}

/// The nodes of a cluster and the state that the host threads share.
pub struct Executor {
    nodes: Vec<Apart<Mutex<Node>>>,
    network: Apart<Mutex<Network>>,
    begun: Apart<Begun>,
    /// The last quantum of which somebody has set out to decide what follows.
    decided: Apart<AtomicU64>,
    /// The last quantum of a stretch that is over.
    over: Apart<AtomicU64>,
    /// The quantum that each node has begun last: who raises it runs the node.
    claims: Vec<Apart<AtomicU64>>,
    signals: Vec<Apart<Signal>>,
    reports: Vec<Apart<Mutex<Report>>>,
    /// Threads that sleep until something is through, or begins.
    gate: Apart<Gate>,
}

impl Executor {
    /// Take the nodes, and what connects them.
    pub fn new(nodes: Vec<Node>, network: Network) -> Self {
        let mut nodes = nodes;
        let report = |node| Apart(Mutex::new(Report::of(node, Ok(NodeStatus::Running))));
        Self {
            claims: nodes.iter().map(|_| Apart::default()).collect(),
            signals: nodes.iter().map(|_| Apart::default()).collect(),
            reports: nodes.iter_mut().map(report).collect(),
            nodes: nodes.into_iter().map(|n| Apart(Mutex::new(n))).collect(),
            network: Apart(Mutex::new(network)),
            begun: Apart::default(),
            decided: Apart::default(),
            over: Apart::default(),
            gate: Apart::default(),
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
        let network = self.network.0.lock();
        network.unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, index: usize) -> MutexGuard<'_, Report> {
        let report = self.reports[index].0.lock();
        report.unwrap_or_else(PoisonError::into_inner)
    }

    /// Look at a node between quanta.
    pub fn with_node<R>(&self, index: usize, f: impl FnOnce(&mut Node) -> R) -> R {
        self.signals[index].0.fresh.store(false, Ordering::Relaxed);
        f(&mut self.node(index))
    }

    /// The report about a node, as it is now.
    fn fresh_report(&self, index: usize) -> MutexGuard<'_, Report> {
        let mut report = self.report(index);
        if !self.signals[index].0.fresh.swap(true, Ordering::Relaxed) {
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
        self.begun.0.stop.store(false, Ordering::Relaxed);
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
        let first = Quantum {
            number: self.over.0.load(Ordering::Acquire) + 1,
            target_ps: stretch.first_ps,
            waits: self.network().next_ps().is_some(),
            stretch,
        };
        self.begin(first);
        let last = self.follow(first, 0, threads);
        let last = last.expect("a thread that runs nodes has panicked");
        self.over.0.store(last.number, Ordering::Release);
        let statuses = (0..self.len())
            .map(|i| std::mem::replace(&mut self.report(i).result, Ok(NodeStatus::Running)))
            .collect();
        (last.target_ps, statuses)
    }

    /// Tell all threads to begin a quantum.
    fn begin(&self, quantum: Quantum) {
        let begun = &self.begun.0;
        *begun.quantum.lock().unwrap_or_else(PoisonError::into_inner) = quantum;
        begun.number.store(quantum.number, Ordering::Release);
        self.gate.0.open();
    }

    /// The quantum that they were last told to begin.
    fn latest(&self) -> Quantum {
        let quantum = self.begun.0.quantum.lock();
        *quantum.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether they were told to begin one after this.
    fn is_past(&self, number: u64) -> bool {
        self.begun.0.number.load(Ordering::Acquire) > number
    }

    fn is_stopped(&self) -> bool {
        self.begun.0.stop.load(Ordering::Acquire)
    }

    /// Run this thread's nodes from a quantum on to the end of the stretch, whose last quantum is the result; None if threads are sent home.
    ///
    /// What follows a quantum after which nobody has anything to say, every thread works out by itself, so that nobody waits for
    /// more than the others' word that they are through with it.
    fn follow(&self, from: Quantum, thread: usize, threads: usize) -> Option<Quantum> {
        let mut quantum = from;
        loop {
            let number = quantum.number;
            self.take_own(&quantum, thread, threads);
            let mut late = 0;
            let through = || {
                // Who was through is not asked again.
                while late < self.len() && self.through(late) >> 1 >= number {
                    late += 1;
                }
                late == self.len() || self.is_stopped()
            };
            self.gate.0.wait(through, || self.take_all(&quantum));
            if self.is_stopped() {
                return None;
            }
            // Others may be further already. Then nothing was to be decided, or it has been, which is asked after this.
            let to_decide = (0..self.len()).any(|node| self.through(node) == number << 1 | 1);
            if self.is_past(number) {
                quantum = self.latest();
                continue;
            }
            if !quantum.waits && !to_decide {
                match quantum.following() {
                    Some(following) => quantum = following,
                    None => return Some(quantum),
                }
                continue;
            }
            if self.decided.0.fetch_max(number, Ordering::AcqRel) < number {
                self.decide(quantum);
            }
            let over = || self.over.0.load(Ordering::Acquire) >= number;
            let decided = || self.is_past(number) || over() || self.is_stopped();
            self.gate.0.wait(decided, || ());
            if self.is_stopped() {
                return None;
            }
            if !self.is_past(number) {
                return Some(quantum);
            }
            quantum = self.latest();
        }
    }

    /// See [`Signal::through`].
    fn through(&self, node: usize) -> u64 {
        self.signals[node].0.through.load(Ordering::Acquire)
    }

    /// Whether a node had something to say when it was last through with a quantum: its report tells.
    fn speaks(&self, node: usize) -> bool {
        self.through(node) & 1 == 1
    }

    /// All nodes are through with a quantum, and some, or the network, have something to say: begin the next one, or end the stretch.
    fn decide(&self, quantum: Quantum) {
        let waiting_ps = self.exchange(quantum.target_ps);
        let all = self.meeting(waiting_ps);
        let mut stretch = quantum.stretch;
        match stretch.following(quantum.target_ps, all) {
            Some(target_ps) => self.begin(Quantum {
                number: quantum.number + 1,
                target_ps,
                waits: waiting_ps != u64::MAX,
                stretch,
            }),
            None => {
                self.over.0.store(quantum.number, Ordering::Release);
                self.gate.0.open();
            }
        }
    }

    /// Hand over the frames of the quantum that has just ended, at this time. When the first of those that still wait for a link will be sent; 0
    /// where somebody must look at the network.
    fn exchange(&self, until_ps: u64) -> u64 {
        let mut network = self.network();
        let mut frames = Vec::new();
        for port in (0..self.len()).filter(|&node| self.speaks(node)) {
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
        let nodes = (0..self.len()).map(|node| match self.speaks(node) {
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
        let mut seen = 0;
        loop {
            let begins = || self.is_past(seen) || self.is_stopped();
            self.gate.0.wait(begins, || ());
            if self.is_stopped() {
                return;
            }
            match self.follow(self.latest(), thread, threads) {
                Some(last) => seen = last.number,
                None => return,
            }
        }
    }

    /// Run this thread's own nodes.
    fn take_own(&self, quantum: &Quantum, thread: usize, threads: usize) {
        for index in (thread..self.len()).step_by(threads) {
            self.take(index, quantum);
        }
    }

    /// Run the nodes of threads that are late.
    fn take_all(&self, quantum: &Quantum) {
        for index in 0..self.len() {
            self.take(index, quantum);
        }
    }

    /// Run a node through a quantum, if no thread has begun to. A thread that wakes late finds that all have.
    fn take(&self, index: usize, quantum: &Quantum) {
        let (claim, number) = (&self.claims[index].0, quantum.number);
        // Looking first leaves the line to the node's own thread where that is through.
        if claim.load(Ordering::Relaxed) >= number
            || claim.fetch_max(number, Ordering::AcqRel) >= number
        {
            return;
        }
        let mut node = self.node(index);
        let target = node.clock().cycles(quantum.target_ps);
        let result = node.run_until(target);
        let usual = matches!(result, Ok(NodeStatus::Running)) && is_usual(&mut node);
        let report = (!usual).then(|| Report::of(&mut node, result));
        drop(node);
        let signal = &self.signals[index].0;
        signal.fresh.store(!usual, Ordering::Relaxed);
        if let Some(report) = report {
            *self.report(index) = report;
        }
        // Who sees this sees what was stored before.
        let through = number << 1 | u64::from(!usual);
        signal.through.store(through, Ordering::Release);
        self.gate.0.open();
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
            self.executor.begun.0.stop.store(true, Ordering::Release);
            self.executor.gate.0.open();
        }
    }
}
