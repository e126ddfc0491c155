//! The cache model as the engine drives it: first level, permissions of the L0 filter cache, statistics.

use std::collections::BTreeMap;

use nodescope_plugin_api::exported::StateExport;
use nodescope_plugin_api::{
    Access, Charges, Context, Counters, Hits, Key, L0Geometry, L0Update, Ledger, MemRef,
    MemoryModel, MemoryTimingModel, Outcome, Permission, Privilege, Side, StallTerm, Statistic,
    Tally, Term, VcpuPlace,
};

use crate::config::{CacheConfig, CacheConfigError, LevelConfig};
use crate::events::{Events, LevelEvent};
use crate::hierarchy::{CacheContents, Hierarchy, NONE};
use crate::l2_hit::FastMiss;
use crate::tags::State;
use crate::word::{Baseline, Isa, V3, Word};

/// Mask of a physical address, which has at most 52 bits (SDM volume 3, section 4.1.4).
const PHYSICAL_MASK: u64 = (1 << 52) - 1;

/// Largest number of ways of a cache whose whole sets an engine's L0 filter cache may hold.
const MOST_WAYS: u32 = 16;

/// The caches of one node.
pub struct CacheModel {
    caches: Caches,
    l0_geometry: L0Geometry,
    events: Events,
    fetches_cached: bool,
    /// True if [`MemoryModel::miss`] may serve misses: hits of reads and fetches cost no cycles, so that the L0 filter cache may answer
    /// them.
    has_fast_miss_path: bool,
}

/// The hierarchy, with words as wide as the line numbers seen so far need.
enum Caches {
    Narrow(Hierarchy<u32>, Option<V3>),
    Wide(Hierarchy<u64>),
}

/// Costs of first-level hits, and permissions of the L0 filter cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstLevel {
    /// Cycles of a hit: read, write, fetch.
    hits: [u32; 3],
    /// Permissions of the L0 filter cache, for data and for instructions, indexed by the line's state.
    grants: [[Permission; 5]; 2],
}

impl FirstLevel {
    /// Makes the costs and permissions for hits that cost `hits` cycles. For `whole_sets`, see [`Hierarchy::whole_sets`].
    pub(crate) fn new(hits: [u32; 3], whole_sets: [bool; 2]) -> FirstLevel {
        // Hits that cost cycles must reach the model, so that the L0 filter cache must not answer them.
        let most = match hits {
            [0, 0, _] => Permission::ReadWrite,
            [0, _, _] => Permission::Read,
            _ => Permission::None,
        };
        let most_for_fetches = match hits {
            [_, _, 0] => Permission::Read,
            _ => Permission::None,
        };
        let grants = |most: Permission, whole: bool| {
            let mut grants = [Permission::Read.min(most); 5];
            grants[State::Modified as usize] = most;
            if whole {
                grants[State::Exclusive as usize] = Permission::Exclusive.min(most);
            }
            grants
        };
        FirstLevel {
            hits,
            grants: [
                grants(most, whole_sets[0]),
                grants(most_for_fetches, whole_sets[1]),
            ],
        }
    }

    #[inline(always)]
    fn outcome(&self, stall: u64, state: State, side: usize, replaced: Option<u64>) -> Outcome {
        let stall = u32::try_from(stall).unwrap_or(u32::MAX);
        Outcome::new(stall, self.grants[side][state as usize], replaced)
    }
}

