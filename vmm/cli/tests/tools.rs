//! Tests of commands that work on a trace, which the tests write: no guest runs.

#[path = "support/traces.rs"]
mod traces;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use nodescope_window::{Measure, ModelSpec, Trigger, WindowRecord, WindowSpec, WindowsFile};
use traces::{trace, trace_of};

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
        &["predict", "t.nst", "--cluster", "c.toml", "--ranks", "4,64"],
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(
        stderr,
        "error: 64 ranks at 2 a node need 32 nodes, but cluster \"small\" has 2; raise nodes.count (or the topology), or put more ranks on a node (nodes.ranks_per_node, --ranks-per-node)\n"
    );
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[test]
fn a_clock_is_refused_for_a_trace_without_windows() {
    let dir = tempfile::tempdir().unwrap();
    trace(&dir.path().join("t.nst"));
    let cluster = "name = \"c\"\n[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n";
    fs::write(dir.path().join("c.toml"), cluster).unwrap();
    for clock in ["windows", "traced"] {
        let args = ["predict", "t.nst", "--cluster", "c.toml", "--clock", clock];
        let output = run(dir.path(), &args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("leave it out"), "{stderr}");
    }
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
        error.contains("the traced placement puts 2 ranks on node 0, which has 1 cores"),
        "{error}"
    );
    let error = with(&["--set", "nodes.ranks_per_node=1"]);
    assert!(
        error.contains("need 2 nodes, but cluster \"pair\" has 1"),
        "{error}"
    );
    let apart = ["--set", "nodes.ranks_per_node=1"];
    let text = with(
        &[
            &apart[..],
            &["--set", "nodes.count=2", "--change-cost", "1ms"],
        ]
        .concat(),
    );
    assert!(text.contains("Placements on \"pair\""), "{text}");
    assert!(text.contains("no change pays"), "{text}");
}

