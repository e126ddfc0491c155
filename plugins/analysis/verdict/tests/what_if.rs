//! What changes of a run gain, where the gains follow from the bursts.

use std::sync::Arc;

use nodescope_hypercall::Function;
use nodescope_loop_tree::sequence::Entry;
use nodescope_loop_tree::{
    Action, Burst, Collective, CollectiveKind, Op, Sequence, Sequences, Site,
};
use nodescope_predict::{Algorithm, Channel, Cluster, Model, Table};
use nodescope_verdict::{Change, Link, Sample, WhatIf};

const MS: u64 = 1_000_000_000;
const STEPS: u64 = 20;
const LINK: Link = Link {
    latency: 1_300_000,
    bandwidth: 1_250_000_000,
};
const SOLVE: u32 = 0;
const ASSEMBLE: u32 = 1;
const SPIN: u32 = 2;

fn allreduce(time: u64, site: u64) -> Entry {
    let action = Action::Collective(Box::new(Collective::of(CollectiveKind::Allreduce)));
    Entry {
        burst: Burst {
            time,
            instructions: time / 500,
        },
        op: Arc::new(Op {
            function: Function::Allreduce,
            site: Site {
                address: site,
                module: 0,
            },
            communicator: 0,
            block: None,
            more: false,
            action,
        }),
        opaque: None,
    }
}

/// Four ranks that compute for 10 ms before each of two calls. The last computes twice as long before the second.
fn sequences() -> Sequences {
    let times = |rank: usize| [10 * MS, if rank == 3 { 20 * MS } else { 10 * MS }];
    let entries = |rank| {
        let step = times(rank).into_iter().zip([0x10, 0x20]);
        let step: Vec<Entry> = step.map(|(time, site)| allreduce(time, site)).collect();
        vec![step; STEPS as usize].concat()
    };
    let sequence = |rank| Sequence {
        entries: entries(rank),
        communicators: vec![Some(0)],
    };
    let begins = (0..STEPS).flat_map(|step| [step * 30 * MS + 10 * MS, step * 30 * MS + 30 * MS]);
    let time = STEPS * 30 * MS;
    Sequences {
        ranks: (0..4).map(sequence).collect(),
        communicators: vec![Vec::new()],
        nodes: vec![0, 0, 1, 1],
        spans: vec![time; 4],
        extents: vec![(0, time); 4],
        begins: vec![begins.collect(); 4],
        ..Sequences::default()
    }
}

/// Samples of each millisecond of computation: `solve` before the first call, and before the second half `solve`, half `assemble`. A second
/// thread of each rank only waits.
fn samples() -> Vec<Sample> {
    let mut samples = Vec::new();
    for (rank, step) in (0..4).flat_map(|rank| (0..STEPS).map(move |step| (rank, step))) {
        let second = if rank == 3 { 20 } else { 10 };
        for at in (0..10).chain(10..10 + second) {
            let function = if at >= 10 && at % 2 == 0 {
                ASSEMBLE
            } else {
                SOLVE
            };
            let sample = |function, waits| Sample {
                rank,
                time: step * 30 * MS + at * MS + MS / 2,
                function,
                waits,
            };
            samples.extend([sample(SPIN, true), sample(function, false)]);
        }
    }
    samples
}

/// Returns the gain of changes as a share of the replay.
fn gain(changes: &[Change]) -> f64 {
    let run = WhatIf::new(&sequences(), LINK, samples()).unwrap();
    let time = run.time(changes).unwrap().unwrap();
    1.0 - time as f64 / run.replayed() as f64
}

fn code(function: u32, kept: f64) -> Change {
    Change::Code((0..4).map(|rank| ((rank, function), kept)).collect())
}

fn assert_near(value: f64, wanted: f64) {
    assert!((value - wanted).abs() < 0.005, "{value} for {wanted}");
}

#[test]
fn a_function_gains_what_it_has_of_the_longest_path() {
    // Of 30 ms, the last rank has 20 in `solve` and 10 in `assemble`.
    assert_near(gain(&[code(SOLVE, 0.5)]), 10.0 / 30.0);
    assert_near(gain(&[code(ASSEMBLE, 0.0)]), 10.0 / 30.0);
    assert_near(gain(&[code(SPIN, 0.0)]), 0.0);
    assert_near(gain(&[code(SOLVE, 1.25)]), -5.0 / 30.0);
    assert_near(gain(&[code(SOLVE, 0.5), code(ASSEMBLE, 0.5)]), 15.0 / 30.0);
}

#[test]
fn a_faster_rank_gains_until_others_are_the_last() {
    assert_near(gain(&[Change::Rank(3, 0.5)]), 10.0 / 30.0);
    assert_near(gain(&[Change::Rank(0, 0.5)]), 0.0);
    assert_near(gain(&[Change::Balance]), 7.5 / 30.0);
}

