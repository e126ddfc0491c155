//! `nodescope trace` as its user meets it.

use std::fs;
use std::process::Command;

use nodescope_test_needs::{Need, skip};

const PROGRAM: &str = r#"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    const char *given = getenv("GIVEN");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return !given || strcmp(given, "a b");
}
"#;

/// Open MPI refuses a list of variables beside `-x`: the tracer must not need one.
#[test]
fn a_launcher_may_be_told_to_pass_variables_on() {
    let tools = ["mpicc.openmpi", "mpirun.openmpi"];
    let missing = tools.into_iter().find(|tool| {
        let asked = Command::new(tool).arg("--version").output();
        !asked.is_ok_and(|output| output.status.success())
    });
    if let Some(tool) = missing {
        skip(Need::Mpi, format!("{tool} is not installed"));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("program.c"), PROGRAM).unwrap();
    let compiled = Command::new("mpicc.openmpi")
        .current_dir(dir.path())
        .args(["-o", "program", "program.c"])
        .status();
    assert!(compiled.unwrap().success());
    // Open MPI splits a path at a blank.
    for results in ["results", "the results"] {
        let output = Command::new(env!("CARGO_BIN_EXE_nodescope"))
            .current_dir(dir.path())
            .args(["trace", "--output", results, "--"])
            .args(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"])
            .args(["-np", "2", "-x", "GIVEN", "./program"])
            .env("XDG_CACHE_HOME", at("cache"))
            .env("GIVEN", "a b")
            .output()
            .unwrap();
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
        assert!(
            stdout.contains("2 ranks on 1 node, 6 MPI calls"),
            "{stdout}\n{stderr}"
        );
    }
}
