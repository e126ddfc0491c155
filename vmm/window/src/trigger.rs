//! Moments of a run other than those of windows.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::spec::Trigger;

/// Moment of a run at which something other than a window happens, such as a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// The first node has booted, and is about to ask for its identity.
    Boot,
    /// The job starts on the first node.
    Job,
    /// A window with this trigger would open.
    Trigger(Trigger),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Boot => f.write_str("the end of the first node's boot"),
            Moment::Job => f.write_str("the start of the job"),
            Moment::Trigger(trigger) => trigger.fmt(f),
        }
    }
}

impl Trigger {
    /// Returns the virtual time at which the trigger fires, picoseconds, if the trigger depends only on time.
    pub fn time_ps(&self) -> Option<u64> {
        match self {
            Trigger::Immediately => Some(0),
            Trigger::Time { ps } => Some(*ps),
            _ => None,
        }
    }
}
