//! Tests of snapshots with the program: taken, listed, continued, refused. Guests are kernels of a few instructions.

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::fs;

use guest::{Kernel, WorkFolder, ok, same, stderr, talking};

fn refused(work: &WorkFolder, args: &[&str], code: i32, texts: &[&str]) {
    let output = work.run(args);
    for text in texts {
        let told = stderr(&output);
        assert!(
            told.contains(text),
            "{args:?}: expected {text:?} in:\n{told}"
        );
    }
    assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
}

#[test]
fn a_run_with_known_costs_goes_on_from_a_snapshot() {
    let work = talking();
    ok(&work, &["run", "s.toml", "--results", "measured"]);
    let run = |results: &str, more: &[&str]| {
        let known = [
            "run",
            "s.toml",
            "--results",
            results,
            "--costs-of",
            "measured",
        ];
        ok(&work, &[&known, more].concat());
        work.path().join(results)
    };
    let whole = run("whole", &[]);
    let at = ["--snapshot-at", "mark:step#11", "--snapshot-name", "half"];
    same(&whole, &run("through", &at));
    same(&whole, &run("from", &["--from", "half"]));
}

#[test]
fn a_run_that_goes_on_from_a_snapshot_leaves_the_results_of_one_that_never_stopped() {
    let work = talking();
    ok(&work, &["run", "s.toml", "--results", "whole"]);
    let whole = work.path().join("whole");
    for (number, at) in [
        "mark:step#2",
        "mark:step#40",
        "0.5s",
        "1us",
        "33ms",
        "mark:step#11",
    ]
    .iter()
    .enumerate()
    {
        let name = format!("at{number}");
        let through = format!("through{number}");
        let args = ["--snapshot-at", at, "--snapshot-name", &name];
        let run = [
            "run",
            "s.toml",
            "--results",
            &through,
            "--host-threads",
            "2",
        ];
        let output = work.run(&[&run[..], &args].concat());
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{told}");
        let waits = told.contains("waits for the end of window \"w\"");
        assert_eq!(waits, *at == "33ms", "{at}: {told}");
        assert!(
            told.contains("snapshot at") && told.contains(": taken at "),
            "{told}"
        );
        same(&whole, &work.path().join(&through));
        for threads in ["1", "3"] {
            let results = format!("from{number}-{threads}");
            let run = ["run", "s.toml", "--results", &results, "--from", &name];
            ok(&work, &[&run[..], &["--host-threads", threads]].concat());
            same(&whole, &work.path().join(&results));
        }
    }
    // A snapshot of a run that itself continued from a snapshot.
    let run = ["run", "s.toml", "--results", "cut", "--from", "at0"];
    let args = ["--snapshot-at", "mark:step#50", "--snapshot-name", "later"];
    let out = ok(
        &work,
        &[&run[..], &args, &["--stop-after-snapshot"]].concat(),
    );
    assert!(out.contains("G instructions"), "{out}");
    ok(
        &work,
        &["run", "s.toml", "--results", "on", "--from", "later"],
    );
    same(&whole, &work.path().join("on"));
}

#[test]
fn snapshots_are_listed_shown_and_removed() {
    let work = talking();
    assert_eq!(ok(&work, &["snapshot", "list"]), "");
    refused(
        &work,
        &["snapshot", "show", "base"],
        2,
        &[
            "there is no snapshot",
            "take one with nodescope run --snapshot-at",
        ],
    );
    let take = [
        "run",
        "s.toml",
        "--snapshot-at",
        "mark:step#5",
        "--stop-after-snapshot",
    ];
    ok(&work, &take);
    let list = ok(&work, &["snapshot", "list"]);
    assert!(list.starts_with("s  study s, "), "{list}");
    assert!(
        list.contains(", 3 nodes, ") && list.ends_with(" UTC\n"),
        "{list}"
    );
    let shown = ok(&work, &["snapshot", "show", "s"]);
    for text in [
        "occurrence 5 of marker \"step\"",
        "node2",
        "cluster.nodes",
        "node1/ram",
        "results/trace",
    ] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    refused(
        &work,
        &take,
        2,
        &["there is a snapshot", "--force", "--snapshot-name"],
    );
    ok(&work, &[&take[..], &["--force"]].concat());
    refused(
        &work,
        &["snapshot", "remove", "t"],
        2,
        &["there is no snapshot"],
    );
    ok(&work, &["snapshot", "remove", "s"]);
    assert_eq!(ok(&work, &["snapshot", "list"]), "");
    // A snapshot that is given by its path.
    ok(
        &work,
        &[&take[..], &["--snapshot-name", "./here.nss", "--force"]].concat(),
    );
    assert!(work.path().join("here.nss").is_file());
    ok(&work, &["snapshot", "show", "here.nss"]);
    refused(
        &work,
        &["run", "s.toml", "--from", "here", "--force"],
        2,
        &["there is no snapshot"],
    );
    ok(&work, &["run", "s.toml", "--from", "here.nss", "--force"]);
}

