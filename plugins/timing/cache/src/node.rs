//! A cache of the hierarchy, and what belongs to it.

use nodescope_plugin_api::{Access, Side};

use crate::config::{CacheKind, Inclusion};
use crate::events::Distance;
use crate::geometry::Geometry;
use crate::policy::Replacement;
use crate::word::Variant;

/// Cache of the hierarchy. All data for a walk through the levels fits in one host cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Node {
    pub(crate) geometry: Geometry,
    /// Number of the cache outside this one, or [`NONE`].
    pub(crate) outer: u32,
    /// Holder bit of this cache in entries of the outer cache: a mask, shifted to bit 0.
    pub(crate) bit: u16,
    pub(crate) socket: u16,
    pub(crate) level: u8,
    pub(crate) kind: CacheKind,
    pub(crate) inclusion: Inclusion,
    pub(crate) traits: Traits,
}

const _: () = assert!(size_of::<Node>() == 64);

/// Properties of a cache that are true or false. Code that is compiled for a [`Variant`] does not read those that it knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traits {
    /// Several vCPUs use this cache as their first level.
    pub(crate) several_vcpus: bool,
    /// Each cache inside this one has its own holder bit.
    pub(crate) exact: bool,
    /// The replacement policy is LRU: words of a set are in the order of use.
    pub(crate) lru: bool,
    /// A write that does not find its line brings the line in.
    pub(crate) allocates: bool,
    /// Some level from the first to this one takes the lines of writes.
    pub(crate) allocates_inside: bool,
    /// The cache has prefetchers.
    pub(crate) prefetches: bool,
    /// Lines that leave the cache concern the cache outside, or are counted: some level up to the next one outside is not inclusive, or the
    /// cache has prefetchers.
    pub(crate) victims_matter: bool,
}

/// Number that stands for no cache.
pub(crate) const NONE: u32 = u32::MAX;

impl Node {
    pub(crate) fn side(&self) -> Side {
        if self.kind == CacheKind::Instruction {
            Side::Instruction
        } else {
            Side::Data
        }
    }

    /// Returns whether [`Variant::USUAL`] holds for this cache.
    pub(crate) fn usual(&self) -> bool {
        let Traits {
            several_vcpus,
            exact: _,
            lru,
            allocates,
            allocates_inside: _,
            prefetches,
            victims_matter,
        } = self.traits;
        self.inclusion == Inclusion::Inclusive
            && lru
            && allocates
            && !(several_vcpus || prefetches || victims_matter)
    }

    pub(crate) fn outermost(&self) -> bool {
        self.outer == NONE
    }

    /// Returns whether the cache has every line of the caches inside it.
    #[inline(always)]
    pub(crate) fn inclusive<V: Variant>(&self) -> bool {
        V::USUAL || self.inclusion == Inclusion::Inclusive
    }

    #[inline(always)]
    pub(crate) fn exclusive<V: Variant>(&self) -> bool {
        !V::USUAL && self.inclusion == Inclusion::Exclusive
    }

    /// Returns whether the replacement policy is LRU.
    #[inline(always)]
    pub(crate) fn lru<V: Variant>(&self) -> bool {
        V::USUAL || self.traits.lru
    }

    /// Returns whether a fetch for this access fills the cache on the line's way inwards.
    #[inline(always)]
    pub(crate) fn takes<V: Variant>(&self, access: Access) -> bool {
        V::USUAL
            || self.inclusion != Inclusion::Exclusive
                && (access != Access::Write || self.traits.allocates)
    }

    /// Returns whether a fetch for this access fills a cache from the first level to this one.
    #[inline(always)]
    pub(crate) fn takes_inside<V: Variant>(&self, access: Access) -> bool {
        V::USUAL || access != Access::Write || self.traits.allocates_inside
    }

    /// Returns those of the holder bits `holders` that may represent a cache other than the inner cache with the bit `bit`.
    #[inline]
    pub(crate) fn without(&self, holders: u64, bit: u64) -> u64 {
        if self.traits.exact {
            holders & !bit
        } else {
            holders
        }
    }
}

/// Caches and vCPUs directly inside a cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Children {
    /// Numbers of the caches directly inside this one.
    pub(crate) inner: Vec<u32>,
    /// vCPUs that use the cache as their first level; empty for other levels.
    pub(crate) vcpus: Vec<u16>,
    /// The core that has the cache to itself by the description.
    pub(crate) core: Option<u16>,
}

/// First-level caches of one vCPU.
#[derive(Clone, Debug)]
pub(crate) struct VcpuCaches {
    /// Numbers of the first-level caches for data and for instructions; the latter may be [`NONE`].
    pub(crate) first: [u32; 2],
    pub(crate) socket: u16,
    /// Distance of every cache, by the cache's number.
    pub(crate) distances: Vec<Distance>,
}

/// Replacement policy of one cache that is not LRU.
#[derive(Debug)]
pub(crate) struct PolicyState {
    pub(crate) replacement: Box<dyn Replacement>,
    /// The policy's own bits of each set.
    pub(crate) sets: Vec<u64>,
}
