//! The store queue: stores go to the cache in program order after they have retired, and loads take their data from it before.

use crate::queues::InOrder;
use crate::timing::LINE;

/// Number of stores that loads look for: a power of two, more than any store queue has places.
const REMEMBERED: usize = 256;
/// Number of words of 8 bytes by which stores are found: a power of two.
const WORDS: usize = 1024;

/// A store.
#[derive(Clone, Copy, Debug, Default)]
struct Store {
    linear: u64,
    size: u64,
    /// Cycle in which the data are there.
    data: u64,
    /// Cycle in which the first level has the line and may write it.
    line: u64,
    /// Cycles for which the store occupies the commit.
    occupies: u32,
    /// Cycle in which the store is in the cache; `u64::MAX` until it has retired.
    commit: u64,
}

/// An earlier store that a load overlaps with, and that is not in the cache yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// True if the store has all bytes of the load.
    pub(crate) whole: bool,
    /// True if the load has the store's address and size.
    pub(crate) same: bool,
    /// Cycle in which the store's data are there.
    pub(crate) data: u64,
    /// Cycle in which the store is in the cache.
    pub(crate) commit: u64,
}

/// The store queue of a core.
#[derive(Clone, Debug)]
pub(crate) struct Stores {
    places: InOrder,
    /// Times at which the oldest stores leave, among those that may request their lines.
    requests: InOrder,
    stores: Vec<Store>,
    /// Number of stores so far; the last ones are at this number modulo [`REMEMBERED`].
    count: usize,
    /// Stores of the instruction in progress.
    unretired: usize,
    /// For words of 8 bytes, modulo [`WORDS`]: the number of the last store to the word, plus one.
    words: Vec<usize>,
    /// Cycle in which the last store commits, and commits in it.
    last: u64,
    in_cycle: u32,
    commits: u32,
    /// True if two stores to one line that follow each other commit in a cycle, and the line of the last one.
    together: bool,
    last_line: u64,
}

impl Stores {
    pub(crate) fn new(places: u32, commits: u32, together: bool, early: u32) -> Self {
        Self {
            places: InOrder::new(places),
            requests: InOrder::new(early),
            stores: vec![Store::default(); REMEMBERED],
            count: 0,
            unretired: 0,
            words: vec![0; WORDS],
            last: 0,
            in_cycle: 0,
            commits: commits.max(1),
            together,
            last_line: u64::MAX,
        }
    }

    /// Returns when the queue has room for a store.
    pub(crate) fn free(&self) -> u64 {
        self.places.free()
    }

    /// Returns when a store whose address is there at `start` may request its line.
    pub(crate) fn may_request(&self, start: u64) -> u64 {
        start.max(self.requests.free())
    }

    /// Enters a store of the instruction in progress. `line`: the cycle in which its line may be written. `occupies`: the cycles that its
    /// commit takes. An address of `u64::MAX` is not known.
    pub(crate) fn enter(&mut self, linear: u64, size: u64, start: u64, line: u64, occupies: u32) {
        self.stores[self.count % REMEMBERED] = Store {
            linear,
            size,
            data: start,
            line,
            occupies,
            commit: u64::MAX,
        };
        self.count += 1;
        self.unretired += 1;
        if linear != u64::MAX {
            for word in linear / 8..=linear.saturating_add(size.max(1) - 1) / 8 {
                self.words[word as usize % WORDS] = self.count;
            }
        }
    }

    /// Sets when the data of the store that was entered last are there.
    pub(crate) fn data(&mut self, at: u64) {
        if self.unretired > 0 {
            let last = &mut self.stores[(self.count - 1) % REMEMBERED];
            last.data = last.data.max(at);
        }
    }

    /// Retires the instruction in progress: its stores commit from now on.
    pub(crate) fn retire(&mut self, retired: u64) {
        for number in self.count - self.unretired..self.count {
            let store = &mut self.stores[number % REMEMBERED];
            let from = (retired + 1).max(store.data).max(store.line);
            let line = store.linear / LINE;
            let most = match self.together && line == self.last_line {
                true => self.commits.max(2),
                false => self.commits,
            };
            self.last_line = line;
            if from > self.last {
                self.last = from;
                self.in_cycle = 0;
            } else if self.in_cycle >= most {
                self.last += 1;
                self.in_cycle = 0;
            }
            self.in_cycle += 1;
            self.last += u64::from(store.occupies.max(1) - 1);
            store.commit = self.last;
            self.places.take(self.last + 1);
            self.requests.take(self.last + 1);
        }
        self.unretired = 0;
    }

    /// Returns when all stores that have retired are in the cache.
    pub(crate) fn drained(&self) -> u64 {
        self.last
    }

    /// Returns the last store that a load of so many bytes overlaps with, unless that store is in the cache at `start`.
    pub(crate) fn stored(&self, linear: u64, size: u64, start: u64) -> Option<Stored> {
        let end = linear.saturating_add(size.max(1));
        let words = linear / 8..=(end - 1) / 8;
        let newest = words.map(|word| self.words[word as usize % WORDS]).max()?;
        let number = newest.checked_sub(1)?;
        if self.count - number > REMEMBERED {
            return None;
        }
        let store = &self.stores[number % REMEMBERED];
        let stored = store.linear.saturating_add(store.size);
        let overlaps = store.linear < end && linear < stored;
        let retired = store.commit != u64::MAX;
        (overlaps && retired && store.commit > start).then_some(Stored {
            whole: store.linear <= linear && end <= stored,
            same: store.linear == linear && store.size == size,
            data: store.data,
            commit: store.commit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_commit_in_order_and_forward_their_data() {
        let mut stores = Stores::new(4, 1, false, 4);
        stores.enter(64, 8, 10, 100, 1);
        stores.data(12);
        stores.retire(20);
        stores.enter(72, 8, 11, 0, 1);
        stores.data(13);
        stores.retire(21);
        // The second store waits for the first one's line.
        assert_eq!(stores.drained(), 101);
        let first = Stored {
            whole: true,
            same: false,
            data: 12,
            commit: 100,
        };
        assert_eq!(stores.stored(68, 4, 30), Some(first));
        // Two stores have the bytes of a load over both: the younger one has not all of them.
        assert_eq!(stores.stored(68, 8, 30).map(|s| s.whole), Some(false));
        assert_eq!(stores.stored(64, 8, 100), None);
        assert_eq!(stores.stored(80, 8, 30), None);
    }

    #[test]
    fn a_full_queue_frees_places_in_order() {
        let mut stores = Stores::new(2, 2, false, 1);
        for line in [50, 0] {
            stores.enter(0, 8, 1, line, 1);
            stores.retire(2);
        }
        assert_eq!(stores.free(), 51);
        assert_eq!(stores.may_request(3), 51);
    }
}
