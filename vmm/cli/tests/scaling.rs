//! Tests of `nodescope run --host-times`, and of `nodescope scaling` on results that it cannot use. Small guests stand in for Linux.

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use guest::{Kernel, WorkFolder, stderr};
use serde_json::Value;

/// Makes a study of two nodes that work, with a window in between.
fn working() -> WorkFolder {
    let window = "node.frequency = \"100 MHz\"\n\
        [[window]]\nname = \"w\"\nopen = { marker = \"step\" }\nmeasure = \"2 M instructions\"\n";
    WorkFolder::new(2, window, |path| {
        let kernel = Kernel::new().work(3_000_000).mark("step");
        kernel.work(9_000_000).off(0, path);
    })
}

/// Returns the files of a folder, by name, without those that a run with `--host-times` may change.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.path().is_file());
    let named = files.map(|entry| {
        (
            entry.file_name().into_string().unwrap(),
            fs::read(entry.path()).unwrap(),
        )
    });
    // The list of written files differs, too: it has `host.json` in one of the folders.
    named
        .filter(|(name, _)| name != "host.json" && name != "written.txt")
        .collect()
}

#[test]
fn host_times_add_a_file_and_change_no_other() {
    let work = working();
    for args in [
        &["run", "s.toml", "--results", "plain"][..],
        &["run", "s.toml", "--results", "timed", "--host-times"],
    ] {
        let output = work.run(args);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let (plain, timed) = (work.path().join("plain"), work.path().join("timed"));
    assert!(!plain.join("host.json").exists());
    assert!(files(&plain) == files(&timed));
    let read = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(timed.join(name)).unwrap()).unwrap()
    };
    let (host, run) = (read("host.json"), read("run.json"));
    assert_eq!(host["version"], 1);
    let phases = host["phases"].as_array().unwrap();
    let sum = |field: &str| {
        phases
            .iter()
            .map(|phase| phase[field].as_u64().unwrap())
            .sum::<u64>()
    };
    let executed = run["instructions"].as_array().unwrap();
    let executed: u64 = executed.iter().map(|node| node.as_u64().unwrap()).sum();
    assert_eq!(sum("instructions"), executed);
    assert_eq!(sum("virtual_ps"), run["virtual_ps"].as_u64().unwrap());
    let window = phases.iter().find(|phase| phase["phase"] == "window");
    let window = window.unwrap();
    assert_eq!(window["window"], "w");
    assert!(window["instructions"].as_u64().unwrap() >= 2_000_000);
    // A repeated run removes the `host.json` of the earlier run.
    let output = work.run(&["run", "s.toml", "--results", "timed", "--force"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!timed.join("host.json").exists());
}

#[test]
fn results_that_cannot_be_compared_are_refused_with_the_folder_and_the_mend() {
    let work = working();
    let output = work.run(&["run", "s.toml", "--results", "plain"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    fs::create_dir(work.path().join("empty")).unwrap();
    fs::write(work.path().join("no.json"), "{\"version\": 7}").unwrap();
    for (args, texts) in [
        (&["scaling", "plain"][..], ["plain", "no MPI calls"]),
        (&["scaling", "empty"], ["empty", "holds no report.json"]),
        (&["scaling", "no.json"], ["no.json", "is not the JSON of"]),
        (&["scaling", "absent"], ["absent", "cannot read"]),
        (
            &["scaling", "plain", "--plan", "nodes=8"],
            ["--plan", "cores is missing"],
        ),
    ] {
        let output = work.run(args);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
        assert!(
            texts.iter().all(|text| told.contains(text)),
            "{args:?}: {told}"
        );
    }
}
