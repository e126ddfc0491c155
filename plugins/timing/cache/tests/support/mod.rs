//! A minimal engine for tests of the cache model: it counts references, and answers hits from an L0 filter cache.
#![allow(dead_code)]

pub mod agreement;
pub mod invariants;
pub mod machines;
pub mod plain;
pub mod program;

use std::collections::BTreeMap;

use nodescope_plugin_api::{
    Access, Context, Counters, DirectMiss, DirectMisses, Hits, Key, MemRef, MemoryModel,
    MemoryTimingModel, Outcome, Permission, Prefetched, Privilege, Side, Site, Statistic, Term,
    VcpuPlace,
};
use nodescope_plugin_cache::{
    CacheConfig, CacheContents, CacheKind, CacheModel, FlatMemory, LevelConfig, NonTemporalStores,
};

/// Memory reference of a trace, at a physical byte address.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub vcpu: u16,
    pub access: Access,
    pub address: u64,
    pub context: u32,
    pub kernel: bool,
    /// True for a write with a non-temporal hint.
    pub non_temporal: bool,
    pub site: Site,
}

/// Slot of the L0 filter cache.
#[derive(Clone, Default)]
struct Slot {
    /// Lines and permissions, the most recently used first.
    lines: Vec<(u64, Permission)>,
}

impl Slot {
    /// Returns whether the L0 filter cache answers, and whether the line becomes modified by this hit, which the engine must report to the
    /// model.
    fn hit(&mut self, line: u64, needed: Permission) -> (bool, bool) {
        let found = |&(held, permission): &(u64, Permission)| {
            held == line && permission >= needed.min(Permission::Exclusive)
        };
        let Some(at) = self.lines.iter().position(found) else {
            return (false, false);
        };
        let becomes_modified = self.lines[at].1 < needed;
        if becomes_modified {
            self.lines[at].1 = needed;
        }
        if at > 0 {
            let line = self.lines.remove(at);
            self.lines.insert(0, line);
        }
        (true, becomes_modified)
    }

    /// Returns the least recently used line of a full set that does not have `line`.
    fn oldest(&self, line: u64, ways: usize) -> Option<u64> {
        let full = ways > 1 && self.lines.len() == ways;
        let absent = self.lines.iter().all(|&(held, _)| held != line);
        let (oldest, _) = self.lines.last()?;
        (full && absent).then_some(*oldest)
    }

    fn lower_permission(&mut self, line: u64, permission: Permission) {
        for (held, allowed) in &mut self.lines {
            if *held == line {
                *allowed = permission.min(*allowed);
            }
        }
        self.lines
            .retain(|&(_, permission)| permission != Permission::None);
    }

    fn fill(&mut self, line: u64, outcome: &Outcome, ways: usize) {
        let gone = |held: u64| held == line || Some(held) == outcome.replaced();
        self.lines.retain(|&(held, _)| !gone(held));
        if ways == 1 {
            self.lines.clear();
        }
        if outcome.permission() != Permission::None {
            self.lines.insert(0, (line, outcome.permission()));
        }
        assert!(self.lines.len() <= ways, "a line that left was not named");
    }
}

pub struct Engine {
    pub model: Box<CacheModel>,
    l0_filter: bool,
    fetches_cached: bool,
    /// True if non-temporal stores go past the caches.
    bypasses: bool,
    /// Number of stores that went past the caches.
    bypassed: u64,
    places: Vec<VcpuPlace>,
    /// `[vcpu][side][slot]`: line addresses and permissions.
    slots: Vec<[Vec<Slot>; 2]>,
    /// Lines that became modified but are not yet reported to the model, each with the vCPU that wrote it.
    modified: Vec<(u16, u64)>,
    counters: BTreeMap<Key, Counters>,
    pub calls: u64,
    /// Function for misses of full sets, as generated code calls it; `None` where all references go to [`MemoryModel::reference`].
    direct: Option<DirectMisses>,
    pub stall: u64,
}

