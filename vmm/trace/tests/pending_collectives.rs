//! Tests of pending collective calls on communicators, windows and files, with persistent and neighbourhood collectives.

mod calls;

use calls::{READY, Trace, receive, record, send, wait};
use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Completion, Function, MpiRecord, Peer, Tag};
use nodescope_trace::pending::{Fault, Waits};

const WINDOW: u64 = 1 << 63 | 0xa;
const FILE: u64 = 1 << 63 | 0xb;
/// A communicator of all ranks but 0.
const PART: u64 = 1 << 63 | 0xc;

/// Returns the call that makes a window or opens a file.
fn makes(rank: u32, function: Function, object: u64) -> MpiRecord {
    let mut makes = record(rank, function, 0x40);
    makes.object = object;
    if function == Function::FileOpen {
        makes.name = "data".into();
    }
    makes
}

fn on_object(rank: u32, function: Function, object: u64) -> MpiRecord {
    let mut on = record(rank, function, 0x50);
    on.object = object;
    on
}

fn barrier(rank: u32) -> MpiRecord {
    record(rank, Function::Barrier, 0x60)
}

/// Returns a receive from rank 0, which sends only after its pending call.
fn waits_for_0(rank: u32) -> MpiRecord {
    receive(rank, Peer::Rank(0), Tag::Value(1))
}

/// Checks the needs of rank 0 in a collective call of three ranks. `all` is true if the call waits for all members, and false if one of
/// them may be enough.
fn is_together(prepare: impl Fn() -> Trace, call: impl Fn(u32) -> MpiRecord, all: bool) {
    let function = call(0).function;
    // Rank 1 computes. If one more member is enough, rank 0 may continue, and then rank 2.
    let mut trace = prepare();
    trace.unfinished(call(0)).unfinished(waits_for_0(2));
    let stuck = all.then(|| (vec![0, 2], vec![0, 2]));
    assert_eq!(trace.deadlock(), stuck, "{function}");
    assert_eq!(trace.needs(0), Some((vec![1, 2], all)), "{function}");
    // Now no other rank can enter the call.
    trace.unfinished(waits_for_0(1));
    let stuck = Some((vec![0, 1, 2], vec![0, 1]));
    assert_eq!(trace.deadlock(), stuck, "{function}");
    // All have entered, and one has left already.
    let mut trace = prepare();
    trace.unfinished(call(0)).unfinished(call(1)).call(call(2));
    trace.unfinished(waits_for_0(2));
    assert_eq!(trace.deadlock(), None, "{function}");
    assert_eq!(trace.needs(0), READY, "{function}");
}

/// Returns the trace of three ranks that have prepared two persistent operations: a broadcast of rank 0, with serial 50, and a sum, with
/// serial 60.
fn prepared() -> Trace {
    let mut trace = Trace::new(3);
    for rank in 0..3 {
        let mut bcast = record(rank, Function::BcastInit, 0x70);
        (bcast.root, bcast.request) = (Peer::Rank(0), 50);
        let mut sum = record(rank, Function::AllreduceInit, 0x71);
        sum.request = 60;
        trace.call(bcast).call(sum);
    }
    trace
}

/// Returns a call that starts prepared operations. The serial of each start is that of the preparation plus one.
fn start(rank: u32, prepared: &[u64]) -> MpiRecord {
    let serials: Vec<u64> = prepared.iter().map(|serial| serial + 1).collect();
    let mut start = wait(rank, Function::Startall, &serials);
    start.prepared = prepared.to_vec();
    start
}

fn waited(rank: u32, serial: u64) -> MpiRecord {
    let mut waited = wait(rank, Function::Wait, &[serial]);
    waited.completions.push(Completion {
        request: serial,
        ..Completion::default()
    });
    waited
}

