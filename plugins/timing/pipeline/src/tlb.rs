//! Translation caches of data accesses: two levels of TLB, and a cache of the upper entries of page tables for walks.

use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// Sizes of the data TLBs of a core and of its page walker. The defaults are those of Zen 4 (AMD, "Software Optimization Guide for the AMD
/// Zen4 Microarchitecture", publication 57647); those of the walker's caches, which makers do not publish, are ChampSim's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlbConfig {
    /// Entries of the first level.
    pub first_entries: u32,
    /// Entries in a set of the first level; as many as `first_entries` for a fully associative one.
    pub first_ways: u32,
    /// Entries of a first level of its own for pages of 2 MiB, as Intel's cores have it; 0 if all pages share the first level.
    pub first_large_entries: u32,
    /// Entries in a set of the first level for pages of 2 MiB; without meaning if it has no entries.
    pub first_large_ways: u32,
    /// Entries of the second level, which pages of all sizes share; 0 for none.
    pub second_entries: u32,
    /// Entries in a set of the second level; without meaning if it has no entries.
    pub second_ways: u32,
    /// True if an entry of either level holds 4 neighbouring pages of 4 KiB, as on AMD's cores where the physical pages are neighbours as
    /// well. The model takes this as given for all pages.
    pub coalesce: bool,
    /// Page-directory entries that the walker remembers: each saves all loads of a walk but the last, for 2 MiB of small pages.
    pub pde_entries: u32,
    /// Page-directory-pointer entries that the walker remembers, each for 1 GiB.
    pub pdpte_entries: u32,
    /// Entries of the top-level table that the walker remembers, each for 512 GiB.
    pub pml4e_entries: u32,
}

impl Default for TlbConfig {
    fn default() -> Self {
        Self {
            first_entries: 72,
            first_ways: 72,
            first_large_entries: 0,
            first_large_ways: 0,
            second_entries: 3_072,
            second_ways: 24,
            coalesce: false,
            pde_entries: 32,
            pdpte_entries: 4,
            pml4e_entries: 2,
        }
    }
}

/// Reason for which a [`TlbConfig`] is refused. The text begins with the name of the wrong field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlbConfigError {
    /// The first level has no entry.
    #[error("first_entries: is 0; write at least 1")]
    NoFirst,
    /// More entries than the model supports.
    #[error("{field}: {entries} is too many; write at most {MOST_ENTRIES}")]
    TooMany {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        entries: u32,
    },
    /// The entries do not make sets whose number is a power of two.
    #[error(
        "{field}: {ways} ways do not divide {entries} entries into a number of sets that is a power of two"
    )]
    Sets {
        /// Name of the field.
        field: &'static str,
        /// Entries of the level.
        entries: u32,
        /// Value of the field.
        ways: u32,
    },
}

/// Most entries of a level.
const MOST_ENTRIES: u32 = 1 << 20;

impl TlbConfig {
    /// Checks that TLBs can have these sizes.
    pub fn check(&self) -> Result<(), TlbConfigError> {
        if self.first_entries == 0 {
            return Err(TlbConfigError::NoFirst);
        }
        let counts = [
            ("first_entries", self.first_entries),
            ("first_large_entries", self.first_large_entries),
            ("second_entries", self.second_entries),
            ("pde_entries", self.pde_entries),
            ("pdpte_entries", self.pdpte_entries),
            ("pml4e_entries", self.pml4e_entries),
        ];
        for (field, entries) in counts {
            if entries > MOST_ENTRIES {
                return Err(TlbConfigError::TooMany { field, entries });
            }
        }
        let levels = [
            ("first_ways", self.first_entries, self.first_ways),
            (
                "first_large_ways",
                self.first_large_entries,
                self.first_large_ways,
            ),
            ("second_ways", self.second_entries, self.second_ways),
        ];
        for (field, entries, ways) in levels {
            let divides =
                ways != 0 && entries.is_multiple_of(ways) && (entries / ways).is_power_of_two();
            if entries != 0 && !divides {
                return Err(TlbConfigError::Sets {
                    field,
                    entries,
                    ways,
                });
            }
        }
        Ok(())
    }
}

/// Where a data access found its translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlbAnswer {
    /// In the first level.
    First,
    /// In the second level.
    Second,
    /// In neither: the page walker reads the page tables.
    Walk,
}

/// log2 of the bytes of a small page.
const SMALL: u32 = 12;
/// log2 of the small pages of an entry where entries coalesce.
const COALESCED: u32 = 2;
/// log2 of the bytes of a large page, and of what a page-directory entry covers.
const LARGE: u32 = 21;
/// log2 of the bytes that a page-directory-pointer entry covers.
const PDPTE: u32 = 30;
/// log2 of the bytes that an entry of the top-level table covers.
const PML4E: u32 = 39;

/// Key of a free place. Pages have smaller ones.
const FREE: u64 = u64::MAX;

/// Keys in sets of equal size, each set with its order of use.
#[derive(Clone, Debug)]
struct Sets {
    /// The sets, one behind the other. Keys of a set are in the order of their last use, the latest first.
    keys: Box<[u64]>,
    ways: usize,
    /// Number of sets, minus one.
    mask: u64,
}

