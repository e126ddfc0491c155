//! When a snapshot is taken, and how a run ends or goes on behind it.
//!
//! A snapshot changes nothing in the run. It is taken where the run looks at its nodes anyway, between two batches of quanta: the first time
//! after its trigger has fired that no window is open. Where batches end decides where the trace is saved, so none ends for
//! a snapshot's sake.

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
    /// When.
    pub at: Moment,
    /// Its name.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// The run ends behind it.
    pub stop: bool,
}

/// Where a run begins, and what it leaves besides its results.
#[derive(Default)]
pub struct Options<'a> {
    /// Identifies the contents of kernel, initramfs and root disk.
    pub image: &'a str,
    /// A snapshot to be taken.
    pub save: Option<Save>,
    /// The snapshot that the run begins from; none: it begins at power-on.
    pub from: Option<&'a Origin>,
    /// The processes that the nodes run in, where there are several. All call [`run_with`](crate::run_with) with the same study.
    pub peers: Option<Arc<dyn Peers>>,
}

/// A snapshot that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Its name.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// Bytes of disk that it takes.
    pub bytes: u64,
    /// Virtual time at which it was taken, picoseconds.
    pub virtual_ps: u64,
}

/// A virtual time for people: from a millisecond on, in whole ones.
pub fn rounded(ps: u64) -> Time {
    const MS: u64 = 1_000_000_000;
    Time(match ps / MS {
        0 => ps,
        whole => whole * MS,
    })
}

/// A snapshot on its way.
pub(crate) struct Saving {
    pub(crate) save: Save,
    /// None: the console tells.
    watch: Option<TriggerWatch>,
    /// The user knows that it waits for the end of a window.
    pub(crate) told: bool,
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
            told: false,
        }
    }

    /// An event has been recorded.
    pub(crate) fn observe(&mut self, event: &Event) {
        if let Some(watch) = &mut self.watch {
            watch.observe(event);
        }
    }

    /// Whether its trigger has fired.
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
