//! Tests of pending calls in epochs on windows, which wait for posts, completions and unlocks.

mod calls;

use calls::{READY, Trace, receive, record};
use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Function, MpiRecord, Peer, Tag};

const WINDOW: u64 = 1 << 63 | 0xa;
const OTHER: u64 = 1 << 63 | 0xb;

/// Returns the trace of ranks that have made two windows.
fn made(ranks: u32) -> Trace {
    let mut trace = Trace::new(ranks);
    for window in [WINDOW, OTHER] {
        trace.all(0..ranks, |rank| on(rank, Function::WinCreate, window));
    }
    trace
}

fn on(rank: u32, function: Function, window: u64) -> MpiRecord {
    let mut on = record(rank, function, 0x50);
    on.object = window;
    on
}

fn peers(ranks: &[u32]) -> Vec<Peer> {
    ranks.iter().map(|&rank| Peer::Rank(rank)).collect()
}

fn post(rank: u32, origins: &[u32]) -> MpiRecord {
    let mut post = on(rank, Function::WinPost, WINDOW);
    post.sources = peers(origins);
    post
}

fn start(rank: u32, targets: &[u32]) -> MpiRecord {
    let mut start = on(rank, Function::WinStart, WINDOW);
    start.destinations = peers(targets);
    start
}

fn complete(rank: u32) -> MpiRecord {
    on(rank, Function::WinComplete, WINDOW)
}

fn waits(rank: u32) -> MpiRecord {
    on(rank, Function::WinWait, WINDOW)
}

fn put(rank: u32, target: u32) -> MpiRecord {
    let mut put = on(rank, Function::Put, WINDOW);
    (put.destination, put.send_bytes) = (Peer::Rank(target), 8);
    put
}

fn get(rank: u32, target: u32) -> MpiRecord {
    let mut get = on(rank, Function::Get, WINDOW);
    (get.source, get.receive_bytes) = (Peer::Rank(target), 8);
    get
}

/// Returns the record of a call that names one target.
fn at(rank: u32, function: Function, window: u64, target: u32) -> MpiRecord {
    let mut at = on(rank, function, window);
    at.destination = Peer::Rank(target);
    at
}

fn lock(rank: u32, window: u64, target: u32, exclusive: bool) -> MpiRecord {
    let mut lock = at(rank, Function::WinLock, window, target);
    lock.detail = if exclusive { 1 } else { 2 };
    lock
}

fn receives_from(rank: u32, from: u32) -> MpiRecord {
    receive(rank, Peer::Rank(from), Tag::Value(1))
}

#[test]
fn starts_wait_for_posts() {
    let mut trace = made(3);
    trace
        .unfinished(start(0, &[1, 2]))
        .unfinished(receives_from(1, 0));
    // The MPI library decides for which of the two targets rank 0 waits. Rank 2 may still post, and its post may be enough.
    assert_eq!(trace.needs(0), Some((vec![1, 2], false)));
    assert_eq!(trace.deadlock(), None);
    trace.call(post(2, &[0]));
    assert_eq!(trace.needs(0), Some((vec![1], true)));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    assert_eq!(
        trace.pending().lines()[2],
        "    rank 0 in MPI_Win_start(targets 1 2, window 800000000000000a) at program+0x50 waits for rank 1"
    );
    // A post for another origin is no post for rank 0.
    trace.call(post(1, &[2]));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    trace.call(post(1, &[0]));
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, READY));
}

#[test]
fn posts_wait_for_nobody() {
    let mut trace = made(2);
    trace
        .unfinished(post(0, &[1]))
        .unfinished(receives_from(1, 0));
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, READY));
    // A post counts from the beginning of its call.
    let mut trace = made(2);
    trace.unfinished(post(0, &[1])).unfinished(start(1, &[0]));
    assert_eq!((trace.deadlock(), trace.needs(1)), (None, READY));
}

