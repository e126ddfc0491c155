//! Sockets, cores, threads, caches, memory and distances of one node. ACPI tables, CPUID leaves and cache models are all made from this
//! description.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Maximum number of vCPUs in a node.
pub const MAX_VCPUS: u32 = 64;
/// Maximum number of sockets in a node.
pub const MAX_SOCKETS: u32 = 4;

/// Kind of a cache by its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheKind {
    /// The cache holds only data.
    Data,
    /// The cache holds only instructions.
    Instruction,
    /// The cache holds data and instructions.
    Unified,
}

/// Group of vCPUs that share one instance of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedBy {
    /// The threads of one core.
    Core,
    /// So many neighbouring cores of one socket. The last group of a socket may have fewer.
    Cores(u32),
    /// The cores of one socket.
    Socket,
}

impl SharedBy {
    /// Returns whether a cache for `outer` contains whole caches for `self`.
    fn within(self, outer: SharedBy) -> bool {
        match (self, outer) {
            (SharedBy::Cores(inner), SharedBy::Cores(outer)) => outer.is_multiple_of(inner),
            _ => self <= outer,
        }
    }
}

impl fmt::Display for SharedBy {
    /// Writes the text of study files.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedBy::Core => f.write_str("core"),
            SharedBy::Cores(cores) => write!(f, "{cores} cores"),
            SharedBy::Socket => f.write_str("socket"),
        }
    }
}

/// Description of the caches of one level and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CacheDescription {
    /// Level of the cache; 1 is the level nearest to the core.
    pub level: u8,
    /// Kind of the cache by its contents.
    pub kind: CacheKind,
    /// Size of one instance, bytes.
    pub size: u64,
    /// Associativity: number of ways in each set.
    pub ways: u32,
    /// Size of a line, bytes.
    pub line: u32,
    /// vCPUs that share one instance.
    pub shared_by: SharedBy,
    /// True if the guest is told that the cache has every line of the levels inside it (CPUID leaf 4).
    pub inclusive: bool,
    /// True if writes bring lines in (ACPI PPTT).
    pub write_allocate: bool,
}

impl CacheDescription {
    /// Returns the number of sets of one instance.
    pub fn sets(&self) -> u64 {
        self.size / (u64::from(self.ways) * u64::from(self.line))
    }
}

/// Memory performance between sockets for the HMAT. Both matrices are indexed as `[initiator][target]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPerformance {
    /// Latency of an access, nanoseconds, as `[initiator][target]`.
    pub latency_ns: Vec<Vec<u32>>,
    /// Bandwidth of a socket's accesses to the memory of a socket, MB/s, as `[initiator][target]`.
    pub bandwidth_mb_s: Vec<Vec<u32>>,
}

/// Position of a vCPU in the topology. vCPU numbers count threads first, then cores, then sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VcpuPlace {
    /// Number of the socket, which is also the NUMA node, from 0.
    pub socket: u32,
    /// Number of the core within its socket, from 0.
    pub core: u32,
    /// Number of the thread within its core, from 0.
    pub thread: u32,
    /// x2APIC id of the vCPU.
    pub apic_id: u32,
}

/// Description of a node's processors and memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTopology {
    /// Number of sockets, 1 to 4; each socket is a NUMA node.
    pub sockets: u32,
    /// Number of cores in a socket.
    pub cores_per_socket: u32,
    /// Number of threads in a core.
    pub threads_per_core: u32,
    /// Memory of each socket in bytes, a multiple of 2 MiB and at least 16 MiB.
    pub socket_memory: Vec<u64>,
    /// SLIT distances `[from][to]`: 10 on the diagonal, 11 to 254 elsewhere (ACPI 6.5 §5.2.17).
    pub distances: Vec<Vec<u8>>,
    /// Descriptions of the caches, in any order.
    pub caches: Vec<CacheDescription>,
    /// Latencies and bandwidths of memory; `None` if the study gives none.
    pub memory_performance: Option<MemoryPerformance>,
    /// TSC (nominal core) frequency in Hz, a multiple of 1 kHz.
    pub tsc_hz: u64,
    /// Processor brand string, at most 47 ASCII characters.
    pub brand: String,
}

