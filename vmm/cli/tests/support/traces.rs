//! Traces that tests write.

use std::path::Path;

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, ThreadId};
use nodescope_trace::{Body, Event, Header, MpiCall, NodeEntry, Stamp, TraceWriter};

/// Writes the trace of two ranks on one node that call MPI_Barrier twice.
pub fn trace(path: &Path) {
    trace_of(path, &[0, 0], 2);
}

/// Writes the trace of ranks on these nodes of so many virtual CPUs. The ranks call MPI_Barrier twice.
pub fn trace_of(path: &Path, nodes: &[u32], vcpus: u32) {
    let count = nodes.iter().max().unwrap() + 1;
    let entries = (0..count).map(|node| NodeEntry {
        name: format!("node{node}"),
        vcpus,
        frequency_hz: 1_000_000_000,
    });
    let header = Header::new("s", "0123", entries.collect());
    let mut writer = TraceWriter::create(path, &header).unwrap();
    let mut sequences = vec![0; count as usize];
    let mut write = |time, rank: u32, body| {
        let stamp = Stamp {
            time,
            instructions: time / 1000,
            vcpu: rank,
        };
        let node = nodes[rank as usize];
        let event = Event {
            node,
            sequence: sequences[node as usize],
            stamp,
            body,
        };
        writer.write(&event).unwrap();
        sequences[node as usize] += 1;
    };
    let ranks = nodes.len() as u32;
    for rank in 0..ranks {
        let hello = Hello {
            kind: ProcessKind::MpiRank,
            rank: Peer::Rank(rank),
            world_size: ranks,
            pid: 100 + rank,
            flavour: Flavour::OpenMpi,
            host: format!("node{}", nodes[rank as usize]),
            program: "program".into(),
        };
        write(1_000_000, rank, Body::Process(hello));
    }
    for call in 0..2_u64 {
        for rank in 0..ranks {
            let thread = ThreadId {
                pid: 100 + rank,
                tid: 100 + rank,
            };
            let mut record = MpiRecord::new(Function::Barrier, thread, Peer::Rank(rank), call);
            record.communicator = communicator::WORLD;
            record.communicator_size = ranks;
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
