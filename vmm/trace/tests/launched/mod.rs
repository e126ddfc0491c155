//! Events of MPI programs that a job starts, one after the other or at the same time, for tests of several crates.

#![allow(dead_code, reason = "each test uses some of it")]

use nodescope_hypercall::{
    Completion, Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, Tag, ThreadId,
};
use nodescope_trace::{Body, Event, Header, MpiCall, NodeEntry, Stamp};

/// A program that a launcher starts.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    pub name: &'static str,
    pub ranks: u32,
    /// Process id of rank 0; the other ranks follow.
    pub pid: u32,
    /// Time at which the program starts, picoseconds.
    pub start: u64,
    /// The launcher's id; 0 if the trace lacks it.
    pub id: u64,
    /// Number of steps: messages around a ring, and a collective operation.
    pub steps: u32,
}

const MICROSECOND: u64 = 1_000_000;

impl Launch {
    /// Returns a program of these ranks, whose other figures follow from the number of the launch.
    pub fn new(number: u32, name: &'static str, ranks: u32, start_us: u64) -> Launch {
        Launch {
            name,
            ranks,
            pid: 100 + 50 * number,
            start: start_us * MICROSECOND,
            id: 0xabc0 + u64::from(number),
            steps: 3 + number,
        }
    }

    /// Returns the program as traces of earlier releases have it, without the launcher's id.
    pub fn without_id(self) -> Launch {
        Launch { id: 0, ..self }
    }

    /// Returns the events of the program: ranks are on two nodes in turn.
    pub fn events(&self) -> Vec<Event> {
        (0..self.ranks).flat_map(|rank| self.rank(rank)).collect()
    }

    fn rank(&self, rank: u32) -> Vec<Event> {
        let mut rank = Rank {
            launch: self,
            rank,
            // Each rank comes a little later than the one before.
            now: self.start + u64::from(rank) * 3 * MICROSECOND,
            events: Vec::new(),
        };
        rank.run();
        rank.events
    }
}

struct Rank<'a> {
    launch: &'a Launch,
    rank: u32,
    now: u64,
    events: Vec<Event>,
}

impl Rank<'_> {
    fn push(&mut self, body: Body) {
        let stamp = stamp(self.now);
        self.events.push(Event {
            node: self.rank % 2,
            sequence: 0,
            stamp,
            body,
        });
    }

    fn call(&mut self, function: Function, time: u64, fill: impl FnOnce(&mut MpiRecord)) {
        let pid = self.launch.pid + self.rank;
        let thread = ThreadId { pid, tid: pid };
        let sequence = self.events.len() as u64;
        let mut record = MpiRecord::new(function, thread, Peer::Rank(self.rank), sequence);
        record.communicator = 1;
        record.communicator_size = self.launch.ranks;
        record.call_site = 0x1000 + function as u64;
        fill(&mut record);
        let entry = stamp(self.now);
        self.now += time;
        self.push(Body::Mpi(Box::new(MpiCall {
            record,
            entry,
            exit: stamp(self.now),
            time_inside: time,
            instructions_inside: time / 1000,
            entry_seen: true,
        })));
        // Work between the calls, of which each rank has another amount.
        self.now += (10 + u64::from(self.rank) * 7) * MICROSECOND;
    }

    fn run(&mut self) {
        let Launch {
            name,
            ranks,
            pid,
            id,
            steps,
            ..
        } = *self.launch;
        self.now += 40 * MICROSECOND;
        self.push(Body::Process(Hello {
            kind: ProcessKind::MpiRank,
            rank: Peer::Rank(self.rank),
            world_size: ranks,
            pid: pid + self.rank,
            flavour: Flavour::OpenMpi,
            host: format!("node{}", self.rank % 2),
            program: name.into(),
        }));
        self.now -= 40 * MICROSECOND;
        self.call(Function::Init, 40 * MICROSECOND + 1, |record| {
            record.object = id;
        });
        for step in 0..steps {
            let (to, from) = ((self.rank + 1) % ranks, (self.rank + ranks - 1) % ranks);
            let bytes = 100 * (u64::from(step) + u64::from(ranks));
            self.call(Function::Send, 2 * MICROSECOND, |record| {
                (record.destination, record.send_tag) = (Peer::Rank(to), Tag::Value(step));
                record.send_bytes = bytes;
            });
            self.call(Function::Recv, 9 * MICROSECOND, |record| {
                (record.source, record.receive_tag) = (Peer::Rank(from), Tag::Value(step));
                record.receive_bytes = bytes;
                record.completions.push(Completion {
                    bytes,
                    source: Peer::Rank(from),
                    tag: Tag::Value(step),
                    ..Completion::default()
                });
            });
            self.call(Function::Allreduce, 30 * MICROSECOND, |record| {
                record.send_bytes = 8;
            });
        }
        self.call(Function::Finalize, 20 * MICROSECOND, |_| {});
    }
}

fn stamp(time: u64) -> Stamp {
    Stamp {
        time,
        instructions: time / 1000,
        vcpu: 0,
    }
}

/// Returns the events of a job that starts these programs, in the order of a trace.
pub fn job(programs: &[Launch]) -> Vec<Event> {
    let mut events: Vec<Event> = programs.iter().flat_map(Launch::events).collect();
    // The introduction comes before the record of the initialisation, as in the order in which a process reports.
    events.sort_by_key(|event| (event.stamp.time, event.node));
    let mut next = [0; 2];
    for event in &mut events {
        let next = &mut next[event.node as usize];
        event.sequence = *next;
        *next += 1;
    }
    events
}

/// Returns the header of these traces: two nodes.
pub fn header() -> Header {
    let node = |name: &str| NodeEntry {
        name: name.into(),
        vcpus: 4,
        frequency_hz: 1_000_000_000,
    };
    Header::new("job", "0", vec![node("node0"), node("node1")])
}

/// Returns pairs of programs with a name for each: one after the other and at the same time, of the same size and of others, of one name
/// and of two.
pub fn pairs() -> Vec<(&'static str, [Launch; 2])> {
    let pair = |second: &'static str, ranks, start| {
        [
            Launch::new(0, "heat", 4, 10),
            Launch::new(1, second, ranks, start),
        ]
    };
    vec![
        ("one after the other", pair("heat", 4, 5000)),
        ("one after the other, other size", pair("heat", 2, 5000)),
        ("at the same time", pair("heat", 4, 11)),
        ("at the same time, other size", pair("heat", 2, 11)),
        ("at the same time, other name", pair("ring", 4, 11)),
        ("the same moment", pair("heat", 4, 10)),
        (
            "one rank each",
            [Launch::new(0, "heat", 1, 10), Launch::new(1, "heat", 1, 10)],
        ),
    ]
}
