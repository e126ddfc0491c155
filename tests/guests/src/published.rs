//! The published reference programs (guest-images/jobs/published): emulated in clusters of different networks, and predicted for one
//! network from a trace that was taken in another.
//!
//! What messages cost their ends is measured in the emulated cluster of the trace, by the program `transfer`: ping-pong, shifts round a
//! ring, and messages that come before they are received. Only latency and bandwidth are the target's.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_fabric::LinkConfig;
use nodescope_hypercall::{Function, Peer, Tag};
use nodescope_image::{Image, JobFile};
use nodescope_model::sequence::SequenceBuilder;
use nodescope_model::{Program, Take};
use nodescope_predict::network::per_byte;
use nodescope_predict::{Channel, Cluster, Model, Progress, Request, Section, Table, predict};
use nodescope_trace::{Body, TraceReader};

use crate::{cluster, program, run_well, small_node};

/// A network between nodes.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Its name.
    pub name: &'static str,
    /// Latency of a link, picoseconds.
    pub latency: u64,
    /// Bandwidth of a link, bit/s.
    pub bandwidth: u64,
}

/// Where programs are traced: 10 Gbit/s, 20 us.
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

/// A frame's payload, and what it takes on the wire: MTU 1500 less IPv4 and TCP headers with time stamps; with Ethernet's header,
/// checksum, preamble and gap.
const FRAME: (u64, u64) = (1448, 1538);

/// What messages cost their ends, by size: picoseconds.
#[derive(Clone, Debug, Default)]
pub struct Overheads {
    /// The sender.
    pub send: Table,
    /// A receiver that waits.
    pub receive: Table,
    /// A receiver that the message was waiting for.
    pub buffered: Table,
}

/// The programs `reference` and `transfer` for the job disk; none, with a line that says why, without the compilers.
///
/// # Panics
///
/// If a compiler refuses a program.
pub fn programs() -> Option<[JobFile; 2]> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images/jobs/published");
    let out = tempfile::tempdir().expect("a temporary folder");
    let compile = |compiler: &str, arguments: &[&str]| -> Option<()> {
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
            Ok(output) if output.status.success() => Some(()),
            Ok(output) => panic!(
                "{compiler} refuses {arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(error) => {
                println!("skipped: no {compiler} here: {error}");
                None
            }
        }
    };
    let (c, fortran) = ("mpicc.openmpi", "mpifort.openmpi");
    compile(c, &["transfer.c", "-o", "transfer"])?;
    for name in ["reference", "heat", "jacobi", "grid"] {
        compile(
            c,
            &["-c", &format!("{name}.c"), "-o", &format!("{name}-c.o")],
        )?;
    }
    for name in ["heat", "jacobi", "grid"] {
        compile(
            fortran,
            &["-c", &format!("{name}.f90"), "-o", &format!("{name}-f.o")],
        )?;
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
    compile(fortran, &[&objects[..], &["-o", "reference"]].concat())?;
    let read = |name: &str| std::fs::read(out.path().join(name)).expect("the compiler's output");
    Some(["reference", "transfer"].map(|name| program(name, read(name))))
}

/// The command that runs one of them on the first nodes, a rank on each.
pub fn launch(ranks: u32, command: &str) -> String {
    let hosts: Vec<String> = (0..ranks).map(|node| format!("node{node}")).collect();
    format!(
        "mpirun -np {ranks} --host {} ./{command}\n",
        hosts.join(",")
    )
}

/// Runs commands one after the other in a cluster of nodes of one core; the trace, with an MPI job for each, and the console of node 0.
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

/// What messages cost, from the trace of `transfer` (its first job) in a cluster of that network.
///
/// # Panics
///
/// If the trace cannot be read, or is of something else.
pub fn overheads(trace: &Path, network: &Network) -> Overheads {
    /// Times of one size.
    #[derive(Default)]
    struct Times {
        sends: Vec<u64>,
        late: Vec<u64>,
        /// By rank: beginnings and ends.
        ring: BTreeMap<u32, Vec<(u64, u64)>>,
    }
    let mut sizes: BTreeMap<u64, Times> = BTreeMap::new();
    for event in TraceReader::open(trace).expect("the trace").events() {
        let event = event.expect("an event");
        let Body::Mpi(call) = event.body else {
            continue;
        };
        let record = &call.record;
        let (begin, end) = (call.entry.time, call.exit.time);
        let Peer::Rank(rank) = record.rank else {
            continue;
        };
        let bytes = record.send_bytes.max(record.receive_bytes);
        let tag = |tag| match tag {
            Tag::Value(tag) => tag,
            _ => 0,
        };
        let tags = (tag(record.send_tag), tag(record.receive_tag));
        if record.function == Function::Finalize {
            // The first job is over.
            break;
        }
        let measures = matches!(
            (record.function, tags),
            (Function::Send, (1, _)) | (Function::Recv, (_, 3)) | (Function::Sendrecv, _)
        );
        if !measures {
            continue;
        }
        let times = sizes.entry(bytes).or_default();
        match (record.function, tags) {
            (Function::Send, _) => times.sends.push(end - begin),
            (Function::Recv, (_, 3)) => times.late.push(end - begin),
            (Function::Sendrecv, _) => times.ring.entry(rank).or_default().push((begin, end)),
            _ => {}
        }
    }
    assert!(sizes.len() > 3, "{} has no transfers", trace.display());
    let bytes_per_second = network.bandwidth / 8 * FRAME.0 / FRAME.1;
    let mut result = Overheads::default();
    for (bytes, mut times) in sizes {
        let send = median(&mut times.sends);
        let wire = network.latency + (bytes as f64 * per_byte(bytes_per_second)).round() as u64;
        let mut shifts: Vec<u64> = (times.ring.values())
            .filter_map(|calls| {
                // The first calls bring the ranks in step.
                let (first, last) = (calls.get(2)?, calls.last()?);
                Some((last.1 - first.0) / (calls.len() as u64 - 2))
            })
            .collect();
        // All send at once there, as programs do that exchange borders: in a ping-pong nobody is busy.
        let receive = median(&mut shifts).saturating_sub(send + wire);
        result.send.points.push((bytes, send));
        result.receive.points.push((bytes, receive));
        let late = median(&mut times.late);
        result.buffered.points.push((bytes, late));
    }
    result
}

/// A cluster of one rank a node with that network.
pub fn target(network: &Network, overheads: &Overheads) -> Cluster {
    let bytes_per_second = network.bandwidth / 8 * FRAME.0 / FRAME.1;
    let channel = Channel {
        send_overhead: overheads.send.clone(),
        receive_overhead: overheads.receive.clone(),
        buffered_overhead: Some(overheads.buffered.clone()),
        // 64 KiB with the header of Open MPI.
        eager_limit: 65_500,
        ..Channel::new(Model::LogGp, network.latency, bytes_per_second)
    };
    let mut cluster = Cluster::simple(network.name, channel);
    cluster.contention = true;
    cluster.progress = Progress::Calls;
    cluster
}

/// The time of a program's measured part in a job of a trace, and as predicted: the programs of a job are numbered from 0.
///
/// # Panics
///
/// If the trace has no such part, or it cannot be predicted.
pub fn section(trace: &Path, job: usize, number: u64, cluster: &Cluster) -> Section {
    let barrier = |n| (Function::Barrier, 3 * number + n);
    let take = Take {
        job: Some(job),
        marks: vec![barrier(2), barrier(3)],
        ..Take::default()
    };
    let mut builder = SequenceBuilder::new(take);
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
    prediction.between(&sequences.marks);
    prediction.section.expect("the section")
}
