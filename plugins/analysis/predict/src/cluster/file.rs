//! The file that describes a cluster; `CLUSTER.md` is its reference.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nodescope_config::document::{self, Document, Setting};
use nodescope_config::problem::Problems;
use nodescope_config::quantity::{ByteRate, Bytes, Frequency, Time};
use nodescope_config::reader::{Item, Section};
use nodescope_loop_tree::CollectiveKind;

use super::{Cluster, Noise, Placement, Preset, Progress, Sharing, Speed};
use crate::collective::{Algorithm, Library, Selected};
use crate::network::{Channel, Frames, Model, Table, per_byte};
use crate::topology::{DIMENSIONS, Topology};

/// Most nodes of a cluster or of its topology.
const MOST_NODES: u32 = 1 << 20;
/// Most links of a topology: each link takes memory whether it is used or not.
const MOST_LINKS: u64 = 1 << 22;

/// The text of a cluster file, from which clusters are made with other settings than its own.
#[derive(Clone, Debug)]
pub struct ClusterFile {
    path: PathBuf,
    text: String,
}

impl ClusterFile {
    /// Reads a file, which must describe a cluster.
    ///
    /// # Errors
    ///
    /// All problems of the file, in its order.
    pub fn load(path: &Path) -> Result<ClusterFile, Problems> {
        document::load(path, "a cluster", |path, text| {
            Cluster::parse(path, text)?;
            Ok(ClusterFile::new(path, text))
        })
    }

