//! A user's description of the caches of a node.

use std::fmt;
use std::str::FromStr;

use nodescope_plugin_api::{SOURCES, Source, VcpuPlace};
use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::prefetch::Prefetch;

/// Hardware threads that share one cache. The text form is `core`, `socket`, or a number of cores such as `4 cores`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub enum Sharing {
    /// The hardware threads of one core share the cache.
    #[default]
    Core,
    /// So many neighbouring cores of a socket share the cache, as on a chiplet. The last group of a socket may have fewer.
    Cores(u16),
    /// All cores of a socket share the cache.
    Socket,
}

/// Error of a text that is no [`Sharing`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" shares no cache; write \"core\", \"socket\", or a number of cores such as \"4 cores\""
)]
pub struct UnknownSharing(String);

impl FromStr for Sharing {
    type Err = UnknownSharing;

    fn from_str(text: &str) -> Result<Sharing, UnknownSharing> {
        let cores = |text: &str| text.strip_suffix(" cores")?.parse().ok();
        match text {
            "core" => Ok(Sharing::Core),
            "socket" => Ok(Sharing::Socket),
            _ => match cores(text) {
                Some(cores) if cores > 1 => Ok(Sharing::Cores(cores)),
                _ => Err(UnknownSharing(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sharing::Core => f.write_str("core"),
            Sharing::Cores(cores) => write!(f, "{cores} cores"),
            Sharing::Socket => f.write_str("socket"),
        }
    }
}

impl TryFrom<String> for Sharing {
    type Error = UnknownSharing;

    fn try_from(text: String) -> Result<Sharing, UnknownSharing> {
        text.parse()
    }
}

impl From<Sharing> for String {
    fn from(sharing: Sharing) -> String {
        sharing.to_string()
    }
}

/// Kind of lines that a cache has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CacheKind {
    /// Data, at the first level.
    Data,
    /// Instructions, at the first level.
    Instruction,
    /// Data and instructions, at the levels outside the first.
    Unified,
}

/// Relation of a level's lines to those of the levels inside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inclusion {
    /// The level has every line of the levels inside it.
    #[default]
    Inclusive,
    /// The level gets the lines that the level inside it replaces, and gives a line up that it supplies.
    Exclusive,
    /// The level gets the lines that it supplies, and keeps or replaces them whatever the levels inside it have.
    NonInclusive,
}

/// Effect of stores with a non-temporal hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NonTemporalStores {
    /// They are like other stores.
    #[default]
    AsStores,
    /// They go to memory past the caches. Stores to one line are combined.
    Bypass,
}

/// Cycles charged for each event at one level; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LevelLatency {
    /// Cycles of a read that finds the line. At level 1, a value above 0 makes every read and write reach the model, past the L0 filter
    /// cache.
    pub read_hit: u32,
    /// Cycles of a write that finds the line. At level 1, a value above 0 makes every write reach the model.
    pub write_hit: u32,
    /// Cycles of an instruction fetch that finds the line. At level 1, a value above 0 makes every fetch reach the model.
    pub fetch_hit: u32,
    /// Cycles of a read that does not find the line, besides the cycles of the levels outside.
    pub read_miss: u32,
    /// Cycles of a write that does not find the line, besides the cycles of the levels outside.
    pub write_miss: u32,
    /// Cycles of an instruction fetch that does not find the line, besides the cycles of the levels outside.
    pub fetch_miss: u32,
    /// Cycles of the write-back of a modified line from this level to the next outer level or to memory.
    pub writeback: u32,
    /// Cycles in which this level grants permission to write a line that a cache inside already holds (from level 2 on).
    pub upgrade: u32,
}