#[test]
fn the_profile_has_functions_computations_and_calls_by_gain() {
    let run = WhatIf::new(&sequences(), LINK, samples()).unwrap();
    let name = |function| ["solve", "assemble", "spin"][function as usize].to_owned();
    let profile = run.profile(&name).unwrap();
    let functions: Vec<&str> = profile
        .functions
        .iter()
        .map(|row| row.place.as_str())
        .collect();
    assert_eq!(functions, ["solve", "assemble"]);
    let solve = &profile.functions[0];
    assert_near(solve.share, 65.0 / 90.0);
    assert_near(solve.twice, 10.0 / 30.0);
    assert_near(solve.slower, -5.0 / 30.0);
    assert!(
        profile.computations[0].place.contains("0x20"),
        "{profile:?}"
    );
    assert_eq!(profile.calls.len(), 2);
    assert_eq!(profile.calls[0].count, 4 * STEPS);
}

#[test]
fn without_samples_functions_are_unknown_and_change_nothing() {
    let run = WhatIf::new(&sequences(), LINK, Vec::new()).unwrap();
    let time = run.time(&[code(SOLVE, 0.0)]).unwrap();
    assert_eq!(time, Some(run.replayed()));
    let profile = run.profile(&|_| String::new()).unwrap();
    assert!(profile.functions.is_empty() && !profile.computations.is_empty());
}

const US: u64 = 1_000_000;

/// Returns a cluster on which a round of a recursive doubling takes 8 us: o + L + o of 1, 6 and 1 us.
fn target() -> Cluster {
    let channel = Channel {
        send_overhead: Table::constant(US),
        receive_overhead: Table::constant(US),
        ..Channel::new(Model::LogGp, 6 * US, 0)
    };
    let kind = CollectiveKind::Allreduce;
    let cluster = Cluster {
        cores: 2,
        ranks_per_node: Some(2),
        ..Cluster::simple("target", channel)
    };
    cluster.with_algorithm(kind, Algorithm::RecursiveDoubling.into())
}

/// Four ranks that compute equally long before each of two calls.
fn even() -> Sequences {
    let mut sequences = sequences();
    let last = sequences.ranks[0].entries.clone();
    sequences.ranks[3].entries = last;
    sequences
}

#[test]
fn changes_are_predicted_for_another_cluster() {
    let run = WhatIf::on(&even(), &target(), Vec::new()).unwrap();
    let call = |run: &WhatIf, site| {
        let found = run.sending_calls().into_iter();
        found
            .filter(|(of, _)| of.address == site)
            .collect::<Vec<_>>()
    };
    let whole = STEPS * (20 * MS + 2 * 16 * US);
    assert_eq!((run.traced(), run.replayed()), (whole, whole));
    assert_eq!(run.nodes(), [0, 0, 1, 1]);
    let time = |changes: &[Change]| run.time(changes).unwrap().unwrap();
    // The messages of one of the two calls.
    let of_second = call(&run, 0x20);
    assert_eq!(of_second.len(), 1);
    let free = Change::Messages(of_second.clone(), 0.0);
    assert_eq!(time(&[free]), whole - STEPS * 16 * US);
    let faster = Change::Messages(of_second.clone(), 0.5);
    let twice = [faster.clone(), faster];
    assert_eq!(time(&twice[..1]), whole - STEPS * 8 * US);
    assert_eq!(time(&twice), whole - STEPS * 12 * US);
    // The calls without waiting for one another.
    assert_eq!(time(&[Change::Without(of_second)]), whole - STEPS * 16 * US);
    assert_eq!(time(&[Change::IdealNetwork]), STEPS * 20 * MS);
    // Ranks that are slower let the others wait, and ranks that are faster gain nothing.
    for slower in [Change::Node(1, 2.0), Change::Rank(1, 2.0)] {
        let slower = time(&[slower]);
        assert!(slower.abs_diff(whole + STEPS * 20 * MS) < MS, "{slower}");
    }
    assert_eq!(
        time(&[Change::Node(0, 0.5), Change::Node(1, 0.5)]),
        whole - STEPS * 10 * MS
    );
    assert!(time(&[Change::Node(1, 0.5)]) > whole - MS);
}

#[test]
fn programs_that_do_not_fit_on_a_cluster_are_refused() {
    let small = Cluster {
        nodes: Some(1),
        ..target()
    };
    let refused = WhatIf::on(&even(), &small, Vec::new()).unwrap_err();
    assert!(
        refused.to_string().contains("raise nodes.count"),
        "{refused}"
    );
}
