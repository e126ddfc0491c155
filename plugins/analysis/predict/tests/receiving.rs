//! Costs of messages that arrive together or early, and of data that must be packed, computed by hand.

use nodescope_loop_tree::{CollectiveKind, PeerRef, Program, ProgramBuilder};
use nodescope_predict::{
    Algorithm, Channel, Cluster, Code, Frames, Model, Options, Progress, Sharing, Table, interpret,
};

const US: u64 = 1_000_000;

/// Returns a cluster with L = 5 us, o = 1 us to send and 4 us to receive, 1 GB/s, shared links.
fn cluster() -> Cluster {
    let channel = Channel {
        send_overhead: Table::constant(US),
        receive_overhead: Table::constant(4 * US),
        ..Channel::new(Model::LogGp, 5 * US, 1_000_000_000)
    };
    Cluster {
        contention: true,
        progress: Progress::Calls,
        ..Cluster::simple("c", channel)
    }
}

/// Returns the end of each rank, picoseconds.
fn ends(program: &Program, cluster: &Cluster) -> Vec<u64> {
    let outcome = interpret(&Code::new(program), cluster, &Options::default()).unwrap();
    assert_eq!(outcome.problems, []);
    let ends = outcome.ranks.iter().map(|rank| outcome.time - rank.idle);
    ends.collect()
}

fn rank(absolute: u32) -> PeerRef {
    PeerRef::Absolute(absolute)
}

/// Returns a program whose rank 0 waits for rank 1's message, which arrives at 12 us. Then rank 0 receives rank 2's message, which
/// arrived at 10 us. With `with_request`, rank 0 begins that receive first, without blocking.
fn unexpected(with_request: bool) -> Program {
    let mut builder = ProgramBuilder::new();
    if with_request {
        builder.ireceive(rank(2), 0, 0, 0);
    }
    builder.receive(rank(1), 0, 0).compute(20 * US);
    match with_request {
        true => builder.wait(&[0]),
        false => builder.receive(rank(2), 0, 0),
    };
    builder.ranks(1);
    builder.compute(6 * US).send(rank(0), 0, 0).ranks(1);
    builder.compute(4 * US).send(rank(0), 0, 0).ranks(1);
    builder.finish()
}

#[test]
fn a_waiting_rank_receives_unexpected_messages() {
    let mut cluster = cluster();
    for with_request in [false, true] {
        let program = unexpected(with_request);
        cluster.receives_unexpected = false;
        // 12 + 4, 20 of work, 4 to receive the second message.
        assert_eq!(ends(&program, &cluster)[0], 40 * US);
        cluster.receives_unexpected = true;
        // From 10 to 14 us rank 0 processes the unexpected message; its later receive costs nothing.
        assert_eq!(ends(&program, &cluster)[0], (10 + 4 + 4 + 20) * US);
        // A message queued behind another costs less.
        let mut cheaper = cluster.clone();
        cheaper.network.queued_overhead = Some(Table::constant(3 * US));
        assert_eq!(ends(&program, &cheaper)[0], (10 + 4 + 3 + 20) * US);
    }
    // A progress thread would process the unexpected message.
    cluster.progress = Progress::Thread { beta: 0.0 };
    assert_eq!(ends(&unexpected(false), &cluster)[0], 40 * US);
}

#[test]
fn what_comes_after_the_wait_is_not_taken_in() {
    let mut builder = ProgramBuilder::new();
    builder
        .receive(rank(1), 0, 0)
        .compute(20 * US)
        .receive(rank(2), 0, 0)
        .ranks(1);
    builder.compute(6 * US).send(rank(0), 0, 0).ranks(1);
    // The message arrives when the first one has just been processed.
    builder.compute(10 * US).send(rank(0), 0, 0).ranks(1);
    let mut cluster = cluster();
    cluster.receives_unexpected = true;
    assert_eq!(ends(&builder.finish(), &cluster)[0], (16 + 20 + 4) * US);
}

