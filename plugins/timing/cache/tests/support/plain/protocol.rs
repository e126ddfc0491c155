//! A request's way outwards to the line and back, and what becomes of other copies and of replaced lines.

use nodescope_plugin_api::Access;
use nodescope_plugin_cache::{CacheKind, Inclusion, State};

use super::Plain;
use super::charges::Reason;
use super::prefetch::Answer;
use super::sets::Entry;

impl Plain {
    /// Brings a line to the first level for a demand access that missed there.
    pub(super) fn miss(&mut self, line: u64) {
        let state = self.ask(0, line);
        if self.fills(0) {
            self.place(self.path[0], line, state, false);
        } else {
            self.write_outside(line);
        }
    }

    /// Puts the data of a write that does not fill the first level into the innermost cache of the path that has the line, or into memory.
    fn write_outside(&mut self, line: u64) {
        let mut path = self.path.clone().into_iter();
        match path.find(|&cache| self.caches[cache].state(line).is_some()) {
            Some(cache) if self.caches[cache].state(line) == Some(State::Modified) => {}
            Some(cache) => self.mark_modified(cache, line),
            None => self.memory(self.place_of_requester().socket, line, Reason::WriteBack),
        }
    }

    /// Returns true if the request fills the cache at this position of its path, should the cache lack the line.
    fn fills(&self, at: usize) -> bool {
        let cache = &self.caches[self.path[at]];
        let on_the_way = at == 0 || cache.inclusion != Inclusion::Exclusive;
        on_the_way && (self.access != Access::Write || cache.write_allocate)
    }

    /// Returns true if the request fills any cache on its path, should all lack the line.
    fn allocates(&self) -> bool {
        (0..self.path.len()).any(|at| self.fills(at))
    }

    /// Returns the nearest cache that the request fills inside the cache at this position of its path.
    fn taker(&self, at: usize) -> Option<usize> {
        let inside = (0..at).rev().find(|&inside| self.fills(inside))?;
        Some(self.path[inside])
    }

    /// Returns the state in which the cache at this position of the path may take a line that it lacks, and charges the events.
    pub(super) fn ask(&mut self, at: usize, line: u64) -> State {
        let cache = self.path[at];
        let Some(&outer) = self.path.get(at + 1) else {
            return self.interconnect(cache, line);
        };
        let state = if self.caches[outer].state(line).is_some() {
            self.supply(at + 1, line)
        } else {
            self.see(outer, Answer::Miss);
            match self.supply_from_siblings(outer, cache, line) {
                Some(state) => state,
                None => {
                    let state = self.ask(at + 1, line);
                    if self.fills(at + 1) {
                        self.place(outer, line, state, false);
                    }
                    state
                }
            }
        };
        match state {
            State::Forward => State::Shared,
            _ if self.caches[cache].kind == CacheKind::Instruction => State::Shared,
            state => state,
        }
    }

    /// Notes and charges a cache's answer to a demand access.
    pub(super) fn see(&mut self, cache: usize, answer: Answer) {
        if !self.prefetches {
            self.answers.push((cache, answer));
            self.answer(cache, answer);
        }
    }

    /// Lets a cache see a hit.
    pub(super) fn hit(&mut self, cache: usize, line: u64) {
        self.caches[cache].hit(line);
        let entry = self.caches[cache].entry(line).expect("a line that hits");
        // A line that goes on to another cache by a prefetch has its mark there.
        let marked = std::mem::take(&mut entry.marked);
        if self.prefetches {
            return;
        }
        let answer = if marked {
            Answer::PrefetchedHit
        } else {
            Answer::Hit
        };
        self.see(cache, answer);
    }

    /// Supplies a line from the cache at this position of the path, which has it. Returns the state that passes inwards.
    fn supply(&mut self, at: usize, line: u64) -> State {
        let (cache, inner) = (self.path[at], self.path[at - 1]);
        let inclusion = self.caches[cache].inclusion;
        let exclusive = inclusion == Inclusion::Exclusive;
        let taker = self.taker(at);
        self.hit(cache, line);
        let state = self.caches[cache].state(line).expect("a line that hits");
        if self.access == Access::Write {
            match state {
                State::Modified => {}
                State::Exclusive if inclusion == Inclusion::Inclusive => {
                    self.mark_modified(cache, line);
                }
                State::Exclusive => {}
                State::Shared | State::Forward => {
                    self.own(cache, line);
                    if inclusion == Inclusion::NonInclusive {
                        self.set_state(cache, line, State::Exclusive);
                    }
                }
            }
            self.clear_siblings(cache, inner, line);
            if exclusive && taker.is_some() {
                self.give_up(cache, line);
            }
            return State::Modified;
        }
        let others = self.share_siblings(cache, inner, line);
        if others == Some(State::Modified) {
            self.set_state(cache, line, State::Modified);
        }
        let fetches = taker.is_some_and(|taker| self.caches[taker].kind == CacheKind::Instruction);
        if others.is_some() || fetches {
            return State::Shared;
        }
        let passed = if exclusive {
            self.give_up(cache, line).expect("just held").state
        } else {
            state.min(State::Exclusive)
        };
        if passed < State::Exclusive {
            State::Shared
        } else {
            passed
        }
    }

