//! Traces at the limits: without calls, without messages, of no time, with too many steps.

mod support;

use nodescope_hypercall::{Function, Peer};
use nodescope_loop_tree::sequence::SequenceBuilder;
use nodescope_loop_tree::{SequenceError, SequenceOptions};
use nodescope_phases::{Include, Messages, PhasesError, Request, analyse};
use support::{MS, SECOND, Trace, choice, message};

fn with(trace: &Trace, include: Include) -> Messages {
    Messages::new(&trace.sequences(), include, &choice())
}

#[test]
fn a_trace_without_calls_is_refused() {
    let empty = SequenceBuilder::new(SequenceOptions::default()).finish();
    assert_eq!(empty.unwrap_err(), SequenceError::NoCalls);
}

#[test]
fn a_program_without_messages_is_one_silent_phase() {
    for ranks in [1, 2, 40] {
        let mut trace = Trace::new(ranks);
        trace.end(SECOND);
        let analysis = analyse(&trace.messages(), &Request::default()).unwrap();
        assert_eq!((analysis.phases.len(), analysis.classes.len()), (1, 1));
        let phase = &analysis.phases[0];
        assert_eq!((phase.from, phase.to), (0, SECOND));
        assert_eq!(phase.figures.degree.max, 0);
        let said = |what: &str| analysis.notes.iter().any(|note| note.contains(what));
        assert!(said("one silent phase"));
        assert_eq!(said("one rank"), ranks == 1);
    }
}

#[test]
fn a_program_of_no_time_has_one_step() {
    let mut trace = Trace::new(2);
    trace.end(0);
    let analysis = analyse(&trace.messages(), &Request::default()).unwrap();
    assert_eq!(analysis.step_classes, [0]);
}

#[test]
fn messages_of_a_rank_to_itself_are_no_edge() {
    let mut trace = Trace::new(1);
    trace.exchange(0, (0, 0), 77, MS);
    trace.end(SECOND);
    let analysis = analyse(&trace.messages(), &Request::default()).unwrap();
    assert_eq!(analysis.whole.total.bytes, 77);
    assert_eq!(
        (analysis.whole.degree.max, analysis.whole.sent.max),
        (0, 77)
    );
}

#[test]
fn no_message_is_lost_between_phases() {
    let trace = support::torus();
    let messages = trace.messages();
    for step in [7 * MS, 300 * MS, SECOND, 100 * SECOND] {
        let request = Request {
            step: Some(step),
            ..Request::default()
        };
        let analysis = analyse(&messages, &request).unwrap();
        let sum: u64 = analysis
            .phases
            .iter()
            .map(|phase| phase.figures.total.messages)
            .sum();
        assert_eq!(sum, 128);
        assert_eq!(analysis.whole.total, messages.total());
        let steps: usize = analysis.phases.iter().map(|phase| phase.steps).sum();
        assert_eq!(steps, analysis.step_classes.len());
    }
}

#[test]
fn too_many_steps_are_refused() {
    let request = Request {
        step: Some(1),
        ..Request::default()
    };
    let error = analyse(&support::torus().messages(), &request).unwrap_err();
    assert!(matches!(error, PhasesError::TooManySteps { .. }));
    assert!(error.to_string().contains("give a longer step"), "{error}");
}

#[test]
fn collectives_are_counted_where_that_is_asked_for() {
    let mut trace = Trace::new(4);
    for rank in 0..4 {
        trace.call(rank, Function::Alltoall, MS, 2 * MS, |record| {
            (record.send_bytes, record.receive_bytes) = (400, 400);
            record.communicator_size = 4;
        });
        trace.call(rank, Function::Bcast, 3 * MS, 4 * MS, |record| {
            record.root = Peer::Rank(2);
            let bytes = if rank == 2 {
                &mut record.send_bytes
            } else {
                &mut record.receive_bytes
            };
            *bytes = 1000;
            record.communicator_size = 4;
        });
    }
    trace.end(SECOND);
    let without = with(&trace, Include::default());
    assert!(without.list.is_empty());
    let told = &without.notes[0];
    assert!(told.contains("--include collectives"), "{told}");
    let include = Include {
        collectives: true,
        ..Include::default()
    };
    let messages = with(&trace, include);
    let of = |time: u64| {
        messages
            .list
            .iter()
            .filter(move |message| message.time == time)
    };
    // Each rank sends 100 B to every other rank.
    let mut pairs: Vec<(u32, u32)> = of(MS).map(|message| (message.from, message.to)).collect();
    pairs.sort_unstable();
    let expected: Vec<(u32, u32)> = (0..4)
        .flat_map(|from| (0..4).map(move |to| (from, to)))
        .filter(|(from, to)| from != to)
        .collect();
    assert_eq!(pairs, expected);
    assert!(of(MS).all(|message| message.bytes == 100));
    // Every rank but the root gets the vector once.
    let mut receivers: Vec<u32> = of(3 * MS).map(|message| message.to).collect();
    receivers.sort_unstable();
    assert_eq!(receivers, [0, 1, 3]);
    assert!(of(3 * MS).all(|message| message.bytes == 1000));
    assert_eq!(messages.kinds.collectives.messages, 15);
}

#[test]
fn a_message_at_the_very_end_belongs_to_the_last_step() {
    let messages = Messages {
        ranks: 2,
        from: 0,
        to: 10,
        list: vec![message(10, 0, 1, 5)],
        ..Messages::default()
    };
    let analysis = analyse(&messages, &Request::default()).unwrap();
    assert_eq!(analysis.phases.last().unwrap().figures.total.bytes, 5);
}
