//! Prefetches into one cache.

use nodescope_plugin_api::{Access, Site};
use nodescope_plugin_cache::{CacheKind, State};

use super::Plain;

/// Answer of a cache to a demand access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Hit,
    /// The cache had the line because of a prefetch, and this is the first demand access to the line.
    PrefetchedHit,
    Miss,
}

/// Demand access to a cache.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// Index of the cache in [`Plain::contents`].
    pub cache: usize,
    /// Level of the cache, counted from 1.
    pub level: u8,
    pub kind: CacheKind,
    /// Number of the line.
    pub line: u64,
    pub site: Site,
    pub access: Access,
    pub answer: Answer,
}

/// Prefetchers of all caches.
pub trait Prefetchers {
    /// Takes note of an access to a cache. Returns the numbers of the lines to bring into that cache, in this order.
    fn observe(&mut self, access: &Observed) -> Vec<u64>;
}

impl Plain {
    /// Returns this machine with prefetchers.
    pub fn with_prefetchers(mut self, prefetchers: Box<dyn Prefetchers>) -> Plain {
        self.prefetchers = Some(prefetchers);
        self
    }

    /// Shows the accesses of a reference to the prefetchers, from the first level outwards, and brings in what they want.
    pub(super) fn prefetch(&mut self, line: u64) {
        let answers = std::mem::take(&mut self.answers);
        let Some(mut prefetchers) = self.prefetchers.take() else {
            return;
        };
        for (cache, answer) in answers {
            let wanted = prefetchers.observe(&Observed {
                cache,
                level: self.caches[cache].level as u8 + 1,
                kind: self.caches[cache].kind,
                line,
                site: self.requester.site,
                access: self.requester.access,
                answer,
            });
            for line in wanted {
                self.bring(cache, line);
            }
        }
        self.prefetchers = Some(prefetchers);
    }

    /// Returns whether a cache or a cache inside it has a line.
    fn holds(&self, cache: usize, line: u64) -> bool {
        let mut inside = self.inside(cache).into_iter();
        self.caches[cache].state(line).is_some() || inside.any(|inner| self.holds(inner, line))
    }

    /// Brings a line into a cache as a read of that cache would, and marks the line.
    fn bring(&mut self, cache: usize, line: u64) {
        if self.holds(cache, line) {
            return;
        }
        self.prefetches = true;
        self.access = Access::Read;
        self.path = self.path_from(cache);
        self.event(format!("{}.prefetch", self.name(cache)), 0);
        let state = self.ask(0, line);
        // A modified line, which an exclusive cache gave up, gets no mark.
        self.place(cache, line, state, state != State::Modified);
        self.prefetches = false;
    }
}
