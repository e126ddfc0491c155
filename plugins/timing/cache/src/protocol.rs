//! Coherence protocol of the caches.
//!
//! Every cache includes the caches inside it: a line that a cache does not hold is in no cache inside it. A cache has at most those
//! permissions for a line that the cache outside it has. A line that is modified in one cache is marked modified at every level outwards,
//! so that an eviction never has to look outwards. The outermost caches are peers on the interconnect and use MESIF.

use nodescope_plugin_api::{Access, L0Update, MemRef, MissRef, Permission};

use crate::events::{Distance, Events, LevelEvent, SystemEvent};
use crate::geometry::LineLookup;
use crate::hierarchy::{CacheKind, Hierarchy, NONE, Node, Request, SHARED};
use crate::tags::{HOLDERS, State};
use crate::word::{Baseline, Isa, Word};

/// Reason for which a line leaves a cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// The line is written through another cache.
    Write,
    /// The cache outside replaces the line.
    Inclusion,
}

impl<W: Word> Hierarchy<W> {
    /// Begins to account for a reference that needs more than the first level.
    #[inline(always)]
    pub(crate) fn begin_request(&mut self, reference: &MemRef) {
        self.request = Request {
            requester: reference.vcpu,
            account: self.ledger.select(reference),
            now: reference.now,
            stall: 0,
        };
    }

    /// Looks a line up in a cache. Returns the look-up, and the line's way if the cache has the line.
    #[inline(always)]
    pub(crate) fn find<I: Isa>(&self, isa: I, node: u32, line: u64) -> (LineLookup, Option<usize>) {
        let geometry = &self.nodes.get(node).geometry;
        let lookup = geometry.lookup(line);
        (lookup, self.tags.find(isa, geometry, lookup))
    }

