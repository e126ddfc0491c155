//! Rules by which the copies of a line stay coherent.
//!
//! A line that an inclusive cache does not hold is in no cache inside it. A cache has at most those permissions for a line that an
//! inclusive cache outside it has. A line that is modified in one cache is marked modified outwards, up to the first cache that is not
//! inclusive. Caches inside an outermost cache know by holder bits, or by asking, which of them hold a line. The outermost caches are peers
//! on the interconnect and use MESIF.

use nodescope_plugin_api::{Access, L0Update, Permission};

use crate::config::Inclusion;
use crate::events::{Distance, LevelEvent, SystemEvent, Traffic};
use crate::hierarchy::Hierarchy;
use crate::node::NONE;
use crate::tags::{HOLDERS, State, is_prefetched};
use crate::tree::Tree;
use crate::word::{Baseline, Variant, Word};

/// Reason for which a line leaves a cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The line is written through another cache.
    Write,
    /// The inclusive cache outside replaces the line.
    Inclusion,
}

impl<W: Word> Hierarchy<W> {
    /// Returns the distance of a cache from the requester.
    pub(crate) fn distance(&self, tree: &Tree, node: u32) -> Distance {
        tree.vcpu_caches[usize::from(self.request.requester)].distances[node as usize]
    }

    /// Marks a line as modified in `node`, which owns the line, and outwards up to the first cache that is not inclusive.
    #[inline(always)]
    pub(crate) fn modify<V: Variant>(&mut self, tree: &Tree, variant: V, node: u32, line: u64) {
        let mut node = node;
        loop {
            let geometry = &tree.nodes.get(node).geometry;
            let lookup = geometry.lookup(line);
            // Outside the first level the line is usually the most recently used line of its set.
            let first = self.tags.way(geometry, lookup, 0);
            let way = match first & geometry.tag_mask() == lookup.key {
                true => Some(0),
                false => self.tags.find(variant, geometry, lookup),
            };
            debug_assert!(way.is_some(), "an owner of a line has the line");
            let Some(way) = way else { return };
            let at = lookup.start + way;
            if V::USUAL && self.tags.state(at) == State::Modified {
                return;
            }
            self.tags.set_state(at, State::Modified);
            node = tree.nodes.get(node).outer;
            if node == NONE || !tree.nodes.get(node).inclusive::<V>() {
                return;
            }
        }
    }

    /// Acquires permission to write a line that `node`, or a cache inside it, shares with other caches. If `node` has the line, marks it
    /// modified there.
    #[cold]
    #[inline(never)]
    pub(crate) fn own(&mut self, tree: &Tree, node: u32, line: u64, updates: &mut Vec<L0Update>) {
        let outer = tree.nodes.get(node).outer;
        if outer == NONE {
            self.charge_system(tree, SystemEvent::Upgrade);
            self.invalidate_in_peers(tree, node, line, updates);
        } else {
            self.own_outside(tree, node, outer, line, updates);
        }
        if let (lookup, Some(way)) = self.find(tree, Baseline, node, line) {
            self.tags.set_state(lookup.start + way, State::Modified);
        }
    }

    /// Removes a line from the peers of the outermost cache `root`.
    pub(crate) fn invalidate_in_peers(
        &mut self,
        tree: &Tree,
        root: u32,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) {
        for index in 0..tree.roots.len() {
            let peer = tree.roots[index];
            if peer != root
                && self
                    .invalidate(tree, peer, line, Reason::Write, updates)
                    .is_some()
            {
                self.charge_system(tree, SystemEvent::Invalidate(self.distance(tree, peer)));
            }
        }
    }

