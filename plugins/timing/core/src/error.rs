//! Reasons why the core model has no answer.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why the cycles of a core cannot be modelled.
#[derive(Debug, Error)]
pub enum CoreError {
    /// No `llvm-mca` is installed.
    #[error(
        "no llvm-mca is in PATH, and cycles of a core need it; install the Debian package {PACKAGE}"
    )]
    Missing,
    /// The name is no core of LLVM.
    #[error("{name:?} is no core that {tool} knows; {hint}")]
    Unknown {
        /// The name.
        name: String,
        /// The tool that was asked.
        tool: String,
        /// Near names, or how to list all.
        hint: String,
    },
    /// The name stands for no single core.
    #[error(
        "{0:?} is a level of the instruction set, not a core; name a core, such as \"skylake-avx512\" or \"znver4\""
    )]
    Level(String),
    /// LLVM compiles for the core, but does not know its timing.
    #[error(
        "{tool} knows no timing of {name:?}; name a core that it can schedule, such as \"skylake-avx512\" or \"znver4\""
    )]
    NoSchedule {
        /// The name.
        name: String,
        /// The tool that was asked.
        tool: String,
    },
    /// The program does not start or does not end well.
    #[error("cannot run {}: {error}; reinstall the Debian package {PACKAGE}", path.display())]
    Start {
        /// The program.
        path: PathBuf,
        /// The reason of the system.
        error: io::Error,
    },
    /// The program says something that this version does not understand.
    #[error("{} answers what cannot be understood: {what}; install the Debian package {PACKAGE}", path.display())]
    Answer {
        /// The program.
        path: PathBuf,
        /// The part of the answer.
        what: String,
    },
    /// A file of the cache, or a temporary one.
    #[error("cannot use {}: {error}; name another folder, or free space", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The reason of the system.
        error: io::Error,
    },
    /// No block could be modelled, so that nothing stands for the rest.
    #[error("none of the {blocks} blocks can be modelled; the hottest, at {address:#x}: {reason}")]
    Nothing {
        /// Blocks that were given.
        blocks: usize,
        /// Address of the block with most instructions.
        address: u64,
        /// Why this block is not modelled.
        reason: String,
    },
}

/// Debian's package that brings a good version.
pub const PACKAGE: &str = "llvm-22";
