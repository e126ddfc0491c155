//! Ages of the lines of one set, for policies that keep two bits a line.

use super::SetState;

/// Most ways whose ages fit into the bits of a set.
pub(super) const MOST_WAYS: u32 = 32;

/// Largest age.
pub(super) const OLDEST: u8 = 3;

/// Ages from 0 to 3 of the ways of a set. The two bits of a way are 3 less its age, so all ages are 3 at first.
pub(super) struct Ages<'a> {
    bits: &'a mut u64,
    /// The low bit of each way.
    all: u64,
}

impl<'a> Ages<'a> {
    /// Takes the bits of a set as ages.
    #[inline]
    pub(super) fn new(set: SetState<'a>) -> Ages<'a> {
        debug_assert!((1..=MOST_WAYS).contains(&set.ways));
        Ages {
            bits: set.bits,
            all: 0x5555_5555_5555_5555 >> (64 - 2 * set.ways),
        }
    }

    /// Returns the low bits of all ways.
    #[inline]
    pub(super) fn all(&self) -> u64 {
        self.all
    }

    /// Returns the low bits of all ways but one.
    #[inline]
    pub(super) fn all_but(&self, way: u32) -> u64 {
        self.all & !(1 << (2 * way))
    }

    #[inline]
    pub(super) fn get(&self, way: u32) -> u8 {
        OLDEST - (*self.bits >> (2 * way) & 3) as u8
    }

    #[inline]
    pub(super) fn set(&mut self, way: u32, age: u8) {
        let shift = 2 * way;
        *self.bits = *self.bits & !(3 << shift) | u64::from(OLDEST - age) << shift;
    }

    /// Returns the leftmost way of age 3, that is, the one with the smallest number.
    #[inline]
    pub(super) fn oldest(&self) -> Option<u32> {
        let oldest = self.oldest_among(self.all);
        (oldest != 0).then(|| oldest.trailing_zeros() / 2)
    }

    /// Returns the low bits of the ways of age 3 among `ways`, which are low bits, too.
    #[inline]
    fn oldest_among(&self, ways: u64) -> u64 {
        !(*self.bits | *self.bits >> 1) & ways
    }

    /// Adds 1 to the ages of `ways`, of which none is 3.
    #[inline]
    pub(super) fn increment(&mut self, ways: u64) {
        debug_assert_eq!(self.oldest_among(ways), 0);
        *self.bits -= ways;
    }

    /// Adds to the ages of `ways` what their largest age lacks to 3.
    #[inline]
    pub(super) fn raise(&mut self, ways: u64) {
        while ways != 0 && self.oldest_among(ways) == 0 {
            self.increment(ways);
        }
    }
}
