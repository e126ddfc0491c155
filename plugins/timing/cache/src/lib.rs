//! Caches of a node: any number of levels, inclusive or not, with replacement policies, prefetchers and write-back. The outermost caches
//! are coherent by MESIF, the caches inside them by a directory of holder bits or by asking.
//!
//! The engine drives [`CacheModel`] through [`nodescope_plugin_api::MemoryModel`]. The model asks a
//! [`nodescope_plugin_api::MemoryTimingModel`] for lines that no cache supplies. `plugins/timing/README.md` has the exact semantics and
//! the test of each claim.

mod accounting;
mod builder;
mod coherence;
mod config;
mod contention;
mod events;
mod first_level;
mod flat;
mod geometry;
mod hierarchy;
mod l0_updates;
mod mapping_pool;
mod miss;
mod model;
mod node;
mod non_temporal;
mod policy;
mod prefetch;
mod prefetching;
mod reference;
mod registered;
mod replacement;
mod tags;
mod tree;
mod word;

pub use config::{
    ByDistance, CacheConfig, CacheConfigError, CacheKind, CoherenceLatency, Inclusion, Keep,
    LevelConfig, LevelLatency, NonTemporalStores, Sharing, UnknownSharing,
};
pub use flat::FlatMemory;
pub use hierarchy::CacheContents;
pub use model::CacheModel;
pub use policy::{Policy, Qlru, UnknownPolicy};
pub use prefetch::{Prefetch, Stream, Stride, UnknownPrefetcher};
pub use registered::RegisteredModels;
pub use tags::State;

use nodescope_plugin_api::Declaration;

/// Returns the declarations of the policies and prefetchers of this crate. A study names them in `[[caches.level]]`.
pub fn declarations() -> impl Iterator<Item = Declaration> {
    policy::DECLARATIONS
        .into_iter()
        .chain(prefetch::DECLARATIONS)
}
