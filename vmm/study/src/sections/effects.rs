//! Keys that would have no effect in their study. Each is a problem that says why, because a figure that the user states and nothing uses
//! is a wrong answer without a word.
//!
//! `vmm/study/tests/effects.rs` has an example of each.

use nodescope_config::reader::{Section, Source};
use nodescope_plugin_cache::{ByDistance, CacheConfig, LevelLatency, Sharing};
use nodescope_window::MemorySpec;

use crate::plan::Study;

/// What a node has that decides whether caches meet.
struct Shape {
    cores: bool,
    sockets: bool,
    /// True if a core has an instruction cache beside its data cache.
    instruction: bool,
    /// True if the first-level caches are the outermost caches.
    one_level: bool,
    /// True if first-level caches belong to a core alone.
    private_first: bool,
    /// True if outermost caches belong to a core alone.
    private_last: bool,
}

impl Shape {
    fn new(study: &Study, caches: &CacheConfig) -> Shape {
        let private = |level: Option<&nodescope_plugin_cache::LevelConfig>| {
            level.is_some_and(|level| level.shared_by == Sharing::Core)
        };
        Shape {
            cores: study.topology.cores_per_socket > 1,
            sockets: study.topology.sockets > 1,
            instruction: caches.instruction.is_some(),
            one_level: caches.levels.len() == 1,
            private_first: private(caches.levels.first()),
            private_last: private(caches.levels.last()),
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
            let why = unattached.or_else(|| level_key(key, *index, caches, &shape));
            if let Some(why) = why.filter(|_| cycles > 0) {
                none(source, &format!("{field}.latency.{key}"), why);
            }
        }
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
            if let Some(why) = why.filter(|_| cycles > 0) {
                none(source, &format!("caches.coherence.{group}.{distance}"), why);
            }
        }
    }
    let several = shape.sockets
        || (shape.private_last && shape.cores)
        || (shape.one_level && shape.instruction);
    let why = unattached.or_else(|| {
        (!several).then_some(
            "the node has one outermost cache, which no other shares a line with; leave it out",
        )
    });
    if let Some(why) = why.filter(|_| coherence.upgrade > 0) {
        none(source, "caches.coherence.upgrade", why);
    }
}

fn none(source: &Source<'_>, field: &str, why: &str) {
    source.problem_of(field, format!("has no effect, since {why}"));
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

fn distances(latency: ByDistance) -> [(&'static str, u32); 3] {
    [
        ("same_core", latency.same_core),
        ("other_core", latency.other_core),
        ("other_socket", latency.other_socket),
    ]
}

/// Returns why a latency of a level has no effect; `None` if it may have one. `index` is the level's index in `caches`, or `None` for the
/// instruction cache.
fn level_key(
    key: &str,
    index: Option<usize>,
    caches: &CacheConfig,
    shape: &Shape,
) -> Option<&'static str> {
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
        let shares =
            |level: &nodescope_plugin_cache::LevelConfig| level.shared_by == Sharing::Socket;
        let inner = index
            .checked_sub(1)
            .and_then(|inner| caches.levels.get(inner));
        let gathers = inner.is_some_and(|inner| !shares(inner))
            && caches.levels.get(index).is_some_and(shares)
            && shape.cores;
        let both = index == 1 && shape.instruction;
        return (!gathers && !both).then_some(
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
        "other_socket" if !shape.sockets => {
            return Some(
                "a node has one socket (node.sockets); raise node.sockets, or leave it out",
            );
        }
        _ => {}
    }
    match (group, distance) {
        ("from", "same_core") if !shape.one_level => Some(
            "clean lines inside a core come from the next level; state that level's latency, or leave it out",
        ),
        ("from", "other_core") if !shape.private_last && !shape.one_level => Some(
            "clean lines of another core of the socket come from the level that the cores share; state that level's latency, or leave it out",
        ),
        ("snoop", _) if shape.one_level => {
            Some("there is no level outside the first that would ask a holder; leave it out")
        }
        ("snoop", "other_core") if shape.private_last => Some(
            "no level is shared by the cores of a socket, so that none asks a holder there; leave it out",
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
    let vcpus = topology.sockets * topology.cores_per_socket * topology.threads_per_core;
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
    if set("caches.coherence") && vcpus > 1 && !study.windows.is_empty() {
        told.push((
            "caches.coherence",
            format!(
                "the vCPUs of a node run in turns of {} cycles, so that a line moves between them about once a turn: false sharing costs far less than on a real machine",
                nodescope_machine::node::TIME_SLICE_CYCLES
            ),
        ));
    }
    for field in ["memory.local_bandwidth", "memory.remote_bandwidth"] {
        if set(field) {
            told.push((
                field,
                "the guest is told it (HMAT), and the roofline shows it; no model of time uses it"
                    .into(),
            ));
        }
    }
    told
}
