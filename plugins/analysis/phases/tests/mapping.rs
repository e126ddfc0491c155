//! Placements gain where the given one is bad, and changes of the placement pay where they should.

mod support;

use nodescope_loop_tree::sequence::Sequences;
use nodescope_phases::{
    Analysis, ChangeCost, Include, Mapping, MappingError, MappingRequest, Messages, Request,
    analyse, map_ranks,
};
use nodescope_predict::{Channel, Cluster, ClusterFile, Code, Options, Placement, interpret};
use support::{MS, SECOND, Trace, choice};

fn cluster(text: &str) -> Cluster {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.toml");
    std::fs::write(&file, text).unwrap();
    ClusterFile::load(&file).unwrap().with(&[]).unwrap()
}

/// Returns a cluster whose nodes have four cores each, with a slow network between them and fast memory within.
fn slow_network() -> Cluster {
    cluster(
        r#"
        name = "slow"
        [nodes]
        cores = 4
        placement = "block"
        ranks_per_node = 4
        [network]
        latency = "10 us"
        bandwidth = "1 GB/s"
        contention = true
        [memory]
        latency = "0.3 us"
        bandwidth = "10 GB/s"
        "#,
    )
}

fn map(trace: &Trace, cluster: &Cluster, request: &MappingRequest) -> (Analysis, Mapping) {
    let sequences: Sequences = trace.sequences();
    let messages = Messages::new(&sequences, Include::default(), &choice());
    let mut analysis = analyse(&messages, &Request::default()).unwrap();
    let mapping = map_ranks(&analysis, &sequences, cluster, request).unwrap();
    analysis.mapping = Some(mapping.clone());
    (analysis, mapping)
}

/// Adds exchanges between the ranks whose numbers differ by `distance`, every 10 ms from `begin`, `turns` times.
fn exchanges(trace: &mut Trace, distance: u32, begin: u64, turns: u64) {
    for turn in 0..turns {
        for rank in 0..trace.ranks {
            let partner = rank ^ distance;
            trace.exchange(rank, (partner, partner), 4 << 20, begin + turn * 10 * MS);
        }
    }
}

/// Returns a trace of 16 ranks in which ranks at distance 8 exchange for a second.
fn distant_pairs() -> Trace {
    let mut trace = Trace::new(16);
    exchanges(&mut trace, 8, 0, 100);
    trace.end(SECOND);
    trace
}

