//! Properties that predictions of any program must have on any cluster, checked with random programs on a few clusters.

use nodescope_loop_tree::{
    Burst, CollectiveKind, Entry, PeerRef, Program, ProgramBuilder, Sequences,
};
use nodescope_predict::{
    Algorithm, Channel, Cluster, Code, Efficiencies, Frames, Model, Options, Outcome, Progress,
    Request, Sharing, Table, Topology, interpret, predict,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Turn {
    Compute(u8),
    Shift {
        distance: u32,
        bytes: u64,
    },
    Overlapped {
        distance: u32,
        bytes: u64,
        work: u8,
    },
    Access {
        distance: u32,
        bytes: u64,
        reads: bool,
    },
    Together(CollectiveKind, u32, u64),
}

fn turn() -> impl Strategy<Value = Turn> {
    let bytes = prop_oneof![Just(0u64), 1u64..100_000, Just(1u64 << 20)];
    prop_oneof![
        any::<u8>().prop_map(Turn::Compute),
        (1u32..5, bytes.clone()).prop_map(|(distance, bytes)| Turn::Shift { distance, bytes }),
        (1u32..5, bytes.clone(), any::<u8>()).prop_map(|(distance, bytes, work)| {
            Turn::Overlapped {
                distance,
                bytes,
                work,
            }
        }),
        (1u32..5, bytes.clone(), any::<bool>()).prop_map(|(distance, bytes, reads)| {
            Turn::Access {
                distance,
                bytes,
                reads,
            }
        }),
        (0usize..17, 0u32..2, bytes).prop_map(|(kind, root, bytes)| {
            let kind = CollectiveKind::ALL[kind];
            Turn::Together(kind, if kind.rooted() { root } else { 0 }, bytes)
        }),
    ]
}

/// Makes a program in which every rank executes `turns` in a loop, with its own amount of work.
fn program(turns: &[Turn], ranks: u32, times: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..ranks {
        let work = |amount: u8| u64::from(amount) * 1_000_000 * u64::from(1 + rank % 3);
        builder.begin();
        for turn in turns {
            match turn {
                Turn::Compute(amount) => builder.compute(work(*amount)),
                Turn::Shift { distance, bytes } => {
                    let d = distance % ranks;
                    builder
                        .ireceive(PeerRef::Relative(ranks - d), 1, *bytes, 0)
                        .send(PeerRef::Relative(d), 1, *bytes)
                        .wait(&[0])
                }
                Turn::Overlapped {
                    distance,
                    bytes,
                    work: amount,
                } => {
                    let d = distance % ranks;
                    builder
                        .isend(PeerRef::Relative(d), 2, *bytes, 0)
                        .ireceive(PeerRef::Relative(ranks - d), 2, *bytes, 1)
                        .compute(work(*amount))
                        .wait(&[0, 1])
                }
                Turn::Access {
                    distance,
                    bytes,
                    reads,
                } => {
                    let to = PeerRef::Relative(distance % ranks);
                    match reads {
                        true => builder.get(to, *bytes, 0),
                        false => builder.put(to, *bytes, 0),
                    };
                    builder.compute(1_000_000).wait(&[0])
                }
                Turn::Together(kind, root, bytes) => {
                    builder.collective(*kind, root % ranks, *bytes)
                }
            };
        }
        builder.end(times).ranks(1);
    }
    builder.finish()
}

fn clusters() -> Vec<Cluster> {
    let channel = Channel {
        send_overhead: Table::constant(500_000),
        receive_overhead: Table::constant(700_000),
        gap: 100_000,
        eager_limit: 20_000,
        copy_per_byte: 50.0,
        ..Channel::new(Model::LogGp, 2_000_000, 1_000_000_000)
    };
    let plain = Cluster::simple("plain", channel.clone());
    let shared = Cluster {
        contention: true,
        progress: Progress::Calls,
        reduce_per_byte: 100.0,
        ..plain.clone()
    };
    vec![
        Cluster {
            topology: Topology::Torus { size: vec![3, 4] },
            hop_latency: 100_000,
            ..shared.clone()
        },
        Cluster {
            cores: 3,
            ranks_per_node: Some(3),
            topology: Topology::FatTree {
                down: vec![2, 2],
                up: vec![1],
            },
            progress: Progress::Thread { beta: 0.5 },
            ..shared.clone()
        },
        Cluster {
            network: Channel {
                model: Model::Post,
                ..channel.clone()
            },
            ..shared.clone()
        },
        Cluster {
            sharing: Sharing::Fair,
            ..shared.clone()
        },
        Cluster {
            receives_unexpected: true,
            sharing: Sharing::Frames,
            datatype_overhead: 50_000,
            network: Channel {
                queued_overhead: Some(Table::constant(400_000)),
                envelope: 24,
                frames: Some(Frames {
                    payload: 1448,
                    header: 90,
                    acknowledge: 2,
                }),
                ..shared.network.clone()
            },
            ..shared.clone()
        },
        Cluster {
            receives_unexpected: true,
            progress: Progress::Calls,
            ..plain.clone()
        },
        Cluster {
            network: Channel {
                model: Model::Post,
                envelope: 100,
                ..channel
            },
            topology: Topology::Torus { size: vec![3, 4] },
            hop_latency: 100_000,
            sharing: Sharing::RoundTrip,
            ..shared.clone()
        },
        plain,
        shared,
    ]
}

fn check(program: &Program, cluster: &Cluster) -> Outcome {
    let code = Code::new(program);
    let outcome = interpret(&code, cluster, &Options::default()).unwrap();
    assert_eq!(outcome.problems, []);
    for rank in &outcome.ranks {
        let parts = rank.computation + rank.opaque + rank.communication + rank.wait + rank.idle;
        assert_eq!(parts, outcome.time, "{rank:?}");
    }
    let path = outcome.critical_path.as_ref().unwrap();
    assert_eq!(
        path.computation + path.communication + path.transfer,
        outcome.time
    );
    // A second interpretation gives the same outcome.
    assert_eq!(
        interpret(&code, cluster, &Options::default()).unwrap(),
        outcome
    );
    let waited: u64 = outcome.waits.iter().map(|wait| wait.time).sum();
    assert_eq!(
        waited,
        outcome.ranks.iter().map(|rank| rank.wait).sum::<u64>()
    );
    outcome
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn times_are_conserved_and_efficiencies_multiply(
        turns in proptest::collection::vec(turn(), 1..6),
        ranks in 2u32..12,
        times in 1u32..4,
    ) {
        let program = program(&turns, ranks, times);
        for cluster in clusters() {
            let outcome = check(&program, &cluster);
            let ideal = check(&program, &cluster.ideal_network());
            let of = Efficiencies::new(&outcome, &ideal);
            prop_assert!(of.ideal <= of.time, "{of:?}");
            prop_assert!(of.most <= of.ideal);
            // Products of fractions whose terms cancel: LB * CommE = PE and SerE * TE = CommE.
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-12;
            prop_assert!(close(of.load_balance() * of.communication(), of.parallel()));
            prop_assert!(close(of.serialisation() * of.transfer(), of.communication()));
            let product = u128::from(of.useful) * u128::from(of.most);
            prop_assert_eq!(
                product * u128::from(of.ranks) * u128::from(of.time),
                u128::from(of.useful) * (u128::from(of.ranks) * u128::from(of.most)) * u128::from(of.time)
            );
        }
    }

    #[test]
    fn order_changes_nothing_without_sharing(
        turns in proptest::collection::vec(turn(), 1..5),
        ranks in 2u32..10,
    ) {
        let program = program(&turns, ranks, 2);
        let cluster = Cluster {
            contention: false,
            progress: Progress::Thread { beta: 0.0 },
            ..clusters()[3].clone()
        };
        let code = Code::new(&program);
        let free = interpret(&code, &cluster, &Options::default()).unwrap();
        let forced = Options { force_order: true, ..Options::default() };
        prop_assert_eq!(interpret(&code, &cluster, &forced).unwrap(), free);
    }

    #[test]
    fn a_folded_program_takes_as_long_as_its_sequence(
        turns in proptest::collection::vec(turn(), 1..5),
        ranks in 2u32..8,
        times in 1u32..5,
    ) {
        let written = program(&turns, ranks, times);
        let sequences = Sequences {
            ranks: (0..ranks).map(|rank| written.unfold(rank)).collect(),
            communicators: vec![Vec::new()],
            ..Sequences::default()
        };
        let folded = Program::new(&sequences);
        for cluster in clusters() {
            prop_assert_eq!(check(&folded, &cluster), check(&written, &cluster));
        }
    }
}

#[test]
fn intervals_come_from_the_bursts_and_their_seed() {
    let mut builder = ProgramBuilder::new();
    builder.begin().compute(1_000_000);
    builder
        .collective(CollectiveKind::Allreduce, 0, 8)
        .end(50)
        .ranks(4);
    let written = builder.finish();
    let cluster = clusters().remove(4).with_algorithm(
        CollectiveKind::Allreduce,
        Algorithm::RecursiveDoubling.into(),
    );
    let constant = predict(&written, &cluster, &Request::default()).unwrap();
    assert_eq!(constant.interval, None);
    let vary = |entry: Entry, at: usize| Entry {
        burst: Burst {
            time: 1_000_000 + (at as u64 * 7919) % 1_000_000,
            instructions: 0,
        },
        ..entry
    };
    let sequence = |rank: u32| {
        let mut sequence = written.unfold(rank);
        let entries = sequence.entries.into_iter().enumerate();
        sequence.entries = entries
            .map(|(at, e)| vary(e, at + rank as usize * 13))
            .collect();
        sequence
    };
    let varied = Program::new(&Sequences {
        ranks: (0..4).map(sequence).collect(),
        communicators: vec![Vec::new()],
        ..Sequences::default()
    });
    let first = predict(&varied, &cluster, &Request::default()).unwrap();
    let interval = first.interval.clone().unwrap();
    let time = first.outcome.time;
    assert!(interval.low < time && time < interval.high);
    assert_eq!(
        predict(&varied, &cluster, &Request::default()).unwrap(),
        first
    );
    let request = Request {
        seed: 99,
        ..Request::default()
    };
    assert_ne!(
        predict(&varied, &cluster, &request)
            .unwrap()
            .interval
            .unwrap(),
        interval
    );
}

#[test]
fn ranks_that_begin_apart_widen_the_interval() {
    let mut builder = ProgramBuilder::new();
    builder.begin();
    builder.compute(240 * 1_000_000);
    builder.collective(CollectiveKind::Allgather, 0, 960);
    builder.collective(CollectiveKind::Allreduce, 0, 8);
    builder.end(20).ranks(16);
    let program = builder.finish();
    let channel = Channel::new(Model::LogGp, 160_000_000, 10_000_000);
    let mut cluster = Cluster::simple("c", channel)
        .with_algorithm(CollectiveKind::Allgather, Algorithm::Bruck.into())
        .with_algorithm(
            CollectiveKind::Allreduce,
            Algorithm::RecursiveDoubling.into(),
        );
    cluster.contention = true;
    let ask = |stagger, seed| {
        let request = Request {
            stagger,
            seed,
            ..Request::default()
        };
        predict(&program, &cluster, &request).unwrap()
    };
    // Neither bursts nor the ranks' starts vary, so there is no interval.
    assert_eq!(ask(0, 1).interval, None);
    let apart = ask(1_000_000_000, 1);
    assert_eq!(apart.outcome, ask(0, 1).outcome);
    assert_eq!(apart, ask(1_000_000_000, 1));
    assert_ne!(apart.interval, ask(1_000_000_000, 2).interval);
    let interval = apart.interval.unwrap();
    assert_eq!(interval.stagger, 1_000_000_000);
    // The interval is more than twice as wide as the stagger of the ranks' starts.
    let width = interval.high - interval.low;
    assert!(width > 2_000_000_000, "{interval:?} {}", apart.outcome.time);
}
