//! A real cache model for lockstep tests, instead of the toy model. Its caches are so small that lines are evicted all the time. The
//! translator's direct misses must leave the same lines, orders, counters and clocks as the model's functions, which the interpreter calls.
//! An L0 filter cache must not change the results either: in some runs the interpreter has none, and every reference is reported to its
//! model.

use nodescope_plugin_api::{
    Access, Charges, Context, Counters, DirectMisses, Hits, L0Geometry, L0Update, MemRef,
    MemoryModel, MemoryTimingModel, Outcome, Permission, Privilege, STALL_TERMS, Site, StallTerm,
    Statistic, Term, VcpuPlace,
};
use nodescope_plugin_cache::{
    CacheConfig, CacheModel, FlatMemory, Keep, LevelConfig, LevelLatency,
};
use nodescope_plugin_numa::{Numa, NumaConfig};

use super::guest::{LARGE, RAM, USED, VCPUS, WINDOW_PHYSICAL};
use crate::random::Random;

/// A model, and its pending changes to L0 filter caches of vCPUs that do not run.
pub struct Caches {
    /// The model, boxed so that its address stays valid for direct misses.
    model: Box<CacheModel>,
    /// True if the L0 filter cache must not answer any reference, so that the model gets all references.
    asks_always: bool,
    /// First guest-physical address of the references of the extra vCPU ([`Caches::intrude`]).
    intruded: u64,
    updates: [Vec<L0Update>; VCPUS as usize],
}

/// Parameters of the caches and of the memory behind them.
#[derive(Clone, Debug)]
pub struct Description {
    config: CacheConfig,
    places: Vec<VcpuPlace>,
    /// Main memory; None: one latency for all addresses.
    memory: Option<NumaConfig>,
    /// First guest-physical address of the references of the extra vCPU ([`Caches::intrude`]).
    intruded: u64,
}

impl Description {
    /// Makes random parameters for a guest with or without large pages. Beside the guest's vCPUs there is an extra vCPU, which only makes
    /// references ([`Caches::intrude`]).
    pub fn random(r: &mut Random, large: bool) -> Description {
        let mut level = |sets: &[u64], ways: &[u32]| {
            let ways = r.pick(ways);
            LevelConfig::new(64 * r.pick(sets) * u64::from(ways), ways)
        };
        let data = level(&[2, 2, 4, 8, 64], &[2, 3, 4, 8, 12, 16]);
        let instruction = level(&[4, 16], &[2, 4]);
        let mut second = level(&[2, 8, 16, 64], &[2, 3, 8, 16, 20]);
        let mut third = level(&[2, 16, 64, 3, 12, 40], &[4, 10, 16, 20, 24]).shared();
        // Each level is at least as large as the levels inside.
        while second.size < data.size.max(instruction.size) {
            second.size *= 2;
        }
        while third.size < second.size {
            third.size *= 2;
        }
        let mut config = CacheConfig {
            levels: vec![data, second, third],
            instruction: Some(instruction),
            ..CacheConfig::xeon_e5_2690()
        };
        for level in config.levels.iter_mut().chain(&mut config.instruction) {
            let latency = &mut level.latency;
            for cycles in [
                &mut latency.read_miss,
                &mut latency.write_miss,
                &mut latency.fetch_miss,
                &mut latency.writeback,
                &mut latency.upgrade,
            ] {
                *cycles = r.below(40) as u32;
            }
        }
        for level in &mut config.levels[1..] {
            level.latency.read_hit = r.below(20) as u32;
            level.latency.write_hit = r.below(20) as u32;
        }
        // These choices draw no number, so that seeds keep their programs.
        let LevelLatency {
            read_hit,
            write_hit,
            ..
        } = config.levels[1].latency;
        config.coherence.from_modified.other_core = read_hit;
        config.coherence.from_modified.other_socket = write_hit;
        config.coherence.keep = (read_hit % 4 != 0).then_some(Keep {
            locked: 5 * read_hit,
            stores: 5 * write_hit,
        });
        let vcpus = VCPUS as u16 + 1;
        let places = match r.below(3) {
            // Each vCPU is on a socket of its own, all are cores of one socket, or two sockets have two cores each.
            0 => VcpuPlace::grid(vcpus, 1, 1),
            1 => VcpuPlace::grid(1, vcpus, 1),
            _ => VcpuPlace::grid(2, 2, 1),
        };
        // The homes' ranges divide the guest's memory, so that references have different homes.
        let sockets = places.iter().map(|place| place.socket).max().unwrap_or(0) + 1;
        let all = if large { RAM } else { USED as u64 };
        let bytes = all / u64::from(sockets) / 4096 * 4096;
        Description {
            config,
            places,
            memory: r
                .chance(800)
                .then(|| NumaConfig::contiguous(sockets, bytes)),
            // With large pages the range contains the guest's data at `LARGE`.
            intruded: if large { LARGE - WINDOW_PHYSICAL } else { 0 },
        }
    }
}

impl Caches {
    /// Makes empty caches. With `asks_always` the L0 filter cache answers no reference.
    ///
    /// # Panics
    /// If the description is not valid.
    pub fn new(description: &Description, asks_always: bool) -> Caches {
        let Description {
            config,
            places,
            memory,
            intruded,
        } = description;
        let memory: Box<dyn MemoryTimingModel> = match memory {
            Some(memory) => Box::new(Numa::new(memory).expect("a valid memory")),
            None => Box::new(FlatMemory::default()),
        };
        Caches {
            model: Box::new(CacheModel::new(config, places, memory).expect("a valid hierarchy")),
            asks_always,
            intruded: *intruded,
            updates: Default::default(),
        }
    }

