//! Representatives and predictions of programs written by hand.

use std::path::Path;

use nodescope_loop_tree::build::ProgramBuilder;
use nodescope_loop_tree::{CollectiveKind, PeerRef, Sequence, Sequences};
use nodescope_predict::{Cluster, Request};
use nodescope_represent::{Analysis, Replay, ReplayPrediction, RepresentError, assign_replays};

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
    let assignments = assign_replays(&mut sequences, &analysis, &replays).unwrap();
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
    let json: serde_json::Value = serde_json::from_str(&whole.json()).unwrap();
    assert_eq!(json["given"][4]["from"], 1);
    assert_eq!(json["prediction"]["outcome"]["time"], 18_000_000);
    assert!(json["prediction"]["efficiencies"]["load_balance"].is_f64());
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
    let assignments = assign_replays(&mut sequences, &analysis, &replays).unwrap();
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
    let error = assign_replays(&mut sequences, &analysis, &one).unwrap_err();
    assert_eq!(
        error,
        RepresentError::NotReplayed {
            representative: 1,
            ranks: "1, 4".into()
        }
    );
    let mut other = replayed(&sequences, 2, 1);
    other.sequence.entries.remove(2);
    let error = assign_replays(&mut sequences, &analysis, &[other])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("call 3 is MPI_Allreduce in the replay and MPI_Waitall in the trace"),
        "{error}"
    );
    let mut cut = replayed(&sequences, 2, 1);
    cut.sequence.entries.pop();
    let error = assign_replays(&mut sequences, &analysis, &[cut])
        .unwrap_err()
        .to_string();
    assert!(error.contains("is missing in the replay"), "{error}");
    let mut beyond = replayed(&sequences, 2, 1);
    beyond.rank = 9;
    let error = assign_replays(&mut sequences, &analysis, &[beyond]).unwrap_err();
    assert_eq!(error, RepresentError::NoSuchRank { rank: 9, world: 6 });
    let twice = [replayed(&sequences, 1, 1), replayed(&sequences, 1, 1)];
    let error = assign_replays(&mut sequences, &analysis, &twice).unwrap_err();
    assert_eq!(error, RepresentError::ReplayedTwice { rank: 1 });
}

#[test]
fn programs_in_which_nothing_is_saved_are_told_why() {
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
