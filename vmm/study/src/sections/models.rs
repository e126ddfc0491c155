//! Readers of `[caches]` and `[memory]`: one description for the tables that the guest reads and for the timing models.

use nodescope_machine::topology::{
    CacheDescription, CacheKind, MemoryPerformance, NodeTopology, SharedBy,
};
use nodescope_plugin_api::{Registry, VcpuPlace};
use nodescope_plugin_cache::{
    ByDistance, CacheConfig, CoherenceLatency, Inclusion, Keep, LevelConfig, LevelLatency,
    NonTemporalStores, Prefetch, Sharing,
};
use nodescope_plugin_numa::Latencies;
use nodescope_window::{Bandwidth, MemorySpec};

use super::effects::LevelField;
use super::node::UNSET;
use super::registered;
use nodescope_config::quantity::{ByteRate, Bytes, Frequency, Latency};
use nodescope_config::reader::{Item, Section};

/// Default cycles of a fill from the own socket's memory: DDR3 of the reference clusters.
const LOCAL: u32 = 100;
/// Default cycles of a fill from another socket's memory.
const REMOTE: u32 = 220;
/// Default local bandwidth in the HMAT: four channels of DDR3-1600.
const LOCAL_BANDWIDTH: ByteRate = ByteRate(51_200_000_000);
/// Default remote bandwidth in the HMAT: one direction of a QPI link of 8 GT/s.
const REMOTE_BANDWIDTH: ByteRate = ByteRate(16_000_000_000);

/// Default cycles of a line from another core of the socket, clean and modified, beyond those of the way to the third level. With the
/// presets' 15 cycles the sums are 43 and 60 cycles, as on Sandy Bridge (Intel's Optimization
/// Reference Manual, "Lookup Order and Load Latency").
const CLEAN: u32 = 28;
const MODIFIED: u32 = 45;
/// Default cycles in which a level that several cores share grants a write to a line that other cores share: those of a clean line.
const UPGRADE: u32 = 43;
/// Default cycles of a line from another socket, and of its permission to write a shared line: three quarters of [`REMOTE`], as on
/// Skylake-SP (110 of 147.5 ns, the constants of Intel's top-down method).
const FROM_SOCKET: u32 = 165;
/// Default cycles of a line from another group of cores: as on Zen 4, 182 ns where local memory takes 110 ns, with [`LOCAL`].
const FROM_GROUP: u32 = 165;
/// Default cycles for which a core keeps a line that others want. With these, a counter that two threads increment by locked instructions
/// is 7 times as slow as with one thread, and neighbouring words of a line are 7 times as slow. Real machines take 7 to 9 times as long for
/// the counter, and 4 to 12 times for the words (`docs/benchmarks.md`, threads that share lines).
const KEPT: Keep = Keep {
    locked: 20,
    stores: 10,
};

/// Returns the default latencies between the caches of a node, with so many cores in a group that shares a level. They are 0 where a node
/// has no such caches.
fn default_coherence(topology: &NodeTopology, group: Option<u16>) -> CoherenceLatency {
    let several_cores = topology.cores_per_socket > 1;
    let several_sockets = topology.sockets > 1;
    let within = |cycles| if several_cores { cycles } else { 0 };
    let between = if several_sockets { FROM_SOCKET } else { 0 };
    let groups = group.is_some_and(|group| u32::from(group) < topology.cores_per_socket);
    let between_groups = if groups { FROM_GROUP } else { 0 };
    let by_distance = |cycles| ByDistance {
        same_core: 0,
        other_core: within(cycles),
        other_group: between_groups,
        other_socket: between,
    };
    CoherenceLatency {
        from: by_distance(CLEAN),
        from_modified: by_distance(MODIFIED),
        snoop: ByDistance {
            other_socket: 0,
            ..by_distance(CLEAN)
        },
        invalidate: ByDistance::default(),
        upgrade: between.max(within(UPGRADE)),
        keep: (several_cores || several_sockets).then_some(KEPT),
    }
}

/// Reads the latency of one event, and returns it in cycles of `frequency`. Reports a problem and returns `None` if the value is no
/// latency, or more than 1,000,000 cycles.
pub(super) fn cycles(item: &Item<'_>, frequency: Frequency) -> Option<u32> {
    let latency: Latency = item.with_unit("12 cycles", "a latency")?;
    let cycles = latency.cycles(frequency);
    match u32::try_from(cycles)
        .ok()
        .filter(|&cycles| cycles <= 1_000_000)
    {
        Some(cycles) => Some(cycles),
        None => {
            item.add_problem(format!(
                "is {cycles} cycles; at most 1000000 are modelled for one event"
            ));
            None
        }
    }
}

