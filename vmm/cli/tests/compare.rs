//! Tests of `nodescope compare`. Guests are kernels of a few instructions.

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::fs;

use guest::{Kernel, WorkFolder, stderr};

const WINDOW: &str =
    "[[window]]\nname = \"w\"\nopen = { marker = \"go\" }\nmeasure = \"1 M instructions\"\n";

/// Makes a study of one node that works, with a window in between. Runs it with results `a`, and at twice the frequency with results `b`.
fn compared() -> WorkFolder {
    let fields = format!("node.frequency = \"100 MHz\"\n{WINDOW}");
    let work = WorkFolder::new(1, &fields, |path| {
        (Kernel::new().mark("go"))
            .work(3_000_000)
            .say("done\n")
            .off(0, path);
    });
    let study = work.path().join("s.toml");
    let faster = fs::read_to_string(&study).unwrap();
    let faster = faster.replace("100 MHz", "200 MHz");
    fs::write(work.path().join("faster.toml"), faster).unwrap();
    for (study, results) in [("s.toml", "a"), ("faster.toml", "b")] {
        let output = work.run(&["run", study, "--results", results]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    work
}

fn figure(json: &serde_json::Value, group: &str, name: &str) -> serde_json::Value {
    let groups = json["groups"].as_array().unwrap();
    let group = groups.iter().find(|g| g["name"] == group).unwrap();
    let figures = group["figures"].as_array().unwrap();
    figures.iter().find(|f| f["name"] == name).unwrap().clone()
}

#[test]
fn twice_the_frequency_halves_the_time_and_nothing_else() {
    let work = compared();
    let output = work.run(&["compare", "a", "b", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["same_inputs"], false);
    let instructions = figure(&json, "Run", "instructions");
    assert_eq!(instructions["a"], instructions["b"]);
    assert_eq!(instructions["difference"], 0.0);
    let time = figure(&json, "Run", "virtual time")["relative"].clone();
    // A run ends at the end of a quantum, which lasts 100 us.
    assert!((time.as_f64().unwrap() + 0.5).abs() < 0.01, "{time}");
    let cpi = figure(&json, "Window \"w\", all ranks", "CPI_core");
    assert_eq!(cpi["a"], cpi["b"]);
    let lines = json["description"].as_array().unwrap();
    let differs = |text: &str| lines.iter().any(|l| l["b"].to_string().contains(text));
    assert!(differs("200 MHz"), "{lines:?}");

    let output = work.run(&["compare", "a", "b"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("A: a\nB: b\n"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let time = text.lines().find(|line| line.contains("virtual time "));
    assert!(time.is_some_and(|line| line.ends_with('%')), "{text}");
}

#[test]
fn results_are_equal_to_themselves_and_folders_without_any_are_refused() {
    let work = compared();
    let output = work.run(&["compare", "a", "a"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("same inputs"), "{text}");
    assert!(!text.contains('%'), "{text}");
    let output = work.run(&["compare", "a", "nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("nowhere holds no results of a run"));
}