/// Configuration of one cache: the first-level instruction cache, or one of the levels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LevelConfig {
    /// Capacity in bytes.
    pub size: u64,
    /// Number of lines in a set.
    pub ways: u32,
    /// Line size in bytes; all caches of the hierarchy must have the same.
    #[serde(default = "LevelConfig::default_line")]
    pub line: u32,
    /// The hardware threads that share the cache.
    #[serde(default)]
    pub shared_by: Sharing,
    /// Replacement policy.
    #[serde(default)]
    pub policy: Policy,
    /// Relation to the levels inside; without meaning for a first-level cache.
    #[serde(default, skip_serializing_if = "is_default")]
    pub inclusion: Inclusion,
    /// True if a write that does not find its line brings the line in.
    #[serde(
        default = "LevelConfig::default_write_allocate",
        skip_serializing_if = "Clone::clone"
    )]
    pub write_allocate: bool,
    /// Prefetchers, in the order in which they are asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefetch: Vec<Prefetch>,
    /// Cycles of the level's events.
    #[serde(default)]
    pub latency: LevelLatency,
}

/// Cycles of an event by the distance between the requester and the other cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ByDistance {
    /// Cycles to another first-level cache of the requester's core.
    pub same_core: u32,
    /// Cycles to a cache of another core on the same socket.
    pub other_core: u32,
    /// Cycles to a cache of another core on the same socket, in another group of cores: groups are those of the outermost level that groups
    /// of cores share ([`Sharing::Cores`]).
    #[serde(skip_serializing_if = "is_default")]
    pub other_group: u32,
    /// Cycles to a cache of another socket.
    pub other_socket: u32,
}

/// Cycles of the events between caches. The reference clusters' publication gives none, so all defaults are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoherenceLatency {
    /// Cycles of a line supplied by a peer, another outermost cache, that had the line in state E or F.
    pub from: ByDistance,
    /// Cycles of a modified line supplied by a peer, or by another cache inside the same outer cache.
    pub from_modified: ByDistance,
    /// Cycles of asking another cache inside the same outer cache that has the line in state E, before the outer cache answers a read.
    pub snoop: ByDistance,
    /// Cycles of removing a copy from another cache because of a write.
    pub invalidate: ByDistance,
    /// Cycles in which the interconnect grants permission to write a line that an outermost cache has in state S or F.
    pub upgrade: u32,
    /// How long a vCPU keeps a line that others want. `None`: references wait for no write of another vCPU, and no line is lost within a
    /// time slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
}

/// Cycles for which a vCPU goes on with a line that it has taken and that other vCPUs want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// After it has waited for the write of another vCPU, such as in a lock.
    pub locked: u32,
    /// Where the vCPUs write different bytes: the work that a core's store buffer takes in until the core needs the line again.
    pub stores: u32,
}

/// The caches of every core and socket of a node. All cores and all sockets have equal caches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// First-level instruction cache, shared as `levels[0]` is. `None`: fetches are neither cached nor timed.
    #[serde(default)]
    pub instruction: Option<LevelConfig>,
    /// First-level data cache, then the unified levels, from the inside out.
    pub levels: Vec<LevelConfig>,
    /// Cycles of the events between caches.
    #[serde(default)]
    pub coherence: CoherenceLatency,
    /// Effect of stores with a non-temporal hint.
    #[serde(default, skip_serializing_if = "is_default")]
    pub non_temporal_stores: NonTemporalStores,
}

