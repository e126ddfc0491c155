//! The tree of caches and the protocol that keeps them coherent.
//!
//! Every cache includes the caches inside it, so a line that a cache does not hold is nowhere inside it. What a cache may
//! do with a line is bounded by what the cache outside it may do, and a line that is modified anywhere is marked
//! modified at every level outwards; an eviction therefore never has to look outwards. The outermost caches are peers
//! on the interconnect and speak MESIF.

use std::collections::BTreeMap;

use nodescope_plugin_api::{
    Access, Account, FilterUpdate, Ledger, MemRef, MemoryTimingModel, MissRef, Permission, Side,
    VcpuPlace,
};
use serde::{Deserialize, Serialize};

use crate::array::{Array, HOLDERS, State};
use crate::config::{CacheConfig, LevelConfig, Sharing};
use crate::events::{AtLevel, Between, Distance, Events};

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CacheKind {
    /// Data, at the first level.
    Data,
    /// Instructions, at the first level.
    Instruction,
    /// Both.
    Unified,
}

/// Contents of one cache, for inspection and tests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheContents {
    /// Level, counted from 1.
    pub level: u8,
    /// What it holds.
    pub kind: CacheKind,
    /// Its socket.
    pub socket: u16,
    /// Its core, unless the socket shares it.
    pub core: Option<u16>,
    /// Position of the cache outside it in the list of all, if there is one.
    pub outer: Option<usize>,
    /// Sets that hold lines: set number, then line addresses and states, most recently used first.
    pub sets: Vec<(u64, Vec<(u64, State)>)>,
}

/// One cache.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) array: Array,
    level: usize,
    kind: CacheKind,
    socket: u16,
    core: Option<u16>,
    outer: Option<usize>,
    /// Position among the caches inside the outer one.
    position: usize,
    inner: Vec<usize>,
    /// vCPUs that use it directly; only at the first level.
    pub(crate) vcpus: Vec<u16>,
}

impl Node {
    fn bit(position: usize) -> u64 {
        1 << (position % HOLDERS as usize)
    }

    fn side(&self) -> Side {
        if self.kind == CacheKind::Instruction {
            Side::Instruction
        } else {
            Side::Data
        }
    }

    /// Holder bits that may stand for a cache other than `inner`.
    #[inline]
    fn without(&self, holders: u64, inner_position: usize) -> u64 {
        if self.inner.len() > HOLDERS as usize {
            holders
        } else {
            holders & !Self::bit(inner_position)
        }
    }
}

/// First-level caches of one vCPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entrance {
    vcpu: u16,
    pub(crate) data: usize,
    pub(crate) instruction: Option<usize>,
    core: u16,
    socket: u16,
}

/// Why a line leaves a cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// Another vCPU writes it.
    Write,
    /// The cache outside replaces it.
    Inclusion,
}

/// All caches of a node, their counters, and the request in progress.
pub(crate) struct Hierarchy {
    pub(crate) nodes: Vec<Node>,
    roots: Vec<usize>,
    pub(crate) entrances: Vec<Entrance>,
    pub(crate) line_shift: u32,
    pub(crate) events: Events,
    pub(crate) ledger: Ledger,
    memory: Box<dyn MemoryTimingModel>,
    /// Who made the request in progress, and when.
    requester: Entrance,
    account: Account,
    now: u64,
    /// Cycles charged to it so far.
    stall: u64,
}

