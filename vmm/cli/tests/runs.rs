//! Runs from outside: killed, interrupted, side by side. Guests are kernels of a few instructions.

mod guest;

use std::fs;
use std::time::Duration;

use guest::{Kernel, Place, ends_within, signal, stderr};

/// How long what ends at once may take on a busy host.
const SOON: Duration = Duration::from_secs(60);

/// Marks all 20 million instructions, for ever.
fn marking() -> Kernel {
    Kernel::new().mark("step").work(20_000_000)
}

/// Events in the trace of a run that was cut.
fn marks(place: &Place) -> usize {
    let output = place.run(&["export", "results/s", "--format", "csv", "-o", "table"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table: String = fs::read_dir(place.path().join("table"))
        .unwrap()
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    table.lines().filter(|line| line.contains("step")).count()
}

#[test]
fn a_kernel_of_a_few_instructions_runs_to_its_end() {
    let place = Place::new(1, "", |path| {
        Kernel::new().say("hello\n").mark("step").off(0, path);
    });
    let output = place.run(&["run", "s.toml"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let console = fs::read_to_string(place.results().join("console-node0.log")).unwrap();
    assert_eq!(console, "hello\n");
    assert_eq!(marks(&place), 1);
    // The same again, with nothing left of the first run that the second did not write.
    let list = fs::read_to_string(place.results().join("written.txt")).unwrap();
    let output = place.run(&["run", "s.toml", "--force"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        fs::read_to_string(place.results().join("written.txt")).unwrap(),
        list
    );
    for file in fs::read_dir(place.results()).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "written.txt" || list.lines().any(|line| line == name),
            "{name}"
        );
    }
}

#[test]
fn a_killed_run_leaves_a_readable_trace_and_can_be_replaced() {
    let place = Place::new(1, "", |path| marking().for_ever(path));
    // Several chunks, each of a few marks: 100 million instructions are five of them.
    let mut child = place.start(&["run", "s.toml"], "trace.nst", 400);
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    let found = marks(&place);
    assert!(found >= 5, "{found} marks");
    let output = place.run(&["report", "results/s"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    fs::write(place.results().join("notes.txt"), "mine").unwrap();
    // The lock went with the process.
    fs::remove_file(place.path().join("vmlinux")).unwrap();
    Kernel::new().off(0, &place.path().join("vmlinux"));
    let output = place.run(&["run", "s.toml", "--force"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        fs::read_to_string(place.results().join("notes.txt")).unwrap(),
        "mine"
    );
}

#[test]
fn of_two_runs_in_one_folder_one_is_refused() {
    let place = Place::new(1, "", |path| marking().for_ever(path));
    let first = place.start(&["run", "s.toml"], "trace.nst", 1);
    for args in [&["run", "s.toml", "--force"][..], &["run", "s.toml"]] {
        let output = place.run(args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let told = "another run is writing to results/s";
        assert!(stderr(&output).contains(told), "{output:?}");
    }
    signal(&first, libc::SIGTERM);
    let output = ends_within(first, SOON);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(marks(&place) > 0);
}

#[test]
fn a_console_ends_with_its_input() {
    // A second of virtual time passes soon on a slow processor.
    let place = Place::new(1, "node.frequency = \"100 MHz\"", |path| {
        Kernel::new()
            .say("shell\n")
            .read(4)
            .say("bye\n")
            .off(0, path);
    });
    // Standard input is /dev/null.
    let child = place.command(&["console", "s.toml"]).spawn().unwrap();
    let output = ends_within(child, SOON);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout, "shell\nbye\n");
}

#[test]
fn a_console_that_never_ends_is_ended_by_a_signal() {
    let place = Place::new(1, "", |path| Kernel::new().work(1 << 20).for_ever(path));
    let child = place.command(&["console", "s.toml"]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    signal(&child, libc::SIGTERM);
    let output = ends_within(child, SOON);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
