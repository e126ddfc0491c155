//! What most misses of the first level come to: the second level has the line, and nobody else is asked.
//!
//! [`Hierarchy::miss`] and what it calls do the same, for any number of levels and whatever state the line is in; here, and in
//! [`crate::far`], is what is left of them where all of that is known.

use nodescope_plugin_api::{Access, MemRef};

use crate::events::AtLevel;
use crate::hierarchy::{CacheKind, Hierarchy, NONE};
use crate::tags::State;
use crate::word::{Isa, Word};

/// What came of a look at the levels outside the first.
pub(crate) enum Taken {
    /// The line is in the first level, in this state.
    Entered(State),
    /// Nothing was done: the second level does not have the line.
    Absent,
    /// Nothing was done: more is needed.
    Unknown,
}

impl<W: Word> Hierarchy<W> {
    /// Bring `line` into the first-level cache `first`, which does not hold it, in place of `oldest`, if one of the caches outside
    /// permits the access without changes in others. The request has begun.
    #[inline(always)]
    pub(crate) fn take<I: Isa>(
        &mut self,
        isa: I,
        first: u32,
        line: u64,
        oldest: u64,
        reference: &MemRef,
    ) -> Taken {
        let access = reference.access;
        let inside = self.nodes.get(first);
        let (outer, bit) = (inside.outer, u64::from(inside.bit));
        if outer == NONE || inside.threads {
            return Taken::Unknown;
        }
        let around = self.nodes.get(outer);
        let spot = around.geometry.spot(line);
        let Some(way) = self.tags.find(isa, &around.geometry, spot) else {
            return self.take_from_afar(isa, first, spot, line, oldest, reference);
        };
        let entry = self.tags.entry(spot.start + way);
        let outside = State::of(entry);
        let others = around.without(around.geometry.holders(entry), bit);
        let state = match access {
            Access::Write if outside == State::Modified && others == 0 => State::Modified,
            Access::Write => return Taken::Unknown,
            _ if !outside.owned() => State::Shared,
            _ if others != 0 => return Taken::Unknown,
            _ => State::Exclusive,
        };
        let Some(left) = self.oldest_way(isa, first, oldest) else {
            return Taken::Unknown;
        };
        self.begin(reference);
        self.charge_level(0, AtLevel::miss(access));
        self.charge_level(1, AtLevel::hit(access));
        let around = &self.nodes.get(outer).geometry;
        self.tags.touch(isa, around, spot, way, bit);
        Taken::Entered(self.replace_first(first, left, line, state))
    }

    /// Where the line that a filter calls the oldest of its set is among the entries.
    #[inline(always)]
    pub(crate) fn oldest_way<I: Isa>(&self, isa: I, first: u32, oldest: u64) -> Option<usize> {
        let geometry = &self.nodes.get(first).geometry;
        let spot = geometry.spot(oldest);
        let way = self.tags.find(isa, geometry, spot)?;
        Some(spot.start + way)
    }

    /// Put `line` in the place of another in the first-level cache `first`, with what the level outside permits. The order of the
    /// set is the filter's. The line's state.
    #[inline(always)]
    pub(crate) fn replace_first(
        &mut self,
        first: u32,
        at: usize,
        line: u64,
        outside: State,
    ) -> State {
        if State::of(self.tags.entry(at)) == State::Modified {
            self.charge_level(0, AtLevel::Writeback);
        }
        let inside = self.nodes.get(first);
        let state = outside.inside(inside.kind == CacheKind::Instruction);
        self.tags.replace(at, inside.geometry.spot(line), state);
        state
    }
}
