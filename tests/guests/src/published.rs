//! The published reference programs (guest-images/jobs/published): emulated in clusters of different networks, and predicted for one
//! network from a trace of another network.
//!
//! The program `transfer` measures the costs of messages for senders and receivers, in an emulated cluster. `transfer` sends ping-pongs,
//! shifts around a ring, and messages that arrive before their receives. A prediction takes only latency and bandwidth from the target
//! network.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_fabric::LinkConfig;
use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Function, Peer, Tag};
use nodescope_image::{Image, JobFile};
use nodescope_loop_tree::sequence::SequenceBuilder;
use nodescope_loop_tree::{Program, SequenceOptions};
use nodescope_predict::{
    Channel, Cluster, Frames, Model, Progress, Request, Section, Sharing, Table, predict,
};
use nodescope_test_needs::{Need, have};
use nodescope_trace::{Body, TraceReader};

use crate::{cluster, program, run_well, small_node};

/// A network between nodes.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Name of the network.
    pub name: &'static str,
    /// Latency of a link in picoseconds.
    pub latency: u64,
    /// Bandwidth of a link in bit/s.
    pub bandwidth: u64,
}

/// The network in which costs of messages are measured: 10 Gbit/s, 20 us.
pub const REFERENCE: Network = Network {
    name: "reference",
    latency: 20_000_000,
    bandwidth: 10_000_000_000,
};

/// The published networks: Myrinet (200 MB/s, 30 us), Ethernet (10 MB/s, 160 us) and SCI (300 MB/s, 4 us).
pub const PUBLISHED: [Network; 3] = [
    Network {
        name: "Myrinet",
        latency: 30_000_000,
        bandwidth: 1_600_000_000,
    },
    Network {
        name: "Ethernet",
        latency: 160_000_000,
        bandwidth: 80_000_000,
    },
    Network {
        name: "SCI",
        latency: 4_000_000,
        bandwidth: 2_400_000_000,
    },
];

/// Frames of Ethernet. The payload is the MTU of 1500 bytes less IPv4 and TCP headers with time stamps. The header is these headers, and
/// Ethernet's header, checksum, preamble and gap.
const FRAMES: Frames = Frames {
    payload: 1448,
    header: 90,
    // TCP acknowledges every second frame (RFC 5681, section 4.2).
    acknowledge: 2,
};

/// Bytes of Open MPI's header of a message over TCP: transport and matching.
const HEADER: u64 = 24;

/// Costs of messages for their senders and receivers, by size in bytes, and costs of datatypes. All costs are in picoseconds.
#[derive(Clone, Debug, Default)]
pub struct Overheads {
    /// Time that a message costs its sender.
    pub send: Table,
    /// Time that a message costs a receiver that waits for the message.
    pub receive: Table,
    /// Time that a message costs a receiver whose call begins after the message has arrived.
    pub buffered: Table,
    /// Time that a message costs a receiver that handles another message when this message arrives.
    pub queued: Table,
    /// Time that a sender takes to pack a derived datatype, in addition to `send`.
    pub pack: Table,
    /// Time that a receiver takes to unpack a derived datatype, in addition to `receive`.
    pub unpack: Table,
    /// Time in picoseconds to create, commit and free a derived datatype, of any size.
    pub datatype: u64,
}

/// Compiles the programs `reference` and `transfer` for the job disk. Without the compilers, returns None and reports the reason.
///
/// # Panics
///
/// If a compiler refuses a program.
pub fn programs() -> Option<[JobFile; 2]> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images/jobs/published");
    let out = tempfile::tempdir().expect("a temporary folder");
    let compile = |compiler: &str, arguments: &[&str]| {
        let result = Command::new(compiler)
            .current_dir(out.path())
            .arg("-O2")
            .args(
                arguments
                    .iter()
                    .map(|argument| match argument.rsplit_once('.') {
                        Some((_, "c" | "f90")) => folder.join(argument).into_os_string(),
                        _ => argument.into(),
                    }),
            )
            .output();
        match result {
            Ok(output) if output.status.success() => {}
            Ok(output) => panic!(
                "{compiler} refuses {arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(error) => panic!("{compiler}: {error}"),
        }
    };
    let (c, fortran) = ("mpicc.openmpi", "mpifort.openmpi");
    if !have(Need::Mpi, &[c, fortran]) {
        return None;
    }
    compile(c, &["transfer.c", "-o", "transfer"]);
    for name in ["reference", "heat", "jacobi", "grid"] {
        compile(
            c,
            &["-c", &format!("{name}.c"), "-o", &format!("{name}-c.o")],
        );
    }
    for name in ["heat", "jacobi", "grid"] {
        compile(
            fortran,
            &["-c", &format!("{name}.f90"), "-o", &format!("{name}-f.o")],
        );
    }
    let objects = [
        "reference-c.o",
        "heat-c.o",
        "jacobi-c.o",
        "grid-c.o",
        "heat-f.o",
        "jacobi-f.o",
        "grid-f.o",
    ];
    compile(fortran, &[&objects[..], &["-o", "reference"]].concat());
    let read = |name: &str| std::fs::read(out.path().join(name)).expect("the compiler's output");
    Some(["reference", "transfer"].map(|name| program(name, read(name))))
}

