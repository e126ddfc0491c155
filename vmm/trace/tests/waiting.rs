//! Tests of wait times that were computed by hand: each test states when calls began and ended, in picoseconds.

mod calls;

use calls::{Trace, as_function, got, receive, record, send, wait};
use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Completion, Function, MpiRecord, Peer, Tag};
use nodescope_trace::{Body, Event, Message, MpiCall, Stamp, Wait, WaitBuilder};

/// Calls with their times, put into the order of a file: by their ends.
struct Calls(Vec<Event>);

impl Calls {
    fn new(world: u32) -> Calls {
        Calls(Trace::new(world).events)
    }

    fn call(&mut self, record: MpiRecord, entry: u64, exit: u64) -> &mut Calls {
        self.timed(record, entry, exit, exit - entry)
    }

    fn timed(&mut self, record: MpiRecord, entry: u64, exit: u64, inside: u64) -> &mut Calls {
        let stamp = |time| Stamp {
            time: 1000 + time,
            ..Stamp::default()
        };
        self.0.push(Event {
            node: 0,
            sequence: self.0.len() as u64,
            stamp: stamp(exit),
            body: Body::Mpi(Box::new(MpiCall {
                record,
                entry: stamp(entry),
                exit: stamp(exit),
                time_inside: inside,
                instructions_inside: 0,
                entry_seen: true,
            })),
        });
        self
    }

    fn all(&mut self) -> Vec<Wait> {
        self.0.sort_by_key(Event::key);
        let mut builder = WaitBuilder::default();
        let mut waits = Vec::new();
        for event in &self.0 {
            builder.add(event);
            waits.extend(builder.take());
        }
        waits.extend(builder.finish());
        waits
    }

    /// Returns the rank, function and time of each wait, by rank.
    fn waits(&mut self) -> Vec<(u32, Function, u64)> {
        let mut waits: Vec<_> = self
            .all()
            .iter()
            .map(|wait| (wait.rank, wait.function, wait.time))
            .collect();
        waits.sort();
        waits
    }
}

fn of_world(mut record: MpiRecord, members: u32) -> MpiRecord {
    record.communicator_size = members;
    record
}

fn collective(rank: u32, function: Function, root: u32) -> MpiRecord {
    let mut call = of_world(record(rank, function, 1), 3);
    call.root = Peer::Rank(root);
    call
}

/// Returns a call with a request.
fn with(mut record: MpiRecord, function: Function, request: u64) -> MpiRecord {
    record.function = function;
    record.request = request;
    record
}

/// Returns a wait that completes these requests: receives with the sender's rank and the tag, or sends and collective
/// operations (`None`).
fn completes(rank: u32, function: Function, done: &[(u64, Option<(u32, u32)>)]) -> MpiRecord {
    let serials: Vec<u64> = done.iter().map(|(serial, _)| *serial).collect();
    let mut call = wait(rank, function, &serials);
    call.completions = done
        .iter()
        .enumerate()
        .map(|(index, (request, from))| Completion {
            request: *request,
            index: index as u32,
            source: from.map_or(Peer::None, |(from, _)| Peer::Rank(from)),
            tag: from.map_or(Tag::None, |(_, tag)| Tag::Value(tag)),
            ..Completion::default()
        })
        .collect();
    call
}

#[test]
fn messages_go_from_their_send_to_the_call_that_completes_their_receive() {
    use Function::{Irecv, Isend, Waitall};
    let mut calls = Calls::new(2);
    calls
        // The receive is posted first and completed by a later call, which is reported last.
        .call(
            with(receive(1, Peer::Rank(0), Tag::Value(7)), Irecv, 1),
            10,
            20,
        )
        .call(send(0, 1, 7, 8), 30, 40)
        .call(with(send(0, 1, 8, 8), Isend, 2), 50, 60)
        .call(completes(0, Waitall, &[(2, None)]), 70, 80)
        .call(got(receive(1, Peer::Any, Tag::Any), 0, 8), 90, 100)
        .call(completes(1, Waitall, &[(1, Some((0, 7)))]), 110, 120)
        // Nobody receives this message.
        .call(send(0, 1, 9, 8), 130, 140);
    let mut builder = WaitBuilder::with_messages();
    calls.0.sort_by_key(Event::key);
    calls.0.iter().for_each(|event| builder.add(event));
    let message = |sent: u64, completing: u64| Message {
        program: 0,
        from: 0,
        to: 1,
        sent: 1000 + sent,
        completing: 1000 + completing,
    };
    assert_eq!(builder.take_messages(), [message(50, 90), message(30, 110)]);
    assert_eq!(builder.take_messages(), []);
    let mut without = WaitBuilder::default();
    calls.0.iter().for_each(|event| without.add(event));
    assert_eq!(without.take_messages(), []);
}

