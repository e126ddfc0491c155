//! One set-associative array of lines, each set kept in LRU order.

use serde::{Deserialize, Serialize};

/// State of a line in one cache, after MESIF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum State {
    /// Others may hold it too; clean with respect to what is outside the peers.
    Shared = 1,
    /// Shared, and this peer answers requests for it. Only where peers of the interconnect hold a line.
    Forward = 2,
    /// No peer holds it, and it is clean.
    Exclusive = 3,
    /// No peer holds it, and this cache or one inside it differs from what is outside.
    Modified = 4,
}

impl State {
    /// Whether a write needs no one else's permission.
    pub(crate) fn owned(self) -> bool {
        self >= State::Exclusive
    }
}

/// Bits of an entry: 3 of state, [`HOLDERS`] of holders, 48 of line number (52 of physical address less 5 of a line of
/// 32 bytes leave one to spare, so that [`EMPTY`] is no line).
const STATE_MASK: u64 = 7;
const HOLDERS_SHIFT: u32 = 3;
const HOLDERS_MASK: u64 = ((1 << HOLDERS) - 1) << HOLDERS_SHIFT;
const LINE_SHIFT: u32 = HOLDERS_SHIFT + HOLDERS;

/// Holder bits of a line. One word holds all of an entry because the host's own cache misses are what a large modelled
/// cache costs.
pub(crate) const HOLDERS: u32 = 13;

const EMPTY: u64 = u64::MAX;

/// Lines of one cache. Way 0 of a set is the most recently used line, the last way the least; empty ways come last.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    ways: usize,
    sets: u64,
    /// `sets - 1` where `sets` is a power of two, else 0.
    mask: u64,
    /// Line number, which caches inside may hold the line (bit `position % HOLDERS`), and state.
    entries: Vec<u64>,
}

impl Array {
    pub(crate) fn new(sets: u64, ways: u32) -> Array {
        let ways = ways as usize;
        let lines = sets as usize * ways;
        Array {
            ways,
            sets,
            mask: if sets.is_power_of_two() { sets - 1 } else { 0 },
            entries: vec![EMPTY; lines],
        }
    }

    /// Index of way 0 of the line's set.
    #[inline]
    pub(crate) fn start(&self, line: u64) -> usize {
        let set = if self.mask != 0 || self.sets == 1 {
            line & self.mask
        } else {
            line % self.sets
        };
        set as usize * self.ways
    }

    /// Way of the line within its set.
    #[inline]
    pub(crate) fn find(&self, start: usize, line: u64) -> Option<usize> {
        self.entries[start..start + self.ways]
            .iter()
            .position(|&entry| entry >> LINE_SHIFT == line)
    }

    #[inline]
    pub(crate) fn state(&self, at: usize) -> State {
        match self.entries[at] & STATE_MASK {
            1 => State::Shared,
            2 => State::Forward,
            3 => State::Exclusive,
            _ => State::Modified,
        }
    }

    #[inline]
    pub(crate) fn set_state(&mut self, at: usize, state: State) {
        self.entries[at] = self.entries[at] & !STATE_MASK | state as u64;
    }

    #[inline]
    pub(crate) fn holders(&self, at: usize) -> u64 {
        (self.entries[at] & HOLDERS_MASK) >> HOLDERS_SHIFT
    }

    #[inline]
    pub(crate) fn set_holders(&mut self, at: usize, holders: u64) {
        self.entries[at] = self.entries[at] & !HOLDERS_MASK | holders << HOLDERS_SHIFT;
    }

    /// Make the line of a way the most recently used.
    #[inline]
    pub(crate) fn touch(&mut self, start: usize, way: usize) {
        move_to_front(&mut self.entries[start..=start + way]);
    }

    /// The line in a way, if there is one.
    #[inline]
    pub(crate) fn line(&self, at: usize) -> Option<u64> {
        let entry = self.entries[at];
        (entry != EMPTY).then_some(entry >> LINE_SHIFT)
    }

    /// Index of the way that the next fill of this set takes.
    #[inline]
    pub(crate) fn victim(&self, start: usize) -> usize {
        start + self.ways - 1
    }

    /// Take the victim's way for a line and make it the most recently used.
    #[inline]
    pub(crate) fn insert(&mut self, start: usize, line: u64, state: State, holders: u64) {
        let last = self.victim(start);
        self.entries[last] = line << LINE_SHIFT | holders << HOLDERS_SHIFT | state as u64;
        move_to_front(&mut self.entries[start..=last]);
    }

    /// Remove the line of a way; the others keep their order.
    pub(crate) fn remove(&mut self, start: usize, way: usize) {
        let last = self.victim(start);
        self.entries
            .copy_within(start + way + 1..=last, start + way);
        self.entries[last] = EMPTY;
    }

    /// Lines of each set that has any, most recently used first.
    pub(crate) fn contents(&self) -> Vec<(u64, Vec<(u64, State)>)> {
        (0..self.sets)
            .map(|set| {
                let start = set as usize * self.ways;
                let lines = (start..start + self.ways)
                    .filter_map(|at| self.line(at).map(|line| (line, self.state(at))))
                    .collect();
                (set, lines)
            })
            .filter(|(_, lines): &(u64, Vec<_>)| !lines.is_empty())
            .collect()
    }
}

/// Rotate right by one. Written out because sets are short.
#[inline]
fn move_to_front(values: &mut [u64]) {
    let mut carried = values[values.len() - 1];
    for value in values {
        std::mem::swap(value, &mut carried);
    }
}
