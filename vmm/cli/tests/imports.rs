//! Traces of other tools, imported and predicted by the command line, as a user does it.

#[path = "../../trace/tests/launched/mod.rs"]
mod launched;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use launched::{header, job, pairs};
use nodescope_trace::TraceWriter;

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

/// A cluster of 10 us latency and 1 byte a nanosecond, whose processors take no time for messages.
const CLUSTER: &str = "name = \"small\"\n[nodes]\ncores = 1\nranks_per_node = 1\n[network]\nmodel = \"loggp\"\n\
                       latency = \"10 us\"\nbandwidth = \"1 GB/s\"\ncontention = false\n";

/// Imports a file and returns the predicted time in seconds.
fn predicted(folder: &Path, input: &str) -> f64 {
    let imported = run(folder, &["import", input, "-o", "t.nst", "--force"]);
    assert!(
        imported.status.success(),
        "{input}: {}",
        text(&imported.stderr)
    );
    let args = [
        "predict",
        "t.nst",
        "--cluster",
        "c.toml",
        "--replicas",
        "0",
        "--json",
    ];
    let output = run(folder, &args);
    assert!(output.status.success(), "{input}: {}", text(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    result["outcome"]["time"].as_f64().unwrap() * 1e-12
}

#[test]
fn one_program_in_three_formats_takes_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    fs::write(folder.join("c.toml"), CLUSTER).unwrap();
    // Rank 0 computes 100 us and sends 5000 bytes to rank 1, which computes 40 us and sends them back.
    fs::write(
        folder.join("a.ti"),
        "0 init\n1 init\n0 compute 100000\n0 send 1 7 5000 6\n0 recv 1 8 5000 6\n0 finalize\n\
         1 irecv 0 7 5000 6\n1 wait 0 1 7\n1 compute 40000\n1 send 0 8 5000 6\n1 finalize\n",
    )
    .unwrap();
    fs::write(
        folder.join("a.goal"),
        "num_ranks 2\nrank 0 {\na: calc 100000\nb: send 5000b to 1 tag 7\nb requires a\n\
         c: recv 5000b from 1 tag 8\nc requires b\n}\nrank 1 {\na: recv 5000b from 0 tag 7\n\
         b: calc 40000\nb requires a\nc: send 5000b to 0 tag 8\nc requires b\n}\n",
    )
    .unwrap();
    let rank = |rank: u32, calls: &str| {
        let calls = calls.replace("WORLD", &format!("0,{rank},2"));
        let file = folder.join(format!("a-{rank}.txt"));
        fs::write(
            file,
            format!("MPI_Init:-:1:2:1000\n{calls}MPI_Finalize:9000:-\n"),
        )
        .unwrap();
    };
    rank(
        0,
        "MPI_Send:1100:1:5000:13,1,1:1:7:WORLD:1200\nMPI_Recv:1200:1:9000:13,1,1:-1:8:WORLD:0:9000\n",
    );
    rank(
        1,
        "MPI_Irecv:1000:1:5000:13,1,1:0:7:WORLD:640:1000\nMPI_Wait:1000:640:0:2000\n\
         MPI_Send:2040:1:5000:13,1,1:0:8:WORLD:9000\n",
    );
    for input in ["a.ti", "a.goal", "a-1.txt"] {
        // Two messages of 10 us and 5 us each, and the work.
        let seconds = predicted(folder, input);
        assert!((seconds - 170e-6).abs() < 1e-9, "{input}: {seconds}");
    }
    // A schedule that was exported takes as long as its trace.
    let exported = run(folder, &["export", "t.nst", "--format", "goal", "-o", "g"]);
    assert!(exported.status.success(), "{}", text(&exported.stderr));
    let seconds = predicted(folder, "g/trace.goal");
    assert!((seconds - 170e-6).abs() < 1e-9, "{seconds}");
}

/// Where libotf2 cannot be loaded, only OTF2 cannot be read.
#[test]
fn a_missing_library_stops_no_other_format() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    fs::create_dir(folder.join("lib")).unwrap();
    for name in ["libopen-trace-format2.so.10", "libotf2.so.10", "libotf2.so"] {
        fs::write(folder.join("lib").join(name), "no library").unwrap();
    }
    fs::write(folder.join("a.goal"), "num_ranks 1\nrank 0 {\ncalc 5\n}\n").unwrap();
    fs::write(folder.join("a.otf2"), b"\0\x01\x02").unwrap();
    let import = |input: &str| {
        Command::new(env!("CARGO_BIN_EXE_nodescope"))
            .args(["import", input, "-o", "t.nst"])
            .env("LD_LIBRARY_PATH", folder.join("lib"))
            .current_dir(folder)
            .output()
            .unwrap()
    };
    let refused = import("a.otf2");
    assert_eq!(refused.status.code(), Some(5));
    assert!(text(&refused.stderr).contains("OTF2 archives need the library libotf2"));
    let imported = import("a.goal");
    assert!(imported.status.success(), "{}", text(&imported.stderr));
}

#[test]
fn commands_name_the_format_of_another_tools_file() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    fs::write(folder.join("c.toml"), CLUSTER).unwrap();
    fs::write(folder.join("a.goal"), "num_ranks 1\nrank 0 {\n}\n").unwrap();
    fs::write(
        folder.join("a.gz"),
        b"\x1f\x8b\x08\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0",
    )
    .unwrap();
    let told = |args: &[&str]| {
        let output = run(folder, args);
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    let of_goal =
        "a.goal is a GOAL schedule, and nodescope import a.goal -o trace.nst makes a trace of it";
    assert!(told(&["predict", "a.goal", "--cluster", "c.toml"]).contains(of_goal));
    assert!(told(&["export", "a.goal", "--format", "csv", "-o", "x"]).contains(of_goal));
    let of_gzip = "it is compressed by gzip; unpack it first, and is of no format";
    assert!(told(&["predict", "a.gz", "--cluster", "c.toml"]).contains(of_gzip));
}

#[test]
fn predict_lists_the_jobs_of_an_archive() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    fs::write(folder.join("c.toml"), CLUSTER).unwrap();
    let mut writer = TraceWriter::create(folder.join("both.nst"), &header()).unwrap();
    for event in job(&pairs()[0].1) {
        writer.write(&event).unwrap();
    }
    writer.finish().unwrap();
    let exported = run(
        folder,
        &["export", "both.nst", "--format", "otf2", "-o", "archive"],
    );
    if exported.status.code() == Some(5) {
        nodescope_test_needs::skip(nodescope_test_needs::Need::Otf2, text(&exported.stderr));
        return;
    }
    let imported = run(folder, &["import", "archive", "-o", "t.nst"]);
    let told = text(&imported.stdout);
    assert!(told.contains(" of 2 jobs, "), "{told}");
    let output = run(folder, &["predict", "t.nst", "--cluster", "c.toml"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        told.contains("choose one by --program N: 0: imported-0"),
        "{told}"
    );
}
