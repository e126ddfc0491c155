//! Fuzzing: gives damaged traces and files of every kind to all code that reads them.
//!
//! A *target* is code that reads what users or other programs wrote: `trace` (the reader, profiles, pending calls, the report,
//! calibration), `predict`, `export`, `study`, `cluster`, and so on; `zmtp` is the processes of a distributed run. A target has seeds (valid inputs), a function that mutates them, and a
//! reader for the result. No input may make a reader panic, overflow a sum, use memory out of proportion to the input, or run for ever.
//!
//! - [`choices`]: random decisions, drawn from a seed with the crate `arbitrary`.
//! - [`json`], [`text`]: mutation of values whose schema is known, and of bytes.
//! - [`traces`]: mutation of traces: decoded, changed field by field, and encoded with valid checksums.
//! - [`elf`], [`dwarf`]: ELF files with debug information, changed field by field, and attacks on their readers.
//! - [`targets`]: all readers.
//! - [`meter`]: memory that a case takes.
//! - [`campaign`]: long runs, in a worker process that is started again when a case has ended it (`scripts/fuzz`).
//!
//! Tests run some cases of fixed seeds, and replay the inputs in `corpus/`, which once made a reader fail.

pub mod campaign;
pub mod choices;
pub mod dwarf;
pub mod elf;
pub mod json;
pub mod meter;
pub mod targets;
pub mod text;
pub mod traces;

/// Allocator of this program; it counts the bytes in use.
#[global_allocator]
static METER: meter::Meter = meter::Meter;
