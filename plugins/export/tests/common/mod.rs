//! Synthetic traces for tests.

#![allow(dead_code, reason = "each test uses some of it")]

use std::path::{Path, PathBuf};

use nodescope_export::{Format, Options, Summary, export};
use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{
    Class, Completion, Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, Reduction, Tag,
    ThreadId,
};
use nodescope_trace::{Body, Event, Header, MpiCall, NodeEntry, Stamp, TraceWriter};

/// Builder of a trace of ranks on two nodes of two vCPUs: the first half of the ranks is on the first node. Each rank has its own clock.
pub struct Cluster {
    ranks: u32,
    clocks: Vec<u64>,
    sequences: Vec<u64>,
    serials: Vec<u64>,
    events: Vec<Event>,
}

/// Returns a builder whose ranks have introduced themselves.
pub fn trace(ranks: u32) -> Cluster {
    let mut cluster = Cluster {
        ranks,
        clocks: vec![1_000_000; ranks as usize],
        sequences: vec![0; ranks as usize],
        serials: vec![0; ranks as usize],
        events: Vec::new(),
    };
    for rank in 0..ranks {
        let node = cluster.node(rank);
        let hello = Hello {
            kind: ProcessKind::MpiRank,
            rank: Peer::Rank(rank),
            world_size: ranks,
            pid: 100 + rank,
            flavour: Flavour::OpenMpi,
            host: format!("node{node}"),
            program: "program".into(),
        };
        let stamp = cluster.stamp(rank);
        cluster.push(node, stamp, Body::Process(hello));
    }
    cluster
}

impl Cluster {
    fn node(&self, rank: u32) -> u32 {
        rank / self.ranks.div_ceil(2).max(1)
    }

    fn stamp(&self, rank: u32) -> Stamp {
        let time = self.clocks[rank as usize];
        Stamp {
            time,
            // The speed is one instruction for each nanosecond.
            instructions: time / 1000,
            vcpu: rank % 2,
        }
    }

    fn push(&mut self, node: u32, stamp: Stamp, body: Body) {
        self.events.push(Event {
            node,
            sequence: 0,
            stamp,
            body,
        });
    }

    /// Adds work of `time` picoseconds.
    pub fn work(&mut self, rank: u32, time: u64) {
        self.clocks[rank as usize] += time;
    }

    /// Adds a call of `time` picoseconds; `fill` completes its record.
    pub fn call(
        &mut self,
        rank: u32,
        function: Function,
        time: u64,
        fill: impl FnOnce(&mut MpiRecord),
    ) {
        let at = rank as usize;
        let thread = ThreadId {
            pid: 100 + rank,
            tid: 100 + rank,
        };
        let mut record = MpiRecord::new(function, thread, Peer::Rank(rank), self.sequences[at]);
        self.sequences[at] += 1;
        record.call_site = 0x1000 + function as u64;
        record.flags = Flags::CALL_SITE_IN_PROGRAM;
        record.communicator = communicator::WORLD;
        record.communicator_size = self.ranks;
        if record.function.class() == Class::Completion {
            record.communicator = communicator::NONE;
        }
        fill(&mut record);
        let entry = self.stamp(rank);
        self.clocks[at] += time;
        let exit = self.stamp(rank);
        let call = MpiCall {
            record,
            entry,
            exit,
            time_inside: time,
            instructions_inside: exit.instructions - entry.instructions,
            entry_seen: true,
        };
        let node = self.node(rank);
        self.push(node, exit, Body::Mpi(Box::new(call)));
    }

    /// Adds a call without arguments, which takes 2000 ps.
    pub fn simple(&mut self, rank: u32, function: Function) {
        self.call(rank, function, 2000, |_| {});
    }

    fn serial(&mut self, rank: u32) -> u64 {
        self.serials[rank as usize] += 1;
        self.serials[rank as usize]
    }

    /// Returns the events in the order of a trace file.
    pub fn finish(mut self) -> Vec<Event> {
        self.events.sort_by_key(Event::key);
        let mut next = [0; 2];
        for event in &mut self.events {
            event.sequence = next[event.node as usize];
            next[event.node as usize] += 1;
        }
        self.events
    }

    /// Writes the trace into a folder, and returns the path of the trace file.
    pub fn write(self, folder: &Path) -> PathBuf {
        write(folder, &self.finish())
    }
}

/// Writes events as a trace into a folder, and returns the path of the trace file.
pub fn write(folder: &Path, events: &[Event]) -> PathBuf {
    let node = |name: &str| NodeEntry {
        name: name.into(),
        vcpus: 2,
        frequency_hz: 1_000_000_000,
    };
    let header = Header::new("test", "0", vec![node("node0"), node("node1")]);
    let path = folder.join("trace.nst");
    let mut writer = TraceWriter::create(&path, &header).unwrap();
    events.iter().for_each(|event| writer.write(event).unwrap());
    writer.finish().unwrap();
    path
}

