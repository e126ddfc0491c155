//! Nodes on host threads, in quanta of virtual time.
//!
//! All nodes run to the same virtual time, then meet; a quantum is no longer than the fabric's lookahead, so nothing that
//! one node does can reach another before the quantum's end. Which thread runs which node, and how many threads there
//! are, changes nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nodescope_machine::node::{Node, NodeError, NodeStatus};

/// Spins before a waiting thread offers its core to others.
const SPINS: u32 = 4000;

struct Slot {
    node: Node,
    result: Result<NodeStatus, NodeError>,
}

/// The nodes of a cluster and the state that the host threads share.
pub struct Executor {
    slots: Vec<Mutex<Slot>>,
    /// Number of the current quantum; advances when a quantum may begin.
    quantum: AtomicU64,
    /// End of the quantum in picoseconds.
    target_ps: AtomicU64,
    /// Next node to be taken by a thread.
    next: AtomicUsize,
    /// Nodes that are through with the quantum.
    finished: AtomicUsize,
    stop: AtomicBool,
}

impl Executor {
    /// Take the nodes.
    pub fn new(nodes: Vec<Node>) -> Self {
        let slot = |node| {
            Mutex::new(Slot {
                node,
                result: Ok(NodeStatus::Running),
            })
        };
        Self {
            slots: nodes.into_iter().map(slot).collect(),
            quantum: AtomicU64::new(0),
            target_ps: AtomicU64::new(0),
            next: AtomicUsize::new(usize::MAX),
            finished: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Slot> {
        // A panic of a worker ends the process through the scope; the data is never used after it.
        self.slots[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Look at a node between quanta.
    pub fn with_node<R>(&self, index: usize, f: impl FnOnce(&mut Node) -> R) -> R {
        f(&mut self.lock(index).node)
    }

    /// Run `body` with `threads` host threads at its service. Each call of the function it is given runs all nodes to a
    /// virtual time and reports how each came out, the first error standing for all.
    pub fn run<R>(
        &self,
        threads: usize,
        body: impl FnOnce(&mut dyn FnMut(u64) -> Result<Vec<NodeStatus>, NodeError>) -> R,
    ) -> R {
        let helpers = threads.clamp(1, self.len().max(1)) - 1;
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|| self.help());
            }
            let result = body(&mut |target_ps| self.quantum(target_ps));
            self.stop.store(true, Ordering::Release);
            self.quantum.fetch_add(1, Ordering::AcqRel);
            result
        })
    }

    fn quantum(&self, target_ps: u64) -> Result<Vec<NodeStatus>, NodeError> {
        self.target_ps.store(target_ps, Ordering::Relaxed);
        self.finished.store(0, Ordering::Relaxed);
        self.next.store(0, Ordering::Release);
        self.quantum.fetch_add(1, Ordering::AcqRel);
        self.take_nodes();
        wait(|| self.finished.load(Ordering::Acquire) >= self.len());
        (0..self.len())
            .map(|i| std::mem::replace(&mut self.lock(i).result, Ok(NodeStatus::Running)))
            .collect()
    }

    fn help(&self) {
        let mut seen = 0;
        loop {
            wait(|| self.quantum.load(Ordering::Acquire) != seen);
            seen = self.quantum.load(Ordering::Acquire);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            self.take_nodes();
        }
    }

    fn take_nodes(&self) {
        loop {
            // A thread that wakes late finds no node left, or takes one of the next quantum, which has begun by then:
            // the target is written before `next`.
            let taken = self
                .next
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                    (n < self.len()).then_some(n + 1)
                });
            let Ok(index) = taken else { return };
            let mut slot = self.lock(index);
            let target = slot
                .node
                .clock()
                .cycles(self.target_ps.load(Ordering::Acquire));
            slot.result = slot.node.run_until(target);
            drop(slot);
            self.finished.fetch_add(1, Ordering::AcqRel);
        }
    }
}

fn wait(done: impl Fn() -> bool) {
    let mut spins = 0;
    while !done() {
        if spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
