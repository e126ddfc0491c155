//! Tests of `node.model` with the descriptions that are built in.

use std::path::Path;

use nodescope_study::{NodeDescription, Study};
use nodescope_window::MemorySpec;

/// Parses a study with this node.
fn study(node: &str) -> Result<Study, String> {
    let text = format!(
        "[cluster]\nnodes = 1\n[node]\n{node}\n[job]\ncommand = \"/bin/true\"\n\
         [[window]]\nopen = \"guest\"\nmeasure = \"until closed\"\n"
    );
    Study::parse(Path::new("study.toml"), &text).map_err(|problems| problems.to_string())
}

#[test]
fn each_node_is_the_base_of_small_and_of_large_studies() {
    for node in NodeDescription::all() {
        for shape in ["sockets = 1\ncores = 2", "sockets = 2\ncores = 4"] {
            let study = study(&format!("model = \"{}\"\n{shape}", node.name));
            let study = study.unwrap_or_else(|told| panic!("{}: {told}", node.name));
            let models = &study.windows[0].models;
            assert!(models.core.is_some() && models.can_model_core());
            assert_eq!(study.caches.levels.len(), 3, "{}", node.name);
            assert!(study.caches.instruction.is_some(), "{}", node.name);
            let first = &study.caches.levels[0];
            assert!(first.prefetch.is_empty(), "hits stay on the fast path");
        }
    }
}

/// Distances in nanoseconds are those that the head of each file has: with plausible sums, from the second level to memory of another socket.
#[test]
fn latencies_grow_from_level_to_level() {
    for node in NodeDescription::all() {
        let study = study(&format!("model = \"{}\"\nsockets = 2", node.name)).unwrap();
        let MemorySpec::Numa { latency, .. } = &study.memory else {
            panic!("{}: no NUMA", node.name);
        };
        let nodescope_window::Latencies::Uniform { local, remote } = *latency else {
            panic!("{}: a matrix", node.name);
        };
        let core = node.core().unwrap();
        let load = u32::from(core.load.latency);
        let beyond = study.caches.beyond_first_level(local, remote);
        let nanoseconds =
            |cycles: u32| f64::from(cycles + load) * 1e9 / study.topology.tsc_hz as f64;
        let all: Vec<f64> = beyond.iter().map(|cycles| nanoseconds(*cycles)).collect();
        let [second, third, memory, other] = [
            study.caches.levels[0].latency.read_miss,
            study.caches.levels[0].latency.read_miss + study.caches.levels[1].latency.read_miss,
            beyond.iter().copied().max().unwrap() - remote + local,
            beyond.iter().copied().max().unwrap(),
        ]
        .map(nanoseconds);
        assert!((2.5..6.0).contains(&second), "{}: {all:?}", node.name);
        assert!((8.0..65.0).contains(&third), "{}: {all:?}", node.name);
        assert!((60.0..140.0).contains(&memory), "{}: {all:?}", node.name);
        assert!(other > 1.4 * memory, "{}: {all:?}", node.name);
    }
}

#[test]
fn a_study_overrides_single_keys() {
    let study = study("model = \"zen4\"\nfrequency = \"2.0 GHz\"").unwrap();
    assert_eq!(study.topology.tsc_hz, 2_000_000_000);
    // Lines are those of the study alone, so that no message names a line that it does not have.
    assert_eq!(study.position_of("node.frequency").unwrap().line, 5);
    assert!(study.position_of("memory.local_bandwidth").is_none());
    let told = self::study("model = \"zen\"").unwrap_err();
    assert!(
        told.contains("study.toml:4: node.model: \"zen\" is no node that is known"),
        "{told}"
    );
    assert!(told.contains("\"sapphire-rapids\""), "{told}");
}
