//! What holds after every reference, whatever the structure of the caches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use nodescope_plugin_api::{MemoryTiming, MemoryTimingModel, MissRef};
use nodescope_plugin_cache::{CacheConfig, CacheContents, CacheKind, Inclusion, State};

use super::machines;

/// Memory that notes the lines that reach it.
pub struct NotingMemory {
    memory: Box<dyn MemoryTimingModel>,
    written: Arc<Mutex<Vec<u64>>>,
}

impl NotingMemory {
    /// Makes the memory of [`machines::memory`]. Returns it with the list of addresses of written lines.
    pub fn new() -> (Box<NotingMemory>, Arc<Mutex<Vec<u64>>>) {
        let written = Arc::default();
        let memory = NotingMemory {
            memory: machines::memory(),
            written: Arc::clone(&written),
        };
        (Box::new(memory), written)
    }
}

impl MemoryTimingModel for NotingMemory {
    fn request(&mut self, miss: &MissRef) -> MemoryTiming {
        if miss.write_back {
            self.written.lock().unwrap().push(miss.line);
        }
        self.memory.request(miss)
    }

    fn home(&self, physical: u64) -> u16 {
        self.memory.home(physical)
    }
}

/// Checks that `dirty` lines are modified in some cache. Checks also that an owned line has copies only in caches around or inside the
/// owner, that a line has one forwarder, that inclusive caches include, and that instruction caches have no modified line.
pub fn check(config: &CacheConfig, caches: &[CacheContents], dirty: &BTreeSet<u64>) {
    let mut holders: BTreeMap<u64, Vec<(usize, State)>> = BTreeMap::new();
    for (index, cache) in caches.iter().enumerate() {
        for &(line, state) in cache.sets.iter().flat_map(|(_, lines)| lines) {
            holders.entry(line).or_default().push((index, state));
        }
    }
    let around = |cache: usize| -> Vec<usize> {
        std::iter::successors(caches[cache].outer, |&cache| caches[cache].outer).collect()
    };
    for (line, holders) in &holders {
        let state = |cache: usize| {
            let mut held = holders.iter();
            held.find(|&&(other, _)| other == cache)
                .map(|&(_, state)| state)
        };
        let forwarders = holders
            .iter()
            .filter(|&&(_, state)| state == State::Forward);
        assert!(forwarders.count() <= 1, "{line:#x} has two forwarders");
        for &(cache, held) in holders {
            let owned = held >= State::Exclusive;
            for &(other, _) in holders {
                let related = other == cache
                    || around(cache).contains(&other)
                    || around(other).contains(&cache);
                assert!(
                    related || !owned,
                    "{line:#x} is {held:?} in cache {cache} and also in {other}"
                );
            }
            for outer in around(cache) {
                let level = usize::from(caches[outer].level) - 1;
                if config.levels[level].inclusion == Inclusion::Inclusive {
                    let outside = state(outer);
                    assert!(outside.is_some(), "{line:#x} is in {cache}, not in {outer}");
                    assert!(
                        !owned || outside >= Some(State::Exclusive),
                        "{line:#x} is {held:?} in {cache}, but {outside:?} in {outer}"
                    );
                }
            }
            assert!(
                caches[cache].kind != CacheKind::Instruction || held != State::Modified,
                "{line:#x} is modified in an instruction cache"
            );
        }
    }
    for line in dirty {
        let modified = |&(_, state): &(usize, State)| state == State::Modified;
        assert!(
            holders
                .get(line)
                .is_some_and(|held| held.iter().any(modified)),
            "the data of {line:#x} are lost: {:?}",
            holders.get(line)
        );
    }
}
