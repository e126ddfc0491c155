//! Programs that open their MPI library at run time, outside the global symbol scope, are traced like others: programs that look up the
//! library's functions with `dlsym`, and Python modules.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Function, Peer, Reduction};
use nodescope_test_needs::{Need, skip};

use support::{Job, counts, of, only, source};

fn asks_for_functions(flavour: &'static str, world: &str, library: &str) {
    // The compiler is plain gcc: the MPI implementation's compiler would link the library.
    let options = ["-ldl", "-Wl,--no-as-needed"];
    let Some(job) = Job::without_mpi(flavour, "opened.c", &options) else {
        return;
    };
    for (rank, records) in job
        .run_with(2, &[Path::new(world), Path::new(library)])
        .iter()
        .enumerate()
    {
        let expected: BTreeMap<String, u64> =
            [("MPI_Init", 1), ("MPI_Barrier", 3), ("MPI_Finalize", 1)]
                .map(|(name, calls)| (name.to_owned(), calls))
                .into();
        assert_eq!(counts(records), expected, "rank {rank}");
        for barrier in of(records, Function::Barrier) {
            assert_eq!(barrier.communicator, communicator::WORLD);
            assert_eq!(barrier.communicator_size, 2);
        }
    }
}

#[test]
fn functions_asked_for_are_traced_under_open_mpi() {
    asks_for_functions("openmpi", "0", "libmpi.so.40");
}

#[test]
fn functions_asked_for_are_traced_under_mpich() {
    asks_for_functions("mpich", "0x44000000", "libmpich.so.12");
}

#[test]
fn a_tracer_of_the_other_mpi_says_so() {
    let Some(job) = Job::without_mpi("openmpi", "opened.c", &["-ldl"]) else {
        return;
    };
    let output = Command::new(job.folder.path().join("program"))
        .args(["0x44000000", "libmpich.so.12"])
        .env(
            "LD_PRELOAD",
            support::tracer().join("libnodescope-mpi-openmpi.so"),
        )
        .env("NODESCOPE_TRACE_DUMP", job.folder.path().join("dump"))
        .output()
        .expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(127), "{stderr}");
    assert!(
        stderr.contains("the program uses MPICH: preload libnodescope-mpi-mpich.so"),
        "{stderr}"
    );
}

/// Debian's Python, whose mpi4py is built with Open MPI.
const PYTHON: &str = "/usr/bin/python3";

#[test]
fn mpi4py_is_traced() {
    let asked = Command::new(PYTHON)
        .args([
            "-c",
            "import mpi4py.MPI as m; print(m.Get_library_version())",
        ])
        .output();
    let open_mpi = |output: &std::process::Output| {
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("Open MPI")
    };
    if !asked.as_ref().is_ok_and(open_mpi) {
        skip(
            Need::Mpi,
            "no mpi4py with Open MPI (Debian package python3-mpi4py)",
        );
        return;
    }
    let Some(job) = Job::of_command("openmpi", PYTHON) else {
        return;
    };
    let all = job.run_with(2, &[&source("module.py")]);
    for (rank, records) in all.iter().enumerate() {
        let found = counts(records);
        let count = |name: &str| found.get(name).copied().unwrap_or(0);
        assert_eq!(count("MPI_Init_thread"), 1, "{found:?}");
        assert_eq!(
            (count("MPI_Allreduce"), count("MPI_Bcast")),
            (1, 1),
            "{found:?}"
        );
        assert_eq!(count("MPI_Finalize"), 1, "{found:?}");
        let allreduce = only(records, Function::Allreduce);
        assert_eq!(
            (allreduce.send_bytes, allreduce.reduction),
            (8, Reduction::Sum)
        );
        let bcast = only(records, Function::Bcast);
        assert_eq!(bcast.send_bytes + bcast.receive_bytes, 100);
        // mpi4py sends a pickled object, and receives it after a matched probe.
        match rank {
            0 => assert_eq!(only(records, Function::Send).destination, Peer::Rank(1)),
            _ => assert_eq!(only(records, Function::Mrecv).source, Peer::Rank(0)),
        }
    }
}
