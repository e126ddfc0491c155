//! The order in which ranks call collective operations: on one communicator or window it is the same on all of them.

use std::collections::{BTreeMap, VecDeque};

use nodescope_hypercall::{Function, Peer};

use super::Place;

/// A collective operation that not all members have entered.
#[derive(Clone, Debug)]
struct Instance {
    function: Function,
    root: Peer,
    first: (u32, Place),
    entered: usize,
}

/// Two calls that should be the same operation and are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    pub rank: u32,
    pub at: Place,
    pub other: u32,
    pub other_at: Place,
}

/// The collective operations of one communicator or window.
#[derive(Debug, Default)]
pub struct Order {
    /// How many each rank has entered.
    counts: BTreeMap<u32, u64>,
    instances: VecDeque<Instance>,
    /// Number of the first of `instances`.
    base: u64,
    /// The first that differ.
    pub difference: Option<Difference>,
}

impl Order {
    /// A rank enters its next operation; the number of that. `members`, if known, is how many there are.
    pub fn enter(&mut self, rank: u32, place: Place, root: Peer, members: Option<usize>) -> u64 {
        let count = self.counts.entry(rank).or_default();
        let number = *count;
        *count += 1;
        if self.difference.is_some() {
            return number;
        }
        let at = number.saturating_sub(self.base) as usize;
        let function = place.function;
        match self.instances.get_mut(at) {
            Some(instance) => {
                instance.entered += 1;
                if (instance.function, instance.root) != (function, root) {
                    self.difference = Some(Difference {
                        rank,
                        at: place,
                        other: instance.first.0,
                        other_at: instance.first.1,
                    });
                    self.instances.clear();
                }
            }
            None => self.instances.push_back(Instance {
                function,
                root,
                first: (rank, place),
                entered: 1,
            }),
        }
        let all = |instance: &Instance| members == Some(instance.entered);
        while self.instances.front().is_some_and(all) {
            self.instances.pop_front();
            self.base += 1;
        }
        number
    }

    /// Whether a rank has entered the operation of this number.
    pub fn has_entered(&self, rank: u32, number: u64) -> bool {
        self.counts.get(&rank).is_some_and(|&count| count > number)
    }
}