impl Hierarchy {
    /// The caches of a valid description.
    pub(crate) fn new(
        config: &CacheConfig,
        places: &[VcpuPlace],
        memory: Box<dyn MemoryTimingModel>,
    ) -> Hierarchy {
        let mut nodes: Vec<Node> = Vec::new();
        let mut entrances = Vec::with_capacity(places.len());
        // Caches by level, kind and the core or socket that shares them (at one level and kind it is always one of the two).
        let mut known: BTreeMap<(usize, CacheKind, u16), usize> = BTreeMap::new();
        for (vcpu, place) in places.iter().enumerate() {
            let mut find =
                |nodes: &mut Vec<Node>, index: usize, kind: CacheKind, level: &LevelConfig| {
                    let shared_by = match level.shared_by {
                        Sharing::Core => place.core,
                        Sharing::Socket => place.socket,
                    };
                    *known.entry((index, kind, shared_by)).or_insert_with(|| {
                        nodes.push(Node {
                            array: Array::new(level.sets(), level.ways),
                            level: index,
                            kind,
                            socket: place.socket,
                            core: (level.shared_by == Sharing::Core).then_some(place.core),
                            outer: None,
                            position: 0,
                            inner: Vec::new(),
                            vcpus: Vec::new(),
                        });
                        nodes.len() - 1
                    })
                };
            let data = find(&mut nodes, 0, CacheKind::Data, &config.levels[0]);
            let instruction = config
                .instruction
                .map(|level| find(&mut nodes, 0, CacheKind::Instruction, &level));
            let unified: Vec<usize> = config
                .levels
                .iter()
                .enumerate()
                .skip(1)
                .map(|(index, level)| find(&mut nodes, index, CacheKind::Unified, level))
                .collect();
            for first in [Some(data), instruction].into_iter().flatten() {
                nodes[first].vcpus.push(vcpu as u16);
                let mut inner = first;
                for &outer in &unified {
                    if nodes[inner].outer.is_none() {
                        nodes[inner].outer = Some(outer);
                        nodes[inner].position = nodes[outer].inner.len();
                        nodes[outer].inner.push(inner);
                    }
                    inner = outer;
                }
            }
            entrances.push(Entrance {
                vcpu: vcpu as u16,
                data,
                instruction,
                core: place.core,
                socket: place.socket,
            });
        }
        let events = Events::new(config);
        Hierarchy {
            roots: (0..nodes.len())
                .filter(|&node| nodes[node].outer.is_none())
                .collect(),
            requester: entrances[0],
            ledger: Ledger::new(events.len(), places.len()),
            line_shift: config.levels[0].line.trailing_zeros(),
            nodes,
            entrances,
            events,
            memory,
            account: Account::default(),
            now: 0,
            stall: 0,
        }
    }

    /// Contents of every cache.
    pub(crate) fn contents(&self) -> Vec<CacheContents> {
        self.nodes
            .iter()
            .map(|node| CacheContents {
                level: node.level as u8 + 1,
                kind: node.kind,
                socket: node.socket,
                core: node.core,
                outer: node.outer,
                sets: node
                    .array
                    .contents()
                    .into_iter()
                    .map(|(set, lines)| {
                        let lines = lines
                            .into_iter()
                            .map(|(line, state)| (line << self.line_shift, state));
                        (set, lines.collect())
                    })
                    .collect(),
            })
            .collect()
    }

    /// Begin to account for a reference that the first level does not settle alone.
    #[inline]
    pub(crate) fn begin(&mut self, reference: &MemRef) {
        self.requester = self.entrances[usize::from(reference.vcpu)];
        self.account = self.ledger.select(reference);
        self.now = reference.now;
        self.stall = 0;
    }

    /// Cycles charged since [`Hierarchy::begin`].
    #[inline]
    pub(crate) fn stall(&self) -> u64 {
        self.stall
    }

    /// Bring a line that the first-level cache `first` does not hold into it, with permission for `access`.
    pub(crate) fn miss(
        &mut self,
        first: usize,
        line: u64,
        access: Access,
        updates: &mut Vec<FilterUpdate>,
    ) -> State {
        self.charge_level(0, AtLevel::miss(access));
        let state = match self.nodes[first].outer {
            Some(outer) => self.obtain(outer, first, line, access, updates),
            None => self.interconnect(first, line, access, updates),
        };
        self.fill(first, line, state, 0, updates);
        state
    }