/// Problem of a description, with the field at fault.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TopologyError {
    /// A count or the TSC frequency is out of range.
    #[error("{field} is {value}; it must lie between {min} and {max}")]
    Range {
        /// Name of the field at fault.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// Least value that is allowed.
        min: u64,
        /// Greatest value that is allowed.
        max: u64,
    },
    /// A list or a row has the wrong length.
    #[error("{field} has {len} entries; with {sockets} sockets it must have {sockets}")]
    Length {
        /// Name of the field at fault.
        field: String,
        /// Number of entries that the field has.
        len: usize,
        /// Number of sockets, which is the number of entries that the field must have.
        sockets: u32,
    },
    /// A socket's memory is too small, or not a multiple of 2 MiB.
    #[error(
        "socket_memory[{socket}] is {bytes} bytes; it must be a multiple of 2 MiB, at least 16 MiB"
    )]
    Memory {
        /// Index of the socket.
        socket: usize,
        /// Bytes of memory that the socket would have.
        bytes: u64,
    },
    /// A distance is invalid; Linux would reject the whole matrix.
    #[error(
        "distances[{from}][{to}] is {value}; a socket is 10 from itself and 11 to 254 from another"
    )]
    Distance {
        /// Row of the matrix: socket of the processor.
        from: usize,
        /// Column of the matrix: socket of the memory.
        to: usize,
        /// Distance that the description gives.
        value: u8,
    },
    /// The description of a cache is impossible.
    #[error("cache L{level} {kind:?}: {reason}")]
    Cache {
        /// Level of the cache.
        level: u8,
        /// Contents of the cache.
        kind: CacheKind,
        /// Description of the problem and of a valid value.
        reason: String,
    },
    /// The TSC frequency in Hz is not a whole number of kHz.
    #[error("tsc_hz is {0}; it must be a multiple of 1000 Hz, the resolution of Linux's own clock")]
    TscResolution(u64),
    /// The brand string is too long for CPUID leaves 0x80000002 to 0x80000004, or has characters that are not printable ASCII.
    #[error("brand {0:?} must be at most 47 printable ASCII characters")]
    Brand(String),
}

impl Default for NodeTopology {
    /// Returns one socket with one core, 512 MiB, 2.9 GHz, and the caches of the project's reference machine (32 KiB L1, 256 KiB L2, 20 MiB
    /// L3).
    fn default() -> Self {
        Self {
            sockets: 1,
            cores_per_socket: 1,
            threads_per_core: 1,
            socket_memory: vec![512 << 20],
            distances: vec![vec![10]],
            caches: default_caches(),
            memory_performance: None,
            tsc_hz: 2_900_000_000,
            brand: "nodescope virtual CPU @ 2.90GHz".into(),
        }
    }
}

/// Returns the default caches with 64-byte lines: split 32 KiB L1, unified private 256 KiB L2, 20 MiB L3 shared by the socket.
pub fn default_caches() -> Vec<CacheDescription> {
    let cache = |level, kind, size, ways, shared_by| CacheDescription {
        level,
        kind,
        size,
        ways,
        line: 64,
        shared_by,
        inclusive: false,
        write_allocate: true,
    };
    vec![
        cache(1, CacheKind::Data, 32 << 10, 8, SharedBy::Core),
        cache(1, CacheKind::Instruction, 32 << 10, 8, SharedBy::Core),
        cache(2, CacheKind::Unified, 256 << 10, 8, SharedBy::Core),
        cache(3, CacheKind::Unified, 20 << 20, 20, SharedBy::Socket),
    ]
}