    /// Supplies a line that `cache` lacks from caches inside `cache`. Returns the state that passes inwards; `None` if none of them has the
    /// line.
    fn supply_from_siblings(&mut self, cache: usize, inner: usize, line: u64) -> Option<State> {
        if self.access == Access::Write {
            let strongest = self.clear_siblings(cache, inner, line)?;
            if strongest < State::Exclusive {
                self.own(cache, line);
            }
            return Some(State::Modified);
        }
        let strongest = self.share_siblings(cache, inner, line)?;
        if strongest == State::Modified {
            self.place(cache, line, State::Modified, false);
        }
        Some(State::Shared)
    }

    /// Asks the peers of an outermost cache that lacks the line, then memory.
    fn interconnect(&mut self, root: usize, line: u64) -> State {
        let write = self.access == Access::Write;
        let (mut held, mut supplied) = (false, false);
        for peer in self.peers(root) {
            let before = if write {
                self.remove(peer, line, false)
            } else {
                self.downgrade(peer, line)
            };
            let Some(before) = before else { continue };
            held = true;
            supplied |= before != State::Shared;
            match before {
                State::Shared => {}
                State::Forward | State::Exclusive => self.between("from", peer, ""),
                State::Modified => {
                    self.between("from", peer, "_modified");
                    if !write {
                        self.write_back(peer);
                        self.memory(self.caches[peer].socket, line, Reason::WriteBack);
                    }
                }
            }
            if write {
                self.between("invalidate", peer, "");
            }
        }
        if !supplied && self.allocates() {
            self.memory(self.place_of_requester().socket, line, Reason::Read);
        }
        match (write, held) {
            (true, _) => State::Modified,
            (false, true) => State::Forward,
            (false, false) => State::Exclusive,
        }
    }

    fn set_state(&mut self, cache: usize, line: u64, state: State) {
        if let Some(entry) = self.caches[cache].entry(line) {
            entry.state = state;
        }
    }

    /// Marks a line modified in a cache and outwards through the caches that include it.
    pub(super) fn mark_modified(&mut self, cache: usize, line: u64) {
        assert!(self.caches[cache].state(line).is_some(), "inclusion");
        self.set_state(cache, line, State::Modified);
        if let Some(outer) = self.caches[cache].outer
            && self.caches[outer].inclusion == Inclusion::Inclusive
        {
            self.mark_modified(outer, line);
        }
    }

    /// Obtains permission to write a line that `cache` or a cache inside it has in state S or F.
    pub(super) fn own(&mut self, cache: usize, line: u64) {
        if let Some(outer) = self.caches[cache].outer {
            let inclusion = self.caches[outer].inclusion;
            let held = self.caches[outer].state(line);
            if held >= Some(State::Exclusive) {
                let level = self.caches[outer].level;
                let cycles = self.latency(level).upgrade;
                self.event(format!("L{}.upgrade", level + 1), cycles);
                if inclusion == Inclusion::Inclusive {
                    self.mark_modified(outer, line);
                }
            } else {
                self.own(outer, line);
                if inclusion == Inclusion::NonInclusive {
                    self.set_state(outer, line, State::Exclusive);
                }
            }
            if inclusion == Inclusion::Exclusive {
                self.give_up(outer, line);
            }
            self.clear_siblings(outer, cache, line);
        } else {
            let cycles = self.config.coherence.upgrade;
            self.event("interconnect.upgrade".to_owned(), cycles);
            for peer in self.peers(cache) {
                if self.remove(peer, line, false).is_some() {
                    self.between("invalidate", peer, "");
                }
            }
        }
        self.set_state(cache, line, State::Modified);
    }