/// A study has nodes and a network; what messages cost comes from a cluster file that was measured.
#[test]
fn a_study_is_the_cluster_of_a_prediction() {
    let dir = tempfile::tempdir().unwrap();
    trace(&dir.path().join("t.nst"));
    let study = "[cluster]\nnodes = 4\n[node]\ncores = 2\n[network]\nbandwidth = \"1 Gbit/s\"\nlatency = \"50 us\"\n[job]\ncommand = \"true\"\n";
    fs::write(dir.path().join("study.toml"), study).unwrap();
    let costs = "[network] # measured\nlatency = \"20 us\"\nbandwidth = \"1 GB/s\"\noverhead = \"4 us\"\nuncertainty = 0.05\n";
    fs::write(dir.path().join("costs.toml"), costs).unwrap();
    let told = |args: &[&str]| {
        let output = run(dir.path(), args);
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), told)
    };
    let cluster = |more: &[&str]| -> serde_json::Value {
        let all = ["predict", "t.nst", "--json", "--cluster"];
        let (code, text) = told(&[&all, more].concat());
        assert_eq!(code, Some(0), "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let bare = cluster(&["study.toml"]);
    assert_eq!(bare["cluster"]["network"]["latency"], 50_000_000);
    assert_eq!(bare["cluster"]["network"]["per_byte"], 8000.0);
    assert!(bare["notes"].to_string().contains("cost nothing here"));
    let full = cluster(&["study.toml", "--costs", "costs.toml"]);
    assert_eq!(full["cluster"]["network"]["latency"], 50_000_000);
    assert_eq!(full["cluster"]["uncertainty"]["messages"], 0.05);
    let sources = full["interval"]["parts"].as_array().unwrap();
    assert!(sources.iter().any(|part| part["source"] == "messages"));
    assert!(!full["notes"].to_string().contains("cost nothing here"));

    let retarget = [
        "calibrate",
        "retarget",
        "--costs",
        "costs.toml",
        "-o",
        "new.toml",
    ];
    let (code, text) = told(&[&retarget[..], &["--bandwidth", "10 Gbit/s"]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("between nodes: 20.0000 us, 1.25 GB/s"),
        "{text}"
    );
    assert!(text.contains("fitted without frames"), "{text}");
    let new = fs::read_to_string(dir.path().join("new.toml")).unwrap();
    assert!(
        new.contains("# measured") && new.contains("bandwidth = \"1.25 GB/s\""),
        "{new}"
    );
    assert_eq!(told(&retarget).0, Some(2));
    let (code, text) = told(&[
        "predict",
        "t.nst",
        "--cluster",
        "costs.toml",
        "--costs",
        "costs.toml",
    ]);
    assert_eq!(
        (code, text.contains("is a cluster file")),
        (Some(2), true),
        "{text}"
    );
}

/// The trace of a hybrid job of two nodes with two ranks of two threads each: four cores of one node have room for all ranks.
#[test]
fn a_hybrid_job_is_predicted_where_it_was_traced() {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results");
    fs::create_dir(&results).unwrap();
    trace_of(&results.join("trace.nst"), &[0, 0, 1, 1], 4);
    let study = "[job]\ncommand = \"x\"\nenvironment = { OMP_NUM_THREADS = \"2\" }\n";
    fs::write(results.join("study.toml"), study).unwrap();
    let cluster = "name = \"c\"\n[nodes]\ncores = 4\n[network]\nlatency = \"20 us\"\nbandwidth = \"1 GB/s\"\n";
    fs::write(dir.path().join("c.toml"), cluster).unwrap();
    let predict = |args: &[&str]| {
        let all = [&["predict", "results", "--cluster", "c.toml"], args].concat();
        let output = run(dir.path(), &all);
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), told)
    };
    let json = |args: &[&str]| -> serde_json::Value {
        let (code, text) = predict(&[args, &["--json"]].concat());
        assert_eq!(code, Some(0), "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let spec = WindowSpec {
        name: "w".into(),
        open: Trigger::Immediately,
        warm_up: 0,
        attribution: true,
        sampling: None,
        measure: Measure::Guest,
        models: ModelSpec::default(),
    };
    let window = WindowRecord {
        name: "w".into(),
        spec,
        triggered_ps: 3_000_000,
        opened_ps: 3_000_000,
        measured_from_ps: Some(3_000_000),
        closed_ps: 4_000_000,
        complete: true,
        intervals_ps: Vec::new(),
        nodes: Vec::new(),
    };
    let windows = WindowsFile::new("s", "0123", vec![window], Vec::new());
    let windows = serde_json::to_string(&windows).unwrap();
    fs::write(results.join("windows.json"), windows).unwrap();
    let traced = json(&[]);
    assert_eq!(traced["windows"][0]["time"], 1_000_000);
    let (_, text) = predict(&[]);
    assert!(text.contains("\"w\" was open in 1.000 us"), "{text}");
    assert_eq!(traced["placement"]["rule"], "traced");
    assert_eq!(traced["placement"]["nodes"], 2);
    assert_eq!(traced["placement"]["threads_per_rank"], 2);
    assert_eq!(traced["differences"].as_array().unwrap().len(), 0);
    let packed = json(&["--ranks-per-node", "4"]);
    assert_eq!(packed["placement"]["nodes"], 1);
    assert_eq!(packed["differences"].as_array().unwrap().len(), 3);
    let (_, text) = predict(&["--ranks-per-node", "4"]);
    let at = |what: &str| {
        text.find(what)
            .unwrap_or_else(|| panic!("no {what:?} in {text}"))
    };
    assert!(at("8 threads in all, but 4 cores") < at("predicted time"));
    let (_, text) = predict(&["--sweep", "nodes.ranks_per_node=2,4"]);
    let at = |what: &str| {
        text.find(what)
            .unwrap_or_else(|| panic!("no {what:?} in {text}"))
    };
    assert!(at("- at 4: no message crosses a node") < at("95 % interval"));
    for (args, told) in [
        (&["--set", "nodes.count=1"][..], "raise nodes.count"),
        (
            &["--set", "nodes.cores=1"],
            "the traced placement puts 2 ranks on node 0",
        ),
    ] {
        let (code, text) = predict(args);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(told), "{text}");
    }
}

