//! Traces of messages that meet others, made from known costs. The fit must return these costs.

use nodescope_calibrate::exchanges::{Collector, Opening};
use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Completion, Function, MpiRecord, Peer, Tag, ThreadId};
use nodescope_predict::{Channel, Frames, Model, Table};
use nodescope_trace::{Body, Event, MpiCall, Stamp};

const US: u64 = 1_000_000;
const RANKS: u32 = 4;
/// Communicator of blocking sends and receives. On another one, messages are not matched.
const PAIRS: u64 = 2;
/// How far the clock of each rank is before that of the rank before it, picoseconds.
const SKEW: u64 = 900 * US;

/// Returns the true costs: latency 20 us, 10 GB/s, frames, 4 us to send, to receive 5 us and 1 ns a byte.
fn truth() -> Channel {
    Channel {
        envelope: 24,
        frames: Some(Frames {
            payload: 1448,
            header: 90,
            acknowledge: 2,
        }),
        send_overhead: Table::constant(4 * US),
        receive_overhead: Table {
            points: vec![(0, 5 * US), (65_536, 5 * US + 65_536_000)],
        },
        queued_overhead: Some(Table::constant(3 * US)),
        pack_overhead: Table::constant(2 * US),
        unpack_overhead: Table::constant(3 * US),
        ..Channel::new(Model::LogGp, 20 * US, 10_000_000_000)
    }
}

#[derive(Default)]
struct Traced {
    clock: u64,
    events: Vec<Event>,
}

impl Traced {
    fn call(&mut self, rank: u32, from: u64, to: u64, record: MpiRecord) {
        let stamp = |time: u64| Stamp {
            time: time + SKEW * u64::from(rank),
            ..Stamp::default()
        };
        self.clock = self.clock.max(to);
        let call = MpiCall {
            record,
            entry: stamp(from),
            exit: stamp(to),
            time_inside: to - from,
            instructions_inside: 0,
            entry_seen: true,
        };
        self.events.push(Event {
            node: rank,
            sequence: self.events.len() as u64,
            stamp: call.exit,
            body: Body::Mpi(Box::new(call)),
        });
    }

    fn send(&mut self, rank: u32, to: u32, tag: u32, bytes: u64, times: (u64, u64)) {
        let mut new = record(Function::Send, rank, PAIRS);
        (new.destination, new.send_tag, new.send_bytes) = (Peer::Rank(to), Tag::Value(tag), bytes);
        self.call(rank, times.0, times.1, new);
    }

    fn receive(&mut self, rank: u32, from: u32, tag: u32, bytes: u64, times: (u64, u64)) {
        let mut new = record(Function::Recv, rank, PAIRS);
        (new.source, new.receive_tag) = (Peer::Rank(from), Tag::Value(tag));
        new.completions = vec![Completion {
            bytes,
            source: Peer::Rank(from),
            tag: Tag::Value(tag),
            ..Completion::default()
        }];
        self.call(rank, times.0, times.1, new);
    }

    /// Adds a round in which each rank sends to the next at once, with one call, which lasts `time`.
    fn round(&mut self, tag: u32, bytes: u64, time: u64) {
        let begin = self.clock + US;
        for rank in 0..RANKS {
            let mut new = record(Function::Sendrecv, rank, 1);
            (new.destination, new.send_tag) = (Peer::Rank((rank + 1) % RANKS), Tag::Value(tag));
            (new.send_bytes, new.receive_bytes) = (bytes, bytes);
            self.call(rank, begin, begin + time, new);
        }
    }

    /// Adds a round in which each rank sends to the next two, and waits for `time` from its first send on.
    fn two(&mut self, bytes: u64, time: u64) {
        let begin = self.clock + US;
        for rank in 0..RANKS {
            let mut new = record(Function::Isend, rank, 1);
            (new.destination, new.send_tag) = (Peer::Rank((rank + 1) % RANKS), Tag::Value(4));
            new.send_bytes = bytes;
            self.call(rank, begin, begin + US, new);
            let wait = record(Function::Waitall, rank, 1);
            self.call(rank, begin + US, begin + time, wait);
        }
    }
}

fn record(function: Function, rank: u32, communicator: u64) -> MpiRecord {
    let thread = ThreadId {
        pid: rank,
        tid: rank,
    };
    let mut record = MpiRecord::new(function, thread, Peer::Rank(rank), 0);
    record.communicator = communicator;
    record
}

fn sizes() -> Vec<u64> {
    (6..17).map(|octave| 1 << octave).collect()
}

