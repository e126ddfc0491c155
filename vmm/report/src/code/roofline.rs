//! Roofline: floating-point operations per byte that a memory level supplied, compared with the limits of the modelled machine.
//!
//! The peak is one FMA per cycle of the widest class that the window counted. Where the study states the bandwidth of a socket's memory, the
//! ceiling of memory is a core's share of it while all cores of the socket work. A study cannot state bandwidths of caches. Their ceilings,
//! and memory's without a stated bandwidth, are one line per latency: the bandwidth of a core that waits for one miss at a time, as in the
//! models. Bytes of a level are the lines that the level supplied. Bytes of the first level are data accesses times 8, because the sizes of accesses are not counted.

use std::collections::{BTreeMap, BTreeSet};

use nodescope_plugin_api::{FLOP_CLASSES, FlopClass, Source};
use nodescope_profile::{Costs, WindowProfile};
use nodescope_window::{CacheConfig, Latencies, MemorySpec, WindowRecord};
use serde::Serialize;

use super::costs::{LINE, Sum};
use crate::breakdown::CYCLE;

/// Rates of functions on one core, and the core's limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Roofline {
    /// Frequency of the first node's vCPUs in Hz, by which cycles are converted to time.
    pub frequency_hz: u64,
    /// Widest class of operations that was counted; `None` without operations.
    pub widest: Option<&'static str>,
    /// Peak of one core in FLOP/s: an FMA of the widest class in each cycle.
    pub peak_flops: f64,
    /// Scalar limit of one core in FLOP/s: one scalar operation in each cycle.
    pub scalar_flops: f64,
    /// Bandwidths of the memory levels.
    pub ceilings: Vec<Ceiling>,
    /// Functions with floating-point operations, most expensive first, at most [`Roofline::MOST`].
    pub functions: Vec<RooflineRow>,
}

/// Bandwidth of a memory level for one core.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ceiling {
    /// Name of the level: `L1`, `L2`, `L3`, `memory` or `memory_remote`.
    pub level: &'static str,
    /// Cycles of a read that the level answers, including the misses of the levels before it.
    pub latency: u64,
    /// Bandwidth in bytes per second of a core that waits for one line at a time, or for one access of 8 bytes to the first level; `None` if
    /// the latency is 0.
    pub bytes_per_second: Option<f64>,
    /// Bandwidth of a socket's memory in bytes per second, as the study states it; `None` if the study does not state it.
    pub stated_bytes_per_second: Option<u64>,
    /// Share of one core in the stated bandwidth if all cores of the socket work, bytes per second.
    pub stated_share: Option<f64>,
}

impl Ceiling {
    /// Returns the bandwidth that limits a core: the stated one if the study states it; `None` without any.
    fn limit(&self) -> Option<f64> {
        self.stated_share.or(self.bytes_per_second)
    }
}

/// Row of the roofline: a function with its rate, and its intensity at each level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RooflineRow {
    /// Name of the function.
    pub function: String,
    /// Number of floating-point operations.
    pub flops: u128,
    /// Rate in FLOP/s of one core while the function is executed.
    pub flops_per_second: f64,
    /// Operational intensity of the function at each memory level.
    pub levels: Vec<LevelPoint>,
    /// Name of the lowest limit of the function: a level, or `peak`.
    pub limit: &'static str,
    /// Rate in FLOP/s of one core that the lowest limit allows.
    pub limit_flops: f64,
}

/// Operational intensity of a function at one memory level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LevelPoint {
    /// Name of the level: `L1`, `L2`, `L3`, `memory`.
    pub level: &'static str,
    /// Bytes that the level supplied.
    pub bytes: u128,
    /// Floating-point operations per byte; `None` without bytes.
    pub flops_per_byte: Option<f64>,
}

/// Memory levels at which functions are shown.
pub(super) const LEVELS: [&str; 4] = ["L1", "L2", "L3", "memory"];
/// Number of bytes that one data access of the first level counts as.
const ACCESS: u128 = 8;

impl Roofline {
    /// Maximum number of functions in the roofline.
    pub const MOST: usize = 20;

    pub(super) fn new(
        record: &WindowRecord,
        profile: &WindowProfile,
        functions: &[(u32, Sum)],
    ) -> Roofline {
        let frequency_hz = record.nodes.first().map_or(0, |node| node.frequency_hz);
        let frequency = frequency_hz as f64;
        let mut classes = [0; FLOP_CLASSES];
        for (_, sum) in functions {
            for (sum, count) in classes.iter_mut().zip(sum.costs.flops) {
                *sum += count;
            }
        }
        let widest = (FlopClass::ALL.into_iter())
            .filter(|&class| classes[class as usize] > 0)
            .max_by_key(|&class| lanes(class));
        let mut roofline = Roofline {
            frequency_hz,
            widest: widest.map(FlopClass::name),
            peak_flops: widest.map_or(0.0, |class| 2.0 * f64::from(lanes(class)) * frequency),
            scalar_flops: frequency,
            ceilings: ceilings(record, frequency),
            functions: Vec::new(),
        };
        let busy = |sum: &Sum| sum.costs.flops_total() > 0 && sum.costs.cycles_65536() > 0;
        for (index, sum) in functions
            .iter()
            .filter(|(_, sum)| busy(sum))
            .take(Self::MOST)
        {
            let name = profile.functions[*index as usize].name.clone();
            let row = roofline.row(name, &sum.costs);
            roofline.functions.push(row);
        }
        roofline
    }

