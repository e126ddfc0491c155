//! Errors of snapshots. Each error but [`SnapshotError::Memory`] has the file's path. Most errors about stored contents also have the
//! offset in the file, in bytes.

use std::io;
use std::path::{Path, PathBuf};

use nodescope_memory::{LayoutError, MapError};
use thiserror::Error;

/// Reason why a snapshot cannot be written or read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// An operation on a file failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// Path of the snapshot or of the copied file.
        path: PathBuf,
        /// The operation as a verb, such as `read`.
        doing: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is no snapshot.
    #[error("{}: offset 0: not a snapshot of nodescope; `nodescope run --snapshot-at` writes one", path.display())]
    NotSnapshot {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file was written by another version of nodescope, or has another format version.
    #[error(
        "{}: offset {offset}: written by nodescope {nodescope} in format {format}, and this is nodescope {} with format {}; take the snapshot anew",
        path.display(), crate::format::NODESCOPE, crate::format::FORMAT
    )]
    Version {
        /// Path of the snapshot.
        path: PathBuf,
        /// Offset of the format version in the file, bytes.
        offset: u64,
        /// Version of nodescope that wrote the file.
        nodescope: String,
        /// Format version of the snapshot.
        format: u32,
    },
    /// The file's contents differ from those that were written.
    #[error("{}: offset {offset}: damaged: {what}; take the snapshot anew", path.display())]
    Damaged {
        /// Path of the snapshot.
        path: PathBuf,
        /// Offset of the damaged part.
        offset: u64,
        /// Description of the damage.
        what: String,
    },
    /// The snapshot has no section of the requested name.
    #[error("{}: the snapshot has no section \"{name}\"", path.display())]
    NoSection {
        /// Path of the snapshot.
        path: PathBuf,
        /// Name of the requested section.
        name: String,
    },
    /// The section has another kind than the requested kind.
    #[error("{}: offset {offset}: section \"{name}\" holds {found}, not {wanted}", path.display())]
    Kind {
        /// Path of the snapshot.
        path: PathBuf,
        /// Offset of the section.
        offset: u64,
        /// Name of the section.
        name: String,
        /// The kind of the section.
        found: &'static str,
        /// The kind of section that the caller requested.
        wanted: &'static str,
    },
    /// The contents of a section cannot be decompressed, have a wrong length, or encode no value of the requested type.
    #[error("{}: offset {offset}: section \"{name}\" cannot be read: {cause}; the snapshot was not written by this nodescope", path.display())]
    Decode {
        /// Path of the snapshot.
        path: PathBuf,
        /// Offset of the section.
        offset: u64,
        /// Name of the section.
        name: String,
        /// Error of the decoder.
        cause: String,
    },
    /// A value cannot be encoded.
    #[error("cannot encode section \"{name}\" of {}: {cause}", path.display())]
    Encode {
        /// Path of the snapshot.
        path: PathBuf,
        /// Name of the section.
        name: String,
        /// Error of the encoder.
        cause: String,
    },
    /// The name of a new section is empty, too long, already used, or has control characters.
    #[error("{}: \"{}\" cannot be the name of a section: {why}", path.display(), name.escape_debug())]
    Name {
        /// Path of the snapshot.
        path: PathBuf,
        /// Name that the caller gave.
        name: String,
        /// Description of the fault, such as `it is empty`.
        why: &'static str,
    },
    /// A section is too long to be written or read as a whole.
    #[error("{}: section \"{name}\" would have {bytes} bytes, and a section that is read at once may have {most}", path.display())]
    TooLarge {
        /// Path of the snapshot.
        path: PathBuf,
        /// Name of the section.
        name: String,
        /// Length of the section's uncompressed contents, bytes.
        bytes: u64,
        /// Largest uncompressed length of a section that is written or read as a whole, bytes.
        most: u64,
    },
    /// The regions of the snapshot's RAM differ from those of the node's RAM.
    #[error("{}: offset {offset}: section \"{name}\" is the RAM of another node: {found}, and this node has {own}", path.display())]
    Layout {
        /// Path of the snapshot.
        path: PathBuf,
        /// Offset of the section.
        offset: u64,
        /// Name of the section.
        name: String,
        /// Description of the snapshot's regions.
        found: String,
        /// Description of the node's regions.
        own: String,
    },
    /// The host cannot map the file, or new memory, as RAM.
    #[error("{}: {source}", path.display())]
    Map {
        /// Path of the snapshot.
        path: PathBuf,
        /// Error of the mapping.
        source: MapError,
    },
    /// New RAM for a node cannot be created.
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
