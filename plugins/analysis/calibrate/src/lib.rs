//! Fits the network of a cluster file to measurements.
//!
//! Measurements come from NetPIPE's output ([`netpipe`]) or from a trace ([`trace`]), of a guest cluster or of a real one. Lines
//! with breaks are fitted to it ([`piecewise`]), the costs of a channel follow ([`fit`]), and a cluster file has them ([`mod@file`]).
//! `docs/calibration.md` is the user's description.

pub mod file;
pub mod fit;
pub mod netpipe;
pub mod piecewise;
pub mod trace;

use std::path::PathBuf;

use nodescope_trace::TraceError;

pub use file::{ClusterFile, Path as FittedPath};
pub use fit::{Fit, FitOptions};
pub use piecewise::{Piecewise, Point, Residuals};

/// The measurement at one message size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Size of the message in bytes.
    pub bytes: u64,
    /// The median, nanoseconds.
    pub time: f64,
    /// Number of times that this size was measured; 0 if unknown.
    pub count: usize,
}

/// The measurements on one path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements {
    /// File or other source of the measurements.
    pub source: String,
    /// A message from one rank to the other, from before its send to after its receive: half a round trip. Sizes ascend.
    pub one_way: Vec<Sample>,
    /// The time in sends that do not wait for their receives; empty if not visible.
    pub send: Vec<Sample>,
    /// The time in receives whose message was there before; empty if not visible.
    pub receive: Vec<Sample>,
    /// Sizes of messages whose sends returned before their receives began: largest.
    pub sent_at_once: Option<u64>,
    /// Sizes of messages whose sends waited for their late receives: smallest.
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
        /// The line, from 1.
        line: usize,
        /// A description of the fault.
        what: String,
    },
    /// Measurements from which nothing follows.
    #[error("{from}: {what}")]
    Unusable {
        /// File or other source of the measurements.
        from: String,
        /// Reason for which nothing follows from the measurements.
        what: String,
    },
    /// A trace that cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
}
