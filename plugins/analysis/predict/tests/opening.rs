//! Connections that open at their first use.

use nodescope_loop_tree::{PeerRef, Program, ProgramBuilder};
use nodescope_predict::{Channel, Cluster, Code, Model, Options, Progress, interpret};

const US: u64 = 1_000_000;
const MS: u64 = 1_000 * US;

/// Returns the times at which ranks end, in whole microseconds, where messages take 5 us and ranks without a connection look for others each
/// 10 ms.
fn ends(program: &Program, setup: u64) -> Vec<u64> {
    let mut network = Channel::new(Model::LogGp, 5 * US, 1_000_000_000_000);
    network.eager_limit = 1000;
    let cluster = Cluster {
        connection_poll: 10 * MS,
        connection_setup: setup * US,
        progress: Progress::Calls,
        ..Cluster::simple("c", network)
    };
    let options = Options {
        connections: true,
        ..Options::default()
    };
    let outcome = interpret(&Code::new(program), &cluster, &options).unwrap();
    assert_eq!(outcome.problems, []);
    assert!(outcome.connections.unwrap().timed);
    let ends = outcome.ranks.iter().map(|rank| outcome.time - rank.idle);
    ends.map(|end| end / US).collect()
}

fn rank(number: u32) -> PeerRef {
    PeerRef::Absolute(number)
}

/// Returns a program in which rank 0 sends a message, after which rank 1 looks that comes `late` microseconds later.
fn one_way(bytes: u64, late: u64) -> Program {
    let mut builder = ProgramBuilder::new();
    builder.send(rank(1), 0, bytes).ranks(1);
    builder.compute(late * US);
    builder.receive(rank(0), 0, bytes).ranks(1);
    builder.finish()
}

#[test]
fn a_first_message_waits_for_two_looks() {
    // The sender learns at its second look, at 10 ms, that the kernel has connected. Its introduction comes after the receiver's second
    // look. The third look answers; then the message takes 5 us.
    assert_eq!(ends(&one_way(8, 0), 0), [20_005, 20_010]);
    // The introduction is there before the second look of a receiver that came later.
    assert_eq!(ends(&one_way(8, 3000), 0), [13_005, 13_010]);
    // A step takes 30 us: between look and introduction, and between look and answer.
    assert_eq!(ends(&one_way(8, 3000), 30), [13_035, 13_040]);
}

#[test]
fn a_large_message_asks_when_its_connection_is_open() {
    // Request, permission and data follow.
    assert_eq!(ends(&one_way(2000, 3000), 0), [13_015, 13_020]);
}

#[test]
fn ranks_that_connect_to_each_other_need_one_look() {
    let mut builder = ProgramBuilder::new();
    for own in 0..2 {
        builder.ireceive(rank(1 - own), 0, 8, 0);
        builder.isend(rank(1 - own), 0, 8, 1);
        builder.wait(&[0, 1]).ranks(1);
    }
    // The first to look introduces itself, 5 us; the other answers and sends, 5 us; the first sends, 5 us.
    assert_eq!(ends(&builder.finish(), 0), [10_010, 10_015]);
}

#[test]
fn a_rank_that_computes_does_not_look() {
    let mut builder = ProgramBuilder::new();
    builder.isend(rank(1), 0, 8, 0);
    builder.compute(34 * MS);
    builder.wait(&[0]).ranks(1);
    builder.receive(rank(0), 0, 8).ranks(1);
    assert_eq!(ends(&builder.finish(), 0), [40_005, 40_010]);
}

#[test]
fn a_further_connection_takes_four_ways() {
    // Three ranks in a ring, and again the other way round: all connections are open then.
    let mut ring = ProgramBuilder::new();
    let mut star = ProgramBuilder::new();
    for own in 0..3u32 {
        let next = rank((own + 1) % 3);
        let last = rank((own + 2) % 3);
        for (to, from) in [(next, last), (last, next)] {
            ring.ireceive(from, 0, 8, 0);
            ring.isend(to, 0, 8, 1);
            ring.wait(&[0, 1]);
        }
        ring.ranks(1);
    }
    let once = ends(&ring.finish(), 0);
    assert!(
        once.iter().all(|end| (10_015..10_030).contains(end)),
        "{once:?}"
    );
    // Ranks 0 and 1 connect, then ranks 0 and 2, of which the second has no connection. It looks at 0, 10 and 20 ms.
    star.isend(rank(1), 0, 8, 0);
    star.receive(rank(1), 0, 8);
    star.wait(&[0]);
    star.send(rank(2), 0, 8).ranks(1);
    star.isend(rank(0), 0, 8, 0);
    star.receive(rank(0), 0, 8);
    star.wait(&[0]).ranks(1);
    star.receive(rank(0), 0, 8).ranks(1);
    assert_eq!(ends(&star.finish(), 0), [20_005, 10_015, 20_010]);
}