    /// Brings a line into the first-level cache `first` with permission for `access`, by the slow path. The cache must not hold the line.
    /// Returns the line's state in `first`, and the line that it replaced. If the set is full, the replaced line is `oldest` where an L0
    /// filter cache keeps the order of the set. `not_in_l2` is true if the second level is known not to have the line.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn miss<I: Isa>(
        &mut self,
        isa: I,
        first: u32,
        lookup: LineLookup,
        line: u64,
        oldest: Option<u64>,
        not_in_l2: bool,
        access: Access,
        updates: &mut Vec<L0Update>,
    ) -> (State, Option<u64>) {
        // The host's loads of the outer levels' tags take long: all of them begin before the first is used.
        let mut outer = self.nodes.get(first).outer;
        let mut levels = 0;
        while outer != NONE {
            let this = self.nodes.get(outer);
            let lookup = this.geometry.lookup(line);
            self.tags.prefetch(&this.geometry, lookup);
            self.path[levels] = (outer, lookup);
            levels += 1;
            if this.outermost() {
                self.prefetch_peers(outer, line);
            }
            outer = this.outer;
        }
        // Walk from the first level outwards to the cache that has the line.
        let mut inner = first;
        let mut level = 0;
        let mut state = loop {
            self.charge_level(level, LevelEvent::miss(access));
            if level == levels {
                break self.interconnect(inner, line, access, updates);
            }
            let (node, lookup) = self.path[level];
            let known_absent = level == 0 && not_in_l2;
            let geometry = &self.nodes.get(node).geometry;
            if !known_absent && let Some(way) = self.tags.find(isa, geometry, lookup) {
                break self.supply(isa, node, inner, lookup, way, line, access, updates);
            }
            level += 1;
            inner = node;
        };
        // Walk back inwards, with the state that the cache outside permits.
        while level > 0 {
            level -= 1;
            let (node, lookup) = self.path[level];
            let inside = match level {
                0 => first,
                _ => self.path[level - 1].0,
            };
            let &Node { bit, kind, .. } = self.nodes.get(inside);
            self.fill(isa, node, lookup, None, state, bit.into(), updates);
            state = state.inside(kind == CacheKind::Instruction);
        }
        let last = self.fill(isa, first, lookup, oldest, state, 0, updates);
        let geometry = &self.nodes.get(first).geometry;
        (state, (last != 0).then(|| geometry.line(lookup.set, last)))
    }

    /// Supplies a line to the cache `inner` from the cache `node` outside it, which has the line in `way`. Returns the state for `inner`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn supply<I: Isa>(
        &mut self,
        isa: I,
        node: u32,
        inner: u32,
        lookup: LineLookup,
        way: usize,
        line: u64,
        access: Access,
        updates: &mut Vec<L0Update>,
    ) -> State {
        let this = self.nodes.get(node);
        let Node { bit, kind, .. } = *self.nodes.get(inner);
        let bit = u64::from(bit);
        let entry = self.tags.touch(isa, &this.geometry, lookup, way, bit);
        let state = State::of(entry);
        let others = this.without(this.geometry.holders(entry), bit);
        let at = lookup.start;
        self.charge_level(this.level.into(), LevelEvent::hit(access));
        if access == Access::Write {
            match state {
                State::Modified => {}
                State::Exclusive => self.modify(isa, node, line),
                State::Shared | State::Forward => self.acquire_ownership(node, line, updates),
            }
            self.invalidate_others(node, inner, at, others, line, updates);
            return State::Modified;
        }
        if !state.owned() {
            return State::Shared;
        }
        let shared = others != 0 && self.share_with_others(node, inner, at, others, line, updates);
        if shared || kind == CacheKind::Instruction {
            State::Shared
        } else {
            State::Exclusive
        }
    }

    /// Prefetches the tags of a line in the peers of the outermost cache `root`.
    #[inline(always)]
    pub(crate) fn prefetch_peers(&self, root: u32, line: u64) {
        for &peer in self.roots.iter().filter(|&&peer| peer != root) {
            let peer = self.nodes.get(peer);
            self.tags
                .prefetch(&peer.geometry, peer.geometry.lookup(line));
        }
    }

    /// Returns the index of a line's entry in `node`, which must have the line, since the line was found in `node` or in a cache inside it.
    #[inline(always)]
    fn included<I: Isa>(&self, isa: I, node: u32, line: u64) -> Option<usize> {
        let (lookup, way) = self.find(isa, node, line);
        debug_assert!(
            way.is_some(),
            "a cache does not include what the cache inside it holds"
        );
        Some(lookup.start + way?)
    }

    /// Marks a line as modified in `node`, which owns the line, and in every cache outside `node`.
    #[inline(always)]
    pub(crate) fn modify<I: Isa>(&mut self, isa: I, node: u32, line: u64) {
        let mut next = node;
        while next != NONE {
            let node = next;
            let Some(at) = self.included(isa, node, line) else {
                return;
            };
            if self.tags.state(at) == State::Modified {
                return;
            }
            self.tags.set_state(at, State::Modified);
            next = self.nodes.get(node).outer;
        }
    }

    /// Acquires permission to write a line that `node` shares with other caches, and marks the line modified.
    pub(crate) fn acquire_ownership(&mut self, node: u32, line: u64, updates: &mut Vec<L0Update>) {
        let outer = self.nodes.get(node).outer;
        if outer != NONE {
            let Some(at) = self.included(Baseline, outer, line) else {
                return;
            };
            let state = self.tags.state(at);
            let around = self.nodes.get(outer);
            let holders = self.tags.holders(&around.geometry, at);
            let others = around.without(holders, self.nodes.get(node).bit.into());
            if state.owned() {
                self.charge_level(around.level.into(), LevelEvent::Upgrade);
                self.modify(Baseline, outer, line);
            } else {
                self.acquire_ownership(outer, line, updates);
            }
            self.invalidate_others(outer, node, at, others, line, updates);
        } else {
            self.charge_system(SystemEvent::Upgrade);
            for index in 0..self.roots.len() {
                let peer = self.roots[index];
                if peer != node
                    && self
                        .invalidate(peer, line, Reason::Write, updates)
                        .is_some()
                {
                    self.charge_system(SystemEvent::Invalidate(self.distance(peer)));
                }
            }
        }
        if let (lookup, Some(way)) = self.find(Baseline, node, line) {
            self.tags.set_state(lookup.start + way, State::Modified);
        }
    }

    /// Removes a line from the caches inside `node`, except `inner`, because of a write through `inner`.
    fn invalidate_others(
        &mut self,
        node: u32,
        inner: u32,
        at: usize,
        others: u64,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) {
        if others == 0 {
            return;
        }
        self.for_each_holder(node, others, |this, other| {
            if other != inner
                && let Some(state) = this.invalidate(other, line, Reason::Write, updates)
            {
                let distance = this.distance(other);
                if state == State::Modified {
                    this.charge_system(SystemEvent::FromModified(distance));
                }
                this.charge_system(SystemEvent::Invalidate(distance));
            }
            true
        });
        let bit = self.nodes.get(inner).bit.into();
        let geometry = &self.nodes.get(node).geometry;
        self.tags.set_holders(geometry, at, bit);
    }

    /// Downgrades a line so that no cache inside `node` except `inner` owns the line. Returns true if one of them still holds the line.
    fn share_with_others(
        &mut self,
        node: u32,
        inner: u32,
        at: usize,
        others: u64,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) -> bool {
        let mut shared = false;
        let mut absent = 0;
        self.for_each_holder(node, others, |this, other| {
            if other == inner {
                return true;
            }
            match this.downgrade(other, line, updates) {
                None => absent |= u64::from(this.nodes.get(other).bit),
                Some(state) => {
                    shared = true;
                    let distance = this.distance(other);
                    match state {
                        State::Modified => this.charge_system(SystemEvent::FromModified(distance)),
                        State::Exclusive => this.charge_system(SystemEvent::Snoop(distance)),
                        State::Shared | State::Forward => {}
                    }
                }
            }
            // An owner is the only cache with the line, so one copy found is enough.
            !shared
        });
        let this = self.nodes.get(node);
        if this.exact {
            let holders = self.tags.holders(&this.geometry, at) & !absent;
            self.tags.set_holders(&this.geometry, at, holders);
        }
        shared
    }

    /// Calls `visit` with each cache inside `node` that the holder bits may represent, until `visit` returns false.
    #[inline]
    fn for_each_holder(
        &mut self,
        node: u32,
        mut holders: u64,
        mut visit: impl FnMut(&mut Self, u32) -> bool,
    ) {
        while holders != 0 {
            let mut position = holders.trailing_zeros() as usize;
            holders &= holders - 1;
            while let Some(&inner) = self.children[node as usize].inner.get(position) {
                if !visit(self, inner) {
                    return;
                }
                position += HOLDERS as usize;
            }
        }
    }

    /// Removes a line from a cache and the caches inside it. Returns the state that the line had; `None` if the cache did not have it.
    fn invalidate(
        &mut self,
        node: u32,
        line: u64,
        reason: Reason,
        updates: &mut Vec<L0Update>,
    ) -> Option<State> {
        let (lookup, way) = self.find(Baseline, node, line);
        let way = way?;
        let this = self.nodes.get(node);
        let (level, outermost) = (this.level.into(), this.outermost());
        let state = self.tags.state(lookup.start + way);
        let holders = self.tags.holders(&this.geometry, lookup.start + way);
        self.tags.remove(&this.geometry, lookup, way);
        if holders != 0 {
            self.for_each_holder(node, holders, |this, inner| {
                this.invalidate(inner, line, reason, updates);
                true
            });
        }
        self.lower_l0_permissions(node, way, line, Permission::None, updates);
        if reason == Reason::Inclusion {
            self.charge_level(level, LevelEvent::Inclusion);
        }
        // Between peers of the interconnect, a modified line moves to the writer without a write-back.
        if state == State::Modified && !outermost {
            self.charge_level(level, LevelEvent::Writeback);
        }
        Some(state)
    }

    /// Downgrades a line to a shared copy in a cache and the caches inside it. Returns the line's earlier state; `None` without the line.
    fn downgrade(&mut self, node: u32, line: u64, updates: &mut Vec<L0Update>) -> Option<State> {
        let (lookup, way) = self.find(Baseline, node, line);
        let way = way?;
        let at = lookup.start + way;
        let state = self.tags.state(at);
        if state == State::Shared {
            return Some(state);
        }
        self.tags.set_state(at, State::Shared);
        if !state.owned() {
            return Some(state);
        }
        let holders = self.tags.holders(&self.nodes.get(node).geometry, at);
        if holders != 0 {
            self.for_each_holder(node, holders, |this, inner| {
                this.downgrade(inner, line, updates);
                true
            });
        }
        // An L0 filter cache may permit writes also to a line that no other cache holds.
        self.lower_l0_permissions(node, way, line, Permission::Read, updates);
        if state == State::Modified {
            let this = self.nodes.get(node);
            if !this.outermost() {
                self.charge_level(this.level.into(), LevelEvent::Writeback);
            }
        }
        Some(state)
    }

    /// Fills a line into a cache, in place of the least recently used line of its set. Returns the replaced line's entry, 0 if a way was
    /// empty. `oldest` names the least recently used line where an L0 filter cache keeps the order of the set.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn fill<I: Isa>(
        &mut self,
        isa: I,
        node: u32,
        lookup: LineLookup,
        oldest: Option<u64>,
        state: State,
        holders: u64,
        updates: &mut Vec<L0Update>,
    ) -> u64 {
        let this = self.nodes.get(node);
        let several_vcpus = this.several_vcpus;
        let mut way = this.geometry.ways as usize - 1;
        if let Some(line) = oldest
            && self.tags.entry(lookup.start + way) != 0
        {
            let found = self.find(isa, node, line).1;
            way = found
                .expect("the oldest line of a set, as the L0 filter cache names it, is in the set");
        }
        let last = self.tags.entry(lookup.start + way);
        // A clean line without holder bits needs no eviction.
        if this.geometry.holders(last) != 0 || last != 0 && State::of(last) == State::Modified {
            self.evict(isa, node, lookup, last, updates);
        }
        if several_vcpus {
            self.revoke_most_recent(node, lookup, self.request.requester, updates);
        }
        let geometry = &self.nodes.get(node).geometry;
        self.tags
            .replace_way(isa, geometry, lookup, way, state, holders);
        last
    }

    /// Evicts a replaced line: removes it from the caches inside, and writes a modified line back.
    #[inline(always)]
    fn evict<I: Isa>(
        &mut self,
        isa: I,
        node: u32,
        lookup: LineLookup,
        entry: u64,
        updates: &mut Vec<L0Update>,
    ) {
        let this = self.nodes.get(node);
        let line = this.geometry.line(lookup.set, entry);
        let holders = this.geometry.holders(entry);
        if holders != 0 && self.may_hold(isa, node, holders, line) {
            self.invalidate_inside(node, holders, line, updates);
        }
        self.write_back(node, lookup, entry);
    }

    /// Counts the write-back of an entry's replaced line if the line is modified, and sends it to memory from an outermost cache.
    #[inline(always)]
    pub(crate) fn write_back(&mut self, node: u32, lookup: LineLookup, entry: u64) {
        if entry != 0 && State::of(entry) == State::Modified {
            let this = self.nodes.get(node);
            let (level, socket, outermost) = (this.level, this.socket, this.outermost());
            let line = this.geometry.line(lookup.set, entry);
            self.charge_level(level.into(), LevelEvent::Writeback);
            if outermost {
                self.request_memory(socket, line, true);
            }
        }
    }

    /// Returns false if none of the caches inside `node` that the holder bits represent has the line. Usually none has, since a holder bit
    /// stays set when a cache inside replaces the line. Returns true without a look-up if a holder bit represents several caches.
    #[inline(always)]
    pub(crate) fn may_hold<I: Isa>(&self, isa: I, node: u32, holders: u64, line: u64) -> bool {
        if !self.nodes.get(node).exact {
            return true;
        }
        let inside = &self.children[node as usize].inner;
        let mut left = holders;
        while left != 0 {
            let position = left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some(&inner) = inside.get(position)
                && self.find(isa, inner, line).1.is_some()
            {
                return true;
            }
        }
        false
    }

    #[inline(never)]
    fn invalidate_inside(
        &mut self,
        node: u32,
        holders: u64,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) {
        self.for_each_holder(node, holders, |this, inner| {
            this.invalidate(inner, line, Reason::Inclusion, updates);
            true
        });
    }

    /// Revokes the most recently used line of a first-level set from the L0 filter caches of the other vCPUs that share the set, since
    /// another line becomes the most recently used. The engine replaces the slot of the requester itself.
    #[cold]
    pub(crate) fn revoke_most_recent(
        &mut self,
        node: u32,
        lookup: LineLookup,
        requester: u16,
        updates: &mut Vec<L0Update>,
    ) {
        let first = self.tags.entry(lookup.start);
        if first == 0 {
            return;
        }
        let this = self.nodes.get(node);
        let line = this.geometry.line(lookup.set, first) << self.line_shift;
        let vcpus = &self.children[node as usize].vcpus;
        for &vcpu in vcpus.iter().filter(|&&vcpu| vcpu != requester) {
            updates.push(L0Update {
                vcpu,
                side: this.side(),
                line,
                permission: Permission::None,
            });
        }
    }

    /// Lowers the permission for a line in the L0 filter caches of the vCPUs of a first-level cache. Unless L0 filter caches hold whole
    /// sets, only the most recently used line of a set, in way 0, needs this.
    #[inline]
    fn lower_l0_permissions(
        &mut self,
        node: u32,
        way: usize,
        line: u64,
        permission: Permission,
        updates: &mut Vec<L0Update>,
    ) {
        let side = self.nodes.get(node).side();
        if way != 0 && !self.whole_sets[side as usize] {
            return;
        }
        for &vcpu in &self.children[node as usize].vcpus {
            updates.push(L0Update {
                vcpu,
                side,
                line: line << self.line_shift,
                permission,
            });
        }
    }

    /// Serves a request that leaves the outermost cache `root`, from its peers or else from memory. Returns the state for `root`.
    #[inline(never)]
    fn interconnect(
        &mut self,
        root: u32,
        line: u64,
        access: Access,
        updates: &mut Vec<L0Update>,
    ) -> State {
        let write = access == Access::Write;
        let mut held = false;
        let mut supplied = false;
        for index in 0..self.roots.len() {
            let peer = self.roots[index];
            if peer == root || self.find(Baseline, peer, line).1.is_none() {
                continue;
            }
            let before = if write {
                self.invalidate(peer, line, Reason::Write, updates)
            } else {
                self.downgrade(peer, line, updates)
            };
            let Some(before) = before else { continue };
            held = true;
            let distance = self.distance(peer);
            match before {
                State::Shared => {}
                State::Forward | State::Exclusive => {
                    supplied = true;
                    self.charge_system(SystemEvent::From(distance));
                }
                State::Modified => {
                    supplied = true;
                    self.charge_system(SystemEvent::FromModified(distance));
                    if !write {
                        // A reader gets a clean copy, so the peer writes the line back to memory.
                        let Node { level, socket, .. } = *self.nodes.get(peer);
                        self.charge_level(level.into(), LevelEvent::Writeback);
                        self.request_memory(socket, line, true);
                    }
                }
            }
            if write {
                self.charge_system(SystemEvent::Invalidate(distance));
            }
        }
        if !supplied {
            self.read_memory(line);
        }
        match (write, held) {
            (true, _) => State::Modified,
            (false, true) => State::Forward,
            (false, false) => State::Exclusive,
        }
    }

    /// Reads a line from memory for the requester's socket.
    #[inline(always)]
    pub(crate) fn read_memory(&mut self, line: u64) {
        let requester = &self.vcpu_caches[usize::from(self.request.requester)];
        self.request_memory(requester.socket, line, false);
    }

    #[inline(always)]
    fn request_memory(&mut self, socket: u16, line: u64, write_back: bool) {
        let timing = self.memory.request(&MissRef {
            socket,
            line: line << self.line_shift,
            write_back,
            now: self.request.now,
        });
        let event = self.events.system(SystemEvent::Memory {
            local: timing.local,
            write_back,
        });
        let latency = timing.latency.into();
        self.ledger.charge(self.request.account, event, latency);
        self.events.charge(&mut self.ledger.charges, event, latency);
        self.request.stall += latency;
    }

    /// Returns the distance of a cache from the requester.
    fn distance(&self, node: u32) -> Distance {
        let node = self.nodes.get(node);
        let requester = &self.vcpu_caches[usize::from(self.request.requester)];
        if node.socket != requester.socket {
            Distance::OtherSocket
        } else if node.core == SHARED || node.core == requester.core {
            Distance::SameCore
        } else {
            Distance::OtherCore
        }
    }

    #[inline(always)]
    pub(crate) fn charge_level(&mut self, level: usize, event: LevelEvent) {
        let event = Events::at_level(level, event);
        self.charge(event, self.events.latency(event));
    }

    #[inline]
    fn charge_system(&mut self, event: SystemEvent) {
        let event = self.events.system(event);
        self.charge(event, self.events.latency(event));
    }

    /// Counts an event of a constant latency. [`crate::CacheModel`] multiplies count and latency for statistics.
    #[inline(always)]
    fn charge(&mut self, event: usize, latency: u32) {
        self.ledger.count(self.request.account, event);
        self.events
            .charge(&mut self.ledger.charges, event, latency.into());
        self.request.stall += u64::from(latency);
    }
}
