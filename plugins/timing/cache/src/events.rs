//! Kinds of events: their index in the ledger, name, CPI term and cycles.

use nodescope_plugin_api::{Access, Charges, Source, StallTerm, Term};

use crate::{ByDistance, CacheConfig, LevelLatency, Sharing};

/// Distance between the requester and the other cache of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distance {
    SameCore,
    OtherCore,
    OtherSocket,
}

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
}

/// Number of kinds of [`LevelEvent`].
pub(crate) const LEVEL_EVENTS: usize = 9;

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
    Memory { local: bool, write_back: bool },
}

/// Number of kinds of [`SystemEvent`].
pub(crate) const SYSTEM_EVENTS: usize = 17;

impl SystemEvent {
    #[inline(always)]
    fn index(self) -> usize {
        match self {
            SystemEvent::From(distance) => distance as usize,
            SystemEvent::FromModified(distance) => 3 + distance as usize,
            SystemEvent::Snoop(distance) => 6 + distance as usize,
            SystemEvent::Invalidate(distance) => 9 + distance as usize,
            SystemEvent::Upgrade => 12,
            SystemEvent::Memory { local, write_back } => {
                13 + usize::from(!local) + 2 * usize::from(write_back)
            }
        }
    }
}

/// Kind of event that the model counts: its name, its CPI term and its cost.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) name: String,
    pub(crate) term: Term,
    /// Cycles of one event; 0 for events with memory, whose cycles vary.
    pub(crate) latency: u32,
}

/// Charge of a kind of event to code, for attribution.
#[derive(Clone, Copy, Debug)]
struct EventCharge {
    term: StallTerm,
    /// Source of the answer; `None` if the event does not answer a request.
    source: Option<Source>,
}

/// All kinds of events, by index. Level index 0 is the first-level data cache and, for fetches, the instruction cache.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    kinds: Vec<Kind>,
    /// Latency of each kind, by index.
    latencies: Vec<u32>,
    /// Charge of each kind for code attribution, by index.
    charges: Vec<EventCharge>,
    levels: usize,
    /// Sums of latencies, for the fast miss paths.
    pub(crate) fast_paths: FastPathCosts,
}

/// Cycles of the fast miss paths ([`crate::l2_hit`], [`crate::l2_miss`]). Where there is no other index, by access: read, write, fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastPathCosts {
    /// Cycles of a miss of the first level and a hit of the second level.
    pub(crate) second: [u64; 3],
    /// Cycles of misses of the first two levels and a hit of the third level.
    pub(crate) third: [u64; 3],
    /// Cycles of misses of all three levels, without the memory's cycles.
    pub(crate) memory: [u64; 3],
    /// Cycles of the write-back of a modified line that leaves a level, by level, without the memory's cycles.
    pub(crate) write_back: [u64; 3],
    /// Cycles of `second`, `third` and `memory`, split by the level to which they are charged. Indices: path (these three), access,
    /// level.
    pub(crate) by_level: [[[u64; 3]; 3]; 3],
}

impl FastPathCosts {
    fn new(latencies: &[u32], levels: usize) -> FastPathCosts {
        let latency = |level: usize, event| match level < levels {
            true => u64::from(latencies[Events::at_level(level, event)]),
            false => 0,
        };
        let accesses = [Access::Read, Access::Write, Access::Fetch];
        let miss = |levels, access| {
            (0..levels)
                .map(|level| latency(level, LevelEvent::miss(access)))
                .sum::<u64>()
        };
        let hit = |level, access| miss(level, access) + latency(level, LevelEvent::hit(access));
        let by_level = |path: usize, access| {
            [0, 1, 2].map(|level| match (level < path, level == path && path < 3) {
                (true, _) => latency(level, LevelEvent::miss(access)),
                (_, true) => latency(level, LevelEvent::hit(access)),
                _ => 0,
            })
        };
        FastPathCosts {
            by_level: [1, 2, 3].map(|path| accesses.map(|access| by_level(path, access))),
            second: accesses.map(|access| hit(1, access)),
            third: accesses.map(|access| hit(2, access)),
            memory: accesses.map(|access| miss(3, access)),
            write_back: [0, 1, 2].map(|level| latency(level, LevelEvent::Writeback)),
        }
    }
}

