//! Tests of the names of call sites: function, file and line where the results have the program, or else the address. No guest runs.

#[path = "../../trace/tests/calls/mod.rs"]
mod calls;

use std::fs;
use std::path::Path;
use std::process::Command;

use calls::{Trace, receive, record};
use nodescope_hypercall::{Function, Peer, Tag};
use nodescope_image::{JobFile, job_disk};
use nodescope_test_needs::{Need, have};
use nodescope_trace::{Header, NodeEntry, TraceWriter};

/// A program that prints the return address of the call in line 5.
const PROGRAM: &str = "\
#include <stdio.h>
#define OUT __attribute__((noinline))
OUT void call(void) { printf(\"%lu\\n\", (unsigned long)__builtin_return_address(0)); }
OUT int ring(void) {
    call();
    return fflush(stdout);
}
int main(void) { return ring(); }
";

const CLUSTER: &str = "name = \"small\"\n[nodes]\ncount = 2\ncores = 4\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n";

/// Writes results in which two ranks receive from each other for ever: rank 0 in line 5 of `ring.c`, and rank 1 in a library whose file
/// the results lack. Returns rank 0's call site.
fn write_results(folder: &Path) -> u64 {
    let built = folder.join("built");
    fs::create_dir_all(&built).unwrap();
    fs::write(built.join("ring.c"), PROGRAM).unwrap();
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-g", "-no-pie", "ring.c", "-o", "p"]);
    assert!(compiler.current_dir(&built).status().unwrap().success());
    let output = Command::new(built.join("p")).output().unwrap();
    let site: u64 = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();

    let results = folder.join("r");
    fs::create_dir(&results).unwrap();
    let program = JobFile {
        path: "bin/p".into(),
        mode: 0o755,
        data: fs::read(built.join("p")).unwrap(),
    };
    fs::write(results.join("job.disk"), job_disk(&[program]).unwrap()).unwrap();
    let mut trace = Trace::new(2);
    trace.all(0..2, |rank| record(rank, Function::Barrier, 0x40));
    trace.all(0..2, |rank| record(rank, Function::Allreduce, site));
    let mut receiving = receive(0, Peer::Rank(1), Tag::Value(7));
    receiving.call_site = site;
    trace.unfinished(receiving);
    let mut receiving = receive(1, Peer::Rank(0), Tag::Value(7));
    (receiving.call_site, receiving.call_module) = (0x30, 1 << 63);
    receiving.module_name = "libother.so".into();
    trace.unfinished(receiving);
    let node = NodeEntry {
        name: "n0".into(),
        vcpus: 2,
        frequency_hz: 1_000_000_000,
    };
    let header = Header::new("s", "0123", vec![node]);
    let mut writer = TraceWriter::create(results.join("trace.nst"), &header).unwrap();
    trace
        .events
        .iter()
        .for_each(|event| writer.write(event).unwrap());
    writer.finish().unwrap();
    let run = serde_json::json!({
        "version": 1,
        "study": {"name": "ring", "id": "0123", "description": []},
        "core": {"nominal": {"source": "stated in the study: 1.0"}},
        "ending": "the job ended",
        "exit_code": 0,
        "job_status": 0,
        "virtual_ps": 1,
        "instructions": [],
        "network": [],
        "notes": [],
    });
    fs::write(results.join("run.json"), run.to_string()).unwrap();
    fs::write(folder.join("c.toml"), CLUSTER).unwrap();
    site
}

fn told(folder: &Path, args: &[&str]) -> String {
    let mut nodescope = Command::new(env!("CARGO_BIN_EXE_nodescope"));
    let output = nodescope.args(args).current_dir(folder).output().unwrap();
    let [stdout, stderr] = [output.stdout, output.stderr].map(String::from_utf8);
    assert!(!stdout.as_ref().unwrap().is_empty(), "{stderr:?}");
    stdout.unwrap()
}

#[test]
fn call_sites_have_names_where_the_results_have_the_program() {
    if !have(Need::Compiler, &["gcc"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let site = write_results(dir.path());
    let address = format!("program+{site:#x}");
    let predict = |more: &[&str]| {
        let args = ["predict", "r", "--cluster", "c.toml"];
        told(dir.path(), &[&args, more].concat())
    };
    let expected = [
        "rank 0 in MPI_Recv at ring (ring.c:5) waits for rank 1",
        "rank 1 in MPI_Recv at libother.so+0x30 waits for rank 0",
    ];
    for text in [predict(&[]), predict(&["--html"])] {
        assert!(expected.iter().all(|line| text.contains(line)), "{text}");
    }
    // JSON has the address of each call site, and its place beside.
    let json: serde_json::Value = serde_json::from_str(&predict(&["--json"])).unwrap();
    let at = &json["outcome"]["problems"][0]["cycle"][0]["at"];
    assert_eq!(*at, format!("MPI_Recv at {address}"));
    let place = serde_json::json!({"function": "ring", "file": "ring.c", "line": 5});
    let mut found = json["places"].clone();
    let file = found[&address]["file"].take();
    assert!(file.as_str().unwrap().ends_with("/ring.c"), "{file}");
    found[&address]["file"] = "ring.c".into();
    assert_eq!(found, serde_json::json!({ &address: place }));
    assert_eq!(
        predict(&["--outline", "0"]),
        format!(
            "MPI_Barrier at program+0x40\nMPI_Allreduce at ring (ring.c:5), {address}\n\
             MPI_Recv at ring (ring.c:5), {address}\n"
        )
    );

    // So has the report, for pending calls and for those that ended.
    let line =
        "rank 0 in MPI_Recv(from 1, tag 7, MPI_COMM_WORLD) at ring (ring.c:5) waits for rank 1";
    for text in [
        told(dir.path(), &["report", "r", "--section", "mpi"]),
        told(dir.path(), &["report", "r", "--html"]),
    ] {
        assert!(text.contains(line), "{text}");
        for site in ["program+0x40", "ring (ring.c:5)"] {
            assert!(text.contains(site), "{text}");
        }
    }
    let json = told(dir.path(), &["report", "r", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let pending = &json["mpi"]["standing"];
    assert_eq!(pending["calls"][0]["site"], address.as_str());
    assert_eq!(pending["places"]["0"][&address]["line"], 5);

    let ended = json["mpi"]["programs"][0]["call_sites"].as_array().unwrap();
    let calls = |function: &str| ended.iter().find(|row| row["function"] == function);
    let [barrier, reduction] = ["MPI_Barrier", "MPI_Allreduce"].map(|name| calls(name).unwrap());
    let place = (&barrier["site"], &barrier["place"]);
    assert_eq!(place, (&"program+0x40".into(), &serde_json::Value::Null));
    assert_eq!(reduction["site"], address.as_str());
    assert_eq!(reduction["place"]["line"], 5);
    assert_eq!(
        (&reduction["ranks"], &reduction["calls"]),
        (&2.into(), &2.into())
    );

    // Without the program, all call sites keep their addresses.
    fs::remove_file(dir.path().join("r/job.disk")).unwrap();
    let text = predict(&[]);
    let expected = format!("rank 0 in MPI_Recv at {address} waits for rank 1");
    assert!(text.contains(&expected), "{text}");
    let text = told(dir.path(), &["report", "r", "--full"]);
    assert!(
        text.contains(&format!(" at {address} waits for rank 1")),
        "{text}"
    );
}
