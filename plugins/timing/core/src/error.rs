//! Reasons why the core model has no answer.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Reason for which the cycles of a core cannot be modelled.
#[derive(Debug, Error)]
pub enum CoreError {
    /// No `llvm-mca` is installed.
    #[error(
        "no llvm-mca is in PATH, and cycles of a core need it; install the Debian package {PACKAGE}"
    )]
    Missing,
    /// LLVM has no core of this name.
    #[error("{name:?} is no core that {tool} knows; {hint}")]
    Unknown {
        /// Name of the core that was requested.
        name: String,
        /// Name and version of the tool that was asked.
        tool: String,
        /// Similar names, or how to list all names.
        hint: String,
    },
    /// The name is a level of the instruction set and not a single core.
    #[error(
        "{0:?} is a level of the instruction set, not a core; name a core, such as \"skylake-avx512\" or \"znver4\""
    )]
    Level(String),
    /// LLVM compiles for the core, but has no timing of it.
    #[error(
        "{tool} knows no timing of {name:?}; name a core that it can schedule, such as \"skylake-avx512\" or \"znver4\""
    )]
    NoSchedule {
        /// Name of the core that was requested.
        name: String,
        /// Name and version of the tool that was asked.
        tool: String,
    },
    /// The installed `llvm-mca` cannot be started.
    #[error("cannot run {}: {error}; reinstall the Debian package {PACKAGE}", path.display())]
    Start {
        /// Path of the `llvm-mca`.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The output of `llvm-mca` has a form that this version does not understand.
    #[error("{} answers what cannot be understood: {what}; install the Debian package {PACKAGE}", path.display())]
    Answer {
        /// Path of the `llvm-mca`.
        path: PathBuf,
        /// Description of what is wrong with the output.
        what: String,
    },
    /// A file of the cache, or a temporary file, cannot be used.
    #[error("cannot use {}: {error}; name another folder, or free space", path.display())]
    File {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// No block could be modelled, so there is no mean for the other blocks.
    #[error("none of the {blocks} blocks can be modelled; the hottest, at {address:#x}: {reason}")]
    Nothing {
        /// Number of blocks that were given.
        blocks: usize,
        /// Address of the block with the most executed instructions.
        address: u64,
        /// Reason for which this block is not modelled.
        reason: String,
    },
}

/// Debian package with a suitable version of `llvm-mca`.
pub const PACKAGE: &str = "llvm-22";
