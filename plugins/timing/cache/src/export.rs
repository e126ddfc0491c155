//! Export of the caches' state to an engine ([`nodescope_plugin_api::exported`]). With this state, the engine's generated code does the
//! work of the fast paths in [`crate::l2_hit`] and [`crate::l2_miss`] itself.

use std::ptr::{NonNull, null_mut};

use nodescope_plugin_api::Access;
use nodescope_plugin_api::exported::{
    ExportedCaches, ExportedEvents, ExportedMemory, ExportedShape, MAX_INNER_CACHES, MAX_PEERS,
    STATE_BITS, StateExport, WordState,
};

use crate::events::{Events, LevelEvent, SystemEvent};
use crate::geometry::Geometry;
use crate::hierarchy::{Hierarchy, NONE};
use crate::tags::{HOLDERS, State};
use crate::word::Word;

const _: () = assert!(HOLDERS as usize == MAX_INNER_CACHES);
const _: () = assert!(State::Shared as u32 == WordState::Shared as u32);
const _: () = assert!(State::Forward as u32 == WordState::Forward as u32);
const _: () = assert!(State::Exclusive as u32 == WordState::Exclusive as u32);
const _: () = assert!(State::Modified as u32 == WordState::Modified as u32);

/// Largest stride of a set in an exported cache, in words.
const MAX_STRIDE: u32 = 32;

/// Exported states, by vCPU.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    exported: Vec<(u16, Box<ExportedCaches>)>,
    /// [`nodescope_plugin_api::Ledger::layout_version`] at the last refresh of the exported states.
    ledger_version: u64,
}

// SAFETY: the pointers lead to memory of the same hierarchy, which any thread may use, one at a time. An engine promises the same for
// its use of exported states.
unsafe impl Send for Exports {}

impl Exports {
    /// Disables all exports, and returns them: they must stay in memory, since an engine that has a pointer may still read the line
    /// limit.
    pub(crate) fn revoke(&mut self) -> Exports {
        for (_, exported) in &mut self.exported {
            exported.line_limit = 0;
        }
        std::mem::take(self)
    }
}

impl Hierarchy<u32> {
    /// Exports the state of a vCPU's caches ([`nodescope_plugin_api::MemoryModel::export_state`]). `None` if the fast paths do not serve
    /// all three levels of these caches, or if their shape does not fit an export.
    pub(crate) fn export_state(&mut self, vcpu: u16) -> Option<StateExport> {
        let own = self.vcpu_caches.get(usize::from(vcpu))?;
        let path = own.fast_paths[0].as_ref()?;
        let l3 = path.l3.as_ref()?;
        let [data, instruction] = own.first;
        let first = *self.nodes.get(data);
        let second = *self.nodes.get(first.outer);
        let third = *self.nodes.get(second.outer);
        // The second level must include the vCPU's first-level caches only.
        let inner = &self.children[first.outer as usize].inner;
        if inner.iter().any(|node| ![data, instruction].contains(node))
            || l3.socket != own.socket
            || l3.peers.len() > MAX_PEERS
            || l3.inside[1].len() > MAX_INNER_CACHES
        {
            return None;
        }
        let shape = |geometry: &Geometry| {
            let shape = geometry.set_shape();
            (shape.stride <= MAX_STRIDE).then_some(shape)
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
            data_holder_mask: bit(first.bit),
            peers: l3.peers.len(),
            events: self.exported_events()?,
        };
        let memory = self.memory.export_state(own.socket);
        let memory = memory.unwrap_or(ExportedMemory::NOTHING);
        let mut exported = Box::new(ExportedCaches {
            line_limit: 0,
            context: 0,
            l3_holder_mask: l3.holder_mask as u32,
            l3_other_holders: l3.other_holders as u32,
            socket: memory.socket(),
            tallies: [null_mut(); 2],
            words: [null_mut(); 4],
            inner_caches: [null_mut(); MAX_INNER_CACHES],
            peers: [null_mut(); MAX_PEERS],
            recent_home: memory.recent_home(),
            latencies: memory.latencies(),
            tag_masks: [[0; 4]; 4],
            way_numbers: std::array::from_fn(|n| n as u32),
        });
        let caches = [Some(first), for_fetches, Some(second), Some(third)];
        for (n, node) in caches.iter().enumerate() {
            if let Some(node) = node {
                exported.words[n] = self.tags.first_word(node.geometry.base);
                exported.tag_masks[n] = [u32::MAX << node.geometry.tag_shift; 4];
            }
        }
        for (words, geometry) in exported.inner_caches.iter_mut().zip(&l3.inside[1]) {
            *words = self.tags.first_word(geometry.base);
        }
        for (words, &base) in exported.peers.iter_mut().zip(&l3.peers) {
            *words = self.tags.first_word(base);
        }
        let pointer = NonNull::from(&mut *exported);
        self.exports.exported.retain(|(other, _)| *other != vcpu);
        self.exports.exported.push((vcpu, exported));
        self.exports.ledger_version = u64::MAX;
        self.refresh_exports();
        // SAFETY: the exported state is boxed, and stays until this vCPU gets another export. Its line limit is zero at first. Whenever
        // the limit is not zero, words and tallies are in memory of this hierarchy that neither moves nor is freed before the limit is
        // zero again (`refresh_exports`, `revoke`). The state that the memory exports is boxed, too, and stays as long. The contents of
        // words are used only as tags, states and numbers of caches, which every look-up checks.
        Some(unsafe { StateExport::new(shape, pointer) })
    }

