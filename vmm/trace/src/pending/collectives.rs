//! The order in which ranks call collective operations: on one communicator, window or file it is the same on all of them.

use std::collections::{BTreeMap, VecDeque};

use nodescope_hypercall::{Function, Peer};

use super::CallSite;

/// A collective operation that not all members have entered.
#[derive(Clone, Debug)]
struct Instance {
    function: Function,
    root: Peer,
    first: (u32, CallSite),
    entered: usize,
}

/// Two calls that should be the same operation and are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub rank: u32,
    pub at: CallSite,
    pub other: u32,
    pub other_at: CallSite,
}

/// The identity of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveId {
    /// The communicator, window or file.
    pub key: u64,
    /// Index of the call among those of its rank there, from 0.
    pub number: u64,
    /// Index of the start among those of a persistent operation, from 0.
    pub round: Option<u64>,
}

/// The collective operations of one communicator, window or file.
#[derive(Debug, Default)]
pub struct CollectiveOrder {
    /// Number of operations that each rank has entered.
    counts: BTreeMap<u32, u64>,
    /// Number of starts of a persistent operation, by the operation's number and the rank.
    starts: BTreeMap<(u64, u32), u64>,
    instances: VecDeque<Instance>,
    /// Number of the first of `instances`.
    base: u64,
    /// The first that differ.
    pub mismatch: Option<Mismatch>,
}

impl CollectiveOrder {
    /// Notes that a rank enters its next operation. Returns the number of the operation. `members` is the number of members, if known.
    pub fn enter(&mut self, rank: u32, site: CallSite, root: Peer, members: Option<usize>) -> u64 {
        let count = self.counts.entry(rank).or_default();
        let number = *count;
        *count += 1;
        if self.mismatch.is_some() {
            return number;
        }
        let at = number.saturating_sub(self.base) as usize;
        let function = site.function;
        match self.instances.get_mut(at) {
            Some(instance) => {
                instance.entered += 1;
                if (instance.function, instance.root) != (function, root) {
                    self.mismatch = Some(Mismatch {
                        rank,
                        at: site,
                        other: instance.first.0,
                        other_at: instance.first.1,
                    });
                    self.instances.clear();
                }
            }
            None => self.instances.push_back(Instance {
                function,
                root,
                first: (rank, site),
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

    /// Counts a start of a persistent operation. Returns the index of the start. Ranks prepare in one order, and start
    /// in any (MPI 4.0, section 6.13): starts are counted for each preparation.
    pub fn start(&mut self, rank: u32, number: u64) -> u64 {
        let starts = self.starts.entry((number, rank)).or_default();
        *starts += 1;
        *starts - 1
    }

    /// Returns whether a rank has entered an operation, or started it if it is a persistent one.
    pub fn has_come(&self, rank: u32, collective: CollectiveId) -> bool {
        let (count, needed) = match collective.round {
            Some(round) => (self.starts.get(&(collective.number, rank)), round),
            None => (self.counts.get(&rank), collective.number),
        };
        count.is_some_and(|&count| count > needed)
    }
}
