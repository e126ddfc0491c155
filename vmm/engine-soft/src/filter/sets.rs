//! The lines of each set of a first-level cache, and the order of the hits that the model has not heard of.

use nodescope_plugin_api::FilterGeometry;

use super::host::{Baseline, Host};

/// Most sets that are kept.
const SETS: usize = 64;
/// Most lines of a set.
const WAYS: usize = 16;
/// Places for lines.
pub const LANES: usize = SETS * WAYS;
/// Line of an empty lane.
const NONE: u64 = u64::MAX;

/// A copy of what a model's first-level cache holds, made from the model's own answers: a line stays in one *lane* of its
/// set until the model takes it away. The order within a set is a stamp that each hit beyond the most recent line renews.
#[repr(C)]
pub struct Sets {
    /// Advances with every stamp.
    pub clock: u64,
    /// When each line last became the most recently used of its set.
    pub stamps: [u64; LANES],
    /// Physical lines, or [`NONE`].
    pub lines: [u64; LANES],
    /// The clock when the model was last told the order of a set.
    told: [u64; SETS],
    /// log2 of the lanes of a set; 0: nothing is kept.
    lane_shift: u32,
    line_shift: u32,
    sets: usize,
}

/// Room for what [`Sets::tell`] tells.
pub type Order = [u64; WAYS];

impl Default for Sets {
    fn default() -> Self {
        Self {
            clock: 0,
            stamps: [0; LANES],
            lines: [NONE; LANES],
            told: [0; SETS],
            lane_shift: 0,
            line_shift: 0,
            sets: 0,
        }
    }
}

impl Sets {
    /// Start empty, for sets of `ways` lines; nothing is kept where the model allows one line for each slot only, or where
    /// lines are not those of translated code's routines.
    pub fn shape(&mut self, geometry: Option<FilterGeometry>, slots: u8, ways: u8) {
        *self = Self::default();
        let Some(geometry) = geometry else { return };
        if ways < 2 || slots == 0 || geometry.line_shift != 6 {
            return;
        }
        assert!(
            usize::from(ways) <= WAYS && 1 << slots <= SETS,
            "filter geometry has more lines than the engine keeps"
        );
        self.lane_shift = if ways <= 8 { 3 } else { 4 };
        self.line_shift = geometry.line_shift.into();
        self.sets = 1 << slots;
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

    /// The set of a line, or of any address in it.
    #[inline(always)]
    pub fn set(&self, line: u64) -> usize {
        (line >> self.line_shift) as usize & (self.sets - 1)
    }

    /// First lane of a set, and how many there are.
    #[inline(always)]
    pub fn lanes(&self, set: usize) -> std::ops::Range<usize> {
        let first = set << self.lane_shift;
        first..first + (1 << self.lane_shift)
    }

    /// Bits of the ways of a set that hold a line.
    #[inline(always)]
    fn holding(&self, host: impl Host, set: usize, line: u64) -> u32 {
        if self.lane_shift == 3 {
            host.equal(&self.lines.as_chunks::<8>().0[set % SETS], line)
        } else {
            host.equal(&self.lines.as_chunks::<16>().0[set % SETS], line)
        }
    }

    /// Bits of the ways of a set that were stamped after `told`.
    #[inline(always)]
    fn stamped(&self, host: impl Host, set: usize, told: u64) -> u32 {
        if self.lane_shift == 3 {
            host.above(&self.stamps.as_chunks::<8>().0[set % SETS], told)
        } else {
            host.above(&self.stamps.as_chunks::<16>().0[set % SETS], told)
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
        self.clock += 1;
        self.stamps[lane] = self.clock;
    }

    /// What the model must hear before the next reference to a set: lines, the least recently used first. They count as told.
    #[inline(always)]
    pub fn tell<'a>(&mut self, host: impl Host, set: usize, order: &'a mut Order) -> &'a [u64] {
        let told = std::mem::replace(&mut self.told[set], self.clock);
        let lanes = self.lanes(set);
        let mut news = self.stamped(host, set, told);
        let stamps = &self.stamps[lanes.clone()];
        let lines = &self.lines[lanes];
        let mut len = 0;
        let mut times = [0; WAYS];
        while news != 0 {
            let way = news.trailing_zeros() as usize;
            news &= news - 1;
            // Insertion keeps them in order.
            let mut at = len;
            while at > 0 && times[at - 1] > stamps[way] {
                times[at] = times[at - 1];
                order[at] = order[at - 1];
                at -= 1;
            }
            times[at] = stamps[way];
            order[at] = lines[way];
            len += 1;
        }
        &order[..len]
    }

