//! What loads, stores and fetches ask before anything else: may this be answered without a page walk and without a model?
//!
//! [`DataFilter`] has one entry for each page or, in a window, for the most recently used line of each set of the model's
//! first-level cache; [`InstructionFilter`] has the most recently used instruction lines. Where the model allows it, both keep the
//! other lines of each set too ([`Sets`]), so that hits anywhere in the first level stay away from the model, which is told
//! which line of a full set is the oldest when it must replace one, and of lines that became modified before the next reference of
//! any vCPU.

mod data;
mod instruction;
mod isa;
mod second;
mod sets;
#[cfg(test)]
mod tests;

pub use data::{DataFilter, Entry, FilterLayout, LARGE_SHIFT, Mapped, PAGE_SHIFT};
pub use instruction::InstructionFilter;
pub use isa::{Avx2, Baseline, Isa};
pub use second::{Known, Modified, SecondLevel, Writes};
pub use sets::{NONE, Position, Sets, TICK};