#[test]
fn persistent_collectives_wait_for_who_has_not_started() {
    let mut trace = prepared();
    trace.call(start(0, &[60])).call(start(1, &[60]));
    trace.unfinished(wait(0, Function::Wait, &[61]));
    trace.unfinished(wait(1, Function::Wait, &[61]));
    // Rank 2 has prepared the operation, but has not started it.
    trace.unfinished(waits_for_0(2));
    assert_eq!(trace.needs(0), Some((vec![2], true)));
    assert_eq!(trace.deadlock(), Some((vec![0, 1, 2], vec![0, 2])));
    assert_eq!(
        trace.pending().lines()[2],
        "    rank 0 in MPI_Wait(1 request) at program+0x30 waits for rank 2: MPI_Allreduce_init at program+0x71"
    );
    trace.call(start(2, &[60]));
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, READY));
}

#[test]
fn persistent_collectives_are_started_in_any_order() {
    // Operations prepared in one order may be started in another.
    let mut trace = prepared();
    trace.call(start(0, &[50, 60])).call(start(1, &[60, 50]));
    trace.call(start(2, &[60]));
    for rank in [0, 1] {
        trace.unfinished(wait(rank, Function::Wait, &[61]));
    }
    assert_eq!((trace.needs(0), trace.needs(1)), (READY, READY));
    assert!(trace.pending().faults.is_empty());
    // Each start is an operation of its own.
    let mut trace = prepared();
    for rank in 0..3 {
        trace.call(start(rank, &[60])).call(waited(rank, 61));
    }
    let mut again = start(0, &[60]);
    again.requests = vec![70];
    trace.call(again).unfinished(wait(0, Function::Wait, &[70]));
    trace.unfinished(waits_for_0(1)).unfinished(waits_for_0(2));
    assert_eq!(trace.needs(0), Some((vec![1, 2], true)));
    assert_eq!(trace.deadlock(), Some((vec![0, 1, 2], vec![0, 1])));
    // Other ranks wait for the root of a broadcast, not the root for them.
    let mut trace = prepared();
    trace.call(start(0, &[50])).call(start(1, &[50]));
    trace.unfinished(wait(0, Function::Wait, &[51]));
    trace.unfinished(wait(1, Function::Wait, &[51]));
    trace.unfinished(waits_for_0(2));
    assert_eq!(trace.needs(1), Some((vec![2], true)));
    let mut trace = prepared();
    trace.call(start(1, &[50]));
    trace.unfinished(wait(1, Function::Wait, &[51]));
    trace.unfinished(receive(0, Peer::Rank(1), Tag::Any));
    assert_eq!(trace.needs(1), Some((vec![0], true)));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
}

#[test]
fn starts_that_are_not_told_make_nothing_sure() {
    for dropped in [true, false] {
        let mut trace = prepared();
        let mut lost = start(2, &[]);
        if dropped {
            lost.flags = Flags::TAIL_DROPPED;
        }
        trace.call(start(0, &[60])).call(start(1, &[60])).call(lost);
        trace.unfinished(wait(0, Function::Wait, &[61]));
        trace.unfinished(waits_for_0(2));
        assert_eq!(trace.deadlock().is_none(), dropped);
        assert_eq!(trace.needs(0).is_none(), dropped);
    }
}

#[test]
fn preparations_that_differ_are_told() {
    let mut trace = Trace::new(2);
    trace.call(record(0, Function::BarrierInit, 1));
    trace.call(record(1, Function::Barrier, 2));
    assert_eq!(
        trace.pending().lines(),
        [
            "collectives differ on MPI_COMM_WORLD: rank 0 calls MPI_Barrier_init at program+0x1, rank 1 calls MPI_Barrier at program+0x2"
        ]
    );
    // A preparation may wait for other ranks, but perhaps not for all of them.
    let prepare = |rank| record(rank, Function::AllreduceInit, 1);
    is_together(|| Trace::new(3), prepare, false);
}

