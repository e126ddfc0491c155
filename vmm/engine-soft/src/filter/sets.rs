//! The lines of each set of a first-level cache, and their order.

use nodescope_plugin_api::L0Geometry;

use super::isa::{Baseline, Isa};
use super::second::SecondLevel;

/// Most sets that are kept.
const SETS: usize = 64;
/// Most lines of a set.
const WAYS: usize = 16;
/// Places for lines.
pub const LANES: usize = SETS * WAYS;
/// Line of an empty lane.
pub const NONE: u64 = u64::MAX;
/// Line of a lane beyond the ways of the cache.
const NEVER: u64 = u64::MAX - 1;
/// Its stamp: it never is the oldest.
const FUTURE: u64 = u64::MAX >> 1;
/// From one stamp to the next: below are the bytes from the first lane's stamp to that of the lane that has it.
pub const TICK: u64 = 8 * LANES as u64;
/// No lane's stamp.
const UNKNOWN: u64 = 1;

/// The stamp that a lane gets at a time, a multiple of [`TICK`]. At time 0 it has no line.
#[inline(always)]
fn stamp(time: u64, lane: usize) -> u64 {
    time + 8 * lane as u64
}

/// The lane that has a stamp.
#[inline(always)]
fn stamped(stamp: u64) -> usize {
    (stamp % TICK) as usize / 8
}

/// A copy of what a model's first-level cache holds, made from the model's own answers: a line stays in one *lane* of its
/// set until the model takes it away. The order within a set is a stamp that each hit beyond the most recent line renews; the
/// model itself does not know it.
// A set of eight is a line of the host.
#[repr(C, align(64))]
pub struct Sets {
    /// When each line last became the most recently used of its set, and its lane, so that a set's least stamp says both.
    pub stamps: [u64; LANES],
    /// Physical lines, or [`NONE`], or [`NEVER`].
    pub lines: [u64; LANES],
    /// Of each set the least stamp when it was last worked out. It still is the least if a lane has it: stamps only grow, but
    /// where a line leaves, which leaves [`UNKNOWN`] here.
    pub least: [u64; SETS],
    /// Advances by [`TICK`] with every stamp.
    pub clock: u64,
    /// log2 of the lanes of a set; 0: nothing is kept.
    lane_shift: u32,
    /// The number of sets, minus one.
    last_set: usize,
}

/// Where a line lies, or is to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    lane: usize,
    /// The line that must go first: the set is full.
    pub oldest: Option<u64>,
}

/// The line of a full set that was used least recently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oldest {
    lane: usize,
    stamp: u64,
    /// The line.
    pub line: u64,
}

impl Default for Sets {
    fn default() -> Self {
        Self {
            clock: 0,
            stamps: std::array::from_fn(|lane| stamp(0, lane)),
            lines: [NONE; LANES],
            least: [UNKNOWN; SETS],
            lane_shift: 0,
            last_set: 0,
        }
    }
}

impl Sets {
    /// Start empty, for sets of `ways` lines; nothing is kept where the model allows one line for each slot only, or where
    /// lines are not those of translated code's routines.
    pub fn shape(&mut self, geometry: Option<L0Geometry>, slots: u8, ways: u8) {
        *self = Self::default();
        let Some(geometry) = geometry else { return };
        let kept = SecondLevel::LINE == 1 << geometry.line_shift;
        if ways < 2 || slots == 0 || !kept {
            return;
        }
        assert!(
            usize::from(ways) <= WAYS && 1 << slots <= SETS,
            "filter geometry has more lines than the engine keeps"
        );
        self.lane_shift = if ways <= 8 { 3 } else { 4 };
        self.last_set = (1 << slots) - 1;
        for lane in 0..LANES {
            if lane & ((1 << self.lane_shift) - 1) >= ways.into() {
                self.lines[lane] = NEVER;
                self.stamps[lane] = FUTURE;
            }
        }
    }

    /// Whether anything is kept.
    #[inline(always)]
    pub fn kept(&self) -> bool {
        self.lane_shift != 0
    }

    /// log2 of the lanes of a set.
    pub fn lane_shift(&self) -> u32 {
        self.lane_shift
    }

    /// How many lanes are in use.
    pub fn used(&self) -> usize {
        if self.kept() {
            (self.last_set + 1) << self.lane_shift
        } else {
            0
        }
    }

    /// The set of a line, or of any address in it.
    #[inline(always)]
    pub fn set(&self, line: u64) -> usize {
        (line / SecondLevel::LINE) as usize & self.last_set
    }

