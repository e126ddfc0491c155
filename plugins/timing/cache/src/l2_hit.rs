//! L2 hit path: the fast path of the most frequent misses of the first level. The second level has the line, and no other cache is asked.
//!
//! [`Hierarchy::miss`] and its callees have the same effect for any number of levels and any state of the line. This module and
//! [`crate::l2_miss`] do only the steps that remain if the levels and states are given.

use nodescope_plugin_api::{Access, MemRef};

use crate::events::{Events, LEVEL_EVENTS, LevelEvent};
use crate::hierarchy::Hierarchy;
use crate::tags::State;
use crate::word::{Isa, Word};

/// Result of a fast miss path.
pub(crate) enum FastMiss {
    /// The first level has the line now, in this state, after this many cycles of stall.
    Filled(State, u64),
    /// The slow path must serve the miss, and the second level does not have the line; no state was changed.
    NotInL2,
    /// The slow path must serve the miss, and the second level may have the line; no state was changed.
    SlowPath,
}

impl<W: Word> Hierarchy<W> {
    /// Brings `line` into the first-level cache of a fast path, in place of `oldest`. The first-level cache must not hold `line`. Succeeds
    /// if the second level, the third level or memory can supply the line, and no cache beside this path has to change.
    #[inline(always)]
    pub(crate) fn fast_miss<I: Isa>(
        &mut self,
        isa: I,
        line: u64,
        oldest: u64,
        reference: &MemRef,
    ) -> FastMiss {
        let access = reference.access;
        let own = &self.vcpu_caches[usize::from(reference.vcpu)];
        let Some(path) = &own.fast_paths[access.side() as usize] else {
            return FastMiss::SlowPath;
        };
        let lookup = path.second.lookup(line);
        let Some(way) = self.tags.find(isa, &path.second, lookup) else {
            return self.fast_l2_miss(isa, line, oldest, reference);
        };
        let entry = self
            .tags
            .entry_at(self.tags.entry_index(&path.second, lookup, way));
        let shared = entry & path.other_holders != 0;
        let state = match access {
            Access::Write if State::is_modified(entry) && !shared => State::Modified,
            Access::Write => return FastMiss::SlowPath,
            _ if !State::is_owned(entry) => State::Shared,
            _ if shared => return FastMiss::SlowPath,
            _ => State::Exclusive,
        };
        let Some(victim) = self
            .tags
            .locate(isa, &path.first, path.first.lookup(oldest))
        else {
            return FastMiss::SlowPath;
        };
        let account = self.ledger.select(reference);
        let Some((tallies, charges)) = self.ledger.first_tallies::<{ 2 * LEVEL_EVENTS }>(account)
        else {
            return FastMiss::SlowPath;
        };
        tallies[Events::at_level(0, LevelEvent::miss(access))].count += 1;
        tallies[Events::at_level(1, LevelEvent::hit(access))].count += 1;
        let costs = &self.events.fast_paths;
        costs.charge(charges, 1, access);
        let mut stall = costs.second[access as usize];
        if State::is_modified(self.tags.entry_at(victim)) {
            tallies[Events::at_level(0, LevelEvent::Writeback)].count += 1;
            costs.charge_write_back(charges, 0);
            stall += costs.write_back[0];
        }
        let state = state.inside(path.instructions);
        self.tags
            .replace_in_place(victim, path.first.lookup(line), state);
        let entry = entry | path.holder_mask;
        self.tags.make_mru(isa, &path.second, lookup, way, entry);
        FastMiss::Filled(state, stall)
    }
}
