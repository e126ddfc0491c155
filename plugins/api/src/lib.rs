//! What a timing plugin sees. Plugins depend on this crate alone.
//!
//! A plugin is attached only while a measurement window is warm or measuring. The engine then offers it every memory
//! reference that its *filter* cannot answer: the filter holds, per set of the first-level cache, the most recently
//! used line, and a reference to that line with sufficient permission changes nothing in an LRU model. References that
//! the filter answered are counted by the engine ([`Counters`]), so hits are `references - misses`, exactly.

mod block_profile;
mod charges;
mod counters;
mod ledger;
mod reference;
pub mod tables;
mod topology;

pub use block_profile::{BlockCounts, BlockProfile, PartialCounts, ProfiledBlock};
pub use charges::{Charges, SOURCES, STALL_TERMS, Source, StallTerm};
pub use counters::{Counters, FLOP_CLASSES, FlopClass};
pub use ledger::{Account, Key, Ledger, Tally};
pub use reference::{
    Access, Context, FilterGeometry, FilterUpdate, Hits, MemRef, MemoryModel, MemoryTiming,
    MemoryTimingModel, MissRef, Outcome, Permission, Privilege, Side, Statistic, Term,
};
pub use topology::VcpuPlace;
