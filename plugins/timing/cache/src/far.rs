//! What most misses of the second level come to: the third, which is the outermost, has the line, or memory does, and no other
//! cache is changed.

use nodescope_plugin_api::{Access, MemRef};

use crate::events::AtLevel;
use crate::geometry::Spot;
use crate::hierarchy::{Hierarchy, NONE};
use crate::near::Taken;
use crate::tags::State;
use crate::word::{Isa, Word};

impl<W: Word> Hierarchy<W> {
    /// [`Hierarchy::take`] for a line that the second level does not have, where it would be at `second`.
    #[inline(always)]
    pub(crate) fn take_from_afar<I: Isa>(
        &mut self,
        isa: I,
        first: u32,
        second: Spot,
        line: u64,
        oldest: u64,
        reference: &MemRef,
    ) -> Taken {
        let access = reference.access;
        let &inside = self.nodes.get(first);
        let middle = self.nodes.get(inside.outer);
        let (root, middle_bit) = (middle.outer, u64::from(middle.bit));
        if root == NONE || !self.nodes.get(root).outermost() {
            return Taken::Absent;
        }
        // These tags are far away on the host, too, and are asked for first.
        let around = self.nodes.get(root);
        let spot = around.geometry.spot(line);
        self.tags.prefetch(&around.geometry, spot);
        self.prefetch_peers(root, line);
        let Some(left) = self.oldest_way(isa, first, oldest) else {
            return Taken::Absent;
        };
        let from_second = self.tags.last(&middle.geometry, second);
        if self.held_inside(isa, inside.outer, second, from_second) {
            return Taken::Absent;
        }
        let state = if let Some(way) = self.tags.find(isa, &around.geometry, spot) {
            let entry = self.tags.entry(spot.start + way);
            let outside = State::of(entry);
            let others = around.without(around.geometry.holders(entry), middle_bit);
            let state = match access {
                Access::Write if outside.owned() && others == 0 => State::Modified,
                Access::Write => return Taken::Absent,
                _ if !outside.owned() => State::Shared,
                _ if others != 0 => return Taken::Absent,
                _ => State::Exclusive,
            };
            self.begin(reference);
            self.charge_level(2, AtLevel::hit(access));
            let around = &self.nodes.get(root).geometry;
            self.tags.touch(isa, around, spot, way, middle_bit);
            if state == State::Modified && outside != State::Modified {
                self.tags.set_state(spot.start, State::Modified);
            }
            state
        } else {
            let victim = self.tags.last(&around.geometry, spot);
            if self.held_inside(isa, root, spot, victim) || self.held_by_peers(isa, root, line) {
                return Taken::Absent;
            }
            self.begin(reference);
            self.charge_level(2, AtLevel::miss(access));
            self.read_memory(line);
            self.write_back(root, spot, victim);
            let state = match access {
                Access::Write => State::Modified,
                _ => State::Exclusive,
            };
            let around = &self.nodes.get(root).geometry;
            let way = around.ways as usize - 1;
            self.tags.insert(isa, around, spot, way, state, middle_bit);
            state
        };
        self.charge_level(0, AtLevel::miss(access));
        self.charge_level(1, AtLevel::miss(access));
        self.write_back(inside.outer, second, from_second);
        let middle = &self.nodes.get(inside.outer).geometry;
        let way = middle.ways as usize - 1;
        let held = state.inside(false);
        self.tags
            .insert(isa, middle, second, way, held, inside.bit.into());
        Taken::Entered(self.replace_first(first, left, line, held))
    }

    /// Whether a cache inside `node` may have the line of an entry of `node`.
    #[inline(always)]
    fn held_inside<I: Isa>(&self, isa: I, node: u32, spot: Spot, entry: u64) -> bool {
        let geometry = &self.nodes.get(node).geometry;
        let holders = geometry.holders(entry);
        holders != 0 && self.may_hold(isa, node, holders, geometry.line(spot.set, entry))
    }

    /// Whether another outermost cache than `root` has a line.
    #[inline(always)]
    fn held_by_peers<I: Isa>(&self, isa: I, root: u32, line: u64) -> bool {
        // Not a closure: it would be a function of its own, compiled for every host, and call what compares tags.
        for &peer in &self.roots {
            if peer != root && self.find(isa, peer, line).1.is_some() {
                return true;
            }
        }
        false
    }
}
