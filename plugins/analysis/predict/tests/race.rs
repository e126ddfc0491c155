//! Waits for some of several requests.

use nodescope_hypercall::Function;
use nodescope_loop_tree::{Action, PeerRef, ProgramBuilder};
use nodescope_predict::{Channel, Cluster, Code, Model, Options, Progress, interpret};

const US: u64 = 1_000_000;

/// Returns when the receiver of messages from two ranks ends, microseconds. In the trace the message of the first rank came first. The receiver
/// works for 30 us after the first message and for 10 us after the second.
fn end(first: u64, second: u64, matched: bool) -> u64 {
    let mut builder = ProgramBuilder::new();
    let some = |requests: &[u32], among: &[u32]| Action::Wait {
        requests: requests.into(),
        among: among.into(),
    };
    for sender in 0..2 {
        builder.ireceive(PeerRef::Absolute(1 + sender), 0, 8, sender);
    }
    builder.call(Function::Waitany, 1, some(&[0], &[0, 1]));
    builder.compute(30 * US);
    builder.call(Function::Waitany, 2, some(&[1], &[1]));
    builder.compute(10 * US);
    // Both numbers are used again, each for the message of one rank.
    for sender in 0..2 {
        builder.ireceive(PeerRef::Absolute(1 + sender), 1, 8, sender);
    }
    builder.wait(&[0, 1]).ranks(1);
    for work in [first, second] {
        builder.compute(work * US);
        builder.send(PeerRef::Absolute(0), 0, 8);
        builder.send(PeerRef::Absolute(0), 1, 8).ranks(1);
    }
    let program = builder.finish();
    let cluster = Cluster {
        progress: Progress::Calls,
        ..Cluster::simple("c", Channel::new(Model::LogGp, 5 * US, 1_000_000_000_000))
    };
    let options = Options {
        matched,
        ..Options::default()
    };
    let outcome = interpret(&Code::new(&program), &cluster, &options).unwrap();
    assert_eq!(outcome.problems, []);
    (outcome.time - outcome.ranks[0].idle) / US
}

#[test]
fn the_request_that_completes_first_is_taken() {
    // As traced: 100 + 5, work, the other message has come, work.
    assert_eq!(end(100, 110, false), 145);
    assert_eq!(end(100, 200, false), 215);
    // The other way round, the work after the first message goes on while the second is on its way.
    assert_eq!(end(200, 100, false), 215);
    assert_eq!(end(200, 100, true), 245);
    assert_eq!(end(120, 100, false), 145);
    // Both are there before the receiver looks.
    assert_eq!(end(0, 0, false), 45);
}