fn cycles_or(default: u32, section: &Section<'_>, key: &'static str, frequency: Frequency) -> u32 {
    let item = section.item(key);
    let given = item.and_then(|item| cycles(&item, frequency));
    given.unwrap_or(default)
}

fn cycles_or_zero(section: &Section<'_>, key: &'static str, frequency: Frequency) -> u32 {
    cycles_or(0, section, key, frequency)
}

/// Reads `[caches]`: a preset or a list of levels. Also returns the sections that describe levels.
pub(super) fn caches(
    section: &Section<'_>,
    topology: &NodeTopology,
    registry: &Registry,
) -> (CacheConfig, Vec<LevelField>) {
    let frequency = Frequency(topology.tsc_hz);
    let preset = section.item("preset");
    let chosen = preset
        .as_ref()
        .and_then(|item| item.choice("a preset", &[("gen1", 1), ("gen2", 2)]));
    let mut config = match chosen {
        Some(1) => CacheConfig::xeon_x5680(),
        _ => CacheConfig::xeon_e5_2690(),
    };
    let line_item = section.item("line");
    let line = line_item.as_ref().and_then(|item| {
        let bytes = item.quantity::<Bytes>()?.0;
        let line = u32::try_from(bytes).ok();
        let line = line.filter(|line| line.is_power_of_two() && (32..=4096).contains(line));
        if line.is_none() {
            item.add_problem(format!(
                "is {bytes} bytes; write a power of two from \"32 B\" to \"4096 B\", e.g. \"64 B\""
            ));
        }
        line
    });
    let levels = section.sections("level");
    let mut fields = Vec::new();
    if section.sets("level") {
        if let Some(item) = &preset {
            item.add_problem("is given together with [[caches.level]]; leave out one of them");
        }
        if let Some(own) = own_levels(levels, line.unwrap_or(64), topology, registry) {
            (config, fields) = own;
        }
    } else if let Some(item) = &line_item {
        item.add_problem(
            "belongs to [[caches.level]], and there is none; leave it out or describe the levels",
        );
    }
    let default = default_coherence(topology, config.group());
    if preset.is_some() || !section.sets("level") {
        let last = config.levels.last_mut();
        if let Some(last) = last.filter(|_| topology.cores_per_socket > 1) {
            last.latency.upgrade = UPGRADE;
        }
    }
    let coherence = section.section("coherence");
    let kept = coherence.section("keep");
    let keep = Keep {
        locked: cycles_or(KEPT.locked, &kept, "locked", frequency),
        stores: cycles_or(KEPT.stores, &kept, "stores", frequency),
    };
    kept.finish();
    config.coherence = CoherenceLatency {
        from: by_distance(default.from, &coherence, "from", frequency),
        from_modified: by_distance(
            default.from_modified,
            &coherence,
            "from_modified",
            frequency,
        ),
        snoop: within_socket(default.snoop, &coherence, "snoop", frequency),
        invalidate: by_distance(default.invalidate, &coherence, "invalidate", frequency),
        upgrade: cycles_or(default.upgrade, &coherence, "upgrade", frequency),
        keep: default.keep.and(Some(keep)),
    };
    coherence.finish();
    config.non_temporal_stores = section
        .item("non_temporal_stores")
        .and_then(|item| {
            item.choice(
                "an effect of non-temporal stores",
                &[
                    ("as_stores", NonTemporalStores::AsStores),
                    ("bypass", NonTemporalStores::Bypass),
                ],
            )
        })
        .unwrap_or_default();
    (config, fields)
}

/// Reads latencies between caches of one socket. Caches of different sockets are not asked before data comes from one of them.
fn within_socket(
    default: ByDistance,
    section: &Section<'_>,
    key: &'static str,
    frequency: Frequency,
) -> ByDistance {
    let section = section.section(key);
    let read = |default, key| cycles_or(default, &section, key, frequency);
    let group = ByDistance {
        same_core: read(default.same_core, "same_core"),
        other_core: read(default.other_core, "other_core"),
        other_group: read(default.other_group, "other_group"),
        other_socket: 0,
    };
    section.finish();
    group
}

