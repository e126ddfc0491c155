//! Timelines of predicted runs: their parts, and the traces made of them.

use nodescope_hypercall::{Function, Peer};
use nodescope_loop_tree::sequence::Sequences;
use nodescope_loop_tree::{Action, Collective, CollectiveKind, PeerRef, Program, ProgramBuilder};
use nodescope_predict::{
    Channel, Cluster, Code, Model, Options, Progress, Request, Table, interpret, predict, trace,
};
use nodescope_trace::{Body, Event, TraceReader};
use proptest::prelude::*;

fn cluster() -> Cluster {
    let channel = Channel {
        send_overhead: Table::constant(500_000),
        receive_overhead: Table::constant(700_000),
        ..Channel::new(Model::LogGp, 2_000_000, 1_000_000_000)
    };
    Cluster {
        cores: 2,
        ranks_per_node: Some(2),
        contention: true,
        progress: Progress::Calls,
        ..Cluster::simple("c", channel)
    }
}

#[derive(Clone, Debug)]
enum Turn {
    Shift(u32, u64),
    Overlapped(u32, u64, u8),
    Together(CollectiveKind, u64),
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        (1u32..4, 0u64..200_000).prop_map(|(d, bytes)| Turn::Shift(d, bytes)),
        (1u32..4, 0u64..200_000, any::<u8>())
            .prop_map(|(d, bytes, w)| Turn::Overlapped(d, bytes, w)),
        // All kinds but the construction of a communicator: the builder gives it the function of a barrier, and so a trace would not
        // distinguish the two.
        (0usize..16, 0u64..100_000).prop_map(|(kind, bytes)| {
            let kind = CollectiveKind::ALL[kind];
            // The trace's sums round the shares of a block that is not a multiple of the number of ranks.
            let some = kind != CollectiveKind::Barrier;
            Turn::Together(kind, if some { bytes / 840 * 840 } else { 0 })
        }),
    ]
}

fn program(turns: &[Turn], ranks: u32) -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..ranks {
        builder.begin();
        for turn in turns {
            builder.compute(1_000_000 * u64::from(1 + rank % 3));
            match turn {
                Turn::Shift(d, bytes) => {
                    let d = d % ranks;
                    builder
                        .ireceive(PeerRef::Relative(ranks - d), 1, *bytes, 0)
                        .send(PeerRef::Relative(d), 1, *bytes)
                        .wait(&[0])
                }
                Turn::Overlapped(d, bytes, work) => {
                    let d = d % ranks;
                    builder
                        .isend(PeerRef::Relative(d), 2, *bytes, 0)
                        .ireceive(PeerRef::Relative(ranks - d), 2, *bytes, 1)
                        .compute(u64::from(*work) * 1_000_000)
                        .wait(&[0, 1])
                }
                Turn::Together(kind, bytes) => builder.collective(*kind, 0, *bytes),
            };
        }
        builder.end(3).ranks(1);
    }
    builder.finish()
}