/// Returns the command that runs a program on the first `ranks` nodes, with one rank on each.
pub fn launch(ranks: u32, command: &str) -> String {
    let hosts: Vec<String> = (0..ranks).map(|node| format!("node{node}")).collect();
    format!(
        "mpirun -np {ranks} --host {} ./{command}\n",
        hosts.join(",")
    )
}

/// Runs commands one after the other in a cluster of nodes of one core. Returns the path of the trace, which has an MPI job for each
/// command, and the console output of node 0.
///
/// # Panics
///
/// If a command fails.
pub fn emulate(
    image: &Image,
    network: &Network,
    nodes: u32,
    files: &[JobFile],
    commands: &[String],
    dir: &Path,
) -> (std::path::PathBuf, String) {
    let mut job = files.to_vec();
    job.push(program(
        "run",
        format!("#!/bin/sh\nset -e\n{}", commands.concat()),
    ));
    let mut config = cluster(image, nodes, small_node(192), &job);
    config.link = LinkConfig {
        bandwidth: network.bandwidth,
        latency_ps: network.latency,
    };
    config.trace = true;
    config.host_threads = 2;
    let finished = run_well(&config, dir);
    (dir.join(TRACE_FILE), finished.consoles[0].clone())
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// Returns the mean without the lowest and the highest twentieth, since interrupts disturb some times.
fn mean(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    let cut = values.len() / 20;
    let kept = &values[cut..values.len() - cut];
    kept.iter().sum::<u64>() / (kept.len() as u64).max(1)
}

/// Calls of one kind, by rank: times of entry and exit in picoseconds.
type Calls = BTreeMap<u32, Vec<(u64, u64)>>;

/// Number of the kind of call that waits for messages with tag 4. The other kinds are the tags of `transfer`.
const WAIT: u32 = 100;

fn durations(calls: &Calls) -> Vec<u64> {
    calls
        .values()
        .flatten()
        .map(|(begin, end)| end - begin)
        .collect()
}

/// Returns the times from a message's arrival to the end of the receiving call in a ring, for calls that waited for the message. A message
/// costs its sender `send`, and its transfer takes `way`, in picoseconds.
fn after_arrival(ring: &Calls, send: u64, way: u64) -> Vec<u64> {
    let ranks = ring.len() as u32;
    let mut times = Vec::new();
    for (&rank, own) in ring {
        let Some(before) = ring.get(&((rank + ranks - 1) % ranks)) else {
            continue;
        };
        for (&(begin, end), &(sent, _)) in own.iter().zip(before) {
            let arrival = sent + send + way;
            if arrival > begin + send {
                times.push(end.saturating_sub(arrival));
            }
        }
    }
    times
}

/// Returns the times from the end of the handling of the first of two messages to the end of the waiting call, in picoseconds. Only calls
/// count in which the second message arrived while the receiver handled the first.
fn after_another(sends: &Calls, waits: &Calls, send: u64, way: u64, receive: u64) -> Vec<u64> {
    let ranks = waits.len() as u32;
    let mut times = Vec::new();
    for (&rank, own) in waits {
        for (number, &(begin, end)) in own.iter().enumerate() {
            // The first of two messages from the previous rank, and the second of two messages from the rank before that.
            let [Some(one), Some(other)] = [1, 2].map(|distance| {
                let from = sends.get(&((rank + ranks - distance) % ranks))?;
                let (sent, _) = from.get(2 * number + distance as usize - 1)?;
                Some(sent + send + way)
            }) else {
                continue;
            };
            let (first, second) = (one.min(other), one.max(other));
            if first > begin && second < first + receive {
                times.push(end.saturating_sub(first + receive));
            }
        }
    }
    times
}

/// Returns the costs of messages in a cluster with this network, from the first job of a trace of `transfer`.
///
/// # Panics
///
/// If the trace cannot be read, or has transfers of fewer than four sizes.
pub fn overheads(trace: &Path, network: &Network) -> Overheads {
    let mut kinds: BTreeMap<(u64, u32), Calls> = BTreeMap::new();
    let mut alone = Calls::new();
    // Size of the messages for which each rank waits.
    let mut size: BTreeMap<u32, u64> = BTreeMap::new();
    for event in TraceReader::open(trace).expect("the trace").events() {
        let event = event.expect("an event");
        let Body::Mpi(call) = event.body else {
            continue;
        };
        let record = &call.record;
        let times = (call.entry.time, call.exit.time);
        let Peer::Rank(rank) = record.rank else {
            continue;
        };
        let mut bytes = record.send_bytes.max(record.receive_bytes);
        let kind = match (record.function, record.send_tag, record.receive_tag) {
            // The first job is over.
            (Function::Finalize, ..) => break,
            (Function::Barrier, ..) if record.communicator == communicator::SELF => {
                alone.entry(rank).or_default().push(times);
                continue;
            }
            (Function::Waitall, ..) => {
                bytes = size.get(&rank).copied().unwrap_or(0);
                WAIT
            }
            (Function::Isend, Tag::Value(tag @ 4), _) => {
                size.insert(rank, bytes);
                tag
            }
            (Function::Send, Tag::Value(tag @ (1 | 5)), _)
            | (Function::Sendrecv, Tag::Value(tag @ (2 | 6)), _)
            | (Function::Recv, _, Tag::Value(tag @ 3)) => tag,
            _ => continue,
        };
        let calls = kinds.entry((bytes, kind)).or_default();
        calls.entry(rank).or_default().push(times);
    }
    let sizes: Vec<u64> = (kinds.keys())
        .filter_map(|&(bytes, kind)| (kind == 2).then_some(bytes))
        .collect();
    assert!(sizes.len() > 3, "{} has no transfers", trace.display());
    let channel = channel(network, &Overheads::default());
    let mut result = Overheads {
        datatype: datatype(&alone),
        ..Overheads::default()
    };
    for bytes in sizes {
        let mut of = |kind| kinds.remove(&(bytes, kind)).unwrap_or_default();
        let add = |table: &mut Table, time| table.points.push((bytes, time));
        let send = median(&mut durations(&of(1)));
        let way = channel.latency + channel.wire(bytes);
        // In a ring all ranks send at the same time, like programs that exchange borders. In a ping-pong no rank is busy.
        let receive = mean(after_arrival(&of(2), send, way));
        add(&mut result.send, send);
        // The receiver handles parts of the message while its later frames arrive.
        add(
            &mut result.receive,
            receive + channel.wire_after_first(bytes),
        );
        add(&mut result.buffered, median(&mut durations(&of(3))));
        let queued = after_another(&of(4), &of(WAIT), send, way, receive);
        // For large messages there are no times, since messages from two sides delay each other on the wire.
        if !queued.is_empty() {
            add(&mut result.queued, mean(queued));
        }
        let mut packed = durations(&of(5));
        if !packed.is_empty() {
            let pack = median(&mut packed).saturating_sub(send);
            let unpack = mean(after_arrival(&of(6), send + pack, way)).saturating_sub(receive);
            add(&mut result.pack, pack);
            add(&mut result.unpack, unpack);
        }
    }
    result
}

/// Returns the time to make and free a datatype, in picoseconds. Between two calls on a communicator of one rank, `transfer` makes no
/// datatype or twenty, in turn.
fn datatype(alone: &Calls) -> u64 {
    let mut gaps = [(); 2].map(|()| Vec::new());
    for barriers in alone.values() {
        for (number, pair) in barriers.chunks_exact(2).enumerate() {
            gaps[number % 2].push(pair[1].0 - pair[0].1);
        }
    }
    let [mut none, mut twenty] = gaps;
    median(&mut twenty).saturating_sub(median(&mut none)) / 20
}

fn channel(network: &Network, overheads: &Overheads) -> Channel {
    Channel {
        send_overhead: overheads.send.clone(),
        receive_overhead: overheads.receive.clone(),
        buffered_overhead: Some(overheads.buffered.clone()),
        queued_overhead: Some(overheads.queued.clone()),
        pack_overhead: overheads.pack.clone(),
        unpack_overhead: overheads.unpack.clone(),
        // Open MPI's limit of 64 KiB includes its header.
        eager_limit: 65_500,
        envelope: HEADER,
        frames: Some(FRAMES),
        ..Channel::new(Model::LogGp, network.latency, network.bandwidth / 8)
    }
}

/// Returns a cluster with this network and one rank on each node.
pub fn target(network: &Network, overheads: &Overheads) -> Cluster {
    let mut cluster = Cluster::simple(network.name, channel(network, overheads));
    cluster.contention = true;
    cluster.sharing = Sharing::Frames;
    cluster.progress = Progress::Calls;
    cluster.receives_unexpected = true;
    cluster.datatype_overhead = overheads.datatype;
    cluster
}

/// Returns the traced and the predicted time of a program's measured part. `job` counts the MPI jobs of the trace, `number` the programs of
/// a job, both from 0.
///
/// # Panics
///
/// If the trace has no such part, or the program cannot be predicted.
pub fn section(trace: &Path, job: usize, number: u64, cluster: &Cluster) -> Section {
    let barrier = |n| (Function::Barrier, 3 * number + n);
    let options = SequenceOptions {
        program: Some(job),
        marks: vec![barrier(2), barrier(3)],
        ..SequenceOptions::default()
    };
    let mut builder = SequenceBuilder::new(options);
    for event in TraceReader::open(trace).expect("the trace").events() {
        builder.add(&event.expect("an event"));
    }
    let sequences = builder.finish().expect("sequences");
    let request = Request {
        replicas: 0,
        critical_path: false,
        ..Request::default()
    };
    let mut prediction =
        predict(&Program::new(&sequences), cluster, &request).expect("a prediction");
    assert_eq!(prediction.outcome.problems, []);
    prediction.between(&sequences.marks, &sequences.origin);
    prediction.section.expect("the section")
}
