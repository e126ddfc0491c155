//! The cycles that blocks of x86-64 code take on a named core, all loads served by the first level, as LLVM's `llvm-mca` predicts them.
//!
//! [`model()`] takes counted [`Block`]s, finds the hot paths through them, lets `llvm-mca` simulate each path as a loop, and gives each
//! block its share. `README.md` describes the algorithm and what the figures leave out.

mod block;
mod cache;

mod error;
mod graph;
mod memory;
mod model;
mod nest;
mod paths;
mod target;
mod text;
mod tool;

pub use block::{Block, Reason};
pub use error::CoreError;
pub use memory::{Parallelism, ParallelismError};
pub use model::{BlockCycles, CoreModel, Options, Path, model};
pub use target::Core;
pub use tool::Tool;

/// Published error of predictors of this kind, to be shown beside every figure.
///
/// The mean error of such tools, `llvm-mca` among them, was found to be 9 to 36 % of measured cycles, by tool, core and set of blocks: Chen et al.,
/// BHive: A Benchmark Suite and Measurement Framework for Validating x86-64 Basic Block Performance Models, IISWC 2019, as summed up by Abel
/// and Reineke, uiCA: Accurate Throughput Prediction of Basic Blocks on Recent Intel Microarchitectures, ICS 2022.
pub const PUBLISHED_ERROR: &str = "published mean error of such predictors on basic blocks: 9 to 36 % (BHive, IISWC 2019; uiCA, ICS 2022)";