    /// Returns the geometry of the L0 filter cache ([`MemoryModel::l0_geometry`]); one line for each set with `asks_always`.
    pub fn l0_geometry(&self) -> L0Geometry {
        let geometry = self.model.l0_geometry();
        match self.asks_always {
            true => L0Geometry {
                data_ways: 1,
                instruction_ways: 1,
                ..geometry
            },
            false => geometry,
        }
    }

    /// Takes the changes to apply to the L0 filter cache of a vCPU before it runs.
    pub fn take_kept_updates(&mut self, vcpu: usize) -> Vec<L0Update> {
        std::mem::take(&mut self.updates[vcpu])
    }

    fn keep(&mut self, running: u16, updates: &mut Vec<L0Update>) {
        updates.retain(|update| {
            let own = update.vcpu == running;
            if !own && let Some(updates) = self.updates.get_mut(usize::from(update.vcpu)) {
                updates.push(*update);
            }
            own
        });
    }

    /// Makes random references to the guest's memory by the extra vCPU.
    pub fn intrude(&mut self, r: &mut Random) {
        for _ in 0..r.below(40) {
            let reference = MemRef {
                vcpu: VCPUS as u16,
                privilege: Privilege::User,
                access: r.pick(&[Access::Read, Access::Read, Access::Write, Access::Fetch]),
                context: Context(0),
                physical: self.intruded + (r.below(USED as u64) & !7),
                linear: 0,
                size: 8,
                now: 0,
                site: Site::default(),
                non_temporal: false,
                locked: false,
                large_page: false,
            };
            let mut updates = Vec::new();
            self.model
                .reference(Hits::default(), &reference, &mut updates);
            self.keep(reference.vcpu, &mut updates);
        }
        // Drops the charges, since no code of the guest made these references.
        self.model.take_charges();
    }

    /// Returns the stall cycles of the guest's own vCPUs by [`StallTerm`].
    pub fn cycles_by_term(
        &self,
        counted: &[(u16, Context, Privilege, Counters)],
    ) -> [u64; STALL_TERMS] {
        let mut sums = [0; STALL_TERMS];
        let statistics = self.model.statistics(counted);
        for statistic in statistics.iter().filter(|s| u64::from(s.vcpu) < VCPUS) {
            let term = match statistic.term {
                Term::Cache(level) => StallTerm::of_level(level),
                Term::Memory if statistic.event.starts_with("memory.local") => {
                    StallTerm::LocalMemory
                }
                Term::Memory => StallTerm::RemoteMemory,
                Term::Model | Term::None => StallTerm::Unattributed,
            };
            sums[term as usize] += statistic.cycles;
        }
        sums
    }

    /// Takes the model's charges ([`MemoryModel::take_charges`]).
    pub fn take_charges(&mut self) -> Charges {
        self.model.take_charges()
    }

    /// Accounts for a reference, and returns the answer to [`nodescope_engine::Platform::reference`].
    pub fn reference(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        let outcome = self.model.reference(hits, reference, updates);
        self.keep(reference.vcpu, updates);
        if self.asks_always {
            return Outcome::new(outcome.stall(), Permission::None, None);
        }
        outcome
    }

    /// Returns the model's function for direct misses ([`MemoryModel::direct_misses`]).
    pub fn direct_misses(&mut self) -> Option<DirectMisses> {
        assert!(!self.asks_always, "nothing is known of a set");
        self.model.direct_misses()
    }

    /// Takes the updates of direct misses, as [`nodescope_engine::Platform::take_updates`] does.
    pub fn take_updates(&mut self, running: u16, updates: &mut Vec<L0Update>) {
        self.model.take_updates(updates);
        self.keep(running, updates);
    }

    /// Passes modified lines to [`MemoryModel::modified`].
    pub fn modified(&mut self, vcpu: u16, lines: &[u64]) {
        self.model.modified(vcpu, lines);
    }

    /// Returns the differences of the interpreter's model (`self`) and the translator's after equal references: all different counters, and
    /// the first different set of each cache.
    pub fn differences(&self, other: &Caches) -> Vec<String> {
        let (a, b) = (self.model.statistics(&[]), other.model.statistics(&[]));
        let lacks = |side, rows: &[Statistic], others: &[Statistic]| {
            let rows = rows.iter().filter(|row| !others.contains(row));
            let text = rows.map(|row| {
                format!(
                    "{side}: vCPU {} {:?} {:?} {} {} {}",
                    row.vcpu, row.context, row.privilege, row.event, row.count, row.cycles
                )
            });
            text.collect::<Vec<_>>()
        };
        let mut found = lacks("interpreted", &a, &b);
        found.extend(lacks("translated", &b, &a));
        let contents = |caches: &Caches| {
            let mut contents = caches.model.contents();
            for cache in contents.iter_mut().filter(|cache| cache.level == 1) {
                // The order of lines in a first-level set is not compared, since the L0 filter cache may keep it.
                for (_, lines) in &mut cache.sets {
                    lines.sort();
                }
            }
            contents
        };
        let caches = contents(self).into_iter().zip(contents(other));
        for (a, b) in caches.filter(|(a, b)| a != b) {
            let sets = a.sets.iter().zip(&b.sets).find(|(a, b)| a != b);
            found.push(format!(
                "level {} {:?} of socket {}: {sets:x?}",
                a.level, a.kind, a.socket
            ));
        }
        found
    }
}
