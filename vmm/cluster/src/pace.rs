//! Continues a node from one quantum to the next within the code that runs the node's vCPU.

use std::sync::Arc;

use nodescope_machine::clock::NodeClock;
use nodescope_machine::motherboard::Pace;

use crate::barrier::{Quantum, QuantumBarrier};

/// Lets a node continue as long as [`QuantumBarrier::arrive_and_wait`] returns a quantum.
pub struct NodePace {
    pub barrier: Arc<QuantumBarrier>,
    pub node: usize,
    pub clock: NodeClock,
    /// Quantum that the node is in.
    pub quantum: Quantum,
}

impl Pace for NodePace {
    fn next(&mut self) -> Option<u64> {
        self.quantum = self.barrier.arrive_and_wait(self.node, self.quantum)?;
        Some(self.clock.cycles(self.quantum.target_ps))
    }
}
