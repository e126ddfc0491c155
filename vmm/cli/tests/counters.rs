//! Tests of `nodescope counters`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../counters/tests/fixtures");
    fs::canonicalize(fixtures.join(name)).unwrap()
}

fn run(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodescope"));
    command.arg("counters").args(args).current_dir(folder);
    for name in [
        "OMPI_COMM_WORLD_RANK",
        "PMIX_RANK",
        "PMI_RANK",
        "SLURM_PROCID",
    ] {
        command.env_remove(name);
    }
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn counters_of_files_are_shown_and_written_as_our_own() {
    let dir = tempfile::tempdir().unwrap();
    let ranks = fixture("perf-ranks");
    let ranks = ranks.to_str().unwrap();
    let (code, told, _) = run(dir.path(), &["--json", "own.json", "--read", ranks]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("rank 1") && told.contains("1.400"), "{told}");
    let (code, again, _) = run(dir.path(), &["--read", "own.json"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        again.trim_end(),
        told.trim_end().trim_end_matches("own.json").trim_end()
    );
    // An existing file is replaced only with --force.
    let (code, _, error) = run(dir.path(), &["--json", "own.json", "--read", ranks]);
    assert_eq!(code, Some(2));
    assert!(error.contains("own.json is there already"), "{error}");
    let (code, ..) = run(
        dir.path(),
        &["--json", "own.json", "--force", "--read", ranks],
    );
    assert_eq!(code, Some(0));
}

#[test]
fn broken_and_missing_files_are_the_users_fault() {
    let dir = tempfile::tempdir().unwrap();
    let broken = fixture("broken/perf-cut.csv");
    let (code, _, error) = run(dir.path(), &["--read", broken.to_str().unwrap()]);
    assert_eq!(code, Some(2));
    assert!(error.contains("perf-cut.csv:7:43: "), "{error}");
    let (code, _, error) = run(dir.path(), &["--read", "missing.json"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("cannot read missing.json"), "{error}");
}

#[test]
fn one_rank_alone_needs_a_launcher() {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, error) = run(dir.path(), &["--each", "--json", "ranks", "--", "true"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("put it behind the launcher"), "{error}");
    assert!(!dir.path().join("ranks").exists());
}

/// Checks that the command is counted where counters can be used. Where they cannot, nothing may run and one line must name the remedy.
#[test]
fn a_host_without_a_pmu_runs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (code, told, error) = run(dir.path(), &["--json", "o.json", "--", "touch", "ran"]);
    if code == Some(0) {
        assert!(
            told.contains("instructions") && dir.path().join("ran").exists(),
            "{told}"
        );
        return;
    }
    assert_eq!(code, Some(5), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    let reasons = ["[study.core] counters", "kernel.perf_event_paranoid"];
    assert!(
        reasons.iter().any(|reason| error.contains(reason)),
        "{error}"
    );
    assert!(!dir.path().join("ran").exists());
    assert!(!dir.path().join("o.json").exists());
}
