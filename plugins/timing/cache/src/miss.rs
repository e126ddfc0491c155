//! The way of a line into the caches: outwards to the cache, peer or memory that has the line, and back inwards through the levels that
//! take it. All misses go this way, whatever the levels, policies and states.

use nodescope_plugin_api::{Access, L0Update};

use crate::config::CacheKind;
use crate::events::Traffic;
use crate::geometry::{Geometry, LineLookup};
use crate::hierarchy::Hierarchy;
use crate::node::{NONE, Node};
use crate::prefetch::{Answer, answer_of_hit};
use crate::tags::{State, with_prefetch_mark, without_prefetch_mark};
use crate::tree::Tree;
use crate::word::{Baseline, Variant, Word};

/// A line on its way into the cache `first`, which does not have the line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) first: u32,
    /// Look-up of the line in `first`.
    pub(crate) lookup: LineLookup,
    pub(crate) line: u64,
    /// The permission that is wanted: a locked instruction reads with permission to write.
    pub(crate) access: Access,
    /// The access as it is counted.
    pub(crate) counted: Access,
    /// The line that is replaced if the set in `first` is full, where an L0 filter cache keeps the order of the set.
    pub(crate) oldest: Option<u64>,
}

/// Result of a line's way into the caches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    /// State of the line in the first cache; `None` if that cache did not take the line.
    pub(crate) state: Option<State>,
    /// The line that it replaced there.
    pub(crate) replaced: Option<u64>,
    /// Way of the line in its set.
    pub(crate) way: usize,
    /// Number of levels outside the first cache that did not have the line.
    pub(crate) missed: usize,
    /// Answer of the next level outside those; `None` if no level had the line.
    pub(crate) answer: Option<Answer>,
}

impl<W: Word> Hierarchy<W> {
    /// Brings a line into a cache with permission for the access.
    #[inline(always)]
    pub(crate) fn miss<V: Variant>(
        &mut self,
        tree: &Tree,
        variant: V,
        wanted: Wanted,
        updates: &mut Vec<L0Update>,
    ) -> Arrived {
        let Wanted {
            first,
            line,
            access,
            counted,
            ..
        } = wanted;
        // Walk outwards to the cache that has the line.
        let mut inner = first;
        let mut level = 0;
        let mut missed = None;
        let mut found = None;
        let mut state = loop {
            let node = tree.nodes.get(inner).outer;
            if node == NONE {
                break self.interconnect(tree, variant, inner, line, access, updates);
            }
            let this = tree.nodes.get(node);
            let lookup = this.geometry.lookup(line);
            self.path[level] = node;
            if let Some(way) = self.tags.find(variant, &this.geometry, lookup) {
                let entry = self.tags.way(&this.geometry, lookup, way);
                found = Some(entry);
                break self.supply(tree, variant, level, node, lookup, way, wanted, updates);
            }
            if level == 0 {
                self.prefetch_tags_outside(tree, node, line);
            }
            if !this.inclusive::<V>()
                && let Some(state) = self.ask_siblings(tree, node, inner, line, access, updates)
            {
                missed = Some(level + 1);
                break state;
            }
            level += 1;
            inner = node;
        };
        let missed = missed.unwrap_or(level);
        self.charge_access::<V>(tree, counted, missed + 1, found);
        // Walk back inwards, with the state that the cache outside permits.
        while level > 0 {
            level -= 1;
            let node = self.path[level];
            let inside = match level {
                0 => first,
                _ => self.path[level - 1],
            };
            let this = tree.nodes.get(node);
            let &Node { bit, kind, .. } = tree.nodes.get(inside);
            if this.takes::<V>(access) {
                let bit = if tree.nodes.get(inside).takes_inside::<V>(access) {
                    u64::from(bit)
                } else {
                    0
                };
                let entry = state as u64 | bit << Geometry::STATE_BITS;
                let lookup = this.geometry.lookup(line);
                self.fill(tree, variant, node, line, lookup, None, entry, updates);
            }
            state = state.inside(kind == CacheKind::Instruction);
        }
        let (arrived, replaced, way) = self.arrive(tree, variant, wanted, state, updates);
        Arrived {
            state: arrived.then_some(state),
            replaced,
            way,
            missed,
            answer: found.map(answer_of_hit),
        }
    }

    /// Begins the host's loads of the tags of a line in all levels outside `node` and in the peers. The loads take long, so all begin
    /// before the first is used.
    #[inline(always)]
    fn prefetch_tags_outside(&self, tree: &Tree, node: u32, line: u64) {
        let mut root = node;
        loop {
            let outer = tree.nodes.get(root).outer;
            if outer == NONE {
                break;
            }
            let geometry = &tree.nodes.get(outer).geometry;
            self.tags.prefetch(geometry, geometry.lookup(line));
            root = outer;
        }
        for &peer in tree.roots.iter().filter(|&&peer| peer != root) {
            let geometry = &tree.nodes.get(peer).geometry;
            self.tags.prefetch(geometry, geometry.lookup(line));
        }
    }

