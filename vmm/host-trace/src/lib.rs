//! Traces of MPI programs on real machines.
//!
//! On real hardware no one serves the tracer's hypercalls. The tracer therefore writes each of them, with the time, to a log: a file for
//! each process, whose format `guest-images/tracer/mpi-log.h` defines. This crate builds the tracer ([`tracer`]), reads such logs
//! ([`log`]), and merges them into a trace like that of a run in guests ([`merge()`]).
//!
//! Times are those of the machine's own clock, and differ from run to run. Instructions are not counted: all stamps have 0. All processes
//! of a node use the same clock. Clocks of different nodes agree only as well as the nodes' clocks of day. This matters to analyses of when
//! messages arrived, but not to predictions, which use what each rank does between its calls.

pub mod log;
mod merge;
pub mod tracer;

use std::io;
use std::path::PathBuf;

use nodescope_hypercall::HypercallError;
use nodescope_trace::WriteError;

pub use merge::{SUFFIX, Summary, merge};

/// Reason why no trace was made.
#[derive(Debug, thiserror::Error)]
pub enum HostTraceError {
    /// A file or folder cannot be used.
    #[error("cannot {action} {}: {cause}", .path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Error that the operating system returned.
        cause: io::Error,
    },
    /// No process has left a log.
    #[error(
        "no process was traced: the program is linked statically, has no MPI, ended before MPI_Init was done, or its launcher did not pass LD_PRELOAD on"
    )]
    NothingTraced,
    /// A file that is no log.
    #[error("{} is no log of the tracer: {what}", .path.display())]
    NoLog {
        /// Path of the file.
        path: PathBuf,
        /// Reason why the file is no log.
        what: String,
    },
    /// A log with something in it that the tracer does not write.
    #[error("{} is damaged at byte {at}: {what}", .path.display())]
    Damaged {
        /// Path of the log.
        path: PathBuf,
        /// Offset of the damage, bytes.
        at: u64,
        /// Description of the damage.
        what: String,
    },
    /// A log with a call that cannot be decoded.
    #[error("{} is damaged at byte {at}", .path.display())]
    Call {
        /// Path of the log.
        path: PathBuf,
        /// Offset of the call in the log, bytes.
        at: u64,
        /// Reason why the call cannot be decoded.
        #[source]
        cause: HypercallError,
    },
    /// The trace cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The tracer does not compile here.
    #[error("the tracer cannot be built here: {0}")]
    Build(String),
}

impl HostTraceError {
    /// Returns a closure that turns an I/O error into a [`HostTraceError`], for `map_err`.
    fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> HostTraceError {
        let path = path.into();
        move |cause| HostTraceError::Io {
            action,
            path,
            cause,
        }
    }
}
