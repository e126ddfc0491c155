//! Readers of `[cluster]`, `[node]`, `[network]` and `[disk]`.

use nodescope_fabric::LinkConfig;
use nodescope_machine::cpuid::{CpuidOptions, Template, shown};
use nodescope_machine::topology::{MAX_SOCKETS, MAX_VCPUS, NodeTopology, TopologyError};
use nodescope_plugin_core::Parallelism;

use super::MAX_NODES;
use crate::plan::{DEFAULT_BANDWIDTH, DEFAULT_LATENCY, Disk, Network};
use nodescope_config::quantity::{BitRate, ByteRate, Bytes, Frequency, Time};
use nodescope_config::reader::{Item, Section, closest};

/// Placeholder for a distance that the file does not give. The reader of `[memory]` replaces it by a distance from the memory's latencies.
pub(super) const UNSET: u8 = 0;

/// Reads `[cluster]`: the number of nodes, and whether one node boots and all nodes are its clones; None if the file leaves this open.
pub(super) fn cluster(section: &Section<'_>) -> (u32, Option<bool>) {
    let nodes = section.require("nodes", "2");
    let nodes = nodes
        .and_then(|item| item.count(1..=MAX_NODES))
        .unwrap_or(1);
    let boot = section.item("boot").and_then(|item| {
        let ways = [("each", false), ("once", true)];
        item.choice("a way to boot", &ways)
    });
    (nodes, boot)
}

/// Reads `[node]`; caches are filled in later, and distances are [`UNSET`] if the file has none.
pub(super) fn node(section: &Section<'_>) -> (NodeTopology, CpuidOptions) {
    let count = |key, most| {
        let item = section.item(key);
        item.and_then(|item| item.count(1..=most)).unwrap_or(1)
    };
    let sockets = count("sockets", MAX_SOCKETS);
    let cores = count("cores", MAX_VCPUS);
    let threads = count("threads", MAX_VCPUS);
    let frequency = section.item("frequency").and_then(|item| {
        let frequency = item.quantity::<Frequency>()?;
        if !(100_000_000..=10_000_000_000).contains(&frequency.0) {
            item.add_problem(format!(
                "is {frequency}; write a frequency from \"100 MHz\" to \"10 GHz\""
            ));
            return None;
        }
        Some(frequency)
    });
    let frequency = frequency.unwrap_or(Frequency(2_900_000_000));
    let socket_memory = section
        .item("memory")
        .and_then(|item| memory(&item, sockets))
        .unwrap_or_else(|| vec![(256 / u64::from(sockets)) << 21; sockets as usize]);
    let mut topology = NodeTopology::uniform(sockets, cores, threads, 512 << 20);
    topology.socket_memory = socket_memory;
    topology.tsc_hz = frequency.0;
    topology.brand = section
        .item("brand")
        .and_then(|item| item.line("Intel(R) Xeon(R) CPU E5-2690 0 @ 2.90GHz"))
        .unwrap_or_else(|| format!("nodescope virtual CPU @ {:.2}GHz", frequency.0 as f64 / 1e9));
    topology.distances = section
        .item("distances")
        .and_then(|item| distances(&item))
        .unwrap_or_else(|| vec![vec![UNSET; sockets as usize]; sockets as usize]);

    let mut cpuid = CpuidOptions::default();
    if let Some(item) = section.item("hide") {
        for (item, name) in item.lines("avx2") {
            let one = CpuidOptions {
                hidden: vec![name.clone()],
                ..CpuidOptions::default()
            };
            match Template::new(&one) {
                Ok(_) => cpuid.hidden.push(name),
                Err(error) => item.add_problem(error.to_string()),
            }
        }
    }
    (topology, cpuid)
}

