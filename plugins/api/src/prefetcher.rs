//! Interface of prefetchers.

use std::fmt;

use crate::{Access, Site};

/// Answer of a cache to an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CacheAnswer {
    /// The cache had the line.
    Hit,
    /// The cache had the line because of a prefetch, and this is the first access to the line.
    PrefetchedHit,
    /// The cache did not have the line.
    Miss,
}

/// An access to a cache as its prefetchers see the access.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// Number of the line.
    pub line: u64,
    /// The instruction that makes the access.
    pub site: Site,
    /// Kind of the access.
    pub access: Access,
    /// Answer of the cache.
    pub answer: CacheAnswer,
}

/// Prefetcher of one cache.
pub trait Prefetcher: Send + fmt::Debug {
    /// Takes note of an access of the cache, and pushes the lines to bring in to `wanted`, the most urgent first. Lines that the cache has
    /// are left out by the caller. A prefetcher may not depend on hits, except of prefetched lines, unless [`Prefetcher::sees_hits`] says
    /// so.
    fn observe(&mut self, access: &Observed, wanted: &mut Vec<u64>);
    /// Returns true if the prefetcher must see every hit, so that no L0 filter cache may answer for the first level.
    fn sees_hits(&self) -> bool {
        false
    }
}
