//! Predictions of programs whose time can be computed by hand.

use nodescope_loop_tree::{Action, CollectiveKind, Mode, PeerRef, Program, ProgramBuilder};
use nodescope_predict::{
    Algorithm, Channel, Cluster, Code, Model, Options, Outcome, Preset, Progress, Sharing, Speed,
    Table, Topology, interpret,
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

fn run(program: &Program, cluster: &Cluster) -> Outcome {
    let outcome = interpret(&Code::new(program), cluster, &Options::default()).unwrap();
    assert_eq!(outcome.problems, [], "{outcome:#?}");
    for rank in &outcome.ranks {
        let parts = rank.computation + rank.opaque + rank.communication + rank.wait + rank.idle;
        assert_eq!(parts, outcome.time);
    }
    let path = outcome.critical_path.as_ref().unwrap();
    assert_eq!(
        path.computation + path.communication + path.transfer,
        outcome.time,
        "{path:?}"
    );
    let forced = Options {
        force_order: true,
        ..Options::default()
    };
    let ordered = interpret(&Code::new(program), cluster, &forced).unwrap();
    assert_eq!(ordered, outcome);
    outcome
}

fn rank(absolute: u32) -> PeerRef {
    PeerRef::Absolute(absolute)
}

#[test]
fn ping_pong() {
    let mut builder = ProgramBuilder::new();
    builder
        .begin()
        .send(rank(1), 0, 1000)
        .receive(rank(1), 0, 1000);
    builder.end(10).ranks(1);
    builder
        .begin()
        .receive(rank(0), 0, 1000)
        .send(rank(0), 0, 1000);
    builder.end(10).ranks(1);
    let outcome = run(&builder.finish(), &Cluster::simple("c", loggp()));
    // Each direction: o + n G + L + o = 1 + 1 + 5 + 1 us.
    assert_eq!(outcome.time, 20 * 8 * US);
    assert_eq!(outcome.messages, 20);
    assert_eq!(outcome.bytes, 20_000);
}

#[test]
fn bursts_scale_and_late_senders_are_named() {
    let mut builder = ProgramBuilder::new();
    builder.compute(100 * US).send(rank(1), 0, 0).ranks(1);
    builder.receive(rank(0), 0, 0).ranks(1);
    let program = builder.finish();
    let mut cluster = Cluster::simple("c", loggp());
    let outcome = run(&program, &cluster);
    assert_eq!(outcome.time, 107 * US);
    let wait = &outcome.waits[0];
    assert_eq!(wait.kind.name(), "late sender");
    assert_eq!((wait.time, wait.count, wait.late_rank), (100 * US, 1, 0));
    assert_eq!(wait.because_of.to_string(), "MPI_Send at program+0x10");
    assert_eq!(outcome.ranks[1].wait, 100 * US);
    assert_eq!(outcome.ranks[1].communication, 7 * US);
    let path = outcome.critical_path.unwrap();
    assert_eq!((path.computation, path.messages), (100 * US, 1));
    cluster.speed = Speed::Factor(2.0);
    assert_eq!(run(&program, &cluster).time, 57 * US);
}

#[test]
fn the_synchronous_send_is_as_published() {
    let synchronous = |compute_sender: u64, compute_receiver: u64| {
        let mut builder = ProgramBuilder::new();
        builder.compute(compute_sender).call(
            nodescope_hypercall::Function::Ssend,
            0x99,
            Action::Send {
                to: rank(1),
                tag: 0,
                bytes: 200_000,
                mode: Mode::Synchronous,
                request: None,
            },
        );
        builder.ranks(1);
        builder
            .compute(compute_receiver)
            .receive(rank(0), 0, 200_000)
            .ranks(1);
        run(
            &builder.finish(),
            &Cluster::simple("myrinet", Preset::Myrinet.channel()),
        )
    };
    // PostSM(request) 30, Wait(permission) 30, Post(n) 1000 + 30 us.
    let outcome = synchronous(0, 0);
    assert_eq!(outcome.time, 1090 * US);
    // The receiver is late: its permission leaves when it begins to receive.
    let outcome = synchronous(0, 500 * US);
    assert_eq!(outcome.time, (500 + 30 + 1030) * US);
    assert_eq!(outcome.waits[0].kind.name(), "late receiver");
    assert_eq!(outcome.waits[0].time, 500 * US);
    // The sender is late.
    let outcome = synchronous(500 * US, 0);
    assert_eq!(outcome.time, (500 + 1090) * US);
    assert_eq!(outcome.waits[0].time, 500 * US);
}

#[test]
fn published_networks_take_size_over_bandwidth_and_latency() {
    for (preset, microseconds) in [
        (Preset::Myrinet, 30 + 5000),
        (Preset::Ethernet, 160 + 100_000),
        (Preset::EthernetShared, 160 + 200_000),
        (Preset::Sci, 4 + 3333),
    ] {
        let mut channel = preset.channel();
        channel.eager_limit = u64::MAX;
        let mut builder = ProgramBuilder::new();
        builder.send(rank(1), 0, 1_000_000).ranks(1);
        builder.receive(rank(0), 0, 1_000_000).ranks(1);
        let outcome = run(&builder.finish(), &Cluster::simple("c", channel));
        assert_eq!(outcome.time / US, microseconds);
        // The sender is busy until its message has arrived.
        assert_eq!(outcome.ranks[0].idle, 0);
    }
}

#[test]
fn a_ring_takes_as_many_messages_as_it_has_ranks() {
    let mut builder = ProgramBuilder::new();
    builder.send(rank(1), 0, 0).receive(rank(7), 0, 0).ranks(1);
    let left = PeerRef::Relative(7);
    builder
        .receive(left, 0, 0)
        .send(PeerRef::Relative(1), 0, 0)
        .ranks(7);
    let outcome = run(&builder.finish(), &Cluster::simple("c", loggp()));
    assert_eq!(outcome.time, 8 * 7 * US);
    assert_eq!(outcome.critical_path.unwrap().messages, 8);
}

fn collective(kind: CollectiveKind, algorithm: Algorithm, ranks: u32, bytes: u64) -> u64 {
    let mut builder = ProgramBuilder::new();
    builder.collective(kind, 0, bytes).ranks(ranks);
    let cluster = Cluster::simple("c", loggp()).with_algorithm(kind, algorithm.into());
    run(&builder.finish(), &cluster).time
}

#[test]
fn collectives_take_the_depth_of_their_algorithm() {
    // A round with messages of n bytes: o + L + n G + o.
    let round = |bytes: u64| 7 * US + bytes * 1000;
    assert_eq!(
        collective(
            CollectiveKind::Allreduce,
            Algorithm::RecursiveDoubling,
            16,
            1000
        ),
        4 * round(1000)
    );
    // The extra rank joins a partner, which starts one round late, and so do all ranks after it. The extra rank's result returns
    // meanwhile.
    assert_eq!(
        collective(
            CollectiveKind::Allreduce,
            Algorithm::RecursiveDoubling,
            17,
            1000
        ),
        5 * round(1000)
    );
    assert_eq!(
        collective(CollectiveKind::Allreduce, Algorithm::Ring, 8, 8000),
        14 * round(1000)
    );
    assert_eq!(
        collective(CollectiveKind::Allreduce, Algorithm::Rabenseifner, 8, 8000),
        2 * (round(4000) + round(2000) + round(1000))
    );
    assert_eq!(
        collective(CollectiveKind::Barrier, Algorithm::Dissemination, 9, 0),
        4 * round(0)
    );
    assert_eq!(
        collective(CollectiveKind::Alltoall, Algorithm::Pairwise, 8, 500),
        7 * round(500)
    );
    // The root sends to its largest subtree first: log2(p) sends precede the last leaf's receive.
    assert_eq!(
        collective(CollectiveKind::Bcast, Algorithm::Binomial, 8, 0),
        3 * round(0)
    );
}

#[test]
fn a_link_is_shared_by_those_who_use_it() {
    // Seven ranks send a megabyte to rank 0, whose link takes 1 ms for each.
    let mut builder = ProgramBuilder::new();
    for peer in 1..8 {
        builder.receive(rank(peer), 0, 1_000_000);
    }
    builder.ranks(1).send(rank(0), 0, 1_000_000).ranks(7);
    let mut channel = Channel::new(Model::LogGp, 5 * US, 1_000_000_000);
    channel.eager_limit = u64::MAX;
    let program = builder.finish();
    let free = run(&program, &Cluster::simple("c", channel.clone()));
    assert_eq!(free.time, 1005 * US);
    let cluster = Cluster {
        contention: true,
        ..Cluster::simple("c", channel)
    };
    let shared = run(&program, &cluster);
    assert_eq!(shared.time, 7005 * US);
    assert_eq!(shared.links[0].link, "network → node 0");
    assert_eq!(
        (shared.links[0].bytes, shared.links[0].busy),
        (7_000_000, 7000 * US)
    );
}

/// Returns a cluster with L = 5 us, 1 GB/s, shared links, and eager messages only.
fn fluid(sharing: Sharing) -> Cluster {
    let mut channel = Channel::new(Model::LogGp, 5 * US, 1_000_000_000);
    channel.eager_limit = u64::MAX;
    Cluster {
        contention: true,
        sharing,
        ..Cluster::simple("c", channel)
    }
}

/// Returns the time at which each rank ends, us.
fn ends(outcome: &Outcome) -> Vec<u64> {
    let ends = outcome.ranks.iter().map(|rank| outcome.time - rank.idle);
    ends.map(|end| (end + US / 2) / US).collect()
}

#[test]
fn messages_that_share_a_link_have_equal_shares() {
    // Rank 0 sends 1 MB to each of three ranks at once. Each message gets a third of the link, so that all arrive at the
    // same time, when the last one would arrive from a queue.
    let mut builder = ProgramBuilder::new();
    for peer in 1..4 {
        builder.send(rank(peer), 0, 1_000_000);
    }
    builder.ranks(1).receive(rank(0), 0, 1_000_000).ranks(3);
    let program = builder.finish();
    let queued = run(&program, &fluid(Sharing::Queue));
    assert_eq!(ends(&queued), [0, 1005, 2005, 3005]);
    let shared = run(&program, &fluid(Sharing::Fair));
    assert_eq!(ends(&shared), [0, 3005, 3005, 3005]);
    assert_eq!(shared.links[0].link, "node 0 → network");
    assert_eq!(
        (shared.links[0].bytes, shared.links[0].busy),
        (3_000_000, 3000 * US)
    );
}

#[test]
fn shares_are_found_anew_when_messages_begin_and_end() {
    let mut builder = ProgramBuilder::new();
    builder.send(rank(2), 0, 1_000_000).ranks(1);
    builder
        .compute(500 * US)
        .send(rank(2), 1, 1_000_000)
        .compute(US)
        .send(rank(3), 2, 1_000_000)
        .ranks(1);
    builder.receive(rank(0), 0, 1_000_000).ranks(1);
    builder.receive(rank(1), 2, 1_000_000).ranks(1);
    let program = builder.finish();
    // Rank 0's message has the whole link for 500 us, then half of the link into rank 2 until 1500 us. Rank 1's messages each have half
    // of rank 1's link from 501 us on. The first has left at 2500 us; the last 500 B of the second take 0.5 us.
    let shared = run_with_leftovers(&program, &fluid(Sharing::Fair));
    assert_eq!(ends(&shared), [0, 501, 1505, 2506]);
}

/// Interprets a program that leaves one message without a receive, without the other checks of [`run`].
fn run_with_leftovers(program: &Program, cluster: &Cluster) -> Outcome {
    let outcome = interpret(&Code::new(program), cluster, &Options::default()).unwrap();
    assert_eq!(outcome.problems.len(), 1, "{outcome:#?}");
    outcome
}

#[test]
fn a_broadcast_of_messages_at_once_takes_ten_of_them_where_links_are_shared() {
    // 16 ranks: the root's four children have the data after 4 n/B, their children after 3, 2 and 1 n/B more. Each hop adds a latency.
    let mut builder = ProgramBuilder::new();
    builder
        .collective(CollectiveKind::Bcast, 0, 1_000_000)
        .ranks(16);
    let program = builder.finish();
    let of = |sharing| {
        let cluster =
            fluid(sharing).with_algorithm(CollectiveKind::Bcast, Algorithm::Binomial.into());
        (run(&program, &cluster).time + US / 2) / US
    };
    assert_eq!(of(Sharing::Fair), 10_000 + 4 * 5);
    // Messages go one after the other, the one for the largest subtree first.
    assert_eq!(of(Sharing::Queue), 4000 + 4 * 5);
}

#[test]
fn shares_may_follow_latencies() {
    // On a ring of 8 nodes rank 0 sends to ranks 1 and 2 over one link; latencies are 5 + 5 us and 5 + 10 us.
    let mut builder = ProgramBuilder::new();
    builder.send(rank(1), 0, 600_000).send(rank(2), 0, 600_000);
    builder.ranks(1).receive(rank(0), 0, 600_000).ranks(2);
    let program = builder.finish();
    let of = |sharing| {
        let cluster = Cluster {
            topology: Topology::Torus { size: vec![8] },
            hop_latency: 5 * US,
            ..fluid(sharing)
        };
        ends(&run(&program, &cluster))
    };
    assert_eq!(of(Sharing::Fair), [0, 1210, 1215]);
    // The first message gets 3/5 of the link: 1000 us. The second gets 2/5: 400 kB by then, and the rest at the full rate.
    assert_eq!(of(Sharing::RoundTrip), [0, 1010, 1215]);
}

#[test]
fn large_and_synchronous_messages_share_links_too() {
    // Both senders send a request, and may send the message after 10 us.
    let program = |to: [u32; 2]| {
        let mut builder = ProgramBuilder::new();
        for to in to {
            builder.send(rank(to), 0, 1_000_000).ranks(1);
        }
        for me in 2..4 {
            for from in 0..2 {
                if to[from as usize] == me {
                    builder.receive(rank(from), 0, 1_000_000);
                }
            }
            builder.ranks(1);
        }
        builder.finish()
    };
    let mut cluster = fluid(Sharing::Fair);
    cluster.network.eager_limit = 1000;
    let apart = run(&program([2, 3]), &cluster);
    assert_eq!(ends(&apart), [1010, 1010, 1015, 1015]);
    // Rank 2 permits the second message when it has received the first.
    let together = run(&program([2, 2]), &cluster);
    assert_eq!(ends(&together), [1010, 2020, 2025, 0]);
    // A sender of the post model is busy until its message has arrived.
    cluster.network.model = Model::Post;
    cluster.network.eager_limit = u64::MAX;
    let posted = run(&program([2, 2]), &cluster);
    assert_eq!(ends(&posted), [2005, 2005, 2005, 0]);
}

#[test]
fn exchanges_in_step_wait_for_no_link() {
    // In each round every rank sends to a different rank: no link is shared.
    let ranks = 16;
    let mut builder = ProgramBuilder::new();
    builder.begin();
    builder.collective(CollectiveKind::Alltoall, 0, 1000);
    builder.end(20).ranks(ranks);
    let program = builder.finish();
    let contended = |eager_limit, service_latency| {
        let channel = Channel {
            eager_limit,
            service_latency,
            ..Channel::new(Model::LogGp, 5 * US, 1_000_000_000)
        };
        Cluster {
            contention: true,
            ..Cluster::simple("c", channel)
        }
    };
    let rounds = 20 * u64::from(ranks - 1);
    let pairwise = |cluster: Cluster| {
        cluster.with_algorithm(CollectiveKind::Alltoall, Algorithm::Pairwise.into())
    };
    assert_eq!(
        run(&program, &pairwise(contended(1000, None))).time,
        rounds * 6 * US
    );
    // A rendezvous takes two service messages.
    let asked = run(&program, &pairwise(contended(999, Some(2 * US))));
    assert_eq!(asked.time, rounds * 10 * US);
    // Each rank sends all its messages at once, and they leave in that order: no link is ever idle.
    let linear = |cluster: Cluster| {
        cluster.with_algorithm(CollectiveKind::Alltoall, Algorithm::Linear.into())
    };
    let turn = u64::from(ranks - 1) * US + 5 * US;
    assert_eq!(
        run(&program, &linear(contended(999, Some(0)))).time,
        20 * turn
    );
}

#[test]
fn a_torus_adds_hops() {
    let mut builder = ProgramBuilder::new();
    builder.send(rank(10), 0, 1000).ranks(1);
    builder.ranks(9);
    builder.receive(rank(0), 0, 1000).ranks(1);
    builder.ranks(5);
    let mut cluster = Cluster::simple("c", loggp());
    cluster.topology = Topology::Torus { size: vec![4, 4] };
    cluster.hop_latency = 100_000;
    // From (0, 0) to (2, 2): four hops.
    let program = builder.finish();
    assert_eq!(run(&program, &cluster).time, 8 * US + 400_000);
    cluster.contention = true;
    assert_eq!(run(&program, &cluster).time, 8 * US + 400_000);
}

#[test]
fn a_progress_thread_lets_large_messages_go_on_and_takes_its_share() {
    let program = || {
        let mut builder = ProgramBuilder::new();
        builder
            .isend(rank(1), 0, 1_000_000, 0)
            .compute(5000 * US)
            .wait(&[0])
            .ranks(1);
        builder
            .ireceive(rank(0), 0, 1_000_000, 0)
            .compute(5000 * US)
            .wait(&[0])
            .ranks(1);
        builder.finish()
    };
    let mut cluster = Cluster::simple("c", Channel::new(Model::LogGp, 10 * US, 1_000_000_000));
    // Without a thread the request waits until the receiver is in MPI, and the data until the sender is.
    cluster.progress = Progress::Calls;
    let outcome = run(&program(), &cluster);
    assert_eq!(outcome.time, (5000 + 10 + 10 + 1000) * US);
    // With a progress thread that costs nothing, the message arrives before the computation ends.
    cluster.progress = Progress::Thread { beta: 0.0 };
    assert_eq!(run(&program(), &cluster).time, 5000 * US);
    // With half a share for the thread, computation runs at half speed for 1000 us, and so takes 500 us more.
    cluster.progress = Progress::Thread { beta: 0.5 };
    let outcome = run(&program(), &cluster);
    assert_eq!(outcome.time, 5500 * US);
    assert_eq!(outcome.ranks[0].computation, 5000 * US);
}

#[test]
fn buffered_messages_are_copied() {
    let mut channel = loggp();
    channel.copy_per_byte = 100.0;
    let time = |late: u64| {
        let mut builder = ProgramBuilder::new();
        builder.send(rank(1), 0, 10_000).ranks(1);
        builder.compute(late).receive(rank(0), 0, 10_000).ranks(1);
        run(&builder.finish(), &Cluster::simple("c", channel.clone())).time
    };
    assert_eq!(time(0), 17 * US);
    assert_eq!(time(100 * US), 100 * US + US + US);
}

#[test]
fn collectives_beside_their_ranks_move_on_in_calls_or_by_a_thread() {
    use nodescope_hypercall::Function;
    use nodescope_loop_tree::Collective;
    let program = || {
        let mut builder = ProgramBuilder::new();
        builder.call(
            Function::Iallreduce,
            0x80,
            Action::Collective(Box::new(Collective {
                root: 0,
                bytes: 8,
                request: Some(0),
                ..Collective::of(CollectiveKind::Allreduce)
            })),
        );
        builder.compute(300 * US).wait(&[0]).ranks(2);
        builder.finish()
    };
    let mut cluster = Cluster::simple("c", loggp());
    // Rank 1 sends in its first call, for 1 us. Rank 0 receives that in its wait, for 1 us, and sends the sum back, which takes 7 us
    // and 1 ns for each byte.
    cluster.progress = Progress::Calls;
    assert_eq!(run(&program(), &cluster).time, (300 + 1 + 7) * US + 8_000);
    // The sum comes during the computation, and only the send of the first call takes time.
    cluster.progress = Progress::Thread { beta: 0.0 };
    assert_eq!(run(&program(), &cluster).time, (1 + 300) * US);
}

#[test]
fn accesses_are_served_by_the_network_or_in_calls() {
    use nodescope_hypercall::Function;
    let mut builder = ProgramBuilder::new();
    builder.call(
        Function::Put,
        0x80,
        Action::OneSided {
            to: rank(1),
            out: 0,
            back: 0,
            request: None,
        },
    );
    builder.send(rank(1), 0, 0).ranks(1);
    builder.compute(300 * US).receive(rank(0), 0, 0).ranks(1);
    let program = builder.finish();
    let mut cluster = Cluster::simple("c", loggp());
    cluster.progress = Progress::Calls;
    // 1 us to send and 5 us each way; then a message, which is there when it is received.
    assert_eq!(run(&program, &cluster).time, (300 + 1) * US);
    // The target receives for 1 us and answers for 1 us. The answer arrives 5 us later, is received for 1 us, and the message takes 7 us.
    cluster.accesses_in_calls = true;
    assert_eq!(run(&program, &cluster).time, (300 + 2 + 5 + 1 + 7) * US);
}

#[test]
fn waits_at_collectives_are_classified() {
    let kinds = |kind| {
        let mut builder = ProgramBuilder::new();
        builder.compute(100 * US).collective(kind, 0, 8).ranks(1);
        builder.compute(300 * US).collective(kind, 0, 8).ranks(1);
        builder.compute(200 * US).collective(kind, 0, 8).ranks(2);
        let outcome = run(&builder.finish(), &Cluster::simple("c", loggp()));
        let waits = outcome.waits.iter();
        waits
            .map(|w| (w.kind.name(), w.count, w.time / US))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        kinds(CollectiveKind::Allreduce),
        [("wait at collective", 3, 400)]
    );
    assert_eq!(kinds(CollectiveKind::Reduce), [("early reduce", 1, 100)]);
    let mut builder = ProgramBuilder::new();
    builder
        .compute(100 * US)
        .collective(CollectiveKind::Bcast, 0, 8)
        .ranks(1);
    builder.collective(CollectiveKind::Bcast, 0, 8).ranks(3);
    let outcome = run(&builder.finish(), &Cluster::simple("c", loggp()));
    assert_eq!(outcome.waits[0].kind.name(), "late broadcast");
    assert_eq!(outcome.waits[0].time, 300 * US);
}

#[test]
fn rounds_of_a_collective_use_links_in_the_order_of_their_times() {
    // Neighbor exchange of 1000 B blocks: 100 us per block on the wire, 100 us of latency; rank 2 starts 160 us late.
    let mut builder = ProgramBuilder::new();
    for late in [0, 0, 160, 0] {
        builder
            .compute(late * US)
            .collective(CollectiveKind::Allgather, 0, 1000)
            .ranks(1);
    }
    let mut cluster = Cluster {
        contention: true,
        ..Cluster::simple("c", Channel::new(Model::LogGp, 100 * US, 10_000_000))
    };
    let selected = Algorithm::NeighbourExchange.into();
    cluster
        .collectives
        .fixed
        .insert(CollectiveKind::Allgather, selected);
    // Ranks 0 and 1 have each other's block at 200 us, and each sends two blocks. Rank 2's message to rank 3, sent at 160 us, occupies
    // the link to rank 3 until 260 us and arrives at 360 us. Rank 0's two blocks arrive later, at 560 us. At 360 us rank 3 sends two
    // blocks to rank 0: 200 us on the wire, 100 us of latency.
    assert_eq!(run(&builder.finish(), &cluster).time, 660 * US);
}

#[test]
fn messages_that_were_there_cost_less_and_are_dealt_with_in_turn() {
    let mut channel = loggp();
    channel.receive_overhead = Table::constant(4 * US);
    channel.buffered_overhead = Some(Table::constant(2 * US));
    let cluster = Cluster::simple("c", channel);
    let two = |late: u64| {
        let mut builder = ProgramBuilder::new();
        builder
            .ireceive(rank(1), 0, 1000, 0)
            .ireceive(rank(2), 0, 1000, 1)
            .compute(late)
            .wait(&[0, 1])
            .ranks(1);
        builder.send(rank(0), 0, 1000).ranks(1);
        builder.compute(3 * US).send(rank(0), 0, 1000).ranks(1);
        run(&builder.finish(), &cluster).time
    };
    // The messages arrive at 7 and 10 us; the second waits until the first has been processed, at 11 us.
    assert_eq!(two(0), 15 * US);
    // The first message arrived before 8 us; its processing takes until 10 us, when the second arrives.
    assert_eq!(two(8 * US), 14 * US);
    // Both messages arrived before.
    assert_eq!(two(20 * US), 24 * US);
}

#[test]
fn what_comes_while_a_receive_begins_takes_no_less_than_what_was_there() {
    // Over a loopback, receiving a message that has arrived takes 5 us, of which only the last one needs the message.
    let mut channel = loggp();
    channel.latency = 0;
    channel.receive_overhead = Table::constant(US);
    channel.buffered_overhead = Some(Table::constant(5 * US));
    let cluster = Cluster::simple("c", channel);
    let exchange = |late: u64| {
        let mut builder = ProgramBuilder::new();
        builder.send(rank(1), 0, 1000).receive(rank(1), 0, 1000);
        builder.ranks(1);
        builder.compute(late);
        builder.send(rank(0), 0, 1000).receive(rank(0), 0, 1000);
        builder.ranks(1);
        run(&builder.finish(), &cluster).time
    };
    // Both ranks send for 1 us, get the other's message 1 us later, and have it 5 us after their receive began.
    assert_eq!(exchange(0), 6 * US);
    // 3 us late, the message arrives at 5 us: nothing changes for rank 0; rank 1 begins to receive at 4 us.
    assert_eq!(exchange(3 * US), 9 * US);
    // 20 us late: rank 0 has the message 1 us after its arrival at 22 us; rank 1 finds its message there at 21 us.
    assert_eq!(exchange(20 * US), 26 * US);
}

#[test]
fn memory_of_others_is_read_and_written_without_them() {
    let mut builder = ProgramBuilder::new();
    builder.put(rank(1), 1000, 0).wait(&[0]);
    builder.get(rank(1), 1000, 0).wait(&[0]).ranks(1);
    // The owner of the memory computes all the time.
    builder.compute(100 * US).ranks(1);
    let program = builder.finish();
    let mut cluster = Cluster::simple("c", loggp());
    let expected = [
        // o + n G + L to the target, L back; the notice of completion costs nothing.
        1 + 1 + 5 + 5,
        // o + L to the target, n G + L back, and o to take the data.
        1 + 5 + 1 + 5 + 1,
    ];
    for contention in [false, true] {
        for sharing in [Sharing::Queue, Sharing::Fair, Sharing::Frames] {
            (cluster.contention, cluster.sharing) = (contention, sharing);
            let outcome = run(&program, &cluster);
            assert_eq!(outcome.time, 100 * US);
            let busy = outcome.time - outcome.ranks[0].idle;
            assert_eq!(busy, (expected[0] + expected[1]) * US, "{sharing:?}");
            assert_eq!((outcome.messages, outcome.bytes), (4, 2000));
        }
    }
}

#[test]
fn accesses_at_once_share_the_ways_there_and_back() {
    let mut builder = ProgramBuilder::new();
    for number in 0..3 {
        builder.put(rank(1), 1000, number);
    }
    for number in 3..6 {
        builder.get(rank(1), 1000, number);
    }
    builder.wait(&[0, 1, 2, 3, 4, 5]).ranks(1);
    builder.ranks(1);
    let mut cluster = Cluster::simple("c", loggp());
    cluster.contention = true;
    let outcome = run(&builder.finish(), &cluster);
    // Puts leave at 1, 2 and 3 us. The requests of the gets leave at 4, 5 and 6 us. Their answers, which take 1 us each on the wire, leave
    // at 9, 10 and 11 us, arrive at 15, 16 and 17 us, and cost 1 us each.
    assert_eq!(outcome.time, 18 * US);
}