impl NodeTopology {
    /// Returns a node of equal sockets with default caches and clock. `socket_bytes` is each socket's memory; the distance between sockets
    /// is 21.
    pub fn uniform(
        sockets: u32,
        cores_per_socket: u32,
        threads_per_core: u32,
        socket_bytes: u64,
    ) -> Self {
        let n = sockets as usize;
        Self {
            sockets,
            cores_per_socket,
            threads_per_core,
            socket_memory: vec![socket_bytes; n],
            distances: (0..n)
                .map(|i| (0..n).map(|j| if i == j { 10 } else { 21 }).collect())
                .collect(),
            ..Self::default()
        }
    }

    /// Returns the number of vCPUs of the node.
    pub fn vcpus(&self) -> u32 {
        self.sockets * self.cores_per_socket * self.threads_per_core
    }

    /// Returns every problem of the description; empty for a valid description.
    pub fn problems(&self) -> Vec<TopologyError> {
        let mut found = Vec::new();
        let mut range = |field, value: u64, min: u64, max: u64| {
            if !(min..=max).contains(&value) {
                found.push(TopologyError::Range {
                    field,
                    value,
                    min,
                    max,
                });
            }
        };
        range("sockets", self.sockets.into(), 1, MAX_SOCKETS.into());
        range("cores_per_socket", self.cores_per_socket.into(), 1, 64);
        range("threads_per_core", self.threads_per_core.into(), 1, 64);
        let vcpus = u64::from(self.sockets)
            * u64::from(self.cores_per_socket)
            * u64::from(self.threads_per_core);
        range(
            "sockets x cores_per_socket x threads_per_core",
            vcpus,
            1,
            MAX_VCPUS.into(),
        );
        range("tsc_hz", self.tsc_hz, 100_000_000, 10_000_000_000);
        if !self.tsc_hz.is_multiple_of(1000) {
            found.push(TopologyError::TscResolution(self.tsc_hz));
        }
        if self.brand.len() > 47 || !self.brand.bytes().all(|b| (0x20..0x7f).contains(&b)) {
            found.push(TopologyError::Brand(self.brand.clone()));
        }
        self.memory_problems(&mut found);
        self.cache_problems(&mut found);
        found
    }

    /// Checks the description. Returns the first problem as `Err`.
    pub fn validate(&self) -> Result<(), TopologyError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    fn memory_problems(&self, found: &mut Vec<TopologyError>) {
        let sockets = self.sockets;
        let mut length = |field: String, len: usize| {
            if len != sockets as usize {
                found.push(TopologyError::Length {
                    field,
                    len,
                    sockets,
                });
            }
        };
        length("socket_memory".into(), self.socket_memory.len());
        length("distances".into(), self.distances.len());
        for (i, row) in self.distances.iter().enumerate() {
            length(format!("distances[{i}]"), row.len());
        }
        if let Some(p) = &self.memory_performance {
            for (name, matrix) in [
                ("latency_ns", &p.latency_ns),
                ("bandwidth_mb_s", &p.bandwidth_mb_s),
            ] {
                length(name.into(), matrix.len());
                for (i, row) in matrix.iter().enumerate() {
                    length(format!("{name}[{i}]"), row.len());
                }
            }
        }
        for (socket, &bytes) in self.socket_memory.iter().enumerate() {
            if bytes < 16 << 20 || bytes % (2 << 20) != 0 {
                found.push(TopologyError::Memory { socket, bytes });
            }
        }
        for (from, row) in self.distances.iter().enumerate() {
            for (to, &value) in row.iter().enumerate() {
                let right = if from == to {
                    value == 10
                } else {
                    (11..=254).contains(&value)
                };
                if !right {
                    found.push(TopologyError::Distance { from, to, value });
                }
            }
        }
    }

