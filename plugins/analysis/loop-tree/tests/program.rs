//! Folding a program loses nothing, and the trees hold what a trace says.

use std::num::NonZeroU32;
use std::sync::Arc;

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{
    Completion, Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, Tag, ThreadId,
};
use nodescope_loop_tree::sequence::SequenceBuilder;
use nodescope_loop_tree::{
    Action, Burst, Collective, CollectiveKind, Entry, Mode, Op, PeerRef, Program, Sequence,
    SequenceOptions, Sequences, Site, Source,
};
use nodescope_trace::{Body, Event, MpiCall, Stamp};
use proptest::prelude::*;

/// A trace of calls, each with the time at which it begins and how long it takes.
#[derive(Default)]
struct TraceOf {
    events: Vec<Event>,
}

impl TraceOf {
    fn new(world: u32) -> TraceOf {
        let mut trace = TraceOf::default();
        for rank in 0..world {
            trace.push(
                rank,
                0,
                Body::Process(Hello {
                    kind: ProcessKind::MpiRank,
                    rank: Peer::Rank(rank),
                    world_size: world,
                    pid: 100 + rank,
                    flavour: Flavour::OpenMpi,
                    host: format!("n{rank}"),
                    program: "p".into(),
                }),
            );
        }
        trace
    }

    fn push(&mut self, node: u32, time: u64, body: Body) {
        let stamp = Stamp {
            time,
            instructions: time,
            vcpu: 0,
        };
        let sequence = self.events.len() as u64;
        self.events.push(Event {
            node,
            sequence,
            stamp,
            body,
        });
    }

    fn call(
        &mut self,
        rank: u32,
        function: Function,
        from: u64,
        to: u64,
        with: impl FnOnce(&mut MpiRecord),
    ) {
        let thread = ThreadId {
            pid: 100 + rank,
            tid: 100 + rank,
        };
        let mut record = MpiRecord::new(function, thread, Peer::Rank(rank), 0);
        record.communicator = communicator::WORLD;
        record.communicator_size = 2;
        with(&mut record);
        let stamp = |time| Stamp {
            time,
            instructions: time,
            vcpu: 0,
        };
        let call = MpiCall {
            record,
            entry: stamp(from),
            exit: stamp(to),
            time_inside: to - from,
            instructions_inside: to - from,
            entry_seen: true,
        };
        self.push(rank, to, Body::Mpi(Box::new(call)));
    }

    fn sequences(&self) -> Sequences {
        Sequences::from_events(&self.events).unwrap()
    }
}

fn done(request: u64, source: u32, tag: u32) -> Completion {
    Completion {
        request,
        bytes: 8,
        index: 0,
        source: Peer::Rank(source),
        tag: Tag::Value(tag),
        cancelled: false,
    }
}

#[test]
fn requests_get_small_numbers_and_loops_fold() {
    let mut trace = TraceOf::new(2);
    for rank in 0..2 {
        trace.call(rank, Function::Init, 0, 100, |_| {});
    }
    for turn in 0..50u64 {
        let start = 100 + turn * 100;
        for rank in 0..2u32 {
            let peer = Peer::Rank(1 - rank);
            trace.call(rank, Function::Irecv, start + 10, start + 11, |record| {
                record.source = Peer::Any;
                record.receive_tag = Tag::Any;
                record.receive_bytes = 8;
                record.request = 2 * turn + 1;
            });
            trace.call(rank, Function::Isend, start + 12, start + 13, |record| {
                record.destination = peer;
                record.send_tag = Tag::Value(5);
                record.send_bytes = 8;
                record.request = 2 * turn + 2;
            });
            trace.call(rank, Function::Waitall, start + 13, start + 100, |record| {
                record.requests = vec![2 * turn + 1, 2 * turn + 2];
                record.completions =
                    vec![done(2 * turn + 1, 1 - rank, 5), done(2 * turn + 2, 0, 0)];
            });
        }
    }
    for rank in 0..2 {
        trace.call(rank, Function::Finalize, 5107, 5200, |_| {});
    }
    let sequences = trace.sequences();
    let entries = &sequences.ranks[1].entries;
    assert_eq!(entries.len(), 151);
    assert_eq!(
        entries[0].op.action,
        Action::Receive {
            from: Source::Matched(PeerRef::Absolute(0)),
            tag: Some(5),
            room: 8,
            request: Some(0),
        }
    );
    assert_eq!(entries[2].op.action, Action::wait([0, 1]));
    assert_eq!(
        (
            entries[0].burst.time,
            entries[1].burst.time,
            entries[2].burst.time
        ),
        (10, 1, 0)
    );
    assert_eq!(entries[150].burst.time, 7);
    assert_eq!(sequences.spans, [5007, 5007]);

    let program = Program::new(&sequences);
    assert_eq!(program.ranks[0].tree, program.ranks[1].tree);
    let size = program.size();
    assert_eq!(size.operations, 302);
    assert_eq!(size.trees, 1);
    // One loop. The first receive is separate, because no call comes before it, so the loop begins with a send.
    assert!(size.entries <= 16, "{}", program.outline(0));
    for rank in 0..2 {
        assert_eq!(program.unfold(rank), sequences.ranks[rank as usize]);
    }
}

