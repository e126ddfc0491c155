//! Tests of pending calls at the end of a trace: which calls are a deadlock, and the text of the report.

mod calls;

use calls::{READY, Trace, as_function, got, receive, record, send, thread, wait};
use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Completion, Function, Peer, Tag};
use nodescope_trace::pending::{Fault, Waits};
use nodescope_trace::{Body, Stamp, Unfinished};

#[test]
fn two_receives_first_are_a_deadlock() {
    let mut trace = Trace::new(2);
    trace.unfinished(receive(0, Peer::Rank(1), Tag::Value(7)));
    trace.unfinished(receive(1, Peer::Rank(0), Tag::Any));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    assert_eq!(
        trace.pending().lines(),
        [
            "deadlock since 0.000000 s: 2 ranks can never go on",
            "  in a cycle:",
            "    rank 0 in MPI_Recv(from 1, tag 7, MPI_COMM_WORLD) at program+0x20 waits for rank 1",
            "    rank 1 in MPI_Recv(from 0, any tag, MPI_COMM_WORLD) at program+0x20 waits for rank 0",
        ]
    );
}

#[test]
fn a_message_that_is_under_way_is_no_deadlock() {
    let mut trace = Trace::new(2);
    trace.call(send(1, 0, 7, 8));
    trace.unfinished(receive(0, Peer::Rank(1), Tag::Value(7)));
    trace.unfinished(receive(1, Peer::Rank(0), Tag::Value(7)));
    assert_eq!(trace.deadlock(), None);
    assert_eq!(trace.pending().calls[0].waits, Waits::Ready);
    // A message of another tag does not match, and a message that was received before its send was reported is gone.
    let mut trace = Trace::new(2);
    trace.call(got(receive(0, Peer::Any, Tag::Any), 1, 7));
    trace.call(send(1, 0, 7, 8)).call(send(1, 0, 8, 8));
    trace.unfinished(receive(0, Peer::Rank(1), Tag::Value(7)));
    trace.unfinished(receive(1, Peer::Rank(0), Tag::Value(7)));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
}

#[test]
fn long_sends_in_a_circle_are_a_deadlock_unless_one_is_received() {
    let mut trace = Trace::new(3);
    for rank in 0..3 {
        trace.unfinished(send(rank, (rank + 1) % 3, 0, 1 << 20));
    }
    assert_eq!(trace.deadlock(), Some((vec![0, 1, 2], vec![0, 1, 2])));
    let mut trace = Trace::new(3);
    let posted = as_function(receive(1, Peer::Any, Tag::Any), Function::Irecv);
    trace.start(posted);
    for rank in 0..3 {
        trace.unfinished(send(rank, (rank + 1) % 3, 0, 1 << 20));
    }
    assert_eq!(trace.deadlock(), None);
}

#[test]
fn a_collective_waits_for_those_who_have_not_come() {
    let mut trace = Trace::new(3);
    trace.call(record(0, Function::Barrier, 1));
    trace.call(record(1, Function::Barrier, 1));
    trace.call(record(2, Function::Barrier, 1));
    trace.unfinished(record(0, Function::Barrier, 2));
    trace.unfinished(receive(1, Peer::Rank(0), Tag::Value(1)));
    // Rank 2 computes and can still enter the barrier, but rank 1 cannot.
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    let pending = trace.pending();
    let Waits::Waiting { ranks, all, .. } = &pending.calls[0].waits else {
        panic!("{pending:?}");
    };
    assert_eq!((ranks.as_slice(), all), (&[1, 2][..], &true));
    // The root has left the broadcast. Rank 1 can leave the broadcast, too, although rank 2 has not entered it.
    let mut trace = Trace::new(3);
    for rank in [0, 1] {
        let mut bcast = record(rank, Function::Bcast, 3);
        bcast.root = Peer::Rank(0);
        match rank {
            0 => trace.call(bcast),
            _ => trace.unfinished(bcast),
        };
    }
    assert_eq!(trace.deadlock(), None);
}

