//! Errors of exports and imports.

use std::io;
use std::path::{Path, PathBuf};

use nodescope_trace::{TraceError, WriteError};

use crate::otf2::Otf2Error;

/// Reason for which a trace could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The operating system reports an error.
    #[error("cannot {action} {}: {cause}", .file.display())]
    Io {
        /// The operation that failed, such as "write".
        action: &'static str,
        /// Path of the file or folder.
        file: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The trace has no MPI call of a known rank, so that the files would be empty.
    #[error("the trace {} holds no MPI call of a known rank: there is nothing to export", .0.display())]
    NoCalls(PathBuf),
    /// The trace lacks the requested MPI program.
    #[error("there is no program {asked}; the trace has these MPI programs: {programs}")]
    NoSuchProgram {
        /// Number of the requested program.
        asked: usize,
        /// The programs of the trace, for people.
        programs: String,
    },
    /// The format knows one `MPI_COMM_WORLD`, and the trace has several programs, of which none was requested.
    #[error(
        "{format} holds one MPI program, and the trace has {count}; choose one by --program N: {programs}"
    )]
    SeveralPrograms {
        /// Name of the format.
        format: &'static str,
        /// Number of programs in the trace.
        count: usize,
        /// The programs of the trace, for people.
        programs: String,
    },
    /// The format needs every rank, and the trace lacks one.
    #[error(
        "{format} needs every rank of the program, and the trace has nothing of rank {rank} of {size}"
    )]
    MissingRank {
        /// Name of the format.
        format: &'static str,
        /// The first missing rank.
        rank: u32,
        /// Number of ranks in the program.
        size: u32,
    },
    /// An event is of a node that the trace's header lacks.
    #[error(
        "event {event} of the trace is of node {node}, but its header has {nodes} nodes; the trace is damaged"
    )]
    NoSuchNode {
        /// Number of the event, from 0.
        event: u64,
        /// Number of the event's node.
        node: u32,
        /// Number of nodes in the header.
        nodes: usize,
    },
    /// The header has more virtual CPUs than Paraver's files may have lines for.
    #[error(
        "the trace's header states {stated} virtual CPUs; Paraver's files have a line for each, of at most {most}; the trace is damaged"
    )]
    TooManyCpus {
        /// Number of virtual CPUs of all nodes.
        stated: u64,
        /// Largest supported number.
        most: u64,
    },
    /// An option has an invalid value.
    #[error("{0}")]
    Option(String),
    /// The OTF2 library is missing or reports an error.
    #[error(transparent)]
    Otf2(#[from] Otf2Error),
}

impl ExportError {
    /// Returns a function for `map_err`, which adds the operation and the file to an I/O error.
    pub(crate) fn io(
        action: &'static str,
        file: &Path,
    ) -> impl FnOnce(io::Error) -> ExportError + use<> {
        let file = file.to_path_buf();
        move |cause| ExportError::Io {
            action,
            file,
            cause,
        }
    }
}

/// Reason for which a trace of another tool could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The operating system reports an error.
    #[error("cannot {action} {}: {cause}", .file.display())]
    Io {
        /// The operation that failed, such as "read".
        action: &'static str,
        /// Path of the file or folder.
        file: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The file has no known format.
    #[error("{} {what}; what can be imported is {}", .file.display(), crate::import::KNOWN)]
    Unknown {
        /// Path of the file or folder.
        file: PathBuf,
        /// What the file looks like, in words.
        what: String,
    },
    /// A line of the file is wrong.
    #[error("{}:{line}: {what}", .file.display())]
    Line {
        /// Path of the file.
        file: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// A description of the fault.
        what: String,
    },
    /// Each line is valid, but the content as a whole is inconsistent.
    #[error("{}: {what}", .file.display())]
    Content {
        /// Path of the file.
        file: PathBuf,
        /// A description of the fault.
        what: String,
    },
    /// The OTF2 library is missing or reports an error.
    #[error(transparent)]
    Otf2(#[from] Otf2Error),
    /// The new trace cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl ImportError {
    pub(crate) fn io(
        action: &'static str,
        file: &Path,
    ) -> impl FnOnce(io::Error) -> ImportError + use<> {
        let file = file.to_path_buf();
        move |cause| ImportError::Io {
            action,
            file,
            cause,
        }
    }
}
