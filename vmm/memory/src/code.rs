//! The code map records which guest memory counts as code. A write to code by a vCPU or device invalidates decoded code, and ends the
//! block that writes.
//!
//! A page with decoded code counts as code as a whole, since nodes share translated code by pages: a block of shared code may run that this
//! node has not decoded. A page that is often written to is not shared. Of such a page only the granules of 64 bytes with decoded code count
//! as code, so that a write to data beside code invalidates nothing. The rule is the same for all engines, because the end of a block
//! decides where a time slice ends.
//!
//! One mask bit represents a granule; 64 bits represent a page. A write to a granule with code advances the page's generation. A decoded
//! block records the generation under which it was made, and is dropped when the page has another one (SDM vol. 3A §8.1.3: self- and
//! cross-modifying code).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use vm_memory::bitmap::{Bitmap, BitmapSlice, NewBitmap, WithBitmapSlice};

/// Base-2 logarithm of a granule's size in bytes.
const GRANULE_SHIFT: u32 = 6;

/// Base-2 logarithm of a large page's size in bytes.
const LARGE_SHIFT: u32 = 21;

/// Maximum number of writes to a page's code up to which the whole page counts as code, and nodes may share its translated code.
pub const MOST_WRITES_OF_SHARED_PAGE: u32 = 16;

/// Number of most recent writes to code whose pages are recorded.
const RECENT: usize = 32;

#[derive(Debug)]
struct Page {
    /// Granules from which code has been decoded, one bit each.
    mask: AtomicU64,
    /// Number of writes to granules of the page that had code.
    generation: AtomicU32,
}

/// State of one page of a [`CodeMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodePage {
    /// Number of the page in its region.
    pub page: u32,
    /// See [`CodeMap::generation`].
    pub generation: u32,
    /// Granules that count as code, one bit each.
    pub granules: u64,
}

/// Code map of one RAM region, indexed by byte offset in the region. Clones share the map.
///
/// The fields are atomic, so that the map can be shared. All accesses are relaxed, because the users of decoded code, vCPUs of the portable
/// engine, run on one thread per node together with the devices.
#[derive(Clone, Debug, Default)]
pub struct CodeMap(Arc<Region>);

#[derive(Debug, Default)]
struct Region {
    pages: Box<[Page]>,
    /// For each 2 MiB, the number of pages with code.
    with_code: Box<[AtomicU32]>,
    /// Number of times that a page without code became a page with code.
    marks: AtomicU64,
    /// Number of writes to code.
    rewrites: AtomicU64,
    /// Numbers of the pages of the most recent writes to code.
    recent: [AtomicU32; RECENT],
}

impl CodeMap {
    /// Returns the generation of the page at this byte offset: the number of writes to its code.
    #[inline]
    pub fn generation(&self, offset: usize) -> u32 {
        self.0.pages[offset >> 12]
            .generation
            .load(Ordering::Relaxed)
    }

    /// Returns a reference to the page's generation counter, for engines that check the counter in their inner loop. The counter's address
    /// is valid as long as any clone of this map exists.
    pub fn generation_cell(&self, offset: usize) -> &AtomicU32 {
        &self.0.pages[offset >> 12].generation
    }

    /// Returns whether the page at this byte offset has code that was decoded and not written to since.
    #[inline]
    pub fn has_code(&self, offset: usize) -> bool {
        self.0.pages[offset >> 12].mask.load(Ordering::Relaxed) != 0
    }

    /// Returns whether any page of the aligned 2 MiB around this byte offset has decoded code.
    #[inline]
    pub fn large_page_has_code(&self, offset: usize) -> bool {
        self.0.with_code[offset >> LARGE_SHIFT].load(Ordering::Relaxed) != 0
    }

    /// Records that code was decoded from `offset..offset + len`, which must be within one page. Returns true if the page had no code
    /// before: all users that cache write permission for the page must then drop the permission.
    pub fn mark(&self, offset: usize, len: usize) -> bool {
        let page = &self.0.pages[offset >> 12];
        let code = match page.generation.load(Ordering::Relaxed) {
            0..=MOST_WRITES_OF_SHARED_PAGE => u64::MAX,
            _ => granules(offset & 0xfff, len),
        };
        let first = page.mask.fetch_or(code, Ordering::Relaxed) == 0;
        if first {
            self.0.marks.fetch_add(1, Ordering::Relaxed);
            self.0.with_code[offset >> LARGE_SHIFT].fetch_add(1, Ordering::Relaxed);
        }
        first
    }

    /// Returns a counter that advances whenever a page without code becomes a page with code. A user that caches write permissions compares
    /// the counter when the user starts to run, and drops the permissions if the counter has changed.
    #[inline]
    pub fn marks(&self) -> u64 {
        self.0.marks.load(Ordering::Relaxed)
    }