    /// Bring a line into `node` with permission for `access` on behalf of the cache `inner` inside it; the answer is the
    /// state that `inner` may take.
    fn obtain(
        &mut self,
        node: usize,
        inner: usize,
        line: u64,
        access: Access,
        updates: &mut Vec<FilterUpdate>,
    ) -> State {
        let level = self.nodes[node].level;
        let position = self.nodes[inner].position;
        let fetches = self.nodes[inner].kind == CacheKind::Instruction;
        let array = &mut self.nodes[node].array;
        let start = array.start(line);
        let Some(way) = array.find(start, line) else {
            self.charge_level(level, AtLevel::miss(access));
            let state = match self.nodes[node].outer {
                Some(outer) => self.obtain(outer, node, line, access, updates),
                None => self.interconnect(node, line, access, updates),
            };
            self.fill(node, line, state, Node::bit(position), updates);
            return match state {
                State::Modified => State::Modified,
                State::Exclusive if !fetches => State::Exclusive,
                _ => State::Shared,
            };
        };
        array.touch(start, way);
        let state = array.state(start);
        let holders = array.holders(start);
        array.set_holders(start, holders | Node::bit(position));
        let others = self.nodes[node].without(holders, position);
        self.charge_level(level, AtLevel::hit(access));
        if access == Access::Write {
            match state {
                State::Modified => {}
                State::Exclusive => self.modify(node, line),
                State::Shared | State::Forward => self.own(node, line, updates),
            }
            self.invalidate_others(node, inner, start, others, line, updates);
            return State::Modified;
        }
        if !state.owned() {
            return State::Shared;
        }
        let shared =
            others != 0 && self.share_with_others(node, inner, start, others, line, updates);
        if shared || fetches {
            State::Shared
        } else {
            State::Exclusive
        }
    }

    /// Mark a line that `node` owns as modified in it and in every cache outside it.
    pub(crate) fn modify(&mut self, node: usize, line: u64) {
        let mut next = Some(node);
        while let Some(node) = next {
            let node = &mut self.nodes[node];
            let start = node.array.start(line);
            let Some(way) = node.array.find(start, line) else {
                debug_assert!(
                    false,
                    "a cache does not include what the cache inside it holds"
                );
                return;
            };
            if node.array.state(start + way) == State::Modified {
                return;
            }
            node.array.set_state(start + way, State::Modified);
            next = node.outer;
        }
    }