#[test]
fn predictions_answer_questions() {
    let dir = tempfile::tempdir().unwrap();
    trace_of(&dir.path().join("t.nst"), &[0, 0, 1, 1], 4);
    let cluster = "name = \"c\"\n[nodes]\ncores = 4\n[network]\nlatency = \"20 us\"\nbandwidth = \"1 GB/s\"\n";
    fs::write(dir.path().join("c.toml"), cluster).unwrap();
    let told = |line: &str| {
        let args: Vec<&str> = line.split(' ').collect();
        let output = run(dir.path(), &args);
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), told)
    };
    let json = |line: &str| -> serde_json::Value {
        let (code, text) = told(&format!("{line} --json"));
        assert_eq!(code, Some(0), "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let plain = json("predict t.nst --cluster c.toml");
    assert!(plain.get("sensitivity").is_none() && plain.get("delays").is_none());
    let asked = json("predict t.nst --cluster c.toml --sensitivity --delays");
    assert_eq!(asked["sensitivity"]["time"], plain["outcome"]["time"]);
    assert_eq!(asked["sensitivity"]["latency"], 20_000_000);
    assert!(asked["delays"]["activities"].is_array(), "{asked}");
    let (_, text) = told("predict t.nst --cluster c.toml --sensitivity --delays");
    for part in [
        "Sensitivity",
        "Latency tolerance, from 20.000 us on:",
        "Delay costs",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let pairs = "--sweep network.latency=1us,2us,4us --sweep nodes.speed=1,2";
    let grid = json(&format!("predict t.nst --cluster c.toml {pairs}"));
    assert_eq!(grid["points"].as_array().unwrap().len(), 6);
    assert_eq!(grid["points"][1]["values"][1]["text"], "2");
    for (line, problem) in [
        (
            "--sweep nodes.speed=1,2 --sweep nodes.speed=3",
            "is swept twice",
        ),
        (
            "--sweep nodes.speed=1 --sweep nodes.cores=4 --sweep network.gap=0us",
            "3 fields are swept",
        ),
        (
            "--sweep nodes.speed=1.0:2.0:500 --sweep network.latency=1us:2us:500",
            "more than 10000",
        ),
    ] {
        let (code, text) = told(&format!("predict t.nst --cluster c.toml {line}"));
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(problem), "{text}");
    }
    let changed = json("what-if t.nst --cluster c.toml --node 1=0.5x --network ideal");
    assert_eq!(changed["cluster"], "c");
    assert_eq!(changed["replayed_ps"], plain["outcome"]["time"]);
    assert_eq!(changed["changes"].as_array().unwrap().len(), 2);
    let (code, text) = told("what-if t.nst --cluster c.toml --node 9=2x");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("ranks are on nodes 0, 1"), "{text}");
}

#[test]
fn models_need_runs_of_several_sizes() {
    let dir = tempfile::tempdir().unwrap();
    for ranks in [2, 4, 8] {
        let nodes: Vec<u32> = (0..ranks).collect();
        trace_of(&dir.path().join(format!("{ranks}.nst")), &nodes, 1);
    }
    let told = |line: &str| {
        let args: Vec<&str> = line.split(' ').collect();
        let output = run(dir.path(), &args);
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), told)
    };
    let (code, text) = told("model 2.nst 4.nst 8.nst --at p=64 --extra-p x.jsonl");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("at p=64 n=1: "), "{text}");
    let lines = fs::read_to_string(dir.path().join("x.jsonl")).unwrap();
    for line in lines.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(
            value["params"]["p"].is_number() && value["value"].is_number(),
            "{line}"
        );
        assert!(
            value["callpath"].as_str().unwrap().starts_with("program"),
            "{line}"
        );
    }
    for (line, problem) in [
        ("model 2.nst 4.nst", "at least three different values"),
        (
            "model 2.nst 4.nst 8.nst --parameter n=1,2",
            "give one value for each",
        ),
        (
            "model 2.nst 4.nst 8.nst --parameter n=1,2,3",
            "no three runs differ in p alone",
        ),
        (
            "model 2.nst 4.nst 8.nst --parameter p=1",
            "no name of a problem size",
        ),
        ("model 2.nst 4.nst 8.nst --at n=1", "p is missing"),
        ("model 2.nst 4.nst 8.nst --extra-p x.jsonl", "--force"),
    ] {
        let (code, text) = told(line);
        assert_eq!(code, Some(2), "{line}: {text}");
        assert!(text.contains(problem), "{line}: {text}");
    }
}
