//! Watch for a trigger that belongs to no window.

use nodescope_hypercall::{Function, Peer};
use nodescope_trace::{Body, Event};
use serde::{Deserialize, Serialize};

use crate::spec::Trigger;

/// Watch for a trigger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerWatch {
    trigger: Trigger,
    /// Number of calls or markers that the trigger has counted.
    seen: u64,
    fired: bool,
}

impl TriggerWatch {
    /// Returns a watch that has seen no event yet.
    pub fn new(trigger: Trigger) -> Self {
        Self {
            trigger,
            seen: 0,
            fired: false,
        }
    }

    /// Processes one event; see [`crate::WindowDriver::observe`].
    pub fn observe(&mut self, event: &Event) {
        self.fired |= counts(&self.trigger, &mut self.seen, event);
    }

    /// Returns whether the trigger has fired by this time, picoseconds. [`Trigger::Guest`] never fires here.
    pub fn has_fired(&mut self, now_ps: u64) -> bool {
        self.fired |= match self.trigger {
            Trigger::Immediately => true,
            Trigger::Time { ps } => now_ps >= ps,
            _ => false,
        };
        self.fired
    }

    /// Returns the virtual time, in picoseconds, until which the result of [`TriggerWatch::has_fired`] does not change unless events are
    /// observed.
    pub fn next_ps(&self) -> u64 {
        match self.trigger {
            _ if self.fired => u64::MAX,
            Trigger::Immediately => 0,
            Trigger::Time { ps } => ps,
            _ => u64::MAX,
        }
    }

    /// Returns the MPI function whose calls the trigger counts; `None` for other triggers.
    pub fn function(&self) -> Option<Function> {
        match self.trigger {
            Trigger::MpiCall { function, .. } => Some(function),
            _ => None,
        }
    }
}

/// Adds an event that the trigger counts to `seen`. Returns true if the event brings the count to the trigger's number or beyond.
pub(crate) fn counts(trigger: &Trigger, seen: &mut u64, event: &Event) -> bool {
    match (trigger, &event.body) {
        (
            Trigger::MpiCall {
                function,
                call,
                rank,
            },
            Body::Mpi(mpi),
        ) if mpi.record.function == *function && mpi.record.rank == Peer::Rank(*rank) => {
            *seen = seen.saturating_add(mpi.record.calls);
            *seen >= *call
        }
        (Trigger::Marker { name, occurrence }, Body::Mark(mark)) if mark == name => {
            *seen = seen.saturating_add(1);
            *seen >= *occurrence
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodescope_trace::Stamp;

    fn mark(name: &str) -> Event {
        Event {
            node: 0,
            sequence: 0,
            stamp: Stamp::default(),
            body: Body::Mark(name.into()),
        }
    }

    #[test]
    fn a_marker_fires_at_its_occurrence_and_a_time_when_it_is_reached() {
        let mut watch = TriggerWatch::new(Trigger::Marker {
            name: "loop".into(),
            occurrence: 2,
        });
        assert_eq!(watch.next_ps(), u64::MAX);
        for (name, fired) in [
            ("loop", false),
            ("other", false),
            ("loop", true),
            ("x", true),
        ] {
            watch.observe(&mark(name));
            assert_eq!(watch.has_fired(0), fired, "{name}");
        }
        let mut watch = TriggerWatch::new(Trigger::Time { ps: 10 });
        assert_eq!((watch.has_fired(9), watch.next_ps()), (false, 10));
        assert_eq!((watch.has_fired(10), watch.next_ps()), (true, u64::MAX));
    }
}