#[test]
fn two_starts_before_the_posts_are_a_deadlock() {
    let mut trace = made(2);
    trace.unfinished(start(0, &[1])).unfinished(start(1, &[0]));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    // If the MPI library lets MPI_Win_start return, MPI_Win_complete or a transfer may wait instead.
    for (first, second) in [
        (complete(0), complete(1)),
        (put(0, 1), get(1, 0)),
        (put(0, 1), complete(1)),
    ] {
        let mut trace = made(2);
        trace.call(start(0, &[1])).call(start(1, &[0]));
        trace.unfinished(first).unfinished(second);
        assert_eq!(trace.needs(0), Some((vec![1], true)));
        assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    }
    // If both ranks post first, no later call waits.
    let mut trace = made(2);
    trace.call(post(0, &[1])).call(post(1, &[0]));
    trace.call(start(0, &[1])).call(start(1, &[0]));
    trace.unfinished(put(0, 1)).unfinished(complete(1));
    assert_eq!((trace.needs(0), trace.needs(1)), (READY, READY));
    assert_eq!(trace.deadlock(), None);
}

#[test]
fn what_was_asked_for_must_have_come() {
    // The put may be in a buffer, so that rank 0 may wait only for rank 2, which can continue.
    let epoch = |transfer: MpiRecord| {
        let mut trace = made(3);
        trace.call(start(0, &[1, 2])).call(transfer);
        trace
            .unfinished(complete(0))
            .unfinished(receives_from(1, 0));
        trace
    };
    let trace = epoch(put(0, 1));
    assert_eq!(trace.needs(0), Some((vec![1, 2], false)));
    assert_eq!(trace.deadlock(), None);
    let mut trace = epoch(get(0, 1));
    assert_eq!(trace.needs(0), Some((vec![1], true)));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    trace.call(post(1, &[0]));
    assert_eq!(trace.needs(0), Some((vec![2], true)));
    assert_eq!(trace.deadlock(), None);
}

#[test]
fn waits_need_all_origins_to_complete() {
    let mut trace = made(3);
    trace.call(post(0, &[1, 2])).unfinished(waits(0));
    trace.call(start(1, &[0])).call(complete(1));
    trace.call(start(2, &[0])).unfinished(receives_from(2, 0));
    assert_eq!(trace.needs(0), Some((vec![2], true)));
    assert_eq!(trace.deadlock(), Some((vec![0, 2], vec![0, 2])));
    // An origin that has ended never calls MPI_Win_complete.
    let mut trace = made(2);
    trace.call(post(0, &[1])).unfinished(waits(0));
    trace.call(record(1, Function::Finalize, 0));
    assert_eq!(trace.deadlock(), Some((vec![0], vec![])));
    // A pending call of MPI_Win_complete counts for the target.
    let mut trace = made(3);
    trace.call(post(0, &[1])).unfinished(waits(0));
    trace.call(start(1, &[0, 2])).unfinished(complete(1));
    trace.unfinished(receives_from(2, 0));
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, READY));
    assert_eq!(trace.needs(1), Some((vec![2], true)));
}

#[test]
fn epochs_follow_each_other() {
    let epoch = |trace: &mut Trace, ends: Function| {
        trace.call(post(0, &[1])).call(start(1, &[0]));
        trace.call(put(1, 0)).call(complete(1));
        trace.call(on(0, ends, WINDOW));
    };
    let mut trace = made(2);
    epoch(&mut trace, Function::WinWait);
    epoch(&mut trace, Function::WinTest);
    // The third post has no start yet, and no completion.
    trace.call(post(0, &[1])).unfinished(waits(0));
    trace.unfinished(receives_from(1, 0));
    assert_eq!(trace.needs(0), Some((vec![1], true)));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    // The third start has no post yet.
    let mut trace = made(2);
    epoch(&mut trace, Function::WinWait);
    epoch(&mut trace, Function::WinTest);
    trace
        .unfinished(start(1, &[0]))
        .unfinished(receives_from(0, 1));
    assert_eq!(trace.needs(1), Some((vec![0], true)));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    // A call that ends an epoch has no known need without an open epoch.
    for (call, other) in [(waits(0), 1), (complete(1), 0)] {
        let (mut trace, rank) = (made(2), 1 - other);
        epoch(&mut trace, Function::WinWait);
        trace
            .unfinished(call)
            .unfinished(receives_from(other, rank));
        assert_eq!((trace.deadlock(), trace.needs(rank)), (None, None));
    }
    // After an access epoch has ended, its targets may be locked.
    let mut trace = made(2);
    epoch(&mut trace, Function::WinWait);
    trace.all(0..2, |rank| lock(rank, WINDOW, 0, true));
    trace.unfinished(put(1, 0)).unfinished(receives_from(0, 1));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    // A rank that polls may do other work.
    let mut trace = made(2);
    let mut test = on(0, Function::WinTest, WINDOW);
    (test.flags, test.calls) = (Flags::POLL_RUN, 9);
    trace.call(post(0, &[1])).unfinished(test);
    trace.unfinished(receives_from(1, 0));
    assert_eq!(trace.deadlock(), None);
}

