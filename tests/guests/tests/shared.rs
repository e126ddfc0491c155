//! Tests of the file system that all nodes share: MPI-IO of both MPIs, locks and names on four nodes, and the message without it.

use std::fs;
use std::path::Path;

use nodescope_cluster::ClusterConfig;
use nodescope_cluster::config::SharedFiles;
use nodescope_cluster::run::TRACE_FILE;
use nodescope_guest_tests::{Finished, cluster, compile, image, program, run_well, small_node};
use nodescope_hypercall::Function;
use nodescope_machine::file_server;
use nodescope_trace::{Body, TraceReader};

/// Size of the shared file system, bytes. A file of the check `full` fills it.
const BYTES: u64 = 4 << 20;

const CHECKS: &str = "individual collective view pointer locks reopen names full";

/// Starts the checks on all nodes under both MPIs. OMPIO of Open MPI 4.1 has no atomic mode.
const JOB: &str = "#!/bin/sh
set -e
df -B1 /scratch | tail -n 1
mkdir /scratch/openmpi /scratch/mpich
mpirun.openmpi -np 4 --hostfile $NODESCOPE_HOSTFILE ./openmpi /scratch/openmpi CHECKS
mpiexec.hydra -n 4 ./mpich /scratch/mpich CHECKS atomic
ls -lR /scratch >listing
nodescope-guest put listing listing
/opt/nodescope/collect shared 'mpich/view'
/opt/nodescope/collect shared 'openmpi/*'
";

fn shared(config: &mut ClusterConfig) {
    config.shared = Some(SharedFiles {
        path: "/scratch".into(),
        bytes: BYTES,
        server: file_server::topology(&config.topology, BYTES),
    });
}

/// Returns what two runs must have in common.
fn bytes(finished: &Finished) -> Vec<Vec<u8>> {
    let read = |name: &str| fs::read(finished.dir.join(name)).unwrap();
    let logs = (0..4).map(|node| format!("console-node{node}.log"));
    let names = [
        TRACE_FILE,
        "fabric.pcap",
        "console-fileserver.log",
        "files/listing",
        "files/shared/view",
        "files/shared/openmpi/individual",
    ];
    (names.map(String::from).into_iter().chain(logs))
        .map(|name| read(&name))
        .collect()
}

#[test]
fn mpi_io_locks_and_names_hold_on_four_nodes() {
    let Some(image) = image() else { return };
    let compiled = |mpi: &str| compile(&format!("mpicc.{mpi}"), "shared.c", &["-O2"]);
    let (Some(openmpi), Some(mpich)) = (compiled("openmpi"), compiled("mpich")) else {
        return;
    };
    let job = [
        program("openmpi", openmpi),
        program("mpich", mpich),
        program("run", JOB.replace("CHECKS", CHECKS)),
    ];
    let mut config = cluster(image, 4, small_node(128), &job);
    config.trace = true;
    config.capture = true;
    shared(&mut config);
    let runs = [1, 2].map(|threads| {
        config.host_threads = threads;
        let dir = tempfile::tempdir().unwrap();
        (run_well(&config, dir.path()), dir)
    });
    let first = &runs[0].0;
    let console = &first.consoles[0];
    let df = console
        .lines()
        .find(|line| line.starts_with("fileserver:/"));
    let df: Vec<_> = df.unwrap_or(console).split_whitespace().collect();
    let size: u64 = df[1].parse().unwrap();
    // An NFS client tells sizes in units of its transfers, 1 MiB.
    let most = BYTES + BYTES / 32 + (2 << 20);
    assert!((BYTES..=most).contains(&size), "{df:?}");
    assert_eq!(df[5], "/scratch");
    for check in CHECKS.split(' ').chain(["atomic"]) {
        let mpis = if check == "atomic" { 1 } else { 2 };
        let passed = format!("{check}: ok (");
        assert_eq!(
            console.matches(&passed).count(),
            mpis,
            "{check}:\n{console}"
        );
    }
    // Both MPIs write the same file through the view.
    let views = ["view", "openmpi/view"].map(|name| {
        let path = first.dir.join("files/shared").join(name);
        fs::read(path).unwrap()
    });
    assert_eq!(views[0].len(), 4 * 4 * 5000);
    assert_eq!(views[0], views[1]);
    // Nodes of the trace are those of the job; the file server has a port of the network.
    let reader = TraceReader::open(first.dir.join(TRACE_FILE)).unwrap();
    assert_eq!(reader.header().nodes.len(), 4);
    let opened = reader.events().map(Result::unwrap).filter(
        |event| matches!(&event.body, Body::Mpi(call) if call.record.function == Function::FileOpen),
    );
    assert!(opened.count() >= 4 * 9);
    let server = &first.outcome.network[4];
    assert!(server.received_bytes > 4 * 4 * 5000 * 4, "{server:?}");
    let differ: Vec<_> = (bytes(first).iter().zip(bytes(&runs[1].0)).enumerate())
        .filter(|(_, (one, other))| *one != other)
        .map(|(index, _)| index)
        .collect();
    assert!(differ.is_empty(), "files {differ:?} differ");
}

#[test]
fn without_a_shared_file_system_a_collective_open_ends_with_a_message() {
    let Some(image) = image() else { return };
    let compiled = |mpi: &str| compile(&format!("mpicc.{mpi}"), "shared.c", &["-O2"]);
    let (Some(openmpi), Some(mpich)) = (compiled("openmpi"), compiled("mpich")) else {
        return;
    };
    const JOB: &str = "#!/bin/sh
mpirun.openmpi -np 2 --hostfile $NODESCOPE_HOSTFILE ./openmpi /job/folder individual
echo \"Open MPI: $?\"
mpiexec.hydra -n 2 ./mpich . individual
echo \"MPICH: $?\"
mpiexec.hydra -n 2 ./mpich /job same && echo \"same: done\"
mpirun.openmpi -np 2 --host node1:2 ./openmpi /tmp individual && echo \"one node: done\"
";
    let job = [
        program("openmpi", openmpi),
        program("mpich", mpich),
        program("run", JOB),
    ];
    let mut config = cluster(image, 2, small_node(128), &job);
    config.trace = true;
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    let console = &finished.consoles[0];
    let says = |path: &str, kind: &str| {
        format!(
            "nodescope: MPI_File_open on 2 ranks of several nodes: \"{path}\" lies in a file system that each node has for itself ({kind}). Give the study a file system that all nodes share, as by cluster.shared = {{ path = "
        )
    };
    for path in ["/job/folder/individual", "./individual"] {
        assert!(console.contains(&says(path, "overlay")), "{console}");
    }
    for mpi in ["Open MPI", "MPICH"] {
        let status = console
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{mpi}: ")));
        assert!(
            status.is_some_and(|status| status != "0"),
            "{mpi}: {status:?}\n{console}"
        );
    }
    for done in ["same: ok", "same: done", "individual: ok", "one node: done"] {
        assert!(console.contains(done), "{done}:\n{console}");
    }
    let messages = messages(&finished.dir);
    assert_eq!(
        messages
            .iter()
            .filter(|text| text.contains("cluster.shared"))
            .count(),
        2
    );
}

/// Returns the guests' messages in a trace.
fn messages(dir: &Path) -> Vec<String> {
    let reader = TraceReader::open(dir.join(TRACE_FILE)).unwrap();
    let texts = reader
        .events()
        .map(Result::unwrap)
        .filter_map(|event| match event.body {
            Body::Message(text) => Some(text),
            _ => None,
        });
    texts.collect()
}