    /// Returns a cluster file with this text, which is not checked yet.
    pub fn new(path: &Path, text: &str) -> ClusterFile {
        ClusterFile {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Returns the cluster, as if the file had these settings in place of its own.
    ///
    /// # Errors
    ///
    /// All problems of the file and the settings.
    pub fn with(&self, settings: &[Setting]) -> Result<Cluster, Problems> {
        let read = document::read_with(&self.path, &self.text, settings, "a cluster", |root| {
            cluster(&self.path, root)
        });
        read.checked.map(|(cluster, _)| cluster)
    }
}

impl Cluster {
    /// Reads the cluster in file `path`.
    ///
    /// # Errors
    ///
    /// All problems of the file, in its order.
    pub fn load(path: &Path) -> Result<Cluster, Problems> {
        document::load(path, "a cluster", Cluster::parse)
    }

    /// Reads the text of a cluster file.
    ///
    /// # Errors
    ///
    /// As [`Cluster::load`].
    pub fn parse(file: &Path, text: &str) -> Result<Cluster, Problems> {
        read(file, text).checked.map(|(cluster, _)| cluster)
    }
}

/// Returns all fields that were looked up in a text. For the test of the reference.
#[doc(hidden)]
pub fn known_fields(file: &Path, text: &str) -> BTreeSet<String> {
    read(file, text).known
}

fn read(file: &Path, text: &str) -> Document<Cluster> {
    document::read(file, text, "a cluster", |root| cluster(file, root))
}

fn cluster(file: &Path, root: &Section<'_>) -> Cluster {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy());
    let name = root
        .item("name")
        .and_then(|item| item.line("gen2"))
        .unwrap_or_else(|| stem.unwrap_or_default().into_owned());
    let mut cluster = Cluster::simple(&name, Channel::new(Model::LogGp, 0, 0));
    cluster.contention = true;
    cluster.progress = Progress::Calls;
    let section = root.section("nodes");
    nodes(&section, &mut cluster);
    section.finish();
    let section = root.section("network");
    network(&section, &mut cluster);
    section.finish();
    let section = root.section("topology");
    topology(&section, &mut cluster);
    section.finish();
    let memory = root.section("memory");
    if memory.present() {
        let mut channel = Channel::new(Model::LogGp, 0, 0);
        costs(&memory, &mut channel, true);
        cluster.memory = channel;
    } else {
        cluster.memory = Channel {
            gap: 0,
            ..cluster.network.clone()
        };
    }
    if let Some(item) = memory.item("contention") {
        cluster.memory_contention = item.boolean().unwrap_or(false);
    }
    memory.finish();
    let section = root.section("collectives");
    collectives(&section, &mut cluster);
    section.finish();
    cluster
}

fn nodes(section: &Section<'_>, cluster: &mut Cluster) {
    if let Some(item) = section.item("count") {
        cluster.nodes = item.count(1..=MOST_NODES).or(cluster.nodes);
    }
    if let Some(item) = section.item("cores") {
        cluster.cores = item.count(1..=1 << 16).unwrap_or(1);
    }
    cluster.ranks_per_node = None;
    cluster.placement = Placement::Traced;
    let ranks_item = section.item("ranks_per_node");
    if let Some(item) = &ranks_item
        && let Some(ranks) = item.count(1..=1 << 16)
    {
        if ranks > cluster.cores {
            item.add_problem(format!(
                "is {ranks}, but a node has {} cores (nodes.cores); lower one or raise the other",
                cluster.cores
            ));
        }
        cluster.ranks_per_node = Some(ranks);
        cluster.placement = Placement::Block;
    }
    if let Some(item) = section.item("threads_per_rank") {
        cluster.threads_per_rank = item.count(1..=1 << 16);
    }
    if let Some(item) = section.item("placement") {
        if item.is_list() {
            let nodes = item.list("[0, 0, 1, 1]");
            let nodes = nodes.iter().map(|node| node.count(0..=MOST_NODES - 1));
            cluster.placement = Placement::Nodes(nodes.map(Option::unwrap_or_default).collect());
        } else {
            let names = [("traced", 0), ("block", 1), ("cyclic", 2)];
            cluster.placement = match item.choice("a placement", &names) {
                Some(1) => Placement::Block,
                Some(2) => Placement::Cyclic,
                _ => Placement::Traced,
            };
        }
        if let (Some(ranks), Placement::Traced) = (&ranks_item, &cluster.placement) {
            ranks.add_problem(
                "has no effect beside nodes.placement = \"traced\", which has as many ranks on each node as where they were traced; leave out one of them",
            );
        }
    }
    cluster.uncertainty.computation = uncertainty(section);
    node_speeds(section, cluster);
    noise(section, cluster);
    let speed = section.item("speed");
    let cpi = section.item("cpi");
    let frequency = section.item("frequency");
    match (&speed, &cpi, &frequency) {
        (Some(speed), None, None) => {
            if let Some(factor) = speed.millionths(1..=1_000_000_000_000) {
                cluster.speed = Speed::Factor(factor as f64 / 1e6);
            }
        }
        (None, Some(cpi), Some(frequency)) => {
            let value = cpi.millionths(1..=1_000_000_000);
            let clock = frequency.quantity::<Frequency>();
            if clock == Some(Frequency(0)) {
                frequency.add_problem("is 0; write e.g. \"2.9 GHz\"");
            } else if let (Some(value), Some(clock)) = (value, clock) {
                cluster.speed = Speed::Cpi {
                    cpi: value as f64 / 1e6,
                    frequency: clock.0,
                };
            }
        }
        (None, None, None) => {}
        (Some(speed), _, _) => speed.add_problem(
            "stands beside cpi or frequency; write either speed, or cpi and frequency",
        ),
        (None, Some(cpi), None) => {
            cpi.add_problem("needs nodes.frequency; write e.g. frequency = \"2.9 GHz\" beside it");
        }
        (None, None, Some(frequency)) => {
            frequency.add_problem("needs nodes.cpi; write e.g. cpi = 0.9 beside it");
        }
    }
}

fn network(section: &Section<'_>, cluster: &mut Cluster) {
    let preset = section.item("preset");
    let preset = preset.and_then(|item| item.choice("a network", &Preset::ALL));
    if let Some(preset) = preset {
        cluster.network = preset.channel();
    }
    if let Some(item) = section.item("model") {
        let models = [("loggp", Model::LogGp), ("post", Model::Post)];
        cluster.network.model = (item.choice("a model", &models)).unwrap_or(Model::LogGp);
    }
    costs(section, &mut cluster.network, preset.is_none());
    cluster.uncertainty.messages = uncertainty(section);
    if let Some(item) = section.item("contention") {
        cluster.contention = item.boolean().unwrap_or(true);
    }
    let buffer = section.item("connection_buffer");
    if let Some(bytes) = buffer.as_ref().and_then(|item| item.quantity::<Bytes>()) {
        cluster.connection_buffer = bytes.0;
    }
    for (key, time_of) in [
        ("connection_poll", &mut cluster.connection_poll),
        ("connection_setup", &mut cluster.connection_setup),
    ] {
        if let Some(item) = section.item(key) {
            *time_of = time(&item).unwrap_or_default();
        }
    }
    let sharing = section.item("sharing");
    if let Some(item) = &sharing {
        let ways = [
            ("queue", Sharing::Queue),
            ("fair", Sharing::Fair),
            ("round-trip", Sharing::RoundTrip),
            ("frames", Sharing::Frames),
        ];
        cluster.sharing = (item.choice("a way to share links", &ways)).unwrap_or_default();
    }
    if let Some(item) = section.item("hop_latency") {
        cluster.hop_latency = time(&item).unwrap_or_default();
    }
    if let Some(item) = section.item("link_bandwidth") {
        cluster.link_per_byte = rate(&item).map(per_byte);
    }
    progress(section, cluster);
    if let Some(item) = section.item("accesses_in_calls") {
        cluster.accesses_in_calls = item.boolean().unwrap_or(false);
        if cluster.accesses_in_calls && cluster.progress != Progress::Calls {
            item.add_problem("is without a progress thread; leave out progress_thread");
        }
    }
    if let Some(item) = buffer {
        let known = matches!(cluster.sharing, Sharing::Queue | Sharing::Frames);
        if cluster.contention && !known {
            item.add_problem(
                "needs to know when data has left: write sharing = \"frames\" or \"queue\"",
            );
        }
        if cluster.posts() {
            item.add_problem(
                "is of model = \"loggp\": with \"post\", a send ends when its message has arrived",
            );
        }
    }
    if let (Some(item), Err(error)) = (sharing, cluster.can_share()) {
        item.add_problem(format!("does not go with the other values: {error}"));
    }
}

/// Reads the speeds of single nodes.
fn node_speeds(section: &Section<'_>, cluster: &mut Cluster) {
    let Some(item) = section.item("speeds") else {
        return;
    };
    for entry in item.list("[{ node = 3, speed = 0.8 }]") {
        if !entry.is_table() {
            entry.add_problem("is no node's speed; write { node = 3, speed = 0.8 }");
            continue;
        }
        let point = entry.section();
        let node = point.require("node", "3");
        let speed = point.require("speed", "0.8");
        let node = node.and_then(|item| item.count(0..=MOST_NODES - 1));
        let speed = speed.and_then(|item| item.millionths(1..=1_000_000_000));
        if let (Some(node), Some(nodes)) = (node, cluster.nodes)
            && node >= nodes
        {
            entry.add_problem(format!(
                "is of no node: the cluster has {nodes}, from 0 (nodes.count); name one of them"
            ));
        }
        if let (Some(node), Some(speed)) = (node, speed)
            && cluster.node_speeds.insert(node, speed as u32).is_some()
        {
            entry.add_problem("is of a node that has a speed already; leave out one of them");
        }
        point.finish();
    }
}

/// Reads the interruptions of computation.
fn noise(section: &Section<'_>, cluster: &mut Cluster) {
    let interval = section.item("noise_interval");
    let lasts = section.item("noise_time");
    match (&interval, &lasts) {
        (Some(interval), Some(lasts)) => {
            if let (Some(interval), Some(time)) = (time(interval), time(lasts)) {
                match time {
                    0 => lasts.add_problem("is 0, which has no effect; leave both keys out"),
                    time if time >= interval => lasts.add_problem(
                        "is no less than noise_interval; nothing would be computed; write e.g. \"5 us\"",
                    ),
                    time => cluster.noise = Some(Noise { interval, time }),
                }
            }
        }
        (None, None) => {}
        (Some(item), None) => item.add_problem("needs noise_time; write e.g. \"5 us\""),
        (None, Some(item)) => item.add_problem("needs noise_interval; write e.g. \"1 ms\""),
    }
}

/// Reads a relative standard deviation.
fn uncertainty(section: &Section<'_>) -> f64 {
    let item = section.item("uncertainty");
    let value = item.and_then(|item| item.millionths(0..=1_000_000));
    value.unwrap_or_default() as f64 / 1e6
}

fn progress(section: &Section<'_>, cluster: &mut Cluster) {
    let thread = section.item("progress_thread");
    let beta = section.item("beta");
    let runs = thread.as_ref().and_then(Item::boolean).unwrap_or(false);
    if runs {
        cluster.progress = Progress::Thread { beta: 0.0 };
    }
    if let Some(item) = section.item("take_in") {
        cluster.receives_unexpected = item.boolean().unwrap_or(false);
        if runs && cluster.receives_unexpected {
            item.add_problem(
                "is what a rank does that waits; with progress_thread = true a thread does it",
            );
        }
    }
    if let Some(item) = beta {
        if !runs {
            item.add_problem("is the share of a progress thread; write progress_thread = true too");
        }
        if let Some(beta) = item.millionths(0..=999_999)
            && runs
        {
            cluster.progress = Progress::Thread {
                beta: beta as f64 / 1e6,
            };
        }
    }
}

fn rate(item: &Item<'_>) -> Option<u64> {
    let rate = item.quantity::<ByteRate>()?.0;
    if rate == 0 {
        item.add_problem("is 0; write e.g. \"1.25 GB/s\"");
        return None;
    }
    Some(rate)
}

/// Reads the costs of a channel. If `required` is true, the file must give latency and bandwidth.
fn costs(section: &Section<'_>, channel: &mut Channel, required: bool) {
    let (latency, bandwidth) = if required {
        (
            section.require("latency", "\"1.3 us\""),
            section.require("bandwidth", "\"1.25 GB/s\""),
        )
    } else {
        (section.item("latency"), section.item("bandwidth"))
    };
    if let Some(latency) = latency.and_then(|item| time(&item)) {
        channel.latency = latency;
    }
    if let Some(rate) = bandwidth.and_then(|item| rate(&item)) {
        channel.per_byte = per_byte(rate);
    }
    if let Some(item) = section.item("service_latency")
        && let Some(latency) = time(&item)
    {
        channel.service_latency = Some(latency);
    }
    if let Some(item) = section.item("envelope") {
        channel.envelope = small(&item).unwrap_or_default();
    }
    if let Some(gap) = section.item("gap").and_then(|item| time(&item)) {
        channel.gap = gap;
    }
    let both = section.item("overhead").map(|item| table(&item));
    let sends = section.item("send_overhead").map(|item| table(&item));
    let receives = section.item("receive_overhead").map(|item| table(&item));
    if let Some(table) = sends.or(both.clone()) {
        channel.send_overhead = table;
    }
    if let Some(table) = receives.or(both) {
        channel.receive_overhead = table;
    }
    if let Some(item) = section.item("buffered_overhead") {
        channel.buffered_overhead = Some(table(&item));
    }
    if let Some(item) = section.item("queued_overhead") {
        channel.queued_overhead = Some(table(&item));
    }
    if let Some(item) = section.item("pack_overhead") {
        channel.pack_overhead = table(&item);
    }
    if let Some(item) = section.item("unpack_overhead") {
        channel.unpack_overhead = table(&item);
    }
    frames(section, channel);
    if let Some(bytes) = section
        .item("eager_limit")
        .and_then(|item| item.quantity::<Bytes>())
    {
        channel.eager_limit = bytes.0;
    }
    if let Some(rate) = section.item("copy_bandwidth").and_then(|item| rate(&item)) {
        channel.copy_per_byte = per_byte(rate);
    }
    if let Some(rate) = section.item("send_bandwidth").and_then(|item| rate(&item)) {
        channel.send_per_byte = per_byte(rate);
    }
}

/// Reads one time of a message's costs, picoseconds; `None`, with a problem, if the time is too long.
fn time(item: &Item<'_>) -> Option<u64> {
    let time = item.quantity::<Time>()?;
    if time > MOST_TIME {
        item.add_problem(format!(
            "is {time}; nothing of a message may take more than {MOST_TIME}, e.g. write \"1.3 us\""
        ));
        return None;
    }
    Some(time.0)
}

/// The longest time that the file may give: an hour.
const MOST_TIME: Time = Time(3_600_000_000_000_000);

/// Reads a number of bytes that is sent with each message, at most 1 GiB.
fn small(item: &Item<'_>) -> Option<u64> {
    let bytes = item.quantity::<Bytes>()?.0;
    if bytes > 1 << 30 {
        item.add_problem("is more than 1 GiB; write e.g. \"64 B\"");
        return None;
    }
    Some(bytes)
}

/// Reads the frames and headers that messages need on the wire beyond their bytes.
fn frames(section: &Section<'_>, channel: &mut Channel) {
    let bytes = |key: &'static str| {
        let item = section.item(key)?;
        let bytes = small(&item)?;
        Some((item, bytes))
    };
    let acknowledge = section.item("frame_acknowledge");
    let acknowledge = acknowledge.and_then(|item| item.count(0..=1 << 16));
    match (bytes("frame_payload"), bytes("frame_header")) {
        (Some((item, 0)), _) => item.add_problem("is 0; write e.g. \"1448 B\""),
        (Some((_, payload)), header) => {
            channel.frames = Some(Frames {
                payload,
                header: header.map_or(0, |(_, bytes)| bytes),
                acknowledge: acknowledge.map_or(0, u64::from),
            });
        }
        (None, Some((item, _))) => {
            item.add_problem("is of frames; write e.g. frame_payload = \"1448 B\" too");
        }
        (None, None) => {}
    }
    if let Some(item) = section.item("acknowledgement_overhead") {
        channel.acknowledgement_overhead = time(&item).unwrap_or_default();
        if channel.frames.is_none_or(|frames| frames.acknowledge == 0) {
            item.add_problem("is of acknowledged frames; write e.g. frame_acknowledge = 2 too");
        }
    }
}

/// Reads a time, or a list of `{ bytes = "1 KiB", time = "2 us" }`.
fn table(item: &Item<'_>) -> Table {
    if !item.is_list() {
        return Table::constant(time(item).unwrap_or_default());
    }
    let mut points: Vec<(u64, u64)> = Vec::new();
    let entries = item.list("[{ bytes = \"0 B\", time = \"1 us\" }]");
    if entries.is_empty() {
        item.add_problem(
            "is empty; write a time, or at least one { bytes = \"0 B\", time = \"1 us\" }",
        );
    }
    for entry in entries {
        if !entry.is_table() {
            entry.add_problem("is no point of a table; write { bytes = \"0 B\", time = \"1 us\" }");
            continue;
        }
        let point = entry.section();
        let bytes = point.require("bytes", "\"1 KiB\"");
        let costs = point.require("time", "\"2 us\"");
        let bytes = bytes.and_then(|item| item.quantity::<Bytes>());
        let costs = costs.and_then(|item| time(&item));
        if let (Some(bytes), Some(costs)) = (bytes, costs) {
            if points.last().is_some_and(|&(last, _)| last >= bytes.0) {
                entry.add_problem(
                    "has no more bytes than the point before; sort the points by bytes",
                );
            }
            points.push((bytes.0, costs));
        }
        point.finish();
    }
    Table { points }
}

fn topology(section: &Section<'_>, cluster: &mut Cluster) {
    let kinds = [
        ("crossbar", 0),
        ("fat-tree", 1),
        ("torus", 2),
        ("dragonfly", 3),
    ];
    let kind = section.item("kind");
    let kind = kind.and_then(|item| item.choice("a topology", &kinds));
    let sizes = |key: &'static str, example: &str, required: bool| {
        let item = if required {
            section.require(key, example)
        } else {
            section.item(key)
        };
        let list = item.iter().flat_map(|item| item.list(example));
        let sizes: Vec<u32> = list.filter_map(|item| item.count(1..=1 << 20)).collect();
        (item, sizes)
    };
    match kind {
        Some(1) => {
            let (item, down) = sizes("down", "[16, 8]", true);
            let (_, up) = sizes("up", "[8]", true);
            if let Some(item) = item {
                if down.is_empty() || down.len() > 16 {
                    item.add_problem("must have 1 to 16 levels");
                } else if up.len() + 1 != down.len() {
                    item.add_problem(format!(
                        "has {} levels, so up must have {} entries, one for each level but the top",
                        down.len(),
                        down.len() - 1
                    ));
                } else {
                    cluster.topology = Topology::FatTree { down, up };
                }
            }
        }
        Some(2) => {
            let (item, size) = sizes("size", "[8, 8, 8]", true);
            if let Some(item) = item {
                if size.is_empty() || size.len() > DIMENSIONS {
                    item.add_problem(format!("must have 1 to {DIMENSIONS} dimensions"));
                } else {
                    cluster.topology = Topology::Torus { size };
                }
            }
        }
        Some(3) => {
            let count = |key: &'static str| {
                section
                    .require(key, "4")
                    .and_then(|item| item.count(1..=1 << 12))
            };
            let parts = (count("groups"), count("routers"), count("nodes"));
            if let (Some(groups), Some(routers), Some(nodes)) = parts {
                cluster.topology = Topology::Dragonfly {
                    groups,
                    routers,
                    nodes,
                };
            }
        }
        _ => {}
    }
    let capacity = cluster.topology.capacity();
    let links = match cluster.topology {
        Topology::Crossbar => 0,
        _ if capacity > u64::from(MOST_NODES) => u64::MAX,
        _ => cluster.topology.links(capacity as u32),
    };
    if links > MOST_LINKS {
        section.add_problem(
            "kind",
            format!("has {capacity} nodes; a topology may have at most {MOST_NODES} nodes and {MOST_LINKS} links, so make it smaller"),
        );
        cluster.topology = Topology::Crossbar;
    } else if let Some(nodes) = cluster.nodes
        && u64::from(nodes) > capacity
    {
        section.add_problem(
            "kind",
            format!("connects {capacity} nodes, but nodes.count is {nodes}"),
        );
    }
}

