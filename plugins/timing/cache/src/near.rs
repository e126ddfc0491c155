//! What most misses of the first level come to: the second level has the line, and nobody else is asked.
//!
//! [`Hierarchy::miss`] and what it calls do the same, for any number of levels and whatever state the line is in; here is
//! what is left of them where all of that is known.

use nodescope_plugin_api::{Access, MemRef};

use crate::events::{AtLevel, Events};
use crate::hierarchy::{CacheKind, Hierarchy, NONE};
use crate::tags::State;
use crate::word::{Isa, Word};

/// What came of a look at the second level.
pub(crate) enum Near {
    /// The line is in the first level, in this state and for so many cycles.
    Entered(State, u64),
    /// Nothing was done: the second level does not have the line.
    Absent,
    /// Nothing was done: more is needed.
    Unknown,
}

impl<W: Word> Hierarchy<W> {
    /// Bring `line` into the first-level cache `first`, which does not hold it, in place of `oldest`, if the second level has
    /// it and permits the access.
    #[inline(always)]
    pub(crate) fn take_from_second_level<I: Isa>(
        &mut self,
        isa: I,
        first: u32,
        line: u64,
        oldest: u64,
        reference: &MemRef,
    ) -> Near {
        let access = reference.access;
        let inside = self.nodes.get(first);
        let (outer, bit) = (inside.outer, u64::from(inside.bit));
        if outer == NONE || inside.threads {
            return Near::Unknown;
        }
        let around = self.nodes.get(outer);
        let spot = around.geometry.spot(line);
        let Some(way) = self.tags.find(isa, &around.geometry, spot) else {
            return Near::Absent;
        };
        let entry = self.tags.entry(spot.start + way);
        let outside = State::of(entry);
        let others = around.without(around.geometry.holders(entry), bit);
        let state = match access {
            Access::Write if outside == State::Modified && others == 0 => State::Modified,
            Access::Write => return Near::Unknown,
            _ if !outside.owned() => State::Shared,
            _ if others != 0 => return Near::Unknown,
            _ if inside.kind == CacheKind::Instruction => State::Shared,
            _ => State::Exclusive,
        };
        let place = inside.geometry.spot(line);
        let oldest = inside.geometry.spot(oldest);
        let Some(left) = self.tags.find(isa, &inside.geometry, oldest) else {
            return Near::Unknown;
        };
        let last = self.tags.entry(place.start + left);
        let account = self.ledger.select(reference);
        let mut stall = 0;
        let mut charge = |event| {
            self.ledger.count(account, event);
            stall += u64::from(self.events.latency(event));
        };
        charge(Events::at(0, AtLevel::miss(access)));
        charge(Events::at(1, AtLevel::hit(access)));
        if State::of(last) == State::Modified {
            charge(Events::at(0, AtLevel::Writeback));
        }
        let around = &self.nodes.get(outer).geometry;
        self.tags.touch(isa, around, spot, way, bit);
        let inside = &self.nodes.get(first).geometry;
        self.tags.insert(isa, inside, place, left, state, 0);
        Near::Entered(state, stall)
    }
}
