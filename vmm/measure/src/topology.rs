//! CPUs, cores, sockets and caches, as Linux and CPUID tell them.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::MeasureError;
use crate::affinity;

/// What a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheKind {
    /// Data.
    Data,
    /// Instructions.
    Instruction,
    /// Both.
    Unified,
}

/// A cache of the first CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// Level, from 1.
    pub level: u32,
    /// What it holds.
    pub kind: CacheKind,
    /// Bytes.
    pub size: u64,
    /// Associativity.
    pub ways: u32,
    /// Bytes of a line.
    pub line: u32,
    /// Whether it has all lines of the levels inside it.
    pub inclusive: bool,
    /// CPUs that share it.
    pub cpus: BTreeSet<usize>,
}

/// A CPU of Linux: a hardware thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// Number.
    pub number: usize,
    /// Number of the core in its socket.
    pub core: u32,
    /// Number of the socket.
    pub socket: u32,
}

/// CPUs and caches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// All CPUs that are online.
    pub cpus: Vec<Cpu>,
    /// CPUs on which this program may run: a part of them.
    pub allowed: Vec<usize>,
    /// Caches of the first of these CPUs, by level and kind.
    pub caches: Vec<Cache>,
    /// Where CPUID and Linux tell different sizes, ways or lines.
    pub differences: Vec<String>,
}

/// How two CPUs are related.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// Cores of a socket that share its outermost cache.
    OtherCore,
    /// Cores of a socket with other outermost caches.
    OtherGroup,
    /// Cores of different sockets.
    OtherSocket,
}

impl Topology {
    /// Reads the topology of this machine.
    pub fn read() -> Result<Self, MeasureError> {
        let allowed = affinity::allowed()?;
        let root = Path::new("/sys/devices/system/cpu");
        let online = read(&root.join("online"))?;
        let mut cpus = Vec::new();
        for number in parse_list(&online) {
            let topology = root.join(format!("cpu{number}/topology"));
            let value = |name: &str| {
                read(&topology.join(name)).map(|text| text.trim().parse().unwrap_or(0))
            };
            let (core, socket) = (value("core_id")?, value("physical_package_id")?);
            cpus.push(Cpu {
                number,
                core,
                socket,
            });
        }
        let first = allowed.first().copied().unwrap_or(0);
        let linux = linux_caches(&root.join(format!("cpu{first}/cache")));
        let (caches, differences) = joined(linux, cpuid_caches(), first);
        if caches
            .iter()
            .all(|cache| cache.kind == CacheKind::Instruction)
        {
            return Err(MeasureError::NoCaches);
        }
        Ok(Self {
            cpus,
            allowed,
            caches,
            differences,
        })
    }

    /// Returns the number of sockets.
    pub fn sockets(&self) -> usize {
        self.cpus
            .iter()
            .map(|cpu| cpu.socket)
            .collect::<BTreeSet<u32>>()
            .len()
            .max(1)
    }

    /// Returns the number of cores of a socket.
    pub fn cores(&self) -> usize {
        let cores: BTreeSet<(u32, u32)> =
            self.cpus.iter().map(|cpu| (cpu.socket, cpu.core)).collect();
        (cores.len() / self.sockets()).max(1)
    }

    /// Returns the number of hardware threads of a core.
    pub fn threads(&self) -> usize {
        (self.cpus.len() / (self.cores() * self.sockets())).max(1)
    }

