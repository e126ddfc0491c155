//! Test that a rank, recorded in a cluster of two nodes, is replayed without the other rank on a cluster of one node, with equal calls and
//! equal output.

use std::fs;
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_guest_tests::{cluster, compile, image, program, run_well, small_node};
use nodescope_hypercall::{Function, MpiRecord, Peer, ThreadId};
use nodescope_trace::{Body, TraceReader};

const RECORD: &str = "#!/bin/sh
export LD_PRELOAD=/opt/nodescope/lib/libnodescope-replay-openmpi.so NODESCOPE_RECORD=/job/recording
mpirun -np 2 --hostfile $NODESCOPE_HOSTFILE ./wavefront 1 8 || exit 1
nodescope-guest put /job/recording/rank-0 rank-0
";
const REPLAY: &str = "#!/bin/sh
LD_PRELOAD=/opt/nodescope/lib/libnodescope-mpi-openmpi.so:/opt/nodescope/lib/libnodescope-replay-openmpi.so \\
    NODESCOPE_REPLAY=/job/rank-0 ./wavefront 1 8
";

/// Returns the MPI records of rank 0, without the numbers of process and thread.
fn calls(results: &Path) -> Vec<MpiRecord> {
    let reader = TraceReader::open(results.join(TRACE_FILE)).unwrap();
    let mut calls = Vec::new();
    for event in reader.events().map(Result::unwrap) {
        if let Body::Mpi(call) = event.body
            && call.record.rank == Peer::Rank(0)
        {
            let mut record = call.record;
            record.thread = ThreadId::default();
            // A replay is no program of the launcher that recorded.
            if record.function == Function::Init {
                record.object = 0;
            }
            calls.push(record);
        }
    }
    calls
}

#[test]
fn a_recorded_rank_runs_alone_on_another_cluster() {
    let Some(image) = image() else { return };
    let source = "../../replay/programs/wavefront.c";
    let Some(wavefront) = compile("mpicc.openmpi", source, &["-O2", "-lm"]) else {
        return;
    };
    let files = [
        program("wavefront", wavefront.clone()),
        program("run", RECORD),
    ];
    let mut config = cluster(image, 2, small_node(192), &files);
    config.trace = true;
    config.host_threads = 2;
    let recorded = tempfile::tempdir().unwrap();
    let whole = run_well(&config, recorded.path());
    let recording = fs::read(whole.dir.join("files").join("rank-0")).unwrap();
    let files = [
        program("wavefront", wavefront),
        program("run", REPLAY),
        program("rank-0", recording),
    ];
    let mut config = cluster(image, 1, small_node(192), &files);
    config.trace = true;
    let replayed = tempfile::tempdir().unwrap();
    let alone = run_well(&config, replayed.path());
    let printed = |console: &str| -> Vec<String> {
        let lines = console.lines().filter(|line| line.contains("rank 0 of 2:"));
        lines.map(str::to_owned).collect()
    };
    let line = printed(&alone.consoles[0]);
    assert_eq!(line.len(), 1, "{}", alone.consoles[0]);
    assert_eq!(line, printed(&whole.consoles[0]));
    let (there, here) = (calls(&whole.dir), calls(&alone.dir));
    assert!(here.len() > 60, "{}", here.len());
    assert_eq!(there.len(), here.len());
    for (a, b) in there.iter().zip(&here) {
        assert_eq!(a, b);
    }
}