impl Sets {
    fn new(entries: u32, ways: u32) -> Self {
        Self {
            keys: vec![FREE; entries as usize].into(),
            ways: ways as usize,
            mask: u64::from(entries.checked_div(ways).unwrap_or(0).saturating_sub(1)),
        }
    }

    /// Uses a key, which takes the place of the least recently used one of its set if the set does not have it. Returns whether it did.
    #[inline]
    fn touch(&mut self, index: u64, key: u64) -> bool {
        let first = (index & self.mask) as usize * self.ways;
        let Some(set) = self.keys.get_mut(first..first + self.ways) else {
            return false;
        };
        match set.first() {
            Some(latest) if *latest == key => true,
            Some(_) => bring_forward(set, key),
            None => false,
        }
    }

    fn flush(&mut self) {
        self.keys.fill(FREE);
    }
}

/// Puts a key before all others of a set, in place of itself or of the last. Returns whether the set had the key.
fn bring_forward(set: &mut [u64], key: u64) -> bool {
    // Searches and moves in one pass.
    let mut before = key;
    for place in set {
        std::mem::swap(&mut before, place);
        if before == key {
            return true;
        }
    }
    false
}

/// The data TLBs of a core: two levels with exact LRU order. A translation that is found nowhere is taken up by both levels, one that the
/// second level has by the first.
#[derive(Clone, Debug)]
pub struct DataTlb {
    first: Sets,
    /// First level of large pages, if it is one of its own.
    first_large: Option<Sets>,
    second: Sets,
    /// log2 of the bytes that an entry for small pages covers.
    small: u32,
}

impl DataTlb {
    /// Makes empty TLBs.
    ///
    /// # Panics
    ///
    /// If [`TlbConfig::check`] refuses the sizes.
    pub fn new(config: &TlbConfig) -> Self {
        if let Err(error) = config.check() {
            panic!("{error}");
        }
        let large = (config.first_large_entries, config.first_large_ways);
        // A level without entries has no ways either.
        let second_ways = config.second_ways.min(config.second_entries);
        Self {
            first: Sets::new(config.first_entries, config.first_ways),
            first_large: (large.0 != 0).then(|| Sets::new(large.0, large.1)),
            second: Sets::new(config.second_entries, second_ways),
            small: SMALL + if config.coalesce { COALESCED } else { 0 },
        }
    }

    /// Translates the linear address of an access, on a page of 2 MiB if it is `large`, else on one of 4 KiB.
    #[inline]
    pub fn access(&mut self, linear: u64, large: bool) -> TlbAnswer {
        let page = linear >> if large { LARGE } else { self.small };
        let key = page << 1 | u64::from(large);
        let first = match &mut self.first_large {
            Some(sets) if large => sets,
            _ => &mut self.first,
        };
        if first.touch(page, key) {
            TlbAnswer::First
        } else if self.second.touch(page, key) {
            TlbAnswer::Second
        } else {
            TlbAnswer::Walk
        }
    }

    /// Forgets all translations, as a change of CR3 does.
    pub fn flush(&mut self) {
        self.first.flush();
        self.second.flush();
        if let Some(sets) = &mut self.first_large {
            sets.flush();
        }
    }
}

/// The page walker's caches of upper-level entries of page tables with four levels (SDM volume 3, "Paging-Structure Caches"), each fully associative
/// with LRU order.
#[derive(Clone, Debug)]
pub struct Walker {
    pde: Sets,
    pdpte: Sets,
    pml4e: Sets,
}

impl Walker {
    /// Makes empty caches.
    ///
    /// # Panics
    ///
    /// If [`TlbConfig::check`] refuses the sizes.
    pub fn new(config: &TlbConfig) -> Self {
        if let Err(error) = config.check() {
            panic!("{error}");
        }
        let cache = |entries| Sets::new(entries, entries);
        Self {
            pde: cache(config.pde_entries),
            pdpte: cache(config.pdpte_entries),
            pml4e: cache(config.pml4e_entries),
        }
    }

    /// Walks the tables for a linear address, and returns the loads of table entries that this needs: 1 to 4 for a page of 4 KiB, 1 to 3 for
    /// a `large` one of 2 MiB. The loads depend on each other.
    pub fn walk(&mut self, linear: u64, large: bool) -> u32 {
        // The walk starts behind the lowest entry that is cached, and takes up the entries that it loads, but for the page's own.
        if !large && self.pde.touch(0, linear >> LARGE) {
            return 1;
        }
        let below = u32::from(!large);
        if self.pdpte.touch(0, linear >> PDPTE) {
            1 + below
        } else if self.pml4e.touch(0, linear >> PML4E) {
            2 + below
        } else {
            3 + below
        }
    }

    /// Forgets all entries, as a change of CR3 does.
    pub fn flush(&mut self) {
        for cache in [&mut self.pde, &mut self.pdpte, &mut self.pml4e] {
            cache.flush();
        }
    }
}
