//! Hardware counters: of this host by `perf_event_open`, and of other machines from the files of other tools.
//!
//! Counters give what the timing models do not know: CPI_core, the cycles per instruction of the core without memory stalls. [`import()`]
//! reads files, [`count`] counts a program on this host, and [`Derived`] is what both make of the counts. `README.md` has the formats, the
//! events, the formulas and their limits.

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
pub use host::{How, count};
pub use import::import;
pub use json::FORMAT;
pub use measurement::{Counts, FilePosition, Measurement, Reading};
pub use names::{KnownEvent, known};
pub use quantity::Quantity;