impl Engine {
    pub fn new(config: &CacheConfig, places: &[VcpuPlace]) -> Engine {
        Engine::with_memory(config, places, Box::new(FlatMemory::default()))
    }

    pub fn with_memory(
        config: &CacheConfig,
        places: &[VcpuPlace],
        memory: Box<dyn MemoryTimingModel>,
    ) -> Engine {
        let model = CacheModel::new(config, places, memory).expect("a valid description");
        let model = Box::new(model);
        let geometry = model.l0_geometry();
        assert!(geometry.line_shift + geometry.data_slots <= 12);
        assert!(geometry.line_shift + geometry.instruction_slots <= 12);
        let slots = places
            .iter()
            .map(|_| {
                [
                    vec![Slot::default(); 1 << geometry.data_slots],
                    vec![Slot::default(); 1 << geometry.instruction_slots],
                ]
            })
            .collect();
        Engine {
            model,
            l0_filter: true,
            fetches_cached: config.instruction.is_some(),
            bypasses: config.non_temporal_stores == NonTemporalStores::Bypass,
            bypassed: 0,
            places: places.to_vec(),
            slots,
            modified: Vec::new(),
            counters: BTreeMap::new(),
            calls: 0,
            direct: None,
            stall: 0,
        }
    }

    pub fn without_l0_filter(mut self) -> Engine {
        self.l0_filter = false;
        self
    }

    /// Returns this engine, which from now on reports misses of full sets as generated code does.
    pub fn with_direct_misses(mut self) -> Engine {
        self.direct = Some(
            self.model
                .direct_misses()
                .expect("the model has the function"),
        );
        self
    }

    /// Returns the lines that prefetchers have brought because of the last reference that they saw.
    pub fn take_prefetched(&mut self) -> Vec<Prefetched> {
        let mut prefetched = Vec::new();
        self.model.take_prefetched(&mut prefetched);
        prefetched
    }

    pub fn step(&mut self, step: Step) -> u64 {
        let geometry = self.model.l0_geometry();
        let privilege = if step.kernel {
            Privilege::Kernel
        } else {
            Privilege::User
        };
        let key = (step.vcpu, Context(step.context), privilege);
        let counters = self.counters.entry(key).or_default();
        let needed = match step.access {
            Access::Read => {
                counters.loads += 1;
                Permission::Read
            }
            Access::Write => {
                counters.stores += 1;
                Permission::ReadWrite
            }
            Access::Fetch => {
                counters.fetches += 1;
                Permission::Read
            }
        };
        counters.instructions += 1;
        let line = step.address >> geometry.line_shift << geometry.line_shift;
        let side = step.access.side();
        let slots = &mut self.slots[usize::from(step.vcpu)][side as usize];
        let slot = (step.address >> geometry.line_shift) as usize % slots.len();
        let bypass = self.bypasses && step.non_temporal && step.access == Access::Write;
        self.bypassed += u64::from(bypass);
        if self.l0_filter {
            let (hit, becomes_modified) = slots[slot].hit(line, needed);
            if becomes_modified {
                self.modified.push((step.vcpu, line));
            }
            if hit {
                return 0;
            }
        }
        let ways = usize::from(match side {
            Side::Data => geometry.data_ways,
            Side::Instruction => geometry.instruction_ways,
        });
        let hits = Hits {
            oldest: slots[slot].oldest(line, ways).filter(|_| self.l0_filter),
            modified: &[],
        };
        self.report_modified();
        let reference = MemRef {
            vcpu: step.vcpu,
            privilege,
            access: step.access,
            context: Context(step.context),
            physical: step.address,
            linear: step.address,
            size: 1,
            now: self.stall,
            site: step.site,
            non_temporal: step.non_temporal,
            locked: false,
            large_page: false,
        };
        let mut updates = Vec::new();
        let outcome = match (hits.oldest, self.direct) {
            (Some(oldest), Some(direct)) => {
                let miss = DirectMiss {
                    reference,
                    oldest,
                    modified: hits.modified.as_ptr(),
                    modified_count: hits.modified.len() as u64,
                    charges: std::ptr::null_mut(),
                };
                // SAFETY: the model is boxed, and none of its functions runs.
                let direct = unsafe { direct.accept() };
                // SAFETY: as above, and the pointers of the miss are valid.
                let outcome = unsafe { direct.function()(direct.model(), &miss) };
                let refused = outcome.permission() == Permission::None;
                let replaced = outcome.replaced() == Some(oldest);
                assert!(outcome.has_updates() || refused || replaced);
                self.model.take_updates(&mut updates);
                outcome
            }
            _ => self.model.reference(hits, &reference, &mut updates),
        };
        for update in updates {
            let slots = &mut self.slots[usize::from(update.vcpu)][update.side as usize];
            let slot = (update.line >> geometry.line_shift) as usize % slots.len();
            slots[slot].lower_permission(update.line, update.permission);
        }
        self.slots[usize::from(step.vcpu)][side as usize][slot].fill(line, &outcome, ways);
        self.calls += 1;
        self.stall += u64::from(outcome.stall());
        u64::from(outcome.stall())
    }

