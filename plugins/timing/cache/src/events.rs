//! Kinds of events: their index in the ledger, name, CPI term and cycles.

use nodescope_plugin_api::{Access, Source, StallTerm, Tally, Term};

use crate::config::{ByDistance, CacheConfig, CacheKind, LevelLatency};

/// Distance between the requester and the other cache of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distance {
    SameCore,
    OtherCore,
    OtherGroup,
    OtherSocket,
}

/// Number of kinds of [`Distance`].
const DISTANCES: usize = 4;

/// Event at one cache level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LevelEvent {
    ReadHit,
    WriteHit,
    FetchHit,
    ReadMiss,
    WriteMiss,
    FetchMiss,
    Writeback,
    Upgrade,
    Inclusion,
    /// A read that is the first access to a line that a prefetch brought.
    ReadPrefetchHit,
    WritePrefetchHit,
    FetchPrefetchHit,
    /// A prefetcher of the level brings a line.
    Prefetch,
    /// A line that a prefetch brought leaves untouched.
    PrefetchUnused,
    /// As [`LevelEvent::Prefetch`], at the first-level instruction cache.
    InstructionPrefetch,
    /// As [`LevelEvent::PrefetchUnused`], at the first-level instruction cache.
    InstructionPrefetchUnused,
    /// A store goes past the caches.
    NonTemporalStore,
}

/// Number of kinds of [`LevelEvent`].
const LEVEL_EVENTS: usize = 17;

impl LevelEvent {
    #[inline]
    pub(crate) fn hit(access: Access) -> LevelEvent {
        match access {
            Access::Read => LevelEvent::ReadHit,
            Access::Write => LevelEvent::WriteHit,
            Access::Fetch => LevelEvent::FetchHit,
        }
    }

    #[inline]
    pub(crate) fn prefetch_hit(access: Access) -> LevelEvent {
        match access {
            Access::Read => LevelEvent::ReadPrefetchHit,
            Access::Write => LevelEvent::WritePrefetchHit,
            Access::Fetch => LevelEvent::FetchPrefetchHit,
        }
    }

    /// Returns the event that a prefetcher of a cache of this kind brings a line.
    pub(crate) fn prefetch(kind: CacheKind) -> LevelEvent {
        match kind {
            CacheKind::Instruction => LevelEvent::InstructionPrefetch,
            CacheKind::Data | CacheKind::Unified => LevelEvent::Prefetch,
        }
    }

    /// Returns the event that a line leaves a cache of this kind, which no access has touched since a prefetch brought the line.
    pub(crate) fn prefetch_unused(kind: CacheKind) -> LevelEvent {
        match kind {
            CacheKind::Instruction => LevelEvent::InstructionPrefetchUnused,
            CacheKind::Data | CacheKind::Unified => LevelEvent::PrefetchUnused,
        }
    }

    #[inline]
    pub(crate) fn miss(access: Access) -> LevelEvent {
        match access {
            Access::Read => LevelEvent::ReadMiss,
            Access::Write => LevelEvent::WriteMiss,
            Access::Fetch => LevelEvent::FetchMiss,
        }
    }
}

/// Event between caches, or with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemEvent {
    From(Distance),
    FromModified(Distance),
    Snoop(Distance),
    Invalidate(Distance),
    Upgrade,
    /// A reference waits for the write of another vCPU.
    Wait,
    /// Other vCPUs take a line during a time slice, and the vCPU takes it back.
    Retake,
    Memory {
        traffic: Traffic,
        local: bool,
    },
}

/// Reason of a request to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    Fill,
    WriteBack,
    Prefetch,
    NonTemporalStore,
}

/// Number of kinds of [`SystemEvent`].
const SYSTEM_EVENTS: usize = MEMORY_EVENTS + 8;

/// Index of [`SystemEvent::Upgrade`].
const UPGRADE: usize = 4 * DISTANCES;

/// Indices of [`SystemEvent::Wait`] and [`SystemEvent::Retake`].
const WAIT: usize = UPGRADE + 1;
const RETAKE: usize = UPGRADE + 2;

/// Index of the first event with memory among the system events.
const MEMORY_EVENTS: usize = UPGRADE + 3;

impl SystemEvent {
    #[inline(always)]
    fn index(self) -> usize {
        match self {
            SystemEvent::From(distance) => distance as usize,
            SystemEvent::FromModified(distance) => DISTANCES + distance as usize,
            SystemEvent::Snoop(distance) => 2 * DISTANCES + distance as usize,
            SystemEvent::Invalidate(distance) => 3 * DISTANCES + distance as usize,
            SystemEvent::Upgrade => UPGRADE,
            SystemEvent::Wait => WAIT,
            SystemEvent::Retake => RETAKE,
            SystemEvent::Memory { traffic, local } => {
                MEMORY_EVENTS + 2 * traffic as usize + usize::from(!local)
            }
        }
    }
}

