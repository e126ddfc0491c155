//! The protocol that keeps the caches coherent.
//!
//! Every cache includes the caches inside it, so a line that a cache does not hold is nowhere inside it. What a cache may
//! do with a line is bounded by what the cache outside it may, and a line that is modified anywhere is marked
//! modified at every level outwards; an eviction therefore never has to look outwards. The outermost caches are peers
//! on the interconnect and speak MESIF.

use nodescope_plugin_api::{Access, L0Update, MemRef, MissRef, Permission};

use crate::events::{AtLevel, Between, Distance, Events};
use crate::geometry::Spot;
use crate::hierarchy::{CacheKind, Hierarchy, NONE, Node, Request, SHARED};
use crate::tags::{HOLDERS, State};
use crate::word::{Baseline, Isa, Word};

/// Why a line leaves a cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// Another vCPU writes it.
    Write,
    /// The cache outside replaces it.
    Inclusion,
}

impl<W: Word> Hierarchy<W> {
    /// Begin to account for a reference that the first level does not settle alone.
    #[inline(always)]
    pub(crate) fn begin(&mut self, reference: &MemRef) {
        self.request = Request {
            requester: reference.vcpu,
            account: self.ledger.select(reference),
            now: reference.now,
            stall: 0,
        };
    }

    /// Where a line would be in a cache, and its way if it is there.
    #[inline(always)]
    pub(crate) fn find<I: Isa>(&self, isa: I, node: u32, line: u64) -> (Spot, Option<usize>) {
        let geometry = &self.nodes.get(node).geometry;
        let spot = geometry.spot(line);
        (spot, self.tags.find(isa, geometry, spot))
    }

