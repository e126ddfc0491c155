//! Keys that would have no effect in their study. Each is a problem that says why, because a figure that the user states and nothing uses
//! is a wrong answer without a word.
//!
//! `vmm/study/tests/effects.rs` has an example of each.

use nodescope_config::reader::{Section, Source};
use nodescope_plugin_cache::{
    ByDistance, CacheConfig, Inclusion, LevelConfig, LevelLatency, NonTemporalStores, Policy,
    Prefetch, Sharing,
};
use nodescope_window::MemorySpec;

use crate::plan::Study;

/// Bytes of a page, which no prefetcher leaves.
const PAGE: u32 = 4096;

/// What a node has that decides whether caches meet.
struct Shape {
    cores: bool,
    sockets: bool,
    /// True if a level is shared by groups of cores of which a socket has several.
    groups: bool,
    /// True if a core has an instruction cache beside its data cache.
    instruction: bool,
    /// True if the first-level caches are the outermost caches.
    one_level: bool,
    /// True if a socket has several first-level caches of one kind.
    private_first: bool,
    /// True if a socket has several outermost caches of one kind.
    private_last: bool,
    /// True if a level has caches of several cores inside.
    gathers: bool,
    /// True if a level asks the caches of several cores inside it for lines that it lacks.
    asks_cores: bool,
    /// True if the second level asks the first-level caches of a core for lines that it lacks.
    asks_first: bool,
    /// For each level, whether it may be asked for permission to write a line that caches inside it share.
    grants: Vec<bool>,
    /// True if the interconnect may be asked for that by the only outermost cache.
    grants_alone: bool,
}

impl Shape {
    fn new(study: &Study, caches: &CacheConfig) -> Shape {
        let cores = study.topology.cores_per_socket;
        let around = |level: &LevelConfig| match level.shared_by {
            Sharing::Core => 1,
            Sharing::Cores(group) => cores.min(group.into()),
            Sharing::Socket => cores,
        };
        let private = |level: Option<&LevelConfig>| level.is_some_and(|l| around(l) < cores);
        let asks = |level: &LevelConfig| level.inclusion != Inclusion::Inclusive;
        let (mut gathers, mut asks_cores) = (false, false);
        let (mut grants, mut passed_on) = (Vec::new(), false);
        for (index, level) in caches.levels.iter().enumerate() {
            let inner = index.checked_sub(1).map(|inner| &caches.levels[inner]);
            let gathers_here = inner.is_some_and(|inner| around(inner) < around(level));
            gathers |= gathers_here;
            asks_cores |= gathers_here && asks(level);
            let both = index == 1 && caches.instruction.is_some();
            let granted = gathers_here || both || passed_on;
            grants.push(granted);
            // Only a level that may lack the line passes the request on.
            passed_on = granted && asks(level);
        }
        Shape {
            cores: cores > 1,
            sockets: study.topology.sockets > 1,
            groups: caches.group().is_some_and(|group| u32::from(group) < cores),
            instruction: caches.instruction.is_some(),
            one_level: caches.levels.len() == 1,
            private_first: private(caches.levels.first()),
            private_last: private(caches.levels.last()),
            gathers,
            asks_cores,
            asks_first: caches.levels.get(1).is_some_and(asks),
            grants,
            grants_alone: passed_on,
        }
    }
}

/// Section of the study file that describes a cache level.
pub(super) struct LevelField {
    /// Full name of the section, such as `caches.level[0]`.
    pub field: String,
    /// Index of the level among the data and unified levels; `None` for the instruction cache.
    pub index: Option<usize>,
}

/// Adds a problem for each key of `[node]`, `[caches]` and `[memory]` that has no effect. Adds nothing if the study has other problems,
/// because whether a key has an effect depends on the others.
pub(super) fn check(root: &Section<'_>, study: &Study, levels: &[LevelField]) {
    let source = root.source();
    if source.count() > 0 {
        return;
    }
    core(source, study);
    let attached = |of: fn(&nodescope_window::ModelSpec) -> bool| {
        study.windows.iter().any(|window| of(&window.models))
    };
    caches(
        source,
        study,
        levels,
        attached(|models| models.caches.is_some()),
    );
    memory(source, study, attached(|models| models.memory.is_some()));
}

fn core(source: &Source<'_>, study: &Study) {
    let attributed = study.windows.iter().any(|window| window.attribution);
    if !study.cores.is_empty() && !attributed {
        let (why, fix) = match study.windows.is_empty() {
            true => ("the study has no [[window]]", "add one"),
            false => (
                "window.attribution is false in every [[window]]",
                "leave window.attribution out in one",
            ),
        };
        source.problem_of(
            "node.core",
            format!("has no effect, since {why}: a core is modelled from the code that ran in a window; {fix}, or leave node.core out"),
        );
    }
    if study.memory_parallelism.misses() > 1.0 && study.cores.is_empty() {
        source.problem_of(
            "node.memory_parallelism",
            "has no effect without node.core: it divides the stalls of modelled cores, in the report's column \"overlapped\"; name a core by node.core, or leave it out",
        );
    }
}