#[test]
fn what_was_not_told_wholly_is_not_judged() {
    for spoilt in [true, false] {
        let mut trace = made(2);
        let mut other = post(1, &[]);
        if spoilt {
            other.flags = Flags::TAIL_DROPPED;
        }
        trace.call(other).unfinished(start(0, &[1]));
        trace.unfinished(receives_from(1, 0));
        assert_eq!(trace.deadlock().is_none(), spoilt);
        let mut trace = made(2);
        let mut failed = post(1, &[0]);
        failed.result = i32::from(spoilt);
        trace.call(failed).unfinished(start(0, &[1]));
        trace.unfinished(receives_from(1, 0));
        assert_eq!(trace.deadlock(), None);
        assert_eq!(trace.needs(0).is_none(), spoilt);
    }
    // Calls on an unknown window, without a window, or without an open epoch are not judged, either.
    for call in [
        on(0, Function::WinWait, 77),
        start(0, &[1]),
        on(0, Function::WinComplete, 0),
        complete(0),
        waits(0),
        put(0, 1),
        at(0, Function::WinFlush, WINDOW, 1),
        on(0, Function::WinUnlockAll, WINDOW),
        on(0, Function::WinLock, WINDOW),
    ] {
        let mut trace = match call.function {
            Function::WinStart => Trace::new(2),
            _ => made(2),
        };
        let function = call.function;
        trace.unfinished(call).unfinished(receives_from(1, 0));
        assert_eq!(
            (trace.deadlock(), trace.needs(0)),
            (None, None),
            "{function}"
        );
    }
}

#[test]
fn locks_wait_for_those_they_exclude() {
    // Whether the holder's lock is exclusive, whether the wanted lock is exclusive, and whether the call must wait.
    for (held, wanted, excluded) in [
        (true, true, true),
        (true, false, true),
        (false, true, true),
        (false, false, false),
    ] {
        let mut trace = made(3);
        trace.call(lock(1, WINDOW, 2, held));
        trace.unfinished(lock(0, WINDOW, 2, wanted));
        trace.unfinished(receives_from(1, 0));
        let stuck = excluded.then(|| (vec![0, 1], vec![0, 1]));
        assert_eq!(trace.deadlock(), stuck, "{held} {wanted}");
        // A lock on another target, on another window, or after a release does not wait.
        for free in [lock(0, WINDOW, 1, wanted), lock(0, OTHER, 2, wanted)] {
            let mut trace = made(3);
            trace.call(lock(1, WINDOW, 2, held)).unfinished(free);
            trace.unfinished(receives_from(1, 0));
            assert_eq!((trace.deadlock(), trace.needs(0)), (None, READY));
        }
        let mut trace = made(3);
        trace.call(lock(1, WINDOW, 2, held));
        trace.call(at(1, Function::WinUnlock, WINDOW, 2));
        trace.unfinished(lock(0, WINDOW, 2, wanted));
        trace.unfinished(receives_from(1, 0));
        assert_eq!((trace.deadlock(), trace.needs(0)), (None, READY));
    }
}

