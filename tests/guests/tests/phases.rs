//! Tests of communication phases of real MPI programs in emulated clusters, and of a placement whose gain is measured there.

use std::collections::BTreeSet;
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_guest_tests::{cluster, compile, image, program, run_well};
use nodescope_loop_tree::SequenceOptions;
use nodescope_loop_tree::sequence::{SequenceBuilder, Sequences};
use nodescope_machine::topology::NodeTopology;
use nodescope_phases::{
    Analysis, Include, MappingRequest, Messages, Phase, Request, analyse, map_ranks,
};
use nodescope_predict::{Channel, Cluster, Model};
use nodescope_trace::TraceReader;

/// Runs commands one after the other on `nodes` nodes of `vcpus` vCPUs each, and returns the console of node 0. Without the image or the
/// compiler, returns None and reports the test as skipped.
fn emulate(dir: &Path, nodes: u32, vcpus: u32, commands: &str) -> Option<String> {
    let image = image()?;
    let patterns = compile("mpicc.openmpi", "patterns.c", &["-O2", "-lm"])?;
    let script = format!("#!/bin/sh\nset -e\n{commands}");
    let files = [program("patterns", patterns), program("run", script)];
    let topology = NodeTopology::uniform(1, vcpus, 1, 512 << 20);
    let mut config = cluster(image, nodes, topology, &files);
    config.trace = true;
    config.host_threads = 2;
    let finished = run_well(&config, dir);
    Some(finished.consoles[0].clone())
}

fn sequences(dir: &Path, job: usize) -> Sequences {
    let mut builder = SequenceBuilder::new(SequenceOptions {
        program: Some(job),
        ..SequenceOptions::default()
    });
    for event in TraceReader::open(dir.join(TRACE_FILE)).unwrap().events() {
        builder.add(&event.unwrap());
    }
    builder.finish().unwrap()
}

/// Finds phases with `steps` steps, or with a number of steps that the data suggest.
fn find(sequences: &Sequences, steps: Option<u64>) -> Analysis {
    let choice = Cluster::simple("any", Channel::ideal()).collectives;
    let messages = Messages::new(sequences, Include::default(), &choice);
    let request = Request {
        step: steps.map(|steps| (messages.to - messages.from) / steps),
        ..Request::default()
    };
    let analysis = analyse(&messages, &request).unwrap();
    println!("{}", analysis.text());
    analysis
}

fn pairs(phase: &Phase) -> Vec<(u32, u32)> {
    phase.matrix.cells().map(|cell| (cell.0, cell.1)).collect()
}

#[test]
fn a_torus_has_its_four_exchanges_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let run = "mpirun --oversubscribe -np 9 ./patterns torus 3 3 20\n";
    if emulate(dir.path(), 1, 4, run).is_none() {
        return;
    }
    let analysis = find(&sequences(dir.path(), 0), None);
    let talking = analysis
        .phases
        .iter()
        .filter(|phase| !phase.matrix.is_empty());
    let talking: Vec<&Phase> = talking.collect();
    let shifts = [(2, 0), (0, 1), (0, 2), (1, 0)];
    assert_eq!(talking.len(), shifts.len());
    for (phase, (down, right)) in talking.into_iter().zip(shifts) {
        let to = |rank: u32| (rank / 3 + down) % 3 * 3 + (rank % 3 + right) % 3;
        let expected: Vec<(u32, u32)> = (0..9).map(|rank| (rank, to(rank))).collect();
        assert_eq!(pairs(phase), expected);
        assert_eq!(
            (phase.figures.sent.min, phase.figures.sent.max),
            (1 << 14, 1 << 14)
        );
        assert_eq!(phase.figures.degree.mean, 2.0);
    }
}

#[test]
fn a_hadamard_transform_exchanges_with_ever_closer_ranks_and_then_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    let run = "mpirun -np 8 ./patterns hadamard 20\n";
    let Some(console) = emulate(dir.path(), 1, 8, run) else {
        return;
    };
    assert!(console.contains("hadamard: right"), "{console}");
    // A gate takes less than a twentieth of the run, and a step must be shorter than a gate.
    let analysis = find(&sequences(dir.path(), 0), Some(60));
    // A step's end may cut an exchange. The last messages of the exchange are then a phase of their own.
    let talking = analysis.phases.iter().filter(|p| !p.matrix.is_empty());
    let all: Vec<(u32, u32)> = talking.flat_map(pairs).collect();
    let mut distances: Vec<u32> = all.iter().map(|(from, to)| from ^ to).collect();
    distances.dedup();
    assert_eq!(distances, [4, 2, 1]);
    for distance in distances {
        let senders = all.iter().filter(|(from, to)| from ^ to == distance);
        let senders: BTreeSet<u32> = senders.map(|(from, _)| *from).collect();
        assert_eq!(senders.len(), 8, "every rank sends to one other");
    }
    assert_eq!(all.len(), 3 * 8);
    let last = analysis.phases.last().unwrap();
    assert!(last.matrix.is_empty());
    assert!(2 * (last.to - last.from) > analysis.to - analysis.from);
}

/// Returns a cluster of two nodes of two vCPUs like the emulated one: a link of 10 Gbit/s and 20 us, and shared memory.
fn two_nodes() -> Cluster {
    let network = Channel::new(Model::LogGp, 20_000_000, 10_000_000_000 / 8);
    let mut cluster = Cluster::simple("two nodes", network);
    cluster.memory = Channel::new(Model::LogGp, 1_000_000, 5_000_000_000);
    (cluster.cores, cluster.ranks_per_node) = (2, Some(2));
    cluster.contention = true;
    cluster
}

#[test]
fn a_placement_gains_in_the_emulated_cluster_too() {
    let dir = tempfile::tempdir().unwrap();
    let run = |order: &str| {
        format!(
            "mpirun -np 4 --host node0:2,node1:2 --map-by {order} ./patterns pairs 2 200 65536\n"
        )
    };
    // Mapped by slot, ranks 0 and 1 are on node 0. Mapped by node, ranks 0 and 2 are on node 0.
    let runs = format!("{}{}", run("slot"), run("node"));
    let Some(console) = emulate(dir.path(), 2, 2, &runs) else {
        return;
    };
    let measured: Vec<f64> = (console.lines())
        .filter_map(|line| {
            line.split_once("pairs: ")?
                .1
                .split(' ')
                .next()?
                .parse()
                .ok()
        })
        .collect();
    let [given, placed] = measured[..] else {
        panic!("{console}");
    };
    let [bad, good] = [0, 1].map(|job| sequences(dir.path(), job));
    assert_eq!(
        (&bad.nodes[..], &good.nodes[..]),
        (&[0, 0, 1, 1][..], &[0, 1, 0, 1][..])
    );
    let mut analysis = find(&bad, None);
    let request = MappingRequest::default();
    let mapping = map_ranks(&analysis, &bad, &two_nodes(), &request).unwrap();
    analysis.mapping = Some(mapping.clone());
    println!("{}", analysis.text());
    let best = &mapping.placements[mapping.whole];
    // The advised placement is that of the second run; only the nodes' numbers may differ.
    for one in 0..4 {
        for other in 0..4 {
            let together = good.nodes[one] == good.nodes[other];
            assert_eq!(best.nodes[one] == best.nodes[other], together);
        }
    }
    let predicted = mapping.placements[0].time.unwrap() as f64 / best.time.unwrap() as f64;
    println!(
        "measured: given {given} us, placed {placed} us, {:.2} times faster; predicted for the whole run: {predicted:.2} times",
        given / placed
    );
    assert!(placed < given && predicted > 1.0);
}
