//! Pool of memory mappings that hierarchies have released, for reuse by later hierarchies. Windows open and close often, and a host may
//! take milliseconds to clear a huge page.

use std::alloc::{Layout, handle_alloc_error};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memmap2::MmapMut;

/// Mappings that no hierarchy uses, the oldest first.
pub(crate) struct MappingPool(Vec<MmapMut>);

static POOL: Mutex<MappingPool> = Mutex::new(MappingPool(Vec::new()));
/// Largest total size of the mappings in the pool, in bytes.
const MOST: usize = 64 << 20;
/// Smallest mapping that the pool keeps, in bytes.
const LEAST: usize = 1 << 20;

/// Returns the pool of this process.
pub(crate) fn mapping_pool() -> MutexGuard<'static, MappingPool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MappingPool {
    /// Returns a mapping of `bytes` bytes, and true if another hierarchy used it before. A mapping that was never used is all zero. As
    /// everywhere, the process ends if the host has no memory.
    pub(crate) fn acquire(&mut self, bytes: usize) -> (MmapMut, bool) {
        if let Some(at) = self.0.iter().position(|map| map.len() == bytes) {
            return (self.0.remove(at), true);
        }
        match (MmapMut::map_anon(bytes), Layout::from_size_align(bytes, 64)) {
            (Ok(map), _) => (map, false),
            (Err(_), Ok(layout)) => handle_alloc_error(layout),
            (Err(error), Err(_)) => panic!("cannot allocate the tags of the caches: {error}"),
        }
    }

    /// Adds a mapping to the pool, unless it is smaller than `LEAST` or larger than `MOST`. The oldest mappings are dropped while the pool
    /// is larger than `MOST`.
    pub(crate) fn release(&mut self, map: MmapMut) {
        if !(LEAST..=MOST).contains(&map.len()) {
            return;
        }
        self.0.push(map);
        while self.0.iter().map(|map| map.len()).sum::<usize>() > MOST {
            self.0.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_mapping_is_acquired_once() {
        let mut pool = MappingPool(Vec::new());
        let (mut map, used) = pool.acquire(LEAST);
        assert!(!used && map.iter().all(|b| *b == 0));
        map[5] = 1;
        pool.release(map);
        assert!(!pool.acquire(2 * LEAST).1, "of another size");
        let (map, used) = pool.acquire(LEAST);
        assert!(used && map[5] == 1);
        assert!(!pool.acquire(LEAST).1);
    }

    #[test]
    fn the_pool_keeps_no_small_or_large_mappings_and_drops_the_oldest() {
        let mut pool = MappingPool(Vec::new());
        for bytes in [LEAST - 1, MOST + 1] {
            let (map, _) = pool.acquire(bytes);
            pool.release(map);
            assert!(!pool.acquire(bytes).1, "{bytes}");
        }
        for bytes in [LEAST, MOST / 2, MOST / 2] {
            let (map, _) = MappingPool(Vec::new()).acquire(bytes);
            pool.release(map);
        }
        assert!(!pool.acquire(LEAST).1);
        assert!(pool.acquire(MOST / 2).1 && pool.acquire(MOST / 2).1);
    }
}
