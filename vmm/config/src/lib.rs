//! Files that users write in TOML, with values that have units. They are read so that all problems are reported at once, each with its
//! line.
//!
//! - [`document`]: a file, read into a value or into its problems.
//! - [`quantity`]: sizes, times, frequencies and rates, exact.
//! - [`reader`]: typed reading of a document that continues after a mistake.
//! - [`problem`]: what is wrong, and where.
//!
//! Studies (`vmm/study`) and cluster files for predictions (`plugins/analysis/predict`) are read with this crate.

pub mod document;
mod lines;
pub mod problem;
pub mod quantity;
pub mod reader;