    /// First lane of a set, and how many there are.
    #[inline(always)]
    pub fn lanes(&self, set: usize) -> std::ops::Range<usize> {
        let first = set << self.lane_shift;
        first..first + (1 << self.lane_shift)
    }

    /// Bits of the ways of a set that hold a line.
    #[inline(always)]
    fn holding(&self, isa: impl Isa, set: usize, line: u64) -> u32 {
        if self.lane_shift == 3 {
            isa.equal(&self.lines.as_chunks::<8>().0[set % SETS], line)
        } else {
            isa.equal(&self.lines.as_chunks::<16>().0[set % SETS], line)
        }
    }

    /// The least stamp of a set but for this one: an empty lane's, if there is any.
    #[inline(always)]
    fn least_but(&self, isa: impl Isa, set: usize, stamp: u64) -> u64 {
        if self.lane_shift == 3 {
            isa.least_but(&self.stamps.as_chunks::<8>().0[set % SETS], stamp)
        } else {
            isa.least_but(&self.stamps.as_chunks::<16>().0[set % SETS], stamp)
        }
    }

    /// Lane of a physical line.
    #[inline]
    pub fn find(&self, line: u64) -> Option<usize> {
        let set = self.set(line);
        let ways = self.holding(Baseline, set, line);
        (ways != 0).then(|| (set << self.lane_shift) + ways.trailing_zeros() as usize)
    }

    /// A hit: the line in this lane is now the most recently used of its set.
    #[inline(always)]
    pub fn promote(&mut self, lane: usize) {
        self.clock += TICK;
        self.stamps[lane] = stamp(self.clock, lane);
    }

    /// Where a line lies, or which line the cache replaces to make room for it.
    #[inline(always)]
    pub fn position(&self, isa: impl Isa, line: u64) -> Position {
        let set = self.set(line);
        let first = set << self.lane_shift;
        let ways = self.holding(isa, set, line);
        if ways != 0 {
            return Position {
                lane: first + ways.trailing_zeros() as usize,
                oldest: None,
            };
        }
        let lane = stamped(self.least_but(isa, set, UNKNOWN));
        Position {
            lane,
            oldest: Some(self.lines[lane]).filter(|&oldest| oldest != NONE),
        }
    }

    /// The line that another takes the place of, in the set of an address; None where the set is not full.
    #[inline(always)]
    pub fn oldest(&self, isa: impl Isa, address: u64) -> Option<Oldest> {
        let set = self.set(address) % SETS;
        let mut stamp = self.least[set];
        if self.stamps[stamped(stamp)] != stamp {
            stamp = self.least_but(isa, set, UNKNOWN);
        }
        let lane = stamped(stamp);
        let line = self.lines[lane];
        (line != NONE).then_some(Oldest { lane, line, stamp })
    }

    /// Whether the cache holds a line.
    #[inline(always)]
    pub fn holds(&self, isa: impl Isa, line: u64) -> bool {
        self.holding(isa, self.set(line), line) != 0
    }

    /// Put a line in the place of the oldest of its set, as the most recently used. Its lane.
    #[inline(always)]
    pub fn succeed(&mut self, isa: impl Isa, oldest: &Oldest, line: u64) -> usize {
        let lane = oldest.lane % LANES;
        let set = self.set(line) % SETS;
        // What is asked next is worked out now: whoever asks has to wait for it.
        self.least[set] = self.least_but(isa, set, oldest.stamp);
        self.lines[lane] = line;
        self.promote(lane);
        lane
    }

    /// The same where nothing else has changed: the line lies where [`Sets::position`] said, in place of `replaced` or where there was
    /// room. Its lane; None, and nothing done, elsewhere.
    #[inline(always)]
    pub fn replace(
        &mut self,
        line: u64,
        replaced: Option<u64>,
        position: Position,
    ) -> Option<usize> {
        let lane = position.lane % LANES;
        if self.lines[lane] != replaced.unwrap_or(NONE) {
            return None;
        }
        self.lines[lane] = line;
        self.promote(lane);
        Some(lane)
    }

    /// The model has made a line the most recently used of its set, in place of `replaced`. Its lane. `position`: what
    /// [`Sets::position`] answered before the model did.
    pub fn enter(&mut self, line: u64, replaced: Option<u64>, position: Position) -> usize {
        let mut lane = position.lane;
        let there = self.lines[lane];
        if there != replaced.unwrap_or(line) && (replaced.is_some() || there != NONE) {
            // The model took other lines away, or one that is not kept here.
            let set = self.set(line);
            let way = match replaced.map_or(0, |line| self.holding(Baseline, set, line)) {
                0 => self.holding(Baseline, set, NONE),
                ways => ways,
            };
            assert!(way != 0, "a model tells which line it replaced");
            lane = (set << self.lane_shift) + way.trailing_zeros() as usize;
        }
        self.lines[lane] = line;
        self.promote(lane);
        lane
    }