#[test]
fn two_locks_in_two_orders_are_a_deadlock() {
    let mut trace = made(4);
    trace
        .call(lock(0, WINDOW, 2, true))
        .call(lock(1, WINDOW, 3, true));
    trace
        .unfinished(lock(0, WINDOW, 3, true))
        .unfinished(lock(1, WINDOW, 2, false));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    assert_eq!(
        trace.pending().lines()[2..],
        [
            "    rank 0 in MPI_Win_lock(exclusive, target 3, window 800000000000000a) at program+0x50 waits for rank 1",
            "    rank 1 in MPI_Win_lock(shared, target 2, window 800000000000000a) at program+0x50 waits for rank 0",
        ]
    );
    // If both ranks lock in the same order, one of them gets both locks.
    let mut trace = made(4);
    trace
        .call(lock(0, WINDOW, 2, true))
        .call(lock(0, WINDOW, 3, true));
    trace.unfinished(at(0, Function::WinUnlock, WINDOW, 3));
    trace.unfinished(lock(1, WINDOW, 2, true));
    assert_eq!(trace.needs(1), Some((vec![0], true)));
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, READY));
}

#[test]
fn locks_may_be_taken_later_than_they_are_asked_for() {
    // Both have left MPI_Win_lock, one of them without the lock: whichever it is, the other can continue.
    for function in [Function::WinFlush, Function::WinUnlock, Function::Put] {
        let mut trace = made(3);
        for rank in [0, 1] {
            trace.call(lock(rank, WINDOW, 2, true));
            trace.unfinished(at(rank, function, WINDOW, 2));
        }
        assert_eq!(trace.deadlock(), None, "{function}");
        // Rank 1 waits in another call, so that rank 1 counts as the holder of the lock for which rank 0 waits.
        let mut trace = made(3);
        for rank in [0, 1] {
            trace.call(lock(rank, WINDOW, 2, true));
        }
        trace.unfinished(at(0, function, WINDOW, 2));
        trace.unfinished(receives_from(1, 0));
        let stuck = Some((vec![0, 1], vec![0, 1]));
        assert_eq!(trace.deadlock(), stuck, "{function}");
    }
    // Any of several holders may release its lock.
    let mut trace = made(4);
    for rank in [1, 2] {
        trace.call(lock(rank, WINDOW, 3, false));
    }
    trace.unfinished(lock(0, WINDOW, 3, true));
    trace.unfinished(receives_from(1, 0));
    assert_eq!(trace.needs(0), Some((vec![1, 2], false)));
    assert_eq!(trace.deadlock(), None);
}

#[test]
fn locks_of_all_are_shared() {
    let all = |rank, function| on(rank, function, WINDOW);
    let mut trace = made(3);
    trace.call(all(1, Function::WinLockAll));
    trace.unfinished(all(0, Function::WinLockAll));
    trace.unfinished(receives_from(1, 0));
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, READY));
    // A lock of all targets and an exclusive lock on one target exclude each other.
    let mut trace = made(3);
    trace.call(all(1, Function::WinLockAll));
    trace.unfinished(lock(0, WINDOW, 2, true));
    trace.unfinished(receives_from(1, 0));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
    for function in [Function::WinLockAll, Function::WinFlushAll] {
        let mut trace = made(3);
        if function == Function::WinFlushAll {
            trace.call(all(0, Function::WinLockAll));
        }
        trace.call(lock(1, WINDOW, 2, true));
        trace.unfinished(all(0, function));
        trace.unfinished(receives_from(1, 0));
        assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
        trace.call(at(1, Function::WinUnlock, WINDOW, 2));
        assert_eq!((trace.deadlock(), trace.needs(0)), (None, READY));
    }
    let mut trace = made(3);
    trace.call(all(1, Function::WinLockAll));
    trace.call(all(1, Function::WinUnlockAll));
    trace.unfinished(lock(0, WINDOW, 2, true));
    trace.unfinished(receives_from(1, 0));
    assert_eq!((trace.deadlock(), trace.needs(0)), (None, READY));
}

#[test]
fn a_freed_window_leaves_nothing() {
    // A real trace never uses the id of a freed window again, but a trace may contain anything.
    let mut trace = made(2);
    trace.call(post(1, &[0]));
    trace.all(0..2, |rank| on(rank, Function::WinFree, WINDOW));
    trace.all(0..2, |rank| on(rank, Function::WinCreate, WINDOW));
    trace
        .unfinished(start(0, &[1]))
        .unfinished(receives_from(1, 0));
    assert_eq!(trace.deadlock(), Some((vec![0, 1], vec![0, 1])));
}
