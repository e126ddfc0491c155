//! Changes to the L0 filter caches of engines.

use nodescope_plugin_api::{L0Update, Permission};

use crate::hierarchy::Hierarchy;
use crate::tree::Tree;
use crate::word::Word;

impl<W: Word> Hierarchy<W> {
    /// Lowers the permission for a line in the L0 filter caches of the vCPUs of a first-level cache. With LRU, an L0 filter cache that does
    /// not hold whole sets has only the most recently used line of a set, which is in way 0.
    #[inline]
    pub(crate) fn lower_l0_permissions(
        &mut self,
        tree: &Tree,
        node: u32,
        way: usize,
        line: u64,
        permission: Permission,
        updates: &mut Vec<L0Update>,
    ) {
        let this = tree.nodes.get(node);
        let side = this.side();
        if way != 0 && this.traits.lru && !tree.first_level.whole_sets[side as usize] {
            return;
        }
        for &vcpu in &tree.children[node as usize].vcpus {
            updates.push(L0Update {
                vcpu,
                side,
                line: line << tree.line_shift,
                permission,
            });
        }
    }

    /// Revokes the lines of a first-level set that L0 filter caches may answer for, since `line` of this set is used. `requester`
    /// replaces its own slot itself. With LRU, the most recently used line is the only one.
    #[cold]
    #[inline(never)]
    pub(crate) fn revoke_used(
        &mut self,
        tree: &Tree,
        node: u32,
        line: u64,
        requester: Option<u16>,
        updates: &mut Vec<L0Update>,
    ) {
        let this = tree.nodes.get(node);
        let side = this.side();
        let lookup = this.geometry.lookup(line);
        let set = this.geometry.set(line);
        let ways = if this.traits.lru {
            1
        } else {
            this.geometry.ways as usize
        };
        for way in 0..ways {
            let entry = self.tags.way(&this.geometry, lookup, way);
            if entry == 0 {
                continue;
            }
            let line = this.geometry.line(set, entry) << tree.line_shift;
            let vcpus = &tree.children[node as usize].vcpus;
            for &vcpu in vcpus.iter().filter(|&&vcpu| Some(vcpu) != requester) {
                updates.push(L0Update {
                    vcpu,
                    side,
                    line,
                    permission: Permission::None,
                });
            }
        }
    }
}
