//! Reasons for which there are no counts.

use std::io;
use std::path::PathBuf;

/// Reason for which events could not be counted, or counts could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CountersError {
    /// The contents of a file contradict themselves or do not have the format.
    #[error("{}:{line}:{column}: {message}", .file.display())]
    Refused {
        /// Path of the file.
        file: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The problem and what to do.
        message: String,
    },
    /// Files that do not fit together, a folder without files to read, or a file of no known format.
    #[error("{}: {message}", .path.display())]
    Files {
        /// File or folder at fault.
        path: PathBuf,
        /// The problem and what to do.
        message: String,
    },
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// File or folder that cannot be read.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The processor, or the virtual machine, has no hardware counters for programs.
    #[error(
        "this host has no hardware counters ({cause}); measure on a machine with a PMU, where perf stat -e cycles:u counts, and give the file that nodescope counters --json or perf stat -j -o writes there as [study.core] counters"
    )]
    NoPmu {
        /// Error of the system.
        cause: io::Error,
    },
    /// The system forbids counting.
    #[error(
        "the system forbids counting ({cause}); as root run sysctl kernel.perf_event_paranoid=2, and in a container allow perf_event_open"
    )]
    Forbidden {
        /// Error of the system.
        cause: io::Error,
    },
    /// A counter cannot be opened or read for any other reason.
    #[error("cannot count {event}: {cause}")]
    Counter {
        /// Name of the event whose counter cannot be opened or read.
        event: String,
        /// Error of the system.
        cause: io::Error,
    },
    /// The command cannot be started.
    #[error("cannot start {command}: {cause}")]
    Start {
        /// Name of the command.
        command: String,
        /// Error of the system.
        cause: io::Error,
    },
    /// The system does not let this process follow the processes that a launcher starts.
    #[error(
        "cannot follow the processes of the command ({cause}); put the counting behind the launcher instead: mpirun -n 4 nodescope counters --each --json FOLDER -- ./program"
    )]
    Follow {
        /// Error of the system.
        cause: io::Error,
    },
    /// A processor whose events are in no table.
    #[error(
        "the events of this processor are in no table ({processor}); measure with perf stat, LIKWID or PAPI and give their file as [study.core] counters"
    )]
    Processor {
        /// The processor, as /proc/cpuinfo describes it.
        processor: String,
    },
    /// Nothing usable was counted; the text is the reason.
    #[error("{0}")]
    Nothing(String),
}
