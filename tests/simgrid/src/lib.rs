//! Compares the interpreter with SimGrid's replay (`smpirun -replay`) of the same traces on the same platform.
//!
//! - [`programs`]: synthetic programs.
//! - [`actions`]: writes a program as SimGrid's time-independent trace.
//! - [`platform`]: describes one cluster for both.
//! - [`replay`]: runs smpirun.
//! - [`cases`]: the programs, and how well both must agree on each.
//!
//! Used by `tests/accuracy.rs` and by `scripts/bench predict`.

pub mod actions;
pub mod cases;
pub mod platform;
pub mod programs;
pub mod replay;