    /// Bring a line that the first-level cache `first` does not hold into it, with permission for `access`. Its state there,
    /// and the line that had its place: `oldest` if the set is full then, where the order of the set is kept elsewhere.
    /// `absent`: the second level does not have the line.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn miss<I: Isa>(
        &mut self,
        isa: I,
        first: u32,
        spot: Spot,
        line: u64,
        oldest: Option<u64>,
        absent: bool,
        access: Access,
        updates: &mut Vec<L0Update>,
    ) -> (State, Option<u64>) {
        // Tags of outer levels are far away on the host, too: all are asked for before the first is looked at.
        let mut outer = self.nodes.get(first).outer;
        let mut levels = 0;
        while outer != NONE {
            let this = self.nodes.get(outer);
            let spot = this.geometry.spot(line);
            self.tags.prefetch(&this.geometry, spot);
            self.path[levels] = (outer, spot);
            levels += 1;
            if this.outermost() {
                self.prefetch_peers(outer, line);
            }
            outer = this.outer;
        }
        // From the first level outwards to the cache that has the line.
        let mut inner = first;
        let mut level = 0;
        let mut state = loop {
            self.charge_level(level, AtLevel::miss(access));
            if level == levels {
                break self.interconnect(inner, line, access, updates);
            }
            let (node, spot) = self.path[level];
            let known = level == 0 && absent;
            let geometry = &self.nodes.get(node).geometry;
            if !known && let Some(way) = self.tags.find(isa, geometry, spot) {
                break self.supply(isa, node, inner, spot, way, line, access, updates);
            }
            level += 1;
            inner = node;
        };
        // And back, with what the cache outside permits.
        while level > 0 {
            level -= 1;
            let (node, spot) = self.path[level];
            let inside = match level {
                0 => first,
                _ => self.path[level - 1].0,
            };
            let &Node { bit, kind, .. } = self.nodes.get(inside);
            self.fill(isa, node, spot, None, state, bit.into(), updates);
            state = state.inside(kind == CacheKind::Instruction);
        }
        let last = self.fill(isa, first, spot, oldest, state, 0, updates);
        let geometry = &self.nodes.get(first).geometry;
        (state, (last != 0).then(|| geometry.line(spot.set, last)))
    }

    /// Let the cache `inner` have a line that `node` outside it holds in `way`; the answer is the state that `inner` may take.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn supply<I: Isa>(
        &mut self,
        isa: I,
        node: u32,
        inner: u32,
        spot: Spot,
        way: usize,
        line: u64,
        access: Access,
        updates: &mut Vec<L0Update>,
    ) -> State {
        let this = self.nodes.get(node);
        let Node { bit, kind, .. } = *self.nodes.get(inner);
        let bit = u64::from(bit);
        let entry = self.tags.touch(isa, &this.geometry, spot, way, bit);
        let state = State::of(entry);
        let others = this.without(this.geometry.holders(entry), bit);
        let at = spot.start;
        self.charge_level(this.level.into(), AtLevel::hit(access));
        if access == Access::Write {
            match state {
                State::Modified => {}
                State::Exclusive => self.modify(isa, node, line),
                State::Shared | State::Forward => self.own(node, line, updates),
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

    /// The peers of the outermost cache `root` will be asked for what it does not have.
    #[inline(always)]
    pub(crate) fn prefetch_peers(&self, root: u32, line: u64) {
        for &peer in self.roots.iter().filter(|&&peer| peer != root) {
            let peer = self.nodes.get(peer);
            self.tags.prefetch(&peer.geometry, peer.geometry.spot(line));
        }
    }

    /// The entry of a line that a cache inside `node` holds.
    #[inline(always)]
    fn included<I: Isa>(&self, isa: I, node: u32, line: u64) -> Option<usize> {
        let (spot, way) = self.find(isa, node, line);
        debug_assert!(
            way.is_some(),
            "a cache does not include what the cache inside it holds"
        );
        Some(spot.start + way?)
    }

    /// Mark a line that `node` owns as modified in it and in every cache outside it.
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

    /// Get permission to write a line that `node` shares with its peers, and mark it modified.
    pub(crate) fn own(&mut self, node: u32, line: u64, updates: &mut Vec<L0Update>) {
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
                self.charge_level(around.level.into(), AtLevel::Upgrade);
                self.modify(Baseline, outer, line);
            } else {
                self.own(outer, line, updates);
            }
            self.invalidate_others(outer, node, at, others, line, updates);
        } else {
            self.charge_between(Between::Upgrade);
            for index in 0..self.roots.len() {
                let peer = self.roots[index];
                if peer != node
                    && self
                        .invalidate(peer, line, Reason::Write, updates)
                        .is_some()
                {
                    self.charge_between(Between::Invalidate(self.distance(peer)));
                }
            }
        }
        if let (spot, Some(way)) = self.find(Baseline, node, line) {
            self.tags.set_state(spot.start + way, State::Modified);
        }
    }

    /// Remove a line from the caches inside `node`, except `inner`, because of a write through `inner`.
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
        self.each_holder(node, others, |this, other| {
            if other != inner
                && let Some(state) = this.invalidate(other, line, Reason::Write, updates)
            {
                let distance = this.distance(other);
                if state == State::Modified {
                    this.charge_between(Between::FromModified(distance));
                }
                this.charge_between(Between::Invalidate(distance));
            }
            true
        });
        let bit = self.nodes.get(inner).bit.into();
        let geometry = &self.nodes.get(node).geometry;
        self.tags.set_holders(geometry, at, bit);
    }

    /// Make sure that no cache inside `node` except `inner` owns a line. Whether one still holds it.
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
        self.each_holder(node, others, |this, other| {
            if other == inner {
                return true;
            }
            match this.downgrade(other, line, updates) {
                None => absent |= u64::from(this.nodes.get(other).bit),
                Some(state) => {
                    shared = true;
                    let distance = this.distance(other);
                    match state {
                        State::Modified => this.charge_between(Between::FromModified(distance)),
                        State::Exclusive => this.charge_between(Between::Snoop(distance)),
                        State::Shared | State::Forward => {}
                    }
                }
            }
            // An owner has the line alone, so one copy found is enough.
            !shared
        });
        let this = self.nodes.get(node);
        if this.exact {
            let holders = self.tags.holders(&this.geometry, at) & !absent;
            self.tags.set_holders(&this.geometry, at, holders);
        }
        shared
    }

    /// Visit the caches inside `node` that holder bits stand for, until `visit` answers false.
    #[inline]
    fn each_holder(
        &mut self,
        node: u32,
        mut holders: u64,
        mut visit: impl FnMut(&mut Self, u32) -> bool,
    ) {
        while holders != 0 {
            let mut position = holders.trailing_zeros() as usize;
            holders &= holders - 1;
            while let Some(&inner) = self.neighbours[node as usize].inner.get(position) {
                if !visit(self, inner) {
                    return;
                }
                position += HOLDERS as usize;
            }
        }
    }

    /// Take a line away from a cache and those inside it. The state it had.
    fn invalidate(
        &mut self,
        node: u32,
        line: u64,
        reason: Reason,
        updates: &mut Vec<L0Update>,
    ) -> Option<State> {
        let (spot, way) = self.find(Baseline, node, line);
        let way = way?;
        let this = self.nodes.get(node);
        let (level, outermost) = (this.level.into(), this.outermost());
        let state = self.tags.state(spot.start + way);
        let holders = self.tags.holders(&this.geometry, spot.start + way);
        self.tags.remove(&this.geometry, spot, way);
        if holders != 0 {
            self.each_holder(node, holders, |this, inner| {
                this.invalidate(inner, line, reason, updates);
                true
            });
        }
        self.limit_filters(node, way, line, Permission::None, updates);
        if reason == Reason::Inclusion {
            self.charge_level(level, AtLevel::Inclusion);
        }
        // Between peers of the interconnect a modified line moves to the writer as it is.
        if state == State::Modified && !outermost {
            self.charge_level(level, AtLevel::Writeback);
        }
        Some(state)
    }

    /// Leave a cache and those inside it no more than a shared copy. The state it had.
    fn downgrade(
        &mut self,
        node: u32,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) -> Option<State> {
        let (spot, way) = self.find(Baseline, node, line);
        let way = way?;
        let at = spot.start + way;
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
            self.each_holder(node, holders, |this, inner| {
                this.downgrade(inner, line, updates);
                true
            });
        }
        // A filter may let a line that is held alone be written, too.
        self.limit_filters(node, way, line, Permission::Read, updates);
        if state == State::Modified {
            let this = self.nodes.get(node);
            if !this.outermost() {
                self.charge_level(this.level.into(), AtLevel::Writeback);
            }
        }
        Some(state)
    }

    /// Put a line into a cache, replacing the least recently used line of its set, whose entry is the answer (0: the set had
    /// room). `oldest` names it where the set's own order does not.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn fill<I: Isa>(
        &mut self,
        isa: I,
        node: u32,
        spot: Spot,
        oldest: Option<u64>,
        state: State,
        holders: u64,
        updates: &mut Vec<L0Update>,
    ) -> u64 {
        let this = self.nodes.get(node);
        let threads = this.threads;
        let mut way = this.geometry.ways as usize - 1;
        if let Some(line) = oldest
            && self.tags.entry(spot.start + way) != 0
        {
            let found = self.find(isa, node, line).1;
            way = found.expect("what a filter calls the oldest line of a set is in it");
        }
        let last = self.tags.entry(spot.start + way);
        // Nothing depends on a clean line that no cache inside has.
        if this.geometry.holders(last) != 0 || last != 0 && State::of(last) == State::Modified {
            self.evict(isa, node, spot, last, updates);
        }
        if threads {
            self.displace(node, spot, self.request.requester, updates);
        }
        let geometry = &self.nodes.get(node).geometry;
        self.tags.insert(isa, geometry, spot, way, state, holders);
        last
    }

    /// A line is replaced: the caches inside lose it, and what is modified moves outwards.
    #[inline(always)]
    fn evict<I: Isa>(
        &mut self,
        isa: I,
        node: u32,
        spot: Spot,
        entry: u64,
        updates: &mut Vec<L0Update>,
    ) {
        let this = self.nodes.get(node);
        let line = this.geometry.line(spot.set, entry);
        let holders = this.geometry.holders(entry);
        if holders != 0 && self.may_hold(isa, node, holders, line) {
            self.empty_inside(node, holders, line, updates);
        }
        self.write_back(node, spot, entry);
    }

    /// The line of an entry is replaced: if it is modified, it moves outwards.
    #[inline(always)]
    pub(crate) fn write_back(&mut self, node: u32, spot: Spot, entry: u64) {
        if entry != 0 && State::of(entry) == State::Modified {
            let this = self.nodes.get(node);
            let (level, socket, outermost) = (this.level, this.socket, this.outermost());
            let line = this.geometry.line(spot.set, entry);
            self.charge_level(level.into(), AtLevel::Writeback);
            if outermost {
                self.request_memory(socket, line, true);
            }
        }
    }

    /// Whether one of the caches inside `node` that holder bits stand for has a line. Mostly none has: bits stay when a line is
    /// replaced inside.
    #[inline(always)]
    pub(crate) fn may_hold<I: Isa>(&self, isa: I, node: u32, holders: u64, line: u64) -> bool {
        if !self.nodes.get(node).exact {
            return true;
        }
        let inside = &self.neighbours[node as usize].inner;
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
    fn empty_inside(
        &mut self,
        node: u32,
        holders: u64,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) {
        self.each_holder(node, holders, |this, inner| {
            this.invalidate(inner, line, Reason::Inclusion, updates);
            true
        });
    }

    /// Another line becomes the most recently used of a first-level set that several vCPUs share: the filters of the
    /// others must not answer for the present one any more. The requester's own slot is replaced by the engine.
    #[cold]
    pub(crate) fn displace(
        &mut self,
        node: u32,
        spot: Spot,
        requester: u16,
        updates: &mut Vec<L0Update>,
    ) {
        let first = self.tags.entry(spot.start);
        if first == 0 {
            return;
        }
        let this = self.nodes.get(node);
        let line = this.geometry.line(spot.set, first) << self.line_shift;
        let vcpus = &self.neighbours[node as usize].vcpus;
        for &vcpu in vcpus.iter().filter(|&&vcpu| vcpu != requester) {
            updates.push(L0Update {
                vcpu,
                side: this.side(),
                line,
                permission: Permission::None,
            });
        }
    }

    /// Bound the filters of the vCPUs of a first-level cache. Unless they keep whole sets, only the most recently used line of a
    /// set can be in one.
    #[inline]
    fn limit_filters(
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
        for &vcpu in &self.neighbours[node as usize].vcpus {
            updates.push(L0Update {
                vcpu,
                side,
                line: line << self.line_shift,
                permission,
            });
        }
    }

    /// A request that leaves the outermost cache `root`: first to its peers, then to memory.
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
                    self.charge_between(Between::From(distance));
                }
                State::Modified => {
                    supplied = true;
                    self.charge_between(Between::FromModified(distance));
                    if !write {
                        // A reader gets a clean copy, so memory is brought up to date.
                        let Node { level, socket, .. } = *self.nodes.get(peer);
                        self.charge_level(level.into(), AtLevel::Writeback);
                        self.request_memory(socket, line, true);
                    }
                }
            }
            if write {
                self.charge_between(Between::Invalidate(distance));
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

    /// The requester's socket reads a line from memory.
    #[inline(always)]
    pub(crate) fn read_memory(&mut self, line: u64) {
        let requester = &self.entrances[usize::from(self.request.requester)];
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
        let event = self.events.between(Between::Memory {
            local: timing.local,
            write_back,
        });
        let latency = timing.latency.into();
        self.ledger.charge(self.request.account, event, latency);
        self.events.charge(&mut self.ledger.charges, event, latency);
        self.request.stall += latency;
    }

    /// Where a cache is, seen from the requester.
    fn distance(&self, node: u32) -> Distance {
        let node = self.nodes.get(node);
        let requester = &self.entrances[usize::from(self.request.requester)];
        if node.socket != requester.socket {
            Distance::OtherSocket
        } else if node.core == SHARED || node.core == requester.core {
            Distance::SameCore
        } else {
            Distance::OtherCore
        }
    }

    #[inline(always)]
    pub(crate) fn charge_level(&mut self, level: usize, event: AtLevel) {
        let event = Events::at(level, event);
        self.charge(event, self.events.latency(event));
    }

    #[inline]
    fn charge_between(&mut self, event: Between) {
        let event = self.events.between(event);
        self.charge(event, self.events.latency(event));
    }

    /// Count an event of a fixed latency; [`crate::CacheModel`] multiplies when it is asked for statistics.
    #[inline(always)]
    fn charge(&mut self, event: usize, latency: u32) {
        self.ledger.count(self.request.account, event);
        self.events
            .charge(&mut self.ledger.charges, event, latency.into());
        self.request.stall += u64::from(latency);
    }
}