#[test]
fn a_wait_for_several_knows_what_may_be_over() {
    // The root may have left the broadcast. Then rank 0 waits only for rank 2 to receive the long message, and rank 2 can continue.
    let mut trace = Trace::new(3);
    let mut bcast = record(0, Function::Ibcast, 1);
    bcast.root = Peer::Rank(0);
    let bcast = trace.start(bcast);
    let mut long = send(0, 2, 4, 1 << 20);
    long.function = Function::Isend;
    let long = trace.start(long);
    trace.unfinished(wait(0, Function::Waitall, &[bcast, long]));
    trace.unfinished(waits_for_0(1));
    assert_eq!(trace.needs(0), Some((vec![1, 2], false)));
    assert_eq!(trace.deadlock(), None);
    // Rank 0 may wait only for the read, which is not followed.
    let mut trace = Trace::new(2);
    let mut long = send(0, 1, 4, 1 << 20);
    long.function = Function::Isend;
    let long = trace.start(long);
    let read = trace.start(on_object(0, Function::FileIread, FILE));
    trace.unfinished(wait(0, Function::Waitall, &[long, read]));
    trace.unfinished(waits_for_0(1));
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, None));
    // For MPI_Waitany, the operation that is not followed may be the one that ends.
    let mut trace = Trace::new(2);
    let mut posted = receive(0, Peer::Rank(1), Tag::Any);
    posted.function = Function::Irecv;
    let posted = trace.start(posted);
    let read = trace.start(on_object(0, Function::FileIread, FILE));
    trace.unfinished(wait(0, Function::Waitany, &[posted, read]));
    trace.unfinished(waits_for_0(1));
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, None));
}

/// Returns a neighbourhood collective of a rank that sends to the next and receives from the one before, in a ring of four.
fn around(rank: u32, function: Function) -> MpiRecord {
    let mut around = record(rank, function, 0x80);
    around.destinations = vec![Peer::Rank((rank + 1) % 4), Peer::Null];
    around.sources = vec![Peer::Rank((rank + 3) % 4), Peer::Null];
    (around.send_bytes, around.receive_bytes) = (8, 8);
    around
}

#[test]
fn neighbours_wait_for_their_sources_alone() {
    let function = Function::NeighborAlltoall;
    let mut trace = Trace::new(4);
    trace.unfinished(around(1, function));
    trace.unfinished(receive(0, Peer::Rank(1), Tag::Any));
    assert_eq!(trace.needs(1), Some((vec![0], true)));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    // Rank 1's source has entered, and its destination has not. The data may be buffered or not, but no other rank matters.
    let mut trace = Trace::new(4);
    trace
        .call(around(0, function))
        .unfinished(around(1, function));
    trace.unfinished(receive(3, Peer::Rank(1), Tag::Any));
    assert_eq!(trace.needs(1), Some((vec![2], true)));
    assert_eq!(trace.deadlock(), None);
    trace.call(around(2, function));
    assert_eq!((trace.deadlock(), trace.needs(1)), (None, READY));
    // A rank that is a source twice is needed once.
    let mut trace = Trace::new(2);
    let mut both = record(0, function, 0x80);
    both.sources = vec![Peer::Rank(1), Peer::Rank(1)];
    both.receive_bytes = 16;
    trace.unfinished(both).unfinished(waits_for_0(1));
    assert_eq!(trace.needs(0), Some((vec![1], true)));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    // A neighbour that exchanges no data with the caller need not enter.
    let mut none = around(1, Function::NeighborAlltoallv);
    (none.send_bytes_to, none.receive_bytes_from) = (vec![0, 0], vec![0, 0]);
    (none.send_bytes, none.receive_bytes) = (0, 0);
    let mut trace = Trace::new(4);
    trace
        .unfinished(none)
        .unfinished(receive(0, Peer::Rank(1), Tag::Any));
    assert_eq!((trace.deadlock(), trace.needs(1)), (None, READY));
}