    /// Returns a counter that advances with each write to code. A user that caches the code being executed compares the counter when the
    /// user starts to run, and after each access to a device.
    #[inline]
    pub fn rewrites(&self) -> u64 {
        self.0.rewrites.load(Ordering::Relaxed)
    }

    /// Returns the byte offsets of the pages whose code was written to since [`CodeMap::rewrites`] returned `seen`. Returns `None` if there
    /// were more writes than are recorded.
    pub fn rewritten_since(&self, seen: u64) -> Option<impl Iterator<Item = usize> + '_> {
        let now = self.rewrites();
        let page = |n: u64| self.0.recent[n as usize % RECENT].load(Ordering::Relaxed);
        (now - seen <= RECENT as u64).then(|| (seen..now).map(move |n| (page(n) as usize) << 12))
    }

    /// Returns the states of all pages that have code or had code, in order.
    pub fn save(&self) -> Vec<CodePage> {
        let pages = (0..).zip(&self.0.pages).map(|(number, page)| CodePage {
            page: number,
            generation: page.generation.load(Ordering::Relaxed),
            granules: page.mask.load(Ordering::Relaxed),
        });
        pages
            .filter(|page| page.generation != 0 || page.granules != 0)
            .collect()
    }

    /// Restores the states of pages. Returns false, and changes nothing, if the pages are not pages of the region in ascending order, or if
    /// code was decoded from the region already: a decoded block could have the generation of other contents.
    pub fn restore(&self, pages: &[CodePage]) -> bool {
        let ascending = pages.windows(2).all(|two| two[0].page < two[1].page);
        let last = pages.last().map_or(0, |last| last.page as usize);
        if !ascending || last >= self.0.pages.len().max(1) || self.marks() != 0 {
            return false;
        }
        for state in pages {
            let page = &self.0.pages[state.page as usize];
            page.generation.store(state.generation, Ordering::Relaxed);
            page.mask.store(state.granules, Ordering::Relaxed);
            if state.granules != 0 {
                let large = (state.page as usize) << 12 >> LARGE_SHIFT;
                self.0.with_code[large].fetch_add(1, Ordering::Relaxed);
                self.0.marks.fetch_add(1, Ordering::Relaxed);
            }
        }
        true
    }

    /// Records a write to `offset..offset + len`. Returns true if the write hit code.
    #[inline]
    pub fn written(&self, offset: usize, len: usize) -> bool {
        let mut hit = false;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let stop = ((at | 0xfff) + 1).min(end);
            let page = &self.0.pages[at >> 12];
            let mask = page.mask.load(Ordering::Relaxed);
            let written = granules(at & 0xfff, stop - at);
            if mask & written != 0 {
                page.generation.fetch_add(1, Ordering::Relaxed);
                // The new generation invalidates all blocks of the page, so all its mask bits are cleared too; decoding sets them again.
                page.mask.store(0, Ordering::Relaxed);
                self.0.with_code[at >> LARGE_SHIFT].fetch_sub(1, Ordering::Relaxed);
                let n = self.0.rewrites.fetch_add(1, Ordering::Relaxed);
                self.0.recent[n as usize % RECENT].store((at >> 12) as u32, Ordering::Relaxed);
                hit = true;
            }
            at = stop;
        }
        hit
    }
}

/// Returns the mask of the granules that `from..from + len` touches, where `from` is an offset in a page.
fn granules(from: usize, len: usize) -> u64 {
    if len == 0 {
        return 0;
    }
    let first = from >> GRANULE_SHIFT;
    let last = ((from + len - 1) >> GRANULE_SHIFT).min(63);
    (u64::MAX >> (63 - last)) & (u64::MAX << first)
}

/// View of a [`CodeMap`] from an offset on, in the form that vm-memory needs for writes by its own accessors (device DMA).
#[derive(Clone, Debug, Default)]
pub struct CodeSlice {
    map: CodeMap,
    base: usize,
}

impl WithBitmapSlice<'_> for CodeSlice {
    type S = CodeSlice;
}
impl BitmapSlice for CodeSlice {}

impl Bitmap for CodeSlice {
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.map.written(self.base + offset, len);
    }
    fn dirty_at(&self, offset: usize) -> bool {
        self.map.has_code(self.base + offset)
    }
    fn slice_at(&self, offset: usize) -> CodeSlice {
        CodeSlice {
            map: self.map.clone(),
            base: self.base + offset,
        }
    }
}

impl WithBitmapSlice<'_> for CodeMap {
    type S = CodeSlice;
}

impl Bitmap for CodeMap {
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.written(offset, len);
    }
    fn dirty_at(&self, offset: usize) -> bool {
        self.has_code(offset)
    }
    fn slice_at(&self, offset: usize) -> CodeSlice {
        CodeSlice {
            map: self.clone(),
            base: offset,
        }
    }
}