#[test]
fn waits_name_what_they_wait_for() {
    let mut trace = Trace::new(2);
    let posted = as_function(receive(0, Peer::Rank(1), Tag::Value(3)), Function::Irecv);
    let first = trace.start(posted.clone());
    let sent = trace.start(as_function(send(0, 1, 4, 8), Function::Isend));
    trace.unfinished(wait(0, Function::Waitall, &[sent, first, 0]));
    // The short send may be over, so that only the receive counts, and rank 1 can continue.
    assert_eq!(trace.deadlock(), None);
    trace.call(record(1, Function::Finalize, 0));
    assert_eq!(trace.deadlock(), Some((vec![0], vec![])));
    assert_eq!(
        trace.pending().lines(),
        [
            "deadlock since 0.000000 s: rank 0 can never go on",
            "    rank 0 in MPI_Waitall(3 requests) at program+0x30 waits for rank 1, which has ended: MPI_Irecv(from 1, tag 3, MPI_COMM_WORLD) at program+0x20",
            "1 message is never received: tag 4, 8 B, from rank 0 to rank 1, sent by MPI_Isend at program+0x10",
        ]
    );
    // MPI_Waitany needs only one of several operations.
    let mut trace = Trace::new(3);
    let first = trace.start(posted.clone());
    let second = trace.start(as_function(
        receive(0, Peer::Rank(2), Tag::Any),
        Function::Irecv,
    ));
    trace.unfinished(wait(0, Function::Waitany, &[first, second]));
    trace.unfinished(receive(1, Peer::Rank(0), Tag::Any));
    assert_eq!(trace.deadlock(), None);
    trace.unfinished(receive(2, Peer::Any, Tag::Any));
    assert_eq!(trace.deadlock(), Some((vec![0, 1, 2], vec![0, 1])));
    // No call waits for a completed operation.
    let mut trace = Trace::new(2);
    let first = trace.start(posted);
    let mut done = wait(0, Function::Wait, &[first]);
    done.completions.push(Completion {
        request: first,
        source: Peer::Rank(1),
        tag: Tag::Value(3),
        ..Completion::default()
    });
    trace.call(done).call(send(1, 0, 3, 8));
    trace.unfinished(receive(0, Peer::Rank(1), Tag::Value(3)));
    trace.unfinished(receive(1, Peer::Rank(0), Tag::Any));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
}

#[test]
fn a_wait_for_what_is_cancelled_ends() {
    let posted = as_function(receive(0, Peer::Rank(1), Tag::Any), Function::Irecv);
    let mut trace = Trace::new(2);
    let serial = trace.start(posted.clone());
    trace.call(wait(0, Function::Cancel, &[serial]));
    trace.unfinished(wait(0, Function::Wait, &[serial]));
    trace.unfinished(receive(1, Peer::Rank(0), Tag::Any));
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, READY));
    // A second receive of the same kind is not cancelled.
    let mut trace = Trace::new(2);
    let serials = [trace.start(posted.clone()), trace.start(posted)];
    trace.call(wait(0, Function::Cancel, &serials[..1]));
    trace.unfinished(wait(0, Function::Waitall, &serials));
    trace.unfinished(receive(1, Peer::Rank(0), Tag::Any));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
}

#[test]
fn persistent_operations_are_under_way_from_their_start() {
    let mut trace = Trace::new(2);
    let mut prepare = as_function(receive(0, Peer::Rank(1), Tag::Value(3)), Function::RecvInit);
    prepare.request = 50;
    trace.call(prepare);
    let mut start = wait(0, Function::Start, &[51]);
    start.prepared = vec![50];
    trace.call(start);
    trace.unfinished(wait(0, Function::Wait, &[51]));
    trace.unfinished(receive(1, Peer::Rank(0), Tag::Any));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
}

