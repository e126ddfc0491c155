//! Placement of ranks as where the program was traced, and what is told of it.

use std::path::Path;

use nodescope_loop_tree::{Origin, PeerRef, Program, ProgramBuilder, WindowSpan};
use nodescope_predict::{Cluster, FitError, Placement, Request, predict};

const NETWORK: &str = "[network]\nlatency = \"20 us\"\nbandwidth = \"1 GB/s\"\n\
    [memory]\nlatency = \"1 us\"\nbandwidth = \"10 GB/s\"\n";

/// Returns a ring of four ranks that was traced on two nodes of four cores, two ranks on each.
fn ring() -> Program {
    let mut builder = ProgramBuilder::new();
    for _ in 0..4 {
        builder
            .begin()
            .compute(1_000_000)
            .send(PeerRef::Relative(1), 0, 1000)
            .receive(PeerRef::Relative(3), 0, 1000)
            .end(10)
            .ranks(1);
    }
    let mut program = builder.finish();
    program.origin = Origin {
        nodes: vec![0, 0, 1, 1],
        cores: vec![4, 4],
        threads: Some(2),
        windows: Vec::new(),
        ..Origin::default()
    };
    program
}

fn cluster(nodes: &str) -> Cluster {
    let text = format!("name = \"c\"\n[nodes]\n{nodes}\n{NETWORK}");
    Cluster::parse(Path::new("c.toml"), &text).unwrap_or_else(|problems| panic!("{problems}"))
}

fn prediction(program: &Program, nodes: &str) -> nodescope_predict::Prediction {
    let request = Request {
        replicas: 0,
        ..Request::default()
    };
    predict(program, &cluster(nodes), &request).unwrap()
}

#[test]
fn ranks_are_where_they_were_traced_by_default() {
    let program = ring();
    let traced = prediction(&program, "cores = 4");
    assert_eq!(traced.placement.rule, "traced");
    assert_eq!(traced.placement.here.nodes, 2);
    assert_eq!(traced.differences, Vec::<String>::new());
    let listed = prediction(&program, "cores = 4\nplacement = [0, 0, 1, 1]");
    assert_eq!(traced.outcome.time, listed.outcome.time);
    let text = traced.text();
    assert!(
        text.starts_with("Prediction for \"c\": 4 ranks, 2 a node as traced, on 2 nodes, "),
        "{text}"
    );
    // The name says the same as no name; block and cyclic placements have as many ranks a node as traced.
    let place = |nodes: &str| {
        let cluster = cluster(nodes);
        cluster.place_ranks(4, &program.origin).unwrap()
    };
    assert_eq!(place("cores = 4\nplacement = \"traced\""), [0, 0, 1, 1]);
    assert_eq!(place("cores = 4\nplacement = \"block\""), [0, 0, 1, 1]);
    assert_eq!(place("cores = 4\nplacement = \"cyclic\""), [0, 1, 0, 1]);
    assert_eq!(place("cores = 4\nranks_per_node = 3"), [0, 0, 0, 1]);
    // Without an origin, each core has a rank.
    let unknown = cluster("cores = 4").place_ranks(4, &Origin::default());
    assert_eq!(unknown.unwrap(), [0; 4]);
}

#[test]
fn another_placement_is_told_first_in_text_json_and_page() {
    let program = ring();
    let packed = prediction(&program, "cores = 4\nranks_per_node = 4");
    let traced = prediction(&program, "cores = 4");
    assert!(packed.outcome.time < traced.outcome.time);
    let told = [
        "the ranks are on 1 node (4 a node); they were traced on 2 nodes (2 a node)",
        "no message crosses a node",
        "a node has 4 ranks of 2 threads, 8 threads in all, but 4 cores",
    ];
    let (text, page) = (packed.text(), packed.html().unwrap());
    let (times, drawn) = (text.find("predicted time"), page.find("predicted time"));
    for sentence in told {
        let at = text.find(sentence);
        assert!(at.is_some() && at < times, "{sentence}: {text}");
        assert!(page.find(sentence).is_some_and(|at| Some(at) < drawn));
        let mut differences = packed.differences.iter();
        assert!(differences.any(|difference| difference.starts_with(sentence)));
    }
    let json: serde_json::Value = serde_json::from_str(&packed.json()).unwrap();
    assert_eq!(json["differences"].as_array().unwrap().len(), 3);
    assert_eq!(json["placement"]["rule"], "block");
    assert_eq!(json["placement"]["nodes"], 1);
    assert_eq!(json["placement"]["traced"]["nodes"], 2);
    assert_eq!(json["placement"]["traced"]["same"], false);
    let cyclic = prediction(&program, "cores = 4\nplacement = \"cyclic\"");
    assert!(
        cyclic
            .text()
            .contains("other ranks share a node than where traced")
    );
}

