//! Gives damaged traces and files of every kind to all code that reads them.
//!
//! A *target* is something that reads what users or other programs wrote: `trace` (the reader, profiles, where ranks stand, the
//! report, calibration), `predict`, `export`, `study`, `cluster`, and so on. A target has seeds, which are good
//! inputs, a way to mutate them, and a reader for the outcome. No input may make a reader panic, wrap a sum, take memory out of
//! proportion to the input, or run for ever.
//!
//! - [`choices`]: where decisions come from: a seed, by way of `arbitrary`.
//! - [`json`], [`text`]: mutation of values whose schema is known, and of bytes.
//! - [`traces`]: mutation of traces: decoded, changed field by field, encoded with valid checksums.
//! - [`targets`]: everything that reads.
//! - [`meter`]: how much memory a case takes.
//! - [`campaign`]: long runs, in a process that a case may end and that is then started again (`scripts/fuzz`).
//!
//! Tests run some cases of fixed seeds, and the inputs of `corpus/`, which once failed.

pub mod campaign;
pub mod choices;
pub mod json;
pub mod meter;
pub mod targets;
pub mod text;
pub mod traces;

/// Every allocation is counted.
#[global_allocator]
static METER: meter::Meter = meter::Meter;
