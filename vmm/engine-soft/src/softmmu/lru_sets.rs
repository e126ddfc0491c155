//! Lines of each set of a first-level cache, and their LRU order.

use nodescope_plugin_api::L0Geometry;

use super::isa::{Baseline, Isa};
use super::way_directory::WayDirectory;

/// Largest number of sets.
const SETS: usize = 64;
/// Largest number of lines of a set.
const MAX_WAYS: usize = 16;
/// Number of way indices of all sets.
pub const DIRECTORY_WAYS: usize = SETS * MAX_WAYS;
/// Value of [`LruSets::lines`] for an empty way.
pub const NO_LINE: u64 = u64::MAX;
/// Value of [`LruSets::lines`] for a way index beyond the ways of the modelled cache.
const UNUSED_WAY: u64 = u64::MAX - 1;
/// Stamp of a way beyond the ways of the cache, which is never the oldest.
const UNUSED_STAMP: u64 = u64::MAX >> 1;
/// Distance of consecutive time stamps. The lower bits of a stamp are the way's offset in [`LruSets::stamps`], in bytes.
pub const TICK: u64 = 8 * DIRECTORY_WAYS as u64;
/// Stamp that no way ever has: the oldest stamp is unknown.
const NO_STAMP: u64 = 1;

/// Returns the stamp that a way gets at `time`, which is a multiple of [`TICK`]. Time 0 stands for a way without a line.
#[inline(always)]
fn stamp(time: u64, way: usize) -> u64 {
    time + 8 * way as u64
}

/// Returns the way that has a stamp.
#[inline(always)]
fn stamped(stamp: u64) -> usize {
    (stamp % TICK) as usize / 8
}

/// Copy of the lines of a model's first-level cache, made from the model's answers. A line stays in one way of its set until the model
/// removes the line. Time stamps keep the LRU order within a set: each hit beyond the most recently used line renews a stamp. The model
/// itself does not have this order.
// A set of eight is a line of the host.
#[repr(C, align(64))]
pub struct LruSets {
    /// Time at which each way's line last became the most recently used of its set, and the way itself, so that the oldest stamp of a set
    /// gives both.
    pub stamps: [u64; DIRECTORY_WAYS],
    /// Physical lines, or [`NO_LINE`], or [`UNUSED_WAY`].
    pub lines: [u64; DIRECTORY_WAYS],
    /// Oldest stamp of each set when the miss routines of translated code last computed it. It still is the oldest if its way has this
    /// stamp: stamps only grow, except where a line leaves. Then this becomes [`NO_STAMP`].
    pub oldest_stamps: [u64; SETS],
    /// Time of the last stamp: advances by [`TICK`] with every stamp.
    pub clock: u64,
    /// log2 of the number of way indices of each set: 3 or 4; 0 where whole sets are not kept.
    way_shift: u32,
    /// The number of sets, minus one.
    last_set: usize,
}

/// Way of a line that is in the cache or is filled in next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    way: usize,
    /// The line that must leave first, because the set is full; None if the set has an empty way or already has the wanted line.
    pub oldest: Option<u64>,
}

impl Default for LruSets {
    fn default() -> Self {
        Self {
            clock: 0,
            stamps: std::array::from_fn(|way| stamp(0, way)),
            lines: [NO_LINE; DIRECTORY_WAYS],
            oldest_stamps: [NO_STAMP; SETS],
            way_shift: 0,
            last_set: 0,
        }
    }
}

impl LruSets {
    /// Empties all sets, for sets of `ways` lines. `slots` is log2 of the number of sets. Whole sets are not kept without a geometry, for a
    /// single set or a single way, or where lines have another size than [`WayDirectory::LINE`].
    pub fn configure(&mut self, geometry: Option<L0Geometry>, slots: u8, ways: u8) {
        *self = Self::default();
        let Some(geometry) = geometry else { return };
        let line_fits = WayDirectory::LINE == 1 << geometry.line_shift;
        if ways < 2 || slots == 0 || !line_fits {
            return;
        }
        assert!(
            usize::from(ways) <= MAX_WAYS && 1 << slots <= SETS,
            "L0 geometry has more lines than the engine keeps"
        );
        self.way_shift = if ways <= 8 { 3 } else { 4 };
        self.last_set = (1 << slots) - 1;
        for way in 0..DIRECTORY_WAYS {
            if way & ((1 << self.way_shift) - 1) >= ways.into() {
                self.lines[way] = UNUSED_WAY;
                self.stamps[way] = UNUSED_STAMP;
            }
        }
    }

    /// Returns whether whole sets are kept.
    #[inline(always)]
    pub fn enabled(&self) -> bool {
        self.way_shift != 0
    }

    /// Returns log2 of the number of way indices of each set; 0 where whole sets are not kept.
    pub fn way_shift(&self) -> u32 {
        self.way_shift
    }