/// Exports events in a format to the subfolder `out` of a folder.
pub fn export_to(folder: &Path, events: &[Event], format: Format) -> Summary {
    let path = write(folder, events);
    export(&path, format, &folder.join("out"), &Options::default()).unwrap()
}

/// Number of messages of [`every_kind`].
pub const MESSAGES: u64 = 4 + 4 + 4 + 2;

/// Returns the events of four ranks with calls of many kinds. Messages are with and without requests, and some are received from any
/// source. Collective operations are with and without requests, on the world and on a smaller communicator.
pub fn every_kind() -> Vec<Event> {
    let mut c = trace(4);
    const SPLIT: u64 = 1 << 63 | 77;
    let next = |rank: u32| (rank + 1) % 4;
    let before = |rank: u32| (rank + 3) % 4;
    let message = |rank: u32, tag: u32, bytes: u64| Completion {
        bytes,
        source: Peer::Rank(rank),
        tag: Tag::Value(tag),
        ..Completion::default()
    };
    for rank in 0..4 {
        c.work(rank, 10_000 * u64::from(rank));
        c.simple(rank, Function::Init);
        c.work(rank, 500_000);
        // A ring in one call.
        c.call(rank, Function::Sendrecv, 30_000, |record| {
            (record.destination, record.source) =
                (Peer::Rank(next(rank)), Peer::Rank(before(rank)));
            (record.send_tag, record.receive_tag) = (Tag::Value(5), Tag::Any);
            (record.send_bytes, record.receive_bytes) = (4096, 8192);
            record.completions = vec![message(before(rank), 5, 4096)];
        });
        c.work(rank, 100_000);
        // A ring with requests, received from any source.
        let receive = c.serial(rank);
        c.call(rank, Function::Irecv, 1_000, |record| {
            (record.source, record.receive_tag) = (Peer::Any, Tag::Value(9));
            (record.request, record.receive_bytes) = (receive, 1 << 20);
        });
        let send = c.serial(rank);
        c.call(rank, Function::Isend, 1_000, |record| {
            (record.destination, record.send_tag) = (Peer::Rank(next(rank)), Tag::Value(9));
            (record.request, record.send_bytes) = (send, 300_000);
        });
        c.work(rank, 50_000);
        c.call(rank, Function::Waitall, 70_000, |record| {
            record.requests = vec![receive, send];
            record.completions = vec![
                Completion {
                    request: receive,
                    ..message(before(rank), 9, 300_000)
                },
                Completion {
                    request: send,
                    index: 1,
                    ..Completion::default()
                },
            ];
        });
        // Collective operations on the world.
        c.call(rank, Function::Allreduce, 20_000, |record| {
            (record.send_bytes, record.receive_bytes) = (800, 800);
            record.reduction = Reduction::Sum;
        });
        c.simple(rank, Function::Barrier);
        c.call(rank, Function::Bcast, 9_000, |record| {
            record.root = Peer::Rank(2);
            *(if rank == 2 {
                &mut record.send_bytes
            } else {
                &mut record.receive_bytes
            }) = 64;
        });
        c.call(rank, Function::Alltoallv, 9_000, |record| {
            record.send_bytes_to = (0..4).map(|to| 100 + u64::from(rank) * 10 + to).collect();
            record.receive_bytes_from = (0..4)
                .map(|from| 100 + from * 10 + u64::from(rank))
                .collect();
            record.send_bytes = record.send_bytes_to.iter().sum();
            record.receive_bytes = record.receive_bytes_from.iter().sum();
        });
        c.call(rank, Function::Gatherv, 9_000, |record| {
            record.root = Peer::Rank(1);
            record.send_bytes = 10 + u64::from(rank);
            if rank == 1 {
                record.receive_bytes_from = vec![10, 11, 12, 13];
                record.receive_bytes = 46;
            }
        });
        // A collective operation with a request.
        let request = c.serial(rank);
        c.call(rank, Function::Iallreduce, 1_000, |record| {
            (record.send_bytes, record.receive_bytes) = (16, 16);
            (record.request, record.reduction) = (request, Reduction::Max);
        });
        c.work(rank, 80_000);
        c.call(rank, Function::Wait, 4_000, |record| {
            record.requests = vec![request];
            record.completions = vec![Completion {
                request,
                ..Completion::default()
            }];
        });
        // Ranks 3 and 1, in this order, form a communicator.
        c.call(rank, Function::CommSplit, 20_000, |record| {
            if rank % 2 == 1 {
                record.new_communicator = SPLIT;
            }
            if rank == 3 {
                record.members = vec![Peer::Rank(3), Peer::Rank(1)];
            }
        });
        if rank % 2 == 1 {
            let other = 4 - rank;
            for function in [Function::Allreduce, Function::Reduce] {
                c.call(rank, function, 8_000, |record| {
                    (record.communicator, record.communicator_size) = (SPLIT, 2);
                    record.send_bytes = 24;
                    record.reduction = Reduction::Sum;
                    if function == Function::Reduce {
                        record.root = Peer::Rank(3);
                    }
                    if function == Function::Allreduce || rank == 3 {
                        record.receive_bytes = 24;
                    }
                });
            }
            // A message on the world with an equal tag must not be mistaken for this one.
            c.call(rank, Function::Sendrecv, 12_000, |record| {
                (record.communicator, record.communicator_size) = (SPLIT, 2);
                (record.destination, record.source) = (Peer::Rank(other), Peer::Rank(other));
                (record.send_tag, record.receive_tag) = (Tag::Value(5), Tag::Value(5));
                (record.send_bytes, record.receive_bytes) = (0, 100);
                record.completions = vec![message(other, 5, 0)];
            });
        }
        // A blocking ring in which even ranks send first.
        let send = |c: &mut Cluster| {
            c.call(rank, Function::Send, 5_000, |record| {
                (record.destination, record.send_tag) = (Peer::Rank(next(rank)), Tag::Value(3));
                record.send_bytes = 1000;
            });
        };
        let receive = |c: &mut Cluster| {
            c.call(rank, Function::Recv, 5_000, |record| {
                (record.source, record.receive_tag) = (Peer::Any, Tag::Any);
                record.receive_bytes = 2000;
                record.completions = vec![message(before(rank), 3, 1000)];
            });
        };
        if rank % 2 == 0 {
            send(&mut c);
            receive(&mut c);
        } else {
            receive(&mut c);
            send(&mut c);
        }
        c.work(rank, 40_000);
        c.simple(rank, Function::Finalize);
    }
    c.finish()
}