    /// The model has made a line the most recently used of its set, in place of `replaced`. Its lane, and whether that held
    /// another line before.
    #[inline(always)]
    pub fn enter(&mut self, host: impl Host, line: u64, replaced: Option<u64>) -> (usize, bool) {
        let set = self.set(line);
        // A line that replaces another was not there. What it replaces may not be kept here.
        let wanted = replaced.unwrap_or(line);
        let way = match self.holding(host, set, wanted) {
            0 => self.holding(host, set, NONE),
            ways => ways,
        };
        assert!(way != 0, "a model tells which line it replaced");
        let lane = (set << self.lane_shift) + way.trailing_zeros() as usize;
        let new = self.lines[lane] != line;
        self.lines[lane] = line;
        self.promote(lane);
        self.told[set] = self.clock;
        (lane, new)
    }

    /// A line has left the cache. The lane it had.
    #[inline]
    pub fn remove(&mut self, line: u64) -> Option<usize> {
        let lane = self.find(line)?;
        self.lines[lane] = NONE;
        self.stamps[lane] = 0;
        Some(lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> FilterGeometry {
        FilterGeometry {
            line_shift: 6,
            data_slots: 1,
            instruction_slots: 0,
            data_ways: 4,
            instruction_ways: 1,
        }
    }

    fn told(sets: &mut Sets, set: usize) -> Vec<u64> {
        sets.tell(Baseline, set, &mut [0; WAYS]).to_vec()
    }

    #[test]
    fn the_order_of_hits_is_told_once_and_per_set() {
        let mut sets = Sets::default();
        sets.shape(Some(geometry()), 1, 4);
        let lanes: Vec<usize> = (0..4)
            .map(|n| sets.enter(Baseline, n * 128, None).0)
            .collect();
        let (other, _) = sets.enter(Baseline, 64, None);
        assert!(
            told(&mut sets, 0).is_empty(),
            "the model entered them itself"
        );
        for hit in [2, 0, 2, 3, 0] {
            sets.promote(lanes[hit]);
        }
        sets.promote(other);
        assert_eq!(told(&mut sets, 0), [256, 384, 0]);
        assert!(told(&mut sets, 0).is_empty());
        assert_eq!(told(&mut sets, 1), [64]);
    }

    #[test]
    fn a_line_that_left_makes_room_and_is_not_told() {
        let mut sets = Sets::default();
        sets.shape(Some(geometry()), 1, 4);
        let lanes: Vec<usize> = (0..4)
            .map(|n| sets.enter(Baseline, n * 128, None).0)
            .collect();
        sets.promote(lanes[1]);
        sets.promote(lanes[0]);
        assert_eq!(sets.remove(128), Some(lanes[1]));
        assert_eq!(sets.remove(128), None);
        assert_eq!(told(&mut sets, 0), [0]);
        assert_eq!(sets.enter(Baseline, 1024, None), (lanes[1], true));
        assert_eq!(sets.enter(Baseline, 1024, None), (lanes[1], false));
        assert_eq!(sets.enter(Baseline, 2048, Some(256)), (lanes[2], true));
        assert_eq!((sets.find(1024), sets.find(256)), (Some(lanes[1]), None));
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
