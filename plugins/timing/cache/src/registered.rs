//! Policies and prefetchers that are not part of this crate: a description names them, and a registry makes them. Also the declarations of
//! this crate's own.

use nodescope_plugin_api::{
    CacheShape, Declaration, Kind, ModelName, Parameter, Prefetcher, Replacement,
};

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

/// Makes the declaration of a policy or prefetcher of this crate.
pub(crate) const fn declaration(
    kind: Kind,
    name: &'static str,
    line: &'static str,
    parameters: &'static [Parameter],
) -> Declaration {
    Declaration {
        kind,
        name,
        line,
        parameters,
        ..Declaration::DEFAULT
    }
}