    fn cache_problems(&self, found: &mut Vec<TopologyError>) {
        for (i, c) in self.caches.iter().enumerate() {
            let mut bad = |reason: String| {
                found.push(TopologyError::Cache {
                    level: c.level,
                    kind: c.kind,
                    reason,
                });
            };
            if !(1..=4).contains(&c.level) {
                bad("the level must lie between 1 and 4".into());
            }
            if !c.line.is_power_of_two() || !(16..=4096).contains(&c.line) {
                bad(format!(
                    "line is {} bytes; it must be a power of two between 16 and 4096",
                    c.line
                ));
            } else if !(1..=1024).contains(&c.ways) {
                bad(format!(
                    "ways is {}; it must lie between 1 and 1024",
                    c.ways
                ));
            } else {
                let way = u64::from(c.ways) * u64::from(c.line);
                if c.size == 0 || !c.size.is_multiple_of(way) || c.size >= 1 << 32 {
                    bad(format!(
                        "size is {} bytes; it must be a positive multiple of ways x line = {way}, below 4 GiB",
                        c.size
                    ));
                }
            }
            for other in &self.caches[..i] {
                let clash = other.level == c.level
                    && (other.kind == c.kind
                        || other.kind == CacheKind::Unified
                        || c.kind == CacheKind::Unified);
                if clash {
                    bad(format!(
                        "level {} already has a {:?} cache",
                        c.level, other.kind
                    ));
                }
            }
            if c.shared_by == SharedBy::Cores(0) {
                bad("shared_by is 0 cores; a cache has at least one".into());
                continue;
            }
            let apart = self.caches.iter().enumerate().find(|(j, o)| {
                let within = o.shared_by.within(c.shared_by);
                match o.level.cmp(&c.level) {
                    Ordering::Less => !within,
                    Ordering::Equal => *j < i && !within && !c.shared_by.within(o.shared_by),
                    Ordering::Greater => false,
                }
            });
            if let Some((_, o)) = apart {
                bad(format!(
                    "shared_by is {}, but {} in L{} {:?}; a cache has whole groups of those inside it",
                    c.shared_by, o.shared_by, o.level, o.kind
                ));
            }
        }
    }

    /// Returns the form of a group of cores that says most about the group: `Core` for one core, `Socket` for all cores.
    pub fn canonical(&self, shared_by: SharedBy) -> SharedBy {
        match shared_by {
            SharedBy::Cores(0 | 1) => SharedBy::Core,
            SharedBy::Cores(cores) if cores >= self.cores_per_socket => SharedBy::Socket,
            _ => shared_by,
        }
    }

    /// Returns the numbers of cores of the groups that share a cache, ascending, without single cores and whole sockets.
    pub fn groups(&self) -> Vec<u32> {
        let group = |c: &CacheDescription| match self.canonical(c.shared_by) {
            SharedBy::Cores(cores) => Some(cores),
            SharedBy::Core | SharedBy::Socket => None,
        };
        let groups: BTreeSet<u32> = self.caches.iter().filter_map(group).collect();
        groups.into_iter().collect()
    }

    /// Returns the position of a vCPU; `vcpu` must be less than `self.vcpus()`.
    pub fn place(&self, vcpu: u32) -> VcpuPlace {
        let thread = vcpu % self.threads_per_core;
        let core = vcpu / self.threads_per_core % self.cores_per_socket;
        let socket = vcpu / (self.threads_per_core * self.cores_per_socket);
        VcpuPlace {
            socket,
            core,
            thread,
            apic_id: (socket << self.core_bits() | self.core_id(core)) << self.thread_bits()
                | thread,
        }
    }

