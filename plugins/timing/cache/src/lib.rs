//! Caches of a node: any number of inclusive levels with LRU replacement, write-back and write-allocate, coherent by
//! MESIF between the outermost caches and by a directory of holder bits inside them.
//!
//! The engine drives [`CacheModel`] through [`nodescope_plugin_api::MemoryModel`]. The model asks a
//! [`nodescope_plugin_api::MemoryTimingModel`] for lines that no cache supplies. `plugins/timing/README.md` has the exact semantics and
//! the test of each claim.

mod config;
mod events;
mod export;
mod fast_path;
mod flat;
mod geometry;
mod hierarchy;
mod l2_hit;
mod l2_miss;
mod mapping_pool;
mod model;
mod protocol;
mod tags;
mod word;

pub use config::{
    ByDistance, CacheConfig, CacheConfigError, CoherenceLatency, LevelConfig, LevelLatency, Policy,
    Sharing,
};
pub use flat::FlatMemory;
pub use hierarchy::{CacheContents, CacheKind};
pub use model::CacheModel;
pub use tags::State;
