//! The moment of a snapshot, and the options of a run.
//!
//! A snapshot changes nothing in the run. The run takes the snapshot between two batches of quanta: at the first such time after the
//! trigger has fired at which no window is open. The ends of batches decide when the trace is saved. Therefore no batch ends early for a
//! snapshot.

use std::path::PathBuf;
use std::sync::Arc;

use nodescope_config::quantity::Time;
use nodescope_trace::Event;
use nodescope_window::{Moment, TriggerWatch};

use crate::distribution::Peers;
use crate::monitor::NodeMonitor;
use crate::outcome::Phase;
use crate::snapshot::Origin;

/// A snapshot to be taken.
#[derive(Clone, Debug)]
pub struct Save {
    /// Moment at which the snapshot is taken.
    pub at: Moment,
    /// Name of the snapshot.
    pub name: String,
    /// Path of the snapshot's file.
    pub path: PathBuf,
    /// True if the run ends after the snapshot.
    pub stop: bool,
}

/// Options of a run: its start, and snapshots.
#[derive(Default)]
pub struct Options<'a> {
    /// Hash of the contents of kernel, initramfs and root disk.
    pub image: &'a str,
    /// A snapshot to be taken.
    pub save: Option<Save>,
    /// Snapshot from which the run continues; `None`: the run begins at power-on.
    pub from: Option<&'a Origin>,
    /// Processes over which the nodes are distributed; `None` for a single process. All processes call [`run_with`](crate::run_with) with
    /// the same study.
    pub peers: Option<Arc<dyn Peers>>,
}

/// A snapshot that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Name of the snapshot.
    pub name: String,
    /// Path of the snapshot's file.
    pub path: PathBuf,
    /// Bytes of disk that the snapshot takes.
    pub bytes: u64,
    /// Virtual time at which the snapshot was taken, picoseconds.
    pub virtual_ps: u64,
}

/// Rounds a virtual time in picoseconds for people: down to whole milliseconds, if it is at least one.
pub fn rounded(ps: u64) -> Time {
    const MS: u64 = 1_000_000_000;
    Time(match ps / MS {
        0 => ps,
        whole => whole * MS,
    })
}

/// A snapshot that is waiting for its moment.
pub(crate) struct Saving {
    pub(crate) save: Save,
    /// Watch of the snapshot's trigger; `None` if the console of node 0 shows the moment.
    watch: Option<TriggerWatch>,
    /// True if the user has been notified that the snapshot waits for the end of a window.
    pub(crate) notified: bool,
}

impl Saving {
    pub(crate) fn new(save: Save) -> Self {
        let watch = match &save.at {
            Moment::Boot | Moment::Job => None,
            Moment::Trigger(trigger) => Some(TriggerWatch::new(trigger.clone())),
        };
        Self {
            save,
            watch,
            notified: false,
        }
    }

    /// Observes a recorded event.
    pub(crate) fn observe(&mut self, event: &Event) {
        if let Some(watch) = &mut self.watch {
            watch.observe(event);
        }
    }

    /// Returns whether the snapshot's moment has come. For a trigger, `now_ps` and the observed events decide.
    pub(crate) fn is_due(&mut self, now_ps: u64, monitors: &[NodeMonitor]) -> bool {
        match &mut self.watch {
            Some(watch) => watch.has_fired(now_ps),
            None => monitors.first().is_some_and(|w| match self.save.at {
                Moment::Boot => w.booted,
                _ => w.phase != Phase::Boot,
            }),
        }
    }
}
