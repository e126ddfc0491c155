//! The event queue: events in the order of their times.
//!
//! No event is scheduled before the present time, so times can be sorted piece by piece, as a radix heap does (Ahuja, Mehlhorn, Orlin and
//! Tarjan, "Faster algorithms for the shortest path problem", 1990). An entry is in the bucket of the highest bit in which its time
//! differs from the horizon, and moves to lower buckets as the horizon advances. A small bucket is sorted as a whole. With a hundred
//! thousand ranks this reads memory in order, where a binary heap would miss the caches at each level.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event: its time, its order among events of equal time, and its code.
type Entry = (u64, u32, u32);

/// Size up to which a bucket is sorted, not split.
const SMALL: usize = 512;

/// Queue of events by time.
#[derive(Debug)]
pub(super) struct EventQueue {
    /// Entries up to this time are in `sorted` and `near`, later ones in buckets.
    horizon: u64,
    /// Entries in descending order.
    sorted: Vec<Entry>,
    /// Entries up to the horizon that were added since the last sort.
    near: BinaryHeap<Reverse<Entry>>,
    /// Buckets by the highest bit in which times differ from the horizon.
    buckets: [Vec<Entry>; 64],
    /// Bit mask of the buckets that have entries.
    filled: u64,
}

impl Default for EventQueue {
    fn default() -> EventQueue {
        EventQueue {
            horizon: 0,
            sorted: Vec::new(),
            near: BinaryHeap::new(),
            buckets: std::array::from_fn(|_| Vec::new()),
            filled: 0,
        }
    }
}

impl EventQueue {
    /// Adds an entry.
    pub fn add(&mut self, time: u64, order: u32, what: u32) {
        if time <= self.horizon {
            self.near.push(Reverse((time, order, what)));
        } else {
            self.put((time, order, what));
        }
    }

    fn put(&mut self, entry: Entry) {
        let bucket = (entry.0 ^ self.horizon).ilog2();
        self.buckets[bucket as usize].push(entry);
        self.filled |= 1 << bucket;
    }

    /// Returns the earliest time; `None` if the queue is empty.
    pub fn earliest(&mut self) -> Option<u64> {
        self.fill();
        let near = self.near.peek().map(|Reverse((time, ..))| *time);
        let sorted = self.sorted.last().map(|(time, ..)| *time);
        match (near, sorted) {
            (Some(near), Some(sorted)) => Some(near.min(sorted)),
            (one, other) => one.or(other),
        }
    }

    /// Takes out the earliest entry; returns its time and its code, or `None` if the queue is empty.
    pub fn take(&mut self) -> Option<(u64, u32)> {
        self.fill();
        let entry = match (self.near.peek(), self.sorted.last()) {
            (Some(Reverse(near)), Some(sorted)) if near >= sorted => self.sorted.pop(),
            (None, _) => self.sorted.pop(),
            _ => self.near.pop().map(|Reverse(entry)| entry),
        };
        entry.map(|(time, _, what)| (time, what))
    }

    /// Returns the code of the event that comes after `distance` others, among those that are sorted already; `None` if too few are.
    /// Callers prefetch its memory.
    pub fn ahead(&self, distance: usize) -> Option<u32> {
        let at = self.sorted.len().checked_sub(1 + distance)?;
        self.sorted.get(at).map(|(.., what)| *what)
    }

    /// Makes sure that the earliest entries are sorted.
    fn fill(&mut self) {
        while self.sorted.is_empty() && self.near.is_empty() && self.filled != 0 {
            let bucket = self.filled.trailing_zeros();
            self.filled &= !(1 << bucket);
            let mut entries = std::mem::take(&mut self.buckets[bucket as usize]);
            if entries.len() <= SMALL || bucket == 0 {
                // Every time of this bucket is below those of the higher buckets.
                self.horizon = entries.iter().map(|(time, ..)| *time).max().unwrap_or(0);
                entries.sort_unstable_by(|a, b| b.cmp(a));
                std::mem::swap(&mut self.sorted, &mut entries);
            } else {
                self.horizon = entries.iter().map(|(time, ..)| *time).min().unwrap_or(0);
                for &entry in &entries {
                    if entry.0 == self.horizon {
                        self.sorted.push(entry);
                    } else {
                        self.put(entry);
                    }
                }
                self.sorted.sort_unstable_by(|a, b| b.cmp(a));
            }
            // The bucket keeps its memory for later entries.
            entries.clear();
            self.buckets[bucket as usize] = entries;
        }
    }
}

/// Asks the processor to fetch something into its caches.
#[inline]
pub(super) fn prefetch<T>(what: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = std::ptr::from_ref(what).cast::<i8>();
        for offset in (0..size_of::<T>()).step_by(64) {
            // SAFETY: a prefetch accesses nothing, and the address is within `what`.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(offset)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = what;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_come_in_order(
            steps in proptest::collection::vec((0u64..5000, 0u32..50, 0u8..4), 1..3000),
            spread in 0u32..40,
        ) {
            let mut queue = EventQueue::default();
            let mut heap = BinaryHeap::new();
            let mut now = 0;
            for (delay, what, takes) in steps {
                let time = now + (delay << spread);
                queue.add(time, what, what);
                heap.push(Reverse((time, what)));
                for _ in 2..takes {
                    prop_assert_eq!(queue.earliest(), heap.peek().map(|Reverse((time, _))| *time));
                    let expected = heap.pop().map(|Reverse(entry)| entry);
                    prop_assert_eq!(queue.take(), expected);
                    now = expected.map_or(now, |(time, _)| time);
                }
            }
            while let Some(Reverse(expected)) = heap.pop() {
                prop_assert_eq!(queue.take(), Some(expected));
            }
            prop_assert_eq!(queue.take(), None);
        }
    }

    #[test]
    fn a_thousand_at_one_time_and_later_ones() {
        let mut queue = EventQueue::default();
        for what in (0..1000).rev() {
            queue.add(7, what, 1000 - what);
            queue.add(u64::MAX, what, 1000 - what);
            queue.add(7 + (1 << 40), what, 1000 - what);
        }
        for time in [7, 7 + (1 << 40), u64::MAX] {
            for what in 0..1000 {
                assert_eq!(queue.take(), Some((time, 1000 - what)));
            }
        }
        assert_eq!(queue.earliest(), None);
    }
}