#[test]
fn polls_before_a_message_are_waiting() {
    let mut trace = TraceOf::new(1);
    trace.call(0, Function::Init, 0, 100, |_| {});
    trace.call(0, Function::Irecv, 110, 111, |record| {
        record.source = Peer::Rank(0);
        record.receive_tag = Tag::Value(0);
        record.request = 1;
    });
    trace.call(0, Function::Test, 120, 1120, |record| {
        record.flags = nodescope_hypercall::record::Flags::POLL_RUN;
        record.calls = 100;
    });
    // 900 of the 1000 inside the polls.
    if let Some(Event {
        body: Body::Mpi(call),
        ..
    }) = trace.events.last_mut()
    {
        call.time_inside = 900;
    }
    trace.call(0, Function::Test, 1121, 1122, |record| {
        record.completions = vec![done(1, 0, 0)];
    });
    let sequences = trace.sequences();
    let entries = &sequences.ranks[0].entries;
    assert_eq!(entries[1].burst.time, 9 + 1);
    assert_eq!(entries[1].op.action, Action::wait([0]));
    assert!(sequences.notes[0].contains("polls"));
}

/// Returns the burst before the second of two tests, between which a rank polls two things in turn: each poll takes `inside` ps, and the rank
/// polls again after `work` ps.
fn burst_after_polls_in_turn(inside: u64, work: u64) -> u64 {
    let mut trace = TraceOf::new(1);
    trace.call(0, Function::Init, 0, 100, |_| {});
    trace.call(0, Function::Barrier, 100, 200, |_| {});
    let step = inside + work;
    for (number, function) in [(0, Function::Iprobe), (1, Function::Test)] {
        let begin = 200 + number * step;
        trace.call(0, function, begin, begin + 18 * step + inside, |record| {
            record.flags = nodescope_hypercall::record::Flags::POLL_RUN;
            record.calls = 10;
        });
        if let Some(Event {
            body: Body::Mpi(call),
            ..
        }) = trace.events.last_mut()
        {
            call.time_inside = 10 * inside;
        }
    }
    let found = 200 + 20 * step;
    trace.call(0, Function::Barrier, found, found + 1, |_| {});
    trace.sequences().ranks[0].entries[1].burst.time
}

#[test]
fn polls_of_several_things_in_turn_are_one_wait() {
    // The work after the last poll counts. That between the polls counts if it is much more than what is in them.
    assert_eq!(burst_after_polls_in_turn(100, 10), 10);
    assert_eq!(burst_after_polls_in_turn(100, 350), 350);
    assert_eq!(burst_after_polls_in_turn(100, 1000), 20 * 1000);
}

