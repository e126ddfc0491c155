//! Tests of `nodescope node`. The measurement itself is tested with its crate.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn run(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nodescope"))
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn ok(folder: &Path, args: &[&str]) -> String {
    let output = run(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    assert_eq!(stderr, "", "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(folder: &Path, args: &[&str], told: &str) {
    let output = run(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert!(stderr.contains(told), "{args:?}: {stderr}");
}

#[test]
fn built_in_nodes_are_listed_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let list = ok(folder.path(), &["node", "list"]);
    assert!(
        list.contains("zen4             AMD EPYC 9004 (Zen 4), validated\n"),
        "{list}"
    );
    assert!(
        list.contains("westmere         Intel Westmere-EP (Xeon 5600), not validated\n"),
        "{list}"
    );
    for line in list.lines() {
        let name = line.split(' ').next().unwrap();
        let text = ok(folder.path(), &["node", "show", name]);
        assert!(
            text.starts_with("# ") && text.contains("\n[core]\n"),
            "{text}"
        );
    }
    refused(
        folder.path(),
        &["node", "show", "zen"],
        "invalid value 'zen'",
    );
}

/// A shown description that is saved is a description that a study can name.
#[test]
fn a_shown_node_is_a_file_for_studies() {
    let folder = tempfile::tempdir().unwrap();
    let text = ok(folder.path(), &["node", "show", "sapphire-rapids"]);
    fs::write(folder.path().join("mine.toml"), text).unwrap();
    let study = "[cluster]\nnodes = 1\n[node]\nmodel = \"mine.toml\"\ncores = 2\n[job]\ncommand = \"true\"\nmpi = \"none\"\n";
    fs::write(folder.path().join("s.toml"), study).unwrap();
    let output = run(folder.path(), &["check", "s.toml"]);
    let told = String::from_utf8_lossy(&output.stderr);
    // Problems of the host, such as an image that is not built, may be told.
    assert!(
        !told.contains("s.toml:") && !told.contains("mine.toml"),
        "{told}"
    );
}

#[test]
fn a_file_that_is_in_the_way_is_told_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine.toml"), "mine").unwrap();
    let start = std::time::Instant::now();
    refused(
        folder.path(),
        &["node", "measure", "-o", "mine.toml"],
        "mine.toml",
    );
    assert!(start.elapsed().as_secs() < 5);
    let kept = fs::read_to_string(folder.path().join("mine.toml")).unwrap();
    assert_eq!(kept, "mine");
    refused(folder.path(), &["node", "measure", "--force"], "--output");
}