impl NewBitmap for CodeMap {
    fn with_len(len: usize) -> Self {
        let pages = (0..len.div_ceil(4096))
            .map(|_| Page {
                mask: AtomicU64::new(0),
                generation: AtomicU32::new(0),
            })
            .collect();
        Self(Arc::new(Region {
            pages,
            with_code: (0..len.div_ceil(1 << LARGE_SHIFT))
                .map(|_| AtomicU32::new(0))
                .collect(),
            ..Region::default()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a map of this length, with a page that is written to so often that it is not shared.
    fn map_with_private_page(len: usize, page: usize) -> CodeMap {
        let map = CodeMap::with_len(len);
        for n in 0..=MOST_WRITES_OF_SHARED_PAGE {
            assert!(map.mark(page, 1));
            assert_eq!(map.generation(page), n);
            assert!(map.written(page + 4095, 1), "the whole page is code");
        }
        map
    }

    #[test]
    fn a_write_beside_code_keeps_the_generation_of_a_page_that_is_not_shared() {
        let map = map_with_private_page(8192, 4096);
        let before = map.generation(4096);
        assert!(map.mark(4096 + 100, 30));
        assert!(!map.mark(4096 + 128, 2), "second mark of the page");
        assert!(!map.written(4096 + 192, 64), "granule 3 holds no code");
        assert_eq!(map.generation(4096), before);
        assert!(map.written(4096 + 127, 1));
        assert_eq!(map.generation(4096), before + 1);
        assert_eq!(map.generation(0), 0);
        assert!(!map.has_code(4096));
    }

    #[test]
    fn a_large_page_has_code_until_all_its_pages_have_lost_theirs() {
        let map = CodeMap::with_len(4 << 20);
        assert!(!map.large_page_has_code(0));
        for offset in [0x3000, 0x3040, 0x1f_5000] {
            map.mark(offset, 16);
        }
        assert!(map.large_page_has_code(0x10_0000) && !map.large_page_has_code(2 << 20));
        map.written(0x3080, 8);
        map.written(0x3008, 8);
        assert!(map.large_page_has_code(0), "the other page's");
        map.written(0x1f_5000, 1);
        assert!(!map.large_page_has_code(0));
        map.mark(0x3000, 1);
        assert!(map.large_page_has_code(0x1f_ffff));
    }

    #[test]
    fn a_write_across_pages_touches_both() {
        let map = CodeMap::with_len(8192);
        map.mark(4032, 64);
        map.mark(4096, 1);
        assert!(map.written(4090, 16));
        assert_eq!((map.generation(0), map.generation(4096)), (1, 1));
    }

    #[test]
    fn rewritten_pages_are_remembered_for_a_while() {
        let map = CodeMap::with_len(64 * 4096);
        let write = |page: usize| {
            map.mark(page * 4096 + 64, 8);
            assert!(map.written(page * 4096, 4096));
        };
        write(3);
        let seen = map.rewrites();
        write(5);
        write(4);
        let pages = |seen| map.rewritten_since(seen).map(Iterator::collect::<Vec<_>>);
        assert_eq!(pages(seen), Some(vec![5 * 4096, 4 * 4096]));
        assert_eq!(pages(map.rewrites()), Some(vec![]));
        (0..RECENT).for_each(write);
        assert_eq!(pages(map.rewrites() - RECENT as u64).unwrap().len(), RECENT);
        assert_eq!(pages(seen), None);
    }

    #[test]
    fn a_restored_map_continues_like_the_saved_one() {
        let map = map_with_private_page(4 << 20, 0x5000);
        for offset in [0x3000, 0x5040, 0x20_0000] {
            map.mark(offset, 16);
        }
        let saved = map.save();
        let other = CodeMap::with_len(4 << 20);
        assert!(other.restore(&saved));
        assert_eq!(other.save(), saved);
        assert_ne!(other.marks(), 0);
        for map in [&map, &other] {
            assert!(!map.written(0x5000, 64) && map.written(0x5040, 1));
            assert!(map.written(0x3fff, 1) && map.written(0x20_0fff, 1));
            assert!(!map.large_page_has_code(0) && !map.large_page_has_code(0x20_0000));
        }
        assert_eq!(other.save(), map.save());
    }

    #[test]
    fn a_state_of_other_pages_is_refused() {
        let map = CodeMap::with_len(8192);
        let page = |page| CodePage {
            page,
            generation: 1,
            granules: 1,
        };
        for bad in [&[page(2)][..], &[page(1), page(0)], &[page(1), page(1)]] {
            assert!(!map.restore(bad));
        }
        assert_eq!(map.save(), []);
        assert!(map.restore(&[]) && map.restore(&[page(0), page(1)]));
    }

    #[test]
    fn granule_masks() {
        assert_eq!(granules(0, 0), 0);
        assert_eq!(granules(0, 1), 1);
        assert_eq!(granules(63, 2), 3);
        assert_eq!(granules(0, 4096), u64::MAX);
        assert_eq!(granules(4032, 64), 1 << 63);
    }
}
