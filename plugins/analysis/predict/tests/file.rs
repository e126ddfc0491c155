//! Cluster files: which keys are read, and reports of all mistakes at once.

use std::path::Path;

use nodescope_loop_tree::CollectiveKind;
use nodescope_predict::{
    Algorithm, Cluster, Model, Placement, Progress, Sharing, Speed, Topology, cluster,
};

fn parse(text: &str) -> Result<Cluster, String> {
    Cluster::parse(Path::new("c.toml"), text).map_err(|problems| problems.to_string())
}

const SMALL: &str = "[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n";

#[test]
fn the_example_of_the_reference_is_read() {
    let reference = include_str!("../CLUSTER.md");
    let example = reference.split("```").nth(1).unwrap();
    let example = example.trim_start_matches("toml");
    let cluster = parse(example).unwrap();
    assert_eq!(
        (cluster.nodes, cluster.cores, cluster.ranks_per_node),
        (Some(112), 16, Some(16))
    );
    assert_eq!(cluster.speed, Speed::Factor(1.5));
    assert_eq!(cluster.network.latency, 1_300_000);
    assert_eq!(cluster.network.per_byte, 800.0);
    assert_eq!(cluster.network.send_overhead.at(1), 500_000);
    assert_eq!(cluster.network.eager_limit, 12 << 10);
    assert_eq!(cluster.memory.latency, 300_000);
    assert_eq!(
        cluster.topology,
        Topology::FatTree {
            down: vec![16, 7],
            up: vec![8]
        }
    );
    let fixed = cluster.collectives.fixed[&CollectiveKind::Allreduce];
    assert_eq!(fixed.algorithm, Algorithm::Rabenseifner);
    assert_eq!(cluster.progress, Progress::Calls);
    // CLUSTER.md mentions every key that is read.
    for field in cluster::known_fields(Path::new("c.toml"), example) {
        let key = field.rsplit(['.', ']']).next().unwrap();
        assert!(reference.contains(key), "CLUSTER.md lacks {field}");
    }
}

#[test]
fn links_are_shared_in_the_way_that_is_named() {
    assert_eq!(parse(SMALL).unwrap().sharing, Sharing::Queue);
    for (name, sharing) in [("fair", Sharing::Fair), ("round-trip", Sharing::RoundTrip)] {
        let cluster = parse(&format!(
            "{SMALL}sharing = \"{name}\"\nenvelope = \"16 B\"\n"
        ))
        .unwrap();
        assert_eq!((cluster.sharing, cluster.network.envelope), (sharing, 16));
        let error = parse(&format!(
            "{SMALL}sharing = \"{name}\"\nprogress_thread = true\nbeta = 0.5\n"
        ));
        assert!(error.unwrap_err().contains("network.beta"));
    }
    let error = parse(&format!("{SMALL}sharing = \"fare\"\n")).unwrap_err();
    assert!(error.contains("\"fair\""), "{error}");
}

#[test]
fn presets_are_as_published() {
    let cluster = parse("[network]\npreset = \"myrinet\"\n").unwrap();
    assert_eq!(cluster.name, "c");
    assert_eq!(cluster.network.model, Model::Post);
    assert_eq!(
        (cluster.network.latency, cluster.network.per_byte),
        (30_000_000, 5000.0)
    );
    let cluster = parse("[network]\npreset = \"sci\"\nlatency = \"5 us\"\n").unwrap();
    assert_eq!(cluster.network.latency, 5_000_000);
}

#[test]
fn alternatives_are_read() {
    let cluster = parse(&format!(
        "[nodes]\ncores = 2\ncpi = 0.9\nfrequency = \"2.9 GHz\"\nplacement = [0, 0, 1]\n{SMALL}progress_thread = true\nbeta = 0.5\noverhead = [{{ bytes = \"0 B\", time = \"1 us\" }}, {{ bytes = \"1 kB\", time = \"3 us\" }}]\n[topology]\nkind = \"torus\"\nsize = [4, 4]\n[collectives]\nlibrary = \"mpich\"\n"
    ))
    .unwrap();
    assert_eq!(
        cluster.speed,
        Speed::Cpi {
            cpi: 0.9,
            frequency: 2_900_000_000
        }
    );
    assert_eq!(cluster.speed.scale(7, 0), 7);
    assert_eq!(cluster.speed.scale(7, 2_900_000), 900_000_000);
    assert_eq!(cluster.placement, Placement::Nodes(vec![0, 0, 1]));
    assert_eq!(cluster.progress, Progress::Thread { beta: 0.5 });
    assert_eq!(cluster.network.send_overhead.at(500), 2_000_000);
    assert_eq!(cluster.topology, Topology::Torus { size: vec![4, 4] });
}

#[test]
fn every_mistake_is_told_with_its_line() {
    let problems = parse(
        "nmae = \"x\"
[nodes]
cores = 4
ranks_per_node = 8
speed = -1
[network]
latency = \"-1 us\"
beta = 0.5
overhead = [{ bytes = \"8 B\", time = \"1 us\" }, { bytes = \"8 B\", time = \"1\" }]
[topology]
kind = \"tours\"
[collectives]
allreduce = \"pairwise\"
bcst = \"linear\"
",
    )
    .unwrap_err();
    let lines: Vec<&str> = problems.lines().collect();
    let has = |line: usize, text: &str| {
        assert!(
            lines
                .iter()
                .any(|told| told.starts_with(&format!("c.toml:{line}: ")) && told.contains(text)),
            "no {text:?} at line {line} in\n{problems}"
        );
    };
    has(
        1,
        "nmae: is not a section of a cluster; did you mean \"name\"?",
    );
    has(4, "is 8, but a node has 4 cores");
    has(5, "write a number from");
    has(6, "network.bandwidth: is missing");
    has(7, "is negative");
    has(8, "write progress_thread = true");
    has(9, "has no unit");
    has(11, "did you mean \"torus\"?");
    has(13, "not an algorithm for allreduce");
    has(14, "did you mean \"bcast\"?");
    assert_eq!(lines.len(), 10, "{problems}");
}

#[test]
fn impossible_networks_are_refused() {
    let error = |text: &str| parse(text).unwrap_err();
    assert!(error(&format!("{SMALL}frame_payload = \"0 B\"\n")).contains("is 0"));
    assert!(error(&format!("{SMALL}frame_header = \"9 B\"\n")).contains("frame_payload"));
    let both = format!("{SMALL}take_in = true\nprogress_thread = true\n");
    assert!(error(&both).contains("a thread does it"));
    assert!(error("").contains("c.toml:1: network.latency: is missing"));
    assert!(error("[network]\nlatency = \"1 us\"\nbandwidth = \"0 GB/s\"\n").contains("is 0"));
    let torus =
        format!("[nodes]\ncount = 17\n{SMALL}[topology]\nkind = \"torus\"\nsize = [4, 4]\n");
    assert!(
        error(&torus).contains("connects 16 nodes, but nodes.count is 17"),
        "{}",
        error(&torus)
    );
    let tree = format!("{SMALL}[topology]\nkind = \"fat-tree\"\ndown = [4, 4]\nup = [2, 2]\n");
    assert!(
        error(&tree).contains("up must have 1 entries"),
        "{}",
        error(&tree)
    );
    let huge = format!("{SMALL}[topology]\nkind = \"torus\"\nsize = [1000000, 1000000]\n");
    assert!(error(&huge).contains("a topology may have at most"));
    assert!(error("x = [").contains("is not TOML"));
}