#[test]
fn messages_share_the_link_to_their_receiver_by_frames() {
    let mut builder = ProgramBuilder::new();
    builder.receive(rank(1), 0, 10_000).ranks(1);
    builder.send(rank(0), 0, 10_000).ranks(1);
    builder.compute(2 * US).send(rank(0), 0, 10_000).ranks(1);
    let program = builder.finish();
    // The second message is not received, which this test does not check.
    let end = |cluster: &Cluster| {
        let outcome = interpret(&Code::new(&program), cluster, &Options::default()).unwrap();
        outcome.time - outcome.ranks[0].idle
    };
    let mut cluster = cluster();
    // 1 + 10 on the wire + 5 + 4 us: the later message does not delay the first.
    assert_eq!(end(&cluster), 20 * US);
    cluster.sharing = Sharing::Frames;
    cluster.network.frames = Some(Frames {
        payload: 1000,
        header: 0,
        acknowledge: 0,
    });
    // Frames arrive from 1 us on, those of the second message from 3 us on. Seven of the second pass before the last of the first.
    // The last frame costs as much as a message of one frame.
    assert_eq!(end(&cluster), (20 + 7) * US);
}

#[test]
fn frames_of_what_is_not_complete_delay_what_is() {
    let mut builder = ProgramBuilder::new();
    builder.receive(rank(1), 0, 10_000).compute(20 * US);
    builder.receive(rank(2), 0, 20_000).ranks(1);
    builder.send(rank(0), 0, 10_000).ranks(1);
    builder.compute(2 * US).send(rank(0), 0, 20_000).ranks(1);
    let program = builder.finish();
    let mut cluster = cluster();
    cluster.sharing = Sharing::Frames;
    cluster.network.frames = Some(Frames {
        payload: 1000,
        header: 0,
        acknowledge: 0,
    });
    cluster.network.queued_overhead = Some(Table::constant(3 * US));
    // 1 + 17 frames + 5 + 4 us; the second message has arrived when its receive begins.
    assert_eq!(ends(&program, &cluster)[0], (27 + 20 + 4) * US);
    cluster.receives_unexpected = true;
    // The last frame of the first message arrives at 23 us, one of the second at 22 us, which costs 3. Others arrive from 24 us on,
    // before the end; together they cost no more than the message.
    assert_eq!(ends(&program, &cluster)[0], (22 + 3 + 4 + 3 + 20 + 4) * US);
    // At 1 us each, frames that arrive until 35 us delay the end beyond the last one, which arrives at 36 us. So the second message is
    // processed as a whole: 20 us, and its receive costs nothing later.
    cluster.network.queued_overhead = Some(Table {
        points: vec![(1000, US), (20_000, 20 * US)],
    });
    assert_eq!(ends(&program, &cluster)[0], (23 + 4 + 20 + 20) * US);
}

#[test]
fn acknowledgements_take_time_of_the_links_back() {
    let mut builder = ProgramBuilder::new();
    builder.send(rank(1), 0, 4000).receive(rank(1), 1, 4000);
    builder.ranks(1);
    builder
        .compute(9 * US + US / 2)
        .send(rank(0), 1, 4000)
        .ranks(1);
    let program = builder.finish();
    let mut cluster = cluster();
    cluster.sharing = Sharing::Frames;
    let mut end = |acknowledge: u64| {
        cluster.network.frames = Some(Frames {
            payload: 1000,
            header: 1000,
            acknowledge,
        });
        let outcome = interpret(&Code::new(&program), &cluster, &Options::default()).unwrap();
        outcome.time - outcome.ranks[0].idle
    };
    // Four frames of 2 us from 10.5 us on, 5 of latency, 4 to receive.
    assert_eq!(end(0), (10 + 8 + 5 + 4) * US + US / 2);
    // Data that arrives from 1 us on is acknowledged after two frames, from 10 to 11 us, and after four, at 14 us. The second
    // acknowledgement waits until all frames of the message have left.
    assert_eq!(end(2), (11 + 8 + 5 + 4) * US);
    assert_eq!(end(5), end(0));
}

