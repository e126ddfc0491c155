//! Derivatives of the time and latency tolerances, against values that can be computed by hand, and against one another.

use nodescope_loop_tree::{CollectiveKind, PeerRef, Program, ProgramBuilder};
use nodescope_predict::{
    Algorithm, Channel, Cluster, Code, Model, Options, Parameter, Preset, Progress, Sensitivity,
    Sharing, Table, interpret, sensitivity,
};

const US: u64 = 1_000_000;

/// Returns a LogGP channel with L = 5 us, o = 1 us at each end, 1 GB/s.
fn loggp() -> Channel {
    Channel {
        send_overhead: Table::constant(US),
        receive_overhead: Table::constant(US),
        ..Channel::new(Model::LogGp, 5 * US, 1_000_000_000)
    }
}

fn found(program: &Program, cluster: &Cluster) -> Sensitivity {
    let outcome = interpret(&Code::new(program), cluster, &Options::default()).unwrap();
    let path = &outcome.critical_path.as_ref().unwrap().composition;
    assert_eq!(path.sum(), outcome.time, "{path:?}");
    sensitivity(program, cluster, &outcome).unwrap().unwrap()
}

/// Asserts that a parameter's time on the path, with less and with more of it is the same.
fn all_are(of: &Sensitivity, parameter: Parameter, time: u64) {
    let all = of.parameters.iter().chain(&of.ranks);
    let of = all.clone().find(|of| of.parameter == parameter).unwrap();
    let near =
        |other: f64| (other - time as f64).abs() <= 1e-3 * time as f64 + 10.0 * US as f64 / 1e3;
    assert_eq!(of.path, Some(time), "{of:?}");
    assert!(
        near(of.less.unwrap()) && near(of.more),
        "{of:?} is not {time}"
    );
}

fn rank(absolute: u32) -> PeerRef {
    PeerRef::Absolute(absolute)
}

fn ping_pong(times: u32, bytes: u64, work: u64) -> Program {
    let mut builder = ProgramBuilder::new();
    builder.begin().compute(work);
    builder.send(rank(1), 0, bytes).receive(rank(1), 0, bytes);
    builder.end(times).ranks(1);
    builder.begin().receive(rank(0), 0, bytes);
    builder.compute(2 * work).send(rank(0), 0, bytes);
    builder.end(times).ranks(1);
    builder.finish()
}

#[test]
fn a_round_trip_has_two_latencies() {
    let of = found(&ping_pong(10, 1000, 3 * US), &Cluster::simple("c", loggp()));
    // Ten times: 3 us on rank 0, 6 us on rank 1, two messages of o + G n + L + o.
    assert_eq!(of.time, 10 * (9 + 2 * 8) * US);
    assert_eq!(of.latencies, 20);
    assert_eq!(of.growth_per_latency, (Some(20.0), 20.0));
    all_are(&of, Parameter::Latency, 20 * 5 * US);
    all_are(&of, Parameter::PerByte, 20 * US);
    all_are(&of, Parameter::Overhead, 40 * US);
    all_are(&of, Parameter::Rank(0), 30 * US);
    all_are(&of, Parameter::Rank(1), 60 * US);
    all_are(&of, Parameter::Computation, 90 * US);
    assert_eq!(of.queueing, 0);
    // The time grows by 1 % where the latency has grown by a hundredth of 250 us over 20 messages.
    for tolerance in &of.tolerances {
        let expected = 5.0 * US as f64 + tolerance.growth * of.time as f64 / 20.0;
        let latency = tolerance.latency.unwrap() as f64;
        assert!(
            (latency - expected).abs() <= 2e-4 * expected,
            "{tolerance:?}"
        );
    }
}

#[test]
fn large_messages_have_three_latencies() {
    let mut channel = loggp();
    channel.eager_limit = 100;
    for progress in [Progress::Calls, Progress::Thread { beta: 0.0 }] {
        let mut cluster = Cluster::simple("c", channel.clone());
        cluster.progress = progress;
        let of = found(&ping_pong(10, 1000, 3 * US), &cluster);
        // The receiver has always posted: request, permission, data.
        assert_eq!(of.latencies, 60);
        assert_eq!(of.growth_per_latency, (Some(60.0), 60.0));
        all_are(&of, Parameter::Latency, 60 * 5 * US);
        all_are(&of, Parameter::PerByte, 20 * US);
        all_are(&of, Parameter::Overhead, 40 * US);
    }
}

#[test]
fn the_post_model_has_its_times_on_the_path() {
    let cluster = Cluster::simple("myrinet", Preset::Myrinet.channel());
    let of = found(&ping_pong(10, 2000, 3 * US), &cluster);
    assert_eq!(of.latencies, 20);
    assert_eq!(of.growth_per_latency, (Some(20.0), 20.0));
    all_are(&of, Parameter::Latency, 20 * 30 * US);
    all_are(&of, Parameter::PerByte, 20 * 10 * US);
}

#[test]
fn a_ring_has_as_many_latencies_as_ranks() {
    let mut builder = ProgramBuilder::new();
    builder.send(rank(1), 0, 0).receive(rank(7), 0, 0).ranks(1);
    builder.receive(PeerRef::Relative(7), 0, 0);
    builder.send(PeerRef::Relative(1), 0, 0).ranks(7);
    let of = found(&builder.finish(), &Cluster::simple("c", loggp()));
    assert_eq!((of.latencies, of.time), (8, 8 * 7 * US));
    all_are(&of, Parameter::Latency, 40 * US);
    all_are(&of, Parameter::Overhead, 16 * US);
}