/// Kind of event that the model counts: its name, its CPI term and its cost.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) name: String,
    pub(crate) term: Term,
    /// Cycles of one event; 0 for events whose cycles vary.
    pub(crate) latency: u32,
}

/// Cost of a kind of event, and its charge to code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Cycles of one event; 0 for events whose cycles vary.
    pub(crate) latency: u32,
    pub(crate) term: StallTerm,
    /// Source of the answer, if another cache or memory answers a request by the event.
    pub(crate) source: Option<Source>,
}

/// Cycles of an access on its way through the levels.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathCost {
    pub(crate) cycles: u64,
    /// The cycles of the first, the second, and all further levels.
    pub(crate) by_level: [u64; 3],
}

impl PathCost {
    fn add(&mut self, level: usize, cycles: u64) {
        self.cycles += cycles;
        self.by_level[level.min(2)] += cycles;
    }

    /// Returns the costs of an access, by the number of levels that miss, and by whether the next level hits.
    fn of(access: Access, costs: &[Cost], levels: usize) -> Vec<[PathCost; 2]> {
        let latency = |level, event| u64::from(costs[Events::at_level(level, event)].latency);
        let mut misses = PathCost::default();
        (0..=levels)
            .map(|level| {
                let mut hit = misses;
                let before = misses;
                if level < levels {
                    hit.add(level, latency(level, LevelEvent::hit(access)));
                    misses.add(level, latency(level, LevelEvent::miss(access)));
                }
                [before, hit]
            })
            .collect()
    }
}

/// All kinds of events, by index. Level index 0 is the first-level data cache and, for fetches, the instruction cache.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    kinds: Vec<Kind>,
    costs: Vec<Cost>,
    /// Costs of reads, writes and fetches, as [`PathCost::of`] gives them.
    paths: [Vec<[PathCost; 2]>; 3],
    levels: usize,
}

impl Cost {
    fn new(index: usize, kind: &Kind, levels: usize) -> Cost {
        let between = index.checked_sub(levels * LEVEL_EVENTS);
        let source = match between {
            // The other cache supplies the line, clean or modified.
            Some(event) if event < 2 * DISTANCES => Some(Source::OtherCache),
            Some(MEMORY_EVENTS) => Some(Source::LocalMemory),
            Some(event) if event == MEMORY_EVENTS + 1 => Some(Source::RemoteMemory),
            _ => None,
        };
        let local = between.is_some_and(|event| (event - MEMORY_EVENTS.min(event)) % 2 == 0);
        let term = match kind.term {
            Term::Cache(level) => StallTerm::of_level(level),
            Term::Memory if local => StallTerm::LocalMemory,
            Term::Memory => StallTerm::RemoteMemory,
            Term::Model | Term::None => StallTerm::Unattributed,
        };
        Cost {
            latency: kind.latency,
            term,
            source,
        }
    }
}

