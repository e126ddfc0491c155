//! Why a snapshot cannot be written or read.

use std::io;
use std::path::PathBuf;

use nodescope_memory::LayoutError;
use thiserror::Error;

use crate::format::VERSION;

/// Why a snapshot cannot be written or read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The operating system says no.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// Another kind of file.
    #[error("{} is no snapshot: its first bytes are those of another kind of file", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A format that this program does not know.
    #[error(
        "{}: byte 8: the snapshot has format version {found}, this nodescope reads version {VERSION}; take the snapshot again, or use the nodescope that wrote it", .path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Bytes that are not as they were written.
    #[error("{}: byte {offset}: the snapshot is damaged: {problem}; take it again", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damage is, or begins.
        offset: u64,
        /// The problem.
        problem: String,
    },
    /// A section that is not there, or is of another kind.
    #[error("{}: the snapshot has no section {name:?} of {kind}; it was written by nodescope {program}", .path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The section.
        name: String,
        /// What it should hold.
        kind: &'static str,
        /// The program's version.
        program: String,
    },
    /// Memory of other sizes than the node's.
    #[error("{}: section {name:?} is the memory of another node: its regions are {found:x?}, and the node's are {expected:x?}", .path.display())]
    Layout {
        /// The file.
        path: PathBuf,
        /// The section.
        name: String,
        /// Addresses and lengths in the file.
        found: Vec<(u64, u64)>,
        /// The node's.
        expected: Vec<(u64, u64)>,
    },
    /// The host cannot map memory.
    #[error(transparent)]
    Memory(#[from] LayoutError),
    /// A state that cannot be encoded, or a section that cannot be written.
    #[error("section {name:?} cannot be written: {problem}")]
    Section {
        /// The section.
        name: String,
        /// The problem.
        problem: String,
    },
}

impl SnapshotError {
    /// Returns whether the host is at fault, and not the file or who asks for it.
    pub fn is_hosts(&self) -> bool {
        match self {
            SnapshotError::Io { source, .. } => source.kind() != io::ErrorKind::NotFound,
            SnapshotError::Memory(_) => true,
            _ => false,
        }
    }
}
