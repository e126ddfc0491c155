//! What most misses of the first level come to: the second level has the line, and nobody else is asked.
//!
//! [`Hierarchy::miss`] and what it calls do the same, for any number of levels and whatever state the line is in; here, and in
//! [`crate::far`], is what is left of them where all of that is known.

use nodescope_plugin_api::{Access, MemRef};

use crate::events::{AT_LEVEL, AtLevel, Events};
use crate::hierarchy::Hierarchy;
use crate::tags::State;
use crate::word::{Isa, Word};

/// What came of a look at the levels outside the first.
pub(crate) enum Taken {
    /// The line is in the first level in this state, after so many cycles.
    Entered(State, u64),
    /// Nothing was done: the second level does not have the line.
    Absent,
    /// Nothing was done: more is needed.
    Unknown,
}

impl<W: Word> Hierarchy<W> {
    /// Bring `line` into the first-level cache at the beginning of a route, which does not hold it, in place of `oldest`, if one of the
    /// caches outside permits the access without changes in others.
    #[inline(always)]
    pub(crate) fn take<I: Isa>(
        &mut self,
        isa: I,
        line: u64,
        oldest: u64,
        reference: &MemRef,
    ) -> Taken {
        let access = reference.access;
        let entrance = &self.entrances[usize::from(reference.vcpu)];
        let Some(route) = &entrance.routes[access.side() as usize] else {
            return Taken::Unknown;
        };
        let spot = route.second.spot(line);
        let Some(way) = self.tags.find(isa, &route.second, spot) else {
            return self.take_from_afar(isa, line, oldest, reference);
        };
        let entry = self.tags.at(self.tags.place(&route.second, spot, way));
        let shared = entry & route.others != 0;
        let state = match access {
            Access::Write if State::is_modified(entry) && !shared => State::Modified,
            Access::Write => return Taken::Unknown,
            _ if !State::is_owned(entry) => State::Shared,
            _ if shared => return Taken::Unknown,
            _ => State::Exclusive,
        };
        let Some(left) = self
            .tags
            .locate(isa, &route.first, route.first.spot(oldest))
        else {
            return Taken::Unknown;
        };
        let account = self.ledger.select(reference);
        let Some((tallies, charges)) = self.ledger.first_tallies::<{ 2 * AT_LEVEL }>(account)
        else {
            return Taken::Unknown;
        };
        tallies[Events::at(0, AtLevel::miss(access))].count += 1;
        tallies[Events::at(1, AtLevel::hit(access))].count += 1;
        let short = &self.events.short;
        short.charge(charges, 1, access);
        let mut stall = short.second[access as usize];
        if State::is_modified(self.tags.at(left)) {
            tallies[Events::at(0, AtLevel::Writeback)].count += 1;
            short.charge_write_back(charges, 0);
            stall += short.write_back[0];
        }
        let state = state.inside(route.instructions);
        self.tags.replace(left, route.first.spot(line), state);
        let entry = entry | route.bit;
        self.tags.renew(isa, &route.second, spot, way, entry);
        Taken::Entered(state, stall)
    }
}
