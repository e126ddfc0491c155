//! L3 hit path and memory path: the fast paths of the most frequent misses of the second level. The third level, which is the outermost,
//! has the line, or memory supplies the line. No first-level or second-level cache of another vCPU changes.

use nodescope_plugin_api::{Access, MemRef, MissRef};

use crate::events::{Events, LEVEL_EVENTS, LevelEvent, SYSTEM_EVENTS, SystemEvent};
use crate::geometry::Geometry;
use crate::hierarchy::Hierarchy;
use crate::l2_hit::FastMiss;
use crate::tags::{State, Tags};
use crate::word::{Isa, Word};

impl<W: Word> Hierarchy<W> {
    /// Serves [`Hierarchy::fast_miss`] for a line that the second level does not have.
    #[inline(always)]
    pub(crate) fn fast_l2_miss<I: Isa>(
        &mut self,
        isa: I,
        line: u64,
        oldest: u64,
        reference: &MemRef,
    ) -> FastMiss {
        let Self {
            tags,
            vcpu_caches,
            events,
            ledger,
            memory,
            line_shift,
            ..
        } = self;
        let access = reference.access;
        let own = &vcpu_caches[usize::from(reference.vcpu)];
        let Some(path) = &own.fast_paths[access.side() as usize] else {
            return FastMiss::SlowPath;
        };
        let Some(l3) = &path.l3 else {
            return FastMiss::NotInL2;
        };
        // The host's loads of these tags take long, too, so they begin first.
        let third = l3.third.lookup(line);
        tags.prefetch(&l3.third, third);
        for &peer in &l3.peers {
            tags.prefetch(&l3.third, l3.lookup_in_peer(peer, third));
        }
        let first = path.first.lookup(oldest);
        let Some(victim) = tags.locate(isa, &path.first, first) else {
            return FastMiss::NotInL2;
        };
        let second = path.second.lookup(line);
        let l2_victim = tags.lru_entry(&path.second, second);
        if l2_victim != 0 {
            let (line, holders) = path.second.line_and_holders(second.set, l2_victim);
            if held(tags, isa, &l3.inside[0], holders, line) {
                return FastMiss::NotInL2;
            }
        }
        let found = tags.find(isa, &l3.third, third);
        let mut l3_victim = 0;
        let state = if let Some(way) = found {
            let entry = tags.entry_at(tags.entry_index(&l3.third, third, way));
            let shared = entry & l3.other_holders != 0;
            match access {
                Access::Write if State::is_owned(entry) && !shared => State::Modified,
                Access::Write => return FastMiss::NotInL2,
                _ if !State::is_owned(entry) => State::Shared,
                _ if shared => return FastMiss::NotInL2,
                _ => State::Exclusive,
            }
        } else {
            l3_victim = tags.lru_entry(&l3.third, third);
            let holders = l3.third.holders(l3_victim);
            if holders != 0 {
                let line = l3.third.line(third.set, l3_victim);
                if held(tags, isa, &l3.inside[1], holders, line) {
                    return FastMiss::NotInL2;
                }
            }
            // A closure would be slower: the compiler makes it a function for any host, which then calls the comparisons of tags.
            for &peer in &l3.peers {
                if tags
                    .find(isa, &l3.third, l3.lookup_in_peer(peer, third))
                    .is_some()
                {
                    return FastMiss::NotInL2;
                }
            }
            match access {
                Access::Write => State::Modified,
                _ => State::Exclusive,
            }
        };
        // From here on, the fill cannot fail except for missing tallies.
        const LEVELS: usize = 3;
        let account = ledger.select(reference);
        let tallies = ledger.first_tallies::<{ LEVELS * LEVEL_EVENTS + SYSTEM_EVENTS }>(account);
        let Some((tallies, charges)) = tallies else {
            return FastMiss::NotInL2;
        };
        let mut request = |socket: u16, line: u64, write_back: bool| {
            let timing = memory.request(&MissRef {
                socket,
                line: line << *line_shift,
                write_back,
                now: reference.now,
            });
            let local = timing.local;
            let event = Events::system_after(LEVELS, SystemEvent::Memory { local, write_back });
            (event, u64::from(timing.latency))
        };
        let mut stall;
        if let Some(way) = found {
            tallies[Events::at_level(2, LevelEvent::hit(access))].count += 1;
            events.fast_paths.charge(charges, 2, access);
            stall = events.fast_paths.third[access as usize];
            let mut entry = tags.entry_at(tags.entry_index(&l3.third, third, way)) | l3.holder_mask;
            if access == Access::Write {
                entry = State::Modified.instead(entry);
            }
            tags.make_mru(isa, &l3.third, third, way, entry);
        } else {
            tallies[Events::at_level(2, LevelEvent::miss(access))].count += 1;
            events.fast_paths.charge(charges, 3, access);
            stall = events.fast_paths.memory[access as usize];
            let (event, latency) = request(own.socket, line, false);
            events.charge(charges, event, latency);
            tallies[event].add(latency);
            stall += latency;
            if State::is_modified(l3_victim) {
                let gone = l3.third.line(third.set, l3_victim);
                let (event, latency) = request(l3.socket, gone, true);
                events.charge(charges, event, latency);
                tallies[event].add(latency);
                tallies[Events::at_level(2, LevelEvent::Writeback)].count += 1;
                events.fast_paths.charge_write_back(charges, 2);
                stall += latency + events.fast_paths.write_back[2];
            }
            let holder = l3.holder_mask >> Geometry::STATE_BITS;
            tags.replace_lru(isa, &l3.third, third, state, holder);
        }
        tallies[Events::at_level(0, LevelEvent::miss(access))].count += 1;
        tallies[Events::at_level(1, LevelEvent::miss(access))].count += 1;
        if State::is_modified(l2_victim) {
            tallies[Events::at_level(1, LevelEvent::Writeback)].count += 1;
            events.fast_paths.charge_write_back(charges, 1);
            stall += events.fast_paths.write_back[1];
        }
        let held = state.inside(false);
        let holder = path.holder_mask >> Geometry::STATE_BITS;
        tags.replace_lru(isa, &path.second, second, held, holder);
        if State::is_modified(tags.entry_at(victim)) {
            tallies[Events::at_level(0, LevelEvent::Writeback)].count += 1;
            events.fast_paths.charge_write_back(charges, 0);
            stall += events.fast_paths.write_back[0];
        }
        let state = held.inside(path.instructions);
        tags.replace_in_place(victim, path.first.lookup(line), state);
        FastMiss::Filled(state, stall)
    }
}

/// Returns true if one of the `inside` caches has a line. `holders` has the holder bits of the line in the cache around them.
#[inline(always)]
fn held<W: Word, I: Isa>(
    tags: &Tags<W>,
    isa: I,
    inside: &[Geometry],
    mut holders: u64,
    line: u64,
) -> bool {
    while holders != 0 {
        let position = holders.trailing_zeros() as usize;
        holders &= holders - 1;
        if let Some(cache) = inside.get(position)
            && tags.find(isa, cache, cache.lookup(line)).is_some()
        {
            return true;
        }
    }
    false
}
