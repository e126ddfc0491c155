//! Study files: a TOML text becomes a [`Study`], a checked plan in which every quantity is typed.
//!
//! [`Study::load`] reports all problems of a file at once, each with its line ([`Problems`]). [`Host`] reports problems of the host that is
//! to run the study. `STUDY.md` is the reference of the file. This crate boots no node and writes no file.

mod collect;
mod files;
mod host;
mod job;
mod load;
mod moment;
mod nodes;
mod plan;

pub use nodescope_config::quantity;

mod sections;

pub use collect::{Collect, NodeSelection};
pub use host::Host;
pub use job::JobError;
pub use load::known_fields;
pub use moment::SnapshotAt;
pub use nodes::NodeDescription;
pub use nodescope_config::problem::{Position, Problem, Problems, Severity};
pub use plan::{
    DEFAULT_BANDWIDTH, DEFAULT_LATENCY, Engine, FastForward, ImageSource, Job, Mpi, Network,
    Program, SharedFileSystem, Study,
};