#[test]
fn neighbours_are_waited_for_by_requests() {
    // Ranks 0 to 2 of the ring have started a non-blocking collective; rank 3 has not.
    let function = Function::IneighborAllgather;
    let mut trace = Trace::new(4);
    for rank in 0..4 {
        if rank != 3 {
            let serial = trace.start(around(rank, function));
            trace.unfinished(wait(rank, Function::Wait, &[serial]));
        }
    }
    trace.unfinished(receive(3, Peer::Rank(2), Tag::Any));
    // Ranks 1 and 2 have their sources' data. Rank 2 may still wait for rank 3 to take the data of rank 2.
    assert_eq!(trace.needs(1), READY);
    assert_eq!(trace.needs(2), Some((vec![3], true)));
    assert_eq!(trace.deadlock(), Some((vec![0, 2, 3], vec![3, 2])));
    // Persistent collectives count from their start.
    let mut trace = Trace::new(4);
    for rank in 0..4 {
        let mut prepare = around(rank, Function::NeighborAllgatherInit);
        prepare.request = 50;
        trace.call(prepare);
    }
    trace.call(start(1, &[50]));
    trace.unfinished(wait(1, Function::Wait, &[51]));
    trace.unfinished(receive(0, Peer::Rank(1), Tag::Any));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    trace.call(start(0, &[50])).call(start(2, &[50]));
    assert_eq!((trace.deadlock(), trace.needs(1)), (None, READY));
}

#[test]
fn windows_are_made_by_all() {
    for function in [
        Function::WinCreate,
        Function::WinAllocate,
        Function::WinAllocateShared,
        Function::WinCreateDynamic,
    ] {
        is_together(|| Trace::new(3), |rank| makes(rank, function, 0), true);
    }
    let mut trace = Trace::new(2);
    trace.unfinished(makes(0, Function::WinCreate, 0));
    trace.unfinished(makes(1, Function::WinAllocate, 0));
    assert!(
        matches!(trace.pending().faults.as_slice(), [Fault::Mismatch { .. }]),
        "{:?}",
        trace.pending()
    );
}

#[test]
fn files_are_handled_by_all() {
    let open = |rank| makes(rank, Function::FileOpen, FILE);
    let opened = || {
        let mut trace = Trace::new(3);
        trace.all(0..3, open);
        trace
    };
    is_together(
        || Trace::new(3),
        |rank| makes(rank, Function::FileOpen, 0),
        false,
    );
    for function in [
        Function::FileClose,
        Function::FileSetSize,
        Function::FilePreallocate,
        Function::FileSetView,
        Function::FileSync,
        Function::FileSeekShared,
        Function::FileSetAtomicity,
        Function::FileSetInfo,
        Function::FileReadAll,
        Function::FileReadAtAll,
        Function::FileWriteAll,
        Function::FileWriteAtAll,
        Function::FileReadAllBegin,
        Function::FileWriteAtAllEnd,
        Function::FileWriteOrderedEnd,
    ] {
        is_together(opened, |rank| on_object(rank, function, FILE), false);
    }
    // Calls that need no other rank, and calls that only start an operation.
    for function in [
        Function::FileWriteAt,
        Function::FileRead,
        Function::FileGetSize,
        Function::FileIwriteAll,
    ] {
        let mut trace = opened();
        trace.unfinished(on_object(0, function, FILE));
        trace.unfinished(waits_for_0(1)).unfinished(waits_for_0(2));
        assert_eq!((trace.deadlock(), trace.needs(0)), (None, None));
    }
    // A wait for a non-blocking call by its request.
    let mut trace = opened();
    let serial = trace.start(on_object(0, Function::FileIwriteAll, FILE));
    trace.unfinished(wait(0, Function::Wait, &[serial]));
    trace.unfinished(waits_for_0(1)).unfinished(waits_for_0(2));
    assert_eq!(trace.deadlock(), Some((vec![0, 1, 2], vec![0, 1])));
    for rank in [1, 2] {
        trace.start(on_object(rank, Function::FileIwriteAll, FILE));
    }
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, READY));
}