impl CacheModel {
    /// Makes empty caches for vCPUs at `places` in front of `memory`. An error is the first fault of the description
    /// ([`CacheConfig::faults`] lists all).
    pub fn new(
        config: &CacheConfig,
        places: &[VcpuPlace],
        memory: Box<dyn MemoryTimingModel>,
    ) -> Result<CacheModel, CacheConfigError> {
        if let Some(fault) = config.faults(places).into_iter().next() {
            return Err(fault);
        }
        let data = &config.levels[0];
        let line_shift = data.line.trailing_zeros();
        // With fewer slots than sets, the results are exact, too. An engine is expected to have 64 slots.
        let most = (12 - line_shift).min(6);
        let slots = |level: &LevelConfig| level.sets().trailing_zeros().min(most) as u8;
        let mut hierarchy = Hierarchy::new(config, places, memory);
        // The L0 filter cache may hold whole sets if a slot is a set and no other vCPU changes their order.
        let ways = |level: &LevelConfig, side: Side| {
            let whole = level.sets() == 1 << slots(level) && level.ways <= MOST_WAYS;
            let alone = !hierarchy.shares_first_level(side);
            if whole && alone && level.line == 64 {
                level.ways as u8
            } else {
                1
            }
        };
        let data_ways = ways(data, Side::Data);
        let instruction_ways = config
            .instruction
            .as_ref()
            .map_or(1, |level| ways(level, Side::Instruction));
        hierarchy.whole_sets = [data_ways > 1, instruction_ways > 1];
        let fetch_hit = config
            .instruction
            .map_or(0, |level| level.latency.fetch_hit);
        let hits = [data.latency.read_hit, data.latency.write_hit, fetch_hit];
        hierarchy.first_level = FirstLevel::new(hits, hierarchy.whole_sets);
        let has_fast_miss_path = data.latency.read_hit == 0 && fetch_hit == 0;
        Ok(CacheModel {
            caches: Caches::Narrow(hierarchy, V3::detect()),
            l0_geometry: L0Geometry {
                line_shift: line_shift as u8,
                data_slots: slots(data),
                instruction_slots: config.instruction.as_ref().map_or(most as u8, slots),
                data_ways,
                instruction_ways,
            },
            events: Events::new(config),
            fetches_cached: config.instruction.is_some(),
            has_fast_miss_path,
        })
    }

    /// Returns the contents of every cache, inner caches before the outer caches of the same vCPU.
    pub fn contents(&self) -> Vec<CacheContents> {
        match &self.caches {
            Caches::Narrow(caches, _) => caches.contents(),
            Caches::Wide(caches) => caches.contents(),
        }
    }

    /// Serves the first reference to a line whose tag needs wider words.
    #[cold]
    #[inline(never)]
    fn widen(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        if let Caches::Narrow(caches, _) = &mut self.caches {
            self.caches = Caches::Wide(caches.widen());
        }
        self.reference(hits, reference, updates)
    }

    fn first_level(&self) -> &FirstLevel {
        match &self.caches {
            Caches::Narrow(caches, _) => &caches.first_level,
            Caches::Wide(caches) => &caches.first_level,
        }
    }

    fn ledger(&self) -> &Ledger {
        match &self.caches {
            Caches::Narrow(caches, _) => &caches.ledger,
            Caches::Wide(caches) => &caches.ledger,
        }
    }

    fn row(&self, key: Key, event: usize, tally: Tally) -> Statistic {
        let kind = self.events.kind(event);
        let (vcpu, context, privilege) = key;
        // Events with memory vary in cycles; all others have a constant cost.
        let (latency, cycles) = if self.events.varies(event) {
            (tally.latency(), tally.cycles)
        } else {
            let latency = u64::from(kind.latency);
            (latency, tally.count * latency)
        };
        Statistic {
            vcpu,
            context,
            privilege,
            event: kind.name.clone(),
            term: kind.term,
            count: tally.count,
            latency,
            cycles,
        }
    }
}

impl MemoryModel for CacheModel {
    fn l0_geometry(&self) -> L0Geometry {
        self.l0_geometry
    }

    /// # Panics
    /// Panics if the reference names a vCPU for which the model was not built.
    #[inline]
    fn reference(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        let line = (reference.physical & PHYSICAL_MASK) >> self.l0_geometry.line_shift;
        match &mut self.caches {
            Caches::Narrow(caches, _) if line >= caches.line_limit => {
                self.widen(hits, reference, updates)
            }
            #[cfg(target_arch = "x86_64")]
            Caches::Narrow(caches, Some(v3)) => {
                // SAFETY: a `V3` exists only on a host with the instructions for which the function is compiled.
                unsafe { caches.reference_v3(*v3, hits, reference, line, updates) }
            }
            Caches::Narrow(caches, _) => caches.reference_baseline(hits, reference, line, updates),
            Caches::Wide(caches) => caches.reference_baseline(hits, reference, line, updates),
        }
    }

