//! Test that a rank that polls for a late rank counts as waiting in a window's report, under both MPI libraries, and that the terms still
//! add up.

use nodescope_cluster::run::TRACE_FILE;
use nodescope_guest_tests::{cluster, compile, image, program, run_well};
use nodescope_hypercall::Function;
use nodescope_machine::topology::NodeTopology;
use nodescope_report::{CYCLE, CoreCpi, MpiValue, ReportInput, StudyInfo, build};
use nodescope_window::{Measure, ModelSpec, Trigger, WindowSpec};

fn a_rank_waits_for_a_late_one(compiler: &str, start: &str) {
    let Some(image) = image() else { return };
    let Some(uneven) = compile(compiler, "uneven.c", &["-O2"]) else {
        return;
    };
    let files = [program("uneven", uneven), program("run", start)];
    let mut config = cluster(image, 1, NodeTopology::uniform(1, 2, 1, 256 << 20), &files);
    config.trace = true;
    config.windows = vec![WindowSpec {
        name: "sums".into(),
        open: Trigger::MpiCall {
            function: Function::Barrier,
            call: 1,
            rank: 0,
        },
        warm_up: 0,
        attribution: true,
        sampling: None,
        measure: Measure::Time { ps: 10_000_000_000 },
        models: ModelSpec::default(),
    }];
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    let report = build(&ReportInput {
        profiles: None,
        models: Vec::new(),
        memory_parallelism: 1.0,
        windows: finished.outcome.windows.clone(),
        trace: Some(finished.dir.join(TRACE_FILE)),
        study: StudyInfo::default(),
        core: CoreCpi::Nominal {
            source: "stated in the test".into(),
        },
        network: Vec::new(),
        notes: Vec::new(),
    })
    .unwrap();
    let window = &report.windows[0];
    assert!(window.complete);
    let sums = |rank: u32| -> MpiValue {
        let scope = window.scopes.iter().find(|s| s.rank == Some(rank)).unwrap();
        let mpi = scope.mpi.iter().find(|m| m.function == "MPI_Allreduce");
        mpi.unwrap().clone()
    };
    for rank in 0..2 {
        let sum = sums(rank);
        println!(
            "rank {rank}: {} cycles in {} calls: {} executing, {} stalled, {} waiting, of these {} polling",
            sum.cycles_65536 / CYCLE,
            sum.calls,
            sum.executing_65536 / CYCLE,
            sum.stalled,
            sum.waiting,
            sum.polling
        );
        let all = sum.executing_65536 + (sum.stalled + sum.waiting) as i128 * CYCLE;
        assert_eq!(all, sum.cycles_65536);
        assert!(sum.calls > 1, "{sum:?}");
        let waits = sum.waiting as f64 / (sum.cycles_65536 / CYCLE) as f64;
        match rank {
            0 => assert!(waits > 0.9, "{sum:?}"),
            _ => assert!(waits < 0.5, "{sum:?}"),
        }
    }
    // The late rank's own waiting is less than a tenth of the time that the other rank waits.
    assert!(sums(0).waiting > 10 * sums(1).waiting);
    let total = window.scopes.last().unwrap();
    assert!(total.clock.unwrap().consistent, "{total:?}");
    println!("{}", report.text());
}

#[test]
fn under_open_mpi() {
    a_rank_waits_for_a_late_one(
        "mpicc.openmpi",
        "#!/bin/sh\nmpirun.openmpi -np 2 ./uneven\n",
    );
}

#[test]
fn under_mpich() {
    // Without binding, Linux may run both ranks on one vCPU for some milliseconds.
    let start = "#!/bin/sh\nmpiexec.hydra -bind-to core -n 2 ./uneven\n";
    a_rank_waits_for_a_late_one("mpicc.mpich", start);
}