    fn siblings(&self, cache: usize, inner: usize) -> Vec<usize> {
        let mut siblings = self.inside(cache);
        siblings.retain(|&sibling| sibling != inner);
        siblings
    }

    /// Removes a line from all caches inside `cache` except `inner`. Returns the strongest state that they had.
    pub(super) fn clear_siblings(
        &mut self,
        cache: usize,
        inner: usize,
        line: u64,
    ) -> Option<State> {
        let mut strongest = None;
        for sibling in self.siblings(cache, inner) {
            let before = self.remove(sibling, line, false);
            if before == Some(State::Modified) {
                self.between("from", sibling, "_modified");
            }
            if before.is_some() {
                self.between("invalidate", sibling, "");
            }
            strongest = strongest.max(before);
        }
        strongest
    }

    /// Downgrades a line in all caches inside `cache` except `inner`. Returns the strongest state that they had.
    fn share_siblings(&mut self, cache: usize, inner: usize, line: u64) -> Option<State> {
        let mut strongest = None;
        for sibling in self.siblings(cache, inner) {
            let before = self.downgrade(sibling, line);
            match before {
                Some(State::Modified) => self.between("from", sibling, "_modified"),
                Some(State::Exclusive) => self.between("snoop", sibling, ""),
                _ => {}
            }
            strongest = strongest.max(before);
        }
        strongest
    }

    /// Removes a line from a cache and the caches inside it. Returns the strongest state that they had.
    pub(super) fn remove(&mut self, cache: usize, line: u64, inclusion: bool) -> Option<State> {
        let own = self.give_up(cache, line).map(|entry| entry.state);
        if own.is_some() && inclusion {
            let level = self.caches[cache].level;
            self.event(format!("L{}.inclusion_victim", level + 1), 0);
        }
        if own == Some(State::Modified) && self.caches[cache].outer.is_some() {
            self.write_back(cache);
        }
        let inside = self.inside(cache).into_iter();
        inside
            .map(|inner| self.remove(inner, line, inclusion))
            .fold(own, Option::max)
    }

    /// Downgrades a line to S in a cache and the caches inside it. Returns the strongest state that they had.
    fn downgrade(&mut self, cache: usize, line: u64) -> Option<State> {
        let own = self.caches[cache].state(line);
        self.set_state(cache, line, State::Shared);
        if own == Some(State::Modified) && self.caches[cache].outer.is_some() {
            self.write_back(cache);
        }
        let inside = self.inside(cache).into_iter();
        inside
            .map(|inner| self.downgrade(inner, line))
            .fold(own, Option::max)
    }

    /// Takes a line out of a cache.
    pub(super) fn give_up(&mut self, cache: usize, line: u64) -> Option<Entry> {
        let entry = self.caches[cache].take(line)?;
        self.leave(cache, entry);
        Some(entry)
    }

    /// Counts a line that leaves a cache if the cache prefetched the line and no access used it.
    fn leave(&mut self, cache: usize, entry: Entry) {
        if entry.marked {
            self.event(format!("{}.prefetch_unused", self.name(cache)), 0);
        }
    }

    /// Puts a line into a cache that lacks it, and evicts the line that it replaces.
    pub(super) fn place(&mut self, cache: usize, line: u64, state: State, marked: bool) {
        let entry = Entry {
            line,
            state,
            marked,
        };
        if let Some(victim) = self.caches[cache].insert(entry) {
            self.evict(cache, victim);
        }
    }

    fn evict(&mut self, cache: usize, victim: Entry) {
        self.leave(cache, victim);
        let line = victim.line;
        let mut state = victim.state;
        if self.caches[cache].inclusion == Inclusion::Inclusive {
            for inner in self.inside(cache) {
                if self.remove(inner, line, true) == Some(State::Modified) {
                    state = State::Modified;
                }
            }
        }
        let modified = state == State::Modified;
        if modified {
            self.write_back(cache);
        }
        let Some(outer) = self.caches[cache].outer else {
            if modified {
                self.memory(self.caches[cache].socket, line, Reason::WriteBack);
            }
            return;
        };
        let held = self.caches[outer].state(line).is_some();
        match self.caches[outer].inclusion {
            Inclusion::Inclusive if modified => self.mark_modified(outer, line),
            Inclusion::NonInclusive | Inclusion::Exclusive if modified && held => {
                self.set_state(outer, line, State::Modified);
            }
            Inclusion::NonInclusive if modified => self.place(outer, line, state, false),
            Inclusion::Exclusive if !held => self.place(outer, line, state, false),
            _ => {}
        }
    }
}
