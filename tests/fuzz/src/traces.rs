//! Mutation of traces: decoded, changed field by field, reordered, and encoded with valid checksums.

use nodescope_hypercall::{
    Completion, Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, Tag, ThreadId,
};
use nodescope_trace::{
    Body, Event, Header, MpiCall, NodeEntry, Stamp, TraceReader, TraceWriter, Unfinished,
};
use serde_json::Value;

use crate::choices::Choices;
use crate::json::{self, Vocabulary};

/// Maximum number of events of a mutated trace.
const MOST_EVENTS: usize = 600;

/// A decoded trace.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Header of the trace.
    pub header: Header,
    /// Events of the trace, in order.
    pub events: Vec<Event>,
}

impl Trace {
    /// Returns traces of four ranks on two nodes: messages and collectives, each function of the tracer, RMA windows and communicators, and
    /// a deadlock. Requests, windows and communicators belong together.
    pub fn seeds() -> Vec<Trace> {
        vec![messages(), functions(), windows(), pending()]
    }

    /// Decodes a whole trace; None if the trace is damaged.
    pub fn decode(bytes: &[u8]) -> Option<Trace> {
        let reader = TraceReader::new(bytes, "seed.nst").ok()?;
        let header = reader.header().clone();
        let events = reader.events().collect::<Result<_, _>>().ok()?;
        Some(Trace { header, events })
    }

