//! Requests and permissions of large messages, which share links with data.

use nodescope_loop_tree::{PeerRef, Program, ProgramBuilder};
use nodescope_predict::{
    Channel, Cluster, Code, Frames, Model, Options, Progress, Sharing, interpret,
};

const US: u64 = 1_000_000;
/// Bytes of a message that takes 1000 us at 1 GB/s.
const LARGE: u64 = 1_000_000;

/// Returns the times at which ranks end, in whole microseconds.
fn ends(program: &Program, sharing: Sharing, connection_buffer: u64) -> Vec<u64> {
    let mut network = Channel::new(Model::LogGp, 5 * US, 1_000_000_000);
    network.frames = Some(Frames {
        payload: 1000,
        header: 0,
        acknowledge: 0,
    });
    let cluster = Cluster {
        contention: true,
        sharing,
        connection_buffer,
        progress: Progress::Calls,
        ..Cluster::simple("c", network)
    };
    let outcome = interpret(&Code::new(program), &cluster, &Options::default()).unwrap();
    assert_eq!(outcome.problems, []);
    let ends = outcome.ranks.iter().map(|rank| outcome.time - rank.idle);
    ends.map(|end| end / US).collect()
}

/// Returns a program of two ranks that send a large message to each other; the second begins after `late` microseconds.
fn exchange(late: u64) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..2 {
        builder.compute(rank * late * US);
        let other = PeerRef::Absolute(1 - rank as u32);
        builder.ireceive(other, 0, LARGE, 0);
        builder.isend(other, 0, LARGE, 1);
        builder.wait(&[0, 1]).ranks(1);
    }
    builder.finish()
}

#[test]
fn a_late_rank_gets_permission_behind_the_data_that_it_asked_for() {
    // Requests cross: both permissions go before any data.
    assert_eq!(ends(&exchange(0), Sharing::Frames, 0), [1015, 1015]);
    // The second rank finds a request and grants it. Its own request comes when the first rank's data is on the wire. So the permission
    // waits until that data has gone, at 100 + 5 + 1000. The second message ends two latencies and its time on the wire later.
    assert_eq!(ends(&exchange(100), Sharing::Frames, 0), [2115, 2110]);
    assert_eq!(ends(&exchange(100), Sharing::Queue, 0), [1115, 1110]);
}

#[test]
fn a_send_ends_when_its_rest_fits_into_the_buffer() {
    let mut builder = ProgramBuilder::new();
    builder.send(PeerRef::Absolute(1), 0, LARGE).ranks(1);
    builder.receive(PeerRef::Absolute(0), 0, LARGE).ranks(1);
    let program = builder.finish();
    for sharing in [Sharing::Frames, Sharing::Queue] {
        assert_eq!(ends(&program, sharing, 0), [1010, 1015], "{sharing:?}");
        assert_eq!(ends(&program, sharing, 400_000), [610, 1015]);
        // All data fits when permission comes.
        assert_eq!(ends(&program, sharing, 4 * LARGE), [10, 1015]);
    }
}
