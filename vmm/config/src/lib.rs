//! Files that users write: TOML whose values have units, read so that all problems are reported at once, each with its line.
//!
//! - [`document`]: a file, read into a value or into its problems.
//! - [`quantity`]: sizes, times, frequencies and rates, exact.
//! - [`reader`]: typed reading of a document that continues after a mistake.
//! - [`problem`]: what is wrong, and where.
//!
//! Studies (`vmm/study`) and clusters to predict for (`plugins/analysis/predict`) are read with it.

pub mod document;
mod lines;
pub mod problem;
pub mod quantity;
pub mod reader;
