//! `nodescope trace` as its user meets it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nodescope_test_needs::{Need, have};

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

/// A folder with the program compiled for Open MPI; nothing without Open MPI.
fn compiled() -> Option<tempfile::TempDir> {
    let tools = ["mpicc.openmpi", "mpirun.openmpi"];
    if !have(Need::Mpi, &tools) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("program.c"), PROGRAM).unwrap();
    let compiled = Command::new("mpicc.openmpi")
        .current_dir(dir.path())
        .args(["-o", "program", "program.c"])
        .status();
    assert!(compiled.unwrap().success());
    Some(dir)
}

/// Traces two ranks in a folder; Open MPI gets the arguments.
fn trace_two_ranks(folder: &Path, results: &str, arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_nodescope"))
        .current_dir(folder)
        .args(["trace", "--output", results, "--force", "--"])
        .args(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"])
        .args(["-np", "2", "-x", "GIVEN"])
        .args(arguments)
        .env("XDG_CACHE_HOME", folder.join("cache"))
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

/// Open MPI refuses a list of variables beside `-x`: the tracer must not need one.
#[test]
fn a_launcher_may_be_told_to_pass_variables_on() {
    let Some(dir) = compiled() else { return };
    // Open MPI splits a path at a blank.
    for results in ["results", "the results"] {
        trace_two_ranks(dir.path(), results, &["./program"]);
    }
}

/// Open MPI looks for a program in `PATH` and then in the working folder.
#[test]
fn a_program_is_found_where_the_launcher_finds_the_program() {
    let Some(dir) = compiled() else { return };
    let at = |name: &str| dir.path().join(name);
    // Shells have a command and a keyword of these names.
    for name in ["program", "alias", "done", "a program"] {
        if name != "program" {
            fs::copy(at("program"), at(name)).unwrap();
        }
        trace_two_ranks(dir.path(), "results", &[name]);
    }
    fs::create_dir(at("inner")).unwrap();
    fs::rename(at("alias"), at("inner/other")).unwrap();
    trace_two_ranks(dir.path(), "results", &["-wdir", "inner", "other"]);
    // A program in PATH is preferred.
    fs::write(at("env"), "#!/bin/sh\nexit 3\n").unwrap();
    fs::set_permissions(at("env"), fs::Permissions::from_mode(0o755)).unwrap();
    trace_two_ranks(dir.path(), "results", &["env", "./program"]);
}

#[test]
fn a_trace_leaves_nothing_beside_itself_and_files_of_the_user() {
    let Some(dir) = compiled() else { return };
    let at = |name: &str| dir.path().join(name);
    trace_two_ranks(dir.path(), "results", &["./program"]);
    assert!(!at("results/calls").exists());
    fs::create_dir(at("results/calls")).unwrap();
    fs::write(at("results/calls/rank"), "mine").unwrap();
    trace_two_ranks(dir.path(), "results", &["./program"]);
    let names = fs::read_dir(at("results/calls")).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["rank"]);
    assert_eq!(fs::read(at("results/calls/rank")).unwrap(), b"mine");
}
