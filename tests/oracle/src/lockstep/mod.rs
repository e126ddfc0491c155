//! The engine's interpreter and its translator side by side, on random programs of a small guest with page tables, handlers
//! of exceptions, interrupts and system calls ([`guest`]).
//!
//! Both run the same program ([`program`]) in slices of random length. After each slice everything must be equal: the state, memory, the
//! clock, and the whole log ([`platform`]) of what the machine around saw: references with their times, counters, context changes, devices,
//! interrupts. A toy memory model answers with random stalls and permissions, or a real model that exports its cache state is there
//! ([`caches`]). Programs consist of `pieces`, which `encode` writes as machine code.

pub mod caches;
mod encode;
pub mod guest;
mod pieces;
pub mod platform;
pub mod program;
mod run;

pub use run::{Failure, Kind, Tally, run};