fn traced(program: &Program, cluster: &Cluster) -> (u64, Vec<Event>) {
    let options = Options {
        timeline: true,
        ..Options::default()
    };
    let outcome = interpret(&Code::new(program), cluster, &options).unwrap();
    assert_eq!(outcome.problems, []);
    let timeline = outcome.timeline.unwrap();
    for (rank, calls) in timeline.calls.iter().enumerate() {
        let waited: u64 = calls.iter().map(|call| call.wait).sum();
        assert_eq!(waited, outcome.ranks[rank].wait);
        let mut before = 0;
        for call in calls {
            assert!(
                before <= call.enter && call.enter + call.wait <= call.leave,
                "{call:?}"
            );
            before = call.leave;
        }
        assert_eq!(timeline.ends[rank] + outcome.ranks[rank].idle, outcome.time);
    }
    let nodes = cluster
        .place_ranks(program.ranks.len() as u32, &program.origin)
        .unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    trace::write_trace(program, &nodes, &timeline, "predicted", file.path()).unwrap();
    let events = TraceReader::open(file.path()).unwrap().events();
    (outcome.time, events.map(Result::unwrap).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_predicted_run_predicted_again_on_the_same_cluster_takes_as_long(
        turns in proptest::collection::vec(turn(), 1..5),
        ranks in 2u32..9,
    ) {
        let program = program(&turns, ranks);
        let cluster = cluster();
        let (time, events) = traced(&program, &cluster);
        // Ends of calls ascend, as in any trace.
        prop_assert!(events.windows(2).all(|pair| pair[0].stamp.time <= pair[1].stamp.time));
        let sequences = Sequences::from_events(&events).unwrap();
        let again = Program::new(&sequences);
        let outcome = interpret(&Code::new(&again), &cluster, &Options::default()).unwrap();
        prop_assert_eq!(outcome.time, time);
    }
}

#[test]
fn receives_tell_what_they_got() {
    let mut builder = ProgramBuilder::new();
    builder
        .send(PeerRef::Absolute(1), 7, 100)
        .send(PeerRef::Absolute(1), 7, 200)
        .ranks(1);
    builder
        .ireceive(PeerRef::Absolute(0), 7, 1 << 20, 0)
        .receive(PeerRef::Absolute(0), 7, 1 << 20)
        .wait(&[0])
        .ranks(1);
    let (_, events) = traced(&builder.finish(), &cluster());
    let mut got = Vec::new();
    for event in &events {
        if let Body::Mpi(call) = &event.body
            && call.record.rank.rank() == Some(1)
        {
            got.extend(call.record.completions.iter().map(|done| done.bytes));
        }
    }
    assert_eq!(got, [200, 100], "the blocking receive ends first");
}

#[test]
fn windows_are_no_communicators_and_their_calls_are_told_once() {
    let together = |kind| Action::Collective(Box::new(Collective::of(kind)));
    // Communicators by their number on the ranks: 0 world, 1 self, 2 the window's, 3 the duplicate.
    let mut builder = ProgramBuilder::new();
    builder.call_in(Function::WinCreate, 1, 2, together(CollectiveKind::Create));
    builder.call_in(Function::CommDup, 2, 0, together(CollectiveKind::Create));
    builder.put(PeerRef::Relative(1), 1000, 0);
    let wait = Action::wait([0]);
    builder.call_in(Function::WinFence, 3, 2, wait);
    builder.call_in(Function::WinFence, 3, 2, together(CollectiveKind::Barrier));
    builder.call_in(Function::Barrier, 4, 3, together(CollectiveKind::Barrier));
    builder.ranks(2);
    let mut program = builder.finish();
    program.communicators = vec![Vec::new(); 3];
    program.communicator_lists = vec![vec![Some(0), None, Some(1), Some(2)]];
    program.copies = [1].into();
    let part = |op: &&mut nodescope_loop_tree::Op| {
        op.function == Function::WinFence && matches!(op.action, Action::Wait { .. })
    };
    program
        .ops
        .iter_mut()
        .filter(part)
        .for_each(|op| op.more = true);
    let (_, events) = traced(&program, &cluster());
    let calls = events.iter().filter_map(|event| match &event.body {
        Body::Mpi(call) if call.record.rank == Peer::Rank(0) => Some(&**call),
        _ => None,
    });
    let calls: Vec<_> = calls.collect();
    let functions: Vec<_> = calls.iter().map(|call| call.record.function).collect();
    use Function::*;
    let expected = [Init, WinCreate, CommDup, Put, WinFence, Barrier, Finalize];
    assert_eq!(functions, expected);
    let [_, _, dup, put, fence, barrier, _] = calls[..] else {
        unreachable!()
    };
    assert_eq!(dup.record.new_communicator, barrier.record.communicator);
    assert_ne!(barrier.record.communicator, fence.record.communicator);
    assert_eq!(put.record.destination, Peer::Rank(1));
    assert_eq!(put.record.send_bytes, 1000);
    // The fence begins when the rank begins to wait for the put.
    assert_eq!(fence.entry.time, put.exit.time);
    assert!(fence.exit.time > fence.entry.time);
}

#[test]
fn phases_add_up_to_the_ranks_times_and_the_page_is_well_formed() {
    let turns = [
        Turn::Overlapped(1, 100_000, 200),
        Turn::Together(CollectiveKind::Allreduce, 8400),
    ];
    for ranks in [5, 130] {
        let program = program(&turns, ranks);
        let request = Request {
            timeline: true,
            ..Request::default()
        };
        let prediction = predict(&program, &cluster(), &request).unwrap();
        let phases = prediction.phases.as_ref().unwrap();
        assert_eq!(phases.rows.len() as u32, ranks.div_ceil(ranks.div_ceil(64)));
        let block = phases.ranks_per_row as usize;
        for (row, times) in phases
            .rows
            .iter()
            .zip(prediction.outcome.ranks.chunks(block))
        {
            let sum = |values: &[u64]| values.iter().sum::<u64>();
            assert_eq!(
                sum(&row.computation),
                times.iter().map(|r| r.computation).sum::<u64>()
            );
            assert_eq!(sum(&row.wait), times.iter().map(|r| r.wait).sum::<u64>());
            assert_eq!(
                sum(&row.communication),
                times.iter().map(|r| r.communication).sum::<u64>()
            );
            assert_eq!(sum(&row.opaque), 0);
        }
        let html = prediction.html().unwrap();
        let page = roxmltree::Document::parse(html.trim_start_matches("<!DOCTYPE html>")).unwrap();
        let images = page
            .descendants()
            .filter(|node| node.has_tag_name("svg"))
            .count()
            + page
                .descendants()
                .filter(|node| node.tag_name().name() == "svg")
                .count();
        assert!(images >= 2, "bars and lanes");
        let json: serde_json::Value = serde_json::from_str(&prediction.json()).unwrap();
        assert_eq!(json["phases"]["column"], phases.column);
    }
}