/// Returns the trace of a run of `measure.c` on ranks that do the same at the same times.
fn traced() -> Traced {
    let truth = truth();
    let mut traced = Traced {
        clock: US,
        ..Traced::default()
    };
    for first in 0..RANKS {
        let second = (first + 1) % RANKS;
        for (from, to) in [(first, second), (second, first)].repeat(3) {
            let begin = traced.clock;
            traced.send(from, to, 0, 8, (begin, begin + 4 * US));
            traced.receive(to, from, 0, 8, (begin, begin + 30 * US));
        }
    }
    for gap in [US, 41 * US, 262 * US].repeat(3) {
        for (between, lasts) in [(US, US), (gap, US)] {
            let begin = traced.clock + between;
            let new = record(Function::Barrier, 0, communicator::SELF);
            traced.call(0, begin, begin + lasts, new);
        }
    }
    for bytes in sizes() {
        let way = truth.latency + truth.wire(bytes);
        let awaited = truth.receive(bytes).awaited;
        for _ in 0..8 {
            traced.round(2, bytes, 4 * US + way + awaited);
            traced.two(bytes, 4 * US + way + awaited + 3 * US);
            let begin = traced.clock;
            traced.send(0, 1, 5, bytes, (begin, begin + 6 * US));
            traced.round(6, bytes, 6 * US + way + awaited + 3 * US);
        }
    }
    // Later acknowledgements, of each second frame, take 3 us.
    for number in 0..2 * 96 {
        let begin = traced.clock;
        let interrupted = number % 96 >= 48 && number % 2 == 1;
        let time = if interrupted { 7 * US } else { 4 * US };
        traced.send(0, 1 + number % 2, 9, 8, (begin, begin + time));
    }
    traced
}

#[test]
fn a_trace_gives_back_what_messages_cost_that_meet_others() {
    let mut collector = Collector::default();
    traced()
        .events
        .iter()
        .for_each(|event| collector.add(event));
    let exchanges = collector.finish("a trace").expect("exchanges");
    let mut fitted = Channel {
        receive_overhead: Table::constant(99 * US),
        queued_overhead: None,
        pack_overhead: Table::default(),
        unpack_overhead: Table::default(),
        ..truth()
    };
    let met = exchanges.fit(&mut fitted).expect("costs");
    assert_eq!((met.ranks, met.datatype), (4, 2 * US));
    // 1 MiB in 261 us.
    assert_eq!(met.reduce_bandwidth, 4_017_532_567);
    assert_eq!(fitted.acknowledgement_overhead, 3 * US);
    let near = |here: u64, there: u64, what: &str| {
        let error = (here as f64 / there as f64 - 1.0).abs();
        assert!(error < 0.01, "{what}: {here}, not {there}");
    };
    for bytes in sizes() {
        let (here, there) = (fitted.receive(bytes), truth().receive(bytes));
        near(here.awaited, there.awaited, "awaited");
        let (pack, unpack) = (&fitted.pack_overhead, &fitted.unpack_overhead);
        near(pack.at(bytes), 2 * US, "pack");
        near(unpack.at(bytes), 3 * US, "unpack");
    }
    near(fitted.receive(1024).queued, 3 * US, "queued");
}

/// Returns what the first use of connections costs in a trace whose first exchanges take `first`, and whose sends take `opens` where they open a
/// connection, and 50 us otherwise.
fn opening(first: u64, opens: u64) -> Option<Opening> {
    let mut traced = traced();
    for rank in 0..RANKS {
        let begin = traced.clock;
        let mut new = record(Function::Sendrecv, rank, 1);
        (new.destination, new.send_tag) = (Peer::Rank(rank ^ 1), Tag::Value(7));
        traced.call(rank, begin, begin + first, new);
    }
    for (from, to) in [(0, 2), (1, 3), (0, 3), (1, 2)] {
        for time in [opens, 50 * US] {
            let begin = traced.clock;
            let mut new = record(Function::Ssend, from, 1);
            (new.destination, new.send_tag) = (Peer::Rank(to), Tag::Value(8));
            traced.call(from, begin, begin + time, new);
        }
    }
    let mut collector = Collector::default();
    traced.events.iter().for_each(|event| collector.add(event));
    let exchanges = collector.finish("a trace").expect("exchanges");
    exchanges.fit(&mut truth()).expect("costs").opening
}

#[test]
fn first_uses_of_connections_give_back_what_they_cost() {
    // Four ways of 20 us and two steps of 60 us before the send's own 50 us. Two of the ways pass during the wait for a look.
    let opens = 4 * 20 * US + 2 * 60 * US + 50 * US;
    let measured = Opening {
        poll: 10_000 * US,
        setup: 60 * US,
    };
    assert_eq!(
        opening(10_000 * US + opens - 40 * US, opens),
        Some(measured)
    );
    // A library that looks at any time: what its first exchange takes longer is no wait for a look.
    let at_once = Opening {
        poll: 0,
        ..measured
    };
    assert_eq!(opening(opens + 100 * US, opens), Some(at_once));
}

#[test]
fn a_ring_that_is_faster_than_the_wire_is_refused() {
    let mut collector = Collector::default();
    traced()
        .events
        .iter()
        .for_each(|event| collector.add(event));
    let exchanges = collector.finish("a trace").expect("exchanges");
    let mut slow = Channel {
        latency: 9_000_000 * US,
        ..truth()
    };
    let error = exchanges.fit(&mut slow).expect_err("no cost");
    assert!(
        error.to_string().contains("faster than the wire allows"),
        "{error}"
    );
}

#[test]
fn a_run_that_was_cut_short_is_refused_by_what_is_missing() {
    let refused = |last: usize| {
        let mut collector = Collector::default();
        let traced = traced();
        traced.events[..last]
            .iter()
            .for_each(|event| collector.add(event));
        collector
            .finish("a trace")
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let events = traced().events.len();
    assert_eq!(refused(events), Ok(()));
    let error = refused(events / 6).expect_err("too few sizes");
    assert!(
        error.contains("a ring of 2 sizes, of which 4 are needed"),
        "{error}"
    );
}