#[test]
fn a_receive_waits_until_its_message_is_sent() {
    use Function::{Recv, Send};
    let taken = || got(receive(1, Peer::Any, Tag::Any), 0, 7);
    let mut calls = Calls::new(2);
    calls
        .call(send(0, 1, 7, 8), 300, 310)
        .call(taken(), 100, 350);
    assert_eq!(calls.waits(), [(1, Recv, 200)]);
    // The send ends after the receive, and is reported after it.
    let mut calls = Calls::new(2);
    calls
        .call(send(0, 1, 7, 8), 300, 400)
        .call(taken(), 100, 350);
    assert_eq!(calls.waits(), [(1, Recv, 200)]);
    // A receive does not wait for a message that was sent before, and a send that had ended did not wait for its receive.
    let mut calls = Calls::new(2);
    calls.call(send(0, 1, 7, 8), 10, 20).call(taken(), 100, 350);
    assert_eq!(calls.waits(), []);
    // A send that had not ended when the receive began has waited.
    let mut calls = Calls::new(2);
    calls
        .call(send(0, 1, 7, 8), 10, 200)
        .call(taken(), 100, 350);
    assert_eq!(calls.waits(), [(0, Send, 90)]);
    // A buffered send does not wait.
    let mut calls = Calls::new(2);
    calls
        .call(as_function(send(0, 1, 7, 8), Function::Bsend), 10, 200)
        .call(taken(), 100, 350);
    assert_eq!(calls.waits(), []);
    // The tags differ: the trace has no send of this message.
    let mut calls = Calls::new(2);
    calls
        .call(send(0, 1, 8, 8), 300, 310)
        .call(taken(), 100, 350);
    assert_eq!(calls.waits(), []);
}

#[test]
fn messages_are_received_in_the_order_in_which_they_are_sent() {
    let mut calls = Calls::new(2);
    for (sent, received) in [(100, 50), (400, 300), (500, 600)] {
        calls.call(send(0, 1, 7, 8), sent, sent + 10).call(
            got(receive(1, Peer::Rank(0), Tag::Value(7)), 0, 7),
            received,
            received + 180,
        );
    }
    assert_eq!(
        calls.waits(),
        [(1, Function::Recv, 50), (1, Function::Recv, 100)]
    );
}