fn collectives(section: &Section<'_>, cluster: &mut Cluster) {
    if let Some(item) = section.item("library") {
        let libraries = [("openmpi", Library::OpenMpi), ("mpich", Library::Mpich)];
        cluster.collectives.library =
            (item.choice("an MPI library", &libraries)).unwrap_or(Library::OpenMpi);
    }
    if let Some(item) = section.item("reduce_bandwidth") {
        cluster.reduce_per_byte = rate(&item).map_or(0.0, per_byte);
    }
    if let Some(item) = section.item("datatype_overhead") {
        cluster.datatype_overhead = time(&item).unwrap_or_default();
    }
    let segment = section.item("segment");
    let segment = segment.and_then(|item| item.quantity::<Bytes>());
    for kind in CollectiveKind::ALL {
        let Some(item) = section.item(kind.name()) else {
            continue;
        };
        let able: Vec<(&str, Algorithm)> = (Algorithm::ALL.into_iter())
            .filter(|algorithm| algorithm.can(kind))
            .map(|algorithm| (algorithm.name(), algorithm))
            .collect();
        if let Some(algorithm) = item.choice(&format!("an algorithm for {}", kind.name()), &able) {
            let selected = Selected {
                algorithm,
                segment: segment.map_or(64 << 10, |bytes| bytes.0),
            };
            cluster.collectives.fixed.insert(kind, selected);
        }
    }
}
