//! Open requests of a rank, and the numbers that they have in its sequence.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;

/// Most open requests that are searched one after the other. Further ones are in a map.
const FEW: usize = 32;

/// A request that has begun and not completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenRequest {
    pub slot: u32,
    /// Index of the operation that began the request.
    pub entry: usize,
    /// True if the request is a receive that accepts any source or any tag.
    pub wildcard: bool,
}

/// Open requests of a rank by their serials in the trace, and the request numbers that are free.
#[derive(Debug, Default)]
pub(super) struct Requests {
    free: FreeSlots,
    /// Up to [`FEW`] open requests in any order. Mostly these are all, and a list stays where it is in memory while requests come and go.
    few: Vec<(u64, OpenRequest)>,
    /// Open requests that found no place in `few`.
    many: BTreeMap<u64, OpenRequest>,
    /// Request numbers of the further operations of requests that consist of several operations.
    others: HashMap<u64, Vec<u32>>,
}

impl Requests {
    /// Returns the smallest request number that is free, which is taken now.
    pub fn slot(&mut self) -> u32 {
        self.free.take()
    }

    /// Begins a request. Its serial means the request number until it completes.
    pub fn begin(&mut self, serial: u64, request: OpenRequest) {
        if let Some(open) = self.open_mut(serial) {
            let old = mem::replace(open, request);
            self.free.add(old.slot);
        } else if self.few.len() < FEW {
            self.few.push((serial, request));
        } else {
            self.many.insert(serial, request);
        }
    }

    /// Ends a request, whose number is free from now on; returns `None` if no such request is open.
    pub fn end(&mut self, serial: u64) -> Option<OpenRequest> {
        let open = match self.few.iter().position(|(other, _)| *other == serial) {
            Some(at) => self.few.swap_remove(at).1,
            None => self.many.remove(&serial)?,
        };
        self.free.add(open.slot);
        Some(open)
    }

    /// Ends all requests, and frees all numbers.
    pub fn end_all(&mut self) {
        self.few.clear();
        self.many.clear();
        self.others.clear();
        self.free.add_all();
    }

    /// Adds the numbers of further operations to a request.
    pub fn add_others(&mut self, serial: u64, slots: Vec<u32>) {
        if !slots.is_empty() {
            self.others.insert(serial, slots);
        }
    }

    /// Ends the further operations of a request, and returns their numbers.
    pub fn end_others(&mut self, serial: u64) -> Vec<u32> {
        if self.others.is_empty() {
            return Vec::new();
        }
        let slots = self.others.remove(&serial).unwrap_or_default();
        self.end_slots(&slots);
        slots
    }

    /// Frees the numbers of operations that have no request in the trace.
    pub fn end_slots(&mut self, slots: &[u32]) {
        slots.iter().for_each(|&slot| self.free.add(slot));
    }

    /// Returns the numbers of the operations of a request that has not completed.
    pub fn slots(&mut self, serial: u64) -> Vec<u32> {
        let own = self.open_mut(serial).map(|open| open.slot);
        let others = self.others.get(&serial).into_iter().flatten().copied();
        own.into_iter().chain(others).collect()
    }

    /// Takes into account that an entry is inserted at a place of the sequence.
    pub fn insert_entry(&mut self, at: usize) {
        let few = self.few.iter_mut().map(|(_, open)| open);
        for open in few.chain(self.many.values_mut()) {
            open.entry += usize::from(open.entry >= at);
        }
    }

    fn open_mut(&mut self, serial: u64) -> Option<&mut OpenRequest> {
        let few = self.few.iter_mut().find(|(other, _)| *other == serial);
        few.map(|(_, open)| open)
            .or_else(|| self.many.get_mut(&serial))
    }
}

/// Request numbers that are free.
#[derive(Debug, Default)]
struct FreeSlots {
    /// A bit for each of the first 64 numbers, set if the number is free. Few ranks have more requests at a time.
    low: u64,
    high: BTreeSet<u32>,
    /// Number of all request numbers, free or taken.
    count: u32,
}

impl FreeSlots {
    /// Takes the smallest free number.
    fn take(&mut self) -> u32 {
        if self.low != 0 {
            let slot = self.low.trailing_zeros();
            self.low &= self.low - 1;
            return slot;
        }
        self.high.pop_first().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }

    fn add(&mut self, slot: u32) {
        if slot < u64::BITS {
            self.low |= 1 << slot;
        } else {
            self.high.insert(slot);
        }
    }

    fn add_all(&mut self) {
        (0..self.count).for_each(|slot| self.add(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(slot: u32) -> OpenRequest {
        OpenRequest {
            slot,
            entry: slot as usize,
            wildcard: false,
        }
    }

    #[test]
    fn the_smallest_free_number_is_taken_of_few_and_of_many() {
        let mut requests = Requests::default();
        for serial in 0..200 {
            let slot = requests.slot();
            assert_eq!(u64::from(slot), serial);
            requests.begin(serial, request(slot));
        }
        for serial in [150, 3, 70, 31] {
            assert_eq!(requests.end(serial).unwrap().slot, serial as u32);
            assert!(requests.end(serial).is_none());
        }
        let taken = [(); 5].map(|()| requests.slot());
        assert_eq!(taken, [3, 31, 70, 150, 200]);
        requests.end_all();
        assert!(requests.end(0).is_none());
        assert_eq!(requests.slot(), 0);
    }

    #[test]
    fn a_serial_that_begins_again_frees_its_number() {
        let mut requests = Requests::default();
        for serial in (0..40).chain(0..40) {
            let slot = requests.slot();
            requests.begin(serial, request(slot));
        }
        assert_eq!(requests.slots(0), [40]);
        assert_eq!(requests.slots(39), [38]);
        requests.insert_entry(38);
        assert_eq!(requests.end(39).unwrap().entry, 39);
    }
}
