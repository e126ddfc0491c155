//! Test of a program with MPI and OpenMP in guests, with both tracers, on two nodes of four vCPUs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_guest_tests::{cluster, compile, image, run_well};
use nodescope_hypercall::Function;
use nodescope_openmp::{Analysis, CodeLocator, Kind, MpiTime, Options, ProcessMpi, Record};
use nodescope_study::Study;
use nodescope_trace::{Body, ProgramFinder, TraceReader, WaitBuilder};

/// Script of the job: starts the ranks, and then a program without an MPI launcher.
const SCRIPT: &str = "#!/bin/sh
set -e
mpirun.openmpi -x OMP_NUM_THREADS -x NODESCOPE_OPENMP_INTERVALS -n $NODESCOPE_RANKS --hostfile $NODESCOPE_HOSTFILE --map-by ppr:1:node --bind-to none ./hybrid
./teams
";

/// Writes the files into a folder, and returns a study of them.
fn study(dir: &Path, files: &[(&str, &[u8])]) -> Study {
    for (name, data) in files {
        let path = dir.join(name);
        fs::write(&path, data).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let text = "[study]\nname = \"openmp\"\n[cluster]\nnodes = 2\n[node]\ncores = 4\nmemory = \"512 MiB\"\n\
                [job]\nscript = \"start.sh\"\nranks = 2\nfiles = [\"hybrid\", \"teams\"]\nopenmp = true\n\
                openmp_intervals = [\"MPI_Allreduce:1..MPI_Allreduce:3\"]\n\
                [job.environment]\nOMP_NUM_THREADS = \"4\"\n";
    let file = dir.join("study.toml");
    fs::write(&file, text).unwrap();
    Study::load(&file).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn each_process_leaves_a_record_with_exact_counts() {
    let Some(image) = image() else { return };
    let Some(binary) = compile("mpicc.openmpi", "hybrid.c", &["-O1", "-g", "-fopenmp"]) else {
        return;
    };
    let Some(teams) = compile("gcc", "teams.c", &["-O1", "-g", "-fopenmp"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let files: [(&str, &[u8]); 3] = [
        ("start.sh", SCRIPT.as_bytes()),
        ("hybrid", &binary),
        ("teams", &teams),
    ];
    let study = study(dir.path(), &files);
    let mut config = cluster(image, study.nodes, study.topology.clone(), &[]);
    config.job_disk = study.job_disk().unwrap();
    config.trace = study.job.trace;
    config.openmp = study.job.openmp;
    config.host_threads = 2;
    let finished = run_well(&config, &dir.path().join("results"));
    assert!(
        finished.consoles[0].contains("threads 8\n"),
        "{}",
        finished.consoles[0]
    );
    let folder = finished.dir.join("files/openmp");
    let mut paths: Vec<_> = (folder.read_dir().unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let records: Vec<Record> = (paths.iter())
        .map(|path| Record::read(path).unwrap())
        .collect();
    let (records, alone): (Vec<_>, Vec<_>) =
        (records.into_iter()).partition(|record| record.rank.is_some());
    assert_eq!((records.len(), alone.len()), (2, 1), "{paths:?}");
    assert_eq!((alone[0].peak, alone[0].threads.len()), (3, 3));
    for record in &records {
        assert_eq!((record.peak, record.threads.len()), (4, 4));
        let events = || record.threads.iter().flat_map(|thread| &thread.events);
        let count = |kind| {
            let of_kind = events().filter(|event| event.kind == kind);
            of_kind.map(|event| event.count).sum::<u64>()
        };
        assert_eq!(
            [Kind::Parallel, Kind::Loop, Kind::Critical, Kind::Barrier].map(count),
            [16; 4]
        );
        let iterations: u64 = events().map(|event| event.iterations).sum();
        assert_eq!(iterations, 4 * 40);
        let intervals: Vec<_> = (record.intervals.iter().enumerate())
            .map(|(at, interval)| (record.interval_path(at), interval.count))
            .collect();
        let expected = [
            ("whole program", 1),
            ("step", 2),
            ("MPI_Allreduce:1..MPI_Allreduce:3", 1),
            ("MPI_Allreduce:1..MPI_Allreduce:3 / step", 2),
        ];
        assert_eq!(
            intervals,
            expected.map(|(name, count)| (name.to_owned(), count))
        );
    }
    let trace = TraceReader::open(finished.dir.join(TRACE_FILE)).unwrap();
    let mut finder = ProgramFinder::default();
    let mut waiting = WaitBuilder::default();
    let mut mpi: MpiTime = Vec::new();
    for event in trace.events().map(Result::unwrap) {
        waiting.add(&event);
        let Some(caller) = finder.caller(&event) else {
            continue;
        };
        if let Some(hello) = caller.introduced {
            mpi.push(ProcessMpi {
                program: caller.program,
                rank: caller.rank,
                host: hello.host,
                pid: hello.pid,
                ..ProcessMpi::default()
            });
        }
        if let Body::Mpi(call) = &event.body
            && call.record.function == Function::Allreduce
        {
            let mut ranks = mpi.iter_mut();
            let rank = ranks.find(|of| of.rank == caller.rank).unwrap();
            rank.time.inner += u128::from(call.time_inside) / 1000;
        }
    }
    // The launcher's id makes the ranks one program, in the trace and in the records.
    assert_eq!(finder.programs().len(), 1);
    assert!(records[0].mpi_program != 0 && records[0].mpi_program == records[1].mpi_program);
    for wait in waiting.finish() {
        if wait.function == Function::Allreduce {
            let rank = mpi.iter_mut().find(|of| of.rank == wait.rank).unwrap();
            rank.time.waited += u128::from(wait.time) / 1000;
        }
    }
    let options = Options {
        mpi: Some(mpi),
        ..Options::default()
    };
    // The program is in another folder here. Its build id shows that it is the program that ran.
    let mut locator = CodeLocator::new(&[dir.path().to_path_buf()]);
    let analysis = Analysis::new(records, &options, &mut locator);
    println!("{}", analysis.text());
    let ranks: Vec<_> = analysis
        .processes
        .iter()
        .map(|process| process.rank)
        .collect();
    assert_eq!(ranks, [Some(0), Some(1)]);
    for process in &analysis.processes {
        for interval in &process.intervals {
            let of = &interval.characteristics;
            assert_eq!(of.productive + of.idle + of.lost.sum(), of.total);
        }
        assert_eq!(process.regions[0].count, 4);
        let location = &process.loops[0].location;
        assert!(
            location.text().starts_with("hybrid.c:"),
            "{}",
            location.text()
        );
    }
    // Rank 1 has four times the work. Virtual time on equal nodes makes its step longer.
    let step = |rank: usize| {
        analysis.processes[rank].intervals[1]
            .characteristics
            .productive
    };
    assert!(step(1) > step(0));
    assert_eq!(analysis.programs[0].hybrid.nodes.len(), 2);
    assert!(analysis.programs[0].hybrid.mpi_parallel.is_some());
    // Rank 0 has less to do in its regions, and waits for rank 1 in MPI.
    let ranks = &analysis.programs[0].hybrid.ranks;
    let of = |rank: u32| ranks.iter().find(|of| of.rank == rank).unwrap();
    assert!(of(0).mpi_waiting > of(1).mpi_waiting);
    for of in ranks {
        let times = &of.times;
        let all = of.mpi_lost + of.openmp_lost + times.useful;
        let parts = times.useful
            + times.mpi
            + times.serialisation
            + times.load_imbalance
            + times.scheduling;
        assert_eq!(all, parts);
    }
}