    /// Returns one allowed CPU of each core.
    pub fn one_a_core(&self) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let allowed = self
            .cpus
            .iter()
            .filter(|cpu| self.allowed.contains(&cpu.number));
        allowed
            .filter(|cpu| seen.insert((cpu.socket, cpu.core)))
            .map(|cpu| cpu.number)
            .collect()
    }

    /// Returns the caches through which loads go, from the first level outwards.
    pub fn data_caches(&self) -> Vec<&Cache> {
        self.caches
            .iter()
            .filter(|cache| cache.kind != CacheKind::Instruction)
            .collect()
    }

    /// Returns how many cores share a cache.
    pub fn sharers(&self, cache: &Cache) -> usize {
        let sharing = self
            .cpus
            .iter()
            .filter(|cpu| cache.cpus.contains(&cpu.number));
        sharing
            .map(|cpu| (cpu.socket, cpu.core))
            .collect::<BTreeSet<_>>()
            .len()
            .max(1)
    }

    /// Returns a pair of CPUs of each relation that two cores of this machine have. The first CPU is always the first that is allowed.
    pub fn pairs(&self) -> Vec<(Relation, usize, usize)> {
        let cores = self.one_a_core();
        let Some(first) = self
            .cpus
            .iter()
            .find(|cpu| cores.first() == Some(&cpu.number))
        else {
            return Vec::new();
        };
        let mut pairs: Vec<(Relation, usize, usize)> = Vec::new();
        for other in self
            .cpus
            .iter()
            .filter(|cpu| cores[1..].contains(&cpu.number))
        {
            let relation = if other.socket != first.socket {
                Relation::OtherSocket
            } else if self
                .caches
                .last()
                .is_some_and(|cache| cache.cpus.contains(&other.number))
                || !self.has_groups()
            {
                Relation::OtherCore
            } else {
                Relation::OtherGroup
            };
            if pairs.iter().all(|(known, ..)| *known != relation) {
                pairs.push((relation, first.number, other.number));
            }
        }
        pairs
    }

    /// Returns whether the outermost cache is shared by some cores of a socket, and not by all.
    fn has_groups(&self) -> bool {
        let sharers = self.caches.last().map_or(1, |cache| self.sharers(cache));
        sharers > 1 && sharers < self.cores()
    }
}

fn read(path: &Path) -> Result<String, MeasureError> {
    fs::read_to_string(path).map_err(|source| MeasureError::File {
        path: path.into(),
        source,
    })
}

/// Reads a list such as `0-3,8`.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// Reads the caches that Linux describes in a folder such as `/sys/devices/system/cpu/cpu0/cache`. Linux describes none on some machines.
fn linux_caches(folder: &Path) -> Vec<Cache> {
    let indices = (0..)
        .map(|index| folder.join(format!("index{index}")))
        .take_while(|path| path.is_dir());
    indices.filter_map(linux_cache).collect()
}

fn linux_cache(folder: PathBuf) -> Option<Cache> {
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u32>().ok();
    let kind = match text("type")?.trim() {
        "Data" => CacheKind::Data,
        "Instruction" => CacheKind::Instruction,
        _ => CacheKind::Unified,
    };
    Some(Cache {
        level: number("level")?,
        kind,
        size: parse_size(&text("size")?)?,
        ways: number("ways_of_associativity")?,
        line: number("coherency_line_size")?,
        inclusive: false,
        cpus: parse_list(&text("shared_cpu_list")?).into_iter().collect(),
    })
}

/// Reads a size such as `32K`.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_suffix('K') {
        Some(kilobytes) => Some(kilobytes.parse::<u64>().ok()? << 10),
        None => text.parse().ok(),
    }
}

/// Reads the caches of the CPU that executes this, from leaf 4, or from leaf 0x8000001D where AMD's topology extensions are.
fn cpuid_caches() -> Vec<Cache> {
    let amd = __cpuid(0x8000_0000).eax >= 0x8000_001d && __cpuid(0x8000_0001).ecx >> 22 & 1 != 0;
    let leaf = if amd {
        0x8000_001d
    } else if __cpuid(0).eax >= 4 {
        4
    } else {
        return Vec::new();
    };
    let subleaves = (0..16).map(|subleaf| __cpuid_count(leaf, subleaf));
    subleaves
        .take_while(|leaf| leaf.eax & 0x1f != 0)
        .map(|leaf| cpuid_cache(leaf.eax, leaf.ebx, leaf.ecx, leaf.edx))
        .collect()
}

/// Decodes a subleaf (SDM vol. 2A, CPUID leaf 04H; APM vol. 3, 8000_001Dh). It does not say which CPUs share the cache.
fn cpuid_cache(eax: u32, ebx: u32, ecx: u32, edx: u32) -> Cache {
    let (line, partitions, ways) = ((ebx & 0xfff) + 1, (ebx >> 12 & 0x3ff) + 1, (ebx >> 22) + 1);
    Cache {
        level: eax >> 5 & 7,
        kind: match eax & 0x1f {
            1 => CacheKind::Data,
            2 => CacheKind::Instruction,
            _ => CacheKind::Unified,
        },
        size: u64::from(line) * u64::from(partitions) * u64::from(ways) * (u64::from(ecx) + 1),
        ways,
        line,
        inclusive: edx & 2 != 0,
        cpus: BTreeSet::new(),
    }
}