    /// Reports modified lines to the model in the order of the writes, even if several vCPUs wrote.
    fn report_modified(&mut self) {
        for (vcpu, line) in std::mem::take(&mut self.modified) {
            self.model.modified(vcpu, &[line]);
        }
    }

    /// Returns the contents of every cache, each set in LRU order. If the L0 filter cache keeps whole sets, the first level's order comes
    /// from the L0 filter cache, since the model does not know the hits there.
    pub fn contents(&mut self) -> Vec<CacheContents> {
        self.report_modified();
        let mut contents = self.model.contents();
        let geometry = self.model.l0_geometry();
        for cache in contents.iter_mut().filter(|cache| cache.level == 1) {
            let (side, ways) = match cache.kind {
                CacheKind::Instruction => (Side::Instruction, geometry.instruction_ways),
                _ => (Side::Data, geometry.data_ways),
            };
            let mut inside = (0..self.places.len()).filter(|&vcpu| {
                let place = &self.places[vcpu];
                place.socket == cache.socket && cache.core.is_none_or(|core| core == place.core)
            });
            if !self.l0_filter || ways == 1 {
                continue;
            }
            let vcpu = inside.next().expect("whole sets are one vCPU's alone");
            assert_eq!(inside.next(), None, "whole sets are one vCPU's alone");
            for (set, lines) in &mut cache.sets {
                let kept = &self.slots[vcpu][side as usize][*set as usize].lines;
                let position = |line: u64| kept.iter().position(|&(held, _)| held == line);
                if !kept.is_empty() {
                    lines.sort_by_key(|&(line, _)| {
                        position(line).expect("the L0 filter cache keeps it")
                    });
                    assert_eq!(
                        lines.len(),
                        kept.len(),
                        "the L0 filter cache has a line that left"
                    );
                }
            }
        }
        contents
    }

    pub fn go(&mut self, vcpu: u16, access: Access, address: u64) -> u64 {
        self.step(Step {
            vcpu,
            access,
            address,
            context: 1,
            kernel: false,
            non_temporal: false,
            site: Site::default(),
        })
    }

    pub fn read(&mut self, vcpu: u16, address: u64) -> u64 {
        self.go(vcpu, Access::Read, address)
    }

    pub fn write(&mut self, vcpu: u16, address: u64) -> u64 {
        self.go(vcpu, Access::Write, address)
    }

    pub fn fetch(&mut self, vcpu: u16, address: u64) -> u64 {
        self.go(vcpu, Access::Fetch, address)
    }

    pub fn counted(&self) -> Vec<(u16, Context, Privilege, Counters)> {
        self.counters
            .iter()
            .map(|(&(vcpu, context, privilege), counters)| (vcpu, context, privilege, *counters))
            .collect()
    }

    pub fn statistics(&self) -> Vec<Statistic> {
        self.model.statistics(&self.counted())
    }

