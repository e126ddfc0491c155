//! Memory of hierarchies that are gone, for those that come: windows open and close often, and a host may take milliseconds to clear a huge
//! page.

use std::alloc::{Layout, handle_alloc_error};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memmap2::MmapMut;

/// Mappings that nobody uses.
pub(crate) struct Spare(Vec<MmapMut>);

static SPARE: Mutex<Spare> = Mutex::new(Spare(Vec::new()));
/// Most that is kept, bytes, and the smallest mapping that is.
const MOST: usize = 64 << 20;
const LEAST: usize = 1 << 20;

/// Those of this process.
pub(crate) fn spare() -> MutexGuard<'static, Spare> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Spare {
    /// A mapping of so many bytes, and whether it was another hierarchy's: else it is zero. As everywhere, the process ends if the host has
    /// no memory.
    pub(crate) fn take(&mut self, bytes: usize) -> (MmapMut, bool) {
        if let Some(at) = self.0.iter().position(|map| map.len() == bytes) {
            return (self.0.remove(at), true);
        }
        match (MmapMut::map_anon(bytes), Layout::from_size_align(bytes, 64)) {
            (Ok(map), _) => (map, false),
            (Err(_), Ok(layout)) => handle_alloc_error(layout),
            (Err(error), Err(_)) => panic!("cannot allocate the tags of the caches: {error}"),
        }
    }

    /// Keep a mapping for the next hierarchy of this size; the oldest ones make room for it.
    pub(crate) fn give(&mut self, map: MmapMut) {
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
    fn what_is_given_is_taken_again_once() {
        let mut spare = Spare(Vec::new());
        let (mut map, used) = spare.take(LEAST);
        assert!(!used && map.iter().all(|b| *b == 0));
        map[5] = 1;
        spare.give(map);
        assert!(!spare.take(2 * LEAST).1, "of another size");
        let (map, used) = spare.take(LEAST);
        assert!(used && map[5] == 1);
        assert!(!spare.take(LEAST).1);
    }

    #[test]
    fn what_is_too_small_or_too_large_is_not_kept_and_the_oldest_goes() {
        let mut spare = Spare(Vec::new());
        for bytes in [LEAST - 1, MOST + 1] {
            let (map, _) = spare.take(bytes);
            spare.give(map);
            assert!(!spare.take(bytes).1, "{bytes}");
        }
        for bytes in [LEAST, MOST / 2, MOST / 2] {
            let (map, _) = Spare(Vec::new()).take(bytes);
            spare.give(map);
        }
        assert!(!spare.take(LEAST).1);
        assert!(spare.take(MOST / 2).1 && spare.take(MOST / 2).1);
    }
}