/// Reason for which a [`CacheConfig`] is refused. The text begins with the path of the wrong field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheConfigError {
    /// The list of levels is empty.
    #[error("levels: is empty; describe at least the first-level data cache")]
    NoLevel,
    /// More levels than the model supports.
    #[error("levels: has {levels} entries; at most 16 are modelled")]
    TooManyLevels {
        /// Number of levels in the configuration.
        levels: usize,
    },
    /// A set without lines.
    #[error("{field}.ways: is 0; a set has at least one line")]
    NoWays {
        /// Path of the wrong cache in the configuration: `instruction` or `levels[i]`.
        field: String,
    },
    /// A line size that is not a power of two, or out of range.
    #[error("{field}.line: is {line}; give a power of two from 32 to 4096 bytes")]
    Line {
        /// Path of the wrong cache in the configuration: `instruction` or `levels[i]`.
        field: String,
        /// Line size in bytes that the configuration gives.
        line: u32,
    },
    /// Different line sizes.
    #[error(
        "{field}.line: is {line}, but levels[0].line is {first}; the hierarchy has one line size"
    )]
    LineDiffers {
        /// Path of the wrong cache in the configuration: `instruction` or `levels[i]`.
        field: String,
        /// Line size in bytes that the configuration gives.
        line: u32,
        /// Line size of `levels[0]` in bytes.
        first: u32,
    },
    /// A capacity that is not a positive whole number of sets.
    #[error("{field}.size: {size} bytes is not a positive multiple of ways x line = {set} bytes")]
    Size {
        /// Path of the wrong cache in the configuration: `instruction` or `levels[i]`.
        field: String,
        /// Size in bytes that the configuration gives.
        size: u64,
        /// Bytes of one set.
        set: u64,
    },
    /// A capacity above the model's limit.
    #[error("{field}.size: {size} bytes is more than the 4 GiB that one modelled cache may have")]
    TooLarge {
        /// Path of the wrong cache in the configuration: `instruction` or `levels[i]`.
        field: String,
        /// Size in bytes that the configuration gives.
        size: u64,
    },
    /// A latency above the model's limit, so that the sum for one reference might not fit.
    #[error("{field}: is {cycles} cycles; at most 1000000 are modelled for one event")]
    Latency {
        /// Path of the wrong latency in the configuration, such as `levels[1].latency.read_miss`.
        field: String,
        /// Latency in cycles that the configuration gives.
        cycles: u32,
    },
    /// An outer level too small to include the inner one.
    #[error(
        "{field}.size: {size} bytes is less than {inner_field}.size = {inner}; outer levels include inner ones"
    )]
    SmallerThanInner {
        /// Path of the wrong outer level in the configuration: `levels[i]`.
        field: String,
        /// Size in bytes that the configuration gives.
        size: u64,
        /// Path of the larger inner cache in the configuration: `instruction` or `levels[i - 1]`.
        inner_field: String,
        /// Size of the inner cache in bytes.
        inner: u64,
    },
    /// A level whose cores are not those of whole caches of the level inside it.
    #[error(
        "{field}.shared_by: is {shared_by}, but a cache of the level inside it is for {inner}; a cache contains whole caches"
    )]
    NotNested {
        /// Path of the wrong outer level in the configuration: `levels[i]`.
        field: String,
        /// The threads that share the outer level.
        shared_by: Sharing,
        /// The threads that share the level inside it.
        inner: Sharing,
    },
    /// A number of ways that the policy does not support.
    #[error("{field}.ways: {fault}")]
    WaysOfPolicy {
        /// Path of the wrong cache in the configuration: `instruction` or `levels[i]`.
        field: String,
        /// What is wrong.
        fault: String,
    },
    /// A registered policy or prefetcher cannot be made.
    #[error("level: {0}")]
    Model(String),
    /// A level that includes the levels inside it, but does not take the lines of writes that they take.
    #[error(
        "{field}.write_allocate: is false, but the level includes a level that allocates; leave write_allocate out, or set inclusion = \"non_inclusive\""
    )]
    NoAllocation {
        /// Path of the wrong outer level in the configuration: `levels[i]`.
        field: String,
    },
    /// A first-level instruction cache that has keys of data caches.
    #[error("instruction.{key}: has no meaning for an instruction cache; leave it out")]
    OfData {
        /// The key.
        key: &'static str,
    },
    /// An inclusion of a first-level cache.
    #[error(
        "{field}.inclusion: has no meaning for a first-level cache, since no cache is inside it; leave it out"
    )]
    NothingInside {
        /// Path of the wrong cache in the configuration: `instruction` or `levels[0]`.
        field: String,
    },
    /// Two first-level caches that are shared differently.
    #[error(
        "instruction.shared_by: differs from levels[0].shared_by; the two first-level caches are shared alike"
    )]
    InstructionSharing,
    /// The list of vCPUs is empty.
    #[error("vcpus: there is none; a node has at least one")]
    NoVcpu,
    /// A core that is on two sockets.
    #[error(
        "vcpus[{vcpu}]: core {core} is on socket {socket} here and on socket {other} for an earlier vCPU"
    )]
    CoreOnTwoSockets {
        /// Index of the vCPU whose core is on another socket for an earlier vCPU.
        vcpu: usize,
        /// Core of this vCPU.
        core: u16,
        /// Socket of this vCPU.
        socket: u16,
        /// Socket of that core according to an earlier vCPU.
        other: u16,
    },
}

