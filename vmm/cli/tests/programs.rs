//! Commands on a trace of two MPI programs, which the tests write: each takes one program, or keeps both apart.

#[path = "../../trace/tests/launched/mod.rs"]
mod launched;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use launched::{Launch, header, job};
use nodescope_trace::TraceWriter;

fn write(path: &Path, programs: &[Launch]) {
    let mut writer = TraceWriter::create(path, &header()).unwrap();
    for event in job(programs) {
        writer.write(&event).unwrap();
    }
    writer.finish().unwrap();
}

fn run(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nodescope"))
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const CLUSTER: &str = "name = \"small\"\n[nodes]\ncount = 2\ncores = 4\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n";

#[test]
fn one_program_of_several_must_be_chosen_and_is_that_program_alone() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let pair = [Launch::new(0, "heat", 4, 10), Launch::new(1, "ring", 4, 11)];
    write(&folder.join("both.nst"), &pair);
    write(&folder.join("alone.nst"), &pair[1..]);
    fs::write(folder.join("cluster.toml"), CLUSTER).unwrap();
    let commands: [&[&str]; 3] = [
        &[
            "predict",
            "--cluster",
            "cluster.toml",
            "--replicas",
            "0",
            "--json",
        ],
        &["phases", "--json"],
        &["represent", "groups", "--json"],
    ];
    for command in commands {
        let with = |args: &[&str]| run(folder, &[command, args].concat());
        let refused = with(&["both.nst"]);
        let stderr = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{command:?}: {stderr}");
        let list = "the trace has 2 MPI programs; choose one by --program N: 0: heat, 4 ranks, 44 MPI calls from ";
        assert!(
            stderr.contains(list) && stderr.contains("; 1: ring, 4 ranks, "),
            "{stderr}"
        );
        let (own, alone) = (with(&["both.nst", "--program", "1"]), with(&["alone.nst"]));
        assert_eq!(own.status.code(), Some(0), "{}", text(&own.stderr));
        let value = |output: &Output| -> serde_json::Value {
            let mut value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let object = value.as_object_mut().unwrap();
            // The note that the trace has two programs, and the size of the trace.
            object.remove("notes");
            object.remove("model");
            value
        };
        assert_eq!(value(&own), value(&alone), "{command:?}");
    }
    let exports = |args: &[&str]| {
        run(
            folder,
            &[&["export", "both.nst", "-o", "out"], args].concat(),
        )
    };
    let refused = exports(&["--format", "simgrid"]);
    let stderr = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("SimGrid's trace holds one MPI program, and the trace has 2; choose one by --program N: 0: heat, "),
        "{stderr}"
    );
    // The earlier name of the option still works.
    assert_eq!(
        exports(&["--format", "simgrid", "--job", "1"])
            .status
            .code(),
        Some(0)
    );
    assert_eq!(exports(&["--format", "paraver,csv"]).status.code(), Some(0));
    let useless = exports(&["--format", "csv", "--program", "1"]);
    assert_eq!(useless.status.code(), Some(2));
    assert!(
        text(&useless.stderr).contains("--program is for the formats that hold one MPI program")
    );
}