#[test]
fn a_call_that_overlaps_another_threads_starts_before_it() {
    let mut trace = TraceOf::new(1);
    trace.call(0, Function::Init, 0, 100, |_| {});
    // The first thread is in a barrier from 110 to 150, the second in another one from 120 to 200 and the first again from 160 to 190.
    let other = |record: &mut MpiRecord| {
        record.thread.tid += 1;
        record.communicator = communicator::SELF;
    };
    trace.call(0, Function::Barrier, 110, 150, |_| {});
    trace.call(0, Function::Barrier, 160, 190, |_| {});
    trace.call(0, Function::Barrier, 120, 200, other);
    let sequences = trace.sequences();
    let entries = &sequences.ranks[0].entries;
    let what: Vec<_> = (entries.iter())
        .map(|entry| match &entry.op.action {
            Action::Collective(barrier) => (entry.op.communicator, barrier.request, 0),
            Action::Wait { requests, .. } => (entry.op.communicator, None, requests.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        what,
        [(1, Some(0), 0), (0, None, 0), (0, None, 0), (1, None, 1)]
    );
    let bursts: Vec<u64> = entries.iter().map(|entry| entry.burst.time).collect();
    assert_eq!(bursts, [10, 0, 10, 0]);
    assert!(sequences.notes[0].contains("2 threads"));
}

#[test]
fn a_wait_for_some_keeps_all_that_it_was_given() {
    let mut trace = TraceOf::new(1);
    trace.call(0, Function::Init, 0, 100, |_| {});
    for request in 1..=3 {
        trace.call(0, Function::Irecv, 110, 111, |record| {
            record.source = Peer::Rank(0);
            record.receive_tag = Tag::Value(0);
            record.request = request;
        });
    }
    let mut waits = |function, given: &[u64], ended: &[u64]| {
        trace.call(0, function, 120, 121, |record| {
            record.requests = given.to_vec();
            record.completions = ended.iter().map(|&of| done(of, 0, 0)).collect();
        });
    };
    waits(Function::Waitany, &[1, 2, 0, 3], &[2]);
    waits(Function::Waitsome, &[1, 0, 0, 3], &[1, 3]);
    let sequences = trace.sequences();
    let entries = &sequences.ranks[0].entries;
    let some = Action::Wait {
        requests: [1].into(),
        among: [0, 1, 2].into(),
    };
    assert_eq!(entries[3].op.action, some);
    // All that are left: no race.
    assert_eq!(entries[4].op.action, Action::wait([0, 2]));
}

#[test]
fn roots_are_ranks_of_their_communicator() {
    let mut trace = TraceOf::new(2);
    for rank in 0..2 {
        trace.call(rank, Function::CommSplit, 10, 20, |record| {
            record.new_communicator = 1 << 63;
            if rank == 1 {
                record.members = vec![Peer::Rank(1), Peer::Rank(0)];
            }
        });
    }
    for rank in 0..2 {
        trace.call(rank, Function::Bcast, 30, 40, |record| {
            record.communicator = 1 << 63;
            record.root = Peer::Rank(1);
            if rank == 1 {
                record.send_bytes = 64;
            } else {
                record.receive_bytes = 64;
            }
        });
    }
    let sequences = trace.sequences();
    for sequence in &sequences.ranks {
        let op = &sequence.entries[1].op;
        assert_eq!(op.communicator, 2);
        let Action::Collective(bcast) = &op.action else {
            panic!("{op:?}");
        };
        assert_eq!(
            (bcast.kind, bcast.root, bcast.bytes),
            (CollectiveKind::Bcast, 0, 64)
        );
        assert_eq!(sequence.communicators, [Some(0), None, Some(1)]);
    }
    assert_eq!(sequences.communicators[1], [1, 0]);
}

#[test]
fn traces_without_all_ranks_are_refused() {
    assert!(matches!(
        Sequences::from_events(&[]),
        Err(nodescope_loop_tree::SequenceError::NoCalls)
    ));
    let mut trace = TraceOf::new(3);
    trace.call(0, Function::Barrier, 1, 2, |_| {});
    trace.call(2, Function::Barrier, 1, 2, |_| {});
    let error = Sequences::from_events(&trace.events).unwrap_err();
    assert!(
        error.to_string().contains("no call of rank 1 of 3"),
        "{error}"
    );
}

fn op() -> impl Strategy<Value = Op> {
    let peer = (0u32..4).prop_map(PeerRef::Absolute);
    let action = prop_oneof![
        Just(Action::Nothing),
        (peer.clone(), 0u32..3, 0u64..3).prop_map(|(to, tag, bytes)| Action::Send {
            to,
            tag,
            bytes,
            mode: Mode::Standard,
            request: None
        }),
        (peer, 0u32..3).prop_map(|(from, request)| Action::Receive {
            from: Source::Peer(from),
            tag: None,
            room: 9,
            request: Some(request)
        }),
        proptest::collection::vec(0u32..4, 0..3).prop_map(Action::wait),
        (0u64..3).prop_map(|bytes| Action::Collective(Box::new(Collective {
            kind: CollectiveKind::Allreduce,
            root: 0,
            bytes,
            send_to: Box::default(),
            receive_from: Box::default(),
            request: None
        }))),
    ];
    (0u64..4, action).prop_map(|(site, action)| Op {
        function: Function::Send,
        site: Site {
            address: site,
            module: 0,
        },
        communicator: 0,
        block: NonZeroU32::new(if site == 3 { 8 } else { 0 }),
        more: false,
        action,
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    (op(), any::<u64>(), any::<u64>(), any::<Option<u64>>()).prop_map(
        |(op, time, instructions, opaque)| match opaque {
            Some(_) => Entry {
                burst: Burst { time, instructions },
                op: Arc::new(Op {
                    action: Action::Opaque,
                    ..op
                }),
                opaque,
            },
            None => Entry {
                burst: Burst { time, instructions },
                op: Arc::new(op),
                opaque: None,
            },
        },
    )
}

proptest! {
    #[test]
    fn unfolding_a_program_gives_its_sequences_back(
        bodies in proptest::collection::vec((proptest::collection::vec(entry(), 0..6), 1usize..5), 1..5),
        ranks in 1usize..4,
    ) {
        let entries: Vec<Entry> = bodies
            .iter()
            .flat_map(|(body, times)| std::iter::repeat_n(body, *times).flatten().cloned())
            .collect();
        let sequence = Sequence { entries, communicators: vec![Some(0), None] };
        let sequences = Sequences {
            ranks: vec![sequence; ranks.max(4)],
            communicators: vec![Vec::new()],
            ..Sequences::default()
        };
        let program = Program::new(&sequences);
        for rank in 0..sequences.ranks.len() {
            prop_assert_eq!(&program.unfold(rank as u32), &sequences.ranks[rank]);
        }
    }
}

#[test]
fn a_program_of_several_and_marks_in_it_are_found() {
    let mut trace = TraceOf::default();
    // A program of two ranks, then one of three. The trace announces the last rank of each first.
    for (number, world) in [(0u64, 2u32), (1, 3)] {
        let start = 1000 * number;
        let hellos = TraceOf::new(world).events;
        trace.events.extend(hellos.into_iter().rev());
        for rank in 0..world {
            let late = u64::from(rank);
            trace.call(rank, Function::Init, start, start + 100 + late, |_| {});
            for turn in 0..3 + number {
                let from = start + 110 + 20 * turn;
                trace.call(rank, Function::Barrier, from, from + 10 + late, |_| {});
            }
            trace.call(rank, Function::Finalize, start + 300, start + 310, |_| {});
        }
    }
    let take_section = |program, marks: &[(Function, u64)], section| {
        let marks = marks.to_vec();
        let mut builder = SequenceBuilder::new(SequenceOptions {
            program,
            marks,
            section,
        });
        trace.events.iter().for_each(|event| builder.add(event));
        builder.finish()
    };
    let take = |program, marks: &[(Function, u64)]| take_section(program, marks, false);
    let list = "0: p, 2 ranks, 10 MPI calls from 0.000000 s to 0.000000 s; 1: p, 3 ranks, 18 MPI calls from 0.000000 s to 0.000000 s";
    // Nothing is chosen for the user.
    let error = take(None, &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the trace has 2 MPI programs; choose one by --program N: {list}")
    );
    let second = take(Some(1), &[]).unwrap();
    assert_eq!(second.ranks.len(), 3);
    assert_eq!(
        second.notes,
        ["the trace has 2 MPI programs; this is number 1"],
        "{second:?}"
    );
    let marks = [(Function::Barrier, 1), (Function::Barrier, 3)];
    let first = take(Some(0), &marks).unwrap();
    assert_eq!(first.ranks.len(), 2);
    assert_eq!(first.marks, [Some((120, 121)), Some((160, 161))]);
    let actions: Vec<bool> = (first.ranks[0].entries.iter())
        .map(|entry| matches!(entry.op.action, Action::Mark(_)))
        .collect();
    assert_eq!(actions, [false, true, false, false, true, false]);
    // Only the part between the marks: the second barrier and the third, each after 10 units of work, less the delay of rank 1.
    let section = take_section(Some(0), &marks, true).unwrap();
    assert_eq!(section.marks, first.marks);
    for (rank, sequence) in (0..).zip(&section.ranks) {
        let work: Vec<u64> = sequence.entries.iter().map(|e| e.burst.time).collect();
        assert_eq!(work, [10 - rank, 10 - rank, 0]);
    }
    // A call that the ranks do not make marks nothing.
    let marks = [(Function::Barrier, 4)];
    assert_eq!(take(Some(0), &marks).unwrap().marks, [None]);
    let error = take(Some(2), &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("there is no program 2; the trace has these MPI programs: {list}")
    );
}

/// Returns the actions of a rank, without those that do nothing.
fn actions(sequences: &Sequences, rank: usize) -> Vec<Action> {
    let entries = sequences.ranks[rank].entries.iter();
    entries
        .map(|entry| entry.op.action.clone())
        .filter(|action| *action != Action::Nothing)
        .collect()
}

fn access(to: u32, out: u64, back: u64, request: Option<u32>) -> Action {
    Action::OneSided {
        to: PeerRef::Absolute(to),
        out,
        back,
        request,
    }
}

fn wait(requests: &[u32]) -> Action {
    Action::wait(requests)
}

fn all(kind: CollectiveKind) -> Action {
    Action::Collective(Box::new(Collective::of(kind)))
}

#[test]
fn epochs_wait_for_their_accesses() {
    const WINDOW: u64 = 77;
    let mut trace = TraceOf::new(2);
    for rank in 0..2u32 {
        let mut time = 0;
        let mut call = |function, with: &dyn Fn(&mut MpiRecord)| {
            time += 10;
            trace.call(rank, function, time, time + 5, |record| {
                record.object = WINDOW;
                with(record);
            });
        };
        let other = Peer::Rank(1 - rank);
        call(Function::Init, &|_| {});
        call(Function::WinCreate, &|_| {});
        call(Function::WinFence, &|_| {});
        call(Function::Put, &|record| {
            (record.destination, record.send_bytes) = (other, 100);
        });
        call(Function::Get, &|record| {
            (record.source, record.receive_bytes) = (other, 200);
        });
        call(Function::WinFence, &|_| {});
        match rank {
            0 => {
                call(Function::WinStart, &|record| {
                    record.destinations = vec![other];
                });
                call(Function::Accumulate, &|record| {
                    (record.destination, record.send_bytes) = (other, 8);
                });
                call(Function::WinComplete, &|_| {});
                call(Function::WinLock, &|record| record.destination = other);
                call(Function::FetchAndOp, &|record| {
                    (record.destination, record.source) = (other, other);
                    (record.send_bytes, record.receive_bytes) = (8, 8);
                });
                call(Function::Rput, &|record| {
                    (record.destination, record.send_bytes) = (other, 64);
                    record.request = 9;
                });
                call(Function::Wait, &|record| {
                    record.object = 0;
                    record.requests = vec![9];
                    record.completions = vec![done(9, 0, 0)];
                });
                call(Function::WinUnlock, &|record| record.destination = other);
            }
            _ => {
                call(Function::WinPost, &|record| record.sources = vec![other]);
                call(Function::WinWait, &|_| {});
            }
        }
        call(Function::WinFree, &|_| {});
        call(Function::Finalize, &|record| record.object = 0);
    }
    let sequences = trace.sequences();
    let begin = |to| {
        vec![
            all(CollectiveKind::Create),
            all(CollectiveKind::Barrier),
            access(to, 100, 0, Some(0)),
            access(to, 0, 200, Some(1)),
            wait(&[0, 1]),
            all(CollectiveKind::Barrier),
        ]
    };
    let tell = |to, tag| Action::Send {
        to: PeerRef::Absolute(to),
        tag,
        bytes: 0,
        mode: Mode::Buffered,
        request: None,
    };
    let hear = |from, tag| Action::Receive {
        from: Source::Peer(PeerRef::Absolute(from)),
        tag: Some(tag),
        room: 0,
        request: None,
    };
    let origin = [
        hear(1, 0),
        access(1, 8, 0, Some(0)),
        wait(&[0]),
        tell(1, 1),
        access(1, 0, 0, None),
        access(1, 8, 8, Some(0)),
        access(1, 64, 0, Some(1)),
        wait(&[1]),
        wait(&[0]),
        access(1, 0, 0, None),
        all(CollectiveKind::Barrier),
    ];
    assert_eq!(actions(&sequences, 0), [begin(1), origin.to_vec()].concat());
    let target = [tell(0, 0), hear(0, 1), all(CollectiveKind::Barrier)];
    assert_eq!(actions(&sequences, 1), [begin(0), target.to_vec()].concat());
    // A window has a communicator of its own, whose members are the world's.
    let op = &sequences.ranks[0].entries[0].op;
    assert_eq!(op.function, Function::WinCreate);
    let communicators = &sequences.ranks[0].communicators;
    let window = communicators[op.communicator as usize];
    assert_ne!(window, Some(0));
    assert_eq!(sequences.communicators[window.unwrap() as usize], []);
    // All operations of a fence belong to one call.
    let calls = sequences.ranks[0].entries.iter();
    assert_eq!(calls.filter(|entry| !entry.op.more).count(), 15);
    assert_eq!(sequences.notes, [""; 0]);
}

#[test]
fn neighbours_exchange_messages() {
    // A line of three ranks: no rank is beyond its ends.
    let mut trace = TraceOf::new(3);
    for rank in 0..3u32 {
        let near = [rank.checked_sub(1), (rank < 2).then_some(rank + 1)];
        let near: Vec<Peer> = near
            .map(|peer| peer.map_or(Peer::Null, Peer::Rank))
            .to_vec();
        let real = near.iter().filter(|peer| peer.rank().is_some()).count() as u64;
        let with = |record: &mut MpiRecord| {
            (record.sources, record.destinations) = (near.clone(), near.clone());
            (record.send_bytes, record.receive_bytes) = (real * 8, real * 8);
        };
        trace.call(rank, Function::Init, 0, 1, |_| {});
        trace.call(rank, Function::NeighborAlltoall, 10, 20, with);
        trace.call(rank, Function::NeighborAllgatherInit, 30, 31, |record| {
            with(record);
            (record.send_bytes, record.request) = (8, 1);
        });
        trace.call(rank, Function::Start, 40, 41, |record| {
            (record.requests, record.prepared) = (vec![2], vec![1]);
        });
        trace.call(rank, Function::Wait, 50, 60, |record| {
            record.requests = vec![2];
            record.completions = vec![done(2, 0, 0)];
        });
        trace.call(rank, Function::Finalize, 70, 71, |_| {});
    }
    let sequences = trace.sequences();
    let receive = |from, request| Action::Receive {
        from: Source::Peer(PeerRef::Absolute(from)),
        tag: Some(0),
        room: 8,
        request: Some(request),
    };
    let send = |to, request| Action::Send {
        to: PeerRef::Absolute(to),
        tag: 0,
        bytes: 8,
        mode: Mode::Standard,
        request: Some(request),
    };
    let end = [receive(1, 0), send(1, 1), wait(&[0, 1])];
    assert_eq!(actions(&sequences, 0), [&end[..], &end].concat());
    let middle = [
        receive(0, 0),
        receive(2, 1),
        send(0, 2),
        send(2, 3),
        wait(&[0, 1, 2, 3]),
    ];
    assert_eq!(actions(&sequences, 1), [&middle[..], &middle].concat());
    let number = |at: usize| sequences.ranks[0].entries[at].op.communicator;
    assert_eq!(number(0), number(1));
    assert_ne!(
        sequences.ranks[0].communicators[number(0) as usize],
        Some(0)
    );
}

#[test]
fn persistent_collectives_begin_where_they_are_started() {
    let mut trace = TraceOf::new(2);
    for rank in 0..2u32 {
        trace.call(rank, Function::Init, 0, 1, |_| {});
        trace.call(rank, Function::BcastInit, 10, 11, |record| {
            record.request = 1;
            record.root = Peer::Rank(1);
            match rank {
                1 => record.send_bytes = 64,
                _ => record.receive_bytes = 64,
            }
        });
        for turn in 0..2 {
            let at = 20 + 20 * turn;
            trace.call(rank, Function::Start, at, at + 1, |record| {
                (record.requests, record.prepared) = (vec![2 + turn], vec![1]);
            });
            trace.call(rank, Function::Wait, at + 5, at + 9, |record| {
                record.requests = vec![2 + turn];
                record.completions = vec![done(2 + turn, 0, 0)];
            });
        }
        trace.call(rank, Function::Finalize, 70, 71, |_| {});
    }
    let sequences = trace.sequences();
    let begin = Action::Collective(Box::new(Collective {
        root: 1,
        bytes: 64,
        request: Some(0),
        ..Collective::of(CollectiveKind::Bcast)
    }));
    for rank in 0..2 {
        assert_eq!(
            actions(&sequences, rank),
            [begin.clone(), wait(&[0]), begin.clone(), wait(&[0])]
        );
    }
    assert_eq!(sequences.ranks[0].entries[1].op.function, Function::Start);
}
