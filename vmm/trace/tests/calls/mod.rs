//! Traces for tests of pending calls.

#![allow(dead_code, reason = "each test uses some of it")]

use nodescope_hypercall::{
    Completion, Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, Tag, ThreadId,
};
use nodescope_trace::pending::Waits;
use nodescope_trace::{Body, Event, MpiCall, PendingCalls, Stamp, Unfinished};

pub const WORLD: u64 = 1;

/// Trace that a test builds. Each rank has one thread.
pub struct Trace {
    pub events: Vec<Event>,
    serial: u64,
}

pub fn thread(rank: u32) -> ThreadId {
    ThreadId {
        pid: 100 + rank,
        tid: 100 + rank,
    }
}

impl Trace {
    pub fn new(world: u32) -> Trace {
        let mut trace = Trace {
            events: Vec::new(),
            serial: 0,
        };
        for rank in 0..world {
            trace.push(Body::Process(Hello {
                kind: ProcessKind::MpiRank,
                rank: Peer::Rank(rank),
                world_size: world,
                pid: 100 + rank,
                flavour: Flavour::OpenMpi,
                host: "n0".into(),
                program: "p".into(),
            }));
        }
        trace
    }

    pub fn push(&mut self, body: Body) {
        let sequence = self.events.len() as u64;
        self.events.push(Event {
            node: 0,
            sequence,
            stamp: Stamp {
                time: sequence,
                ..Stamp::default()
            },
            body,
        });
    }

    /// Adds a call that ended.
    pub fn call(&mut self, record: MpiRecord) -> &mut Trace {
        self.push(Body::Mpi(Box::new(MpiCall {
            record,
            entry: Stamp::default(),
            exit: Stamp::default(),
            time_inside: 0,
            instructions_inside: 0,
            entry_seen: true,
        })));
        self
    }

    /// Adds a call that ended and started a request. Returns the request's serial.
    pub fn start(&mut self, mut record: MpiRecord) -> u64 {
        self.serial += 1;
        record.request = self.serial;
        self.call(record);
        self.serial
    }

    /// Adds a call that did not end.
    pub fn unfinished(&mut self, record: MpiRecord) -> &mut Trace {
        self.push(Body::Unfinished(Box::new(Unfinished {
            function: record.function,
            rank: record.rank,
            thread: record.thread,
            sequence: record.sequence,
            entry: Stamp::default(),
            record: Some(record),
        })));
        self
    }

    /// Adds a call that ended, for each of these ranks.
    pub fn all(
        &mut self,
        ranks: std::ops::Range<u32>,
        call: impl Fn(u32) -> MpiRecord,
    ) -> &mut Trace {
        ranks.for_each(|rank| {
            self.call(call(rank));
        });
        self
    }

    pub fn pending(&self) -> PendingCalls {
        PendingCalls::of(&self.events)
    }

    /// Returns the ranks that are deadlocked, and the cycle; `None` without a deadlock.
    pub fn deadlock(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let pending = self.pending();
        assert!(pending.deadlocks.len() <= 1, "{pending:?}");
        let first = pending.deadlocks.first()?;
        Some((first.ranks.clone(), first.cycle.clone()))
    }

    /// Returns the need of a rank's pending call: the ranks for which the call waits, and whether all of them must act. Returns `None` if
    /// the need is not known, the call polls, or the rank has no pending call.
    pub fn needs(&self, rank: u32) -> Option<(Vec<u32>, bool)> {
        let pending = self.pending();
        let mut calls = pending.calls.iter();
        let call = calls.find(|call| call.rank == Some(rank))?;
        match &call.waits {
            Waits::Waiting { ranks, all, .. } => Some((ranks.clone(), *all)),
            Waits::Ready => Some((Vec::new(), true)),
            Waits::Polling { .. } | Waits::Unknown => None,
        }
    }
}

/// Result of [`Trace::needs`] for a call that was about to continue.
pub const READY: Option<(Vec<u32>, bool)> = Some((Vec::new(), true));

pub fn record(rank: u32, function: Function, site: u64) -> MpiRecord {
    let mut record = MpiRecord::new(function, thread(rank), Peer::Rank(rank), 0);
    record.communicator = WORLD;
    record.call_site = site;
    record
}

pub fn send(rank: u32, to: u32, tag: u32, bytes: u64) -> MpiRecord {
    let mut send = record(rank, Function::Send, 0x10);
    (send.destination, send.send_tag, send.send_bytes) = (Peer::Rank(to), Tag::Value(tag), bytes);
    send
}

pub fn receive(rank: u32, from: Peer, tag: Tag) -> MpiRecord {
    let mut receive = record(rank, Function::Recv, 0x20);
    (receive.source, receive.receive_tag, receive.receive_bytes) = (from, tag, 64);
    receive
}

pub fn got(mut receive: MpiRecord, from: u32, tag: u32) -> MpiRecord {
    receive.completions.push(Completion {
        source: Peer::Rank(from),
        tag: Tag::Value(tag),
        ..Completion::default()
    });
    receive
}

pub fn as_function(mut record: MpiRecord, function: Function) -> MpiRecord {
    record.function = function;
    record
}

pub fn wait(rank: u32, function: Function, serials: &[u64]) -> MpiRecord {
    let mut wait = record(rank, function, 0x30);
    wait.communicator = 0;
    wait.requests = serials.to_vec();
    wait
}
