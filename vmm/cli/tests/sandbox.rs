//! What the process of a run holds back, and what it says where the host does not hold it back.

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use guest::{Kernel, WorkFolder, ends_within, signal, stderr, talking, wait_until};
use nodescope_test_needs::{Need, skip};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// Longest time that a run which ends soon may take on a busy host.
const SOON: Duration = Duration::from_secs(60);

/// Makes a command run as on a kernel without these system calls.
fn without_calls(command: &mut Command, calls: &[i64]) {
    let rules: BTreeMap<_, _> = calls.iter().map(|call| (*call, Vec::new())).collect();
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
        TargetArch::x86_64,
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    // SAFETY: applying a filter that was made before only makes system calls.
    unsafe {
        command.pre_exec(move || {
            seccompiler::apply_filter(&program).map_err(|_| std::io::ErrorKind::Other.into())
        });
    }
}

const LANDLOCK: [i64; 3] = [
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
];

fn notes(work: &WorkFolder) -> Vec<String> {
    let text = fs::read_to_string(work.results().join("run.json")).unwrap();
    let run: serde_json::Value = serde_json::from_str(&text).unwrap();
    let notes = run["notes"].as_array().unwrap().iter();
    notes.map(|note| note.as_str().unwrap().into()).collect()
}

/// Returns the values of a field of all threads of a process (proc_pid_status(5)).
fn of_threads(child: &Child, field: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let value = |task: std::io::Result<fs::DirEntry>| {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    tasks.map(value).collect()
}

/// Returns whether this host holds all; reports the test as skipped if it does not.
fn complete(work: &WorkFolder) -> bool {
    let output = work.run(&["run", "s.toml", "--force", "--sandbox", "require"]);
    if output.status.code() == Some(5) && stderr(&output).contains("--sandbox require") {
        skip(Need::Sandbox, stderr(&output));
        return false;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    true
}

#[test]
fn a_run_is_restricted_says_so_and_leaves_no_temporary_files() {
    let work = talking();
    if !complete(&work) {
        return;
    }
    let temporary = work.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let mut command = work.command(&["run", "s.toml", "--force", "--verbose"]);
    let output = command.env("TMPDIR", &temporary).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = stderr(&output);
    let held = "sandbox: held by no_new_privs, Landlock, seccomp\n";
    assert!(told.contains(held), "{told}");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    assert_eq!(notes(&work), [""; 0]);
}

#[test]
fn every_thread_of_a_run_has_the_filter_and_off_means_none() {
    for (mode, privileges, filter) in [("try", "1", "2"), ("off", "0", "0")] {
        let work = WorkFolder::new(2, "", |path| Kernel::new().mark("step").for_ever(path));
        if mode == "try" && !complete(&talking()) {
            return;
        }
        let args = ["run", "s.toml", "--host-threads", "2", "--sandbox", mode];
        let mut run = work.start(&args, "trace.nst", 1);
        let threads = format!("/proc/{}/task", run.id());
        // The main thread, one for signals, and a second one for nodes.
        wait_until(&mut run, "threads", || {
            fs::read_dir(&threads).is_ok_and(|tasks| tasks.count() >= 3)
        });
        assert!(
            of_threads(&run, "NoNewPrivs")
                .iter()
                .all(|of| of == privileges)
        );
        assert!(of_threads(&run, "Seccomp:").iter().all(|of| of == filter));
        signal(&run, libc::SIGTERM);
        let output = ends_within(run, SOON);
        assert_eq!(output.status.code(), Some(130), "{output:?}");
    }
}

#[test]
fn what_the_host_does_not_hold_is_said_or_refused() {
    let work = talking();
    let run = |mode: &str, calls: &[i64]| {
        let mut command = work.command(&["run", "s.toml", "--force", "--sandbox", mode]);
        without_calls(&mut command, calls);
        command.output().unwrap()
    };
    for (calls, gap) in [
        (&LANDLOCK[..], "no Landlock (this kernel has no Landlock"),
        (&[libc::SYS_seccomp], "no seccomp ("),
    ] {
        let output = run("try", calls);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(stderr(&output).contains(gap), "{output:?}");
        let told = notes(&work);
        assert!(told.iter().any(|note| note.contains(gap)), "{told:?}");
        let output = run("require", calls);
        assert_eq!(output.status.code(), Some(5), "{output:?}");
        assert!(stderr(&output).contains(gap), "{output:?}");
        let output = run("off", calls);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        // The process that makes names is confined in each mode.
        let said = stderr(&output);
        let mut of_run = said.lines().filter(|line| !line.contains("makes names"));
        assert!(!of_run.any(|line| line.contains(gap)), "{output:?}");
    }
}

/// Checks that a study whose guests rewrite their code without end is ended by the host's time, with its results.
#[test]
fn the_host_time_limit_ends_a_run_and_keeps_its_results() {
    let study = "study.host_time_limit = \"2 s\"\nstudy.time_limit = \"100000 s\"\n\
        [[window]]\nname = \"w\"\nopen = { marker = \"step\" }\nmeasure = \"until closed\"\n";
    let work = WorkFolder::new(1, study, |path| {
        Kernel::new().mark("step").rewrite_for_ever(path);
    });
    let output = work.run(&["run", "s.toml"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let told = stderr(&output);
    let said = "the run took 2 s of this host's time, study.host_time_limit, and ended after ";
    assert!(told.contains(said), "{told}");
    let report = fs::read_to_string(work.results().join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["windows"][0]["name"], "w");
    let check = work.run(&["report", "results/s"]);
    assert_eq!(check.status.code(), Some(0), "{check:?}");
}
