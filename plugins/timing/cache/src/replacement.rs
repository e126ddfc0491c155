//! Rules by which a line enters a set, is used there, and leaves.

use nodescope_plugin_api::L0Update;

use crate::coherence::Reason;
use crate::config::Inclusion;
use crate::events::{LevelEvent, Traffic};
use crate::geometry::LineLookup;
use crate::hierarchy::Hierarchy;
use crate::node::{Node, PolicyState};
use crate::policy::{Replacement, SetState};
use crate::tags::{State, is_modified, is_prefetched};
use crate::tree::Tree;
use crate::word::{Baseline, Variant, Word};

impl<W: Word> Hierarchy<W> {
    /// Looks a line up in a cache. Returns the look-up, and the line's way if the cache has the line.
    #[inline(always)]
    pub(crate) fn find<V: Variant>(
        &self,
        tree: &Tree,
        variant: V,
        node: u32,
        line: u64,
    ) -> (LineLookup, Option<usize>) {
        let geometry = &tree.nodes.get(node).geometry;
        let lookup = geometry.lookup(line);
        (lookup, self.tags.find(variant, geometry, lookup))
    }

    /// Uses the line of a way, and gives it a new entry. Returns the way where the line is now.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn touch<V: Variant>(
        &mut self,
        tree: &Tree,
        variant: V,
        node: u32,
        line: u64,
        lookup: LineLookup,
        way: usize,
        entry: u64,
    ) -> usize {
        let this = tree.nodes.get(node);
        if this.lru::<V>() {
            self.tags
                .put_first(variant, &this.geometry, lookup, way, entry);
            return 0;
        }
        self.tags.put(&this.geometry, lookup, way, entry);
        self.with_policy(tree, node, line, |policy, set| policy.hit(set, way as u32));
        way
    }

    /// Returns whether another hit of a way, which was used last in its set, would change nothing.
    #[inline(always)]
    pub(crate) fn settled<V: Variant>(
        &mut self,
        tree: &Tree,
        node: u32,
        line: u64,
        way: usize,
    ) -> bool {
        tree.nodes.get(node).lru::<V>()
            || self.with_policy(tree, node, line, |policy, set| {
                policy.settled(set, way as u32)
            })
    }

    /// Runs a function on the policy of a cache, which is not LRU, and the state of a line's set.
    #[cold]
    #[inline(never)]
    fn with_policy<T>(
        &mut self,
        tree: &Tree,
        node: u32,
        line: u64,
        run: impl FnOnce(&mut dyn Replacement, SetState<'_>) -> T,
    ) -> T {
        let geometry = &tree.nodes.get(node).geometry;
        let (number, ways) = (geometry.set(line), geometry.ways);
        let Some(PolicyState { replacement, sets }) = &mut self.policies[node as usize] else {
            unreachable!("only caches with LRU have no policy state");
        };
        let bits = &mut sets[number as usize];
        run(replacement.as_mut(), SetState { number, ways, bits })
    }

    /// Returns the way that a new line gets: an empty one, or that of the line to be replaced.
    #[inline(always)]
    fn way_for_new_line<V: Variant>(&mut self, tree: &Tree, node: u32, line: u64) -> usize {
        let this = tree.nodes.get(node);
        if this.lru::<V>() {
            // Empty ways come last.
            return this.geometry.ways as usize - 1;
        }
        let lookup = this.geometry.lookup(line);
        let empty = self.tags.empty_ways(&this.geometry, lookup);
        self.with_policy(tree, node, line, |policy, set| match empty {
            0 => policy.victim(set) as usize,
            _ => policy.empty_way(empty) as usize,
        })
    }

    /// Fills a line into a cache, which must not have the line. `oldest` names the line that is replaced if the set is full, where an L0
    /// filter cache keeps the order of the set. Returns the replaced line's entry, 0 if a way was empty, and the way of the new line.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn fill<V: Variant>(
        &mut self,
        tree: &Tree,
        variant: V,
        node: u32,
        line: u64,
        lookup: LineLookup,
        oldest: Option<u64>,
        entry: u64,
        updates: &mut Vec<L0Update>,
    ) -> (u64, usize) {
        let this = tree.nodes.get(node);
        // The miss itself may have removed a line from the set.
        let full = || {
            self.tags
                .way(&this.geometry, lookup, this.geometry.ways as usize - 1)
                != 0
        };
        let kept = oldest
            .filter(|_| full())
            .and_then(|oldest| self.find(tree, variant, node, oldest).1);
        let way = match kept {
            Some(way) => way,
            None => self.way_for_new_line::<V>(tree, node, line),
        };
        let this = tree.nodes.get(node);
        let last = self.tags.way(&this.geometry, lookup, way);
        // A clean line without holder bits needs no eviction, unless it goes elsewhere.
        let plain = this.geometry.holders(last) == 0 && !is_modified(last);
        if last != 0 && (!plain || !V::USUAL && this.traits.victims_matter) {
            self.evict(tree, variant, node, line, last, updates);
        }
        let this = tree.nodes.get(node);
        if !V::USUAL && (this.traits.several_vcpus || this.level == 0 && this.traits.prefetches) {
            let prefetch = self.request.prefetch;
            let requester = (!prefetch).then_some(self.request.requester);
            self.revoke_used(tree, node, line, requester, updates);
        }
        let this = tree.nodes.get(node);
        let entry = lookup.key | entry;
        if kept.is_some() {
            // The L0 filter cache keeps the order of the set.
            self.tags.put(&this.geometry, lookup, way, entry);
            (last, way)
        } else if this.lru::<V>() {
            self.tags
                .put_first(variant, &this.geometry, lookup, way, entry);
            (last, 0)
        } else {
            self.tags.put(&this.geometry, lookup, way, entry);
            self.with_policy(tree, node, line, |policy, set| {
                policy.insert(set, way as u32)
            });
            (last, way)
        }
    }

    /// Evicts the line of an entry, which `line` of the same set replaces: removes the victim from the caches inside an inclusive cache, and
    /// passes it on.
    #[inline(always)]
    fn evict<V: Variant>(
        &mut self,
        tree: &Tree,
        variant: V,
        node: u32,
        line: u64,
        entry: u64,
        updates: &mut Vec<L0Update>,
    ) {
        let this = tree.nodes.get(node);
        let line = this.geometry.line(this.geometry.set(line), entry);
        let holders = this.geometry.holders(entry);
        let mut modified = is_modified(entry);
        if holders != 0
            && this.inclusive::<V>()
            && self.may_hold(tree, variant, node, holders, line)
        {
            let holders = Some(holders);
            let inside =
                self.invalidate_inside(tree, node, holders, line, Reason::Inclusion, updates);
            modified |= inside == Some(State::Modified);
        }
        let this = tree.nodes.get(node);
        let (level, socket, outermost) = (this.level, this.socket, this.outermost());
        if !V::USUAL && is_prefetched(entry) {
            self.charge_level(tree, level.into(), LevelEvent::prefetch_unused(this.kind));
        }
        if modified {
            self.charge_level(tree, level.into(), LevelEvent::Writeback);
            if outermost {
                self.request_memory(tree, socket, line, Traffic::WriteBack);
            }
        }
        if !V::USUAL && !outermost {
            let state = match modified {
                true => State::Modified,
                false => State::of(entry).inside(false),
            };
            self.pass_on(tree, node, line, state, updates);
        }
    }

    /// Gives a victim of `node` to the cache outside, if that cache takes it.
    #[cold]
    #[inline(never)]
    fn pass_on(
        &mut self,
        tree: &Tree,
        node: u32,
        line: u64,
        state: State,
        updates: &mut Vec<L0Update>,
    ) {
        if !tree.nodes.get(node).traits.victims_matter {
            return;
        }
        let outer = tree.nodes.get(node).outer;
        let takes =
            |outer: &Node| state == State::Modified || outer.inclusion == Inclusion::Exclusive;
        if takes(tree.nodes.get(outer)) {
            self.take_back(tree, outer, line, state, updates);
        }
    }

    /// Takes a line that a cache inside gives up, or cleans. A line that is there already becomes modified if `state` is.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_back(
        &mut self,
        tree: &Tree,
        node: u32,
        line: u64,
        state: State,
        updates: &mut Vec<L0Update>,
    ) {
        let variant = Baseline;
        match self.find(tree, variant, node, line) {
            (lookup, Some(way)) => {
                if state == State::Modified && tree.nodes.get(node).inclusive::<Baseline>() {
                    self.modify(tree, variant, node, line);
                } else if state == State::Modified {
                    self.tags.set_state(lookup.start + way, State::Modified);
                }
            }
            (lookup, None) => {
                self.fill(
                    tree,
                    variant,
                    node,
                    line,
                    lookup,
                    None,
                    state as u64,
                    updates,
                );
            }
        }
    }

    /// Removes the line of a way from its set.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_out(&mut self, tree: &Tree, node: u32, line: u64, way: usize) {
        let this = tree.nodes.get(node);
        let lookup = this.geometry.lookup(line);
        if this.traits.lru {
            self.tags.close_up(&this.geometry, lookup, way);
        } else {
            self.tags.put(&this.geometry, lookup, way, 0);
            self.with_policy(tree, node, line, |policy, set| {
                policy.remove(set, way as u32)
            });
        }
    }
}
