//! Tree-PLRU: a binary tree of bits over the ways.

use super::{Replacement, SetState};

/// Most ways, since the tree has one node less and bit 0 of the set is unused.
pub(super) const MOST_WAYS: u32 = 64;

/// Replacement by a binary tree. Node `n` has the nodes `2 * n` and `2 * n + 1` below; node 1 is the root, and node `ways + way` is a way.
/// Bit `n` of a set is the direction of the victim at node `n`, and 1 is to the right.
#[derive(Debug)]
pub(super) struct TreePlru;

impl TreePlru {
    /// Turns every bit on the path to a way away from the way.
    #[inline]
    fn touch(set: SetState<'_>, way: u32) {
        let mut node = set.ways + way;
        while node > 1 {
            let right = u64::from(node & 1);
            node >>= 1;
            *set.bits = *set.bits & !(1 << node) | (right ^ 1) << node;
        }
    }
}

impl Replacement for TreePlru {
    fn hit(&mut self, set: SetState<'_>, way: u32) {
        TreePlru::touch(set, way);
    }

    fn insert(&mut self, set: SetState<'_>, way: u32) {
        TreePlru::touch(set, way);
    }

    fn victim(&mut self, set: SetState<'_>) -> u32 {
        let mut node = 1;
        while node < set.ways {
            node = 2 * node + (*set.bits >> node & 1) as u32;
        }
        node - set.ways
    }
}
