//! Non-temporal stores, which go to memory past the caches.

use nodescope_plugin_api::{L0Update, Permission, Side};

use crate::events::{LevelEvent, Traffic};
use crate::hierarchy::Hierarchy;
use crate::node::NONE;
use crate::tags::is_prefetched;
use crate::tree::Tree;
use crate::word::{Baseline, Word};

/// Number of lines whose stores a vCPU combines at a time.
const BUFFERS: usize = 8;

impl<W: Word> Hierarchy<W> {
    /// Stores past the caches: removes the line from all caches, and makes a request to memory unless the vCPU is combining stores to the
    /// line already.
    #[cold]
    #[inline(never)]
    pub(crate) fn store_past_caches(
        &mut self,
        tree: &Tree,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) {
        self.charge_level(tree, 0, LevelEvent::NonTemporalStore);
        let vcpu = usize::from(self.request.requester);
        let mut node = tree.vcpu_caches[vcpu].first[Side::Data as usize];
        loop {
            self.drop_copy(tree, node, line, updates);
            let outer = tree.nodes.get(node).outer;
            if outer == NONE {
                break;
            }
            self.invalidate_others(tree, outer, node, None, line, updates);
            node = outer;
        }
        self.invalidate_in_peers(tree, node, line, updates);
        let combined = &mut self.combined[vcpu];
        if combined.contains(&line) {
            return;
        }
        if combined.len() == BUFFERS {
            combined.pop_front();
        }
        combined.push_back(line);
        let socket = tree.vcpu_caches[vcpu].socket;
        self.request_memory(tree, socket, line, Traffic::NonTemporalStore);
    }

    /// Removes the requester's own copy of a line from one cache.
    fn drop_copy(&mut self, tree: &Tree, node: u32, line: u64, updates: &mut Vec<L0Update>) {
        let (lookup, Some(way)) = self.find(tree, Baseline, node, line) else {
            return;
        };
        let this = tree.nodes.get(node);
        let (level, kind) = (this.level, this.kind);
        let unused = is_prefetched(self.tags.way(&this.geometry, lookup, way));
        self.take_out(tree, node, line, way);
        self.lower_l0_permissions(tree, node, way, line, Permission::None, updates);
        if unused {
            self.charge_level(tree, level.into(), LevelEvent::prefetch_unused(kind));
        }
    }
}
