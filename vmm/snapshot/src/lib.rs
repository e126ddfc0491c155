//! Files that hold the state of a simulated machine, so that a node or a cluster can continue from there, once or many times.
//!
//! [`SnapshotWriter`] writes sections one after the other: typed states, files, RAM. [`Snapshot`] opens a file, checks it, and gives the
//! sections back. RAM lies in the file page by page, with holes where it is zero, and is mapped copy-on-write: nodes that continue from one
//! snapshot share what none of them has written to. The format is described in `README.md`.

mod error;
mod format;
mod ram;
mod read;
mod write;

pub use error::SnapshotError;
pub use format::{FORMAT, Kind, Section};
pub use read::{Info, Snapshot, Verify};
pub use write::SnapshotWriter;
