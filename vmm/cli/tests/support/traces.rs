//! A trace that tests write.

use std::path::Path;

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, ThreadId};
use nodescope_trace::{Body, Event, Header, MpiCall, NodeEntry, Stamp, TraceWriter};

/// Writes the trace of two ranks on one node that call MPI_Barrier twice.
pub fn trace(path: &Path) {
    let node = NodeEntry {
        name: "node0".into(),
        vcpus: 2,
        frequency_hz: 1_000_000_000,
    };
    let mut writer = TraceWriter::create(path, &Header::new("s", "0123", vec![node])).unwrap();
    let mut sequence = 0;
    let mut write = |time, rank, body| {
        let stamp = Stamp {
            time,
            instructions: time / 1000,
            vcpu: rank,
        };
        let event = Event {
            node: 0,
            sequence,
            stamp,
            body,
        };
        writer.write(&event).unwrap();
        sequence += 1;
    };
    for rank in 0..2 {
        let hello = Hello {
            kind: ProcessKind::MpiRank,
            rank: Peer::Rank(rank),
            world_size: 2,
            pid: 100 + rank,
            flavour: Flavour::OpenMpi,
            host: "node0".into(),
            program: "program".into(),
        };
        write(1_000_000, rank, Body::Process(hello));
    }
    for call in 0..2_u64 {
        for rank in 0..2 {
            let thread = ThreadId {
                pid: 100 + rank,
                tid: 100 + rank,
            };
            let mut record = MpiRecord::new(Function::Barrier, thread, Peer::Rank(rank), call);
            record.communicator = communicator::WORLD;
            record.communicator_size = 2;
            let stamp = |time| Stamp {
                time,
                instructions: time / 1000,
                vcpu: rank,
            };
            let (entry, exit) = (2_000_000 * (call + 1), 2_000_000 * (call + 1) + 500_000);
            let call = MpiCall {
                record,
                entry: stamp(entry),
                exit: stamp(exit),
                time_inside: exit - entry,
                instructions_inside: (exit - entry) / 1000,
                entry_seen: true,
            };
            write(exit, rank, Body::Mpi(Box::new(call)));
        }
    }
    writer.finish().unwrap();
}