#[test]
fn what_does_not_fit_a_snapshot_is_told_with_both_values() {
    let work = talking();
    ok(
        &work,
        &[
            "run",
            "s.toml",
            "--snapshot-at",
            "mark:step#20",
            "--stop-after-snapshot",
        ],
    );
    let study = fs::read_to_string(work.path().join("s.toml")).unwrap();
    let other = |from: &str, to: &str| {
        assert!(study.contains(from), "{from}");
        fs::write(work.path().join("s.toml"), study.replace(from, to)).unwrap();
    };
    let run = ["run", "s.toml", "--from", "s", "--force"];
    other("64 MiB", "66 MiB");
    refused(
        &work,
        &run,
        2,
        &[
            "does not agree with the snapshot",
            "\n  node.memory: 64 MiB in the snapshot, 66 MiB in the study",
        ],
    );
    other(
        "cluster.nodes = 3",
        "network.mtu = \"9000 B\"\nstudy.seed = 7\ncluster.nodes = 2",
    );
    refused(
        &work,
        &run,
        2,
        &[
            "cluster.nodes: 3 in the snapshot, 2 in the study",
            "network.mtu: 1.5 kB in the snapshot, 9 kB in the study",
            "study.seed: ",
        ],
    );
    other("job.command = \"true\"", "job.command = \"false\"");
    refused(&work, &run, 2, &["job: files and command"]);
    other("occurrence = 4", "occurrence = 5");
    refused(
        &work,
        &run,
        2,
        &["window \"w\" has opened before the snapshot"],
    );
    let early = "\n[[window]]\nname = \"v\"\nopen = { marker = \"step\", occurrence = 7 }\nmeasure = \"1 M instructions\"\n";
    fs::write(work.path().join("s.toml"), format!("{study}{early}")).unwrap();
    refused(
        &work,
        &run,
        2,
        &["window \"v\" would have opened before the snapshot"],
    );
    fs::write(
        work.path().join("s.toml"),
        format!("{study}study.time_limit = \"1 ms\"\n")
            .replace("study.time_limit", "[study]\ntime_limit"),
    )
    .unwrap();
    refused(
        &work,
        &run,
        2,
        &["study.time_limit ends the study at 1 ms", "raise the limit"],
    );
    // A window that opens after the snapshot, and another time limit, fit.
    let late = early.replace("= 7", "= 30");
    fs::write(
        work.path().join("s.toml"),
        format!("{study}{late}\n[study]\ntime_limit = \"40 s\"\n"),
    )
    .unwrap();
    ok(&work, &run);
    let windows = fs::read_to_string(work.results().join("windows.json")).unwrap();
    assert!(windows.contains("\"v\"") && windows.contains("\"w\""));
    // Another kernel does not fit.
    fs::write(work.path().join("s.toml"), &study).unwrap();
    Kernel::new().off(0, &work.path().join("vmlinux"));
    refused(&work, &run, 2, &["\n  image: "]);
}