/// Returns whether a value is the default, which descriptions leave out.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Largest number of levels in a description.
pub(crate) const MOST_LEVELS: usize = 16;

/// Largest latency of one event in cycles that a configuration may have, since the sum for one reference must fit into 32 bits.
const MOST_CYCLES: u32 = 1_000_000;

fn latency_fault(field: impl Fn() -> String, cycles: u32, faults: &mut Vec<CacheConfigError>) {
    if cycles > MOST_CYCLES {
        faults.push(CacheConfigError::Latency {
            field: field(),
            cycles,
        });
    }
}

impl LevelConfig {
    fn default_line() -> u32 {
        64
    }

    fn default_write_allocate() -> bool {
        true
    }

    /// Makes a private LRU cache of `size` bytes with 64-byte lines and no latencies.
    pub fn new(size: u64, ways: u32) -> LevelConfig {
        LevelConfig {
            size,
            ways,
            line: Self::default_line(),
            shared_by: Sharing::Core,
            policy: Policy::Lru,
            inclusion: Inclusion::Inclusive,
            write_allocate: true,
            prefetch: Vec::new(),
            latency: LevelLatency::default(),
        }
    }

    /// Returns this configuration for a cache that all cores of a socket share.
    pub fn shared(self) -> LevelConfig {
        LevelConfig {
            shared_by: Sharing::Socket,
            ..self
        }
    }

    /// Returns this configuration with the given cycles for read, write and fetch misses.
    pub fn misses(self, read: u32, write: u32, fetch: u32) -> LevelConfig {
        LevelConfig {
            latency: LevelLatency {
                read_miss: read,
                write_miss: write,
                fetch_miss: fetch,
                ..self.latency
            },
            ..self
        }
    }

    /// Returns the number of sets.
    pub fn sets(&self) -> u64 {
        self.size / (u64::from(self.ways) * u64::from(self.line))
    }

    fn faults(&self, field: &str, first: u32, faults: &mut Vec<CacheConfigError>) {
        let LevelLatency {
            read_hit,
            write_hit,
            fetch_hit,
            read_miss,
            write_miss,
            fetch_miss,
            writeback,
            upgrade,
        } = self.latency;
        for (name, cycles) in [
            ("read_hit", read_hit),
            ("write_hit", write_hit),
            ("fetch_hit", fetch_hit),
            ("read_miss", read_miss),
            ("write_miss", write_miss),
            ("fetch_miss", fetch_miss),
            ("writeback", writeback),
            ("upgrade", upgrade),
        ] {
            latency_fault(|| format!("{field}.latency.{name}"), cycles, faults);
        }
        let field = field.to_owned();
        let line_valid = self.line.is_power_of_two() && (32..=4096).contains(&self.line);
        if self.ways == 0 {
            faults.push(CacheConfigError::NoWays {
                field: field.clone(),
            });
        }
        if !line_valid {
            faults.push(CacheConfigError::Line {
                field: field.clone(),
                line: self.line,
            });
        } else if self.line != first {
            faults.push(CacheConfigError::LineDiffers {
                field: field.clone(),
                line: self.line,
                first,
            });
        }
        if let Some(fault) = self.policy.fault(self.ways) {
            faults.push(CacheConfigError::WaysOfPolicy {
                field: field.clone(),
                fault,
            });
        }
        let set = u64::from(self.ways) * u64::from(self.line);
        if self.size > 1 << 32 {
            faults.push(CacheConfigError::TooLarge {
                field,
                size: self.size,
            });
        } else if self.ways != 0 && line_valid && (self.size == 0 || !self.size.is_multiple_of(set))
        {
            faults.push(CacheConfigError::Size {
                field,
                size: self.size,
                set,
            });
        }
    }
}

