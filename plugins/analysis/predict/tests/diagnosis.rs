//! Programs with errors, and the problems that are reported.

use nodescope_hypercall::Function;
use nodescope_loop_tree::{
    Action, Collective, CollectiveKind, PeerRef, Program, ProgramBuilder, Source,
};
use nodescope_predict::{
    Channel, Cluster, Code, FitError, Model, Options, Placement, Problem, Request, interpret,
    predict,
};
use nodescope_trace::{Place, Site};

fn rank(absolute: u32) -> PeerRef {
    PeerRef::Absolute(absolute)
}

fn cluster() -> Cluster {
    Cluster::simple("c", Channel::new(Model::LogGp, 1_000_000, 1_000_000_000))
}

fn problems(program: &Program) -> Vec<Problem> {
    let code = Code::new(program);
    let free = interpret(&code, &cluster(), &Options::default()).unwrap();
    let shared = Cluster {
        contention: true,
        ..cluster()
    };
    let ordered = interpret(&code, &shared, &Options::default()).unwrap();
    assert_eq!(free.problems, ordered.problems);
    free.problems
}

#[test]
fn a_cycle_of_receives_is_printed_rank_by_rank() {
    let mut builder = ProgramBuilder::new();
    // 0 waits for 1, 1 for 2, 2 for 1; 3 waits for 0.
    builder.receive(rank(1), 7, 8).ranks(1);
    builder.receive(rank(2), 7, 8).send(rank(0), 7, 8).ranks(1);
    builder.receive(rank(1), 7, 8).send(rank(1), 7, 8).ranks(1);
    builder.receive(rank(0), 7, 8).ranks(1);
    let problems = problems(&builder.finish());
    let [
        Problem::Deadlock {
            cycle,
            others,
            blocked: 4,
            ..
        },
    ] = problems.as_slice()
    else {
        panic!("{problems:?}");
    };
    assert_eq!(cycle.iter().map(|b| b.rank).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(others.iter().map(|b| b.rank).collect::<Vec<_>>(), [0, 3]);
    let text = problems[0].to_string();
    assert!(
        text.contains("rank 1 in MPI_Recv at program+0x30 waits for rank 2\n"),
        "{text}"
    );
}

#[test]
fn who_is_late_for_a_collective_that_was_started_is_told() {
    let mut builder = ProgramBuilder::new();
    let sum = Action::Collective(Box::new(Collective {
        bytes: 8,
        request: Some(0),
        ..Collective::of(CollectiveKind::Allreduce)
    }));
    builder.call(Function::Iallreduce, 0x80, sum.clone());
    builder.wait(&[0]).ranks(1);
    builder.receive(rank(0), 7, 8);
    builder.call(Function::Iallreduce, 0x80, sum);
    builder.wait(&[0]).ranks(1);
    let problems = problems(&builder.finish());
    let [Problem::Deadlock { cycle, .. }] = problems.as_slice() else {
        panic!("{problems:?}");
    };
    let waits: Vec<_> = cycle.iter().map(|b| (b.rank, b.waits_for)).collect();
    assert_eq!(waits, [(0, Some(1)), (1, Some(0))]);
}

#[test]
fn large_sends_to_each_other_deadlock_and_small_ones_do_not() {
    let program = |bytes| {
        let mut builder = ProgramBuilder::new();
        builder
            .send(rank(1), 0, bytes)
            .receive(rank(1), 0, bytes)
            .ranks(1);
        builder
            .send(rank(0), 0, bytes)
            .receive(rank(0), 0, bytes)
            .ranks(1);
        builder.finish()
    };
    assert_eq!(problems(&program(100)), []);
    let found = problems(&program(1 << 20));
    let [Problem::Deadlock { cycle, .. }] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(cycle.len(), 2);
    assert_eq!(cycle[0].at.to_string(), "MPI_Send at program+0x10");
}

#[test]
fn places_change_the_texts_alone() {
    let mut builder = ProgramBuilder::new();
    builder.compute(900).send(rank(1), 0, 8).ranks(1);
    builder.receive(rank(0), 0, 8).ranks(1);
    let mut program = builder.finish();
    let plain = predict(&program, &cluster(), &Request::default()).unwrap();
    let site = Site {
        address: 0x30,
        module: 0,
    };
    let place = Place {
        function: Some("ring".into()),
        file: Some("src/ring.c".into()),
        line: Some(42),
    };
    program.origin.names.places.insert(site, place);
    let mut named = predict(&program, &cluster(), &Request::default()).unwrap();
    let (before, text) = (plain.text(), named.text());
    let place = "MPI_Recv at ring (ring.c:42)";
    assert!(
        text.contains(&format!("{place}, because of MPI_Send at program+0x10")),
        "{text}"
    );
    assert!(text.contains(&format!("to {place}")), "{text}");
    assert_eq!(before.replace("MPI_Recv at program+0x30", place), text);
    assert!(named.html().unwrap().contains(place));
    // JSON has the address of each call, and the places beside.
    let json: serde_json::Value = serde_json::from_str(&named.json()).unwrap();
    assert_eq!(
        json["outcome"]["waits"][0]["at"],
        "MPI_Recv at program+0x30"
    );
    assert_eq!(json["places"]["program+0x30"]["line"], 42);
    named.places.clear();
    assert_eq!(named.json(), plain.json());
}

#[test]
fn waits_for_a_rank_that_has_ended_and_for_missing_members_are_told() {
    let mut builder = ProgramBuilder::new();
    builder.ireceive(rank(1), 0, 8, 0).wait(&[0]).ranks(1);
    builder.compute(5).ranks(1);
    let found = problems(&builder.finish());
    let text = found[0].to_string();
    assert!(
        text.contains("rank 0 in MPI_Waitall at program+0x50 waits for rank 1, which has ended"),
        "{text}"
    );
    let mut builder = ProgramBuilder::new();
    builder.collective(CollectiveKind::Barrier, 0, 0).ranks(2);
    builder
        .receive(rank(0), 0, 8)
        .collective(CollectiveKind::Barrier, 0, 0)
        .ranks(1);
    let found = problems(&builder.finish());
    let [Problem::Deadlock { cycle, .. }] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(cycle.iter().map(|b| b.rank).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn lost_messages_truncation_and_open_receives_are_told() {
    let mut builder = ProgramBuilder::new();
    builder.begin().send(rank(1), 3, 100).end(4);
    builder.send(rank(1), 4, 100).ranks(1);
    builder
        .receive(rank(0), 4, 64)
        .ireceive(rank(0), 5, 8, 0)
        .ranks(1);
    let found = problems(&builder.finish());
    assert!(
        matches!(
            found.as_slice(),
            [
                Problem::Truncated {
                    from: 0,
                    to: 1,
                    bytes: 100,
                    room: 64,
                    count: 1,
                    ..
                },
                Problem::Unreceived {
                    from: 0,
                    to: 1,
                    tag: 3,
                    bytes: 100,
                    count: 4,
                    ..
                },
                Problem::Unmatched {
                    rank: 1,
                    count: 1,
                    ..
                },
            ]
        ),
        "{found:?}"
    );
}

#[test]
fn different_collectives_stop_the_interpretation() {
    let mut builder = ProgramBuilder::new();
    builder.collective(CollectiveKind::Bcast, 0, 8).ranks(2);
    builder.collective(CollectiveKind::Reduce, 0, 8).ranks(1);
    let found = problems(&builder.finish());
    let [Problem::Mismatch { what, .. }] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert!(what.contains("bcast") && what.contains("reduce"), "{what}");
    let mut builder = ProgramBuilder::new();
    builder.collective(CollectiveKind::Bcast, 0, 8).ranks(2);
    builder.collective(CollectiveKind::Bcast, 1, 8).ranks(1);
    let found = problems(&builder.finish());
    assert!(
        matches!(found.as_slice(), [Problem::Mismatch { .. }]),
        "{found:?}"
    );
    let mut builder = ProgramBuilder::new();
    builder.collective(CollectiveKind::Allreduce, 0, 8).ranks(2);
    builder
        .collective(CollectiveKind::Allreduce, 0, 16)
        .ranks(1);
    let found = problems(&builder.finish());
    assert!(found[0].to_string().contains("8 and 16 bytes"), "{found:?}");
}

#[test]
fn open_receives_take_what_was_sent_first() {
    let mut builder = ProgramBuilder::new();
    let any = || Action::Receive {
        from: Source::Any,
        tag: None,
        room: 8,
        request: None,
    };
    let receive = nodescope_hypercall::Function::Recv;
    builder.call(receive, 1, any()).call(receive, 1, any());
    builder.send(rank(1), 0, 8).receive(rank(2), 9, 8).ranks(1);
    builder.send(rank(0), 0, 8).receive(rank(0), 0, 8).ranks(1);
    builder
        .compute(1_000_000_000)
        .send(rank(0), 1, 8)
        .send(rank(0), 9, 8)
        .ranks(1);
    assert_eq!(problems(&builder.finish()), []);
}

#[test]
fn a_program_that_stops_is_predicted_no_time() {
    let mut builder = ProgramBuilder::new();
    builder
        .compute(5_000_000)
        .receive(PeerRef::Relative(1), 0, 8)
        .ranks(3);
    let prediction = predict(&builder.finish(), &cluster(), &Request::default()).unwrap();
    assert_eq!(
        (prediction.efficiencies, prediction.interval.clone()),
        (None, None)
    );
    let text = prediction.text();
    assert!(text.contains("does not come to its end"), "{text}");
    assert!(
        text.contains("rank 2 in MPI_Recv at program+0x30 waits for rank 0"),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&prediction.json()).unwrap();
    assert_eq!(json["outcome"]["problems"][0]["problem"], "deadlock");
    assert_eq!(json["efficiencies"], serde_json::Value::Null);
}

#[test]
fn programs_that_do_not_fit_are_refused() {
    let mut builder = ProgramBuilder::new();
    builder.compute(5).ranks(5);
    let program = builder.finish();
    let fit = |cluster: &Cluster| {
        let error = predict(&program, cluster, &Request::default()).unwrap_err();
        assert!(!error.to_string().is_empty());
        error
    };
    let mut small = cluster();
    (small.nodes, small.cores, small.ranks_per_node) = (Some(2), 2, Some(2));
    assert!(matches!(
        fit(&small),
        FitError::Nodes {
            needed: 3,
            nodes: 2,
            ..
        }
    ));
    small.placement = Placement::Nodes(vec![0, 0, 0, 1, 1]);
    assert!(matches!(
        fit(&small),
        FitError::Cores {
            node: 0,
            ranks: 3,
            cores: 2,
            rule: "listed"
        }
    ));
    small.placement = Placement::Nodes(vec![0, 0]);
    assert!(matches!(
        fit(&small),
        FitError::Placement {
            listed: 2,
            ranks: 5
        }
    ));
}

#[test]
fn ranks_that_do_not_exist_never_come() {
    let mut builder = ProgramBuilder::new();
    builder.receive(rank(7), 7, 8).ranks(1);
    let exchange = Action::SendReceive {
        send: Some((rank(u32::MAX), 1, 8)),
        receive: Some((Source::Peer(rank(9)), Some(1), 8)),
    };
    builder.call(Function::Sendrecv, 0x10, exchange).ranks(1);
    let problems = problems(&builder.finish());
    let [Problem::Deadlock { others, .. }] = problems.as_slice() else {
        panic!("{problems:?}");
    };
    let waits: Vec<_> = others.iter().map(|b| (b.waits_for, b.ended)).collect();
    assert_eq!(waits, [(Some(7), true), (Some(9), true)]);
}

#[test]
fn what_takes_longer_than_is_counted_says_so() {
    let long = 1 << 61;
    let mut builder = ProgramBuilder::new();
    for _ in 0..20 {
        builder.compute(long).send(rank(1), 1, 1 << 43);
    }
    builder.ranks(1);
    for _ in 0..20 {
        builder.compute(long).receive(rank(0), 1, 1 << 43);
    }
    builder.ranks(1);
    let program = builder.finish();
    let told = |program: &Program, cluster: &Cluster| {
        let prediction = predict(program, cluster, &Request::default()).unwrap();
        assert!(!prediction.outcome.complete());
        let text = prediction.text();
        assert!(text.contains("the longest that is interpreted"), "{text}");
    };
    told(&program, &cluster());
    // Many messages at a byte a second, the time of each within its bound.
    let mut builder = ProgramBuilder::new();
    builder.begin();
    builder.isend(rank(1), 1, 1 << 43, 0);
    builder.end(1000).ranks(1);
    builder.begin();
    builder.receive(rank(0), 1, 1 << 43);
    builder.end(1000).ranks(1);
    let program = builder.finish();
    let mut slow = Cluster::simple("slow", Channel::new(Model::LogGp, 1 << 50, 1));
    slow.network.eager_limit = u64::MAX;
    slow.ranks_per_node = Some(1);
    for contention in [false, true] {
        slow.contention = contention;
        told(&program, &slow);
    }
}
