//! Main memory of a node with several sockets. Every physical address has a home socket. A request from another socket costs more.
//!
//! [`Numa`] stands behind a cache model and times the requests of its last level. [`Uncached`] puts the same memory directly behind the
//! vCPUs: every reference is timed, and the L0 filter cache answers none. [`SharedBandwidth`] lets vCPUs wait for what they transfer together. The exact semantics and the test of each claim are in
//! `plugins/timing/README.md`.

mod bandwidth;
mod config;
mod memory;
mod uncached;

pub use bandwidth::SharedBandwidth;
pub use config::{HomeRange, Latencies, NumaConfig, NumaConfigError};
pub use memory::Numa;
pub use uncached::Uncached;
