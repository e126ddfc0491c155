//! Policies and prefetchers that are not part of this crate: a description names them, and a registry makes them.

use nodescope_plugin_api::{CacheShape, ModelName, Prefetcher, Replacement};

/// Makes the registered policies and prefetchers that a description of caches names. An error is a sentence with the model's name.
pub trait RegisteredModels {
    /// Makes a replacement policy for a cache.
    fn replacement(
        &self,
        name: ModelName,
        cache: &CacheShape,
    ) -> Result<Box<dyn Replacement>, String>;
    /// Makes a prefetcher for a cache.
    fn prefetcher(
        &self,
        name: ModelName,
        cache: &CacheShape,
    ) -> Result<Box<dyn Prefetcher>, String>;
}

/// A registry without models.
pub(crate) struct NoModels;

impl RegisteredModels for NoModels {
    fn replacement(&self, name: ModelName, _: &CacheShape) -> Result<Box<dyn Replacement>, String> {
        Err(name.unknown())
    }

    fn prefetcher(&self, name: ModelName, _: &CacheShape) -> Result<Box<dyn Prefetcher>, String> {
        Err(name.unknown())
    }
}