    /// Encodes the trace; None if it exceeds the format's limits.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut writer = TraceWriter::new(&mut bytes, "mutated.nst", &self.header).ok()?;
        for event in &self.events {
            writer.write(event).ok()?;
        }
        writer.finish().ok()?;
        Some(bytes)
    }

    /// Makes some random changes to the trace.
    pub fn mutate(&mut self, vocabulary: &Vocabulary, others: &[Trace], choices: &mut Choices<'_>) {
        for _ in 0..1 + choices.below(5) {
            match choices.below(12) {
                0 => self.order(choices),
                1 => {
                    if let Some(other) = choices.of(others) {
                        let at = choices.below(self.events.len() + 1);
                        let from = choices.below(other.events.len());
                        self.events
                            .splice(at..at, other.events[from..].iter().cloned());
                    }
                }
                2 => {
                    if let Some(header) = changed(&self.header, vocabulary, choices) {
                        self.header = header;
                    }
                }
                _ => self.field(vocabulary, choices),
            }
            self.events.truncate(MOST_EVENTS);
        }
    }

    /// Removes, exchanges, cuts off or repeats events.
    fn order(&mut self, choices: &mut Choices<'_>) {
        let events = &mut self.events;
        if events.is_empty() {
            return;
        }
        let (a, b) = (choices.below(events.len()), choices.below(events.len()));
        match choices.below(4) {
            0 => drop(events.remove(a)),
            1 => events.swap(a, b),
            2 => events.truncate(a),
            _ => {
                let event = events[a].clone();
                let count = 1 + choices.below(100);
                events.splice(b..b, std::iter::repeat_n(event, count));
            }
        }
    }

    /// Changes a field of an event. In one case of three, other events get the change, too: after an MPI call, all calls of the function
    /// get its record; after a hello message, all hello messages get its world size and MPI library.
    fn field(&mut self, vocabulary: &Vocabulary, choices: &mut Choices<'_>) {
        if self.events.is_empty() {
            return;
        }
        let at = choices.below(self.events.len());
        let Some(new) = changed(&self.events[at], vocabulary, choices) else {
            return;
        };
        let old = std::mem::replace(&mut self.events[at], new.clone());
        if !choices.once_in(3) {
            return;
        }
        // Other events get this change, too: all ranks of a collective, or all processes of a job.
        let kind = |event: &Event| match &event.body {
            Body::Mpi(call) => Some(call.record.function),
            _ => None,
        };
        for event in &mut self.events {
            if std::mem::discriminant(&event.body) == std::mem::discriminant(&old.body)
                && kind(event) == kind(&old)
            {
                match (&mut event.body, &new.body) {
                    (Body::Mpi(call), Body::Mpi(new)) => {
                        let rank = call.record.rank;
                        call.record = new.record.clone();
                        call.record.rank = rank;
                    }
                    (Body::Process(hello), Body::Process(new)) => {
                        hello.world_size = new.world_size;
                        hello.flavour = new.flavour;
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Returns a value of the same type with one change; None if the changed value is not of this type.
fn changed<T: serde::Serialize + serde::de::DeserializeOwned>(
    value: &T,
    vocabulary: &Vocabulary,
    choices: &mut Choices<'_>,
) -> Option<T> {
    let mut value = serde_json::to_value(value).ok()?;
    json::mutate(&mut value, vocabulary, choices);
    serde_json::from_value(value).ok()
}

/// Returns the values that each field has in these traces, and special peers for the fields that contain a rank.
pub fn vocabulary(traces: &[Trace]) -> Vocabulary {
    let mut vocabulary = Vocabulary::default();
    for trace in traces {
        for event in &trace.events {
            vocabulary.learn(&serde_json::to_value(event).unwrap_or(Value::Null));
        }
    }
    let peers = [Peer::None, Peer::Null, Peer::Any, Peer::Outside];
    for (name, peers) in ["rank", "root", "source", "destination"].map(|name| (name, peers)) {
        for peer in peers {
            vocabulary.learn(&serde_json::json!({ name: peer }));
        }
    }
    vocabulary
}

/// A trace in construction.
struct Maker {
    trace: Trace,
    clocks: Vec<u64>,
    serial: u64,
}

const RANKS: u32 = 4;

impl Maker {
    fn new() -> Maker {
        let node = |name: &str| NodeEntry {
            name: name.into(),
            vcpus: 2,
            frequency_hz: 1_000_000_000,
        };
        let mut maker = Maker {
            trace: Trace {
                header: Header::new("seed", "0", vec![node("node0"), node("node1")]),
                events: Vec::new(),
            },
            clocks: vec![1_000_000; RANKS as usize],
            serial: 0,
        };
        for rank in 0..RANKS {
            maker.push(
                rank,
                Body::Process(Hello {
                    kind: ProcessKind::MpiRank,
                    rank: Peer::Rank(rank),
                    world_size: RANKS,
                    pid: 100 + rank,
                    flavour: Flavour::OpenMpi,
                    host: format!("node{}", rank / 2),
                    program: "program".into(),
                }),
            );
        }
        maker.all(Function::Init, |_, _| {});
        maker
    }

    fn stamp(&self, rank: u32) -> Stamp {
        let time = self.clocks[rank as usize];
        Stamp {
            time,
            instructions: time / 1000,
            vcpu: rank % 2,
        }
    }

    fn push(&mut self, rank: u32, body: Body) {
        let stamp = self.stamp(rank);
        self.trace.events.push(Event {
            node: rank / 2,
            sequence: self.trace.events.len() as u64,
            stamp,
            body,
        });
    }

    fn record(&mut self, rank: u32, function: Function) -> MpiRecord {
        let thread = ThreadId {
            pid: 100 + rank,
            tid: 100 + rank,
        };
        let mut record = MpiRecord::new(function, thread, Peer::Rank(rank), self.serial);
        record.call_site = 0x1000 + function as u64;
        record.communicator = 1;
        record.communicator_size = RANKS;
        record.element_size = 8;
        record
    }

    fn call(&mut self, rank: u32, function: Function, fill: impl FnOnce(u32, &mut MpiRecord)) {
        self.serial += 1;
        let mut record = self.record(rank, function);
        fill(rank, &mut record);
        self.clocks[rank as usize] += 100_000;
        let entry = self.stamp(rank);
        self.clocks[rank as usize] += 20_000;
        let exit = self.stamp(rank);
        let call = MpiCall {
            record,
            entry,
            exit,
            time_inside: 20_000,
            instructions_inside: 20,
            entry_seen: true,
        };
        self.push(rank, Body::Mpi(Box::new(call)));
    }

    fn all(&mut self, function: Function, fill: impl Fn(u32, &mut MpiRecord)) {
        for rank in 0..RANKS {
            self.call(rank, function, &fill);
        }
    }

    fn finish(mut self) -> Trace {
        self.all(Function::Finalize, |_, _| {});
        self.push(0, Body::JobExit(0));
        self.trace.events.sort_by_key(Event::key);
        self.trace
    }
}

fn next(rank: u32) -> u32 {
    (rank + 1) % RANKS
}

fn before(rank: u32) -> u32 {
    (rank + RANKS - 1) % RANKS
}

fn done(request: u64, rank: u32, bytes: u64) -> Completion {
    Completion {
        request,
        bytes,
        index: 0,
        source: Peer::Rank(before(rank)),
        tag: Tag::Value(7),
        cancelled: false,
    }
}

/// Fills in a record: a send to the next rank, and a receive from the previous rank.
fn ring(rank: u32, record: &mut MpiRecord) {
    (record.destination, record.source) = (Peer::Rank(next(rank)), Peer::Rank(before(rank)));
    (record.send_tag, record.receive_tag) = (Tag::Value(7), Tag::Value(7));
    (record.send_bytes, record.receive_bytes) = (4096, 4096);
}

/// Returns a trace of messages of all kinds in loops, and of collectives.
fn messages() -> Trace {
    let mut maker = Maker::new();
    for turn in 0..3 {
        maker.all(Function::Sendrecv, |rank, record| {
            ring(rank, record);
            record.completions = vec![done(0, rank, 4096)];
        });
        maker.all(Function::Irecv, |rank, record| {
            ring(rank, record);
            (record.destination, record.send_tag, record.send_bytes) = (Peer::None, Tag::None, 0);
            (record.source, record.request) = (Peer::Any, 1 + turn);
            record.receive_bytes = 1 << 20;
        });
        maker.all(Function::Isend, |rank, record| {
            ring(rank, record);
            (record.source, record.receive_tag, record.receive_bytes) = (Peer::None, Tag::None, 0);
            (record.request, record.send_bytes) = (100 + turn, 100_000);
        });
        maker.all(Function::Waitall, |rank, record| {
            record.requests = vec![1 + turn, 100 + turn];
            let sent = Completion {
                request: 100 + turn,
                index: 1,
                ..Completion::default()
            };
            record.completions = vec![done(1 + turn, rank, 100_000), sent];
        });
        maker.all(Function::Allreduce, |_, record| {
            (record.send_bytes, record.receive_bytes) = (80, 80);
        });
        maker.all(Function::Alltoallv, |_, record| {
            (record.send_bytes, record.receive_bytes) = (400, 400);
            record.send_bytes_to = vec![100; 4];
            record.receive_bytes_from = vec![100; 4];
        });
    }
    maker.push(0, Body::WindowOpen("window".into()));
    maker.push(0, Body::Mark("mark".into()));
    maker.push(1, Body::Message("message".into()));
    maker.push(0, Body::WindowClose("window".into()));
    maker.finish()
}

/// Returns a trace in which rank 0 calls each function of the tracer but `InitThread`, with arguments in many fields.
fn functions() -> Trace {
    let mut maker = Maker::new();
    let functions = Function::ALL.iter().copied();
    let inner = functions.filter(|function| {
        !matches!(
            function,
            Function::Init | Function::InitThread | Function::Finalize
        )
    });
    for (number, function) in inner.enumerate() {
        // Only one function in four is called on all ranks, so that the trace stays small.
        let ranks = if number % 4 == 0 { RANKS } else { 1 };
        for rank in 0..ranks {
            maker.call(rank, function, |rank, record| {
                ring(rank, record);
                record.root = Peer::Rank(0);
                record.request = number as u64;
                record.object = 5;
                record.requests = vec![number as u64 / 2];
                record.prepared = vec![number as u64 / 3];
                record.completions = vec![done(number as u64 / 2, rank, 8)];
                record.destinations = vec![Peer::Rank(next(rank)), Peer::Null];
                record.sources = vec![Peer::Rank(before(rank))];
            });
        }
    }
    maker.finish()
}

/// Returns a trace of communicators, RMA, neighbour collectives and persistent requests that belong together.
fn windows() -> Trace {
    let mut maker = Maker::new();
    maker.all(Function::CommSplit, |rank, record| {
        record.new_communicator = 1 << 63 | 77;
        if rank == 0 {
            record.members = (0..RANKS).rev().map(Peer::Rank).collect();
        }
    });
    maker.all(Function::Bcast, |_, record| {
        record.communicator = 1 << 63 | 77;
        (record.root, record.send_bytes, record.receive_bytes) = (Peer::Rank(3), 64, 64);
    });
    let window = |record: &mut MpiRecord| record.object = 1 << 62 | 5;
    maker.all(Function::WinCreate, |_, record| window(record));
    for _ in 0..2 {
        maker.all(Function::Put, |rank, record| {
            window(record);
            (record.destination, record.send_bytes) = (Peer::Rank(next(rank)), 512);
        });
        maker.all(Function::Get, |rank, record| {
            window(record);
            (record.source, record.receive_bytes) = (Peer::Rank(before(rank)), 512);
        });
        maker.all(Function::WinFence, |_, record| window(record));
    }
    maker.all(Function::WinFree, |_, record| window(record));
    let near = |rank: u32, record: &mut MpiRecord| {
        record.sources = vec![Peer::Rank(before(rank)), Peer::Rank(next(rank))];
        record.destinations = vec![Peer::Rank(before(rank)), Peer::Rank(next(rank))];
        (record.send_bytes, record.receive_bytes) = (16, 16);
    };
    maker.all(Function::NeighborAlltoall, near);
    maker.all(Function::SendInit, |rank, record| {
        (record.destination, record.send_tag) = (Peer::Rank(next(rank)), Tag::Value(7));
        (record.send_bytes, record.request) = (2048, 1);
    });
    maker.all(Function::RecvInit, |rank, record| {
        (record.source, record.receive_tag) = (Peer::Rank(before(rank)), Tag::Value(7));
        (record.receive_bytes, record.request) = (2048, 2);
    });
    for turn in 0..3 {
        maker.all(Function::Startall, |_, record| {
            (record.requests, record.prepared) = (vec![10 + turn, 20 + turn], vec![1, 2]);
        });
        maker.all(Function::Waitall, |rank, record| {
            record.requests = vec![10 + turn, 20 + turn];
            let sent = Completion {
                request: 10 + turn,
                ..Completion::default()
            };
            record.completions = vec![sent, done(20 + turn, rank, 2048)];
        });
    }
    maker.finish()
}

/// Returns the trace of a deadlock: calls that never ended, a poll run, and a message that no rank received.
fn pending() -> Trace {
    let mut maker = Maker::new();
    maker.call(0, Function::Isend, |rank, record| {
        ring(rank, record);
        record.request = 1;
    });
    maker.call(1, Function::Test, |_, record| {
        record.flags = nodescope_hypercall::record::Flags::POLL_RUN;
        (record.requests, record.calls) = (vec![4], 50);
    });
    maker.all(Function::Barrier, |_, _| {});
    let ends = maker.clocks.iter().max().copied().unwrap_or(0) + 1_000_000;
    for rank in 0..RANKS {
        let function = match rank {
            0 => Function::Recv,
            1 => Function::Ssend,
            2 => Function::Allreduce,
            _ => Function::Waitall,
        };
        let mut record = maker.record(rank, function);
        ring(rank, &mut record);
        record.requests = vec![1];
        let unfinished = Unfinished {
            function,
            rank: Peer::Rank(rank),
            thread: record.thread,
            sequence: record.sequence,
            entry: maker.stamp(rank),
            record: Some(record),
        };
        maker.clocks[rank as usize] = ends;
        maker.push(rank, Body::Unfinished(Box::new(unfinished)));
    }
    maker.trace.events.sort_by_key(Event::key);
    maker.trace
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_come_back_from_their_files() {
        for seed in Trace::seeds() {
            let back = Trace::decode(&seed.encode().unwrap()).unwrap();
            assert_eq!((back.header, back.events), (seed.header, seed.events));
        }
    }

    #[test]
    fn most_mutations_can_be_encoded() {
        let seeds = Trace::seeds();
        let vocabulary = vocabulary(&seeds);
        let mut different = 0;
        for case in 0..200 {
            let bytes = crate::choices::bytes(1, case);
            let mut choices = Choices::new(&bytes);
            let seed = &seeds[case as usize % seeds.len()];
            let mut trace = seed.clone();
            trace.mutate(&vocabulary, &seeds, &mut choices);
            let back = trace.encode().and_then(|bytes| Trace::decode(&bytes));
            different += u32::from(back.is_some_and(|back| back.events != seed.events));
        }
        assert!(different > 120, "{different}");
    }
}
