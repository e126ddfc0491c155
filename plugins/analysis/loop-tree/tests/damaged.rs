//! Numbers that no program has, as a damaged or made-up trace may state them, are errors and not panics.

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Completion, Function, MpiRecord, Peer, Tag, ThreadId};
use nodescope_loop_tree::{SequenceError, Sequences};
use nodescope_trace::{Body, Event, MpiCall, Stamp};

/// Makes the sequences of a trace of two ranks, of which the second makes one changed call.
fn modelled(function: Function, change: impl Fn(&mut MpiCall)) -> Result<Sequences, SequenceError> {
    let thread = ThreadId { pid: 1, tid: 1 };
    let calls = [(0, Function::Barrier), (1, function)].map(|(rank, function)| {
        let mut record = MpiRecord::new(function, thread, Peer::Rank(rank), 0);
        record.communicator = communicator::WORLD;
        record.communicator_size = 2;
        let mut call = MpiCall {
            record,
            entry: Stamp::default(),
            exit: Stamp::default(),
            time_inside: 0,
            instructions_inside: 0,
            entry_seen: true,
        };
        if rank == 1 {
            change(&mut call);
        }
        call
    });
    let events = calls.map(|call| Event {
        node: 0,
        sequence: 0,
        stamp: call.exit,
        body: Body::Mpi(Box::new(call)),
    });
    Sequences::from_events(&events)
}

#[test]
fn ranks_beyond_the_world_are_refused() {
    let outside = |function| {
        Err(SequenceError::PeerOutside {
            rank: 1,
            function,
            peer: 2,
            world: 2,
        })
    };
    let beyond = Peer::Rank(2);
    let change = |call: &mut MpiCall| call.record.source = beyond;
    assert_eq!(modelled(Function::Recv, change), outside(Function::Recv));
    let change = |call: &mut MpiCall| call.record.destination = beyond;
    assert_eq!(modelled(Function::Send, change), outside(Function::Send));
    let change = |call: &mut MpiCall| call.record.root = beyond;
    assert_eq!(modelled(Function::Bcast, change), outside(Function::Bcast));
    let change = |call: &mut MpiCall| call.record.sources = vec![beyond];
    let function = Function::NeighborAlltoall;
    assert_eq!(modelled(function, change), outside(function));
    let change = |call: &mut MpiCall| {
        call.record.source = Peer::Any;
        let done = Completion {
            source: beyond,
            ..Completion::default()
        };
        call.record.completions = vec![done];
    };
    assert_eq!(modelled(Function::Recv, change), outside(Function::Recv));
    // A call that failed has sent nothing.
    let change = |call: &mut MpiCall| {
        (call.record.destination, call.record.result) = (beyond, 6);
    };
    assert!(modelled(Function::Send, change).is_ok());
}

#[test]
fn times_sizes_and_tags_have_bounds() {
    let late = |call: &mut MpiCall| call.exit.time = u64::MAX;
    let error = modelled(Function::Send, late).unwrap_err();
    assert!(
        matches!(error, SequenceError::TooLate { rank: 1, .. }),
        "{error}"
    );
    let long = |call: &mut MpiCall| call.time_inside = u64::MAX;
    let error = modelled(Function::Send, long).unwrap_err();
    assert!(
        matches!(error, SequenceError::TooLate { rank: 1, .. }),
        "{error}"
    );
    let large = |call: &mut MpiCall| call.record.send_bytes = u64::MAX;
    let error = modelled(Function::Send, large).unwrap_err();
    assert!(matches!(error, SequenceError::TooLarge { .. }), "{error}");
    let together = |call: &mut MpiCall| call.record.send_bytes_to = vec![1 << 63; 2];
    let error = modelled(Function::Alltoallv, together).unwrap_err();
    assert!(matches!(error, SequenceError::TooLarge { .. }), "{error}");
    let tag = |call: &mut MpiCall| call.record.send_tag = Tag::Value(u32::MAX);
    let error = modelled(Function::Send, tag).unwrap_err();
    assert!(
        matches!(error, SequenceError::BadTag { tag: u32::MAX, .. }),
        "{error}"
    );
}

#[test]
fn calls_that_overlap_make_no_burst_longer_than_a_trace() {
    let thread = ThreadId { pid: 1, tid: 1 };
    let stamp = |time| Stamp {
        time,
        ..Stamp::default()
    };
    // Each call but the first begins at the latest allowed time and ends at time 0. Every second call is a run of polls.
    let events: Vec<Event> = (0..20)
        .map(|sequence| Event {
            node: 0,
            sequence,
            stamp: stamp(0),
            body: Body::Mpi(Box::new(MpiCall {
                record: {
                    let mut record = MpiRecord::new(Function::Test, thread, Peer::Rank(0), 0);
                    if sequence % 2 == 1 {
                        record.flags = nodescope_hypercall::record::Flags::POLL_RUN;
                    }
                    record.calls = u64::MAX;
                    record
                },
                entry: stamp(if sequence == 0 { 0 } else { (1 << 61) - 1 }),
                exit: stamp(0),
                time_inside: 0,
                instructions_inside: 0,
                entry_seen: true,
            })),
        })
        .collect();
    let sequences = Sequences::from_events(&events).unwrap();
    let bursts = sequences.ranks[0]
        .entries
        .iter()
        .map(|entry| entry.burst.time);
    assert!(bursts.max().unwrap() <= 1 << 61);
}

#[test]
fn windows_without_number_are_refused() {
    const RANKS: u32 = 3000;
    let event = |rank: u32, object: u64| {
        let thread = ThreadId { pid: 1, tid: 1 };
        let mut record = MpiRecord::new(Function::WinFence, thread, Peer::Rank(rank), 0);
        record.communicator = communicator::WORLD;
        (record.communicator_size, record.object) = (RANKS, object);
        let call = MpiCall {
            record,
            entry: Stamp::default(),
            exit: Stamp::default(),
            time_inside: 0,
            instructions_inside: 0,
            entry_seen: true,
        };
        Event {
            node: 0,
            sequence: 0,
            stamp: Stamp::default(),
            body: Body::Mpi(Box::new(call)),
        }
    };
    let ranks = (0..RANKS).map(|rank| event(rank, 1));
    let windows = (2..12_000).map(|object| event(0, object));
    let events: Vec<Event> = ranks.chain(windows).collect();
    let error = Sequences::from_events(&events).unwrap_err();
    assert!(
        matches!(error, SequenceError::TooManyMembers { .. }),
        "{error}"
    );
    assert!(Sequences::from_events(&events[..RANKS as usize + 100]).is_ok());
}
