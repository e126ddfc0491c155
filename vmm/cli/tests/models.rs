//! Tests of `nodescope models`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use nodescope_plugin_api::{conformance, stream};

fn models(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nodescope"))
        .arg("models")
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn ok(folder: &Path, args: &[&str]) -> String {
    let output = models(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(folder: &Path, args: &[&str], told: &str) {
    let output = models(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert!(stderr.contains(told), "{args:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn the_reference_page_is_the_output() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/models.md");
    let page = fs::read_to_string(page).unwrap();
    let output = ok(Path::new("."), &["--markdown"]);
    assert!(
        output == page,
        "write the output of nodescope models --markdown to docs/reference/models.md"
    );
}

#[test]
fn models_are_listed_shown_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let list = ok(folder.path(), &[]);
    for model in ["cache", "lru", "stride", "record", "pipeline"] {
        assert!(
            list.lines().any(|line| line.starts_with(model)),
            "{model}\n{list}"
        );
    }
    let shown = ok(folder.path(), &["record"]);
    assert!(shown.contains("study   [models.record]\n"), "{shown}");
    assert!(
        shown.contains("default 1000000, from 1 to 4000000\n"),
        "{shown}"
    );
    let stride = ok(folder.path(), &["stride"]);
    assert!(stride.contains("default 64, from 1 to 1024\n"), "{stride}");
    let checked = ok(folder.path(), &["record", "--check"]);
    assert!(
        checked.starts_with("record: 65536 events, answers "),
        "{checked}"
    );
    assert!(checked.contains("  record.recorded  65536\n"), "{checked}");

    let file = folder.path().join("events");
    let mut bytes = stream::head(64);
    for batch in conformance::made_up().iter().take(2) {
        stream::append(&mut bytes, &batch.batch());
    }
    fs::write(&file, &bytes).unwrap();
    let checked = ok(folder.path(), &["record", "--check", "events"]);
    assert!(checked.starts_with("record: 2048 events"), "{checked}");
    fs::write(&file, &bytes[..100]).unwrap();
    refused(
        folder.path(),
        &["record", "--check", "events"],
        "events is damaged at byte 16",
    );
    refused(
        folder.path(),
        &["record", "--check", "none"],
        "cannot read none",
    );
    refused(
        folder.path(),
        &["recorder"],
        "there is no model \"recorder\"",
    );
    refused(
        folder.path(),
        &["lru", "--check"],
        "is part of nodescope, and has no check",
    );
    refused(
        folder.path(),
        &["--plugin", "none.so"],
        "cannot load none.so",
    );
}

/// The example of a program with a model of its own. `cargo test` builds examples, unless it is told to build this test alone.
#[test]
fn a_program_can_have_models_of_its_own() {
    let program = Path::new(env!("CARGO_BIN_EXE_nodescope"));
    let example = program.parent().unwrap().join("examples/own_models");
    if !example.is_file() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--package", "nodescope", "--example", "own_models"]);
        cargo.args((!cfg!(debug_assertions)).then_some("--release"));
        assert!(cargo.status().unwrap().success());
    }
    let output = Command::new(&example)
        .args(["models", "kinds"])
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        shown.starts_with("kinds: Misses of the first level by their kind.\n"),
        "{shown}"
    );
    assert!(shown.contains("from    linked\n"), "{shown}");
    let output = Command::new(&example)
        .args(["models", "kinds", "--check"])
        .output()
        .unwrap();
    let checked = String::from_utf8(output.stdout).unwrap();
    assert!(checked.contains("  kinds.reads  "), "{checked}");
}