    /// Fills the wanted line into the first cache of its way. Returns whether that cache takes the line, the line that it replaced, and its
    /// way.
    #[inline(always)]
    fn arrive<V: Variant>(
        &mut self,
        tree: &Tree,
        variant: V,
        wanted: Wanted,
        state: State,
        updates: &mut Vec<L0Update>,
    ) -> (bool, Option<u64>, usize) {
        let Wanted {
            first,
            lookup,
            line,
            access,
            oldest,
            ..
        } = wanted;
        if !V::USUAL && access == Access::Write && !tree.nodes.get(first).traits.allocates {
            self.write_outside(tree, first, line);
            return (false, None, 0);
        }
        // A modified line, which an exclusive cache gave up, gets no mark.
        let entry = if !V::USUAL && self.request.prefetch && state != State::Modified {
            with_prefetch_mark(state as u64)
        } else {
            state as u64
        };
        let (last, way) = self.fill(tree, variant, first, line, lookup, oldest, entry, updates);
        let geometry = &tree.nodes.get(first).geometry;
        let replaced = (last != 0).then(|| geometry.line(geometry.set(line), last));
        (true, replaced, way)
    }

    /// Supplies the wanted line from the cache `node`, which has the line in `way`, to the next cache inside. `asked` is the number of
    /// caches of the path inside `node`, which did not have the line. Returns the state for the next cache inside.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn supply<V: Variant>(
        &mut self,
        tree: &Tree,
        variant: V,
        asked: usize,
        node: u32,
        lookup: LineLookup,
        way: usize,
        wanted: Wanted,
        updates: &mut Vec<L0Update>,
    ) -> State {
        let Wanted { line, access, .. } = wanted;
        let inner = match asked {
            0 => wanted.first,
            _ => self.path[asked - 1],
        };
        let instructions = self.takes_instructions::<V>(tree, asked, wanted);
        let this = tree.nodes.get(node);
        let inside = tree.nodes.get(inner);
        let bit = u64::from(inside.bit);
        let taken = if inside.takes_inside::<V>(access) {
            bit
        } else {
            0
        };
        let before = self.tags.way(&this.geometry, lookup, way);
        let others =
            this.without(this.geometry.holders(before), bit) != 0 || !this.inclusive::<V>();
        let (inclusive, exclusive) = (this.inclusive::<V>(), this.exclusive::<V>());
        let unmarked = match V::USUAL {
            true => before,
            false => without_prefetch_mark(before),
        };
        let entry = unmarked | taken << Geometry::STATE_BITS;
        let way = self.touch(tree, variant, node, line, lookup, way, entry);
        let at = lookup.start + way;
        let state = State::of(before);
        if access == Access::Write {
            match state {
                State::Modified => {}
                State::Exclusive if inclusive => self.modify(tree, variant, node, line),
                State::Exclusive => {}
                State::Shared | State::Forward => {
                    self.own(tree, node, line, updates);
                    if !inclusive && !exclusive {
                        self.tags.set_state(at, State::Exclusive);
                    }
                }
            }
            if others {
                self.invalidate_others(tree, node, inner, Some(at), line, updates);
            }
            if taken != 0 && exclusive {
                self.take_out(tree, node, line, way);
            }
            return State::Modified;
        }
        let shared = if others && (state.owned() || exclusive) {
            self.share_with_others(tree, node, inner, Some(at), line, updates)
        } else {
            None
        };
        if shared == Some(State::Modified) {
            self.tags.set_state(at, State::Modified);
        }
        if exclusive && shared.is_none() && !instructions {
            self.take_out(tree, node, line, way);
            return state.inside(false);
        }
        if !state.owned() || shared.is_some() || instructions {
            State::Shared
        } else {
            State::Exclusive
        }
    }

    /// Returns whether the innermost cache that takes the wanted line, of the first cache and the first `asked` caches of the path, is for
    /// instructions.
    #[inline(always)]
    fn takes_instructions<V: Variant>(&self, tree: &Tree, asked: usize, wanted: Wanted) -> bool {
        let takes = |&node: &u32| tree.nodes.get(node).takes::<V>(wanted.access);
        let only_first = match V::USUAL {
            true => asked == 0,
            false => !self.path[..asked].iter().any(takes),
        };
        only_first && tree.nodes.get(wanted.first).kind == CacheKind::Instruction
    }

    /// Puts the data of a write that does not fill the first level into the innermost cache around `first` that has the line, or into
    /// memory.
    #[cold]
    #[inline(never)]
    fn write_outside(&mut self, tree: &Tree, first: u32, line: u64) {
        let mut node = tree.nodes.get(first).outer;
        while node != NONE {
            if let (lookup, Some(way)) = self.find(tree, Baseline, node, line) {
                if self.tags.state(lookup.start + way) != State::Modified {
                    self.modify(tree, Baseline, node, line);
                }
                return;
            }
            node = tree.nodes.get(node).outer;
        }
        let socket = tree.vcpu_caches[usize::from(self.request.requester)].socket;
        self.request_memory(tree, socket, line, Traffic::WriteBack);
    }

    /// Asks the other caches inside `node`, which is not inclusive and does not have the line. Returns the state for `inner`; `None` if no
    /// cache has the line.
    #[cold]
    #[inline(never)]
    fn ask_siblings(
        &mut self,
        tree: &Tree,
        node: u32,
        inner: u32,
        line: u64,
        access: Access,
        updates: &mut Vec<L0Update>,
    ) -> Option<State> {
        if access != Access::Write {
            let state = self.share_with_others(tree, node, inner, None, line, updates)?;
            if state == State::Modified {
                self.take_back(tree, node, line, State::Modified, updates);
            }
            return Some(State::Shared);
        }
        let state = self.invalidate_others(tree, node, inner, None, line, updates)?;
        if !state.owned() {
            self.own(tree, node, line, updates);
        }
        Some(State::Modified)
    }
}
