//! The tables of [`nodescope_plugin_api::exported`]: by them an engine's machine code goes the ways of [`crate::near`] and
//! [`crate::far`] itself.

use std::ptr::{NonNull, null_mut};

use nodescope_plugin_api::Access;
use nodescope_plugin_api::exported::{
    MAX_INNER_CACHES, MAX_PEERS, ExportedMemory, StateExport, STATE_BITS, ExportedEvents, ExportedCaches, ExportedShape,
    WordState,
};

use crate::events::{AtLevel, Between, Events};
use crate::geometry::Geometry;
use crate::hierarchy::{Hierarchy, NONE};
use crate::tags::{HOLDERS, State};
use crate::word::Word;

const _: () = assert!(HOLDERS as usize == MAX_INNER_CACHES);
const _: () = assert!(State::Shared as u32 == WordState::Shared as u32);
const _: () = assert!(State::Forward as u32 == WordState::Forward as u32);
const _: () = assert!(State::Exclusive as u32 == WordState::Exclusive as u32);
const _: () = assert!(State::Modified as u32 == WordState::Modified as u32);

/// Longest row of words that a set may be.
const LONGEST: u32 = 32;

/// What is lent, by vCPU.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    lent: Vec<(u16, Box<ExportedCaches>)>,
    /// The ledger's moves that they know of.
    moves: u64,
}

// SAFETY: the pointers lead to memory of the same hierarchy, which may be used from any thread, one at a time; whoever was lent them
// uses them under the same promise.
unsafe impl Send for Loans {}

impl Loans {
    /// Lend nothing more. Who has a pointer to the tables may still look at them.
    pub(crate) fn recall(&mut self) -> Loans {
        for (_, tables) in &mut self.lent {
            tables.limit = 0;
        }
        std::mem::take(self)
    }
}

impl Hierarchy<u32> {
    /// See [`nodescope_plugin_api::MemoryModel::export_state`].
    pub(crate) fn lend(&mut self, vcpu: u16) -> Option<StateExport> {
        let entrance = self.entrances.get(usize::from(vcpu))?;
        let route = entrance.routes[0].as_ref()?;
        let on = route.on.as_ref()?;
        let [data, instruction] = entrance.first;
        let first = *self.nodes.get(data);
        let second = *self.nodes.get(first.outer);
        let third = *self.nodes.get(second.outer);
        // Nobody else is inside the second level.
        let inner = &self.neighbours[first.outer as usize].inner;
        if inner.iter().any(|node| ![data, instruction].contains(node))
            || on.socket != entrance.socket
            || on.peers.len() > MAX_PEERS
            || on.inside[1].len() > MAX_INNER_CACHES
        {
            return None;
        }
        let shape = |geometry: &Geometry| {
            let shape = geometry.set_shape();
            (shape.stride <= LONGEST).then_some(shape)
        };
        let bit = |bit: u16| u32::from(bit) << STATE_BITS;
        let for_fetches = (instruction != NONE).then(|| *self.nodes.get(instruction));
        let instruction = match &for_fetches {
            Some(node) => Some((shape(&node.geometry)?, bit(node.bit))),
            None => None,
        };
        let shape = ExportedShape {
            levels: [
                shape(&first.geometry)?,
                shape(&second.geometry)?,
                shape(&third.geometry)?,
            ],
            instruction,
            data_bit: bit(first.bit),
            peers: on.peers.len(),
            events: self.table_events()?,
        };
        let memory = self.memory.tables(entrance.socket);
        let memory = memory.unwrap_or(ExportedMemory::NOTHING);
        let mut tables = Box::new(ExportedCaches {
            limit: 0,
            context: 0,
            third_bit: on.bit as u32,
            third_others: on.others as u32,
            socket: memory.socket(),
            tallies: [null_mut(); 2],
            words: [null_mut(); 4],
            inside: [null_mut(); MAX_INNER_CACHES],
            peers: [null_mut(); MAX_PEERS],
            recent: memory.recent(),
            latencies: memory.latencies(),
            tag_masks: [[0; 4]; 4],
            numbers: std::array::from_fn(|n| n as u32),
        });
        let caches = [Some(first), for_fetches, Some(second), Some(third)];
        for (n, node) in caches.iter().enumerate() {
            if let Some(node) = node {
                tables.words[n] = self.tags.lend(node.geometry.base);
                tables.tag_masks[n] = [u32::MAX << node.geometry.tag_shift; 4];
            }
        }
        for (words, geometry) in tables.inside.iter_mut().zip(&on.inside[1]) {
            *words = self.tags.lend(geometry.base);
        }
        for (words, &base) in tables.peers.iter_mut().zip(&on.peers) {
            *words = self.tags.lend(base);
        }
        let pointer = NonNull::from(&mut *tables);
        self.loans.lent.retain(|(other, _)| *other != vcpu);
        self.loans.lent.push((vcpu, tables));
        self.loans.moves = u64::MAX;
        self.renew_loans();
        // SAFETY: the tables are boxed and stay until this vCPU is lent others. Their limit is zero at first. Whenever the limit is
        // not zero, words and tallies lie in memory of this hierarchy that neither moves nor goes away before the limit is zero
        // again (`renew_loans`, `recall`). The tables that the memory lends are boxed, too, and stay as long. Words lead to nothing
        // but words and numbers of caches that every look-up checks.
        Some(unsafe { StateExport::new(shape, pointer) })
    }

    /// None where cycles are so many that their sums would not fit.
    fn table_events(&self) -> Option<ExportedEvents> {
        let levels = [0, 1, 2];
        let accesses = [Access::Read, Access::Write];
        let at = |level, event| Events::at(level, event) as u32;
        let short = &self.events.short;
        let memory = |write_back| {
            [true, false].map(|local| {
                let event = Between::Memory { local, write_back };
                self.events.between(event) as u32
            })
        };
        let all = [short.second, short.third, short.memory, short.write_back];
        if all.iter().flatten().any(|&cycles| cycles >= 1 << 28) {
            return None;
        }
        let cycles = |stall: &[u64]| [stall[0] as u32, stall[1] as u32];
        Some(ExportedEvents {
            hit: levels.map(|level| accesses.map(|access| at(level, AtLevel::hit(access)))),
            miss: levels.map(|level| accesses.map(|access| at(level, AtLevel::miss(access)))),
            write_back: levels.map(|level| at(level, AtLevel::Writeback)),
            memory: [memory(false), memory(true)],
            stall: [&short.second, &short.third, &short.memory].map(|stall| cycles(stall)),
            stall_by_level: short
                .by_level
                .map(|path| [path[0], path[1]].map(|levels| levels.map(|cycles| cycles as u32))),
            write_back_stall: short.write_back.map(|stall| stall as u32),
        })
    }
}

impl<W: Word> Hierarchy<W> {
    /// Bring what is lent up to date, where the ledger's accounts have changed.
    #[inline(always)]
    pub(crate) fn renew_loans(&mut self) {
        if self.loans.moves != self.ledger.moves() {
            self.renew_all_loans();
        }
    }

    #[cold]
    #[inline(never)]
    fn renew_all_loans(&mut self) {
        self.loans.moves = self.ledger.moves();
        // Words of another width are not what is described.
        let limit = if W::BITS == u32::BITS { self.limit } else { 0 };
        for (vcpu, tables) in &mut self.loans.lent {
            match self.ledger.places(*vcpu) {
                Some((context, tallies)) => {
                    tables.limit = limit;
                    tables.context = context.0;
                    tables.tallies = tallies;
                }
                None => tables.limit = 0,
            }
        }
    }
}
