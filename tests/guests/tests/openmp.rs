//! A program with MPI and OpenMP in guests, with both tracers: two nodes of four vCPUs.

use nodescope_cluster::run::TRACE_FILE;
use nodescope_guest_tests::{cluster, compile, image, program, run_well};
use nodescope_hypercall::Function;
use nodescope_machine::topology::NodeTopology;
use nodescope_openmp::{Analysis, Kind, MpiTime, Options, Places, Record};
use nodescope_trace::{Profile, TraceReader};

#[test]
fn each_rank_leaves_a_record_with_exact_counts() {
    let Some(image) = image() else { return };
    let Some(binary) = compile("mpicc.openmpi", "hybrid.c", &["-O1", "-g", "-fopenmp"]) else {
        return;
    };
    let run =
        "#!/bin/sh\nset -e\nmpirun.openmpi -n 2 --map-by ppr:1:node --bind-to none ./hybrid\n";
    let files = [program("hybrid", binary.clone()), program("run", run)];
    let node = NodeTopology::uniform(1, 4, 1, 512 << 20);
    let mut config = cluster(image, 2, node, &files);
    config.trace = true;
    config.host_threads = 2;
    config.kernel_parameters = vec![
        "nodescope.env.LD_PRELOAD=/opt/nodescope/lib/libnodescope-openmp.so".into(),
        "nodescope.env.OMP_NUM_THREADS=4".into(),
    ];
    let dir = tempfile::tempdir().unwrap();
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
    assert_eq!(records.len(), 2, "{paths:?}");
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
        assert_eq!(record.intervals[1].count, 4);
    }
    let mut profile = Profile::default();
    let trace = TraceReader::open(finished.dir.join(TRACE_FILE)).unwrap();
    trace
        .events()
        .for_each(|event| profile.add(&event.unwrap()));
    let mut mpi = MpiTime::new();
    for (rank, function, sum) in profile.entries() {
        if function == Function::Allreduce {
            mpi.entry(rank).or_default().inner += u128::from(sum.time) / 1000;
        }
    }
    let options = Options {
        mpi: Some(mpi),
        ..Options::default()
    };
    // The program lies in another folder here, and its build id tells that it is the one that ran.
    std::fs::write(dir.path().join("hybrid"), binary).unwrap();
    let mut places = Places::new(&[dir.path().to_path_buf()]);
    let analysis = Analysis::new(records, &options, &mut places);
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
        let place = &process.loops[0].place;
        assert!(place.text().starts_with("hybrid.c:"), "{}", place.text());
    }
    // In virtual time on equal nodes, four times the work takes longer.
    let step = |rank: usize| {
        analysis.processes[rank].intervals[1]
            .characteristics
            .productive
    };
    assert!(step(1) > step(0));
    assert_eq!(analysis.hybrid.nodes.len(), 2);
    assert!(analysis.hybrid.mpi_parallel.is_some());
}
