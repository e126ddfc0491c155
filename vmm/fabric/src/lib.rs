//! The network between the nodes: a virtual switch in virtual time, frame counts, captures.
//!
//! The switch is called between quanta, with all frames that the nodes sent in the last quantum. If any node can send at the beginning of a
//! quantum, the quantum is no longer than [`Switch::lookahead`]. So every delivery lies in a later quantum, and the result does not depend
//! on the order in which the host ran the nodes.

mod capture;
mod switch;

pub use capture::{Capture, CaptureError};
pub use switch::{
    Delivery, LinkConfig, LinkError, PortCounts, PortState, SentFrame, Switch, SwitchStateError,
};

/// Picoseconds in a second.
pub const PS_PER_SECOND: u64 = 1_000_000_000_000;