fn by_distance(
    default: ByDistance,
    section: &Section<'_>,
    key: &'static str,
    frequency: Frequency,
) -> ByDistance {
    let section = section.section(key);
    let read = |default, key| cycles_or(default, &section, key, frequency);
    let group = ByDistance {
        same_core: read(default.same_core, "same_core"),
        other_core: read(default.other_core, "other_core"),
        other_group: read(default.other_group, "other_group"),
        other_socket: read(default.other_socket, "other_socket"),
    };
    section.finish();
    group
}

/// Reads `[[caches.level]]`. Returns `None` if the list is empty or has a problem.
fn own_levels(
    sections: Vec<Section<'_>>,
    line: u32,
    topology: &NodeTopology,
    registry: &Registry,
) -> Option<(CacheConfig, Vec<LevelField>)> {
    let frequency = Frequency(topology.tsc_hz);
    let source = sections.first()?.source();
    let before = source.count();
    let mut instruction: Option<(String, LevelConfig)> = None;
    let mut outward: Vec<(u32, String, LevelConfig)> = Vec::new();
    for section in sections {
        let field = section.path().to_owned();
        let level = section
            .require("level", "1")
            .and_then(|item| item.count(1..=4));
        let kinds = [
            ("data", CacheKind::Data),
            ("instruction", CacheKind::Instruction),
            ("unified", CacheKind::Unified),
        ];
        let default_kind = if level == Some(1) {
            CacheKind::Data
        } else {
            CacheKind::Unified
        };
        let kind_item = section.item("kind");
        let kind = kind_item
            .and_then(|item| item.choice("a kind of cache", &kinds))
            .unwrap_or(default_kind);
        let config = LevelConfig {
            size: section
                .require("size", "\"32 KiB\"")
                .and_then(|item| item.quantity::<Bytes>())
                .map_or(0, |bytes| bytes.0),
            ways: section
                .require("ways", "8")
                .and_then(|item| item.count(1..=1024))
                .unwrap_or(1),
            line,
            shared_by: section
                .item("shared_by")
                .and_then(|item| item.named::<Sharing>("socket"))
                .unwrap_or_default(),
            policy: section
                .item("policy")
                .and_then(|item| registered::policy(&item, registry))
                .unwrap_or_default(),
            inclusion: section
                .item("inclusion")
                .and_then(|item| {
                    item.choice(
                        "an inclusion",
                        &[
                            ("inclusive", Inclusion::Inclusive),
                            ("exclusive", Inclusion::Exclusive),
                            ("non_inclusive", Inclusion::NonInclusive),
                        ],
                    )
                })
                .unwrap_or_default(),
            write_allocate: section
                .item("write_allocate")
                .and_then(|item| item.boolean())
                .unwrap_or(true),
            prefetch: section
                .item("prefetch")
                .map(|item| prefetchers(&item, registry))
                .unwrap_or_default(),
            latency: latencies(&section, frequency),
        };
        section.finish();
        let Some(level) = level else { continue };
        match (level, kind) {
            (1, CacheKind::Instruction) => {
                if instruction.is_some() {
                    source.problem_of(&field, "is a second level 1 instruction cache; a core has one");
                }
                instruction = Some((field, config));
            }
            (1, CacheKind::Data) | (2.., CacheKind::Unified) => {
                if outward.iter().any(|(other, ..)| *other == level) {
                    source.problem_of(&field, format!("describes level {level} a second time; leave one out"));
                }
                outward.push((level, field, config));
            }
            (1, _) => source.problem_of(
                &format!("{field}.kind"),
                "level 1 is modelled as two caches; write \"data\" here and describe another one with kind = \"instruction\"",
            ),
            _ => source.problem_of(
                &format!("{field}.kind"),
                format!("level {level} is modelled as unified; leave kind out"),
            ),
        }
    }
    outward.sort_by_key(|(level, ..)| *level);
    for (index, (level, field, _)) in outward.iter().enumerate() {
        let wanted = index as u32 + 1;
        if *level > wanted
            && index
                .checked_sub(1)
                .is_none_or(|inner| outward[inner].0 < wanted)
        {
            source.problem_of(&format!("{field}.level"), format!("is {level}, but level {wanted} is not described; levels are counted from 1 without gaps"));
            break;
        }
    }
    if source.count() > before {
        return None;
    }
    if outward.is_empty() {
        source.problem_of(
            "caches.level",
            "has no level 1 data cache; describe one with level = 1",
        );
        return None;
    }
    let fields: Vec<&str> = outward.iter().map(|(_, field, _)| field.as_str()).collect();
    let config = CacheConfig {
        instruction: instruction.as_ref().map(|(_, config)| config.clone()),
        levels: outward.iter().map(|(.., config)| config.clone()).collect(),
        coherence: CoherenceLatency::default(),
        non_temporal_stores: NonTemporalStores::AsStores,
    };
    let places = VcpuPlace::grid(
        topology.sockets as u16,
        topology.cores_per_socket as u16,
        topology.threads_per_core as u16,
    );
    for fault in config.faults(&places) {
        let mut text = fault.to_string();
        for (index, field) in fields.iter().enumerate() {
            text = text.replace(&format!("levels[{index}]"), field);
        }
        if let Some((field, _)) = &instruction {
            text = text.replacen("instruction.", &format!("{field}."), 1);
        }
        match text.split_once(": ") {
            Some((field, message)) => source.problem_of(field, message),
            None => source.problem_of("caches.level", text),
        }
    }
    let sections = (fields.iter().enumerate()).map(|(index, field)| LevelField {
        field: (*field).to_owned(),
        index: Some(index),
    });
    let own_instruction = instruction.iter().map(|(field, _)| LevelField {
        field: field.clone(),
        index: None,
    });
    let sections = sections.chain(own_instruction).collect();
    (source.count() == before).then_some((config, sections))
}