#[test]
fn a_wait_waits_for_the_last_of_all_and_the_first_of_any() {
    use Function::{Irecv, Isend, Send, Waitall, Waitany};
    let posted = |from, tag| receive(1, from, tag);
    let make = |wait: Function, done: &[(u64, Option<(u32, u32)>)]| {
        let mut calls = Calls::new(3);
        calls
            .call(with(posted(Peer::Rank(0), Tag::Value(1)), Irecv, 1), 10, 11)
            .call(with(posted(Peer::Any, Tag::Any), Irecv, 2), 12, 13)
            .call(send(0, 1, 1, 8), 200, 210)
            .call(send(2, 1, 5, 8), 300, 310)
            .call(completes(1, wait, done), 100, 400);
        calls.waits()
    };
    let both = [(1, Some((0, 1))), (2, Some((2, 5)))];
    assert_eq!(make(Waitall, &both), [(1, Waitall, 200)]);
    assert_eq!(make(Waitany, &both[..1]), [(1, Waitany, 100)]);
    // A non-blocking send: the receive begins while the sender waits in MPI_Wait.
    let mut calls = Calls::new(2);
    calls
        .call(with(send(0, 1, 3, 8), Isend, 1), 10, 11)
        .call(completes(0, Function::Wait, &[(1, None)]), 20, 200)
        .call(
            got(receive(1, Peer::Rank(0), Tag::Value(3)), 0, 3),
            150,
            190,
        );
    assert_eq!(calls.waits(), [(0, Function::Wait, 130)]);
    // No call completes a freed request, but a receive may wait for the request's message.
    let mut calls = Calls::new(2);
    calls
        .call(with(send(0, 1, 3, 8), Isend, 1), 90, 91)
        .call(wait(0, Function::RequestFree, &[1]), 92, 93)
        .call(got(receive(1, Peer::Rank(0), Tag::Value(3)), 0, 3), 50, 190)
        .call(send(0, 1, 3, 8), 200, 205)
        .call(
            got(receive(1, Peer::Rank(0), Tag::Value(3)), 0, 3),
            201,
            210,
        );
    assert_eq!(calls.waits(), [(0, Send, 1), (1, Function::Recv, 40)]);
}

#[test]
fn a_probe_waits_and_leaves_the_message() {
    let probe = || as_function(got(receive(1, Peer::Any, Tag::Any), 0, 7), Function::Probe);
    let taken = || got(receive(1, Peer::Rank(0), Tag::Value(7)), 0, 7);
    let mut calls = Calls::new(2);
    calls
        .call(send(0, 1, 7, 8), 100, 250)
        .call(probe(), 20, 150)
        .call(taken(), 160, 200)
        .call(probe(), 300, 450)
        .call(send(0, 1, 7, 8), 420, 440)
        .call(taken(), 460, 470);
    // The first send has waited for the receive, and the second receive for nothing.
    assert_eq!(
        calls.waits(),
        [
            (0, Function::Send, 60),
            (1, Function::Probe, 80),
            (1, Function::Probe, 120)
        ]
    );
}

#[test]
fn polls_that_found_nothing_waited_all_their_time() {
    let mut polls = wait(0, Function::Test, &[3]);
    polls.flags = Flags::POLL_RUN;
    polls.calls = 100;
    let mut calls = Calls::new(1);
    calls.timed(polls, 100, 1100, 250);
    let waits = calls.all();
    assert_eq!(waits.len(), 1);
    assert_eq!(waits[0].time, 250);
    // The part of the waiting between two times.
    assert_eq!(waits[0].within(0, u64::MAX), 250);
    assert_eq!(waits[0].within(1100, 1700), 150);
    assert_eq!(waits[0].within(5000, 6000), 0);
}

#[test]
fn collectives_wait_for_those_whose_data_they_need() {
    use Function::{Allreduce, Bcast, Reduce};
    let make = |function, entries: [u64; 3], exits: [u64; 3]| {
        let mut calls = Calls::new(3);
        for (rank, (entry, exit)) in entries.into_iter().zip(exits).enumerate() {
            calls.call(collective(rank as u32, function, 1), entry, exit);
        }
        calls.waits()
    };
    // All ranks wait for the last one, which waits for no other rank.
    assert_eq!(
        make(Allreduce, [100, 300, 250], [320, 310, 330]),
        [(0, Allreduce, 200), (2, Allreduce, 50)]
    );
    // Ranks in a broadcast wait only for the root, which waits for no other rank.
    assert_eq!(
        make(Bcast, [100, 200, 400], [260, 210, 410]),
        [(0, Bcast, 100)]
    );
    // The root of a reduction waits for all ranks. The others wait for no rank.
    assert_eq!(
        make(Reduce, [100, 150, 400], [110, 450, 410]),
        [(1, Reduce, 250)]
    );
}

