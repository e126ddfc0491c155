//! What most misses of the second level come to: the third, which is the outermost, has the line, or memory does, and no other
//! cache is changed.

use nodescope_plugin_api::{Access, MemRef, MissRef};

use crate::events::{AT_LEVEL, AtLevel, BETWEEN, Between, Events};
use crate::geometry::Geometry;
use crate::hierarchy::Hierarchy;
use crate::near::Taken;
use crate::tags::{State, Tags};
use crate::word::{Isa, Word};

impl<W: Word> Hierarchy<W> {
    /// [`Hierarchy::take`] for a line that the second level does not have.
    #[inline(always)]
    pub(crate) fn take_from_afar<I: Isa>(
        &mut self,
        isa: I,
        line: u64,
        oldest: u64,
        reference: &MemRef,
    ) -> Taken {
        let Self {
            tags,
            entrances,
            events,
            ledger,
            memory,
            line_shift,
            ..
        } = self;
        let access = reference.access;
        let entrance = &entrances[usize::from(reference.vcpu)];
        let Some(route) = &entrance.routes[access.side() as usize] else {
            return Taken::Unknown;
        };
        let Some(on) = &route.on else {
            return Taken::Absent;
        };
        // These tags are far away on the host, too, and are asked for first.
        let third = on.third.spot(line);
        tags.prefetch(&on.third, third);
        for &peer in &on.peers {
            tags.prefetch(&on.third, on.at_peer(peer, third));
        }
        let first = route.first.spot(oldest);
        let Some(left) = tags.locate(isa, &route.first, first) else {
            return Taken::Absent;
        };
        let second = route.second.spot(line);
        let from_second = tags.last(&route.second, second);
        if from_second != 0 {
            let (line, holders) = route.second.line_and_holders(second.set, from_second);
            if held(tags, isa, &on.inside[0], holders, line) {
                return Taken::Absent;
            }
        }
        let found = tags.find(isa, &on.third, third);
        let mut from_third = 0;
        let state = if let Some(way) = found {
            let entry = tags.at(tags.place(&on.third, third, way));
            let shared = entry & on.others != 0;
            match access {
                Access::Write if State::is_owned(entry) && !shared => State::Modified,
                Access::Write => return Taken::Absent,
                _ if !State::is_owned(entry) => State::Shared,
                _ if shared => return Taken::Absent,
                _ => State::Exclusive,
            }
        } else {
            from_third = tags.last(&on.third, third);
            let holders = on.third.holders(from_third);
            if holders != 0 {
                let line = on.third.line(third.set, from_third);
                if held(tags, isa, &on.inside[1], holders, line) {
                    return Taken::Absent;
                }
            }
            // Not a closure: it would be a function of its own, compiled for every host, and call what compares tags.
            for &peer in &on.peers {
                if tags.find(isa, &on.third, on.at_peer(peer, third)).is_some() {
                    return Taken::Absent;
                }
            }
            match access {
                Access::Write => State::Modified,
                _ => State::Exclusive,
            }
        };
        // All that can be in the way has been looked at.
        const LEVELS: usize = 3;
        let account = ledger.select(reference);
        let tallies = ledger.first_tallies::<{ LEVELS * AT_LEVEL + BETWEEN }>(account);
        let Some((tallies, charges)) = tallies else {
            return Taken::Absent;
        };
        let mut request = |socket: u16, line: u64, write_back: bool| {
            let timing = memory.request(&MissRef {
                socket,
                line: line << *line_shift,
                write_back,
                now: reference.now,
            });
            let local = timing.local;
            let event = Events::after(LEVELS, Between::Memory { local, write_back });
            (event, u64::from(timing.latency))
        };
        let mut stall;
        if let Some(way) = found {
            tallies[Events::at(2, AtLevel::hit(access))].count += 1;
            events.short.charge(charges, 2, access);
            stall = events.short.third[access as usize];
            let mut entry = tags.at(tags.place(&on.third, third, way)) | on.bit;
            if access == Access::Write {
                entry = State::Modified.instead(entry);
            }
            tags.renew(isa, &on.third, third, way, entry);
        } else {
            tallies[Events::at(2, AtLevel::miss(access))].count += 1;
            events.short.charge(charges, 3, access);
            stall = events.short.memory[access as usize];
            let (event, latency) = request(entrance.socket, line, false);
            events.charge(charges, event, latency);
            tallies[event].add(latency);
            stall += latency;
            if State::is_modified(from_third) {
                let gone = on.third.line(third.set, from_third);
                let (event, latency) = request(on.socket, gone, true);
                events.charge(charges, event, latency);
                tallies[event].add(latency);
                tallies[Events::at(2, AtLevel::Writeback)].count += 1;
                events.short.charge_write_back(charges, 2);
                stall += latency + events.short.write_back[2];
            }
            let holder = on.bit >> Geometry::STATE_BITS;
            tags.enter(isa, &on.third, third, state, holder);
        }
        tallies[Events::at(0, AtLevel::miss(access))].count += 1;
        tallies[Events::at(1, AtLevel::miss(access))].count += 1;
        if State::is_modified(from_second) {
            tallies[Events::at(1, AtLevel::Writeback)].count += 1;
            events.short.charge_write_back(charges, 1);
            stall += events.short.write_back[1];
        }
        let held = state.inside(false);
        let holder = route.bit >> Geometry::STATE_BITS;
        tags.enter(isa, &route.second, second, held, holder);
        if State::is_modified(tags.at(left)) {
            tallies[Events::at(0, AtLevel::Writeback)].count += 1;
            events.short.charge_write_back(charges, 0);
            stall += events.short.write_back[0];
        }
        let state = held.inside(route.instructions);
        tags.replace(left, route.first.spot(line), state);
        Taken::Entered(state, stall)
    }
}

/// Whether one of these caches, inside another whose entry of a line has these holders, has the line.
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
            && tags.find(isa, cache, cache.spot(line)).is_some()
        {
            return true;
        }
    }
    false
}