    #[inline]
    fn miss(&mut self, modified: &[u64], oldest: u64, reference: &MemRef) -> Option<Outcome> {
        let line = (reference.physical & PHYSICAL_MASK) >> self.l0_geometry.line_shift;
        match &mut self.caches {
            #[cfg(target_arch = "x86_64")]
            Caches::Narrow(caches, Some(v3))
                if self.has_fast_miss_path && line < caches.line_limit =>
            {
                // SAFETY: a `V3` exists only on a host with the instructions for which the function is compiled.
                unsafe { caches.miss_v3(*v3, modified, oldest, reference, line) }
            }
            _ => {
                self.modified(reference.vcpu, modified);
                None
            }
        }
    }

    fn export_state(&mut self, vcpu: u16) -> Option<StateExport> {
        match &mut self.caches {
            Caches::Narrow(caches, _)
                if self.has_fast_miss_path && caches.first_level.hits == [0; 3] =>
            {
                caches.export_state(vcpu)
            }
            _ => None,
        }
    }

    fn take_charges(&mut self) -> Charges {
        std::mem::take(match &mut self.caches {
            Caches::Narrow(caches, _) => &mut caches.ledger.charges,
            Caches::Wide(caches) => &mut caches.ledger.charges,
        })
    }

    fn modified(&mut self, vcpu: u16, lines: &[u64]) {
        match &mut self.caches {
            Caches::Narrow(caches, _) => caches.modified(Baseline, vcpu, lines),
            Caches::Wide(caches) => caches.modified(Baseline, vcpu, lines),
        }
    }

    fn reset_statistics(&mut self) {
        match &mut self.caches {
            Caches::Narrow(caches, _) => {
                caches.ledger.clear();
                caches.refresh_exports();
            }
            Caches::Wide(caches) => caches.ledger.clear(),
        }
    }

    fn statistics(&self, counted: &[(u16, Context, Privilege, Counters)]) -> Vec<Statistic> {
        let accounts = self.ledger().accounts();
        let mut references: BTreeMap<Key, [u64; 3]> =
            accounts.keys().map(|&key| (key, [0; 3])).collect();
        for (vcpu, context, privilege, counters) in counted {
            let sums = references.entry((*vcpu, *context, *privilege)).or_default();
            for (sum, count) in
                sums.iter_mut()
                    .zip([counters.loads, counters.stores, counters.fetches])
            {
                *sum += count;
            }
        }
        let events = &self.events;
        let mut statistics = Vec::new();
        for (key, references) in references {
            let tallies = accounts.get(&key).copied();
            let tally = |event: usize| tallies.map(|tallies| tallies[event]).unwrap_or_default();
            for (access, count) in [Access::Read, Access::Write, Access::Fetch]
                .into_iter()
                .zip(references)
            {
                let miss = tally(Events::at_level(0, LevelEvent::miss(access)));
                let count = count.saturating_sub(miss.count);
                if count == 0 || (access == Access::Fetch && !self.fetches_cached) {
                    continue;
                }
                let latency = u64::from(self.first_level().hits[access as usize]);
                let row = self.row(
                    key,
                    Events::at_level(0, LevelEvent::hit(access)),
                    Tally::default(),
                );
                statistics.push(Statistic {
                    count,
                    latency,
                    cycles: count * latency,
                    ..row
                });
            }
            for event in 0..events.len() {
                let tally = tally(event);
                if tally.count != 0 {
                    statistics.push(self.row(key, event, tally));
                }
            }
            for level in 1..events.levels() {
                let count = [Access::Read, Access::Write, Access::Fetch]
                    .map(|access| tally(Events::at_level(level, LevelEvent::miss(access))).count)
                    .iter()
                    .sum();
                if count != 0 {
                    let (vcpu, context, privilege) = key;
                    statistics.push(Statistic {
                        vcpu,
                        context,
                        privilege,
                        event: format!("L{}.miss", level + 1),
                        term: Term::None,
                        count,
                        latency: 0,
                        cycles: 0,
                    });
                }
            }
        }
        statistics
    }
}

impl<W: Word> Hierarchy<W> {
    /// Serves a reference as [`Hierarchy::reference`] does, compiled for instructions that every host has.
    #[inline(never)]
    fn reference_baseline(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        let outcome = self.reference(Baseline, hits, reference, line, updates);
        self.refresh_exports();
        outcome
    }

