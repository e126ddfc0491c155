//! Why a machine could not be measured.

use std::io;
use std::path::PathBuf;

/// A reason for which nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The system gave no memory for a working set.
    #[error("the system gives no {} MiB of memory for a working set: {source}. Free memory, or raise `ulimit -v`", bytes >> 20)]
    Memory {
        /// Bytes that were asked for.
        bytes: usize,
        /// The system's answer.
        source: io::Error,
    },
    /// The thread could not be bound to a CPU.
    #[error(
        "the thread cannot be bound to CPU {cpu}: {source}. Give this process the CPU by `taskset` or its cgroup"
    )]
    Cpu {
        /// Number of the CPU.
        cpu: usize,
        /// The system's answer.
        source: io::Error,
    },
    /// The system does not tell on which CPUs the thread may run.
    #[error("the system does not tell on which CPUs this thread may run: {0}")]
    Affinity(#[source] io::Error),
    /// A file in which Linux describes the machine could not be read.
    #[error("{} cannot be read: {source}. Mount /proc and /sys", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file in which Linux describes the machine lacks what is needed.
    #[error("{} does not tell {what}. Linux 4.5 or newer does", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// Neither CPUID nor Linux describes the caches.
    #[error(
        "neither CPUID nor /sys/devices/system/cpu tells sizes of caches. A virtual machine needs CPUID leaf 4 or 0x8000001D of its host"
    )]
    NoCaches,
}