impl CacheConfig {
    /// Returns the cycles of a read beyond a hit of the first level, by the source that answers, if memory takes `local` and `remote` cycles.
    /// Transfers between caches have the cycles of clean lines of another core.
    pub fn beyond_first_level(&self, local: u32, remote: u32) -> [u32; SOURCES] {
        let missed = |levels: usize| -> u32 {
            let passed = self.levels.iter().take(levels);
            passed.map(|level| level.latency.read_miss).sum()
        };
        let hit = |level: usize| {
            let found = self.levels.get(level).map(|level| level.latency.read_hit);
            missed(level) + found.unwrap_or(0)
        };
        let all = missed(self.levels.len());
        let mut beyond = [0; SOURCES];
        beyond[Source::Level2 as usize] = hit(1);
        beyond[Source::Level3 as usize] = hit(2);
        beyond[Source::OtherCache as usize] = hit(2) + self.coherence.from.other_core;
        beyond[Source::LocalMemory as usize] = all + local;
        beyond[Source::RemoteMemory as usize] = all + remote;
        beyond
    }

    /// Makes three levels with the latencies of the reference clusters in cycles: L1 misses 3, L2 read and fetch misses 12, L2 write
    /// misses 10, L3 misses 35; everything else 0.
    fn reference(
        l1i: LevelConfig,
        l1d: LevelConfig,
        l2: LevelConfig,
        l3: LevelConfig,
    ) -> CacheConfig {
        CacheConfig {
            instruction: Some(l1i.misses(3, 3, 3)),
            levels: vec![
                l1d.misses(3, 3, 3),
                l2.misses(12, 10, 12),
                l3.shared().misses(35, 35, 35),
            ],
            coherence: CoherenceLatency::default(),
            non_temporal_stores: NonTemporalStores::AsStores,
        }
    }

    /// Returns the number of cores of a group: those of the outermost level that groups of cores share. `None` if no level is shared so.
    pub fn group(&self) -> Option<u16> {
        let mut shared = self.levels.iter().rev().map(|level| level.shared_by);
        shared.find_map(|shared| match shared {
            Sharing::Cores(cores) => Some(cores),
            _ => None,
        })
    }

    /// Returns the configuration of the Xeon X5680 (Westmere), the first reference cluster's processor.
    pub fn xeon_x5680() -> CacheConfig {
        CacheConfig::reference(
            LevelConfig::new(32 << 10, 4),
            LevelConfig::new(32 << 10, 8),
            LevelConfig::new(256 << 10, 8),
            LevelConfig::new(12 << 20, 16),
        )
    }

    /// Returns the configuration of the Xeon E5-2690 (Sandy Bridge), the second reference cluster's processor.
    pub fn xeon_e5_2690() -> CacheConfig {
        CacheConfig::reference(
            LevelConfig::new(32 << 10, 8),
            LevelConfig::new(32 << 10, 8),
            LevelConfig::new(256 << 10, 8),
            LevelConfig::new(20 << 20, 20),
        )
    }

