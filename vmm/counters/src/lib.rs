//! Hardware counters, of this host through `perf_event_open`, and of other machines from files of other tools.
//!
//! Counters measure what the timing models cannot compute: CPI_core, the cycles per instruction of the core without memory stalls.
//! [`import()`] reads files, and [`count`] counts a program on this host. [`Derived`] has the figures that follow from the counts of
//! either. `README.md` has the formats, the events, the formulas and their limits.

pub mod command;
mod error;
pub mod follow;
mod formulas;
pub mod guest;
mod host;
pub mod import;
mod json;
mod measurement;
mod names;
pub mod open;
mod quantity;
pub mod tables;
mod text;

pub use error::CountersError;
pub use formulas::{CoreCpi, Derived, TopDown};
pub use host::{Grouping, count};
pub use import::import;
pub use json::FORMAT;
pub use measurement::{Counts, FilePosition, Measurement, Reading};
pub use names::{KnownEvent, known};
pub use quantity::Quantity;
