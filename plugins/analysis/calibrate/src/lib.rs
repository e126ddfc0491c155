//! Fits the network of a cluster file to measurements.
//!
//! Measurements come from NetPIPE's output ([`netpipe`]) or from a trace ([`trace`]), of a guest cluster or of a real one. [`exchanges`] are
//! of messages that meet others. [`piecewise`] fits lines with breaks to the measurements. [`fit`] derives the costs of a channel from the lines. [`mod@file`] writes these costs as a
//! cluster file, and [`check`](mod@check) compares predictions with times that no cost was fitted to. `docs/calibration.md` is the user's description.

pub mod check;
pub mod exchanges;
pub mod file;
pub mod fit;
pub mod netpipe;
pub mod piecewise;
pub mod trace;

use std::path::PathBuf;

use nodescope_trace::TraceError;
use statrs::statistics::{Data, OrderStatistics};

pub use check::Checked;
pub use exchanges::Exchanges;
pub use file::{ClusterFile, Path as FittedPath};
pub use fit::{Fit, FitOptions, Wire};
pub use piecewise::{Piecewise, Point, Residuals};

/// The measurement at one message size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Size of the message in bytes.
    pub bytes: u64,
    /// Median of the measured times, or the time that NetPIPE printed; nanoseconds.
    pub time: f64,
    /// Number of times that this size was measured; 0 if unknown.
    pub count: usize,
    /// Relative standard deviation of single times, from the distance of their quantiles of 16 and 84 %; 0 if unknown.
    pub spread: f64,
}

/// Part of the times that is left out at either end for a mean, since interrupts disturb some times.
const DISTURBED: f64 = 0.05;

impl Sample {
    /// Returns the median of measured times, nanoseconds; `None` without any.
    pub fn median(bytes: u64, times: Vec<f64>) -> Option<Sample> {
        Sample::of(bytes, times, |times| times.median())
    }

    /// Returns the mean of measured times without the lowest and the highest twentieth, nanoseconds; `None` without any.
    pub fn mean(bytes: u64, times: Vec<f64>) -> Option<Sample> {
        let mut kept = times.clone();
        kept.sort_by(f64::total_cmp);
        let cut = (kept.len() as f64 * DISTURBED) as usize;
        let kept = &kept[cut..kept.len() - cut];
        let mean = kept.iter().sum::<f64>() / kept.len() as f64;
        Sample::of(bytes, times, |_| mean)
    }

    fn of(
        bytes: u64,
        times: Vec<f64>,
        middle: impl Fn(&mut Data<Vec<f64>>) -> f64,
    ) -> Option<Sample> {
        let count = times.len();
        if count == 0 {
            return None;
        }
        let mut times = Data::new(times);
        let time = middle(&mut times);
        let width = times.quantile(0.84) - times.quantile(0.16);
        Some(Sample {
            bytes,
            time,
            count,
            spread: width / 2.0 / time.max(f64::MIN_POSITIVE),
        })
    }
}

/// The measurements on one path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements {
    /// File or other source of the measurements.
    pub source: String,
    /// One-way times, from before the send of a message to after its receive: half a round trip each. Sizes ascend.
    pub one_way: Vec<Sample>,
    /// Times in sends of sizes up to `sent_at_once`, or of all sizes if that is `None`; empty if the measurements show none.
    pub send: Vec<Sample>,
    /// Times in late receives, which began after their messages had come; empty if the measurements show none.
    pub receive: Vec<Sample>,
    /// Largest size in bytes of which most sends returned before their late receives began; `None` if the measurements show none.
    pub sent_at_once: Option<u64>,
    /// Smallest size in bytes of which most sends waited for their late receives; `None` if the measurements show none.
    pub waited: Option<u64>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Reason for which measurements cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", .file.display())]
    Io {
        /// Path of the file.
        file: PathBuf,
        /// Error of the operating system.
        cause: std::io::Error,
    },
    /// A line that NetPIPE does not write.
    #[error("{}:{line}: {what}", .file.display())]
    Line {
        /// Path of the file.
        file: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// A description of the fault.
        what: String,
    },
    /// Measurements to which no channel can be fitted.
    #[error("{from}: {what}")]
    Unusable {
        /// File or other source of the measurements.
        from: String,
        /// Reason for which no channel can be fitted.
        what: String,
    },
    /// A trace that cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
}
