//! Tests of clusters that run on KVM outside windows: Open MPI and MPICH, a window in the middle, and four vCPUs in a node.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_cluster::{Engine, EngineName};
use nodescope_counters::Quantity;
use nodescope_counters::guest::{GuestCounting, RecordedCounts};
use nodescope_counters::open::Sum;
use nodescope_counters::tables::{Code, Event};
use nodescope_guest_tests::{
    Finished, cluster, compile, image, program, run_well, script, small_node,
};
use nodescope_hypercall::{Function, MpiRecord, Peer, ThreadId};
use nodescope_image::{Image, JobFile};
use nodescope_kvm_tests::kvm;
use nodescope_machine::topology::NodeTopology;
use nodescope_trace::{Body, TraceReader};
use nodescope_window::{Measure, ModelSpec, Trigger, WindowSpec};

/// Number of instructions over all nodes after which the window ends.
const MEASURED: u64 = 200_000;
/// Quantum on KVM in picoseconds; a host that is itself emulated needs a long one.
const QUANTUM_PS: u64 = 1_000_000_000;

/// Returns a window in the middle of a program; the `call`th call of a function by rank 0 opens the window.
fn window(function: Function, call: u64) -> WindowSpec {
    WindowSpec {
        name: "middle".into(),
        open: Trigger::MpiCall {
            function,
            call,
            rank: 0,
        },
        warm_up: 0,
        measure: Measure::Instructions(MEASURED),
        attribution: false,
        sampling: None,
        models: ModelSpec::default(),
    }
}

/// The MPI records of each process, by its program and rank.
type Calls = BTreeMap<(String, u32), Vec<MpiRecord>>;

fn run(image: &Image, files: &[JobFile], engine: Engine, dir: &Path) -> (Finished, Calls) {
    let mut config = cluster(image, 2, small_node(256), files);
    config.trace = true;
    config.kvm_quantum_ps = QUANTUM_PS;
    config.host_threads = 2;
    config.time_limit_ps *= 4;
    config.engine = engine;
    if config.engine.uses_kvm() {
        config.counting = Some(Arc::new(GuestCounting::new(Arc::new(recorded()))));
    }
    config.windows = vec![window(Function::Allreduce, 1)];
    let finished = run_well(&config, dir);
    let mut names = BTreeMap::new();
    let mut calls = BTreeMap::<_, Vec<_>>::new();
    for event in TraceReader::open(dir.join(TRACE_FILE)).unwrap().events() {
        let event = event.unwrap();
        match event.body {
            Body::Process(hello) => {
                let Peer::Rank(rank) = hello.rank else {
                    panic!("{hello:?}")
                };
                names.insert((event.node, hello.pid), (hello.program, rank));
            }
            Body::Mpi(call) => {
                assert!(call.entry_seen, "{call:?}");
                let process = (event.node, call.record.thread.pid);
                let mut record = call.record;
                record.thread = ThreadId::default();
                // The launcher's id differs from run to run.
                if record.function == Function::Init {
                    record.object = 0;
                }
                calls.entry(process).or_default().push(record);
            }
            Body::Unfinished(call) => panic!("{call:?}"),
            _ => {}
        }
    }
    let calls = calls.into_iter().map(|(process, calls)| {
        let name = names.get(&process).expect("every process says hello");
        (name.clone(), calls)
    });
    (finished, calls.collect())
}

/// Functions, arguments and order of all calls are the same as on the portable engine, under both MPI libraries, and a window opens at its
/// call.
#[test]
fn mpi_programs_run_and_are_traced_as_on_the_portable_engine() {
    let Some(image) = kvm().then(image).flatten() else {
        return;
    };
    let (Some(openmpi), Some(mpich)) = (
        compile("mpicc.openmpi", "exchange.c", &["-O2"]),
        compile("mpicc.mpich", "exchange.c", &["-O2"]),
    ) else {
        return;
    };
    let job =
        "#!/bin/sh\nset -e\nmpirun.openmpi -n 2 ./openmpi\nmpiexec.hydra -n 2 -ppn 1 ./mpich\n";
    let files = [
        program("run", job),
        program("openmpi", openmpi),
        program("mpich", mpich),
    ];
    let dir = tempfile::tempdir().unwrap();
    let (on_kvm, calls) = run(image, &files, Engine::Kvm, &dir.path().join("kvm"));
    let (_, expected) = run(
        image,
        &files,
        Engine::Portable,
        &dir.path().join("portable"),
    );
    assert_eq!(calls.len(), 4, "{:?}", calls.keys());
    assert_eq!(calls, expected);

    // Engines of the run: KVM, the portable engine for the window, and KVM again.
    let outcome = &on_kvm.outcome;
    let engines: Vec<_> = outcome.engines.iter().map(|span| span.engine).collect();
    assert_eq!(
        engines,
        [EngineName::Kvm, EngineName::Portable, EngineName::Kvm],
        "{:?}",
        outcome.engines
    );
    let window = &outcome.windows.windows[0];
    assert!(window.complete);
    let counted = |node: &nodescope_window::NodeRecord| -> u64 {
        let counters = node.counters.iter();
        counters
            .map(|(_, _, _, counters)| counters.instructions)
            .sum()
    };
    let counted: u64 = window.nodes.iter().map(counted).sum();
    assert!(counted >= MEASURED, "{counted}");

    // Each exit of a vCPU adds one recorded row to the counts.
    let measured = outcome.counted.as_ref().expect("the job has started");
    let derived = measured.derive().unwrap();
    assert_eq!(derived.core.unwrap().cpi, 1.25);
    assert!(derived.instructions >= 4000.0 && derived.instructions % 2000.0 == 0.0);
}

