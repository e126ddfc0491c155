//! A small study, made by hand: two nodes of one vCPU, three ranks of which one never calls MPI.

#![allow(dead_code, reason = "not every test file uses everything")]

use std::path::Path;

use nodescope_hypercall::{Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, ThreadId};
use nodescope_plugin_api::{Context, Counters, Privilege, Statistic, Term, VcpuPlace};
use nodescope_report::{CoreCpi, NetworkCounts, ReportInput, StudyInfo};
use nodescope_trace::{Body, Event, Header, MpiCall, NodeEntry, Stamp, TraceWriter};
use nodescope_window::{
    CacheConfig, Ending, Measure, MemorySpec, ModelSpec, NodeRecord, Owner, Trigger, WindowOutcome,
    WindowRecord, WindowSpec, WindowsFile,
};

pub const GHZ: u64 = 2_000_000_000;

pub fn rank(rank: u32, mpi: Option<Function>) -> Owner {
    Owner::Rank {
        rank,
        program: "hpcc".into(),
        mpi,
    }
}

pub fn statistic(
    vcpu: u16,
    context: u32,
    event: &str,
    term: Term,
    count: u64,
    latency: u64,
) -> Statistic {
    Statistic {
        vcpu,
        context: Context(context),
        privilege: Privilege::User,
        event: event.into(),
        term,
        count,
        latency,
        cycles: count * latency,
    }
}

/// Returns the record of node 0, on which rank 0 and other code run, with the reference latencies. Rank 0 by hand, for 1000 instructions
/// outside MPI:
///
/// | term | cycles |
/// |---|---|
/// | core | 1000 + 50 = 1050 |
/// | L1 | 100 x 3 + 20 x 3 = 360 |
/// | L2 | 40 x 12 + 10 x 10 = 580 |
/// | L3 | 30 x 35 = 1050 |
/// | memory | 20 x 100 = 2000 local, 10 x 220 = 2200 remote |
/// | MPI | 200 executing + 300 stalled + 500 waiting = 1000, in 2 calls |
/// | sum | 8240 |
pub fn node0() -> NodeRecord {
    let row = |context, privilege, counters| (0, Context(context), privilege, counters);
    NodeRecord {
        node: 0,
        name: "node0".into(),
        frequency_hz: GHZ,
        nominal_cpi_65536: 65_536,
        vcpus: VcpuPlace::grid(1, 1, 1),
        cycles: vec![(100_000, 109_340)],
        counters: vec![
            row(
                1,
                Privilege::User,
                Counters {
                    instructions: 900,
                    long_cycles: 50,
                    stall_cycles: 6190,
                    loads: 300,
                    stores: 100,
                    fetches: 60,
                    flops: [0, 0, 100, 0, 0, 0, 400],
                    ..Counters::default()
                },
            ),
            row(
                1,
                Privilege::Kernel,
                Counters {
                    instructions: 100,
                    idle_cycles: 300,
                    ..Counters::default()
                },
            ),
            row(
                2,
                Privilege::User,
                Counters {
                    instructions: 200,
                    stall_cycles: 300,
                    idle_cycles: 500,
                    flops: [0, 0, 10, 0, 0, 0, 0],
                    ..Counters::default()
                },
            ),
            row(
                0,
                Privilege::Kernel,
                Counters {
                    instructions: 400,
                    idle_cycles: 400,
                    ..Counters::default()
                },
            ),
        ],
        statistics: vec![
            statistic(0, 1, "L1D.read_hit", Term::Cache(1), 200, 0),
            statistic(0, 1, "L1D.read_miss", Term::Cache(1), 100, 3),
            statistic(0, 1, "L1D.write_miss", Term::Cache(1), 20, 3),
            statistic(0, 1, "L2.read_miss", Term::Cache(2), 40, 12),
            statistic(0, 1, "L2.write_miss", Term::Cache(2), 10, 10),
            statistic(0, 1, "L2.miss", Term::None, 50, 0),
            statistic(0, 1, "L3.read_miss", Term::Cache(3), 30, 35),
            statistic(0, 1, "memory.local", Term::Memory, 20, 100),
            statistic(0, 1, "memory.remote", Term::Memory, 10, 220),
            statistic(0, 2, "memory.local", Term::Memory, 3, 100),
        ],
        core: None,
        owners: vec![
            Owner::Other,
            rank(0, None),
            rank(0, Some(Function::Allreduce)),
        ],
    }
}

/// Returns the record of node 1, on which rank 1 runs: 2000 instructions, no stall, 100 cycles in MPI_Send. The node is idle otherwise.
pub fn node1() -> NodeRecord {
    let counters = |instructions, idle_cycles| Counters {
        instructions,
        idle_cycles,
        ..Counters::default()
    };
    NodeRecord {
        node: 1,
        name: "node1".into(),
        frequency_hz: GHZ,
        nominal_cpi_65536: 65_536,
        vcpus: VcpuPlace::grid(1, 1, 1),
        cycles: vec![(50, 50 + 9340)],
        counters: vec![
            (0, Context(0), Privilege::User, counters(2000, 0)),
            (0, Context(1), Privilege::User, counters(100, 0)),
            (0, Context(2), Privilege::Kernel, counters(0, 7240)),
        ],
        statistics: Vec::new(),
        core: None,
        owners: vec![rank(1, None), rank(1, Some(Function::Send)), Owner::Other],
    }
}

