//! Operations that are stored once, whichever calls and ranks have them.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::hash::BuildHasher;
use std::sync::Arc;

use super::Entry;
use crate::op::Op;

/// Number of a rank's latest entries among which an operation is looked for that was not the expected one.
const LATEST: usize = 32;

/// Every different operation, by its hash. The map grows without hashing the operations again, which are spread over the memory.
#[derive(Debug, Default)]
pub(super) struct Ops(HashMap<u64, Arc<Op>>);

impl Ops {
    /// Returns the operation as it is stored.
    pub fn shared(&mut self, op: Op) -> Arc<Op> {
        match self.0.entry(self.0.hasher().hash_one(&op)) {
            MapEntry::Vacant(place) => place.insert(Arc::new(op)).clone(),
            MapEntry::Occupied(known) if **known.get() == op => known.get().clone(),
            // Of two operations that have one hash, the later one is not shared.
            MapEntry::Occupied(_) => Arc::new(op),
        }
    }
}

/// Place among a rank's entries from which on its operations seem to repeat.
#[derive(Debug, Default)]
pub(super) struct Repetition {
    /// Index of the entry whose operation the next one is expected to have.
    next: usize,
}

impl Repetition {
    /// Returns the operation of the rank's next entry as it is stored. In a loop this needs no look-up among all operations.
    pub fn shared(&mut self, op: Op, entries: &[Entry], ops: &mut Ops) -> Arc<Op> {
        if let Some(expected) = entries.get(self.next)
            && *expected.op == op
        {
            self.next += 1;
            return expected.op.clone();
        }
        let op = ops.shared(op);
        let latest = entries.iter().enumerate().rev().take(LATEST);
        let same = latest
            .filter(|(_, entry)| Arc::ptr_eq(&entry.op, &op))
            .map(|(at, _)| at);
        // Without such an entry, a single operation may differ from those that repeat.
        self.next = same.max().unwrap_or(self.next) + 1;
        op
    }
}

#[cfg(test)]
mod tests {
    use nodescope_hypercall::Function;

    use super::*;
    use crate::op::{Action, Site};
    use crate::sequence::Burst;

    #[test]
    fn equal_operations_are_stored_once() {
        let op = |address| Op {
            function: Function::Barrier,
            site: Site { address, module: 0 },
            communicator: 0,
            block: None,
            more: false,
            action: Action::Nothing,
        };
        let mut ops = Ops::default();
        for _rank in 0..2 {
            let (mut repetition, mut entries) = (Repetition::default(), Vec::new());
            for site in [1, 2, 3, 1, 2, 3, 2, 2, 2, 9, 1] {
                let shared = repetition.shared(op(site), &entries, &mut ops);
                assert_eq!(*shared, op(site));
                entries.push(Entry {
                    burst: Burst::default(),
                    op: shared,
                    opaque: None,
                });
            }
        }
        assert_eq!(ops.0.len(), 4);
    }
}