/// Reads a list of prefetchers. A prefetcher that is there twice is a problem, since both want the same lines.
fn prefetchers(item: &Item<'_>, registry: &Registry) -> Vec<Prefetch> {
    let mut read: Vec<Prefetch> = Vec::new();
    for item in item.list("[\"next-line\"]") {
        let Some(prefetch) = registered::prefetcher(&item, registry) else {
            continue;
        };
        if read.contains(&prefetch) {
            item.add_problem(format!(
                "is \"{prefetch}\" a second time, which wants the same lines; leave one out"
            ));
        }
        read.push(prefetch);
    }
    read
}

fn latencies(section: &Section<'_>, frequency: Frequency) -> LevelLatency {
    let section = section.section("latency");
    let read = |key| cycles_or_zero(&section, key, frequency);
    let latency = LevelLatency {
        read_hit: read("read_hit"),
        write_hit: read("write_hit"),
        fetch_hit: read("fetch_hit"),
        read_miss: read("read_miss"),
        write_miss: read("write_miss"),
        fetch_miss: read("fetch_miss"),
        writeback: read("writeback"),
        upgrade: read("upgrade"),
    };
    section.finish();
    latency
}

/// Returns the descriptions of the simulated caches that the guest reads by CPUID. The guest is told of inclusion where the study describes
/// the levels (`own`). The presets tell of none, since the bit changes how a C library copies large blocks.
pub(super) fn descriptions(config: &CacheConfig, own: bool) -> Vec<CacheDescription> {
    let describe = |level: usize, kind, config: &LevelConfig| CacheDescription {
        level: level as u8,
        kind,
        size: config.size,
        ways: config.ways,
        line: config.line,
        shared_by: match config.shared_by {
            Sharing::Core => SharedBy::Core,
            Sharing::Cores(cores) => SharedBy::Cores(cores.into()),
            Sharing::Socket => SharedBy::Socket,
        },
        inclusive: own && level > 1 && config.inclusion == Inclusion::Inclusive,
        write_allocate: config.write_allocate,
    };
    let mut caches = Vec::new();
    for (index, level) in config.levels.iter().enumerate() {
        let kind = if index == 0 {
            CacheKind::Data
        } else {
            CacheKind::Unified
        };
        caches.push(describe(index + 1, kind, level));
        if let (0, Some(instruction)) = (index, &config.instruction) {
            caches.push(describe(1, CacheKind::Instruction, instruction));
        }
    }
    caches
}