pub fn spec(name: &str) -> WindowSpec {
    WindowSpec {
        name: name.into(),
        open: Trigger::MpiCall {
            function: Function::Barrier,
            call: 1,
            rank: 0,
        },
        warm_up: 1000,
        attribution: true,
        sampling: None,
        measure: Measure::Instructions(3000),
        models: ModelSpec {
            caches: Some(CacheConfig::xeon_e5_2690()),
            memory: Some(MemorySpec::numa()),
            core: None,
            registered: Vec::new(),
        },
    }
}

pub fn window(nodes: Vec<NodeRecord>) -> WindowRecord {
    WindowRecord {
        name: "solve".into(),
        spec: spec("solve"),
        triggered_ps: 900_000,
        opened_ps: 1_000_000,
        measured_from_ps: Some(2_000_000),
        closed_ps: 6_670_000,
        complete: true,
        intervals_ps: Vec::new(),
        nodes,
    }
}

pub fn outcome(name: &str, ending: Ending, text: &str) -> WindowOutcome {
    WindowOutcome {
        name: name.into(),
        ending,
        text: text.into(),
    }
}

fn event(node: u32, time: u64, body: Body) -> Event {
    Event {
        node,
        sequence: 0,
        stamp: Stamp {
            time,
            instructions: 0,
            vcpu: 0,
        },
        body,
    }
}

pub fn hello(node: u32, rank: u32) -> Event {
    hello_in(node, rank, 3)
}

pub fn hello_in(node: u32, rank: u32, world_size: u32) -> Event {
    event(
        node,
        500_000,
        Body::Process(Hello {
            kind: ProcessKind::MpiRank,
            rank: Peer::Rank(rank),
            world_size,
            pid: 100 + rank,
            flavour: Flavour::OpenMpi,
            host: format!("node{node}"),
            program: "hpcc".into(),
        }),
    )
}

fn thread(rank: u32) -> ThreadId {
    ThreadId {
        pid: 100 + rank,
        tid: 100 + rank,
    }
}

pub fn call(
    node: u32,
    rank: u32,
    function: Function,
    to: Option<u32>,
    bytes: u64,
    entry: u64,
    exit: u64,
) -> Event {
    let mut record = MpiRecord::new(function, thread(rank), Peer::Rank(rank), 0);
    record.send_bytes = bytes;
    record.destination = to.map_or(Peer::None, Peer::Rank);
    let stamp = |time| Stamp {
        time,
        instructions: 0,
        vcpu: 0,
    };
    event(
        node,
        exit,
        Body::Mpi(Box::new(MpiCall {
            record,
            entry: stamp(entry),
            exit: stamp(exit),
            time_inside: exit - entry,
            instructions_inside: 0,
            entry_seen: true,
        })),
    )
}

pub fn events() -> Vec<Event> {
    vec![
        hello(0, 0),
        hello(1, 1),
        hello(1, 2),
        call(0, 0, Function::Barrier, None, 0, 700_000, 900_000),
        call(0, 0, Function::Allreduce, None, 8, 2_500_000, 3_000_000),
        call(1, 1, Function::Send, Some(0), 4096, 3_500_000, 4_000_000),
        call(0, 0, Function::Allreduce, None, 8, 4_500_000, 4_900_000),
        call(0, 0, Function::Send, Some(1), 1 << 20, 6_000_000, 7_700_000),
    ]
}

pub fn header() -> Header {
    let node = |name: &str| NodeEntry {
        name: name.into(),
        vcpus: 1,
        frequency_hz: GHZ,
    };
    Header::new("demo", "abc123", vec![node("node0"), node("node1")])
}

pub fn write_trace(file: &Path, events: &[Event]) {
    let mut writer = TraceWriter::create(file, &header()).unwrap();
    for event in events {
        writer.write(event).unwrap();
    }
    writer.finish().unwrap();
}

pub fn input(trace: Option<&Path>, windows: Vec<WindowRecord>) -> ReportInput {
    let outcomes = vec![outcome("solve", Ending::Complete, "fine")];
    ReportInput {
        models: Vec::new(),
        memory_parallelism: 1.0,
        windows: WindowsFile::new("demo", "abc123", windows, outcomes),
        profiles: None,
        trace: trace.map(Into::into),
        study: StudyInfo {
            name: "demo".into(),
            id: "abc123".into(),
            description: vec![
                ("nodes".into(), "2 x 1 vCPU at 2.0 GHz".into()),
                ("job".into(), "hpcc <default> & more, 3 ranks".into()),
            ],
        },
        core: CoreCpi::Nominal {
            source: "stated in the study: 1.0".into(),
        },
        network: vec![NetworkCounts {
            node: "node0".into(),
            sent_frames: 1200,
            sent_bytes: 1_300_000,
            received_frames: 800,
            received_bytes: 60_000,
            dropped_frames: 1,
        }],
        notes: Vec::new(),
    }
}