    pub fn reset(&mut self) {
        self.counters.clear();
        self.bypassed = 0;
        self.stall = 0;
        self.model.reset_statistics();
    }

    /// Returns the number of events of a kind, over all vCPUs, contexts and privileges.
    pub fn count(&self, event: &str) -> u64 {
        self.statistics()
            .iter()
            .filter(|row| row.event == event)
            .map(|row| row.count)
            .sum()
    }

    /// Returns the count of every kind of event that occurred, without informational kinds (`Term::None`).
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for row in self
            .statistics()
            .into_iter()
            .filter(|row| row.term != Term::None)
        {
            *counts.entry(row.event).or_insert(0) += row.count;
        }
        counts
    }

    /// Checks that the cycles of all rows add up to the stalls, that each row's cycles are count times latency, and that hits and misses
    /// add up to the references.
    pub fn check_equations(&self) {
        let statistics = self.statistics();
        let cycles: u64 = statistics.iter().map(|row| row.cycles).sum();
        assert_eq!(cycles, self.stall, "terms against modelled cycles");
        for row in &statistics {
            assert!(row.count > 0, "{row:?}");
            if row.latency != 0 {
                assert_eq!(row.cycles, row.count * row.latency, "{row:?}");
            }
            if row.term == Term::None {
                assert_eq!(row.cycles, 0, "{row:?}");
            }
        }
        let sums: u64 = [
            "L1D.read_hit",
            "L1D.write_hit",
            "L1I.hit",
            "L1D.read_prefetch_hit",
            "L1D.write_prefetch_hit",
            "L1I.prefetch_hit",
            "L1D.read_miss",
            "L1D.write_miss",
            "L1I.miss",
        ]
        .map(|event| self.count(event))
        .iter()
        .sum();
        let references: u64 = self
            .counters
            .values()
            .map(|c| c.loads + c.stores + if self.fetches_cached { c.fetches } else { 0 })
            .sum();
        assert_eq!(
            sums + self.bypassed,
            references,
            "hits, misses and stores past the caches against references"
        );
    }
}

/// Returns expected counts, for comparison with [`Engine::counts`].
pub fn expect<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    counts
        .into_iter()
        .map(|(event, count)| (event.to_owned(), count))
        .collect()
}

/// Returns small caches: 4 sets x 2 ways, 4 sets x 4 ways, and 12 sets x 4 ways for each socket. Every event but a first-level hit has a
/// latency of its own.
pub fn small() -> CacheConfig {
    let mut config = CacheConfig {
        instruction: Some(LevelConfig::new(512, 2)),
        levels: vec![
            LevelConfig::new(512, 2),
            LevelConfig::new(1024, 4),
            LevelConfig::new(3072, 4).shared(),
        ],
        coherence: Default::default(),
        non_temporal_stores: Default::default(),
    };
    price(&mut config);
    config
}

/// Sets a latency of its own for every event; first-level hits stay free.
pub fn price(config: &mut CacheConfig) {
    let mut next = 1;
    let mut price = || {
        next = next * 3 % 10_007;
        next
    };
    for level in config.levels.iter_mut().chain(&mut config.instruction) {
        let latency = &mut level.latency;
        latency.read_miss = price();
        latency.write_miss = price();
        latency.fetch_miss = price();
        latency.writeback = price();
        latency.upgrade = price();
    }
    for level in config.levels.iter_mut().skip(1) {
        level.latency.read_hit = price();
        level.latency.write_hit = price();
        level.latency.fetch_hit = price();
    }
    let coherence = &mut config.coherence;
    for group in [
        &mut coherence.from,
        &mut coherence.from_modified,
        &mut coherence.snoop,
        &mut coherence.invalidate,
    ] {
        group.same_core = price();
        group.other_core = price();
        group.other_group = price();
        group.other_socket = price();
    }
    coherence.upgrade = price();
}

/// Check that the numbers of the sides are the side indices of `Engine::slots`.
const _: () = assert!(Side::Data as usize == 0 && Side::Instruction as usize == 1);
