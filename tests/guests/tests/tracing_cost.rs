//! Test of the cost of tracing a call, in instructions of the guest: the table of `guest-images/tracer/README.md`.

use std::collections::BTreeMap;

use nodescope_guest_tests::{cluster, compile, image, program, run_well, small_node};

/// Returns the least number of cycles that each case of `costs.c` took, by name. At the nominal CPI of 1 a cycle is an instruction. None:
/// there is no guest image or no compiler.
fn costs(compiler: &str, launcher: &str, trace: bool) -> Option<BTreeMap<String, u64>> {
    let image = image()?;
    let binary = compile(compiler, "costs.c", &["-O2"])?;
    let files = [
        program("costs", binary),
        program(
            "run",
            format!("#!/bin/sh\nset -e\n{launcher} -n 1 ./costs\n"),
        ),
    ];
    let mut config = cluster(image, 1, small_node(512), &files);
    config.trace = trace;
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    let costs: BTreeMap<_, _> = finished.consoles[0]
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once("cost ")?;
            let (name, cycles) = rest.split_once(' ')?;
            Some((name.to_owned(), cycles.trim().parse().ok()?))
        })
        .collect();
    assert_eq!(costs.len(), 5, "{}", finished.consoles[0]);
    Some(costs)
}

fn check(compiler: &str, launcher: &str) {
    let Some(plain) = costs(compiler, launcher, false) else {
        return;
    };
    let traced = costs(compiler, launcher, true).expect("as before");
    for (name, plain) in plain {
        let traced = traced[&name];
        let calls = if name.contains('+') { 3 } else { 1 };
        println!("{name}: {plain} instructions, {traced} traced");
        let added = traced.checked_sub(plain).expect("tracing adds some");
        // A traced call has two hypercalls and the code that writes their records. Less means that a call was not traced.
        assert!(
            (200 * calls..1200 * calls).contains(&added),
            "{name}: {added}"
        );
    }
}

#[test]
fn tracing_adds_some_hundred_instructions_to_a_call_of_open_mpi() {
    check("mpicc.openmpi", "mpirun.openmpi");
}

#[test]
fn tracing_adds_some_hundred_instructions_to_a_call_of_mpich() {
    check("mpicc.mpich", "mpiexec.hydra");
}