    /// Returns every fault of the description for vCPUs at `places`, in the order of the fields; empty if there is none.
    pub fn faults(&self, places: &[VcpuPlace]) -> Vec<CacheConfigError> {
        let mut faults = Vec::new();
        let first = self.levels.first().map_or(64, |level| level.line);
        if let Some(instruction) = &self.instruction {
            instruction.faults("instruction", first, &mut faults);
            if !instruction.write_allocate {
                faults.push(CacheConfigError::OfData {
                    key: "write_allocate",
                });
            }
            if instruction.inclusion != Inclusion::Inclusive {
                faults.push(CacheConfigError::NothingInside {
                    field: "instruction".to_owned(),
                });
            }
            if self
                .levels
                .first()
                .is_some_and(|data| data.shared_by != instruction.shared_by)
            {
                faults.push(CacheConfigError::InstructionSharing);
            }
        }
        if self.levels.is_empty() {
            faults.push(CacheConfigError::NoLevel);
        }
        if self.levels.len() > MOST_LEVELS {
            faults.push(CacheConfigError::TooManyLevels {
                levels: self.levels.len(),
            });
        }
        for (index, level) in self.levels.iter().enumerate() {
            let field = format!("levels[{index}]");
            level.faults(&field, first, &mut faults);
            if index == 0 && level.inclusion != Inclusion::Inclusive {
                faults.push(CacheConfigError::NothingInside {
                    field: field.clone(),
                });
            }
            let allocates = |level: &LevelConfig| level.write_allocate;
            if level.inclusion == Inclusion::Inclusive
                && !level.write_allocate
                && self.levels[..index].iter().any(allocates)
            {
                faults.push(CacheConfigError::NoAllocation {
                    field: field.clone(),
                });
            }
            let Some(inner) = index.checked_sub(1).map(|inner| &self.levels[inner]) else {
                continue;
            };
            let mut inners = vec![(format!("levels[{}]", index - 1), inner.size)];
            if let (1, Some(instruction)) = (index, &self.instruction) {
                inners.push(("instruction".to_owned(), instruction.size));
            }
            for (inner_field, inner) in inners {
                if level.size < inner && level.inclusion == Inclusion::Inclusive {
                    faults.push(CacheConfigError::SmallerThanInner {
                        field: field.clone(),
                        size: level.size,
                        inner_field,
                        inner,
                    });
                }
            }
            let nested = match (inner.shared_by, level.shared_by) {
                (Sharing::Cores(inside), Sharing::Cores(around)) => around % inside == 0,
                (inside, around) => inside <= around,
            };
            if !nested {
                faults.push(CacheConfigError::NotNested {
                    field,
                    shared_by: level.shared_by,
                    inner: inner.shared_by,
                });
            }
        }
        let coherence = &self.coherence;
        for (name, group) in [
            ("from", coherence.from),
            ("from_modified", coherence.from_modified),
            ("snoop", coherence.snoop),
            ("invalidate", coherence.invalidate),
        ] {
            let ByDistance {
                same_core,
                other_core,
                other_group,
                other_socket,
            } = group;
            for (distance, cycles) in [
                ("same_core", same_core),
                ("other_core", other_core),
                ("other_group", other_group),
                ("other_socket", other_socket),
            ] {
                latency_fault(
                    || format!("coherence.{name}.{distance}"),
                    cycles,
                    &mut faults,
                );
            }
        }
        latency_fault(
            || "coherence.upgrade".to_owned(),
            coherence.upgrade,
            &mut faults,
        );
        if places.is_empty() {
            faults.push(CacheConfigError::NoVcpu);
        }
        for (vcpu, place) in places.iter().enumerate() {
            let other = places[..vcpu].iter().find(|other| other.core == place.core);
            if let Some(other) = other.filter(|other| other.socket != place.socket) {
                faults.push(CacheConfigError::CoreOnTwoSockets {
                    vcpu,
                    core: place.core,
                    socket: place.socket,
                    other: other.socket,
                });
            }
        }
        faults
    }
}
