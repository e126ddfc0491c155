//! The tracer in a guest: a program that calls every function the tracer knows and counts its calls, under both MPIs. The trace that the
//! host assembles has each of them, seen beginning and ending.

use std::collections::{BTreeMap, BTreeSet};

use nodescope_cluster::run::TRACE_FILE;
use nodescope_guest_tests::{cluster, compile, image, program, run_well};
use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Function, Peer};
use nodescope_machine::topology::NodeTopology;
use nodescope_trace::{Body, Profile, TraceReader};

/// Also the program of the tracer's tests on real hardware.
const PROGRAM: &str = "../../../vmm/hypercall/tests/mpi/every.c";
const RANKS: u32 = 4;

fn every(compiler: &str, launcher: &str, least: usize) {
    let Some(binary) = compile(compiler, PROGRAM, &["-O1", "-w", "-DNO_PROCESSES"]) else {
        return;
    };
    let Some(image) = image() else { return };
    let job = format!(
        "#!/bin/sh\nset -e\n{launcher} -n {RANKS} ./every /tmp/file /tmp/books\n\
         for r in 0 1 2 3; do nodescope-guest put /tmp/books.$r books.$r; done\n"
    );
    let files = [program("run", job), program("every", binary)];
    let node = NodeTopology::uniform(1, RANKS, 1, 512 << 20);
    let mut config = cluster(image, 1, node, &files);
    config.trace = true;
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());

    let mut seen: BTreeMap<(u32, String), u64> = BTreeMap::new();
    let mut profile = Profile::default();
    let mut modules = BTreeSet::new();
    let trace = TraceReader::open(dir.path().join(TRACE_FILE)).unwrap();
    for event in trace.events().map(Result::unwrap) {
        profile.add(&event);
        match event.body {
            Body::Mpi(call) => {
                let record = &call.record;
                assert!(call.entry_seen && record.result == 0, "{call:?}");
                assert!(
                    record.flags.contains(Flags::CALL_SITE_IN_PROGRAM),
                    "{call:?}"
                );
                modules.insert(record.call_module);
                let large = if record.flags.contains(Flags::LARGE_COUNT) {
                    "_c"
                } else {
                    ""
                };
                let Peer::Rank(rank) = record.rank else {
                    panic!("{call:?}")
                };
                let name = format!("{}{large}", record.function);
                *seen.entry((rank, name)).or_default() += record.calls;
            }
            Body::Unfinished(call) => panic!("{call:?}"),
            _ => {}
        }
    }
    let mut books = BTreeMap::new();
    for rank in 0..RANKS {
        for line in finished.file(&format!("books.{rank}")).lines() {
            let (name, calls) = line.split_once(' ').expect(line);
            books.insert((rank, name.to_string()), calls.parse().expect(line));
        }
    }
    assert_eq!(seen, books);
    let functions: BTreeSet<&String> = books.keys().map(|(_, name)| name).collect();
    assert!(functions.len() >= least, "{}", functions.len());
    assert_eq!(modules, BTreeSet::from([0]));
    // What was read from files and windows is in the profile.
    for rank in 0..RANKS {
        assert_eq!(
            profile.get(rank, Function::FileReadAt).receive_bytes % 64,
            0
        );
        assert!(profile.get(rank, Function::Get).receive_bytes >= 8);
        assert!(profile.get(rank, Function::FileOpen).time > 0);
    }
}

#[test]
fn every_function_under_mpich() {
    every("mpicc.mpich", "mpiexec.mpich", 330);
}

#[test]
fn every_function_under_open_mpi() {
    every("mpicc.openmpi", "mpirun.openmpi", 200);
}
