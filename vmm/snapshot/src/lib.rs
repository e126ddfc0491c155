//! Snapshot files with the state of a simulated machine. A node or a cluster can continue from a snapshot, once or many times.
//!
//! [`SnapshotWriter`] writes sections one after the other: typed states, files, RAM. [`Snapshot`] opens a file, checks it, and returns the
//! sections. RAM is stored page by page, with holes in the file for zero pages, and is mapped copy-on-write. Nodes that continue from one
//! snapshot share the pages to which they have not written. The format is described in `README.md`.

mod error;
mod format;
mod holes;
mod ram;
mod read;
mod write;

pub use error::SnapshotError;
pub use format::{FORMAT, Kind, Section};
pub use holes::write_with_holes;
pub use read::{Info, Snapshot, Verify};
pub use write::SnapshotWriter;