#[test]
fn who_may_still_go_on_makes_no_deadlock() {
    // A rank that polls, a rank whose arguments are not known, and a rank that has another thread.
    let mut polls = as_function(receive(1, Peer::Rank(0), Tag::Any), Function::Iprobe);
    (polls.flags, polls.calls) = (Flags::POLL_RUN, 12);
    let mut trace = Trace::new(2);
    trace
        .unfinished(receive(0, Peer::Rank(1), Tag::Any))
        .unfinished(polls);
    assert_eq!(trace.deadlock(), None);
    let lines = trace.pending().lines();
    assert!(
        lines[2].ends_with("at program+0x20 has polled 12 times in vain"),
        "{lines:?}"
    );

    let mut trace = Trace::new(2);
    trace.unfinished(receive(0, Peer::Rank(1), Tag::Any));
    trace.push(Body::Unfinished(Box::new(Unfinished {
        function: Function::Recv,
        rank: Peer::Rank(1),
        thread: thread(1),
        sequence: 0,
        entry: Stamp::default(),
        record: None,
    })));
    assert_eq!(trace.deadlock(), None);

    let mut trace = Trace::new(2);
    let mut other = record(1, Function::Barrier, 9);
    other.communicator = 2;
    other.thread.tid += 1;
    trace.call(other);
    trace.unfinished(receive(0, Peer::Rank(1), Tag::Any));
    trace.unfinished(receive(1, Peer::Rank(0), Tag::Any));
    assert_eq!(trace.deadlock(), None);
}

#[test]
fn jobs_of_one_trace_are_told_apart() {
    let mut trace = Trace::new(2);
    trace.call(send(0, 1, 1, 8));
    for rank in 0..2 {
        trace.call(record(rank, Function::Finalize, 0));
    }
    let mut second = Trace::new(2);
    for event in &mut second.events {
        if let Body::Process(hello) = &mut event.body {
            hello.pid += 100;
        }
    }
    trace.events.append(&mut second.events);
    for rank in 0..2 {
        let mut stands = receive(rank, Peer::Rank(1 - rank), Tag::Value(1));
        stands.thread = thread(100 + rank);
        trace.unfinished(stands);
    }
    let pending = trace.pending();
    assert_eq!(pending.deadlocks[0].job, 1);
    assert!(
        matches!(
            pending.faults.as_slice(),
            [Fault::Unreceived {
                job: 0,
                from: 0,
                to: 1,
                tag: 1,
                count: 1,
                ..
            }]
        ),
        "{pending:?}"
    );
}

#[test]
fn different_collectives_are_told_once() {
    let mut trace = Trace::new(2);
    for function in [Function::Barrier, Function::Allreduce] {
        trace.call(record(0, function, 5));
    }
    for function in [Function::Barrier, Function::Reduce] {
        trace.call(record(1, function, 6));
    }
    let pending = trace.pending();
    assert_eq!(
        pending.lines(),
        [
            "collectives differ on MPI_COMM_WORLD: rank 0 calls MPI_Allreduce at program+0x5, rank 1 calls MPI_Reduce at program+0x6"
        ]
    );
    // Broadcasts with different roots are different operations.
    let mut trace = Trace::new(2);
    for rank in 0..2 {
        let mut bcast = record(rank, Function::Bcast, 5);
        bcast.root = Peer::Rank(rank);
        trace.unfinished(bcast);
    }
    assert!(
        matches!(
            trace.pending().faults.as_slice(),
            [Fault::Mismatch {
                rank: 1,
                other: 0,
                ..
            }]
        ),
        "{:?}",
        trace.pending()
    );
}