    /// Serves a reference as [`Hierarchy::reference`] does, compiled for AVX2, BMI1 and BMI2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn reference_v3(
        &mut self,
        v3: V3,
        hits: Hits<'_>,
        reference: &MemRef,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        let outcome = self.reference(v3, hits, reference, line, updates);
        self.refresh_exports();
        outcome
    }

    /// Serves a miss as [`MemoryModel::miss`] does, compiled for AVX2, BMI1 and BMI2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn miss_v3(
        &mut self,
        v3: V3,
        modified: &[u64],
        oldest: u64,
        reference: &MemRef,
        line: u64,
    ) -> Option<Outcome> {
        if !modified.is_empty() {
            self.modified(v3, reference.vcpu, modified);
        }
        let side = reference.access.side() as usize;
        let fast = self.fast_miss(v3, line, self.line(oldest), reference);
        self.refresh_exports();
        match fast {
            FastMiss::Filled(state, stall) => {
                Some(self.first_level.outcome(stall, state, side, Some(oldest)))
            }
            FastMiss::NotInL2 | FastMiss::SlowPath => None,
        }
    }

    /// Marks lines as modified that a vCPU has written by permission of its L0 filter cache.
    #[inline(always)]
    fn modified<I: Isa>(&mut self, isa: I, vcpu: u16, lines: &[u64]) {
        let first = self.vcpu_caches[usize::from(vcpu)].first[Side::Data as usize];
        for line in lines {
            self.modify(isa, first, self.line(*line));
        }
    }

    /// Serves one reference to `line`, which is below `line_limit`.
    #[inline(always)]
    fn reference<I: Isa>(
        &mut self,
        isa: I,
        hits: Hits<'_>,
        reference: &MemRef,
        line: u64,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        let access = reference.access;
        let side = access.side() as usize;
        if !hits.modified.is_empty() {
            self.modified(isa, reference.vcpu, hits.modified);
        }
        let first = self.vcpu_caches[usize::from(reference.vcpu)].first[side];
        if first == NONE {
            // There is no instruction cache.
            return Outcome::new(0, Permission::Read, None);
        }
        let oldest = hits.oldest.map(|oldest| self.line(oldest));
        let fast = match oldest {
            Some(oldest) => self.fast_miss(isa, line, oldest, reference),
            None => FastMiss::SlowPath,
        };
        if let FastMiss::Filled(state, stall) = fast {
            return self.first_level.outcome(stall, state, side, hits.oldest);
        }
        let node = self.nodes.get(first);
        let lookup = node.geometry.lookup(line);
        let mut replaced = None;
        // An L0 filter cache that holds the whole set has found that the line is not in the set.
        let way = match hits.oldest {
            Some(_) => None,
            None => self.tags.find(isa, &node.geometry, lookup),
        };
        debug_assert!(
            way.is_some() || self.tags.find(isa, &node.geometry, lookup).is_none(),
            "an L0 filter cache that keeps a whole set misses a line of it"
        );
        let (state, stall) = if let Some(way) = way {
            let state = if way == 0 {
                self.tags.state(lookup.start)
            } else {
                if node.several_vcpus {
                    self.revoke_most_recent(first, lookup, reference.vcpu, updates);
                }
                let geometry = &self.nodes.get(first).geometry;
                State::of(self.tags.touch(isa, geometry, lookup, way, 0))
            };
            let stall = u64::from(self.first_level.hits[access as usize]);
            self.ledger.charges.stall(StallTerm::Level1, stall);
            match (access, state) {
                (Access::Write, State::Shared | State::Forward) => {
                    self.begin_request(reference);
                    self.acquire_ownership(first, line, updates);
                    (State::Modified, stall + self.request.stall)
                }
                (Access::Write, State::Exclusive) => {
                    self.modify(isa, first, line);
                    (State::Modified, stall)
                }
                _ => (state, stall),
            }
        } else {
            self.begin_request(reference);
            let not_in_l2 = matches!(fast, FastMiss::NotInL2);
            let (state, last) =
                self.miss(isa, first, lookup, line, oldest, not_in_l2, access, updates);
            replaced = last.map(|line| line << self.line_shift);
            (state, self.request.stall)
        };
        self.first_level.outcome(stall, state, side, replaced)
    }

    /// Returns the number of the line at a physical address.
    #[inline(always)]
    fn line(&self, physical: u64) -> u64 {
        (physical & PHYSICAL_MASK) >> self.line_shift
    }
}