#[test]
fn recursive_doubling_has_the_logarithm_of_the_ranks() {
    for (ranks, rounds) in [(2, 1), (8, 3), (32, 5), (64, 6)] {
        let kind = CollectiveKind::Allreduce;
        let mut builder = ProgramBuilder::new();
        builder
            .begin()
            .collective(kind, 0, 1000)
            .end(4)
            .ranks(ranks);
        let cluster = Cluster::simple("c", loggp());
        let cluster = cluster.with_algorithm(kind, Algorithm::RecursiveDoubling.into());
        let of = found(&builder.finish(), &cluster);
        assert_eq!(of.latencies, 4 * rounds);
        all_are(&of, Parameter::Latency, 4 * rounds * 5 * US);
        all_are(&of, Parameter::PerByte, 4 * rounds * US);
    }
}

/// Two ranks compute equally long and exchange messages: two paths are equally long.
#[test]
fn the_speed_of_one_of_two_equal_ranks_only_loses() {
    let mut builder = ProgramBuilder::new();
    builder.begin().compute(100 * US);
    builder
        .collective(CollectiveKind::Barrier, 0, 0)
        .end(1)
        .ranks(2);
    let of = found(&builder.finish(), &Cluster::simple("c", loggp()));
    for of in &of.ranks {
        assert!(of.less.unwrap().abs() < US as f64, "{of:?}");
        assert!((of.more - 100.0 * US as f64).abs() < US as f64, "{of:?}");
    }
    all_are(&of, Parameter::Computation, 100 * US);
}

/// A latency that computation hides is tolerated up to the length of the computation.
#[test]
fn hidden_latency_is_tolerated() {
    let mut builder = ProgramBuilder::new();
    let other = PeerRef::Relative(1);
    builder
        .begin()
        .ireceive(other, 0, 0, 0)
        .isend(other, 0, 0, 1);
    builder.compute(100 * US).wait(&[0, 1]).end(10).ranks(2);
    let of = found(&builder.finish(), &Cluster::simple("c", loggp()));
    assert_eq!((of.latencies, of.growth_per_latency), (0, (Some(0.0), 0.0)));
    // An iteration takes o, the computation and o until the latency is as long as the computation.
    let one = of.tolerances[0].latency.unwrap() as f64;
    let expected = (100.0 + 0.01 * of.time as f64 / 10.0 / US as f64) * US as f64;
    assert!(
        (one - expected).abs() < 0.02 * expected,
        "{one} is not {expected}"
    );
}

/// The second rank grants only when it next calls MPI: its computation is on the path.
#[test]
fn computation_that_holds_up_large_messages_is_on_the_path() {
    let mut channel = loggp();
    channel.eager_limit = 0;
    let mut cluster = Cluster::simple("c", channel);
    cluster.progress = Progress::Calls;
    let mut builder = ProgramBuilder::new();
    builder.begin().compute(50 * US);
    builder.send(rank(1), 0, 1000).end(10).ranks(1);
    builder
        .begin()
        .ireceive(rank(0), 0, 1000, 0)
        .compute(200 * US);
    builder.wait(&[0]).end(10).ranks(1);
    let of = found(&builder.finish(), &cluster);
    all_are(&of, Parameter::Rank(1), 2000 * US);
    all_are(&of, Parameter::Rank(0), 0);
    assert_eq!(of.latencies, 20);
}

/// Programs of messages in a ring, of all-to-alls and of a farm with uneven work, on links with and without contention.
fn programs() -> Vec<Program> {
    let ranks = 8;
    let uneven = |rank: u32, turn: u32| u64::from((rank * 7919 + turn * 104_729) % 97) * US;
    let made = |turns: u32, body: &dyn Fn(&mut ProgramBuilder, u32, u32)| {
        let mut builder = ProgramBuilder::new();
        for rank in 0..ranks {
            for turn in 0..turns {
                body(&mut builder, rank, turn);
            }
            builder.ranks(1);
        }
        builder.finish()
    };
    vec![
        made(20, &|builder, rank, turn| {
            builder.compute(uneven(rank, turn));
            builder.ireceive(PeerRef::Relative(7), 0, 20_000, 0);
            builder.send(PeerRef::Relative(1), 0, 20_000).wait(&[0]);
        }),
        made(10, &|builder, rank, turn| {
            builder.compute(uneven(rank, turn));
            builder.collective(CollectiveKind::Alltoall, 0, 30_000);
        }),
        made(10, &|builder, rank, turn| {
            builder.compute(uneven(rank, turn));
            builder.collective(CollectiveKind::Allreduce, 0, 8);
            builder.collective(CollectiveKind::Bcast, 0, 50_000);
        }),
    ]
}

#[test]
fn the_path_agrees_with_interpretations() {
    let mut contended = Cluster::simple("c", loggp());
    contended.contention = true;
    let mut fair = contended.clone();
    fair.sharing = Sharing::Fair;
    let clusters = [
        ("no contention", Cluster::simple("c", loggp()), 0.025),
        ("queues", contended, 0.02),
        ("fair", fair, 0.02),
    ];
    for (what, cluster, bound) in clusters {
        for (number, program) in programs().iter().enumerate() {
            let of = found(program, &cluster);
            let time = of.time as f64;
            for derivative in of.parameters.iter().chain(&of.ranks) {
                let mut path = derivative.path.unwrap() as f64;
                // Waiting for links is time per byte of other messages.
                if derivative.parameter == Parameter::PerByte {
                    path += of.queueing as f64;
                }
                let less = derivative.less.unwrap();
                let low = less.min(derivative.more) - bound * time;
                let high = less.max(derivative.more) + bound * time;
                assert!(
                    (low..=high).contains(&path),
                    "{what}, program {number}: {derivative:?} of {time}"
                );
            }
        }
    }
}
