//! The moment of a snapshot, and the options of a run.
//!
//! A snapshot changes nothing in the run. The run takes the snapshot between two batches of quanta: at the first such time after the
//! trigger has fired at which no window is open. The ends of batches decide when the trace is saved. Therefore no batch ends early for a
//! snapshot.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nodescope_config::quantity::Time;
use nodescope_trace::Event;
use nodescope_window::{Moment, TriggerWatch};

use crate::distribution::Peers;
use crate::monitor::NodeMonitor;
use crate::outcome::Phase;
use crate::snapshot::Origin;

/// When snapshots are taken.
#[derive(Clone, Debug)]
pub enum When {
    /// Once, at this moment.
    At(Moment),
    /// Each time that somebody sets the flag, which the snapshot clears. The last snapshot replaces the others. Of several processes, the
    /// master's flag counts.
    Requested(Arc<AtomicBool>),
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::At(moment) => moment.fmt(f),
            When::Requested(_) => f.write_str("a time of the host"),
        }
    }
}

/// A snapshot to be taken.
#[derive(Clone, Debug)]
pub struct Save {
    /// When the snapshot is taken.
    pub when: When,
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
        let watch = match &save.when {
            When::At(Moment::Trigger(trigger)) => Some(TriggerWatch::new(trigger.clone())),
            _ => None,
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

    /// Returns whether the snapshot's moment has come. For a trigger, `now_ps` and the observed events decide. `is_requested` returns
    /// whether all processes know that a snapshot is requested.
    pub(crate) fn is_due(
        &mut self,
        now_ps: u64,
        monitors: &[NodeMonitor],
        is_requested: impl FnOnce(&AtomicBool) -> bool,
    ) -> bool {
        let first = monitors.first();
        match (&self.save.when, &mut self.watch) {
            (When::At(_), Some(watch)) => watch.has_fired(now_ps),
            (When::At(Moment::Boot), _) => first.is_some_and(|w| w.booted),
            (When::At(_), None) => first.is_some_and(|w| w.phase != Phase::Boot),
            (When::Requested(flag), _) => is_requested(flag),
        }
    }
}
