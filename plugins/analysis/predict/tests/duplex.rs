//! Large messages in both directions between two ranks.

use nodescope_loop_tree::{PeerRef, Program, ProgramBuilder};
use nodescope_predict::{Channel, Cluster, Code, Model, Options, Progress, Sharing, interpret};

const US: u64 = 1_000_000;
/// Bytes of a message that takes 1000 us at 1 GB/s.
const LARGE: u64 = 1_000_000;

fn time(program: &Program, half_duplex: bool, sharing: Sharing) -> u64 {
    let cluster = Cluster {
        contention: true,
        half_duplex,
        sharing,
        progress: Progress::Calls,
        ..Cluster::simple("c", Channel::new(Model::LogGp, 5 * US, 1_000_000_000))
    };
    let outcome = interpret(&Code::new(program), &cluster, &Options::default()).unwrap();
    assert_eq!(outcome.problems, []);
    outcome.time
}

/// Returns a program in which each of `senders` ranks sends to the next rank, round a ring of `ranks`.
fn ring(ranks: u32, senders: u32, bytes: u64) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..ranks {
        let mut requests = Vec::new();
        let before = (rank + ranks - 1) % ranks;
        if before < senders {
            builder.ireceive(PeerRef::Absolute(before), 0, bytes, 0);
            requests.push(0);
        }
        if rank < senders {
            builder.isend(PeerRef::Absolute((rank + 1) % ranks), 0, bytes, 1);
            requests.push(1);
        }
        builder.wait(&requests).ranks(1);
    }
    builder.finish()
}

#[test]
fn two_directions_take_twice_the_time_of_one() {
    for sharing in [Sharing::Queue, Sharing::Frames, Sharing::Fair] {
        let exchange = |half| time(&ring(2, 2, LARGE), half, sharing);
        // A request and a permission, 5 us each, then the data.
        assert_eq!(exchange(false), 1015 * US, "{sharing:?}");
        assert_eq!(exchange(true), 2015 * US, "{sharing:?}");
        // One direction, a ring of different pairs, and eager messages are not slowed down.
        assert_eq!(time(&ring(2, 1, LARGE), true, sharing), 1015 * US);
        assert_eq!(time(&ring(3, 3, LARGE), true, sharing), 1015 * US);
        assert_eq!(time(&ring(2, 2, 50_000), true, sharing), 55 * US);
    }
}
