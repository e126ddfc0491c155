//! The file that a snapshot of a running cluster is kept in: named sections with checksums, and guest memory that can be mapped.
//!
//! [`SnapshotWriter`] writes a file, [`Snapshot`] reads one. What the sections hold is their owners' business. `README.md` describes the format.

mod error;
mod format;
mod reader;
mod writer;

pub use error::SnapshotError;
pub use format::{Section, VERSION};
pub use reader::{Snapshot, Verify};
pub use writer::SnapshotWriter;
