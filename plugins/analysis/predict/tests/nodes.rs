//! Nodes of unequal speed, interrupted cores, and messages that share a node's memory.

use std::collections::BTreeMap;
use std::path::Path;

use nodescope_loop_tree::{PeerRef, ProgramBuilder};
use nodescope_predict::{Channel, Cluster, Code, Model, Noise, Options, interpret};

const US: u64 = 1_000_000;

fn cluster() -> Cluster {
    Cluster {
        cores: 2,
        ranks_per_node: Some(2),
        memory: Channel::new(Model::LogGp, US, 1_000_000_000),
        ..Cluster::simple("c", Channel::new(Model::LogGp, 5 * US, 1_000_000_000))
    }
}

/// Returns the times at which ranks end, microseconds.
fn ends(builder: &mut ProgramBuilder, cluster: &Cluster) -> Vec<u64> {
    let program = builder.finish();
    let outcome = interpret(&Code::new(&program), cluster, &Options::default()).unwrap();
    assert_eq!(outcome.problems, []);
    let ends = outcome.ranks.iter().map(|rank| outcome.time - rank.idle);
    ends.map(|end| end / US).collect()
}

#[test]
fn a_nodes_speed_is_that_of_its_ranks() {
    let cluster = Cluster {
        node_speeds: BTreeMap::from([(1, 800_000)]),
        ..cluster()
    };
    let mut alone = ProgramBuilder::new();
    for _ in 0..4 {
        alone.compute(100 * US);
        alone.wait(&[]).ranks(1);
    }
    assert_eq!(ends(&mut alone, &cluster), [100, 100, 125, 125]);
}

#[test]
fn interruptions_take_their_share_of_computation() {
    let cluster = Cluster {
        noise: Some(Noise {
            interval: 100 * US,
            time: 10 * US,
        }),
        ..cluster()
    };
    let mut builder = ProgramBuilder::new();
    builder.compute(90_000 * US);
    builder.wait(&[]).ranks(2);
    for end in ends(&mut builder, &cluster) {
        assert!((99_990..=100_010).contains(&end), "{end}");
    }
}

#[test]
fn messages_within_a_node_follow_one_another() {
    let mut builder = ProgramBuilder::new();
    // Both ranks send 100 us of data at the same time.
    for own in 0..2 {
        builder.ireceive(PeerRef::Absolute(1 - own), 0, 100_000, 0);
        builder.isend(PeerRef::Absolute(1 - own), 0, 100_000, 1);
        builder.wait(&[0, 1]).ranks(1);
    }
    let mut cluster = cluster();
    cluster.memory.eager_limit = 1_000_000;
    assert_eq!(ends(&mut builder.clone(), &cluster), [101, 101]);
    cluster.memory_contention = true;
    let mut ends = ends(&mut builder, &cluster);
    ends.sort_unstable();
    assert_eq!(ends, [101, 201]);
}

#[test]
fn the_file_says_what_is_wrong() {
    let problems = |nodes: &str| {
        let text =
            format!("[nodes]\n{nodes}\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n");
        Cluster::parse(Path::new("c.toml"), &text).map_err(|problems| problems.to_string())
    };
    let cluster = problems(
        "speeds = [{ node = 2, speed = 0.5 }]\nnoise_interval = \"1 ms\"\nnoise_time = \"5 us\"",
    )
    .unwrap();
    assert_eq!(cluster.node_speeds, BTreeMap::from([(2, 500_000)]));
    assert_eq!(cluster.noise.unwrap().time, 5 * US);
    for (nodes, wrong) in [
        ("noise_time = \"5 us\"", "needs noise_interval"),
        ("noise_interval = \"5 us\"", "needs noise_time"),
        (
            "noise_interval = \"5 us\"\nnoise_time = \"5 us\"",
            "nothing would be computed",
        ),
        (
            "noise_interval = \"5 us\"\nnoise_time = \"0 us\"",
            "leave both keys out",
        ),
        (
            "count = 2\nspeeds = [{ node = 2, speed = 0.8 }]",
            "is of no node",
        ),
        ("speeds = [0.8]", "write { node = 3, speed = 0.8 }"),
        (
            "speeds = [{ node = 1, speed = 0.8 }, { node = 1, speed = 0.9 }]",
            "has a speed already",
        ),
    ] {
        let error = problems(nodes).unwrap_err();
        assert!(error.contains(wrong), "{error}");
    }
}

#[test]
fn what_a_rank_sends_to_itself_costs_nothing() {
    let mut builder = ProgramBuilder::new();
    builder.ireceive(PeerRef::Relative(0), 0, 100_000, 0);
    builder.isend(PeerRef::Relative(0), 0, 100_000, 1);
    builder.wait(&[0, 1]);
    builder.put(PeerRef::Relative(0), 100_000, 0);
    builder.wait(&[0]).ranks(2);
    assert_eq!(ends(&mut builder, &cluster()), [0, 0]);
}