/// Joins what Linux tells of caches with what CPUID tells, and says where they differ. Linux alone knows the sharers, CPUID alone inclusion.
fn joined(linux: Vec<Cache>, cpuid: Vec<Cache>, cpu: usize) -> (Vec<Cache>, Vec<String>) {
    let mut differences = Vec::new();
    if linux.is_empty() {
        let own = |cache| Cache {
            cpus: BTreeSet::from([cpu]),
            ..cache
        };
        differences.push(
            "Linux describes no caches. Those of CPUID are taken to be each core's own.".to_owned(),
        );
        return (sorted(cpuid.into_iter().map(own).collect()), differences);
    }
    let mut caches = Vec::new();
    for mut cache in linux {
        let same = |other: &&Cache| (other.level, other.kind) == (cache.level, cache.kind);
        if let Some(other) = cpuid.iter().find(same) {
            cache.inclusive = other.inclusive;
            if (other.size, other.ways, other.line) != (cache.size, cache.ways, cache.line) {
                differences.push(format!(
                    "Linux tells {} KiB and {} ways of level {}, CPUID {} KiB and {} ways.",
                    cache.size >> 10,
                    cache.ways,
                    cache.level,
                    other.size >> 10,
                    other.ways
                ));
            }
        }
        caches.push(cache);
    }
    (sorted(caches), differences)
}

fn sorted(mut caches: Vec<Cache>) -> Vec<Cache> {
    caches.sort_by_key(|cache| (cache.level, cache.kind));
    caches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_sizes_are_read() {
        assert_eq!(parse_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_list("\n"), [0_usize; 0]);
        assert_eq!(parse_size("32768K\n"), Some(32 << 20));
        assert_eq!(parse_size("x"), None);
    }

    #[test]
    fn a_subleaf_is_decoded() {
        // The third level of Sandy Bridge-EP: 20 MiB, 20 ways, inclusive.
        let cache = cpuid_cache(0x3c07_c163, 0x04c0_003f, 0x3fff, 0x6);
        assert_eq!(
            (cache.level, cache.kind, cache.size),
            (3, CacheKind::Unified, 20 << 20)
        );
        assert_eq!((cache.ways, cache.line, cache.inclusive), (20, 64, true));
    }

    /// Returns two sockets of four cores, whose third level two cores share.
    fn example() -> Topology {
        let cpu = |number: usize| Cpu {
            number,
            core: number as u32 % 4,
            socket: number as u32 / 4,
        };
        let mut third = cpuid_cache(0x63, 0x04c0_003f, 0x3fff, 0);
        third.cpus = BTreeSet::from([0, 1]);
        Topology {
            cpus: (0..8).map(cpu).collect(),
            allowed: (0..8).collect(),
            caches: vec![third],
            differences: Vec::new(),
        }
    }

    #[test]
    fn pairs_have_each_relation_once() {
        let topology = example();
        assert_eq!(
            (topology.sockets(), topology.cores(), topology.threads()),
            (2, 4, 1)
        );
        let expected = [
            (Relation::OtherCore, 0, 1),
            (Relation::OtherGroup, 0, 2),
            (Relation::OtherSocket, 0, 4),
        ];
        assert_eq!(topology.pairs(), expected);
        let alone = Topology {
            allowed: vec![3],
            ..example()
        };
        assert!(alone.pairs().is_empty());
    }

    #[test]
    fn linux_and_cpuid_are_compared() {
        let cpuid = example().caches;
        let mut linux = cpuid.clone();
        linux[0].size /= 2;
        let (caches, differences) = joined(linux.clone(), cpuid.clone(), 0);
        assert_eq!((caches, differences.len()), (linux, 1));
        let (caches, _) = joined(Vec::new(), cpuid, 5);
        assert_eq!(caches[0].cpus, BTreeSet::from([5]));
    }

    #[test]
    fn this_machine_has_caches() {
        let topology = Topology::read().unwrap();
        assert!(topology.data_caches()[0].size >= 8 << 10);
        assert!(!topology.one_a_core().is_empty());
    }
}
