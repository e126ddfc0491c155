//! The interpreter beside SimGrid's replay (`smpirun -replay`) of the same traces on the same platform.
//!
//! - [`programs`]: synthetic programs.
//! - [`actions`]: a program as SimGrid's time-independent trace.
//! - [`platform`]: one cluster, for both.
//! - [`replay`]: runs smpirun.
//! - [`cases`]: which traces, and how well both must agree.
//!
//! Used by `tests/accuracy.rs` and by `scripts/bench predict`.

pub mod actions;
pub mod cases;
pub mod platform;
pub mod programs;
pub mod replay;
