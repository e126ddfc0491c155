//! Receives from any source, of which the trace tells whose message matched.

use nodescope_hypercall::Function;
use nodescope_loop_tree::{Action, PeerRef, Program, ProgramBuilder, Source};
use nodescope_predict::{
    Channel, Cluster, Code, Model, Options, Prediction, Request, interpret, predict,
};

const US: u64 = 1_000_000;

fn cluster() -> Cluster {
    Cluster::simple("c", Channel::new(Model::LogGp, 5 * US, 0))
}

fn rank(absolute: u32) -> PeerRef {
    PeerRef::Absolute(absolute)
}

/// Returns a program whose rank 0 answers the requests of ranks 1 and 2, from any source. Where the program was traced, rank 1 came first.
/// Here rank 1 comes after 50 us, rank 2 after 10. The answer to rank 2 has the tag `tag`, which rank 2 expects; that to rank 1 has tag 0.
fn server(tag: u32, probes: bool) -> Program {
    let mut builder = ProgramBuilder::new();
    for (worker, tag) in [(1, 0), (2, tag)] {
        let from = Source::Matched(rank(worker));
        if probes {
            let action = Action::Probe { from, tag: Some(9) };
            builder.call(Function::Probe, 1, action);
            builder.receive(rank(worker), 9, 0);
        } else {
            let action = Action::Receive {
                from,
                tag: Some(9),
                room: 0,
                request: None,
            };
            builder.call(Function::Recv, 1, action);
        }
        builder.send(rank(worker), tag, 0);
    }
    builder.ranks(1);
    for (time, tag) in [(50 * US, 0), (10 * US, tag)] {
        builder.compute(time).send(rank(0), 9, 0);
        builder.receive(rank(0), tag, 0).ranks(1);
    }
    builder.finish()
}

fn ends(prediction: &Prediction) -> Vec<u64> {
    let outcome = &prediction.outcome;
    assert_eq!(outcome.problems, []);
    let ends = outcome.ranks.iter().map(|rank| outcome.time - rank.idle);
    ends.collect()
}

#[test]
fn the_request_that_comes_first_is_answered_first() {
    for probes in [false, true] {
        let program = server(0, probes);
        let prediction = predict(&program, &cluster(), &Request::default()).unwrap();
        assert_eq!(ends(&prediction), [55 * US, 60 * US, 20 * US]);
        assert!(
            prediction
                .notes
                .iter()
                .any(|note| note.contains("comes first here"))
        );
        let traced = interpret(&Code::new(&program), &cluster(), &Options::default()).unwrap();
        assert_eq!(traced.time - traced.ranks[2].idle, 60 * US);
    }
}

#[test]
fn a_program_that_cannot_go_otherwise_goes_as_traced() {
    // Rank 1 would wait for ever for an answer of tag 0, which rank 2 gets.
    let prediction = predict(&server(1, false), &cluster(), &Request::default()).unwrap();
    assert_eq!(ends(&prediction), [55 * US, 60 * US, 60 * US]);
    assert!(
        prediction
            .notes
            .iter()
            .any(|note| note.contains("in the traced order"))
    );
}