#[test]
fn acknowledgements_interrupt_streams_of_sends() {
    let end = |acknowledge: u64| {
        let mut cluster = cluster();
        cluster.network = Channel {
            send_overhead: Table::constant(US),
            acknowledgement_overhead: 10 * US,
            frames: Some(Frames {
                payload: 1000,
                header: 0,
                acknowledge,
            }),
            ..Channel::new(Model::LogGp, 5 * US, 0)
        };
        cluster.sharing = Sharing::Frames;
        let mut builder = ProgramBuilder::new();
        for _ in 0..12 {
            builder.send(rank(1), 0, 8);
        }
        builder.ranks(1);
        for _ in 0..12 {
            builder.receive(rank(0), 0, 8);
        }
        builder.ranks(1);
        ends(&builder.finish(), &cluster)[0]
    };
    // The first acknowledgement comes after the first send and two ways, at 11 us. Those that come during the interruption follow.
    assert_eq!(end(1), (12 + 10 * 10) * US);
    // Acknowledgements of the messages 2, 4, 6, 8 and 10 come during the last send.
    assert_eq!(end(2), (12 + 5 * 10) * US);
    assert_eq!(end(13), 12 * US);
}

#[test]
fn senders_work_on_the_data_of_large_messages() {
    let mut builder = ProgramBuilder::new();
    builder.send(rank(1), 0, 10_000).ranks(1);
    builder.receive(rank(0), 0, 10_000).ranks(1);
    let program = builder.finish();
    let mut cluster = cluster();
    let mut sender = |eager_limit: u64, send_per_byte: f64| {
        cluster.network.eager_limit = eager_limit;
        cluster.network.send_per_byte = send_per_byte;
        ends(&program, &cluster)[0]
    };
    // 1 us to send, 5 us for the request and 5 us for the permission; then 10 us on the wire, or 20 us of the processor.
    assert_eq!(sender(1000, 0.0), 21 * US);
    assert_eq!(sender(1000, 500.0), 21 * US);
    assert_eq!(sender(1000, 2000.0), 31 * US);
    assert_eq!(sender(10_000, 2000.0), US);
}

#[test]
fn derived_datatypes_are_packed_and_unpacked() {
    let mut cluster = cluster();
    cluster.network.pack_overhead = Table::constant(2 * US);
    cluster.network.unpack_overhead = Table::constant(3 * US);
    let ends = |packs: bool, unpacks: bool| {
        let mut builder = ProgramBuilder::new();
        if packs {
            builder.blocks(8);
        }
        builder.send(rank(1), 0, 1000).ranks(1);
        if unpacks {
            builder.blocks(8);
        }
        builder.receive(rank(0), 0, 1000).ranks(1);
        ends(&builder.finish(), &cluster)
    };
    assert_eq!(ends(false, false), [US, 11 * US]);
    assert_eq!(ends(true, false), [3 * US, 13 * US]);
    assert_eq!(ends(false, true), [US, 14 * US]);
    assert_eq!(ends(true, true), [3 * US, 16 * US]);
}

#[test]
fn longer_blocks_cost_less_to_pack() {
    let mut cluster = cluster();
    cluster.network.pack_overhead = Table {
        points: vec![(0, 0), (1000, 5 * US)],
    };
    let end = |block: u32| {
        let mut builder = ProgramBuilder::new();
        builder.blocks(block).send(rank(1), 0, 1000).ranks(1);
        builder.receive(rank(0), 0, 1000).ranks(1);
        ends(&builder.finish(), &cluster)[0]
    };
    // Blocks of 16 bytes are half as many, and those of 40 a fifth.
    assert_eq!([0, 8, 16, 40].map(end), [US, 6 * US, 7 * US / 2, 2 * US]);
}

#[test]
fn collectives_that_name_blocks_by_datatypes_make_them() {
    let mut builder = ProgramBuilder::new();
    builder
        .collective(CollectiveKind::Allgatherv, 0, 1000)
        .ranks(8);
    let program = builder.finish();
    let time = |algorithm: Algorithm, overhead: u64| {
        let mut cluster = cluster().with_algorithm(CollectiveKind::Allgatherv, algorithm.into());
        cluster.datatype_overhead = overhead;
        let ends = ends(&program, &cluster);
        ends.into_iter().max().unwrap()
    };
    // Two copies in each of three rounds.
    let made = time(Algorithm::Bruck, US) - time(Algorithm::Bruck, 0);
    assert_eq!(made, 6 * US);
    // Two copies in each of four rounds except the first.
    let made = time(Algorithm::NeighbourExchange, US) - time(Algorithm::NeighbourExchange, 0);
    assert_eq!(made, 6 * US);
    assert_eq!(time(Algorithm::Ring, US), time(Algorithm::Ring, 0));
}