fn caches(source: &Source<'_>, study: &Study, levels: &[LevelField], attached: bool) {
    let caches = &study.caches;
    let shape = Shape::new(study, caches);
    let unattached = (!attached).then_some(
        "no [[window]] attaches the plugin \"cache\"; add \"cache\" to window.plugins, or leave it out",
    );
    for LevelField { field, index } in levels {
        let level = match index {
            None => caches.instruction.as_ref(),
            Some(index) => caches.levels.get(*index),
        };
        let Some(level) = level else { continue };
        for (key, cycles) in latencies(&level.latency) {
            let why = unattached.or_else(|| level_key(key, *index, &shape));
            if let Some(why) = why.filter(|_| cycles > 0) {
                none(source, &format!("{field}.latency.{key}"), why);
            }
        }
        properties(source, study, field, level, unattached);
        if let (None, None, Some(number)) = (
            index,
            unattached,
            level.prefetch.iter().position(Prefetch::strides),
        ) {
            none(
                source,
                &format!("{field}.prefetch[{number}]"),
                "the prefetcher stride follows reads and writes of data; leave it out of the instruction cache",
            );
        }
    }
    if let Some(why) =
        unattached.filter(|_| caches.non_temporal_stores != NonTemporalStores::AsStores)
    {
        none(source, "caches.non_temporal_stores", why);
    }
    let coherence = &caches.coherence;
    let groups = [
        ("from", coherence.from),
        ("from_modified", coherence.from_modified),
        ("snoop", coherence.snoop),
        ("invalidate", coherence.invalidate),
    ];
    for (group, latency) in groups {
        for (distance, cycles) in distances(latency) {
            let why = unattached.or_else(|| distance_key(group, distance, &shape));
            let key = format!("caches.coherence.{group}.{distance}");
            if let Some(why) = why.filter(|_| cycles > 0 && source.is_set(&key)) {
                none(source, &key, why);
            }
        }
    }
    let why = unattached.or_else(|| {
        (!shape.cores && !shape.sockets)
            .then_some("a node has one core, which no other takes lines from; leave it out")
    });
    for key in [
        "caches.coherence.keep.locked",
        "caches.coherence.keep.stores",
    ] {
        if let Some(why) = why.filter(|_| source.is_set(key)) {
            none(source, key, why);
        }
    }
    let several = shape.sockets
        || (shape.private_last && shape.cores)
        || (shape.one_level && shape.instruction)
        || shape.grants_alone;
    let why = unattached.or_else(|| {
        (!several).then_some(
            "the node has one outermost cache, which no other shares a line with; leave it out",
        )
    });
    let upgrade = coherence.upgrade > 0 && source.is_set("caches.coherence.upgrade");
    if let Some(why) = why.filter(|_| upgrade) {
        none(source, "caches.coherence.upgrade", why);
    }
}

/// Returns whether a field comes from `node.model`, whose node may have more than the study's.
fn is_of_model(source: &Source<'_>, field: &str) -> bool {
    source.is_set(field) && !source.is_own(field)
}

/// Adds a problem for each property of a level, besides latencies, that has no effect. `unattached` says that no window models caches.
fn properties(
    source: &Source<'_>,
    study: &Study,
    field: &str,
    level: &LevelConfig,
    unattached: Option<&str>,
) {
    let cores = study.topology.cores_per_socket;
    if let Sharing::Cores(group) = level.shared_by
        && u32::from(group) > cores
        && !is_of_model(source, &format!("{field}.shared_by"))
    {
        source.problem_of(
            &format!("{field}.shared_by"),
            format!("is {group} cores, but a socket has {cores} (node.cores); write \"socket\", or raise node.cores"),
        );
    }
    let one_way = (level.ways == 1).then_some(
        "a set has one line (ways = 1), which is always the one replaced; raise ways, or leave it out",
    );
    if let Some(why) = unattached
        .or(one_way)
        .filter(|_| level.policy != Policy::Lru)
    {
        none(source, &format!("{field}.policy"), why);
    }
    let page = (level.line == PAGE).then_some(
        "a line of 4096 B is a page, which no prefetcher leaves; lower caches.line, or leave it out",
    );
    if let Some(why) = unattached.or(page).filter(|_| !level.prefetch.is_empty()) {
        none(source, &format!("{field}.prefetch"), why);
    }
    if level.inclusion == Inclusion::Exclusive && !level.write_allocate {
        none(
            source,
            &format!("{field}.write_allocate"),
            "an exclusive level takes only lines that the level inside it replaces; leave it out",
        );
    }
}

fn none(source: &Source<'_>, field: &str, why: &str) {
    if !is_of_model(source, field) {
        source.problem_of(field, format!("has no effect, since {why}"));
    }
}

