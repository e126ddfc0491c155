//! Events of the request in progress.

use nodescope_plugin_api::{Access, MemRef, MissRef, Outcome, Source, StallTerm};

use crate::events::{Cost, Distance, Events, LevelEvent, SystemEvent, Traffic};
use crate::hierarchy::Hierarchy;
use crate::tags::is_prefetched;
use crate::tree::Tree;
use crate::word::{Variant, Word};

impl<W: Word> Hierarchy<W> {
    /// Begins to account for a reference that needs more than the first level.
    #[inline(always)]
    pub(crate) fn begin_request(&mut self, reference: &MemRef) {
        // Field by field: the host forwards no stores to a load of several fields.
        let account = self.ledger.select(reference);
        let request = &mut self.request;
        request.requester = reference.vcpu;
        request.account = account;
        request.now = reference.now;
        request.stall = 0;
    }

    /// Counts an event at a level.
    #[inline(always)]
    pub(crate) fn charge_level(&mut self, tree: &Tree, level: usize, event: LevelEvent) {
        self.charge(tree, Events::at_level(level, event));
    }

    /// Counts an access that the first `misses` levels did not answer. If the next level answered, `hit` has the entry that it found. Only
    /// the last of these events is counted; [`Events::complete`] adds the misses before it. Accesses for prefetches are not counted.
    #[inline(always)]
    pub(crate) fn charge_access<V: Variant>(
        &mut self,
        tree: &Tree,
        access: Access,
        misses: usize,
        hit: Option<u64>,
    ) {
        if !V::USUAL && self.request.prefetch {
            if hit.is_some() {
                self.request.prefetch_source =
                    Source::of_level(self.request.prefetch_inside + misses + 1);
            }
            return;
        }
        let charges = self.request.charges.or(&mut self.ledger.charges);
        let path = tree.events.path(access, misses, hit.is_some());
        for (level, cycles) in (1..).zip(path.by_level) {
            charges.stall(StallTerm::of_level(level), cycles);
        }
        self.request.stall += path.cycles;
        let event = match hit {
            None => LevelEvent::miss(access),
            Some(entry) if !V::USUAL && is_prefetched(entry) => LevelEvent::prefetch_hit(access),
            Some(_) => LevelEvent::hit(access),
        };
        let level = match hit {
            None => misses - 1,
            Some(_) => misses,
        };
        if hit.is_some()
            && let Some(source) = Source::of_level(level + 1)
        {
            charges.answer(source);
        }
        let event = Events::at_level(level, event);
        let cycles = tree.events.cost(event).latency;
        self.ledger
            .charge_fixed(self.request.account, event, cycles.into());
    }

    /// Counts an event between caches.
    #[inline]
    pub(crate) fn charge_system(&mut self, tree: &Tree, event: SystemEvent) {
        if let SystemEvent::FromModified(distance) = event {
            self.request.taken |= distance != Distance::SameCore;
        }
        self.charge(tree, tree.events.system(event));
    }

    /// Counts an event by which vCPUs that want one line cost each other cycles.
    pub(crate) fn charge_contention(&mut self, tree: &Tree, event: SystemEvent, cycles: u64) {
        let event = tree.events.system(event);
        self.ledger.charge(self.request.account, event, cycles);
        self.charge_code(tree.events.cost(event), cycles);
    }

    /// Counts an event of a constant latency.
    #[inline(always)]
    fn charge(&mut self, tree: &Tree, event: usize) {
        let cost = tree.events.cost(event);
        let latency = u64::from(cost.latency);
        let cycles = match self.request.prefetch || self.request.buffered {
            true => 0,
            false => latency,
        };
        if self.request.buffered {
            self.request.hidden += latency - cycles;
        }
        self.ledger
            .charge_fixed(self.request.account, event, cycles);
        self.charge_code(cost, cycles);
    }

    #[inline(always)]
    fn charge_code(&mut self, cost: Cost, cycles: u64) {
        let prefetch = self.request.prefetch;
        let charges = self.request.charges.or(&mut self.ledger.charges);
        charges.stall(cost.term, cycles);
        match cost.source {
            Some(source) if prefetch => self.request.prefetch_source = Some(source),
            Some(source) => charges.answer(source),
            None => {}
        }
        self.request.stall += cycles;
    }

    /// Reads a line from memory for the requester's socket.
    #[inline(always)]
    pub(crate) fn read_memory(&mut self, tree: &Tree, line: u64) {
        let socket = tree.vcpu_caches[usize::from(self.request.requester)].socket;
        let traffic = if self.request.prefetch {
            Traffic::Prefetch
        } else {
            Traffic::Fill
        };
        self.request_memory(tree, socket, line, traffic);
    }

    /// Makes a request to memory for a socket.
    #[inline(always)]
    pub(crate) fn request_memory(&mut self, tree: &Tree, socket: u16, line: u64, traffic: Traffic) {
        let timing = self.memory.request(&MissRef {
            socket,
            vcpu: self.request.requester,
            line: line << tree.line_shift,
            write_back: matches!(traffic, Traffic::WriteBack | Traffic::NonTemporalStore),
            now: self.request.now,
        });
        let local = timing.local;
        let event = tree.events.system(SystemEvent::Memory { traffic, local });
        let latency = if self.request.prefetch {
            if matches!(traffic, Traffic::Prefetch) {
                self.request.prefetch_source = Some(match local {
                    true => Source::LocalMemory,
                    false => Source::RemoteMemory,
                });
            }
            0
        } else {
            u64::from(timing.latency)
        };
        self.ledger.charge(self.request.account, event, latency);
        self.charge_code(tree.events.cost(event), latency);
        if timing.toll > 0 {
            self.charge_toll(timing.toll.into());
        }
    }

    /// Counts the cycles in which the requester waits for memory bandwidth. [`Hierarchy::with_toll`] adds them to the answer.
    #[cold]
    fn charge_toll(&mut self, toll: u64) {
        let charges = self.request.charges.or(&mut self.ledger.charges);
        charges.stall(StallTerm::Unattributed, toll);
        self.request.toll += toll;
    }

    /// Adds the waiting for memory bandwidth to the answer of a reference.
    #[inline(always)]
    pub(crate) fn with_toll(&mut self, outcome: Outcome) -> Outcome {
        if self.request.toll == 0 {
            return outcome;
        }
        let toll = std::mem::take(&mut self.request.toll);
        let stall = u64::from(outcome.stall()) + toll;
        outcome.with_stall(stall.min(u32::MAX.into()) as u32)
    }
}
