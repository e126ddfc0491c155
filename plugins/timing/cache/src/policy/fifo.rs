//! First in, first out.

use super::{Replacement, SetState};

/// Most ways, since the bits of a set have four for each way.
pub(super) const MOST_WAYS: u32 = 16;

/// The line that came first is replaced. Hits change nothing.
///
/// Four bits for each place in a queue of all ways, the earliest first, are the way XOR the place. Zero bits are the order of the ways.
#[derive(Debug)]
pub(super) struct Fifo;

fn way_at(bits: u64, place: u32) -> u32 {
    (bits >> (4 * place)) as u32 & 15 ^ place
}

impl Replacement for Fifo {
    fn hit(&mut self, _: SetState<'_>, _: u32) {}

    fn insert(&mut self, set: SetState<'_>, way: u32) {
        let old = *set.bits;
        let others = (0..set.ways).map(|place| way_at(old, place));
        let queue = others.filter(|&other| other != way).chain([way]);
        *set.bits = (0..).zip(queue).fold(0, |bits, (place, way)| {
            bits | u64::from(way ^ place) << (4 * place)
        });
    }

    fn victim(&mut self, set: SetState<'_>) -> u32 {
        way_at(*set.bits, 0)
    }
}
