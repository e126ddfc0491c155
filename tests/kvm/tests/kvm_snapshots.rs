//! Test that a cluster that is saved on KVM, in the middle of an MPI job, continues on KVM and on the portable engine.

use std::fs;
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_cluster::{ClusterConfig, Ending, Engine, EngineName, Options, Origin, Save, When};
use nodescope_guest_tests::{Finished, cluster, compile, image, program, run_with, small_node};
use nodescope_hypercall::Function;
use nodescope_kvm_tests::kvm;
use nodescope_window::{Moment, Trigger};

const JOB: &str = "#!/bin/sh
set -e
mpirun -np 2 ./ring >out
nodescope-guest put out out
";

fn resume(config: &ClusterConfig, origin: &Origin, dir: &Path) -> Finished {
    let options = Options {
        image: "test",
        save: None,
        from: Some(origin),
        peers: None,
    };
    let finished = run_with(config, dir, options).unwrap();
    let outcome = &finished.outcome;
    let ended = (&outcome.ending, outcome.job_status);
    let console = &finished.consoles[0];
    assert_eq!(ended, (&Ending::PoweredOff, Some(0)), "{console}");
    assert_eq!(finished.file("out"), "2 ranks: 3\n", "{console}");
    finished
}

fn engines(finished: &Finished) -> Vec<EngineName> {
    let spans = finished.outcome.engines.iter();
    spans.map(|span| span.engine).collect()
}

#[test]
fn a_cluster_saved_on_kvm_goes_on_on_either_engine() {
    let Some(image) = kvm().then(image).flatten() else {
        return;
    };
    let Some(ring) = compile("mpicc.openmpi", "ring.c", &["-O2"]) else {
        return;
    };
    let files = [program("ring", ring), program("run", JOB)];
    let mut config = cluster(image, 2, small_node(256), &files);
    config.engine = Engine::Kvm;
    // A host that is itself emulated needs a long quantum.
    config.kvm_quantum_ps = 1_000_000_000;
    config.trace = true;
    config.host_threads = 2;
    config.time_limit_ps *= 4;
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let save = Save {
        when: When::At(Moment::Trigger(Trigger::MpiCall {
            function: Function::Allreduce,
            call: 6,
            rank: 0,
        })),
        name: "test".into(),
        path: place("saved.nss"),
        stop: true,
    };
    let options = Options {
        image: "test",
        save: Some(save),
        from: None,
        peers: None,
    };
    let saved = run_with(&config, &place("saved"), options).unwrap();
    assert_eq!(saved.outcome.ending, Ending::Saved, "{}", saved.consoles[0]);
    assert_eq!(engines(&saved), [EngineName::Kvm]);
    println!("{:?}", saved.outcome.saved);

    let origin = Origin::open(&place("saved.nss")).unwrap();
    let on_kvm = resume(&config, &origin, &place("kvm"));
    assert_eq!(engines(&on_kvm), [EngineName::Kvm]);
    // From the snapshot on, the portable engine runs the cluster, and each run gives the same bytes.
    config.engine = Engine::Portable;
    origin.adopt(&mut config);
    let traces = ["one", "two"].map(|name| {
        let finished = resume(&config, &origin, &place(name));
        let expected = [EngineName::Kvm, EngineName::Portable];
        assert_eq!(engines(&finished), expected);
        fs::read(place(name).join(TRACE_FILE)).unwrap()
    });
    assert!(traces[0] == traces[1], "traces of the portable engine");
}
