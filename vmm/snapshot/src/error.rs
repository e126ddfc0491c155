//! Errors of snapshots. Each error has the file and the offset in the file.

use std::io;
use std::path::{Path, PathBuf};

use nodescope_memory::{LayoutError, MapError};
use thiserror::Error;

/// Why a snapshot cannot be written or read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation, as in "read".
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Another kind of file.
    #[error("{}: offset 0: not a snapshot of nodescope; `nodescope run --snapshot-at` writes one", path.display())]
    NotSnapshot {
        /// The file.
        path: PathBuf,
    },
    /// Another version has written it.
    #[error(
        "{}: offset {offset}: written by nodescope {nodescope} in format {format}, and this is nodescope {} with format {}; take the snapshot anew",
        path.display(), crate::format::NODESCOPE, crate::format::FORMAT
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Offset of the version.
        offset: u64,
        /// The version that wrote the file.
        nodescope: String,
        /// Its format.
        format: u32,
    },
    /// The file is not what was written.
    #[error("{}: offset {offset}: damaged: {what}; take the snapshot anew", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset of the damaged part.
        offset: u64,
        /// The problem.
        what: String,
    },
    /// No section of this name.
    #[error("{}: the snapshot has no section \"{name}\"", path.display())]
    NoSection {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A section of another kind than the requested kind.
    #[error("{}: offset {offset}: section \"{name}\" holds {found}, not {wanted}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// Offset of the section.
        offset: u64,
        /// The section.
        name: String,
        /// The kind of the section.
        found: &'static str,
        /// The requested kind.
        wanted: &'static str,
    },
    /// The bytes of a section are no value of the requested type.
    #[error("{}: offset {offset}: section \"{name}\" cannot be read: {cause}; the snapshot was not written by this nodescope", path.display())]
    Decode {
        /// The file.
        path: PathBuf,
        /// Offset of the section.
        offset: u64,
        /// The section.
        name: String,
        /// Why.
        cause: String,
    },
    /// A value that cannot be encoded.
    #[error("cannot encode section \"{name}\" of {}: {cause}", path.display())]
    Encode {
        /// The file.
        path: PathBuf,
        /// The section.
        name: String,
        /// Why.
        cause: String,
    },
    /// A section's name is empty, too long, or there already.
    #[error("{}: \"{}\" cannot be the name of a section: {why}", path.display(), name.escape_debug())]
    Name {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// More than the format holds.
    #[error("{}: section \"{name}\" would have {bytes} bytes, and a section that is read at once may have {most}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The section.
        name: String,
        /// Its length.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// RAM of another layout.
    #[error("{}: offset {offset}: section \"{name}\" is the RAM of another node: {found}, and this node has {own}", path.display())]
    Layout {
        /// The file.
        path: PathBuf,
        /// Offset of the section.
        offset: u64,
        /// The section.
        name: String,
        /// Regions of the snapshot.
        found: String,
        /// Regions of the node.
        own: String,
    },
    /// The host does not map the file.
    #[error("{}: {source}", path.display())]
    Map {
        /// The file.
        path: PathBuf,
        /// Why.
        source: MapError,
    },
    /// The host gives no memory.
    #[error(transparent)]
    Memory(#[from] LayoutError),
}

/// Returns a function for `map_err` that reports a failure of the operating system.
pub(crate) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> SnapshotError {
    move |source| SnapshotError::Io {
        path: path.into(),
        doing,
        source,
    }
}