    /// Acquires the permission of [`Hierarchy::own`] from the cache `outer` around `node`.
    #[cold]
    #[inline(never)]
    fn own_outside(
        &mut self,
        tree: &Tree,
        node: u32,
        outer: u32,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) {
        let around = *tree.nodes.get(outer);
        let (lookup, way) = self.find(tree, Baseline, outer, line);
        let at = way.map(|way| lookup.start + way);
        if at.is_some_and(|at| self.tags.state(at).owned()) {
            self.charge_level(tree, around.level.into(), LevelEvent::Upgrade);
            if around.inclusive::<Baseline>() {
                self.modify(tree, Baseline, outer, line);
            }
        } else {
            self.own(tree, outer, line, updates);
            if let Some(at) = at.filter(|_| around.inclusion == Inclusion::NonInclusive) {
                self.tags.set_state(at, State::Exclusive);
            }
        }
        self.invalidate_others(tree, outer, node, at, line, updates);
        if let (Some(way), Inclusion::Exclusive) = (way, around.inclusion) {
            self.take_out(tree, outer, line, way);
        }
    }

    /// Returns those caches inside `node`, as holder bits, that may have the line of the entry at this index; `None` if only asking them
    /// tells.
    fn known_holders(&self, tree: &Tree, node: u32, at: Option<usize>) -> Option<u64> {
        let this = tree.nodes.get(node);
        let at = at.filter(|_| this.inclusive::<Baseline>())?;
        Some(self.tags.holders(&this.geometry, at))
    }

    /// Removes a line from the caches inside `node`, except `inner`, because of a write through `inner`. `at` is the index of the line's
    /// entry in `node`. Returns the strongest state that a removed copy had.
    #[cold]
    #[inline(never)]
    pub(crate) fn invalidate_others(
        &mut self,
        tree: &Tree,
        node: u32,
        inner: u32,
        at: Option<usize>,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) -> Option<State> {
        let bit = tree.nodes.get(inner).bit.into();
        let holders = self.known_holders(tree, node, at);
        if let Some(holders) = holders
            && tree.nodes.get(node).without(holders, bit) == 0
        {
            return None;
        }
        let mut strongest = None;
        self.for_each_holder(tree, node, holders, |this, other| {
            if other != inner
                && let Some(state) = this.invalidate(tree, other, line, Reason::Write, updates)
            {
                strongest = strongest.max(Some(state));
                let distance = this.distance(tree, other);
                if state == State::Modified {
                    this.charge_system(tree, SystemEvent::FromModified(distance));
                }
                this.charge_system(tree, SystemEvent::Invalidate(distance));
            }
            true
        });
        if let (Some(at), Some(holders)) = (at, holders) {
            let geometry = &tree.nodes.get(node).geometry;
            self.tags.set_holders(geometry, at, holders & bit);
        }
        strongest
    }

    /// Downgrades a line so that no cache inside `node` except `inner` owns the line. Returns the state that one of them had; `None` if none
    /// has the line.
    #[cold]
    #[inline(never)]
    pub(crate) fn share_with_others(
        &mut self,
        tree: &Tree,
        node: u32,
        inner: u32,
        at: Option<usize>,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) -> Option<State> {
        let mut shared = None;
        let mut absent = 0;
        let holders = self.known_holders(tree, node, at);
        self.for_each_holder(tree, node, holders, |this, other| {
            if other == inner {
                return true;
            }
            match this.downgrade(tree, other, line, updates) {
                None => absent |= u64::from(tree.nodes.get(other).bit),
                Some(state) => {
                    shared = Some(state);
                    let distance = this.distance(tree, other);
                    match state {
                        State::Modified => {
                            this.charge_system(tree, SystemEvent::FromModified(distance))
                        }
                        State::Exclusive => this.charge_system(tree, SystemEvent::Snoop(distance)),
                        State::Shared | State::Forward => {}
                    }
                }
            }
            // An owner is the only cache with the line, so one copy found is enough.
            shared.is_none()
        });
        let this = tree.nodes.get(node);
        if let (Some(at), true, true) = (at, holders.is_some(), this.traits.exact) {
            let holders = self.tags.holders(&this.geometry, at) & !absent;
            self.tags.set_holders(&this.geometry, at, holders);
        }
        shared
    }