    fn row(&self, function: String, costs: &Costs) -> RooflineRow {
        let flops = costs.flops_total();
        let cycles = costs.cycles_65536() as f64 / CYCLE as f64;
        let answered = |source: Source| costs.answers[source as usize];
        let bytes = [
            ACCESS * (costs.loads + costs.stores),
            LINE * answered(Source::Level2),
            LINE * (answered(Source::Level3) + answered(Source::OtherCache)),
            LINE * super::costs::memory_lines(costs),
        ];
        let levels: Vec<LevelPoint> = (LEVELS.into_iter().zip(bytes))
            .map(|(level, bytes)| LevelPoint {
                level,
                bytes,
                flops_per_byte: (bytes != 0).then(|| flops as f64 / bytes as f64),
            })
            .collect();
        let mut lowest = ("peak", self.peak_flops);
        for point in &levels {
            let allowed = self
                .ceiling(point.level)
                .zip(point.flops_per_byte)
                .map(|(bandwidth, intensity)| bandwidth * intensity);
            if let Some(allowed) = allowed.filter(|&allowed| allowed < lowest.1) {
                lowest = (point.level, allowed);
            }
        }
        RooflineRow {
            function,
            flops,
            flops_per_second: flops as f64 * self.frequency_hz as f64 / cycles,
            levels,
            limit: lowest.0,
            limit_flops: lowest.1,
        }
    }

    /// Returns the bandwidth of a level that limits a core, in bytes per second; `None` without a model of the level, or without a stated
    /// bandwidth and with latency 0.
    pub(super) fn ceiling(&self, level: &str) -> Option<f64> {
        let ceiling = self.ceilings.iter().find(|ceiling| ceiling.level == level);
        ceiling.and_then(Ceiling::limit)
    }
}

/// Returns the number of elements in a register of this class.
fn lanes(class: FlopClass) -> u32 {
    match class {
        FlopClass::X87 | FlopClass::ScalarSingle | FlopClass::ScalarDouble => 1,
        FlopClass::Packed128Double => 2,
        FlopClass::Packed128Single | FlopClass::Packed256Double => 4,
        FlopClass::Packed256Single => 8,
    }
}

/// Returns the largest number of cores of a socket of the first node, at least 1.
fn cores_of_socket(record: &WindowRecord) -> u32 {
    let mut cores: BTreeMap<u16, BTreeSet<u16>> = BTreeMap::new();
    for place in record.nodes.iter().take(1).flat_map(|node| &node.vcpus) {
        cores.entry(place.socket).or_default().insert(place.core);
    }
    let most = cores.values().map(BTreeSet::len).max().unwrap_or(1);
    most.max(1) as u32
}

fn ceilings(record: &WindowRecord, frequency: f64) -> Vec<Ceiling> {
    let models = &record.spec.models;
    let mut ceilings = Vec::new();
    let cores = cores_of_socket(record);
    let mut add = |level, latency: u64, bytes: u32, stated: Option<u64>| {
        ceilings.push(Ceiling {
            level,
            latency,
            bytes_per_second: (latency != 0).then(|| f64::from(bytes) * frequency / latency as f64),
            stated_bytes_per_second: stated,
            stated_share: stated.map(|rate| rate as f64 / f64::from(cores)),
        });
    };
    let none = Vec::new();
    let levels = models
        .caches
        .as_ref()
        .map_or(&none, |caches: &CacheConfig| &caches.levels);
    let line = levels.first().map_or(LINE as u32, |level| level.line);
    let mut missed = 0;
    for (n, level) in levels.iter().enumerate() {
        if let Some(&name) = LEVELS[..3].get(n) {
            let bytes = if n == 0 { ACCESS as u32 } else { line };
            add(
                name,
                missed + u64::from(level.latency.read_hit),
                bytes,
                None,
            );
        }
        missed += u64::from(level.latency.read_miss);
    }
    let memory = match (&models.memory, levels.is_empty()) {
        (Some(memory), _) => memory.clone(),
        (None, false) => MemorySpec::flat(),
        (None, true) => return ceilings,
    };
    match memory {
        MemorySpec::Flat { latency } => {
            add("memory", missed + u64::from(latency), line, None);
        }
        MemorySpec::Numa {
            latency, bandwidth, ..
        } => {
            let (local, remote) = match latency {
                Latencies::Uniform { local, remote } => (Some(local), Some(remote)),
                Latencies::Matrix(rows) => {
                    let cells = || {
                        rows.iter().enumerate().flat_map(|(from, row)| {
                            row.iter()
                                .enumerate()
                                .map(move |(to, &cell)| (from == to, cell))
                        })
                    };
                    let least = |own: bool| {
                        let cells = cells().filter(|(is_own, _)| *is_own == own);
                        cells.map(|(_, cell)| cell).min()
                    };
                    (least(true), least(false))
                }
            };
            let own = bandwidth.and_then(|stated| stated.local);
            let other = bandwidth.and_then(|stated| stated.remote);
            for (name, latency, stated) in
                [("memory", local, own), ("memory_remote", remote, other)]
            {
                if let Some(latency) = latency {
                    add(name, missed + u64::from(latency), line, stated);
                }
            }
        }
    }
    ceilings
}
