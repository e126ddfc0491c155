//! Representatives and predictions of programs written by hand.

use std::path::Path;

use nodescope_loop_tree::build::ProgramBuilder;
use nodescope_loop_tree::{CollectiveKind, PeerRef, Sequence, Sequences};
use nodescope_predict::{Cluster, Request};
use nodescope_represent::{
    Analysis, Replay, ReplayPrediction, RepresentError, Scaling, assign_replays,
};

/// Returns a program that repeats a burst, a message round a ring, and an all-reduce three times; `bursts` has each rank's burst,
/// picoseconds.
fn ring(bursts: &[u64]) -> Sequences {
    let mut builder = ProgramBuilder::new();
    let last = bursts.len() as u32 - 1;
    for &burst in bursts {
        for _ in 0..3 {
            builder.compute(burst);
            builder.ireceive(PeerRef::Relative(last), 1, 64, 0);
            builder.isend(PeerRef::Relative(1), 1, 64, 1);
            builder.wait(&[0, 1]);
            builder.collective(CollectiveKind::Allreduce, 0, 8);
        }
        builder.ranks(1);
    }
    sequences(builder, bursts.len())
}

fn sequences(mut builder: ProgramBuilder, ranks: usize) -> Sequences {
    let program = builder.finish();
    Sequences {
        ranks: (0..ranks as u32).map(|rank| program.unfold(rank)).collect(),
        communicators: program.communicators.clone(),
        spans: vec![0; ranks],
        nodes: vec![0; ranks],
        ..Sequences::default()
    }
}

/// Returns a replay of a rank in which all bursts are `times` as long.
fn replayed(sequences: &Sequences, rank: u32, times: u64) -> Replay {
    let mut sequence: Sequence = sequences.ranks[rank as usize].clone();
    for entry in &mut sequence.entries {
        entry.burst.time *= times;
    }
    Replay { rank, sequence }
}

fn cluster(text: &str) -> Cluster {
    let cluster = Cluster::parse(Path::new("cluster.toml"), text).unwrap();
    cluster.ideal_network()
}

const BURSTS: [u64; 6] = [
    1_000_000, 2_000_000, 1_010_000, 1_020_000, 2_000_000, 1_010_000,
];

#[test]
fn ranks_that_compute_alike_share_a_representative() {
    let analysis = Analysis::new(&ring(&BURSTS), 0.05).unwrap();
    assert_eq!(analysis.groups.len(), 1);
    let clusters = &analysis.groups[0].clusters;
    assert_eq!(clusters[0].ranks, [0, 2, 3, 5]);
    // The mean is 1.01 us; of the two ranks with that burst, the first represents the others.
    assert_eq!(clusters[0].representative, 2);
    assert_eq!(clusters[1].ranks, [1, 4]);
    assert_eq!(analysis.representatives, [1, 2]);
    let counts: Vec<_> = (analysis.sensitivity.iter())
        .map(|entry| (entry.threshold, entry.representatives))
        .collect();
    // At threshold 0, a cluster has equal vectors only.
    assert_eq!(counts[0], (0.0, 4));
    assert!(
        counts.contains(&(0.05, 2)) && counts.contains(&(1.0, 1)),
        "{counts:?}"
    );
    assert!(analysis.same_from < 0.05 && analysis.same_below.is_some_and(|below| below > 0.05));
    assert!(analysis.notes.is_empty(), "{:?}", analysis.notes);
    let text = analysis.text();
    assert!(
        text.contains("2 of 6 ranks represent all, at a threshold of 5.0 %: 1-2"),
        "{text}"
    );
}

#[test]
fn the_page_is_xml() {
    for bursts in [&BURSTS[..], &[5][..], &[0, 0][..]] {
        let analysis = Analysis::new(&ring(bursts), 0.05).unwrap();
        let section = format!("<div>{}</div>", analysis.section().unwrap());
        let section = roxmltree::Document::parse(&section).unwrap();
        let mut headings = section.descendants().filter(|node| node.has_tag_name("h3"));
        assert!(
            headings
                .next()
                .and_then(|h| h.text())
                .is_some_and(|text| text.starts_with("Group 1"))
        );
        let page = analysis.html().unwrap();
        let options = roxmltree::ParsingOptions {
            allow_dtd: true,
            ..roxmltree::ParsingOptions::default()
        };
        let document = roxmltree::Document::parse_with_options(&page, options).unwrap();
        let drawn = document
            .descendants()
            .filter(|node| node.has_tag_name("svg"));
        assert!(drawn.count() <= 2);
    }
}