#[test]
fn a_bad_placement_is_mended() {
    let cluster = slow_network();
    let trace = distant_pairs();
    let (analysis, mapping) = map(&trace, &cluster, &MappingRequest::default());
    let [given, best] = [0, mapping.whole].map(|at| &mapping.placements[at]);
    assert_eq!(
        given.nodes,
        [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    );
    // All bytes cross before, none after.
    assert_eq!(given.bytes, 16 * 100 * (4 << 20));
    assert_eq!(best.bytes, 0);
    let (before, after) = (given.time.unwrap(), best.time.unwrap());
    assert!(after < before, "{}", analysis.text());
    // The prediction is the one that `predict` makes of the same program and placement.
    let program = nodescope_loop_tree::Program::new(&trace.sequences());
    let there = Cluster {
        placement: Placement::Nodes(best.nodes.clone()),
        ..cluster
    };
    let outcome = interpret(&Code::new(&program), &there, &Options::default()).unwrap();
    assert_eq!(outcome.time, after);
    let text = analysis.text();
    assert!(text.contains("whole run"), "{text}");
    assert!(
        text.contains(&format!("placement = {:?}", best.nodes)),
        "{text}"
    );
    assert!(analysis.html().unwrap().contains("Placements on slow"));
}

/// Returns a trace in which ranks at distance 8 exchange for half of the run, then ranks at distance 4.
fn two_patterns() -> Trace {
    let mut trace = Trace::new(16);
    exchanges(&mut trace, 8, 0, 100);
    exchanges(&mut trace, 4, SECOND, 100);
    trace.end(2 * SECOND);
    trace
}

#[test]
fn phases_have_times_that_add_up_to_the_run() {
    let (analysis, mapping) = map(&two_patterns(), &slow_network(), &MappingRequest::default());
    assert_eq!(analysis.phases.len(), 2, "{}", analysis.text());
    for placed in &mapping.placements {
        assert_eq!(placed.phase_times.iter().sum::<u64>(), placed.time.unwrap());
        assert_eq!(placed.phase_bytes.iter().sum::<u64>(), placed.bytes);
    }
    for (phase, &placement) in mapping.phases.iter().enumerate() {
        let (given, own) = (&mapping.placements[0], &mapping.placements[placement]);
        assert_eq!(own.phase_bytes[phase], 0);
        assert!(own.phase_times[phase] < given.phase_times[phase]);
    }
}

/// Returns a trace of 16 ranks in four patterns, whose pairs no placement on four nodes can all keep together.
fn four_patterns() -> Trace {
    let mut trace = Trace::new(16);
    for (number, distance) in [8, 4, 2, 1].into_iter().enumerate() {
        exchanges(&mut trace, distance, number as u64 * SECOND, 100);
    }
    trace.end(4 * SECOND);
    trace
}

#[test]
fn changes_pay_where_they_are_cheap_and_not_where_they_are_dear() {
    let with = |change| {
        let request = MappingRequest {
            change: Some(change),
            ..MappingRequest::default()
        };
        let (analysis, mapping) = map(&four_patterns(), &slow_network(), &request);
        (analysis, mapping.schedule.unwrap())
    };
    let bytes_of_a_phase = 16 * 100 * (4u64 << 20);
    let (analysis, free) = with(ChangeCost::Bytes(1));
    // The given placement suits the last two patterns; each of the first two has one of its own.
    assert_eq!((free.changes.len(), free.cost), (2, 2));
    for (change, phase) in free.changes.iter().zip([1, 2]) {
        assert_eq!(
            (change.phase, change.at),
            (phase, analysis.phases[phase].from)
        );
    }
    assert_eq!(free.changes[1].to, 0);
    assert_eq!(free.given_cost, 2 * bytes_of_a_phase);
    assert_eq!(free.constant_cost, 2 * bytes_of_a_phase);
    let (_, dear) = with(ChangeCost::Bytes(3 * bytes_of_a_phase));
    assert!(dear.changes.is_empty());
    assert_eq!(dear.cost, dear.constant_cost);
    let (_, quick) = with(ChangeCost::Time(MS));
    assert!(!quick.changes.is_empty());
    assert!(quick.cost < quick.constant_cost);
    let (analysis, slow) = with(ChangeCost::Time(10 * SECOND));
    assert!(slow.changes.is_empty(), "{}", analysis.text());
    assert!(analysis.text().contains("no change pays"));
}

#[test]
fn sockets_are_filled_by_what_talks() {
    let request = MappingRequest {
        sockets: Some(2),
        ..MappingRequest::default()
    };
    let (_, mapping) = map(&distant_pairs(), &slow_network(), &request);
    let best = &mapping.placements[mapping.whole];
    let sockets = best.sockets.as_ref().unwrap();
    assert_eq!(sockets.bytes, 0);
    for rank in 0..16 {
        assert_eq!(sockets.socket[rank], sockets.socket[rank ^ 8]);
        assert_eq!(sockets.socket[rank] / 2, best.nodes[rank]);
    }
}

#[test]
fn what_does_not_fit_is_told() {
    let trace = distant_pairs();
    let sequences = trace.sequences();
    let analysis = analyse(&trace.messages(), &Request::default()).unwrap();
    let mut small = slow_network();
    small.nodes = Some(2);
    let error = map_ranks(&analysis, &sequences, &small, &MappingRequest::default()).unwrap_err();
    assert!(matches!(error, MappingError::Fit(_)));
    let request = MappingRequest {
        sockets: Some(8),
        ..MappingRequest::default()
    };
    let error = map_ranks(&analysis, &sequences, &slow_network(), &request).unwrap_err();
    assert!(
        error.to_string().contains("give at most 4 to --sockets"),
        "{error}"
    );
}

#[test]
fn one_rank_a_node_leaves_nothing_to_choose() {
    let trace = distant_pairs();
    let cluster = Cluster::simple("flat", Channel::ideal());
    let (analysis, mapping) = map(&trace, &cluster, &MappingRequest::default());
    assert_eq!((mapping.placements.len(), mapping.whole), (1, 0));
    assert!(mapping.phases.iter().all(|&placement| placement == 0));
    assert!(analysis.text().contains("given; whole run"));
}