    /// Returns the number of way indices in use.
    pub fn used_ways(&self) -> usize {
        if self.enabled() {
            (self.last_set + 1) << self.way_shift
        } else {
            0
        }
    }

    /// Returns the set of a line, or of any address in it.
    #[inline(always)]
    pub fn set(&self, line: u64) -> usize {
        (line / WayDirectory::LINE) as usize & self.last_set
    }

    /// Returns the way indices of a set.
    #[inline(always)]
    pub fn ways(&self, set: usize) -> std::ops::Range<usize> {
        let first = set << self.way_shift;
        first..first + (1 << self.way_shift)
    }

    /// Returns a mask in which bit n is set if way n of the set holds the line.
    #[inline(always)]
    fn holding(&self, isa: impl Isa, set: usize, line: u64) -> u32 {
        if self.way_shift == 3 {
            isa.equal(&self.lines.as_chunks::<8>().0[set % SETS], line)
        } else {
            isa.equal(&self.lines.as_chunks::<16>().0[set % SETS], line)
        }
    }

    /// Returns the oldest stamp of a set. An empty way's stamp is older than all others.
    #[inline(always)]
    fn oldest_stamp(&self, isa: impl Isa, set: usize) -> u64 {
        if self.way_shift == 3 {
            isa.least(&self.stamps.as_chunks::<8>().0[set % SETS])
        } else {
            isa.least(&self.stamps.as_chunks::<16>().0[set % SETS])
        }
    }

    /// Returns the way of a physical line.
    #[inline]
    pub fn find(&self, line: u64) -> Option<usize> {
        let set = self.set(line);
        let bits = self.holding(Baseline, set, line);
        (bits != 0).then(|| (set << self.way_shift) + bits.trailing_zeros() as usize)
    }

    /// Makes the line in this way the most recently used of its set.
    #[inline(always)]
    pub fn promote(&mut self, way: usize) {
        self.clock += TICK;
        self.stamps[way] = stamp(self.clock, way);
    }

    /// Returns the way of a line: the way that has the line, or the way that the line gets. In the second case, also returns the line that
    /// must leave first, if the set is full.
    #[inline(always)]
    pub fn placement(&self, isa: impl Isa, line: u64) -> Placement {
        let set = self.set(line);
        let first = set << self.way_shift;
        let bits = self.holding(isa, set, line);
        if bits != 0 {
            return Placement {
                way: first + bits.trailing_zeros() as usize,
                oldest: None,
            };
        }
        let way = stamped(self.oldest_stamp(isa, set));
        Placement {
            way,
            oldest: Some(self.lines[way]).filter(|&oldest| oldest != NO_LINE),
        }
    }

    /// Fills in a line at the result of [`LruSets::placement`], in place of `replaced` or in an empty way, and makes the line the most
    /// recently used. Returns the line's way. Returns None, with nothing done, if that way has another line than `replaced` (for None: if
    /// it is not empty).
    #[inline(always)]
    pub fn fill_at(
        &mut self,
        line: u64,
        replaced: Option<u64>,
        placement: Placement,
    ) -> Option<usize> {
        let way = placement.way % DIRECTORY_WAYS;
        if self.lines[way] != replaced.unwrap_or(NO_LINE) {
            return None;
        }
        self.lines[way] = line;
        self.promote(way);
        Some(way)
    }

    /// Makes a line the most recently used of its set, in place of `replaced`, as the model has done. `placement` is the answer of
    /// [`LruSets::placement`] before the model's reference. Returns the line's way.
    pub fn fill(&mut self, line: u64, replaced: Option<u64>, placement: Placement) -> usize {
        let mut way = placement.way;
        let there = self.lines[way];
        if there != replaced.unwrap_or(line) && (replaced.is_some() || there != NO_LINE) {
            // The model removed other lines, or a line that is not kept here.
            let set = self.set(line);
            let bits = match replaced.map_or(0, |line| self.holding(Baseline, set, line)) {
                0 => self.holding(Baseline, set, NO_LINE),
                bits => bits,
            };
            assert!(bits != 0, "a model names the line that it replaced");
            way = (set << self.way_shift) + bits.trailing_zeros() as usize;
        }
        self.lines[way] = line;
        self.promote(way);
        way
    }

