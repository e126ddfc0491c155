//! Test of the MPI tracer in a guest, with both MPI libraries. A program calls every function that the tracer and the library support,
//! except those that start processes, and counts its calls. The trace on the host has each call, with its begin and its end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_guest_tests::{cluster, compile, image, program, run_well};
use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Function, Peer};
use nodescope_loop_tree::Program;
use nodescope_loop_tree::sequence::SequenceBuilder;
use nodescope_machine::topology::NodeTopology;
use nodescope_predict::{Channel, Cluster, Code, Model, Options, interpret};
use nodescope_trace::{Body, Profile, TraceReader};

/// Source of the program; the tracer's tests on real hardware use this source, too.
const PROGRAM: &str = "../../../vmm/hypercall/tests/mpi/every.c";
const RANKS: u32 = 4;

fn every(compiler: &str, launcher: &str, least: usize, opaque: &[&str]) {
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
    // The profile includes the bytes that were read from files and windows.
    for rank in 0..RANKS {
        assert_eq!(
            profile.get(rank, Function::FileReadAt).receive_bytes % 64,
            0
        );
        assert!(profile.get(rank, Function::Get).receive_bytes >= 8);
        assert!(profile.get(rank, Function::FileOpen).time > 0);
    }
    predict(&dir.path().join(TRACE_FILE), opaque);
}

/// Checks that predictions interpret every function but some of MPI-IO and those in `expected`, whose times are taken from the trace.
fn predict(trace: &Path, expected: &[&str]) {
    let mut builder = SequenceBuilder::default();
    for event in TraceReader::open(trace).unwrap().events() {
        builder.add(&event.unwrap());
    }
    let sequences = builder.finish().unwrap();
    let suffix = " is not interpreted: it takes as long as it was traced to take";
    let opaque: BTreeSet<&str> = (sequences.notes.iter())
        .filter_map(|note| note.strip_suffix(suffix))
        .collect();
    let program = Program::new(&sequences);
    let channel = Channel::new(Model::LogGp, 1_000_000, 1_000_000_000);
    let cluster = Cluster::simple("other", channel);
    let outcome = interpret(&Code::new(&program), &cluster, &Options::default()).unwrap();
    let files = |name: &&str| name.starts_with("MPI_File_");
    assert!(opaque.iter().any(files), "{opaque:?}");
    let others: Vec<&str> = opaque.into_iter().filter(|name| !files(name)).collect();
    assert_eq!(others, expected);
    assert_eq!(outcome.problems, []);
}

#[test]
fn every_function_under_mpich() {
    let opaque = [
        "MPI_Comm_create_from_group",
        "MPI_Comm_get_parent",
        "MPI_Intercomm_create",
        "MPI_Intercomm_create_from_groups",
        "MPI_Intercomm_merge",
        "MPI_Parrived",
        "MPI_Pready",
        "MPI_Pready_list",
        "MPI_Pready_range",
        "MPI_Precv_init",
        "MPI_Psend_init",
    ];
    every("mpicc.mpich", "mpiexec.mpich", 330, &opaque);
}

#[test]
fn every_function_under_open_mpi() {
    let opaque = [
        "MPI_Comm_get_parent",
        "MPI_Intercomm_create",
        "MPI_Intercomm_merge",
    ];
    every("mpicc.openmpi", "mpirun.openmpi", 200, &opaque);
}
