//! Tests with real programs of both MPI libraries, traced in guests: every export format is written, and otf2-print and smpirun accept two
//! of the formats. Debian has NetPIPE for both MPI libraries, but hpcc only for Open MPI.

use std::fs;
use std::path::Path;
use std::process::Command;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_export::{Format, Network, Options, export};
use nodescope_guest_tests::{Finished, cluster, compile, image, program, run_well};
use nodescope_machine::topology::NodeTopology;
use nodescope_study::Study;
use nodescope_test_needs::{Need, have};
use nodescope_trace::{Body, TraceReader};

/// Runs the study in `file` without its windows. None: there is no guest image.
fn run(file: &Path, results: &Path, parameters: &[&str]) -> Option<Finished> {
    let image = image()?;
    let study = Study::load(file).unwrap_or_else(|problems| panic!("{problems}"));
    let mut config = cluster(image, study.nodes, study.topology.clone(), &[]);
    config.job_disk = study.job_disk().unwrap();
    config.link = study.network.link;
    config.mtu = study.network.mtu;
    config.trace = true;
    config.host_threads = 2;
    config.kernel_parameters = parameters.iter().map(|p| (*p).to_owned()).collect();
    Some(run_well(&config, results))
}

/// Returns the output of a program, which must succeed.
fn output(program: &mut Command) -> String {
    let out = program.output();
    let out = out.unwrap_or_else(|error| panic!("{program:?}: {error}"));
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program:?}: {}\n{text}", out.status);
    text
}

/// Exports a finished run to every format, and reads two formats with otf2-print and smpirun if these are installed. Returns the virtual
/// seconds from the first to the last MPI event, and SimGrid's simulated seconds (None without smpirun).
fn check(finished: &Finished, network: Network, ranks: usize) -> (f64, Option<f64>) {
    let trace = finished.dir.join(TRACE_FILE);
    let reader = TraceReader::open(&trace).unwrap();
    let (mut calls, mut first, mut last) = (0, u64::MAX, 0);
    for event in reader.events().map(Result::unwrap) {
        if let Body::Mpi(call) = &event.body {
            calls += 1;
            first = first.min(event.stamp.time);
            last = last.max(event.stamp.time);
            assert!(call.entry_seen, "{call:?}");
        }
    }
    let traced = (last - first) as f64 * 1e-12;
    let folder = |format: Format| finished.dir.join("exports").join(format.name());
    let options = Options {
        network,
        ..Options::default()
    };
    for format in Format::ALL {
        let summary = export(&trace, format, &folder(format), &options)
            .unwrap_or_else(|error| panic!("{}: {error}", format.name()));
        assert_eq!(summary.calls, calls, "{}", format.name());
        for file in &summary.files {
            let bytes = fs::metadata(file).unwrap().len();
            println!("{} {bytes} bytes", file.display());
            assert!(bytes > 0, "{}", file.display());
        }
        for note in &summary.notes {
            println!("{}: {note}", format.name());
        }
    }
    if have(Need::Otf2, &["otf2-print"]) {
        let mut print = Command::new("otf2-print");
        let text = output(print.arg(folder(Format::Otf2).join("trace.otf2")));
        let count = |what: &str| text.lines().filter(|l| l.starts_with(what)).count() as u64;
        assert!(count("ENTER") > calls, "{} of {calls}", count("ENTER"));
        assert_eq!(count("ENTER"), count("LEAVE"));
        assert!(count("MPI_SEND ") + count("MPI_ISEND ") > 0);
    }
    let mut replay = Command::new("sh");
    replay.arg(folder(Format::Simgrid).join("replay"));
    let simulated = have(Need::Simgrid, &["smpirun"]).then(|| {
        let text = output(&mut replay);
        let line = text.lines().find(|l| l.contains("Simulation time"));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        line.split_whitespace().last().unwrap().parse().unwrap()
    });
    println!("{ranks} ranks, {calls} calls: traced {traced} s, smpirun {simulated:?} s");
    (traced, simulated)
}

fn netpipe(mpi: &str, program: &str) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("study.toml");
    let study = format!(
        "[study]\nname = \"netpipe\"\n[cluster]\nnodes = 2\n[node]\nmemory = \"256 MiB\"\n\
         [network]\nbandwidth = \"1 Gbit/s\"\nlatency = \"50 us\"\n\
         [job]\nmpi = \"{mpi}\"\nranks = 2\nslots = 1\n\
         command = \"{program} -n 3 -p 0 -u 100000 -o np.out\"\ncollect = [\"np.out\"]\n"
    );
    fs::write(&file, study).unwrap();
    let Some(finished) = run(&file, &dir.path().join("results"), &[]) else {
        return;
    };
    let network = Network {
        latency_ps: 50_000_000,
        bandwidth: 1_000_000_000,
    };
    let (traced, simulated) = check(&finished, network, 2);
    // The program only sends messages one after the other. The replay's time must be within a factor of two of the traced time.
    if let Some(simulated) = simulated {
        assert!(
            (0.5..2.0).contains(&(simulated / traced)),
            "{simulated} s of {traced} s"
        );
    }
}

#[test]
fn netpipe_of_open_mpi_is_exported_to_every_format() {
    netpipe("openmpi", "NPopenmpi");
}

#[test]
fn netpipe_of_mpich_is_exported_to_every_format() {
    netpipe("mpich", "NPmpich2");
}

#[test]
fn the_whole_of_hpcc_is_exported_to_every_format() {
    let jobs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images/jobs");
    let dir = tempfile::tempdir().unwrap();
    let parameters = ["nodescope.env.HPCC_N=100", "nodescope.env.HPCC_RANKS=4"];
    let study = jobs.join("hpcc/study.toml");
    let Some(finished) = run(&study, &dir.path().join("results"), &parameters) else {
        return;
    };
    assert!(
        finished
            .file("hpccoutf.txt")
            .contains("End of HPC Challenge tests")
    );
    check(&finished, Network::default(), 4);
}

/// Exports a program that calls every function that the tracer supports, except those that start processes: one-sided epochs,
/// intercommunicators, partitioned and persistent operations, neighbourhood collectives, files. Some formats cannot express all of these
/// functions, but each export must succeed.
fn every(compiler: &str, launcher: &str) {
    const PROGRAM: &str = "../../../vmm/hypercall/tests/mpi/every.c";
    let Some(binary) = compile(compiler, PROGRAM, &["-O1", "-w", "-DNO_PROCESSES"]) else {
        return;
    };
    let Some(image) = image() else { return };
    let job = format!("#!/bin/sh\nset -e\n{launcher} -n 4 ./every /tmp/file /tmp/books\n");
    let files = [program("run", job), program("every", binary)];
    let node = NodeTopology::uniform(1, 4, 1, 512 << 20);
    let mut config = cluster(image, 1, node, &files);
    config.trace = true;
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    check(&finished, Network::default(), 4);
}

#[test]
fn every_function_of_open_mpi_is_exported_to_every_format() {
    every("mpicc.openmpi", "mpirun.openmpi");
}

#[test]
fn every_function_of_mpich_is_exported_to_every_format() {
    every("mpicc.mpich", "mpiexec.mpich");
}