    /// Calls `visit` with each cache inside `node` that the holder bits may represent, or with all of them, until `visit` returns false.
    #[inline]
    fn for_each_holder(
        &mut self,
        tree: &Tree,
        node: u32,
        holders: Option<u64>,
        mut visit: impl FnMut(&mut Self, u32) -> bool,
    ) {
        let Some(mut holders) = holders else {
            for position in 0..tree.children[node as usize].inner.len() {
                let inner = tree.children[node as usize].inner[position];
                if !visit(self, inner) {
                    return;
                }
            }
            return;
        };
        while holders != 0 {
            let mut position = holders.trailing_zeros() as usize;
            holders &= holders - 1;
            while let Some(&inner) = tree.children[node as usize].inner.get(position) {
                if !visit(self, inner) {
                    return;
                }
                position += HOLDERS as usize;
            }
        }
    }

    /// Removes a line from a cache and the caches inside it. Returns the strongest state that the line had; `None` if none had it.
    #[cold]
    #[inline(never)]
    pub(crate) fn invalidate(
        &mut self,
        tree: &Tree,
        node: u32,
        line: u64,
        reason: Reason,
        updates: &mut Vec<L0Update>,
    ) -> Option<State> {
        let (lookup, way) = self.find(tree, Baseline, node, line);
        let this = *tree.nodes.get(node);
        let Some(way) = way else {
            return match this.inclusive::<Baseline>() {
                true => None,
                false => self.invalidate_inside(tree, node, None, line, reason, updates),
            };
        };
        let at = lookup.start + way;
        let entry = self.tags.entry(at);
        let state = State::of(entry);
        let holders = self.known_holders(tree, node, Some(at));
        self.take_out(tree, node, line, way);
        let inside = match holders {
            Some(0) => None,
            _ => self.invalidate_inside(tree, node, holders, line, reason, updates),
        };
        self.lower_l0_permissions(tree, node, way, line, Permission::None, updates);
        if is_prefetched(entry) {
            self.charge_level(
                tree,
                this.level.into(),
                LevelEvent::prefetch_unused(this.kind),
            );
        }
        if reason == Reason::Inclusion {
            self.charge_level(tree, this.level.into(), LevelEvent::Inclusion);
        }
        // Between peers of the interconnect, a modified line moves to the writer without a write-back.
        if state == State::Modified && !this.outermost() {
            self.charge_level(tree, this.level.into(), LevelEvent::Writeback);
        }
        inside.max(Some(state))
    }

    /// Removes a line from the caches inside `node` that the holder bits may represent, or from all of them. Returns the strongest state
    /// that the line had.
    #[cold]
    #[inline(never)]
    pub(crate) fn invalidate_inside(
        &mut self,
        tree: &Tree,
        node: u32,
        holders: Option<u64>,
        line: u64,
        reason: Reason,
        updates: &mut Vec<L0Update>,
    ) -> Option<State> {
        let mut strongest = None;
        self.for_each_holder(tree, node, holders, |this, inner| {
            strongest = strongest.max(this.invalidate(tree, inner, line, reason, updates));
            true
        });
        strongest
    }

    /// Returns whether a cache, or a cache inside it, has a line.
    pub(crate) fn holds(&self, tree: &Tree, node: u32, line: u64) -> bool {
        let inside = || &tree.children[node as usize].inner;
        self.find(tree, Baseline, node, line).1.is_some()
            || !tree.nodes.get(node).inclusive::<Baseline>()
                && inside().iter().any(|&inner| self.holds(tree, inner, line))
    }

    /// Downgrades a line to shared copies in a cache and the caches inside it. Returns the strongest state that the line had; `None` if
    /// none has it.
    #[cold]
    #[inline(never)]
    pub(crate) fn downgrade(
        &mut self,
        tree: &Tree,
        node: u32,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) -> Option<State> {
        let (lookup, way) = self.find(tree, Baseline, node, line);
        let this = *tree.nodes.get(node);
        let at = way.map(|way| lookup.start + way);
        let own = at.map(|at| self.tags.state(at));
        if let Some(at) = at {
            self.tags.share(at);
        }
        if this.inclusive::<Baseline>() && own.is_none_or(|own| !own.owned()) {
            return own;
        }
        let holders = self.known_holders(tree, node, at);
        let mut strongest = own;
        if holders != Some(0) {
            self.for_each_holder(tree, node, holders, |this, inner| {
                strongest = strongest.max(this.downgrade(tree, inner, line, updates));
                true
            });
        }
        if let (Some(way), Some(State::Exclusive | State::Modified)) = (way, own) {
            // An L0 filter cache may permit writes also to a line that no other cache holds.
            self.lower_l0_permissions(tree, node, way, line, Permission::Read, updates);
        }
        if own == Some(State::Modified) && !this.outermost() {
            self.charge_level(tree, this.level.into(), LevelEvent::Writeback);
        }
        strongest
    }