/// Returns recorded counts that replace a PMU's: 3000 cycles, 500 of them stalls for memory, and 2000 instructions.
fn recorded() -> RecordedCounts {
    const fn event(name: &'static str, quantity: Quantity) -> Event {
        Event {
            name,
            code: Code::Cycles,
            quantity: Some(quantity),
            scale: 1,
        }
    }
    const GROUPS: &[&[Event]] = &[&[
        event("cycles", Quantity::Cycles),
        event("instructions", Quantity::Instructions),
        event("stalls", Quantity::StallsL1dMiss),
    ]];
    let row = [3000, 2000, 500].map(|count| Sum {
        count,
        enabled: 1000,
        running: 1000,
        refused: 0,
    });
    RecordedCounts::new(GROUPS, vec![row.to_vec()])
}

/// On four nodes, each rank of a ring receives the values of all others. Then a linear system is solved correctly, although the nodes
/// change to the portable engine and back during the solution.
#[test]
fn four_nodes_solve_a_linear_system_around_a_window() {
    let Some(image) = kvm().then(image).flatten() else {
        return;
    };
    let (Some(ring), Some(residual)) = (
        compile("mpicc.openmpi", "ring.c", &["-O2"]),
        compile("mpicc.openmpi", "residual.c", &["-O2", "-lm"]),
    ) else {
        return;
    };
    let files = [
        program("ring", ring),
        program("residual", residual),
        program(
            "run",
            "#!/bin/sh\nset -e\nmpirun -np 4 ./ring >out\nmpirun -np 4 ./residual 48 >>out\nnodescope-guest put out out\n",
        ),
    ];
    let mut config = cluster(image, 4, NodeTopology::uniform(1, 1, 1, 256 << 20), &files);
    config.engine = Engine::Kvm;
    config.kvm_quantum_ps = QUANTUM_PS;
    config.trace = true;
    config.host_threads = 2;
    config.time_limit_ps *= 4;
    config.windows = vec![window(Function::Bcast, 40)];
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    let out = finished.file("out");
    println!("{out}");
    assert!(
        out.starts_with("4 ranks: 10\nresidual of 4 ranks: "),
        "{out}"
    );
    assert!(out.ends_with(" PASSED\n"), "{out}");
    let outcome = &finished.outcome;
    let network = &outcome.network;
    assert!(
        network.iter().all(|port| port.sent_frames > 0),
        "{network:?}"
    );
    let engines: Vec<_> = outcome.engines.iter().map(|span| span.engine).collect();
    let expected = [EngineName::Kvm, EngineName::Portable, EngineName::Kvm];
    assert_eq!(engines, expected, "{:?}", outcome.engines);
    assert!(outcome.windows.windows[0].complete);
}

/// INIT, start-up, interrupts between vCPUs, and a program on all four vCPUs work.
#[test]
fn four_vcpus_of_a_node_run_in_parallel() {
    let Some(image) = kvm().then(image).flatten() else {
        return;
    };
    let Some(torture) = compile("gcc", "torture.c", &["-O2", "-mavx2", "-mfma", "-pthread"]) else {
        return;
    };
    let mut files =
        script("#!/bin/sh\nset -e\nnproc >out\n./torture 20 >>out\nnodescope-guest put out\n");
    files.push(program("torture", torture));
    let mut config = cluster(image, 1, NodeTopology::uniform(2, 2, 1, 256 << 20), &files);
    config.engine = Engine::Kvm;
    config.kvm_quantum_ps = QUANTUM_PS;
    config.time_limit_ps *= 4;
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    let out = finished.file("out");
    assert!(out.starts_with("4\nthread 0: "), "{out}");
    let engines = &finished.outcome.engines;
    assert!(engines.iter().all(|span| span.engine == EngineName::Kvm));
}
