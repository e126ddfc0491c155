//! An engine reduced to what a cache model sees of it: it counts references, keeps the filter and answers from it.
#![allow(dead_code)]

pub mod machines;
pub mod plain;

use std::collections::BTreeMap;

use nodescope_plugin_api::{
    Access, Context, Counters, Key, MemRef, MemoryModel, MemoryTimingModel, Permission, Privilege,
    Side, Statistic, Term, VcpuPlace,
};
use nodescope_plugin_cache::{CacheConfig, CacheModel, FlatMemory, LevelConfig};

/// One step of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub vcpu: u16,
    pub access: Access,
    pub address: u64,
    pub context: u32,
    pub kernel: bool,
}

/// What the filter holds in one place.
type Slot = Option<(u64, Permission)>;

pub struct Engine {
    pub model: CacheModel,
    filter: bool,
    fetches_cached: bool,
    /// `[vcpu][side][slot]`: line address and permission.
    slots: Vec<[Vec<Slot>; 2]>,
    counters: BTreeMap<Key, Counters>,
    pub calls: u64,
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
        let geometry = model.filter();
        assert!(geometry.line_shift + geometry.data_slots <= 12);
        assert!(geometry.line_shift + geometry.instruction_slots <= 12);
        let slots = places
            .iter()
            .map(|_| {
                [
                    vec![None; 1 << geometry.data_slots],
                    vec![None; 1 << geometry.instruction_slots],
                ]
            })
            .collect();
        Engine {
            model,
            filter: true,
            fetches_cached: config.instruction.is_some(),
            slots,
            counters: BTreeMap::new(),
            calls: 0,
            stall: 0,
        }
    }

    pub fn unfiltered(mut self) -> Engine {
        self.filter = false;
        self
    }

    pub fn step(&mut self, step: Step) -> u64 {
        let geometry = self.model.filter();
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
        let slots = &mut self.slots[usize::from(step.vcpu)][step.access.side() as usize];
        let slot = (step.address >> geometry.line_shift) as usize % slots.len();
        if self.filter
            && slots[slot].is_some_and(|(held, permission)| held == line && permission >= needed)
        {
            return 0;
        }
        let mut updates = Vec::new();
        let outcome = self.model.reference(
            &MemRef {
                vcpu: step.vcpu,
                privilege,
                access: step.access,
                context: Context(step.context),
                physical: step.address,
                linear: step.address,
                size: 1,
                now: self.stall,
            },
            &mut updates,
        );
        for update in updates {
            let slots = &mut self.slots[usize::from(update.vcpu)][update.side as usize];
            let slot = (update.line >> geometry.line_shift) as usize % slots.len();
            if let Some((held, permission)) = &mut slots[slot]
                && *held == update.line
            {
                *permission = (*permission).min(update.permission);
            }
        }
        if outcome.filter != Permission::None {
            self.slots[usize::from(step.vcpu)][step.access.side() as usize][slot] =
                Some((line, outcome.filter));
        }
        self.calls += 1;
        self.stall += u64::from(outcome.stall);
        u64::from(outcome.stall)
    }

    pub fn go(&mut self, vcpu: u16, access: Access, address: u64) -> u64 {
        self.step(Step {
            vcpu,
            access,
            address,
            context: 1,
            kernel: false,
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
        self.stall = 0;
        self.model.reset_statistics();
    }

    /// Events of a kind over all keys.
    pub fn count(&self, event: &str) -> u64 {
        self.statistics()
            .iter()
            .filter(|row| row.event == event)
            .map(|row| row.count)
            .sum()
    }

    /// Every kind of event that occurred, with its count, without the informational ones.
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

    /// The equations: the terms add up to the cycles, and so does every row.
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
        assert_eq!(sums, references, "hits and misses against references");
    }
}

/// Expected counts, for comparison with [`Engine::counts`].
pub fn expect<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    counts
        .into_iter()
        .map(|(event, count)| (event.to_owned(), count))
        .collect()
}

/// Small caches: 4 sets x 2 ways, 4 sets x 4 ways, 12 sets x 4 ways a socket; every event has another price.
pub fn small() -> CacheConfig {
    let mut config = CacheConfig {
        instruction: Some(LevelConfig::new(512, 2)),
        levels: vec![
            LevelConfig::new(512, 2),
            LevelConfig::new(1024, 4),
            LevelConfig::new(3072, 4).shared(),
        ],
        coherence: Default::default(),
    };
    price(&mut config);
    config
}

/// Give every event a latency of its own; first-level hits stay free.
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
        group.other_socket = price();
    }
    coherence.upgrade = price();
}

/// The side's index agrees with the order used above.
const _: () = assert!(Side::Data as usize == 0 && Side::Instruction as usize == 1);
