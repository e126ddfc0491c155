//! Tests of commands that work on a trace, which the tests write: no guest runs.

#[path = "support/traces.rs"]
mod traces;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use traces::trace;

fn run(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nodescope"))
        .args(args)
        .current_dir(folder)
        // A test can put a file that is no library there under the name of libotf2, as if libotf2 were not installed.
        .env("LD_LIBRARY_PATH", folder.join("lib"))
        .output()
        .unwrap()
}

#[test]
fn a_format_without_its_library_keeps_no_other_from_being_written() {
    let dir = tempfile::tempdir().unwrap();
    trace(&dir.path().join("t.nst"));
    fs::create_dir(dir.path().join("lib")).unwrap();
    for name in ["libopen-trace-format2.so.10", "libotf2.so.10", "libotf2.so"] {
        fs::write(dir.path().join("lib").join(name), "no library").unwrap();
    }
    let output = run(
        dir.path(),
        &[
            "export",
            "t.nst",
            "--format",
            "otf2,csv,perfetto",
            "-o",
            "out",
        ],
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(
        stderr.starts_with("error: otf2: OTF2 archives need the library libotf2"),
        "{stderr}"
    );
    for format in ["csv", "perfetto"] {
        let files = fs::read_dir(dir.path().join("out").join(format)).unwrap();
        let bytes: u64 = files.map(|f| f.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes > 0, "{format}");
    }
}

#[test]
fn more_ranks_than_the_cluster_has_room_for_are_refused_by_number() {
    let dir = tempfile::tempdir().unwrap();
    trace(&dir.path().join("t.nst"));
    let cluster = "name = \"small\"\n[nodes]\ncount = 2\ncores = 4\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n";
    fs::write(dir.path().join("c.toml"), cluster).unwrap();
    let output = run(
        dir.path(),
        &["predict", "t.nst", "--cluster", "c.toml", "--ranks", "8,64"],
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(
        stderr,
        "error: 64 ranks at 4 a node need 16 nodes, but cluster \"small\" has 2\n"
    );
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[test]
fn phases_of_a_trace_without_messages_and_of_a_cut_one_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("t.nst");
    trace(&whole);
    let told = |args: &[&str]| {
        let output = run(dir.path(), &[&["phases"], args].concat());
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stdout, stderr)
    };
    let (code, text, _) = told(&["t.nst"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("the whole run is one silent phase"), "{text}");
    assert!(text.contains("--include collectives counts them"), "{text}");
    let (_, text, _) = told(&["t.nst", "--include", "collectives", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["ranks"], 2);
    assert_eq!(json["whole"]["messages"], 4, "{text}");
    assert_eq!(json["kinds"]["collectives"]["messages"], 4);
    let (_, page, _) = told(&["t.nst", "--html"]);
    assert!(page.contains("Communication phases of 2 ranks"), "{page}");

    let bytes = fs::read(&whole).unwrap();
    fs::write(dir.path().join("cut.nst"), &bytes[..bytes.len() - 4]).unwrap();
    let (code, text, _) = told(&["cut.nst"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("is cut at byte"), "{text}");
    fs::write(dir.path().join("empty.nst"), "").unwrap();
    let (code, _, error) = told(&["empty.nst"]);
    assert_ne!(code, Some(0));
    assert!(error.contains("empty.nst"), "{error}");
}

#[test]
fn placements_are_told_with_what_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    trace(&dir.path().join("t.nst"));
    let cluster = "name = \"pair\"\n[nodes]\ncount = 1\ncores = 1\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n";
    fs::write(dir.path().join("c.toml"), cluster).unwrap();
    let with = |args: &[&str]| {
        let all = [&["phases", "t.nst", "--cluster", "c.toml"], args].concat();
        let output = run(dir.path(), &all);
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let error = with(&[]);
    assert!(
        error.contains("need 2 nodes, but cluster \"pair\" has 1"),
        "{error}"
    );
    let text = with(&["--set", "nodes.count=2", "--change-cost", "1ms"]);
    assert!(text.contains("Placements on \"pair\""), "{text}");
    assert!(text.contains("no change pays"), "{text}");
}