#[test]
fn a_rank_writes_in_order_after_those_before_it() {
    let ordered = |rank| {
        let mut ordered = on_object(rank, Function::FileWriteOrdered, FILE);
        ordered.send_bytes = 8;
        ordered
    };
    let mut trace = Trace::new(3);
    trace.all(0..3, |rank| makes(rank, Function::FileOpen, FILE));
    trace.unfinished(ordered(1)).call(ordered(2));
    trace.unfinished(receive(0, Peer::Rank(1), Tag::Any));
    assert_eq!(trace.needs(1), Some((vec![0], true)));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    // Rank 1 may wait for the rank after it. Below, a rank that writes no data has no position in the order.
    let mut trace = Trace::new(3);
    trace.all(0..3, |rank| makes(rank, Function::FileOpen, FILE));
    trace.call(ordered(0)).unfinished(ordered(1));
    assert_eq!(trace.needs(1), Some((vec![2], true)));
    let mut trace = Trace::new(3);
    trace.all(0..3, |rank| makes(rank, Function::FileOpen, FILE));
    trace.unfinished(ordered(0));
    trace.unfinished(receive(1, Peer::Rank(0), Tag::Any));
    assert_eq!(trace.needs(0), Some((vec![1, 2], false)));
    assert_eq!(trace.deadlock(), None);
    let mut trace = Trace::new(3);
    trace.all(0..3, |rank| makes(rank, Function::FileOpen, FILE));
    let mut nothing = ordered(1);
    nothing.send_bytes = 0;
    trace
        .unfinished(nothing)
        .unfinished(receive(0, Peer::Rank(1), Tag::Any));
    assert_eq!(trace.needs(1), Some((vec![0, 2], false)));
    assert_eq!(trace.deadlock(), None);
}

#[test]
fn files_and_communicators_have_orders_of_their_own() {
    let mut trace = Trace::new(2);
    trace.all(0..2, |rank| makes(rank, Function::FileOpen, FILE));
    // Rank 0 writes before the barrier, and rank 1 after it. The order on the file and that on the communicator are the same on both ranks.
    trace
        .call(on_object(0, Function::FileWriteAll, FILE))
        .call(barrier(0));
    trace
        .call(barrier(1))
        .call(on_object(1, Function::FileWriteAll, FILE));
    assert!(trace.pending().is_empty(), "{:?}", trace.pending());
    // Pending calls on the file and the communicator wait for each other's ranks.
    let mut trace = Trace::new(2);
    trace.all(0..2, |rank| makes(rank, Function::FileOpen, FILE));
    trace.unfinished(on_object(0, Function::FileWriteAll, FILE));
    trace.unfinished(barrier(1));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    assert_eq!(
        trace.pending().lines()[2..],
        [
            "    rank 0 in MPI_File_write_all(file data) at program+0x50 waits for rank 1",
            "    rank 1 in MPI_Barrier(MPI_COMM_WORLD) at program+0x60 waits for rank 0",
        ]
    );
    // Different calls on the file.
    let mut trace = Trace::new(2);
    trace.all(0..2, |rank| makes(rank, Function::FileOpen, FILE));
    trace.call(on_object(0, Function::FileWriteAll, FILE));
    trace.call(on_object(1, Function::FileSync, FILE));
    // The mismatch is reported although the file is closed.
    trace.all(0..2, |rank| on_object(rank, Function::FileClose, FILE));
    assert_eq!(
        trace.pending().lines(),
        [
            "collectives differ on file data: rank 0 calls MPI_File_write_all at program+0x50, rank 1 calls MPI_File_sync at program+0x50"
        ]
    );
}

#[test]
fn a_file_has_the_members_of_its_communicator() {
    let mut trace = Trace::new(3);
    for rank in [1, 2] {
        let mut split = record(rank, Function::CommSplit, 1);
        split.new_communicator = PART;
        if rank == 1 {
            split.members = vec![Peer::Rank(1), Peer::Rank(2)];
        }
        trace.call(split);
        let mut open = makes(rank, Function::FileOpen, FILE);
        open.communicator = PART;
        trace.call(open);
    }
    trace.unfinished(on_object(1, Function::FileWriteAll, FILE));
    trace.unfinished(receive(2, Peer::Rank(1), Tag::Any));
    assert_eq!(trace.needs(1), Some((vec![2], true)));
    assert_eq!(trace.deadlock(), Some((vec![1, 2], vec![1, 2])));
    // Needs on a communicator with unknown members are not known.
    let mut trace = Trace::new(2);
    let mut open = makes(0, Function::FileOpen, FILE);
    open.communicator = PART;
    trace
        .call(open)
        .unfinished(on_object(0, Function::FileWriteAll, FILE));
    trace.unfinished(waits_for_0(1));
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, None));
}

