//! Interface of replacement policies.

use std::fmt;

/// A set of a cache as its policy sees the set.
#[derive(Debug)]
pub struct SetState<'a> {
    /// Number of the set.
    pub number: u32,
    /// Number of ways.
    pub ways: u32,
    /// The policy's own bits of this set, zero at first.
    pub bits: &'a mut u64,
}

/// Replacement policy of one cache. Lines stay in their ways.
pub trait Replacement: Send + fmt::Debug {
    /// Takes note of a hit.
    fn hit(&mut self, set: SetState<'_>, way: u32);
    /// Takes note of a new line in a way.
    fn insert(&mut self, set: SetState<'_>, way: u32);
    /// Chooses the way whose line is replaced. The set is full. [`Replacement::insert`] for that way follows.
    fn victim(&mut self, set: SetState<'_>) -> u32;
    /// Takes note of a line that left its way other than by replacement.
    fn remove(&mut self, set: SetState<'_>, way: u32) {
        let _ = (set, way);
    }
    /// Chooses among empty ways, which are the ones in the mask `empty`, for a new line.
    fn empty_way(&self, empty: u64) -> u32 {
        empty.trailing_zeros()
    }
    /// Returns true if a hit of this way, right after the last event of the set, which was a hit or an insertion of the same way, would
    /// change nothing. Only then may an L0 filter cache answer such hits.
    fn settled(&self, set: SetState<'_>, way: u32) -> bool {
        let _ = (set, way);
        true
    }
}