impl Events {
    pub(crate) fn new(config: &CacheConfig) -> Events {
        let mut kinds = Vec::new();
        let levels = config.levels.len();
        for (index, level) in config.levels.iter().enumerate() {
            let LevelLatency {
                read_hit,
                write_hit,
                mut fetch_hit,
                read_miss,
                write_miss,
                mut fetch_miss,
                writeback,
                upgrade,
            } = level.latency;
            let number = index as u8 + 1;
            let (data, hit, miss, fetch_prefetch_hit) = if index == 0 {
                let latency = config
                    .instruction
                    .as_ref()
                    .map(|level| level.latency)
                    .unwrap_or_default();
                (fetch_hit, fetch_miss) = (latency.fetch_hit, latency.fetch_miss);
                (
                    "L1D".to_owned(),
                    "L1I.hit".to_owned(),
                    "L1I.miss".to_owned(),
                    "L1I.prefetch_hit".to_owned(),
                )
            } else {
                let name = format!("L{number}");
                let (hit, miss) = (format!("{name}.fetch_hit"), format!("{name}.fetch_miss"));
                let prefetch_hit = format!("{name}.fetch_prefetch_hit");
                (name, hit, miss, prefetch_hit)
            };
            let term = Term::Cache(number);
            // The order must be that of `LevelEvent`.
            for (name, term, latency) in [
                (format!("{data}.read_hit"), term, read_hit),
                (format!("{data}.write_hit"), term, write_hit),
                (hit, term, fetch_hit),
                (format!("{data}.read_miss"), term, read_miss),
                (format!("{data}.write_miss"), term, write_miss),
                (miss, term, fetch_miss),
                (format!("{data}.writeback"), term, writeback),
                (format!("{data}.upgrade"), term, upgrade),
                (format!("L{number}.inclusion_victim"), Term::None, 0),
                // Until prefetches take time, a line that a prefetch brought costs a hit.
                (format!("{data}.read_prefetch_hit"), term, read_hit),
                (format!("{data}.write_prefetch_hit"), term, write_hit),
                (fetch_prefetch_hit, term, fetch_hit),
                (format!("{data}.prefetch"), Term::None, 0),
                (format!("{data}.prefetch_unused"), Term::None, 0),
                // Only the first level has an instruction cache.
                (format!("L{number}I.prefetch"), Term::None, 0),
                (format!("L{number}I.prefetch_unused"), Term::None, 0),
                (format!("{data}.non_temporal_store"), Term::None, 0),
            ] {
                kinds.push(Kind {
                    name,
                    term,
                    latency,
                });
            }
        }
        // An event between caches belongs to the level at which the two caches have a common outer cache, or to the outermost level.
        let outermost = levels as u8;
        let core = config.levels[0].shared_by;
        let meeting = config
            .levels
            .iter()
            .position(|level| level.shared_by != core);
        let terms = [
            Term::Cache(outermost.min(2)),
            Term::Cache(meeting.map_or(outermost, |index| index as u8 + 1)),
            Term::Cache(outermost),
            Term::Cache(outermost),
        ];
        let coherence = &config.coherence;
        for (prefix, suffix, latency) in [
            ("from", "", coherence.from),
            ("from", "_modified", coherence.from_modified),
            ("snoop", "", coherence.snoop),
            ("invalidate", "", coherence.invalidate),
        ] {
            let ByDistance {
                same_core,
                other_core,
                other_group,
                other_socket,
            } = latency;
            for ((distance, latency), term) in [
                ("same_core", same_core),
                ("other_core", other_core),
                ("other_group", other_group),
                ("other_socket", other_socket),
            ]
            .into_iter()
            .zip(terms)
            {
                kinds.push(Kind {
                    name: format!("{prefix}_{distance}{suffix}"),
                    term,
                    latency,
                });
            }
        }
        kinds.push(Kind {
            name: "interconnect.upgrade".to_owned(),
            term: Term::Cache(outermost),
            latency: coherence.upgrade,
        });
        for name in ["contention.wait", "contention.retake"] {
            kinds.push(Kind {
                name: name.to_owned(),
                term: Term::Cache(outermost),
                latency: 0,
            });
        }
        for traffic in ["", "_writeback", "_prefetch", "_non_temporal"] {
            for place in ["local", "remote"] {
                kinds.push(Kind {
                    name: format!("memory.{place}{traffic}"),
                    term: Term::Memory,
                    latency: 0,
                });
            }
        }
        debug_assert_eq!(kinds.len(), levels * LEVEL_EVENTS + SYSTEM_EVENTS);
        let costs: Vec<Cost> = (kinds.iter().enumerate())
            .map(|(index, kind)| Cost::new(index, kind, levels))
            .collect();
        Events {
            paths: [Access::Read, Access::Write, Access::Fetch]
                .map(|access| PathCost::of(access, &costs, levels)),
            costs,
            kinds,
            levels,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(crate) fn levels(&self) -> usize {
        self.levels
    }

    /// Returns true if events of a kind differ in latency, as events with memory do.
    pub(crate) fn varies(&self, index: usize) -> bool {
        index >= self.levels * LEVEL_EVENTS + WAIT
    }

    /// Returns the index of an event at a level.
    #[inline]
    pub(crate) fn at_level(level: usize, event: LevelEvent) -> usize {
        level * LEVEL_EVENTS + event as usize
    }

    /// Returns the index of an event between caches or with memory.
    #[inline(always)]
    pub(crate) fn system(&self, event: SystemEvent) -> usize {
        self.levels * LEVEL_EVENTS + event.index()
    }

    /// Returns the cycles of an access that so many levels miss, and that the next level hits or does not.
    #[inline(always)]
    pub(crate) fn path(&self, access: Access, misses: usize, hit: bool) -> &PathCost {
        &self.paths[access as usize][misses][usize::from(hit)]
    }

    /// Completes an account's tallies: adds the misses of the levels that an access missed before its last level.
    pub(crate) fn complete(&self, tallies: &[Tally]) -> Vec<Tally> {
        let mut tallies = tallies.to_vec();
        for access in [Access::Read, Access::Write, Access::Fetch] {
            let mut further = 0;
            for level in (0..self.levels).rev() {
                let at = |event| Events::at_level(level, event);
                let miss = at(LevelEvent::miss(access));
                tallies[miss].count += further;
                tallies[miss].cycles += further * u64::from(self.costs[miss].latency);
                further = [
                    LevelEvent::miss(access),
                    LevelEvent::hit(access),
                    LevelEvent::prefetch_hit(access),
                ]
                .map(|event| tallies[at(event)].count)
                .iter()
                .sum();
            }
        }
        tallies
    }

    #[inline]
    pub(crate) fn kind(&self, index: usize) -> &Kind {
        &self.kinds[index]
    }

    #[inline(always)]
    pub(crate) fn cost(&self, index: usize) -> Cost {
        self.costs[index]
    }
}