#[test]
fn cores_and_threads_that_differ_are_told() {
    let mut program = ring();
    let smaller = prediction(&program, "cores = 2").differences;
    assert_eq!(smaller.len(), 2, "{smaller:?}");
    assert!(smaller[0].contains("nodes have 2 cores; those of the traced run had 4"));
    assert!(smaller[1].contains("2 ranks of 2 threads, 4 threads in all, but 2 cores"));
    let one = prediction(&program, "cores = 2\nthreads_per_rank = 1").differences;
    assert_eq!(one.len(), 1, "{one:?}");
    program.origin.threads = None;
    let unknown = prediction(&program, "cores = 2").differences;
    assert!(unknown[1].contains("a rank has 1 core of its node; where traced it had 2"));
    program.origin = Origin::default();
    let nowhere = prediction(&program, "cores = 2").differences;
    assert!(nowhere[0].contains("the trace does not tell on which nodes the ranks ran"));
}

#[test]
fn a_traced_placement_that_is_impossible_is_refused_with_the_key() {
    let program = ring();
    let refused = |nodes: &str| {
        let request = Request::default();
        predict(&program, &cluster(nodes), &request).unwrap_err()
    };
    let error = refused("cores = 4\ncount = 1");
    assert!(matches!(error, FitError::TracedNodes { needed: 2, .. }));
    let text = error.to_string();
    assert!(
        text.contains("nodes.count") && text.contains("--ranks-per-node"),
        "{text}"
    );
    let error = refused("cores = 1");
    assert!(matches!(error, FitError::Cores { rule: "traced", .. }));
    let text = error.to_string();
    assert!(
        text.contains("the traced placement puts 2 ranks on node 0"),
        "{text}"
    );
    assert!(
        text.contains("nodes.cores") && text.contains("--placement"),
        "{text}"
    );
    // The two keys contradict each other.
    let text = format!("[nodes]\ncores = 4\nranks_per_node = 2\nplacement = \"traced\"\n{NETWORK}");
    let error = Cluster::parse(Path::new("c.toml"), &text).unwrap_err();
    let told = error.to_string();
    assert!(
        told.contains("c.toml:3: nodes.ranks_per_node: has no effect"),
        "{told}"
    );
    assert_eq!(cluster("cores = 1").placement, Placement::Traced);
}

#[test]
fn first_uses_of_connections_are_told_for_the_program_and_its_section() {
    let mut builder = ProgramBuilder::new();
    for rank in 0..2u32 {
        let other = PeerRef::Absolute(1 - rank);
        builder
            .begin()
            .send(other, 0, 8)
            .receive(other, 0, 8)
            .end(3)
            .ranks(1);
    }
    let mut program = builder.finish();
    program.origin.nodes = vec![0, 1];
    let apart = prediction(&program, "cores = 1");
    assert_eq!(apart.outcome.connections.unwrap().pairs, 1);
    let text = apart.text();
    assert!(
        text.contains("1 pair of ranks of different nodes exchanges messages"),
        "{text}"
    );
    assert!(text.contains("is not in the predicted times"), "{text}");
    let together = prediction(&program, "cores = 2\nplacement = [0, 0]");
    assert_eq!(together.outcome.connections.unwrap().pairs, 0);
    assert!(!together.text().contains("connections"));
}

#[test]
fn windows_in_the_traced_time_are_told() {
    let mut program = ring();
    program.origin.windows = vec![WindowSpan {
        name: "w".into(),
        opened: 10_000_000,
        closed: 30_000_000,
    }];
    let mut prediction = prediction(&program, "cores = 4");
    prediction.traced = Some(80_000_000);
    let text = prediction.text();
    assert!(
        text.contains("\"w\" was open in 20.000 us (25.0 %) of the traced time"),
        "{text}"
    );
    assert_eq!(prediction.windows[0].time, 20_000_000);
}
