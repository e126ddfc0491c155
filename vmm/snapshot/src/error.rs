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
        /// Path of the snapshot or of the copied file.
        path: PathBuf,
        /// The operation, as in "read".
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
    /// Another version of nodescope has written the file.
    #[error(
        "{}: offset {offset}: written by nodescope {nodescope} in format {format}, and this is nodescope {} with format {}; take the snapshot anew",
        path.display(), crate::format::NODESCOPE, crate::format::FORMAT
    )]
    Version {
        /// Path of the snapshot.
        path: PathBuf,
        /// Offset of the version.
        offset: u64,
        /// The version that wrote the file.
        nodescope: String,
        /// Format version of the snapshot.
        format: u32,
    },
    /// The file is not what was written.
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
    /// A section of another kind than the requested kind.
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
    /// The bytes of a section are no value of the requested type.
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
    /// A value that cannot be encoded.
    #[error("cannot encode section \"{name}\" of {}: {cause}", path.display())]
    Encode {
        /// Path of the snapshot.
        path: PathBuf,
        /// Name of the section.
        name: String,
        /// Error of the encoder.
        cause: String,
    },
    /// A section's name is empty, too long, or there already.
    #[error("{}: \"{}\" cannot be the name of a section: {why}", path.display(), name.escape_debug())]
    Name {
        /// Path of the snapshot.
        path: PathBuf,
        /// Name that the caller gave.
        name: String,
        /// Rule that the name violates.
        why: &'static str,
    },
    /// A section is longer than the format allows.
    #[error("{}: section \"{name}\" would have {bytes} bytes, and a section that is read at once may have {most}", path.display())]
    TooLarge {
        /// Path of the snapshot.
        path: PathBuf,
        /// Name of the section.
        name: String,
        /// Length of the section, bytes.
        bytes: u64,
        /// Largest length that the format allows, bytes.
        most: u64,
    },
    /// RAM of another layout.
    #[error("{}: offset {offset}: section \"{name}\" is the RAM of another node: {found}, and this node has {own}", path.display())]
    Layout {
        /// Path of the snapshot.
        path: PathBuf,
        /// Offset of the section.
        offset: u64,
        /// Name of the section.
        name: String,
        /// Regions of the snapshot.
        found: String,
        /// Regions of the node.
        own: String,
    },
    /// The host does not map the file.
    #[error("{}: {source}", path.display())]
    Map {
        /// Path of the snapshot.
        path: PathBuf,
        /// Reason why the file cannot be mapped.
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