#[test]
fn a_collective_that_is_started_is_waited_for_where_it_is_completed() {
    use Function::{Ibarrier, Wait};
    let mut calls = Calls::new(3);
    for (rank, start) in [(0, 10), (1, 20), (2, 500)] {
        calls.call(
            with(collective(rank, Ibarrier, 0), Ibarrier, 1),
            start,
            start + 1,
        );
        calls.call(completes(rank, Wait, &[(1, None)]), start + 100, 700);
    }
    assert_eq!(calls.waits(), [(0, Wait, 390), (1, Wait, 380)]);
    // A persistent barrier is started twice, with another barrier in between.
    let mut calls = Calls::new(3);
    for rank in 0..3u32 {
        let late = u64::from(rank) * 100;
        let mut start = wait(rank, Function::Start, &[2]);
        start.prepared = vec![1];
        let prepared = with(collective(rank, Ibarrier, 0), Function::BarrierInit, 1);
        let mut again = start.clone();
        again.requests = vec![3];
        calls
            .call(prepared, 1, 2)
            .call(start, late + 10, late + 11)
            .call(collective(rank, Function::Barrier, 0), 12 + late, 300)
            .call(completes(rank, Wait, &[(2, None)]), 301, 310)
            .call(again, 320, 321)
            .call(completes(rank, Wait, &[(3, None)]), 330, 340);
    }
    assert_eq!(
        calls.waits(),
        [(0, Function::Barrier, 200), (1, Function::Barrier, 100)]
    );
}

#[test]
fn neighbours_wait_for_their_sources() {
    let function = Function::NeighborAllgather;
    let mut calls = Calls::new(3);
    for (rank, entry) in [(0, 100), (1, 200), (2, 300)] {
        let mut call = collective(rank, function, 0);
        // The ranks form a line, and each needs its left neighbour's data.
        call.sources = vec![match rank {
            0 => Peer::Null,
            rank => Peer::Rank(rank - 1),
        }];
        call.receive_bytes = 8;
        calls.call(call, entry, 400);
    }
    calls.call(record(0, Function::Finalize, 1), 400, 500);
    assert_eq!(calls.waits(), []);
    let mut calls = Calls::new(3);
    for (rank, entry) in [(0, 300), (1, 200), (2, 100)] {
        let mut call = collective(rank, function, 0);
        call.sources = vec![Peer::Rank(rank.saturating_sub(1))];
        call.receive_bytes = 8;
        calls.call(call, entry, 400);
    }
    assert_eq!(calls.waits(), [(1, function, 100), (2, function, 100)]);
}

#[test]
fn jobs_are_kept_apart() {
    let mut calls = Calls::new(2);
    calls.call(send(0, 1, 7, 8), 10, 20);
    // The first job's message was never received. The second job's receive waits for a message of its own job.
    let mut second = Trace::new(2).events;
    for event in &mut second {
        event.stamp.time = 1500;
        if let Body::Process(hello) = &mut event.body {
            hello.pid += 50;
        }
    }
    calls.0.extend(second);
    let of_second = |mut record: MpiRecord| {
        record.thread.pid += 50;
        record
    };
    calls
        .call(
            of_second(got(receive(1, Peer::Rank(0), Tag::Value(7)), 0, 7)),
            600,
            900,
        )
        .call(of_second(send(0, 1, 7, 8)), 800, 810);
    assert_eq!(calls.waits(), [(1, Function::Recv, 200)]);
}

/// Checks that jobs are kept apart where the second job has more ranks, and where one of the ranks that the first job lacks reports
/// itself first.
#[test]
fn jobs_of_different_sizes_are_kept_apart() {
    let mut calls = Calls::new(2);
    let mut second = Trace::new(4).events;
    second.rotate_left(2);
    for (place, event) in second.iter_mut().enumerate() {
        event.sequence = place as u64;
        event.stamp.time = 1500;
        if let Body::Process(hello) = &mut event.body {
            hello.pid += 50;
        }
    }
    calls.0.extend(second);
    let of_second = |mut record: MpiRecord| {
        record.thread.pid += 50;
        record
    };
    calls
        .call(
            of_second(got(receive(0, Peer::Rank(2), Tag::Value(7)), 2, 7)),
            600,
            900,
        )
        .call(of_second(send(2, 0, 7, 8)), 800, 810);
    assert_eq!(calls.waits(), [(0, Function::Recv, 200)]);
}