    /// A line has left the cache. The lane it had.
    #[inline]
    pub fn remove(&mut self, line: u64) -> Option<usize> {
        let lane = self.find(line)?;
        self.lines[lane] = NONE;
        self.stamps[lane] = stamp(0, lane);
        self.least[self.set(line)] = UNKNOWN;
        Some(lane)
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
        }
    }

    fn enter(sets: &mut Sets, line: u64, replaced: Option<u64>) -> usize {
        let position = sets.position(Baseline, line);
        sets.enter(line, replaced, position)
    }

    fn oldest(sets: &Sets, line: u64) -> Option<u64> {
        sets.position(Baseline, line).oldest
    }

    #[test]
    fn the_oldest_line_of_a_full_set_is_the_one_used_least_recently() {
        let mut sets = Sets::default();
        sets.shape(Some(geometry()), 1, 4);
        let lanes: Vec<usize> = (0..4)
            .map(|n| {
                assert_eq!(oldest(&sets, n * 128), None, "there is room");
                enter(&mut sets, n * 128, None)
            })
            .collect();
        assert_eq!(oldest(&sets, 1024), Some(0));
        for (hit, then) in [(2, 0), (0, 128), (2, 128), (1, 384), (3, 0), (0, 256)] {
            sets.promote(lanes[hit]);
            assert_eq!(oldest(&sets, 1024), Some(then));
        }
        assert_eq!(oldest(&sets, 128), None, "it is there");
        assert_eq!(oldest(&sets, 64), None, "the other set is empty");
    }

    #[test]
    fn a_line_that_left_makes_room() {
        let mut sets = Sets::default();
        sets.shape(Some(geometry()), 1, 4);
        let lanes: Vec<usize> = (0..4).map(|n| enter(&mut sets, n * 128, None)).collect();
        assert_eq!(sets.remove(128), Some(lanes[1]));
        assert_eq!(sets.remove(128), None);
        assert_eq!(oldest(&sets, 1024), None);
        assert_eq!(enter(&mut sets, 1024, None), lanes[1]);
        assert_eq!(enter(&mut sets, 1024, None), lanes[1]);
        // A model may replace another line than the oldest, or none since it took one away.
        assert_eq!(oldest(&sets, 2048), Some(0));
        assert_eq!(enter(&mut sets, 2048, Some(256)), lanes[2]);
        let position = sets.position(Baseline, 4096);
        sets.remove(384);
        assert_eq!(sets.enter(4096, None, position), lanes[3]);
        assert_eq!((sets.find(1024), sets.find(256)), (Some(lanes[1]), None));
    }

    #[test]
    fn a_line_replaces_what_the_model_says_where_it_is_expected() {
        let mut sets = Sets::default();
        sets.shape(Some(geometry()), 1, 4);
        let lanes: Vec<usize> = (0..4)
            .map(|n| {
                let position = sets.position(Baseline, n * 128);
                sets.replace(n * 128, None, position)
                    .expect("there is room")
            })
            .collect();
        let position = sets.position(Baseline, 1024);
        assert_eq!(position.oldest, Some(0));
        assert_eq!(sets.replace(1024, None, position), None, "it held a line");
        assert_eq!(sets.replace(1024, Some(128), position), None, "another");
        assert_eq!(sets.find(1024), None);
        assert_eq!(sets.replace(1024, Some(0), position), Some(lanes[0]));
        assert_eq!((sets.find(0), sets.find(1024)), (None, Some(lanes[0])));
        assert_eq!(oldest(&sets, 2048), Some(128), "the new line was used last");
        let there = sets.position(Baseline, 1024);
        assert_eq!(sets.replace(1024, None, there), None, "it is there");
    }

    /// Against a list, with as many ways as there are lanes and with fewer.
    #[test]
    fn sets_agree_with_lists() {
        for ways in [2_u8, 5, 8, 11, 16] {
            let mut sets = Sets::default();
            sets.shape(Some(geometry()), 1, ways);
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
                        enter(&mut sets, line, replaced);
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_is_kept_where_the_model_allows_one_line() {
        let mut sets = Sets::default();
        sets.shape(Some(geometry()), 1, 1);
        assert!(!sets.kept());
        sets.shape(None, 1, 4);
        assert!(!sets.kept());
    }
}