#[test]
fn arguments_that_make_no_sense_are_refused_before_anything_runs() {
    let work = talking();
    let run = |more: &[&'static str]| [&["run", "s.toml"][..], more].concat();
    for (args, text) in [
        (&["--snapshot-at", "later"][..], "is no moment; write boot"),
        (&["--snapshot-at", "mpi:MPI_Barrier"], "needs the MPI trace"),
        (&["--snapshot-at", "5000 s"], "lies behind study.time_limit"),
        (&["--snapshot-name", "x"], "--snapshot-at"),
        (&["--stop-after-snapshot"], "--snapshot-at"),
        (
            &["--snapshot-at", "1s", "--snapshot-name", "a b"],
            "is no name of a snapshot",
        ),
        (&["--from", "nothing"], "there is no snapshot"),
        (&["--from", "vmlinux.nss"], "there is no snapshot"),
    ] {
        refused(&work, &run(args), 2, &[text]);
        assert!(!work.results().exists(), "{args:?}");
    }
    // A moment that never comes.
    let args = run(&["--snapshot-at", "mark:stop"]);
    refused(
        &work,
        &args,
        6,
        &["no snapshot s was taken: occurrence 1 of marker \"stop\""],
    );
    // A moment that came before the snapshot from which the run continues.
    ok(
        &work,
        &run(&[
            "--force",
            "--snapshot-at",
            "mark:step#9",
            "--stop-after-snapshot",
        ]),
    );
    for at in ["mark:step#9", "1us", "mark:step"] {
        let args = [
            "run",
            "s.toml",
            "--force",
            "--from",
            "s",
            "--snapshot-at",
            at,
        ];
        let args = [&args[..], &["--snapshot-name", "t"]].concat();
        refused(&work, &args, 2, &["no further snapshot can be taken at"]);
    }
}

#[test]
fn a_damaged_or_foreign_snapshot_is_refused_with_its_place() {
    let work = talking();
    let take = [
        "run",
        "s.toml",
        "--snapshot-at",
        "mark:step#5",
        "--stop-after-snapshot",
    ];
    ok(&work, &[&take[..], &["--snapshot-name", "x.nss"]].concat());
    let path = work.path().join("x.nss");
    let whole = fs::read(&path).unwrap();
    let run = ["run", "s.toml", "--from", "x.nss", "--force"];
    for at in [70, whole.len() / 2, whole.len() - 40] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        refused(&work, &run, 2, &["x.nss: offset ", "damaged"]);
    }
    // Another format version: the checksum after the header's 100 bytes must fit it.
    let mut bytes = whole.clone();
    bytes[8] = 200;
    let sum = crc32fast::hash(&bytes[..100]);
    bytes[100..104].copy_from_slice(&sum.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let told = ["x.nss: offset 8: written by nodescope", "in format 200"];
    refused(&work, &run, 2, &told);
    refused(&work, &["snapshot", "show", "x.nss"], 2, &told);
    fs::write(&path, b"#!/bin/sh").unwrap();
    refused(&work, &run, 2, &["not a snapshot of nodescope"]);
    fs::write(&path, &whole).unwrap();
    ok(&work, &run);
}

#[test]
fn a_node_that_has_booted_becomes_several_that_know_who_they_are() {
    let work = WorkFolder::new(1, "node.frequency = \"100 MHz\"", |path| {
        let kernel = Kernel::new().say("nodescope: booted\n").work(1_000_000);
        kernel.say_name().mark("step").work(30_000_000).off(0, path);
    });
    let take = ["run", "s.toml", "--snapshot-at", "boot", "--results", "one"];
    ok(&work, &take);
    ok(
        &work,
        &["run", "s.toml", "--from", "s", "--results", "same"],
    );
    same(&work.path().join("one"), &work.path().join("same"));
    let study = fs::read_to_string(work.path().join("s.toml")).unwrap();
    let study = study.replace("cluster.nodes = 1", "cluster.nodes = 4");
    fs::write(
        work.path().join("s.toml"),
        study.replace("\"true\"", "\"echo another job\""),
    )
    .unwrap();
    for results in ["four", "again"] {
        ok(
            &work,
            &["run", "s.toml", "--from", "s", "--results", results],
        );
    }
    let four = work.path().join("four");
    same(&four, &work.path().join("again"));
    for node in 0..4 {
        let console = fs::read_to_string(four.join(format!("console-node{node}.log"))).unwrap();
        assert_eq!(console, format!("nodescope: booted\nnode{node}n\n"));
    }
    let one = fs::read_to_string(work.path().join("one/console-node0.log")).unwrap();
    assert_eq!(one, "nodescope: booted\nnode0-\n");
    // The values apart from those of clones must still agree. A snapshot that was taken later than the boot cannot be cloned.
    let other = study.replace("64 MiB", "32 MiB");
    fs::write(work.path().join("s.toml"), other).unwrap();
    let from = ["run", "s.toml", "--from", "s", "--force"];
    refused(
        &work,
        &from,
        2,
        &["\n  node.memory: 64 MiB in the snapshot, 32 MiB in the study"],
    );
    // Guests learn the shapes of caches and the speeds of memory at boot. They do not learn what a model charges.
    let with = |line: &str| {
        let text = study.replace("cluster.nodes = 4", &format!("cluster.nodes = 4\n{line}"));
        let window = "\n[[window]]\nname = \"v\"\nopen = { marker = \"step\" }\nmeasure = \"1 M instructions\"\n";
        fs::write(work.path().join("s.toml"), text + window).unwrap();
    };
    with("caches.preset = \"gen1\"");
    refused(&work, &from, 2, &["\n  caches: L1 data: 32 KiB"]);
    with("memory.local = \"90 cycles\"");
    refused(&work, &from, 2, &["\n  memory: latencies"]);
    with("memory.local_write_back = \"9 cycles\"");
    ok(&work, &from);
    let one = study.replace("cluster.nodes = 4", "cluster.nodes = 1");
    fs::write(work.path().join("s.toml"), one).unwrap();
    ok(
        &work,
        &[
            "run",
            "s.toml",
            "--snapshot-at",
            "mark:step",
            "--results",
            "one",
            "--force",
        ],
    );
    fs::write(work.path().join("s.toml"), study).unwrap();
    refused(
        &work,
        &from,
        2,
        &[
            "cluster.nodes: 1 in the snapshot, 4 in the study",
            "--snapshot-at boot",
        ],
    );
}

#[test]
fn one_boot_serves_all_nodes_and_all_runs() {
    let once = "node.frequency = \"100 MHz\"\ncluster.boot = \"once\"";
    let work = WorkFolder::new(4, once, |path| {
        let kernel = Kernel::new().say("nodescope: booted\n").work(1_000_000);
        kernel.say_name().work(30_000_000).off(0, path);
    });
    let run = |results| ok(&work, &["run", "s.toml", "--results", results]);
    let booted = || {
        let list = ok(&work, &["snapshot", "list"]);
        let lines: Vec<_> = list.lines().collect();
        let [line] = lines[..] else { panic!("{list}") };
        assert!(
            line.starts_with("boot-") && line.contains("1 node,"),
            "{line}"
        );
        let name = line.split(' ').next().unwrap();
        work.path()
            .join(format!("cache/nodescope/snapshots/{name}.nss"))
    };
    run("boots");
    let snapshot = booted();
    run("finds");
    let [boots, finds] = ["boots", "finds"].map(|name| work.path().join(name));
    same(&boots, &finds);
    for node in 0..4 {
        let log = boots.join(format!("console-node{node}.log"));
        let console = fs::read_to_string(log).unwrap();
        assert_eq!(console, format!("nodescope: booted\nnode{node}n\n"));
    }
    // A file that is no snapshot is replaced by a boot.
    fs::write(&snapshot, b"#!/bin/sh").unwrap();
    run("again");
    same(&boots, &work.path().join("again"));
    assert_eq!(booted(), snapshot);
    // A larger cluster is cloned from the same boot; nodes of another size need a boot of their own.
    let study = fs::read_to_string(work.path().join("s.toml")).unwrap();
    let more = study.replace("cluster.nodes = 4", "cluster.nodes = 6");
    fs::write(work.path().join("s.toml"), more).unwrap();
    run("six");
    assert_eq!(booted(), snapshot);
    let larger = study.replace("64 MiB", "96 MiB");
    fs::write(work.path().join("s.toml"), larger).unwrap();
    run("larger");
    assert_eq!(ok(&work, &["snapshot", "list"]).lines().count(), 2);
}

#[test]
fn a_node_that_never_boots_leaves_its_console() {
    let work = WorkFolder::new(4, "cluster.boot = \"once\"", |path| {
        Kernel::new().say("no root\n").off(0, path);
    });
    let output = work.run(&["run", "s.toml"]);
    assert_ne!(output.status.code(), Some(0), "{output:?}");
    let console = fs::read_to_string(work.results().join("console-node0.log")).unwrap();
    assert_eq!(console, "no root\n");
    let told = stderr(&output);
    assert!(told.contains("never"), "{told}");
}
