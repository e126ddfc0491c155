//! How a node goes from one quantum to the next within the code that runs its vCPU.

use std::sync::Arc;

use nodescope_machine::board::Pace;
use nodescope_machine::clock::NodeClock;

use crate::meetings::{Meetings, Quantum};

/// Lets a node go on as long as [`Meetings::go_on`] does.
pub struct NodePace {
    pub meetings: Arc<Meetings>,
    pub node: usize,
    pub clock: NodeClock,
    /// The one that the node is in.
    pub quantum: Quantum,
}

impl Pace for NodePace {
    fn next(&mut self) -> Option<u64> {
        self.quantum = self.meetings.go_on(self.node, self.quantum)?;
        Some(self.clock.cycles(self.quantum.target_ps))
    }
}