    /// Returns the positions of all vCPUs, in the order of their numbers.
    pub fn places(&self) -> impl Iterator<Item = VcpuPlace> + '_ {
        (0..self.vcpus()).map(|v| self.place(v))
    }

    /// Returns the caches sorted by level from the core outwards; within a level, data caches are before instruction caches.
    pub fn sorted_caches(&self) -> Vec<CacheDescription> {
        let mut caches = self.caches.clone();
        caches.sort_by_key(|c| (c.level, c.kind as u8));
        caches
    }

    /// Returns the frequency in Hz of the core crystal clock, which also drives the local APIC's timer.
    ///
    /// CPUID leaf 0x15 states the TSC frequency as crystal x ratio. Linux multiplies in 32 bits and in kHz. For the product to be exact,
    /// the ratio must be an integer and the crystal a whole number of kHz.
    pub fn crystal_hz(&self) -> u32 {
        [100_000_000, 25_000_000, 24_000_000, 10_000_000, 1_000_000]
            .into_iter()
            .find(|&c| self.tsc_hz.is_multiple_of(u64::from(c)))
            .or_else(|| {
                (1..=1000)
                    .filter(|k| self.tsc_hz.is_multiple_of(k * 1000))
                    .map(|k| self.tsc_hz / k)
                    .find_map(|c| u32::try_from(c).ok())
            })
            .unwrap_or(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_default_and_the_reference_shapes_are_valid() {
        assert_eq!(NodeTopology::default().problems(), []);
        for (s, c, t) in [(1, 1, 1), (2, 1, 1), (4, 4, 1), (2, 6, 2), (4, 16, 1)] {
            assert_eq!(NodeTopology::uniform(s, c, t, 256 << 20).problems(), []);
        }
    }

    #[test]
    fn problems_name_their_field() {
        let mut t = NodeTopology::uniform(2, 1, 1, 256 << 20);
        t.sockets = 5;
        t.distances[0][1] = 10;
        t.socket_memory[1] = 4096;
        t.tsc_hz = 2_900_000_001;
        t.brand = "é".into();
        t.caches[0].size = 1000;
        t.caches[3].level = 2;
        let all = t
            .problems()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n");
        for needle in [
            "sockets is 5; it must lie between 1 and 4",
            "socket_memory has 2 entries",
            "socket_memory[1] is 4096",
            "distances[0][1] is 10",
            "tsc_hz is 2900000001",
            "brand",
            "cache L1 Data: size is 1000",
            "level 2 already has a Unified cache",
        ] {
            assert!(all.contains(needle), "{needle} not in\n{all}");
        }
        assert!(t.validate().is_err());
    }

    #[test]
    fn a_private_cache_behind_a_shared_one_is_refused() {
        let mut t = NodeTopology::default();
        t.caches[2].shared_by = SharedBy::Socket;
        t.caches[3].shared_by = SharedBy::Core;
        assert!(matches!(
            t.validate(),
            Err(TopologyError::Cache { level: 3, .. })
        ));
    }

    #[test]
    fn a_group_of_cores_has_whole_groups_inside() {
        use SharedBy::{Core, Cores, Socket};
        let reasons = |l1: SharedBy, l1i: SharedBy, l2: SharedBy, l3: SharedBy| {
            let mut t = NodeTopology::uniform(1, 7, 1, 256 << 20);
            for (cache, shared_by) in t.caches.iter_mut().zip([l1, l1i, l2, l3]) {
                cache.shared_by = shared_by;
            }
            t.problems()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        // The cores of a socket need not be a multiple of the group, which may even be larger than the socket.
        for (l2, l3) in [
            (Core, Cores(2)),
            (Cores(3), Cores(6)),
            (Cores(4), Cores(4)),
            (Cores(64), Socket),
        ] {
            assert_eq!(reasons(Core, Core, l2, l3), [""; 0]);
        }
        assert_eq!(
            reasons(Core, Core, Cores(4), Cores(6)),
            [
                "cache L3 Unified: shared_by is 6 cores, but 4 cores in L2 Unified; a cache has whole groups of those inside it"
            ]
        );
        assert_eq!(reasons(Core, Core, Socket, Cores(4)).len(), 1);
        assert_eq!(reasons(Cores(2), Cores(3), Cores(6), Socket).len(), 1);
        assert_eq!(reasons(Core, Core, Core, Cores(0)).len(), 1);
    }

    proptest! {
        #[test]
        fn the_crystal_divides_the_tsc(khz in 100_000_u64..=10_000_000) {
            let t = NodeTopology { tsc_hz: khz * 1000, ..Default::default() };
            let crystal = u64::from(t.crystal_hz());
            prop_assert_eq!(t.tsc_hz % crystal, 0);
            prop_assert_eq!(crystal % 1000, 0);
        }
    }
}