/// Reads `[memory]`: latencies for the memory model. From these latencies, also sets the topology's HMAT values, and the SLIT distances
/// that the file does not give.
pub(super) fn memory(section: &Section<'_>, topology: &mut NodeTopology) -> MemorySpec {
    let frequency = Frequency(topology.tsc_hz);
    let sockets = topology.sockets as usize;
    let figure = |key| section.item(key).and_then(|item| cycles(&item, frequency));
    let (local, remote) = (figure("local"), figure("remote"));
    let matrix_item = section.item("latency");
    let matrix = matrix_item
        .as_ref()
        .and_then(|item| matrix(item, sockets, |cell| cycles(cell, frequency)));
    if let Some(item) = matrix_item.filter(|_| section.sets("local") || section.sets("remote")) {
        item.add_problem("is given together with local or remote; leave out one of them");
    }
    let fill = match matrix {
        Some(rows) => Latencies::Matrix(rows),
        None => Latencies::Uniform {
            local: local.unwrap_or(LOCAL),
            remote: remote.unwrap_or(REMOTE),
        },
    };
    let write_back = Latencies::Uniform {
        local: figure("local_write_back").unwrap_or(0),
        remote: figure("remote_write_back").unwrap_or(0),
    };

    let stated = |key| {
        section.item(key).and_then(|item| {
            let rate = item.quantity::<ByteRate>()?;
            if !(1_000_000..=10_000_000_000_000).contains(&rate.0) {
                item.add_problem(format!(
                    "is {rate}; write a rate from \"1 MB/s\" to \"10 TB/s\", e.g. \"51.2 GB/s\""
                ));
            }
            Some(rate)
        })
    };
    let (own, other) = (stated("local_bandwidth"), stated("remote_bandwidth"));
    let told = |rate: Option<ByteRate>, default: ByteRate| {
        (rate.unwrap_or(default).0 / 1_000_000).min(u64::from(u32::MAX)) as u32
    };
    let (near, far) = (told(own, LOCAL_BANDWIDTH), told(other, REMOTE_BANDWIDTH));
    let bandwidth = Bandwidth {
        local: own.map(|rate| rate.0),
        remote: other.map(|rate| rate.0),
    };

    let cell = |from: usize, to: usize| match &fill {
        Latencies::Uniform { local, remote } => {
            if from == to {
                *local
            } else {
                *remote
            }
        }
        Latencies::Matrix(rows) => rows[from][to],
    };
    let square = |value: &dyn Fn(usize, usize) -> u32| -> Vec<Vec<u32>> {
        (0..sockets)
            .map(|from| (0..sockets).map(|to| value(from, to)).collect())
            .collect()
    };
    topology.memory_performance = Some(MemoryPerformance {
        // 0 means "not known" in the HMAT, so a value that rounds to less than a nanosecond becomes one.
        latency_ns: square(&|from, to| {
            let ns =
                (u64::from(cell(from, to)) * 1_000_000_000 + frequency.0 / 2) / frequency.0.max(1);
            u32::try_from(ns).unwrap_or(u32::MAX).max(1)
        }),
        bandwidth_mb_s: square(&|from, to| if from == to { near } else { far }),
    });
    for (from, row) in topology.distances.iter_mut().enumerate() {
        for (to, distance) in row.iter_mut().enumerate() {
            if *distance == UNSET {
                *distance = if from == to {
                    10
                } else {
                    let (local, remote) = (u64::from(cell(from, from)), u64::from(cell(from, to)));
                    let ratio = (10 * remote + local / 2).checked_div(local).unwrap_or(20);
                    ratio.clamp(11, 254) as u8
                };
            }
        }
    }
    MemorySpec::Numa {
        latency: fill,
        write_back,
        bandwidth: (own.is_some() || other.is_some()).then_some(bandwidth),
    }
}

fn matrix(
    item: &Item<'_>,
    sockets: usize,
    read: impl Fn(&Item<'_>) -> Option<u32>,
) -> Option<Vec<Vec<u32>>> {
    let example = r#"[["100 cycles", "220 cycles"], ["220 cycles", "100 cycles"]]"#;
    let rows = item.list(example);
    if rows.len() != sockets {
        item.add_problem(format!(
            "has {} rows; {sockets} sockets need {sockets}",
            rows.len()
        ));
        return None;
    }
    let rows: Vec<Option<Vec<u32>>> = rows
        .iter()
        .map(|row| {
            let cells = row.list(example);
            if cells.len() != sockets {
                row.add_problem(format!(
                    "has {} columns; {sockets} sockets need {sockets}",
                    cells.len()
                ));
                return None;
            }
            let cells: Vec<Option<u32>> = cells.iter().map(&read).collect();
            cells.into_iter().collect()
        })
        .collect();
    rows.into_iter().collect()
}
