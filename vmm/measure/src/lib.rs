//! Measures the machine on which it runs: clocks, caches, memory, TLBs, branches, stores, and what passes between cores.
//!
//! [`measure()`] takes up to two minutes. [`HostDescription::to_toml`] writes a description that a study can name as `node.model`, with the
//! method and the spread of each value as comments. `README.md` describes each method and its limits.

mod affinity;
mod bandwidth;
mod branch;
mod buffer;
mod chain;
mod curve;
mod description;
mod error;
mod host;
mod levels;
mod parallelism;
mod prefetch;
mod statistics;
mod stores;
mod timer;
mod tlb;
mod topology;
mod transfer;
mod write;

pub use bandwidth::Bandwidth;
pub use branch::Branches;
pub use curve::Curve;
pub use description::{HostDescription, measure};
pub use error::MeasureError;
pub use host::Identity;
pub use levels::{Level, Point};
pub use parallelism::{Parallelism, Step};
pub use prefetch::Stream;
pub use statistics::Measurement;
pub use stores::Stores;
pub use timer::{ClockReading, Reading};
pub use tlb::Tlb;
pub use topology::{Cache, CacheKind, Cpu, Relation, Topology};
pub use transfer::Transfer;
