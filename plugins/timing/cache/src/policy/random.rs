//! Random replacement, which is the same in every run.

use super::{Replacement, SetState};

/// Most ways, since a mask of empty ways has 64 bits.
pub(super) const MOST_WAYS: u32 = 64;

/// Random replacement. Each cache has a generator of its own, which only the replacements of the cache advance.
#[derive(Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// Returns the next number of the generator SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

impl Replacement for Random {
    fn hit(&mut self, _: SetState<'_>, _: u32) {}

    fn insert(&mut self, _: SetState<'_>, _: u32) {}

    fn victim(&mut self, set: SetState<'_>) -> u32 {
        ((u128::from(self.next()) * u128::from(set.ways)) >> 64) as u32
    }
}