fn latencies(latency: &LevelLatency) -> [(&'static str, u32); 8] {
    [
        ("read_hit", latency.read_hit),
        ("write_hit", latency.write_hit),
        ("fetch_hit", latency.fetch_hit),
        ("read_miss", latency.read_miss),
        ("write_miss", latency.write_miss),
        ("fetch_miss", latency.fetch_miss),
        ("writeback", latency.writeback),
        ("upgrade", latency.upgrade),
    ]
}

fn distances(latency: ByDistance) -> [(&'static str, u32); 4] {
    [
        ("same_core", latency.same_core),
        ("other_core", latency.other_core),
        ("other_group", latency.other_group),
        ("other_socket", latency.other_socket),
    ]
}

/// Returns why a latency of a level has no effect; `None` if it may have one. `index` is the level's index among the data and unified
/// levels, or `None` for the instruction cache.
fn level_key(key: &str, index: Option<usize>, shape: &Shape) -> Option<&'static str> {
    let fetch = key.starts_with("fetch_");
    let Some(index) = index else {
        return (!fetch).then_some(
            "an instruction cache answers fetches alone; state fetch_hit and fetch_miss, or leave it out",
        );
    };
    if fetch && index == 0 {
        return Some(
            "a first-level data cache answers no fetches; state it in the level of kind = \"instruction\", or leave it out",
        );
    }
    if fetch && !shape.instruction {
        return Some(
            "fetches are neither cached nor timed without an instruction cache; describe one with level = 1, kind = \"instruction\", or leave it out",
        );
    }
    if key == "upgrade" {
        return (shape.grants.get(index) != Some(&true)).then_some(
            "there are no two caches inside this level that could share a line; leave it out",
        );
    }
    None
}

/// Returns why a latency between caches has no effect; `None` if it may have one.
fn distance_key(group: &str, distance: &str, shape: &Shape) -> Option<&'static str> {
    match distance {
        "same_core" if !shape.instruction => {
            return Some(
                "a core has one first-level cache, without an instruction cache; leave it out",
            );
        }
        "other_core" if !shape.cores => {
            return Some("a socket has one core (node.cores); raise node.cores, or leave it out");
        }
        "other_core" if !shape.private_first && !shape.one_level => {
            return Some("all caches are shared by the cores of a socket; leave it out");
        }
        "other_group" if !shape.groups => {
            return Some(
                "no level is shared by fewer cores than a socket has (shared_by = \"N cores\"); leave it out",
            );
        }
        "other_socket" if !shape.sockets => {
            return Some(
                "a node has one socket (node.sockets); raise node.sockets, or leave it out",
            );
        }
        _ => {}
    }
    match (group, distance) {
        ("from", "same_core") if !shape.one_level && !shape.asks_first => Some(
            "clean lines inside a core come from the next level; state that level's latency, or leave it out",
        ),
        ("from", "other_core") if !shape.private_last && !shape.one_level && !shape.asks_cores => {
            Some(
                "clean lines of another core of the socket come from the level that the cores share; state that level's latency, or leave it out",
            )
        }
        ("snoop", _) if shape.one_level => {
            Some("there is no level outside the first that would ask a holder; leave it out")
        }
        ("snoop", "other_core") if !shape.gathers => Some(
            "no level is shared by several cores of a socket, so that none asks a holder there; leave it out",
        ),
        _ => None,
    }
}

fn memory(source: &Source<'_>, study: &Study, attached: bool) {
    if study.topology.sockets == 1 {
        for key in ["remote", "remote_write_back", "remote_bandwidth"] {
            let field = format!("memory.{key}");
            if source.is_set(&field) {
                none(
                    source,
                    &field,
                    "a node has one socket (node.sockets), whose memory is local; raise node.sockets, or leave it out",
                );
            }
        }
    }
    let MemorySpec::Numa {
        write_back: nodescope_window::Latencies::Uniform { local, remote },
        ..
    } = &study.memory
    else {
        return;
    };
    let stated = [("local", *local), ("remote", *remote)];
    for (key, _) in stated
        .into_iter()
        .filter(|&(_, cycles)| cycles > 0 && !attached)
    {
        let field = format!("memory.{key}_write_back");
        if key == "local" || study.topology.sockets > 1 {
            none(
                source,
                &field,
                "no [[window]] attaches the plugin \"numa\"; add \"numa\" to window.plugins, or leave it out",
            );
        }
    }
}

/// Returns keys of the study whose effect is narrower than their name, each with what it does and does not do.
pub(crate) fn remarks(study: &Study) -> Vec<(&'static str, String)> {
    let mut told = Vec::new();
    let topology = &study.topology;
    if topology.threads_per_core > 1 {
        told.push((
            "node.threads",
            format!(
                "the {} hardware threads of a core share its caches and nothing else: each executes as fast as a core of its own",
                topology.threads_per_core
            ),
        ));
    }
    let set = |field: &str| study.position_of(field).is_some();
    for field in ["memory.local_bandwidth", "memory.remote_bandwidth"] {
        // Windows with a core let vCPUs share the local bandwidth.
        let timed = study
            .windows
            .iter()
            .any(|window| window.models.core.is_some());
        if set(field) && !(timed && field == "memory.local_bandwidth") {
            told.push((
                field,
                "the guest is told it (HMAT), and the roofline shows it; no model of time uses it"
                    .into(),
            ));
        }
    }
    told
}