/// Reads `node.require`: features that the guests must have.
pub(super) fn required(section: &Section<'_>, cpuid: &CpuidOptions) -> Vec<String> {
    let Some(item) = section.item("require") else {
        return Vec::new();
    };
    let template = Template::new(cpuid).ok();
    let lines = item.lines("avx2").into_iter();
    let required = lines.filter_map(|(item, name)| {
        if !shown().any(|feature| feature.name == name) {
            let names = shown().map(|feature| feature.name);
            let hint = closest(&name, names)
                .map(|close| format!("; did you mean {close:?}?"))
                .unwrap_or_default();
            item.add_problem(format!(
                "{name:?} is no CPU feature that guests can have{hint}"
            ));
            return None;
        }
        if template
            .as_ref()
            .is_some_and(|template| !template.has(&name))
        {
            item.add_problem(format!("{name:?} is hidden by node.hide"));
        }
        Some(name)
    });
    required.collect()
}

/// Maximum number of modelled cores that the report compares.
const MAX_CORES: usize = 4;

/// Reads `node.core` and `node.memory_parallelism`: cores that the report models. Does not check the names, because the host's LLVM
/// decides which names are valid.
pub(super) fn core(section: &Section<'_>) -> (Vec<String>, Parallelism) {
    const EXAMPLE: &str = "skylake-avx512";
    let mut cores: Vec<String> = Vec::new();
    if let Some(item) = section.item("core") {
        if !item.is_list() {
            cores.extend(item.line(EXAMPLE));
        } else {
            for (item, name) in item.lines(EXAMPLE) {
                if cores.contains(&name) {
                    item.add_problem(format!("names {name:?} twice; name each core once"));
                } else {
                    cores.push(name);
                }
            }
            if cores.len() > MAX_CORES {
                let count = cores.len();
                item.add_problem(format!(
                    "names {count} cores; at most {MAX_CORES} are compared"
                ));
            }
        }
    }
    let parallelism = section.item("memory_parallelism").and_then(|item| {
        let millionths = item.millionths(1_000_000..=u64::from(Parallelism::MOST) * 1_000_000)?;
        let parallelism = Parallelism::new(millionths as f64 / 1e6);
        parallelism
            .map_err(|error| item.add_problem(error.to_string()))
            .ok()
    });
    (cores, parallelism.unwrap_or(Parallelism::NONE))
}

/// Reads a memory size: "512 MiB" for the node, or a list with a size for each socket.
fn memory(item: &Item<'_>, sockets: u32) -> Option<Vec<u64>> {
    const STEP: u64 = 2 << 20;
    let right = |item: &Item<'_>, bytes: u64, whose: &str| {
        if bytes < 16 << 20 || !bytes.is_multiple_of(STEP) {
            item.add_problem(format!(
                "is {} {whose}; a socket needs a multiple of 2 MiB and at least 16 MiB",
                Bytes(bytes)
            ));
            return false;
        }
        true
    };
    if !item.is_list() {
        let bytes = item.quantity::<Bytes>()?.0;
        let share = bytes / u64::from(sockets);
        if share * u64::from(sockets) != bytes {
            item.add_problem(format!("{} cannot be split evenly over {sockets} sockets; give a list with a size for each", Bytes(bytes)));
            return None;
        }
        let whose = if sockets == 1 {
            "for the socket"
        } else {
            "for each socket"
        };
        return right(item, share, whose).then(|| vec![share; sockets as usize]);
    }
    let list = item.list(r#"["256 MiB", "256 MiB"]"#);
    if list.len() != sockets as usize {
        item.add_problem(format!(
            "has {} sizes for {sockets} sockets; give one for each",
            list.len()
        ));
        return None;
    }
    let sizes = list.iter().map(|item| {
        let bytes = item.quantity::<Bytes>()?.0;
        right(item, bytes, "for this socket").then_some(bytes)
    });
    sizes.collect()
}

fn distances(item: &Item<'_>) -> Option<Vec<Vec<u8>>> {
    let example = "[[10, 21], [21, 10]]";
    let rows = item.list(example).into_iter().map(|row| {
        let cells = row.list(example).into_iter();
        cells
            .map(|cell| cell.integer(10..=254).map(|value| value as u8))
            .collect::<Option<Vec<u8>>>()
    });
    // All rows are read first, so that the mistakes of all rows are reported.
    let rows: Vec<Option<Vec<u8>>> = rows.collect();
    rows.into_iter().collect()
}