    /// Returns the indices of the fast paths' events and the cycles of the paths. `None` if a path costs 2^28 cycles or more, so that sums
    /// might overflow.
    fn exported_events(&self) -> Option<ExportedEvents> {
        let levels = [0, 1, 2];
        let accesses = [Access::Read, Access::Write];
        let at = |level, event| Events::at_level(level, event) as u32;
        let costs = &self.events.fast_paths;
        let memory = |write_back| {
            [true, false].map(|local| {
                let event = SystemEvent::Memory { local, write_back };
                self.events.system(event) as u32
            })
        };
        let all = [costs.second, costs.third, costs.memory, costs.write_back];
        if all.iter().flatten().any(|&cycles| cycles >= 1 << 28) {
            return None;
        }
        let cycles = |stall: &[u64]| [stall[0] as u32, stall[1] as u32];
        Some(ExportedEvents {
            hit: levels.map(|level| accesses.map(|access| at(level, LevelEvent::hit(access)))),
            miss: levels.map(|level| accesses.map(|access| at(level, LevelEvent::miss(access)))),
            write_back: levels.map(|level| at(level, LevelEvent::Writeback)),
            memory: [memory(false), memory(true)],
            stall: [&costs.second, &costs.third, &costs.memory].map(|stall| cycles(stall)),
            stall_by_level: costs
                .by_level
                .map(|path| [path[0], path[1]].map(|levels| levels.map(|cycles| cycles as u32))),
            write_back_stall: costs.write_back.map(|stall| stall as u32),
        })
    }
}

impl<W: Word> Hierarchy<W> {
    /// Brings all exports up to date if the ledger's tallies have moved or a vCPU has changed its address space.
    #[inline(always)]
    pub(crate) fn refresh_exports(&mut self) {
        if self.exports.ledger_version != self.ledger.layout_version() {
            self.refresh_all_exports();
        }
    }

    #[cold]
    #[inline(never)]
    fn refresh_all_exports(&mut self) {
        self.exports.ledger_version = self.ledger.layout_version();
        // The exported shape describes 32-bit words only.
        let limit = if W::BITS == u32::BITS {
            self.line_limit
        } else {
            0
        };
        for (vcpu, exported) in &mut self.exports.exported {
            match self.ledger.current_tallies(*vcpu) {
                Some((context, tallies)) => {
                    exported.line_limit = limit;
                    exported.context = context.0;
                    exported.tallies = tallies;
                }
                None => exported.line_limit = 0,
            }
        }
    }
}