/// Returns the events of phases in which four ranks do the same. A phase is a kind (modulo 5: blocking ring, ring with requests, allreduce,
/// broadcast, barrier), a tag, and bytes.
pub fn phases(list: &[(u8, u32, u64)]) -> Vec<Event> {
    let mut c = trace(4);
    for rank in 0..4 {
        c.simple(rank, Function::Init);
    }
    for &(kind, tag, bytes) in list {
        for rank in 0..4 {
            let (next, before) = ((rank + 1) % 4, (rank + 3) % 4);
            let done = |request| Completion {
                request,
                bytes,
                source: Peer::Rank(before),
                tag: Tag::Value(tag),
                ..Completion::default()
            };
            c.work(rank, 1000 + bytes * (1 + u64::from(rank)));
            match kind % 5 {
                0 => c.call(rank, Function::Sendrecv, 9_000, |record| {
                    (record.destination, record.send_tag) = (Peer::Rank(next), Tag::Value(tag));
                    (record.source, record.receive_tag) = (Peer::Any, Tag::Any);
                    (record.send_bytes, record.receive_bytes) = (bytes, bytes + 1);
                    record.completions = vec![done(0)];
                }),
                1 => {
                    let (receive, send) = (c.serial(rank), c.serial(rank));
                    c.call(rank, Function::Irecv, 500, |record| {
                        (record.source, record.receive_tag) = (Peer::Rank(before), Tag::Any);
                        (record.request, record.receive_bytes) = (receive, bytes);
                    });
                    c.call(rank, Function::Issend, 500, |record| {
                        (record.destination, record.send_tag) = (Peer::Rank(next), Tag::Value(tag));
                        (record.request, record.send_bytes) = (send, bytes);
                    });
                    let sent = Completion {
                        request: send,
                        ..Completion::default()
                    };
                    for completion in [sent, done(receive)] {
                        c.call(rank, Function::Waitany, 4_000, |record| {
                            record.requests = vec![receive, send];
                            record.completions = vec![completion];
                        });
                    }
                }
                2 => c.call(rank, Function::Allreduce, 7_000, |record| {
                    (record.send_bytes, record.receive_bytes) = (bytes, bytes);
                }),
                3 => c.call(rank, Function::Bcast, 7_000, |record| {
                    record.root = Peer::Rank(tag % 4);
                    let own = tag % 4 == rank;
                    *(if own {
                        &mut record.send_bytes
                    } else {
                        &mut record.receive_bytes
                    }) = bytes;
                }),
                _ => c.simple(rank, Function::Barrier),
            }
        }
    }
    for rank in 0..4 {
        c.simple(rank, Function::Finalize);
    }
    c.finish()
}
