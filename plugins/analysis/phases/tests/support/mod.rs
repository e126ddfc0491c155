//! Traces of synthetic programs, event by event.

#![allow(dead_code, reason = "each test file uses some of it")]

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, Tag, ThreadId};
use nodescope_loop_tree::sequence::Sequences;
use nodescope_phases::{Include, Message, Messages};
use nodescope_predict::{Choice, Library};
use nodescope_trace::{Body, Event, MpiCall, Stamp};

/// Picoseconds of a millisecond.
pub const MS: u64 = 1_000_000_000;
/// Picoseconds of a second.
pub const SECOND: u64 = 1000 * MS;

/// A trace being written.
pub struct Trace {
    pub ranks: u32,
    events: Vec<Event>,
}

impl Trace {
    /// Returns a trace whose ranks leave initialisation at time 0.
    pub fn new(ranks: u32) -> Trace {
        let mut trace = Trace {
            ranks,
            events: Vec::new(),
        };
        for rank in 0..ranks {
            let hello = Hello {
                kind: ProcessKind::MpiRank,
                rank: Peer::Rank(rank),
                world_size: ranks,
                pid: 1000 + rank,
                flavour: Flavour::OpenMpi,
                host: format!("n{rank}"),
                program: "synthetic".into(),
            };
            trace.push(rank, 0, Body::Process(hello));
        }
        for rank in 0..ranks {
            trace.call(rank, Function::Init, 0, 0, |_| {});
        }
        trace
    }

    fn push(&mut self, rank: u32, time: u64, body: Body) {
        self.events.push(Event {
            node: rank,
            sequence: self.events.len() as u64,
            stamp: Stamp {
                time,
                instructions: time,
                vcpu: 0,
            },
            body,
        });
    }

    /// Adds a call.
    pub fn call(
        &mut self,
        rank: u32,
        function: Function,
        from: u64,
        to: u64,
        fill: impl FnOnce(&mut MpiRecord),
    ) {
        let thread = ThreadId {
            pid: 1000 + rank,
            tid: 1000 + rank,
        };
        let mut record = MpiRecord::new(function, thread, Peer::Rank(rank), from);
        record.communicator = communicator::WORLD;
        record.call_site = u64::from(function as u16);
        fill(&mut record);
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

    /// Adds an `MPI_Sendrecv` of one millisecond that sends and receives `bytes` bytes.
    pub fn exchange(&mut self, rank: u32, (to, from): (u32, u32), bytes: u64, time: u64) {
        self.call(rank, Function::Sendrecv, time, time + MS, |record| {
            record.destination = Peer::Rank(to);
            record.source = Peer::Rank(from);
            record.send_bytes = bytes;
            record.receive_bytes = bytes;
            record.send_tag = Tag::Value(0);
            record.receive_tag = Tag::Value(0);
        });
    }

    /// Ends all ranks at a time.
    pub fn end(&mut self, time: u64) {
        for rank in 0..self.ranks {
            self.call(rank, Function::Finalize, time, time, |_| {});
        }
    }

    /// Returns the program.
    pub fn sequences(&self) -> Sequences {
        let mut events = self.events.clone();
        events.sort_by_key(|event| event.stamp.time);
        Sequences::from_events(&events).unwrap()
    }

    /// Returns the messages of point-to-point calls.
    pub fn messages(&self) -> Messages {
        Messages::new(&self.sequences(), Include::default(), &choice())
    }
}

/// Returns the choice of collectives' algorithms that Open MPI makes.
pub fn choice() -> Choice {
    Choice {
        library: Library::OpenMpi,
        fixed: Default::default(),
    }
}

/// Returns a trace of four shifts on a torus of 4 rows and 8 columns: up, right, left, down, with a second of sleep after each.
pub fn torus() -> Trace {
    let (rows, columns) = (4, 8);
    let mut trace = Trace::new(rows * columns);
    for (number, (down, right)) in [(3, 0), (0, 1), (0, 7), (1, 0)].into_iter().enumerate() {
        let time = number as u64 * (SECOND + MS);
        for rank in 0..rows * columns {
            let (row, column) = (rank / columns, rank % columns);
            let at =
                |down: u32, right: u32| (row + down) % rows * columns + (column + right) % columns;
            let whom = (at(down, right), at(rows - down, columns - right));
            trace.exchange(rank, whom, 1 << 20, time);
        }
    }
    trace.end(4 * (SECOND + MS));
    trace
}

/// Returns an n-qubit Hadamard transform of a vector that is distributed over a power of two of ranks: a gate on each qubit, the most
/// significant first. A gate on one of the log2(ranks) most significant qubits exchanges each rank's part with a partner, in pieces;
/// the other gates need no message. On 32 ranks a gate takes 1 s with messages and 250 ms without; twice the ranks take half as long.
pub fn hadamard(qubits: u32, ranks: u32) -> Trace {
    let mut trace = Trace::new(ranks);
    let distributed = ranks.ilog2();
    let part = (16u64 << qubits) / u64::from(ranks);
    let gate = 32 * SECOND / u64::from(ranks);
    let pieces = 16;
    for number in 0..distributed {
        let distance = ranks >> (number + 1);
        for piece in 0..pieces {
            let time = u64::from(number) * gate + piece * (gate / pieces);
            for rank in 0..ranks {
                let partner = rank ^ distance;
                trace.exchange(rank, (partner, partner), part / pieces, time);
            }
        }
    }
    trace.end(u64::from(distributed) * gate + u64::from(qubits - distributed) * gate / 4);
    trace
}

/// Returns a conjugate-gradient solver like HPCG on 32 ranks as 4 x 4 x 2: in each iteration of 20 ms every rank sends a face of 32 x 32
/// numbers to each of its neighbours, one after the other, and computes.
pub fn solver(run: u64) -> Trace {
    let size = [4u32, 4, 2];
    let mut trace = Trace::new(32);
    let iteration = 20 * MS;
    for number in 0..run / iteration {
        for rank in 0..32u32 {
            let at = [rank % 4, rank / 4 % 4, rank / 16];
            let mut time = number * iteration;
            for dimension in 0..3 {
                for step in [-1i64, 1] {
                    let moved = i64::from(at[dimension]) + step;
                    if moved < 0 || moved >= i64::from(size[dimension]) {
                        continue;
                    }
                    let mut other = at;
                    other[dimension] = moved as u32;
                    let to = other[0] + 4 * other[1] + 16 * other[2];
                    trace.call(rank, Function::Send, time, time + MS, |record| {
                        record.destination = Peer::Rank(to);
                        record.send_bytes = 8 * 32 * 32;
                        record.send_tag = Tag::Value(0);
                    });
                    time += MS;
                }
            }
        }
    }
    trace.end(run);
    trace
}

/// Returns a message, for lists written by hand.
pub fn message(time: u64, from: u32, to: u32, bytes: u64) -> Message {
    Message {
        time,
        from,
        to,
        bytes,
    }
}