/// Reports problems of the node as a whole.
pub(super) fn check(root: &Section<'_>, topology: &NodeTopology) {
    for error in topology.problems() {
        let (field, message) = match &error {
            TopologyError::Range { field, value, min, max } if *field != "tsc_hz" => {
                let key = if topology.cores_per_socket > 1 { "cores" } else { "sockets" };
                (
                    format!("node.{key}"),
                    format!("{} is {value}; a node has {min} to {max} vCPUs", field.replace("_per_socket", "").replace("_per_core", "")),
                )
            }
            TopologyError::Range { .. } | TopologyError::TscResolution(_) => (
                "node.frequency".into(),
                "is not a multiple of 1 kHz, the resolution of Linux's own clock; write e.g. \"2.9 GHz\"".into(),
            ),
            TopologyError::Brand(brand) => (
                "node.brand".into(),
                format!("{brand:?} is not at most 47 printable ASCII characters, which CPUID has room for"),
            ),
            TopologyError::Distance { from, to, value } => (
                format!("node.distances[{from}][{to}]"),
                format!("is {value}; a socket is 10 from itself and 11 to 254 from another"),
            ),
            TopologyError::Length { field, len, sockets } => (
                format!("node.{field}"),
                format!("has {len} entries; {sockets} sockets need {sockets}"),
            ),
            TopologyError::Memory { .. } => ("node.memory".into(), error.to_string()),
            TopologyError::Cache { level, reason, .. } => (
                format!("caches.level[{}]", level.saturating_sub(1)),
                reason.clone(),
            ),
        };
        root.source().problem_of(&field, message);
    }
}

pub(super) fn network(section: &Section<'_>) -> Network {
    let bandwidth = section.item("bandwidth").and_then(|item| {
        let rate = item.quantity::<BitRate>()?;
        if rate.0 < 1000 {
            item.add_problem("is less than 1 kbit/s; write e.g. \"10 Gbit/s\"");
            return None;
        }
        Some(rate)
    });
    let latency = section.item("latency").and_then(|item| {
        let time = item.quantity::<Time>()?;
        // Nodes are synchronised once per latency.
        if !(10_000..=1_000_000_000_000).contains(&time.0) {
            item.add_problem(format!("is {time}; nodes are synchronised once per latency, so write a time from \"10 ns\" to \"1 s\", e.g. \"1.3 us\""));
            return None;
        }
        Some(time)
    });
    let mtu = section.item("mtu").and_then(|item| {
        let bytes = item.quantity::<Bytes>()?.0;
        if !(576..=65_521).contains(&bytes) {
            item.add_problem(format!(
                "is {bytes} bytes; write a size from \"576 B\" to \"65521 B\", e.g. \"9000 B\""
            ));
            return None;
        }
        u16::try_from(bytes).ok()
    });
    let offload = section.item("offload").and_then(|item| item.boolean());
    let capture = section.item("capture").and_then(|item| item.boolean());
    Network {
        link: LinkConfig {
            bandwidth: bandwidth.unwrap_or(DEFAULT_BANDWIDTH).0,
            latency_ps: latency.unwrap_or(DEFAULT_LATENCY).0,
        },
        mtu: mtu.unwrap_or(1500),
        offload: offload.unwrap_or(true),
        capture: capture.unwrap_or(false),
    }
}

/// Reads `[disk]`: latency and bandwidth of the block devices.
pub(super) fn disk(section: &Section<'_>) -> Disk {
    let latency = section.item("latency").and_then(|item| {
        let time = item.quantity::<Time>()?;
        if time.0 > 1_000_000_000_000 || !time.0.is_multiple_of(1000) {
            item.add_problem(format!(
                "is {time}; write whole nanoseconds up to \"1 s\", e.g. \"20 us\""
            ));
        }
        Some(time)
    });
    let bandwidth = section.item("bandwidth").and_then(|item| {
        let rate = item.quantity::<ByteRate>()?;
        if rate.0 < 1000 {
            item.add_problem("is less than 1 kB/s; write e.g. \"2 GB/s\"");
        }
        Some(rate)
    });
    Disk {
        latency: latency.unwrap_or(Time(20_000_000)),
        bandwidth: bandwidth.unwrap_or(ByteRate(2_000_000_000)),
    }
}
