//! Tests of `nodescope trace` and `nodescope represent` with programs on this machine.

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

/// Returns a folder with `PROGRAM` compiled for Open MPI. Skips the test and returns `None` without Open MPI.
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

/// Traces two ranks in a folder and checks the summary. Open MPI's launcher gets the further arguments.
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

/// Checks a launcher with `-x`: Open MPI refuses a list of variables beside `-x`, so that the tracer must not need one.
#[test]
fn a_launcher_may_be_told_to_pass_variables_on() {
    let Some(dir) = compiled() else { return };
    // Open MPI would split the path of a script at a blank.
    for results in ["results", "the results"] {
        trace_two_ranks(dir.path(), results, &["./program"]);
    }
}

/// Checks the search for a program: Open MPI looks in `PATH` and then in the working folder.
#[test]
fn a_program_is_found_where_the_launcher_finds_the_program() {
    let Some(dir) = compiled() else { return };
    let at = |name: &str| dir.path().join(name);
    // Shells have a builtin `alias` and a keyword `done`.
    for name in ["program", "alias", "done", "a program"] {
        if name != "program" {
            fs::copy(at("program"), at(name)).unwrap();
        }
        trace_two_ranks(dir.path(), "results", &[name]);
    }
    fs::create_dir(at("inner")).unwrap();
    fs::rename(at("alias"), at("inner/other")).unwrap();
    trace_two_ranks(dir.path(), "results", &["-wdir", "inner", "other"]);
    // A program in PATH takes precedence over one in the working folder.
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

/// Runs `nodescope represent` in a folder. Returns the exit code, standard output and standard error.
fn represent(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_nodescope"))
        .current_dir(folder)
        .arg("represent")
        .args(arguments)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn a_program_is_predicted_from_replays_of_its_representatives() {
    if !have(Need::Mpi, &["mpicc.openmpi", "mpirun.openmpi"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/replay/programs/wavefront.c");
    let compiled = Command::new("mpicc.openmpi")
        .current_dir(folder)
        .args(["-O1", "-w", "-o", "program"])
        .arg(source)
        .arg("-lm")
        .status();
    assert!(compiled.unwrap().success());
    let launcher = [
        "mpirun.openmpi",
        "--allow-run-as-root",
        "--oversubscribe",
        "-np",
        "4",
    ];
    let succeed = |arguments: &[&str]| {
        let (code, stdout, stderr) = represent(folder, arguments);
        assert_eq!(code, Some(0), "{arguments:?}\n{stdout}\n{stderr}");
        stdout
    };
    let record = [
        &["record", "--output", "all", "--"][..],
        &launcher,
        &["./program", "1", "8"],
    ]
    .concat();
    let told = succeed(&record);
    assert!(told.contains("recordings of 4 ranks"), "{told}");
    let (code, _, error) = represent(folder, &record);
    assert_eq!(code, Some(2), "{error}");
    assert!(
        error.contains("holds recordings of an earlier run"),
        "{error}"
    );
    // All ranks make the same calls. At this threshold one of them represents all.
    let told = succeed(&["groups", "all", "--threshold", "100000%"]);
    assert!(told.contains("1 of 4 ranks represent all"), "{told}");
    let json = succeed(&["groups", "all", "--threshold", "100000%", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rank = json["representatives"][0].as_u64().unwrap();
    assert!(succeed(&["groups", "all", "--html"]).contains("<svg"));
    let recording = format!("all/recording/rank-{rank}");
    let replay = [
        "replay",
        &recording,
        "--output",
        "replayed",
        "--",
        "./program",
        "1",
        "8",
    ];
    let told = succeed(&replay);
    assert!(told.contains("1 rank on 1 node"), "{told}");
    let cluster = "name = \"here\"\n[nodes]\ncores = 4\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n";
    fs::write(folder.join("cluster.toml"), cluster).unwrap();
    let predict = [
        "predict",
        "all",
        "--cluster",
        "cluster.toml",
        "--replay",
        "replayed",
    ];
    let json = succeed(&[&predict[..], &["--threshold", "100000%", "--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for given in json["given"].as_array().unwrap() {
        assert_eq!(given["from"], rank);
    }
    let ranks = json["prediction"]["outcome"]["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 4);
    assert_eq!(ranks[0]["computation"], ranks[3]["computation"]);
    let section = [
        "--threshold",
        "100000%",
        "--from",
        "MPI_Cart_create:1",
        "--to",
        "MPI_Allreduce:1",
    ];
    let text = succeed(&[&predict[..], &section].concat());
    assert!(text.contains("  section  "), "{text}");
    let text = succeed(&[&predict[..], &["--threshold", "100000%"]].concat());
    assert!(
        text.contains("predicted time") && text.contains("represented by"),
        "{text}"
    );
    // At threshold 0 every rank represents only itself, and the other ranks lack replays.
    let (code, _, error) = represent(folder, &[&predict[..], &["--threshold", "0"]].concat());
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("no replay of rank"), "{error}");
    // Results that are no replay, and a file that is no recording.
    let (code, _, error) = represent(
        folder,
        &[
            "predict",
            "all",
            "--cluster",
            "cluster.toml",
            "--replay",
            "all",
        ],
    );
    assert_eq!(code, Some(2), "{error}");
    assert!(
        error.contains("the trace has 4 ranks, but that of a replay has one"),
        "{error}"
    );
    let (code, _, error) = represent(
        folder,
        &["replay", "cluster.toml", "--output", "x", "--", "./program"],
    );
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("is no recording of a rank"), "{error}");
    // Other arguments of the program: the replay reports the call at which it diverges, and the command fails.
    let (code, _, error) = represent(
        folder,
        &[
            "replay",
            &recording,
            "--output",
            "other",
            "--",
            "./program",
            "1",
            "9",
        ],
    );
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("diverges at call 2"), "{error}");
}