    /// Removes a line that has left the cache. Returns the way that had the line; None if no way had it.
    #[inline]
    pub fn remove(&mut self, line: u64) -> Option<usize> {
        let way = self.find(line)?;
        self.lines[way] = NO_LINE;
        self.stamps[way] = stamp(0, way);
        self.oldest_stamps[self.set(line)] = NO_STAMP;
        Some(way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> L0Geometry {
        L0Geometry {
            line_shift: 6,
            data_slots: 1,
            instruction_slots: 0,
            data_ways: 4,
            instruction_ways: 1,
            page_sizes: false,
        }
    }

    fn fill(sets: &mut LruSets, line: u64, replaced: Option<u64>) -> usize {
        let placement = sets.placement(Baseline, line);
        sets.fill(line, replaced, placement)
    }

    fn oldest(sets: &LruSets, line: u64) -> Option<u64> {
        sets.placement(Baseline, line).oldest
    }

    #[test]
    fn the_oldest_line_of_a_full_set_is_the_one_used_least_recently() {
        let mut sets = LruSets::default();
        sets.configure(Some(geometry()), 1, 4);
        let ways: Vec<usize> = (0..4)
            .map(|n| {
                assert_eq!(oldest(&sets, n * 128), None, "there is room");
                fill(&mut sets, n * 128, None)
            })
            .collect();
        assert_eq!(oldest(&sets, 1024), Some(0));
        for (hit, then) in [(2, 0), (0, 128), (2, 128), (1, 384), (3, 0), (0, 256)] {
            sets.promote(ways[hit]);
            assert_eq!(oldest(&sets, 1024), Some(then));
        }
        assert_eq!(oldest(&sets, 128), None, "it is there");
        assert_eq!(oldest(&sets, 64), None, "the other set is empty");
    }

    #[test]
    fn a_line_that_left_makes_room() {
        let mut sets = LruSets::default();
        sets.configure(Some(geometry()), 1, 4);
        let ways: Vec<usize> = (0..4).map(|n| fill(&mut sets, n * 128, None)).collect();
        assert_eq!(sets.remove(128), Some(ways[1]));
        assert_eq!(sets.remove(128), None);
        assert_eq!(oldest(&sets, 1024), None);
        assert_eq!(fill(&mut sets, 1024, None), ways[1]);
        assert_eq!(fill(&mut sets, 1024, None), ways[1]);
        // A model may replace another line than the oldest, or none since it took one away.
        assert_eq!(oldest(&sets, 2048), Some(0));
        assert_eq!(fill(&mut sets, 2048, Some(256)), ways[2]);
        let placement = sets.placement(Baseline, 4096);
        sets.remove(384);
        assert_eq!(sets.fill(4096, None, placement), ways[3]);
        assert_eq!((sets.find(1024), sets.find(256)), (Some(ways[1]), None));
    }

    #[test]
    fn a_line_replaces_what_the_model_says_where_it_is_expected() {
        let mut sets = LruSets::default();
        sets.configure(Some(geometry()), 1, 4);
        let ways: Vec<usize> = (0..4)
            .map(|n| {
                let placement = sets.placement(Baseline, n * 128);
                sets.fill_at(n * 128, None, placement)
                    .expect("there is room")
            })
            .collect();
        let placement = sets.placement(Baseline, 1024);
        assert_eq!(placement.oldest, Some(0));
        assert_eq!(sets.fill_at(1024, None, placement), None, "it held a line");
        assert_eq!(sets.fill_at(1024, Some(128), placement), None, "another");
        assert_eq!(sets.find(1024), None);
        assert_eq!(sets.fill_at(1024, Some(0), placement), Some(ways[0]));
        assert_eq!((sets.find(0), sets.find(1024)), (None, Some(ways[0])));
        assert_eq!(oldest(&sets, 2048), Some(128), "the new line was used last");
        let there = sets.placement(Baseline, 1024);
        assert_eq!(sets.fill_at(1024, None, there), None, "it is there");
    }

    /// Compares with a list, for numbers of ways that are powers of two and others.
    #[test]
    fn sets_agree_with_lists() {
        for ways in [2_u8, 5, 8, 11, 16] {
            let mut sets = LruSets::default();
            sets.configure(Some(geometry()), 1, ways);
            let mut list: Vec<u64> = Vec::new();
            let mut random = 1_u64;
            for _ in 0..5000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let line = (random >> 33) % (2 * u64::from(ways)) * 128;
                let held = list.iter().position(|&l| l == line);
                assert_eq!(sets.find(line).is_some(), held.is_some());
                match (held, random >> 60) {
                    (Some(at), 0 | 1) => {
                        list.remove(at);
                        assert!(sets.remove(line).is_some());
                    }
                    (Some(at), 2..=8) => {
                        list.remove(at);
                        list.push(line);
                        sets.promote(sets.find(line).unwrap());
                    }
                    (_, _) => {
                        let full = held.is_none() && list.len() == usize::from(ways);
                        let replaced = full.then(|| list.remove(0));
                        assert_eq!(oldest(&sets, line), replaced);
                        list.retain(|&l| l != line);
                        list.push(line);
                        fill(&mut sets, line, replaced);
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_is_kept_where_the_model_allows_one_line() {
        let mut sets = LruSets::default();
        sets.configure(Some(geometry()), 1, 1);
        assert!(!sets.enabled());
        sets.configure(None, 1, 4);
        assert!(!sets.enabled());
    }
}