    /// Returns false if no cache inside the inclusive cache `node` that the holder bits represent has the line. Usually none has, since a
    /// holder bit stays set when a cache inside replaces the line. Returns true without a look-up if a holder bit represents several
    /// caches.
    #[inline(always)]
    pub(crate) fn may_hold<V: Variant>(
        &self,
        tree: &Tree,
        variant: V,
        node: u32,
        holders: u64,
        line: u64,
    ) -> bool {
        if !tree.nodes.get(node).traits.exact {
            return true;
        }
        let inside = &tree.children[node as usize].inner;
        let mut left = holders;
        while left != 0 {
            let position = left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some(&inner) = inside.get(position)
                && (!tree.nodes.get(inner).inclusive::<Baseline>()
                    || self.find(tree, variant, inner, line).1.is_some())
            {
                return true;
            }
        }
        false
    }

    /// Serves a request that leaves the outermost cache `root`, from its peers or else from memory. Returns the state for `root`. A write
    /// that fills no cache reads nothing.
    #[inline(always)]
    pub(crate) fn interconnect<V: Variant>(
        &mut self,
        tree: &Tree,
        variant: V,
        root: u32,
        line: u64,
        access: Access,
        updates: &mut Vec<L0Update>,
    ) -> State {
        let write = access == Access::Write;
        let mut held = false;
        let mut supplied = false;
        for index in 0..tree.roots.len() {
            let peer = tree.roots[index];
            if peer == root {
                continue;
            }
            let (_, way) = self.find(tree, variant, peer, line);
            if way.is_some() || !tree.nodes.get(peer).inclusive::<V>() {
                let (holds, supplies) = self.ask_peer(tree, peer, line, write, updates);
                held |= holds;
                supplied |= supplies;
            }
        }
        if !supplied && tree.nodes.get(root).takes_inside::<V>(access) {
            self.read_memory(tree, line);
        }
        match (write, held) {
            (true, _) => State::Modified,
            (false, true) => State::Forward,
            (false, false) => State::Exclusive,
        }
    }

    /// Asks a peer for a line. Returns whether the peer had the line, and whether it supplies the line.
    #[cold]
    #[inline(never)]
    fn ask_peer(
        &mut self,
        tree: &Tree,
        peer: u32,
        line: u64,
        write: bool,
        updates: &mut Vec<L0Update>,
    ) -> (bool, bool) {
        let before = if write {
            self.invalidate(tree, peer, line, Reason::Write, updates)
        } else {
            self.downgrade(tree, peer, line, updates)
        };
        let Some(before) = before else {
            return (false, false);
        };
        let distance = self.distance(tree, peer);
        match before {
            State::Shared => {}
            State::Forward | State::Exclusive => {
                self.charge_system(tree, SystemEvent::From(distance))
            }
            State::Modified => {
                self.charge_system(tree, SystemEvent::FromModified(distance));
                if !write {
                    // A reader gets a clean copy, so the peer writes the line back to memory.
                    let this = tree.nodes.get(peer);
                    let (level, socket) = (this.level, this.socket);
                    self.charge_level(tree, level.into(), LevelEvent::Writeback);
                    self.request_memory(tree, socket, line, Traffic::WriteBack);
                }
            }
        }
        if write {
            self.charge_system(tree, SystemEvent::Invalidate(distance));
        }
        (true, before != State::Shared)
    }
}