    /// Get permission to write a line that `node` shares with its peers, and mark it modified.
    pub(crate) fn own(&mut self, node: usize, line: u64, updates: &mut Vec<FilterUpdate>) {
        if let Some(outer) = self.nodes[node].outer {
            let array = &self.nodes[outer].array;
            let start = array.start(line);
            let Some(way) = array.find(start, line) else {
                debug_assert!(
                    false,
                    "a cache does not include what the cache inside it holds"
                );
                return;
            };
            let at = start + way;
            let state = array.state(at);
            let others = self.nodes[outer].without(array.holders(at), self.nodes[node].position);
            if state.owned() {
                self.charge_level(self.nodes[outer].level, AtLevel::Upgrade);
                self.modify(outer, line);
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
        let array = &mut self.nodes[node].array;
        let start = array.start(line);
        if let Some(way) = array.find(start, line) {
            array.set_state(start + way, State::Modified);
        }
    }

    /// Remove a line from the caches inside `node`, except `inner`, because of a write through `inner`.
    fn invalidate_others(
        &mut self,
        node: usize,
        inner: usize,
        at: usize,
        others: u64,
        line: u64,
        updates: &mut Vec<FilterUpdate>,
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
        let bit = Node::bit(self.nodes[inner].position);
        self.nodes[node].array.set_holders(at, bit);
    }

    /// Make sure that no cache inside `node` except `inner` owns a line. Whether one still holds it.
    fn share_with_others(
        &mut self,
        node: usize,
        inner: usize,
        at: usize,
        others: u64,
        line: u64,
        updates: &mut Vec<FilterUpdate>,
    ) -> bool {
        let mut shared = false;
        let mut absent = 0;
        self.each_holder(node, others, |this, other| {
            if other == inner {
                return true;
            }
            match this.downgrade(other, line, updates) {
                None => absent |= Node::bit(this.nodes[other].position),
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
        if self.nodes[node].inner.len() <= HOLDERS as usize {
            let array = &mut self.nodes[node].array;
            array.set_holders(at, array.holders(at) & !absent);
        }
        shared
    }

    /// Visit the caches inside `node` that holder bits stand for, until `visit` answers false.
    #[inline]
    fn each_holder(
        &mut self,
        node: usize,
        mut holders: u64,
        mut visit: impl FnMut(&mut Hierarchy, usize) -> bool,
    ) {
        while holders != 0 {
            let mut position = holders.trailing_zeros() as usize;
            holders &= holders - 1;
            while let Some(&inner) = self.nodes[node].inner.get(position) {
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
        node: usize,
        line: u64,
        reason: Reason,
        updates: &mut Vec<FilterUpdate>,
    ) -> Option<State> {
        let array = &mut self.nodes[node].array;
        let start = array.start(line);
        let way = array.find(start, line)?;
        let state = array.state(start + way);
        let holders = array.holders(start + way);
        array.remove(start, way);
        if holders != 0 {
            self.each_holder(node, holders, |this, inner| {
                this.invalidate(inner, line, reason, updates);
                true
            });
        }
        if way == 0 {
            self.limit_filters(node, line, Permission::None, updates);
        }
        let level = self.nodes[node].level;
        if reason == Reason::Inclusion {
            self.charge_level(level, AtLevel::Inclusion);
        }
        // Between peers of the interconnect a modified line moves to the writer as it is.
        if state == State::Modified && self.nodes[node].outer.is_some() {
            self.charge_level(level, AtLevel::Writeback);
        }
        Some(state)
    }

    /// Leave a cache and those inside it no more than a shared copy. The state it had.
    fn downgrade(
        &mut self,
        node: usize,
        line: u64,
        updates: &mut Vec<FilterUpdate>,
    ) -> Option<State> {
        let array = &mut self.nodes[node].array;
        let start = array.start(line);
        let way = array.find(start, line)?;
        let state = array.state(start + way);
        if state == State::Shared {
            return Some(state);
        }
        array.set_state(start + way, State::Shared);
        if !state.owned() {
            return Some(state);
        }
        let holders = array.holders(start + way);
        if holders != 0 {
            self.each_holder(node, holders, |this, inner| {
                this.downgrade(inner, line, updates);
                true
            });
        }
        if state == State::Modified {
            if way == 0 {
                self.limit_filters(node, line, Permission::Read, updates);
            }
            if self.nodes[node].outer.is_some() {
                self.charge_level(self.nodes[node].level, AtLevel::Writeback);
            }
        }
        Some(state)
    }

    /// Put a line into a cache, replacing the least recently used line of its set.
    fn fill(
        &mut self,
        node: usize,
        line: u64,
        state: State,
        holders: u64,
        updates: &mut Vec<FilterUpdate>,
    ) {
        let start = self.nodes[node].array.start(line);
        let last = self.nodes[node].array.victim(start);
        if let Some(victim) = self.nodes[node].array.line(last) {
            self.evict(node, last, victim, updates);
        }
        self.displace(node, start, self.requester.vcpu, updates);
        self.nodes[node].array.insert(start, line, state, holders);
    }

    /// A line is replaced: the caches inside lose it, and what is modified moves outwards.
    fn evict(&mut self, node: usize, at: usize, victim: u64, updates: &mut Vec<FilterUpdate>) {
        let holders = self.nodes[node].array.holders(at);
        if holders != 0 {
            self.each_holder(node, holders, |this, inner| {
                this.invalidate(inner, victim, Reason::Inclusion, updates);
                true
            });
        }
        if self.nodes[node].array.state(at) == State::Modified {
            self.charge_level(self.nodes[node].level, AtLevel::Writeback);
            if self.nodes[node].outer.is_none() {
                self.request_memory(self.nodes[node].socket, victim, true);
            }
        }
    }

    /// Another line becomes the most recently used of a first-level set that several vCPUs share: the filters of the
    /// others must not answer for the present one any more. The requester's own slot is replaced by the engine.
    #[inline]
    pub(crate) fn displace(
        &mut self,
        node: usize,
        start: usize,
        requester: u16,
        updates: &mut Vec<FilterUpdate>,
    ) {
        let node = &self.nodes[node];
        if node.vcpus.len() < 2 {
            return;
        }
        if let Some(line) = node.array.line(start) {
            for &vcpu in node.vcpus.iter().filter(|&&vcpu| vcpu != requester) {
                updates.push(FilterUpdate {
                    vcpu,
                    side: node.side(),
                    line: line << self.line_shift,
                    permission: Permission::None,
                });
            }
        }
    }

    /// Bound the filters of the vCPUs of a first-level cache. Only the most recently used line of a set can be in one.
    fn limit_filters(
        &mut self,
        node: usize,
        line: u64,
        permission: Permission,
        updates: &mut Vec<FilterUpdate>,
    ) {
        let node = &self.nodes[node];
        for &vcpu in &node.vcpus {
            updates.push(FilterUpdate {
                vcpu,
                side: node.side(),
                line: line << self.line_shift,
                permission,
            });
        }
    }

    /// A request that leaves the outermost cache `root`: first to its peers, then to memory.
    fn interconnect(
        &mut self,
        root: usize,
        line: u64,
        access: Access,
        updates: &mut Vec<FilterUpdate>,
    ) -> State {
        let write = access == Access::Write;
        let mut held = false;
        let mut supplied = false;
        for index in 0..self.roots.len() {
            let peer = self.roots[index];
            if peer == root {
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
                        self.charge_level(self.nodes[peer].level, AtLevel::Writeback);
                        self.request_memory(self.nodes[peer].socket, line, true);
                    }
                }
            }
            if write {
                self.charge_between(Between::Invalidate(distance));
            }
        }
        if !supplied {
            self.request_memory(self.requester.socket, line, false);
        }
        match (write, held) {
            (true, _) => State::Modified,
            (false, true) => State::Forward,
            (false, false) => State::Exclusive,
        }
    }

    fn request_memory(&mut self, socket: u16, line: u64, write_back: bool) {
        let timing = self.memory.request(&MissRef {
            socket,
            line: line << self.line_shift,
            write_back,
            now: self.now,
        });
        let event = self.events.between(Between::Memory {
            local: timing.local,
            write_back,
        });
        self.charge(event, timing.latency);
    }

    /// Where a cache is, seen from the requester.
    fn distance(&self, node: usize) -> Distance {
        let node = &self.nodes[node];
        if node.socket != self.requester.socket {
            Distance::OtherSocket
        } else if node.core.is_none_or(|core| core == self.requester.core) {
            Distance::SameCore
        } else {
            Distance::OtherCore
        }
    }

    #[inline]
    pub(crate) fn charge_level(&mut self, level: usize, event: AtLevel) {
        let event = Events::at(level, event);
        self.charge(event, self.events.latency(event));
    }

    #[inline]
    fn charge_between(&mut self, event: Between) {
        let event = self.events.between(event);
        self.charge(event, self.events.latency(event));
    }

    #[inline]
    fn charge(&mut self, event: usize, latency: u32) {
        self.ledger.charge(self.account, event, latency.into());
        self.stall += u64::from(latency);
    }
}