#[test]
fn each_rank_gets_the_vector_of_its_representative() {
    let mut sequences = ring(&BURSTS);
    let analysis = Analysis::new(&sequences, 0.05).unwrap();
    let replays = [replayed(&sequences, 1, 3), replayed(&sequences, 2, 2)];
    let assignments = assign_replays(&mut sequences, &analysis, &replays, &[]).unwrap();
    let from: Vec<u32> = assignments
        .iter()
        .map(|assignment| assignment.from)
        .collect();
    assert_eq!(from, [2, 1, 2, 2, 1, 2]);
    assert_eq!(
        (assignments[0].traced, assignments[0].computation),
        (3_000_000, 6_060_000)
    );
    // The speed in the cluster file is not applied to computation that was replayed on the target.
    let text = "name = \"t\"\n[nodes]\ncores = 1\nspeed = 4\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n";
    let request = Request {
        replicas: 0,
        ..Request::default()
    };
    let whole = ReplayPrediction::new(&sequences, assignments, &cluster(text), &request).unwrap();
    // On an ideal network the slowest rank decides: three bursts of 6 us.
    assert_eq!(whole.prediction.outcome.time, 18_000_000);
    assert!(
        whole
            .prediction
            .notes
            .iter()
            .any(|note| note.contains("speed"))
    );
    let text = whole.text();
    assert!(text.contains("represented by"), "{text}");
    assert!(text.contains("lacks the kernel's work"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&whole.json()).unwrap();
    assert_eq!(json["given"][4]["from"], 1);
    assert_eq!(json["prediction"]["outcome"]["time"], 18_000_000);
    assert!(json["prediction"]["efficiencies"]["load_balance"].is_f64());
}

/// Returns the time of a ring on an ideal network: three bursts of the slowest rank.
fn predicted(
    sequences: &Sequences,
    assignments: Vec<nodescope_represent::assignment::Assignment>,
) -> ReplayPrediction {
    let text =
        "name = \"t\"\n[nodes]\ncores = 1\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n";
    let request = Request {
        replicas: 0,
        ..Request::default()
    };
    ReplayPrediction::new(sequences, assignments, &cluster(text), &request).unwrap()
}

#[test]
fn what_replays_lack_is_added_from_replays_where_traced() {
    let alike = ring(&[1_000_000, 1_020_000]);
    let analysis = Analysis::new(&alike, 0.05).unwrap();
    let from = analysis.representatives[0];
    // Alone, the representative computes for a tenth less than in the trace, and the target is twice as fast.
    let alone = |tenths: u64| {
        let mut replay = replayed(&alike, from, tenths);
        for entry in &mut replay.sequence.entries {
            entry.burst.time /= 10;
        }
        replay
    };
    let mut half = alone(9);
    for entry in &mut half.sequence.entries {
        entry.burst.time /= 2;
    }
    let mut plain = alike.clone();
    let without = assign_replays(&mut plain, &analysis, &[half.clone()], &[]).unwrap();
    assert_eq!(without[0].replayed_where_traced, None);
    assert_eq!(
        predicted(&plain, without).prediction.outcome.time,
        1_350_000
    );
    let mut whole = alike.clone();
    let with = assign_replays(&mut whole, &analysis, &[half.clone()], &[alone(9)]).unwrap();
    assert_eq!(
        (with[0].replayed, with[0].replayed_where_traced),
        (1_350_000, Some(2_700_000))
    );
    // Each rank computes for half of its own traced time, so that the slower rank decides.
    assert_eq!(
        (with[0].computation, with[1].computation),
        (1_500_000, 1_530_000)
    );
    let whole = predicted(&whole, with);
    assert_eq!(whole.prediction.outcome.time, 1_530_000);
    assert!(!whole.text().contains("lacks the kernel's work"));
    // A replay of the other rank is of no use.
    let mut other = alone(9);
    other.rank = 1 - from;
    let error = assign_replays(&mut alike.clone(), &analysis, &[half], &[other]).unwrap_err();
    assert_eq!(error, RepresentError::NotReplayedWhereTraced { rank: from });
}

#[test]
fn a_prediction_without_replays_stands_beside() {
    let mut sequences = ring(&BURSTS);
    let traced = nodescope_loop_tree::Program::new(&sequences);
    let analysis = Analysis::new(&sequences, 0.05).unwrap();
    let replays = [replayed(&sequences, 1, 3), replayed(&sequences, 2, 3)];
    let assignments = assign_replays(&mut sequences, &analysis, &replays, &[]).unwrap();
    let mut whole = predicted(&sequences, assignments);
    let cluster = whole.prediction.cluster.clone();
    whole.compare(&traced, &cluster, None, &[]).unwrap();
    assert_eq!(whole.without_replay, None);
    // The clock of the target is a quarter of the traced one, and bursts take three times as long: memory does not slow down as much.
    whole.compare(&traced, &cluster, Some(0.25), &[]).unwrap();
    let other = whole.without_replay.clone().unwrap();
    assert_eq!((other.scaling, other.time), (Scaling::Clocks, 24_000_000));
    let text = whole.text();
    assert!(
        text.contains(
            "+33.3 %  no replay: the traced computation, with the ratio of the clocks (0.25)"
        ),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&whole.json()).unwrap();
    assert_eq!(json["without_replay"]["scaling"], "clocks");
    // The cluster file's speed comes before the clocks.
    let mut stated = cluster;
    stated.speed = nodescope_predict::Speed::Factor(0.5);
    whole.compare(&traced, &stated, Some(0.25), &[]).unwrap();
    let other = whole.without_replay.unwrap();
    assert_eq!(
        (other.scaling, other.time),
        (Scaling::ClusterFile, 12_000_000)
    );
}

#[test]
fn the_replayed_time_that_representatives_save_is_told() {
    let analysis =
        Analysis::new(&ring(&[1_000_000, 1_000_000, 4_000_000, 2_000_000]), 0.05).unwrap();
    // Ranks 0, 2 and 3 compute for 21 us of 24 us.
    assert_eq!(analysis.representatives, [0, 2, 3]);
    assert_eq!(
        (
            analysis.computation.representatives,
            analysis.computation.ranks
        ),
        (21_000_000, 24_000_000)
    );
    let text = analysis.text();
    assert!(
        text.contains(
            "21.000 us of 24.000 us where traced: representatives save 12.5 % of the replayed time"
        ),
        "{text}"
    );
}

#[test]
fn another_rank_of_the_cluster_may_stand_in() {
    let mut sequences = ring(&BURSTS);
    let analysis = Analysis::new(&sequences, 0.05).unwrap();
    let replays = [
        replayed(&sequences, 4, 1),
        replayed(&sequences, 3, 1),
        replayed(&sequences, 5, 1),
    ];
    let assignments = assign_replays(&mut sequences, &analysis, &replays, &[]).unwrap();
    let from: Vec<u32> = assignments
        .iter()
        .map(|assignment| assignment.from)
        .collect();
    // Rank 5 is as near to the centroid as the representative, which was not replayed.
    assert_eq!(from, [5, 4, 5, 5, 4, 5]);
}

#[test]
fn replays_that_do_not_fit_are_named() {
    let mut sequences = ring(&BURSTS);
    let analysis = Analysis::new(&sequences, 0.05).unwrap();
    let one = [replayed(&sequences, 2, 1)];
    let error = assign_replays(&mut sequences, &analysis, &one, &[]).unwrap_err();
    assert_eq!(
        error,
        RepresentError::NotReplayed {
            representative: 1,
            ranks: "1, 4".into()
        }
    );
    let mut other = replayed(&sequences, 2, 1);
    other.sequence.entries.remove(2);
    let error = assign_replays(&mut sequences, &analysis, &[other], &[])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("call 3 is MPI_Allreduce in the replay and MPI_Waitall in the trace"),
        "{error}"
    );
    let mut cut = replayed(&sequences, 2, 1);
    cut.sequence.entries.pop();
    let error = assign_replays(&mut sequences, &analysis, &[cut], &[])
        .unwrap_err()
        .to_string();
    assert!(error.contains("is missing in the replay"), "{error}");
    let mut beyond = replayed(&sequences, 2, 1);
    beyond.rank = 9;
    let error = assign_replays(&mut sequences, &analysis, &[beyond], &[]).unwrap_err();
    assert_eq!(error, RepresentError::NoSuchRank { rank: 9, world: 6 });
    let twice = [replayed(&sequences, 1, 1), replayed(&sequences, 1, 1)];
    let error = assign_replays(&mut sequences, &analysis, &twice, &[]).unwrap_err();
    assert_eq!(error, RepresentError::ReplayedTwice { rank: 1 });
}

#[test]
fn programs_in_which_no_replay_is_saved_are_told_why() {
    let one = Analysis::new(&ring(&[7]), 0.05).unwrap();
    assert!(one.notes[0].contains("one rank"), "{:?}", one.notes);
    let apart = Analysis::new(&ring(&[1_000_000, 2_000_000]), 0.05).unwrap();
    assert!(
        apart.notes[0].contains("differ by more than the threshold"),
        "{:?}",
        apart.notes
    );
    let mut builder = ProgramBuilder::new();
    for rank in 0..3 {
        for _ in 0..=rank {
            builder
                .compute(1_000_000)
                .collective(CollectiveKind::Barrier, 0, 0);
        }
        builder.ranks(1);
    }
    let sequences = sequences(builder, 3);
    let all = Analysis::new(&sequences, 0.05).unwrap();
    assert_eq!((all.groups.len(), all.representatives.len()), (3, 3));
    assert!(
        all.notes[0].contains("no two ranks make the same calls"),
        "{:?}",
        all.notes
    );
}
