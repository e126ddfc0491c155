//! Counts what a trigger waits for.

use std::fmt;

use nodescope_hypercall::Peer;
use nodescope_trace::{Body, Event};
use serde::{Deserialize, Serialize};

use crate::spec::Trigger;

/// The count of what a trigger waits for: calls of an MPI function, or markers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerCount(u64);

impl TriggerCount {
    /// Takes an event, and returns whether it fires the trigger, or comes after one that did. `name`: by which a guest opens what the
    /// trigger belongs to.
    pub fn observe(&mut self, trigger: &Trigger, name: &str, event: &Event) -> bool {
        let (more, wanted) = match (trigger, &event.body) {
            (
                Trigger::MpiCall {
                    function,
                    call,
                    rank,
                },
                Body::Mpi(mpi),
            ) if mpi.record.function == *function && mpi.record.rank == Peer::Rank(*rank) => {
                (mpi.record.calls, *call)
            }
            (Trigger::Marker { name, occurrence }, Body::Mark(mark)) if mark == name => {
                (1, *occurrence)
            }
            (Trigger::Guest, Body::WindowOpen(opened)) if opened == name => (1, 1),
            _ => return false,
        };
        self.0 = self.0.saturating_add(more);
        self.0 >= wanted
    }

    /// Returns how many have been seen.
    pub fn seen(self) -> u64 {
        self.0
    }
}

/// A moment of a run that is not a window's, such as that of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// The job starts on the first node.
    Job,
    /// A window with this trigger would open.
    Trigger(Trigger),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Job => f.write_str("the start of the job"),
            Moment::Trigger(trigger) => trigger.fmt(f),
        }
    }
}

impl Trigger {
    /// The virtual time at which it fires, picoseconds, if nothing but the time decides.
    pub fn time_ps(&self) -> Option<u64> {
        match self {
            Trigger::Immediately => Some(0),
            Trigger::Time { ps } => Some(*ps),
            _ => None,
        }
    }
}