#[test]
fn ids_are_not_trusted_after_some_could_not_open() {
    // Rank 0 cannot open the first file, so that its second has the id of rank 1's first.
    let failing = |who: &[u32]| {
        let mut trace = Trace::new(2);
        for &rank in who {
            let mut failed = makes(rank, Function::FileOpen, 0);
            failed.result = 1;
            trace.call(failed);
        }
        trace.all(0..2, |rank| makes(rank, Function::FileOpen, FILE));
        trace.unfinished(on_object(0, Function::FileWriteAll, FILE));
        trace.unfinished(waits_for_0(1));
        trace
    };
    let trace = failing(&[0]);
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, None));
    let trace = failing(&[0, 1]);
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
}

#[test]
fn fences_wait_for_all_where_they_end_transfers() {
    let made = || {
        let mut trace = Trace::new(3);
        trace.all(0..3, |rank| makes(rank, Function::WinCreate, WINDOW));
        trace
    };
    let fence = |rank| on_object(rank, Function::WinFence, WINDOW);
    // A first fence, or a fence that is asserted to end no epoch, may let some ranks leave before all have entered.
    is_together(made, fence, false);
    let with_put = || {
        let mut trace = made();
        trace.all(0..3, fence);
        trace.call(on_object(0, Function::Put, WINDOW));
        trace
    };
    is_together(with_put, fence, true);
    let after_it = || {
        let mut trace = with_put();
        trace.all(0..3, fence);
        trace
    };
    is_together(after_it, fence, false);
    // A fence and a barrier.
    let mut trace = made();
    trace
        .unfinished(fence(0))
        .unfinished(barrier(1))
        .call(fence(2));
    trace.unfinished(barrier(2));
    assert_eq!(trace.deadlock(), Some((vec![0, 1, 2], vec![0, 1])));
    let lines = trace.pending().lines();
    assert_eq!(
        lines[2],
        "    rank 0 in MPI_Win_fence(window 800000000000000a) at program+0x50 waits for rank 1"
    );
}

#[test]
fn windows_are_freed_by_all() {
    let made = || {
        let mut trace = Trace::new(3);
        trace.all(0..3, |rank| makes(rank, Function::WinAllocate, WINDOW));
        trace
    };
    let free = |rank| on_object(rank, Function::WinFree, WINDOW);
    // The program may have declared that it never locks the window, and then no rank need wait.
    is_together(made, free, false);
    let locked = || {
        let mut trace = made();
        trace.call(on_object(1, Function::WinLockAll, WINDOW));
        trace.call(on_object(1, Function::WinUnlockAll, WINDOW));
        trace
    };
    is_together(locked, free, true);
    is_together(
        made,
        |rank| on_object(rank, Function::WinSetInfo, WINDOW),
        false,
    );
    let mut trace = made();
    trace.call(free(0));
    trace.call(on_object(1, Function::WinFence, WINDOW));
    assert_eq!(
        trace.pending().lines(),
        [
            "collectives differ on window 800000000000000a: rank 0 calls MPI_Win_free at program+0x50, rank 1 calls MPI_Win_fence at program+0x50"
        ]
    );
}

#[test]
fn a_call_of_one_rank_on_its_own_is_not_told() {
    let mut trace = Trace::new(2);
    for rank in 0..2 {
        let mut open = makes(rank, Function::FileOpen, FILE + 1 + u64::from(rank));
        open.communicator = 2;
        let object = open.object;
        trace.call(open);
        let mut write = on_object(rank, Function::FileWriteAll, object);
        write.communicator = 2;
        trace.unfinished(write);
    }
    assert_eq!(trace.deadlock(), None);
    assert!(
        trace
            .pending()
            .calls
            .iter()
            .all(|call| call.waits == Waits::Unknown)
    );
}
