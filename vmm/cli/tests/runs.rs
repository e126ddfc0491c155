//! Tests of runs as processes: killed, interrupted, limited, side by side. Guests are kernels of a few instructions.

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use guest::{
    HANG_UP_AND_INTERRUPT, Kernel, WorkFolder, ends_within, holds, set_dispositions, signal,
    stderr, wait_until,
};

/// Longest time that a run which ends soon may take on a busy host.
const SOON: Duration = Duration::from_secs(60);

/// Returns a kernel under construction that makes a marker and executes 20 million instructions.
fn marking() -> Kernel {
    Kernel::new().mark("step").work(20_000_000)
}

/// Returns the number of markers in the trace of a run, which may be cut.
fn marks(work: &WorkFolder) -> usize {
    let output = work.run(&["export", "results/s", "--format", "csv", "-o", "table"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table: String = fs::read_dir(work.path().join("table"))
        .unwrap()
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    table.lines().filter(|line| line.contains("step")).count()
}

#[test]
fn a_kernel_of_a_few_instructions_runs_to_its_end() {
    let work = WorkFolder::new(1, "", |path| {
        Kernel::new().say("hello\n").mark("step").off(0, path);
    });
    let output = work.run(&["run", "s.toml"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let console = fs::read_to_string(work.results().join("console-node0.log")).unwrap();
    assert_eq!(console, "hello\n");
    assert_eq!(marks(&work), 1);
    // The second run leaves only its own files, none of the first run's.
    let list = fs::read_to_string(work.results().join("written.txt")).unwrap();
    let output = work.run(&["run", "s.toml", "--force"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        fs::read_to_string(work.results().join("written.txt")).unwrap(),
        list
    );
    for file in fs::read_dir(work.results()).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "written.txt" || list.lines().any(|line| line == name),
            "{name}"
        );
    }
}

/// Checks that windows cost what they contain: a profile has no code of other windows.
#[test]
fn a_window_has_only_the_blocks_that_ran_in_it() {
    let windows: String = (1..=20)
        .map(|n| {
            format!(
                "[[window]]\nname = \"w{n}\"\nopen = {{ marker = \"step\", occurrence = {n} }}\nmeasure = \"1000 instructions\"\n"
            )
        })
        .collect();
    let part = format!("node.frequency = \"100 MHz\"\n{windows}");
    let work = WorkFolder::new(1, &part, |path| {
        let steps = (0..20).fold(Kernel::new(), |kernel, _| {
            kernel.mark("step").work(3_000_000)
        });
        steps.off(0, path);
    });
    let output = work.run(&["run", "s.toml"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let profiles = nodescope_profile::ProfilesFile::read(work.results().join("profile.json.zst"));
    let profiles = profiles.unwrap();
    assert_eq!(profiles.windows.len(), 20);
    for window in &profiles.windows {
        let counted: std::collections::BTreeSet<u32> =
            window.counts.iter().map(|count| count.block).collect();
        assert!(!counted.is_empty());
        // Block 0 stands for costs outside of code.
        let without = (1..window.blocks.len() as u32).filter(|block| !counted.contains(block));
        assert_eq!(without.count(), 0, "{}", window.name);
    }
}

#[test]
fn a_killed_run_leaves_a_readable_trace_and_can_be_replaced() {
    let work = WorkFolder::new(1, "", |path| marking().for_ever(path));
    // The trace's file then has several chunks with at least five markers together: 100 million instructions.
    let mut child = work.start(&["run", "s.toml"], "trace.nst", 400);
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    let found = marks(&work);
    assert!(found >= 5, "{found} marks");
    let output = work.run(&["report", "results/s"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    fs::write(work.results().join("notes.txt"), "mine").unwrap();
    // The killed process no longer has the lock on the results.
    fs::remove_file(work.path().join("vmlinux")).unwrap();
    Kernel::new().off(0, &work.path().join("vmlinux"));
    let output = work.run(&["run", "s.toml", "--force"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        fs::read_to_string(work.results().join("notes.txt")).unwrap(),
        "mine"
    );
}

/// Checks that the moments at which the trace is saved follow from what the guests do, so that its bytes do not depend on the host.
#[test]
fn a_trace_that_is_saved_often_has_the_same_bytes_on_any_number_of_threads() {
    let work = WorkFolder::new(3, "node.frequency = \"100 MHz\"", |path| {
        let steps = (0..40).fold(Kernel::new(), |kernel, _| {
            kernel.mark("step").work(3_000_000)
        });
        steps.off(0, path);
    });
    let trace = |threads: &str| {
        let mut command = work.command(&["run", "s.toml", "--force", "--host-threads", threads]);
        let output = command
            .env("RUST_LOG", "nodescope_cluster=debug")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let saved = stderr(&output).matches("debug: the trace is saved").count();
        assert!(saved >= 3, "saved {saved} times");
        fs::read(work.results().join("trace.nst")).unwrap()
    };
    let one = trace("1");
    for threads in ["2", "3"] {
        assert!(trace(threads) == one, "{threads} threads");
    }
    assert_eq!(marks(&work), 120);
}

#[test]
fn of_two_runs_in_one_folder_one_is_refused() {
    let work = WorkFolder::new(1, "", |path| marking().for_ever(path));
    let first = work.start(&["run", "s.toml"], "trace.nst", 1);
    for args in [&["run", "s.toml", "--force"][..], &["run", "s.toml"]] {
        let output = work.run(args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let told = "another run is writing to results/s";
        assert!(stderr(&output).contains(told), "{output:?}");
    }
    signal(&first, libc::SIGTERM);
    let output = ends_within(first, SOON);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(marks(&work) > 0);
}

#[test]
fn a_console_ends_with_its_input() {
    // On a slow processor, a second of virtual time takes little host time.
    let work = WorkFolder::new(1, "node.frequency = \"100 MHz\"", |path| {
        Kernel::new()
            .say("shell on the console\n")
            .read(4)
            .say("bye\n")
            .off(0, path);
    });
    // Standard input is /dev/null.
    let child = work.command(&["console", "s.toml"]).spawn().unwrap();
    let output = ends_within(child, SOON);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout, "shell on the console\nbye\n");
}

#[test]
fn a_console_that_never_ends_is_ended_by_a_signal() {
    let work = WorkFolder::new(1, "", |path| {
        Kernel::new().say("a line\n").work(1 << 20).for_ever(path);
    });
    // Nobody would read a pipe while this test waits, so standard output is a file.
    let shown = work.path().join("shown");
    let mut child = work
        .command(&["console", "s.toml"])
        .stdout(File::create(&shown).unwrap())
        .spawn()
        .unwrap();
    wait_until(&mut child, "a line of the console", || holds(&shown, 7));
    signal(&child, libc::SIGTERM);
    let output = ends_within(child, SOON);
    // 130 is the code of a cluster that does not stop in time.
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 130)), "{output:?}");
}

/// Sets a limit for the process that a command starts.
fn limited(command: &mut Command, resource: libc::__rlimit_resource_t, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: setrlimit may be called between fork and exec, and reads a value that the closure owns.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(resource, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

#[test]
fn a_file_that_would_exceed_the_limit_of_its_size_is_told_with_the_limit() {
    let text = "a line of a console that fills a file\n".repeat(20);
    let work = WorkFolder::new(1, "", |path| Kernel::new().say(&text).for_ever(path));
    let mut command = work.command(&["run", "s.toml"]);
    limited(&mut command, libc::RLIMIT_FSIZE, 100_000);
    let output = ends_within(command.spawn().unwrap(), SOON);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    for text in [
        "error: cannot write results/s/console-node0.log: File too large (os error 27)",
        "help: no file may have more than 100000 bytes here (RLIMIT_FSIZE)",
    ] {
        assert!(told.contains(text), "expected {text:?} in:\n{told}");
    }
    // Output that was written before the limit was reached is kept and can be read.
    let log = fs::metadata(work.results().join("console-node0.log")).unwrap();
    assert_eq!(log.len(), 100_000);
    assert_eq!(work.run(&["report", "results/s"]).status.code(), Some(0));
}

#[test]
fn too_little_address_space_is_a_problem_of_the_host() {
    let work = WorkFolder::new(2, "", |path| Kernel::new().mark("step").off(0, path));
    let mut codes = Vec::new();
    // With less than 36 MiB the system cannot even load the program and its shared libraries.
    for mebibytes in [40, 48, 96, 144, 160, 192, 256, 512] {
        let mut command = work.command(&["run", "s.toml", "--force"]);
        limited(&mut command, libc::RLIMIT_AS, mebibytes << 20);
        let output = ends_within(command.spawn().unwrap(), SOON);
        let told = stderr(&output);
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 5)), "{mebibytes} MiB: {output:?}");
        assert!(code == Some(0) || told.contains("error: "), "{output:?}");
        codes.push(code);
    }
    assert!(codes.contains(&Some(5)), "{codes:?}");
}

/// Returns the reader and the writer of a pipe that is full.
fn full_pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0);
    // SAFETY: the descriptors are new, and nothing else owns them.
    let (reader, mut writer) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    // SAFETY: the descriptor is open; the call changes only the pipe's size.
    let size = unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
    writer.write_all(&vec![b'x'; size as usize]).unwrap();
    (reader, writer)
}

#[test]
fn a_signal_ends_a_run_whose_report_nobody_reads() {
    let work = WorkFolder::new(1, "", |path| Kernel::new().off(0, path));
    let (reader, writer) = full_pipe();
    let mut child = work
        .command(&["run", "s.toml"])
        .stdout(writer)
        .spawn()
        .unwrap();
    let report = work.results().join("report.html");
    wait_until(&mut child, "the report", || report.exists());
    signal(&child, libc::SIGTERM);
    let output = ends_within(child, SOON);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let told = stderr(&output);
    assert!(
        told.contains("`nodescope report results/s` prints it"),
        "{told}"
    );
    drop(reader);
    let output = work.run(&["report", "results/s"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_signal_ends_a_run_whose_messages_nobody_reads() {
    let work = WorkFolder::new(1, "", |path| Kernel::new().say("a line\n").for_ever(path));
    let (_reader, writer) = full_pipe();
    let mut child = work
        .command(&["run", "s.toml", "--follow"])
        .stderr(writer)
        .spawn()
        .unwrap();
    // The run creates this file after the handlers are installed.
    let log = work.results().join("console-node0.log");
    wait_until(&mut child, "the console's log", || holds(&log, 0));
    signal(&child, libc::SIGTERM);
    let output = ends_within(child, SOON);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let output = work.run(&["report", "results/s"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Checks that a second signal ends the program if an image's build hangs, which does not react to the first.
#[test]
fn a_second_signal_ends_a_build_whose_messages_nobody_reads() {
    let work = WorkFolder::new(1, "", |path| Kernel::new().off(0, path));
    let (_reader, writer) = full_pipe();
    let mut child = work
        .command(&["image", "build"])
        .stderr(writer)
        .spawn()
        .unwrap();
    let cache = work.path().join("cache/nodescope/images");
    // The build takes its lock, and then hangs in its first message.
    let locked = || {
        let files = fs::read_dir(&cache).into_iter().flatten().flatten();
        files
            .map(|file| file.path())
            .any(|path| path.extension().is_some_and(|end| end == "lock"))
    };
    wait_until(&mut child, "the lock of the build", locked);
    // Two signals at the same time may be delivered as one, so they are sent at intervals.
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > SOON {
            child.kill().unwrap();
            panic!("no signal ends the build");
        }
        signal(&child, libc::SIGTERM);
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(status.code(), Some(130));
}

#[test]
fn a_run_ignores_the_signals_that_its_starter_ignores() {
    let work = WorkFolder::new(1, "", |path| {
        let steps = (0..10).fold(Kernel::new(), |kernel, _| {
            kernel.mark("step").work(20_000_000)
        });
        steps.off(0, path);
    });
    let mut command = work.command(&["run", "s.toml"]);
    set_dispositions(&mut command, libc::SIG_IGN);
    let mut child = command.spawn().unwrap();
    // The run creates this file after the handlers are installed.
    let log = work.results().join("console-node0.log");
    wait_until(&mut child, "the console's log", || holds(&log, 0));
    // proc(5), /proc/PID/status: one bit for each signal, bit 0 for signal 1.
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
    for number in HANG_UP_AND_INTERRUPT {
        assert!(
            ignored & 1 << (number - 1) != 0,
            "signal {number}: {status}"
        );
        signal(&child, number);
    }
    let output = ends_within(child, SOON);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_hang_up_ends_a_run_that_does_not_ignore_it() {
    let work = WorkFolder::new(1, "", |path| marking().for_ever(path));
    let mut child = work.command(&["run", "s.toml"]).spawn().unwrap();
    let trace = work.results().join("trace.nst");
    wait_until(&mut child, "the trace", || holds(&trace, 1));
    signal(&child, libc::SIGHUP);
    let output = ends_within(child, SOON);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
}

#[test]
fn the_console_can_be_followed_and_cannot_control_the_terminal() {
    let work = WorkFolder::new(2, "", |path| {
        Kernel::new().say("one\r\n\x1b[2Jtwo").off(0, path);
    });
    let output = work.run(&["run", "s.toml", "--follow"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = stderr(&output);
    for line in ["node0| one", "node0| \\u{1b}[2Jtwo"] {
        assert!(told.lines().any(|told| told == line), "{told}");
    }
    assert!(!told.contains("node1|"), "{told}");
    let output = work.run(&["run", "s.toml", "--force", "--follow=1", "--quiet"]);
    let told = stderr(&output);
    assert_eq!(told, "node1| one\nnode1| \\u{1b}[2Jtwo\n");
    let output = work.run(&["run", "s.toml", "--force", "--follow=2"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let told = "error: --follow: there is no node 2; the study's nodes are 0 to 1\n";
    assert_eq!(stderr(&output), told);
}

#[test]
fn phases_are_told_to_who_asks() {
    let window = "[[window]]\nname = \"w\"\nmeasure = \"1 M instructions\"\n";
    let work = WorkFolder::new(1, window, |path| {
        Kernel::new().work(20_000_000).off(0, path)
    });
    let told = |args: &[&str], log: &str| {
        let mut command = work.command(&["run", "s.toml", "--force"]);
        let output = command.args(args).env("RUST_LOG", log).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        stderr(&output)
    };
    let phases = ["check", "image", "boot", "window, window \"w\"", "report"];
    let all = told(&["-v"], "");
    for phase in phases {
        let line = format!("info: {phase} took ");
        assert!(
            all.lines().any(|told| told.starts_with(&line)),
            "{phase}: {all}"
        );
    }
    assert!(!told(&[], "").contains(" took "));
    let one = told(&[], "nodescope_cluster=info");
    assert!(
        one.contains("info: boot took") && !one.contains("check took"),
        "{one}"
    );
    assert_eq!(told(&["--quiet"], ""), "");
    assert!(told(&[], "x=loud").contains("warning: RUST_LOG is not understood"));
    let json = told(&["-v", "--log-format", "json"], "");
    let boot = json
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .find(|value| value["phase"] == "boot")
        .unwrap();
    assert!(boot["host_seconds"].is_f64(), "{boot}");
}

#[test]
fn progress_of_many_nodes_is_one_line_with_the_slowest() {
    // On slow processors, quanta have few instructions, and progress is reported sooner.
    let part = "node.frequency = \"100 MHz\"\nstudy.time_limit = \"1 min\"\n";
    let work = WorkFolder::new(16, part, |path| marking().for_ever(path));
    let file = work.path().join("told");
    let mut child = work
        .command(&["run", "s.toml"])
        .stderr(File::create(&file).unwrap())
        .spawn()
        .unwrap();
    let told = || fs::read_to_string(&file).unwrap();
    // The first report of progress names the phase of the nodes.
    let whole_line = || {
        let told = told();
        told.ends_with('\n') && told.contains(" s virtual: ")
    };
    wait_until(&mut child, "a line of progress", whole_line);
    signal(&child, libc::SIGTERM);
    ends_within(child, SOON);
    let told = told();
    let lines: Vec<_> = told
        .lines()
        .filter(|line| line.contains(" s virtual: "))
        .collect();
    assert!(!lines.is_empty(), "{told}");
    for line in lines {
        assert!(
            line.contains("16 nodes boot ") && line.contains("; slowest node"),
            "{line}"
        );
        // Nobody can tell when the job ends.
        assert!(!line.contains(" limit "), "{line}");
    }
}
