//! Communication phases of a traced MPI program, and placements of its ranks that suit them.
//!
//! Time is cut into steps. The messages that begin in a step make a matrix of bytes from rank to rank. A two-dimensional Haar
//! transform of that matrix, weighted by scale, is a vector; equal vectors mean equal communication. The vectors are clustered into
//! classes, and a phase is a longest run of steps of one class. `README.md` describes how the step and the number of classes are chosen.
//!
//! - [`message`]: from a program's operations to messages with times.
//! - [`haar`]: the transform and its weights.
//! - [`step`]: matrices and vectors of steps.
//! - [`classes`]: k-means, its comparison with Ward's method, and the number of classes.
//! - [`analysis`]: the step, the phases and their figures.
//! - [`placement`]: ranks placed on nodes and sockets by a graph partitioner.
//! - [`mapping`]: what placements gain as predicted, and when changing them pays.
//!
//! Times are picoseconds. The same trace, options and seed give the same result, to the byte.

pub mod analysis;
pub mod classes;
pub mod haar;
pub mod mapping;
pub mod message;
pub mod placement;
pub mod step;

mod chart;
mod html;
mod mapping_text;
mod text;

pub use analysis::{Analysis, Phase, PhasesError, Request, analyse};
pub use html::TITLE;
pub use mapping::{ChangeCost, Mapping, MappingError, MappingRequest, map_ranks};
pub use message::{Include, Message, Messages};