impl EventCharge {
    fn new(index: usize, term: Term, levels: usize) -> EventCharge {
        let between = index.checked_sub(levels * LEVEL_EVENTS);
        let is_hit = |event: usize| {
            [
                LevelEvent::ReadHit,
                LevelEvent::WriteHit,
                LevelEvent::FetchHit,
            ]
            .iter()
            .any(|hit| *hit as usize == event)
        };
        let source = match between {
            None if is_hit(index % LEVEL_EVENTS) => Source::of_level(index / LEVEL_EVENTS + 1),
            // The other cache supplies the line, clean or modified.
            Some(0..6) => Some(Source::OtherCache),
            Some(13) => Some(Source::LocalMemory),
            Some(14) => Some(Source::RemoteMemory),
            _ => None,
        };
        let term = match (term, between) {
            (Term::Cache(level), _) => StallTerm::of_level(level),
            (Term::Memory, Some(13 | 15)) => StallTerm::LocalMemory,
            (Term::Memory, _) => StallTerm::RemoteMemory,
            (Term::None, _) => StallTerm::Unattributed,
        };
        EventCharge { term, source }
    }
}

impl FastPathCosts {
    /// Charges a fill from the level with the index `path` (1 or 2), or from memory (3) without the memory's cycles.
    #[inline(always)]
    pub(crate) fn charge(&self, charges: &mut Charges, path: usize, access: Access) {
        let levels = self.by_level[path - 1][access as usize];
        for (term, cycles) in [StallTerm::Level1, StallTerm::Level2, StallTerm::Level3]
            .into_iter()
            .zip(levels)
        {
            charges.stall(term, cycles);
        }
        if let Some(source) = Source::of_level(path + 1)
            && path < 3
        {
            charges.answer(source);
        }
    }

    /// Charges the write-back of a modified line that leaves the level with this index.
    #[inline(always)]
    pub(crate) fn charge_write_back(&self, charges: &mut Charges, level: usize) {
        charges.stall(StallTerm::of_level(level as u8 + 1), self.write_back[level]);
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
            let (data, hit, miss) = if index == 0 {
                let latency = config
                    .instruction
                    .map(|level| level.latency)
                    .unwrap_or_default();
                (fetch_hit, fetch_miss) = (latency.fetch_hit, latency.fetch_miss);
                (
                    "L1D".to_owned(),
                    "L1I.hit".to_owned(),
                    "L1I.miss".to_owned(),
                )
            } else {
                let name = format!("L{number}");
                let (hit, miss) = (format!("{name}.fetch_hit"), format!("{name}.fetch_miss"));
                (name, hit, miss)
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
                other_socket,
            } = latency;
            for ((distance, latency), term) in [
                ("same_core", same_core),
                ("other_core", other_core),
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
        for name in ["local", "remote", "local_writeback", "remote_writeback"] {
            kinds.push(Kind {
                name: format!("memory.{name}"),
                term: Term::Memory,
                latency: 0,
            });
        }
        debug_assert_eq!(kinds.len(), levels * LEVEL_EVENTS + SYSTEM_EVENTS);
        debug_assert!(matches!(core, Sharing::Core) || meeting.is_none());
        let latencies: Vec<u32> = kinds.iter().map(|kind| kind.latency).collect();
        let charges = (0..kinds.len())
            .map(|index| EventCharge::new(index, kinds[index].term, levels))
            .collect();
        Events {
            fast_paths: FastPathCosts::new(&latencies, levels),
            latencies,
            charges,
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
        self.kinds[index].term == Term::Memory
    }

    /// Returns the index of an event at a level.
    #[inline]
    pub(crate) fn at_level(level: usize, event: LevelEvent) -> usize {
        level * LEVEL_EVENTS + event as usize
    }

    /// Returns the index of an event between caches or with memory.
    #[inline(always)]
    pub(crate) fn system(&self, event: SystemEvent) -> usize {
        Self::system_after(self.levels, event)
    }

    /// Returns the index of a [`SystemEvent`] in a hierarchy of `levels` levels.
    #[inline(always)]
    pub(crate) fn system_after(levels: usize, event: SystemEvent) -> usize {
        levels * LEVEL_EVENTS + event.index()
    }

    #[inline]
    pub(crate) fn kind(&self, index: usize) -> &Kind {
        &self.kinds[index]
    }

    /// Charges an event that cost `cycles` cycles.
    #[inline(always)]
    pub(crate) fn charge(&self, charges: &mut Charges, index: usize, cycles: u64) {
        let EventCharge { term, source } = self.charges[index];
        charges.stall(term, cycles);
        if let Some(source) = source {
            charges.answer(source);
        }
    }

    #[inline]
    pub(crate) fn latency(&self, index: usize) -> u32 {
        self.latencies[index]
    }
}
