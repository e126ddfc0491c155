//! Order in which ranks call collective operations. The order on one communicator, window or file must be the same on all ranks.

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
    /// Index of the operation among the rank's collective calls on `key`, from 0.
    pub number: u64,
    /// Index of the start among the starts of a persistent operation, from 0; `None` for other operations.
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
    /// First two calls that differ.
    pub mismatch: Option<Mismatch>,
}

impl CollectiveOrder {
    /// Records that a rank enters its next operation. Returns the number of the operation. `members` is the number of members, if known.
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

    /// Counts a rank's start of the persistent operation `number`. Returns the index of the start. Ranks prepare operations in one order
    /// and start them in any order (MPI 4.0, section 6.13), so that starts are counted for each preparation.
    pub fn start(&mut self, rank: u32, number: u64) -> u64 {
        let starts = self.starts.entry((number, rank)).or_default();
        *starts += 1;
        *starts - 1
    }

    /// Returns whether a rank has entered an operation. For a persistent operation, returns whether the rank has started this round.
    pub fn has_come(&self, rank: u32, collective: CollectiveId) -> bool {
        let (count, needed) = match collective.round {
            Some(round) => (self.starts.get(&(collective.number, rank)), round),
            None => (self.counts.get(&rank), collective.number),
        };
        count.is_some_and(|&count| count > needed)
    }
}
