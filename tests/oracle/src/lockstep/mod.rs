//! Lockstep test: the engine's interpreter and its translator run the same random programs. The programs run in a small guest with page
//! tables, and with handlers of exceptions, interrupts and system calls ([`guest`]).
//!
//! Both sides run a program ([`program`]) in slices of random length. After each slice everything must be equal: state, memory, clock, and
//! the whole log ([`platform`]) of calls of the platform: references with their times, counters, context changes, devices, interrupts. In
//! some windows a toy memory model answers with random stalls and permissions, in others a real model exports its cache state ([`caches`]).
//! Programs consist of `pieces`, which `encode` writes as machine code.

pub mod caches;
mod encode;
pub mod guest;
mod pieces;
pub mod platform;
pub mod program;
mod run;

pub use run::{Failure, Kind, Tally, run};
