//! Tests of `nodescope profile` and of the profile in `nodescope report`, on results that the tests write: no guest runs.

#[path = "support/results.rs"]
mod made;
#[path = "../../profile/tests/support/mod.rs"]
mod profiles;
#[path = "../../report/tests/support/solver.rs"]
mod solver;
#[path = "../../report/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use made::results;
use nodescope_plugin_api::Source;
use nodescope_profile::ProfilesFile;

fn run(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nodescope"))
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn printed(folder: &Path, args: &[&str]) -> String {
    let output = run(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(folder: &Path, args: &[&str], text: &str) {
    let output = run(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(text), "{stderr}");
}

#[test]
fn every_format_is_written() {
    let dir = results(&["solve"]);
    let of = |format: &str| printed(dir.path(), &["profile", "r", "--format", format]);
    assert_eq!(
        printed(dir.path(), &["profile", "r"]),
        of("text"),
        "text is the default"
    );
    assert!(of("text").contains("68.0 % of the cycles: 0x1540 in relax("));
    let json: serde_json::Value = serde_json::from_str(&of("json")).unwrap();
    assert_eq!(json["functions"][0]["costs"]["executions"], 1_200_000);
    let answers = json["total"]["answers"].as_array().unwrap();
    let sources: Vec<_> = answers.iter().map(|answer| &answer["source"]).collect();
    assert_eq!(sources, Source::ALL.map(Source::name));
    let folded = of("folded");
    assert!(folded.starts_with("rank 0;"), "{folded}");
    assert!(of("perf-script").contains("solver/rank_0 1/1 [000] 0.000000: "));
    assert!(of("svg").starts_with("<svg "));
    let output = run(dir.path(), &["profile", "r", "--format", "pprof"]);
    assert_eq!(output.stdout[..2], [0x1f, 0x8b]);

    printed(
        dir.path(),
        &["profile", "r", "--format", "folded", "--output", "x.folded"],
    );
    let written = fs::read_to_string(dir.path().join("x.folded")).unwrap();
    assert_eq!(written, folded);
}

#[test]
fn a_folder_gets_a_file_for_each_window() {
    let dir = results(&["solve", "a/b"]);
    let args = ["profile", "r", "--format", "svg", "-o", "."];
    assert_eq!(
        printed(dir.path(), &args),
        "./flame-solve.svg\n./flame-a_b.svg\n"
    );
    assert!(dir.path().join("flame-a_b.svg").is_file());
    let one = ["profile", "r", "--window", "a/b"];
    assert!(printed(dir.path(), &one).starts_with("Code of window \"a/b\"\n"));
    refused(
        dir.path(),
        &["profile", "r"],
        "2 windows have a profile; choose one with --window, or give a folder that exists as --output: \"solve\", \"a/b\"",
    );
    refused(
        dir.path(),
        &["profile", "r", "--window", "x"],
        "no window \"x\" has a profile; there are: \"solve\", \"a/b\"",
    );
}

#[test]
fn the_report_has_the_code_where_there_is_a_profile() {
    let dir = results(&["solve"]);
    let with = printed(dir.path(), &["report", "r", "--full"]);
    assert!(with.contains("Code of window \"solve\""));
    assert!(printed(dir.path(), &["report", "r", "--html"]).contains("class=\"flame\""));
    let profile = dir.path().join("r").join(ProfilesFile::NAME);
    fs::remove_file(&profile).unwrap();
    let without = printed(dir.path(), &["report", "r", "--full"]);
    assert!(!without.contains("Code of window"));
    assert!(!printed(dir.path(), &["report", "r", "--json"]).contains("\"code\""));
    refused(
        dir.path(),
        &["profile", "r"],
        "r holds no profile (no profile.json.zst); run a study whose windows have attribution = true",
    );
    fs::write(&profile, "no archive").unwrap();
    for command in ["profile", "report"] {
        refused(dir.path(), &[command, "r"], "profile.json.zst is damaged: ");
    }
}

#[test]
fn damaged_counts_are_refused() {
    let dir = results(&["solve"]);
    let file = dir.path().join("r").join(ProfilesFile::NAME);
    let mut profiles = ProfilesFile::read(&file).unwrap();
    profiles.windows[0].counts[0].counts.executions = u64::MAX;
    profiles.write(&file).unwrap();
    refused(
        dir.path(),
        &["profile", "r"],
        "counts more for block 0 than any run can have",
    );
}