#[test]
fn receives_that_are_too_short_are_told() {
    // An error that the program handles, and a call that never returned because the MPI library ended the program inside it.
    let mut trace = Trace::new(2);
    trace.call(send(0, 1, 7, 100));
    let mut failed = receive(1, Peer::Rank(0), Tag::Value(7));
    failed.result = 15;
    trace.call(failed);
    trace.call(record(1, Function::Finalize, 0));
    let lines = trace.pending().lines();
    assert_eq!(
        lines,
        [
            "a message is longer than its receive: 100 B with tag 7 from rank 0, sent by MPI_Send at program+0x10, meet room for 64 B on rank 1 in MPI_Recv at program+0x20",
            "rank 1: MPI_Recv at program+0x20 returned error 15",
        ]
    );
    let mut trace = Trace::new(2);
    trace.call(send(0, 1, 7, 100));
    trace.unfinished(receive(1, Peer::Rank(0), Tag::Value(7)));
    assert!(
        matches!(
            trace.pending().faults.as_slice(),
            [Fault::Truncated {
                bytes: 100,
                room: 64,
                ..
            }]
        ),
        "{:?}",
        trace.pending()
    );
}

proptest::proptest! {
    /// Checks that arbitrary traces give a report without a panic, with at least one line for each pending call: traces come from guests,
    /// and may contain anything.
    #[test]
    fn whatever_ranks_say_is_judged(
        calls in proptest::collection::vec(
            (0..3u32, 0..Function::ALL.len(), 0..4u32, 0..4u64, 0..3u64, 0..5u64, 0..64u16, proptest::bool::ANY),
            0..40,
        ),
    ) {
        let mut trace = Trace::new(3);
        for (rank, function, peer, communicator, object, serial, flags, stands) in calls {
            let mut call = record(rank, Function::ALL[function], 1);
            let peer = [Peer::Any, Peer::Null, Peer::Rank(peer), Peer::Rank(u32::MAX)][peer as usize];
            call.flags = Flags(flags);
            (call.communicator, call.object, call.request) = (communicator, object, serial);
            (call.new_communicator, call.members) = (serial, vec![peer, Peer::Rank(0)]);
            (call.destination, call.source, call.root) = (peer, peer, peer);
            (call.send_tag, call.receive_tag) = (Tag::Value(0), Tag::Any);
            (call.destinations, call.sources) = (vec![peer; 2], vec![Peer::Rank(1), peer]);
            (call.requests, call.prepared) = (vec![serial, 1, 0], vec![2, serial]);
            (call.send_bytes, call.receive_bytes) = (u64::MAX, u64::MAX);
            call.result = i32::from(serial == 4);
            call.completions.push(Completion {
                request: serial,
                source: peer,
                tag: Tag::Value(0),
                ..Completion::default()
            });
            match stands {
                true => trace.unfinished(call),
                false => trace.call(call),
            };
        }
        let pending = trace.pending();
        proptest::prop_assert!(pending.lines().len() >= pending.calls.len());
    }
}

#[test]
fn a_world_that_cannot_be_is_not_gone_through() {
    let mut trace = Trace::new(0);
    for rank in 0..2 {
        trace.push(nodescope_trace::Body::Process(nodescope_hypercall::Hello {
            kind: nodescope_hypercall::ProcessKind::MpiRank,
            rank: Peer::Rank(rank),
            world_size: u32::MAX,
            pid: 100 + rank,
            flavour: nodescope_hypercall::Flavour::OpenMpi,
            host: "n0".into(),
            program: "p".into(),
        }));
    }
    trace.unfinished(record(0, Function::Barrier, 1));
    trace.unfinished(record(1, Function::Finalize, 1));
    // Four billion members would take minutes and more memory than there is.
    assert_eq!((trace.needs(0), trace.needs(1)), (None, None));
    assert_eq!(trace.deadlock(), None);
}

#[test]
fn calls_beyond_any_real_number_are_told_and_not_all_judged() {
    const RANKS: u32 = 20_000;
    let mut trace = Trace::new(RANKS);
    for rank in 0..RANKS {
        trace.unfinished(record(rank, Function::Barrier, 1));
    }
    trace.unfinished(receive(0, Peer::Any, Tag::Any));
    let pending = trace.pending();
    assert_eq!(pending.calls.len(), RANKS as usize + 1);
    assert_eq!(pending.deadlocks, []);
    assert_eq!(pending.lines().len(), RANKS as usize + 2);
}
