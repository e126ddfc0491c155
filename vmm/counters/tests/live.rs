//! Counters of this machine. Software events take the same code path as hardware events, so the path is tested on a host without a PMU,
//! too.

use std::ffi::OsString;
use std::fs;
use std::process::Command;

use nodescope_counters::command::count_command;
use nodescope_counters::follow::follow;
use nodescope_counters::open::{CountTarget, Sum, counts, open};
use nodescope_counters::tables::{Code, Cpu, Event, Table};
use nodescope_counters::{CountersError, Reading, import};
use nodescope_test_needs::{Need, have, skip};

const fn software(name: &'static str, number: u64) -> Event {
    Event {
        name,
        code: Code::Software(number),
        quantity: None,
        scale: 1,
    }
}

/// PERF_COUNT_SW_TASK_CLOCK and PERF_COUNT_SW_PAGE_FAULTS in one group, PERF_COUNT_SW_DUMMY in another.
const GROUPS: &[&[Event]] = &[
    &[software("task-clock", 1), software("page-faults", 2)],
    &[software("dummy", 9)],
];

/// A shell script that runs a loop in the shell and another loop in a subshell.
const WORK: &str = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; (i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done)";

fn command(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Returns whether this system lets a process count its own events; if not, reports the test as skipped.
fn can_count() -> bool {
    match open(GROUPS, CountTarget::Task(0)) {
        Ok(_) => true,
        Err(error) => {
            skip(
                Need::Cpu,
                format_args!("counters cannot be opened: {error}"),
            );
            false
        }
    }
}

fn clock(sums: &[Sum]) -> f64 {
    sums[0].scaled().unwrap().0
}

#[test]
fn a_command_is_counted_with_all_that_it_starts() {
    if !can_count() {
        return;
    }
    let counted =
        count_command(GROUPS, &command(&["sh", "-c", &format!("{WORK}; exit 3")])).unwrap();
    assert_eq!(counted.status, 3);
    // 20,000 iterations take a shell more than 2 ms, and each program causes page faults.
    assert!(clock(&counted.sums) > 2e6, "{:?}", counted.sums);
    assert!(counted.sums[1].count > 10, "{:?}", counted.sums);
    assert_eq!(counted.sums[2].count, 0);
    let counts = counts(GROUPS, &counted.sums);
    let events: Vec<&str> = counts
        .readings
        .iter()
        .map(|reading: &Reading| reading.event.as_str())
        .collect();
    assert_eq!(events, ["task-clock", "page-faults", "dummy"]);
    let one = count_command(GROUPS, &command(&["sh", "-c", "kill -9 $$"])).unwrap();
    assert_eq!(one.status, 128 + 9);
}

#[test]
fn ranks_of_a_launcher_are_counted_apart() {
    if !can_count() {
        return;
    }
    // A launcher that forks, starts rank 0 twice, and computes itself.
    let launcher = format!(
        "PMI_RANK=0 sh -c '{WORK}' & PMI_RANK=1 sh -c '{WORK}; {WORK}; {WORK}; {WORK}' & wait; PMI_RANK=0 true; {WORK}; exit 4"
    );
    let followed = follow(GROUPS, &command(&["sh", "-c", &launcher])).unwrap();
    assert_eq!(followed.status, 4);
    assert_eq!(followed.ranks.keys().copied().collect::<Vec<_>>(), [0, 1]);
    let [first, second] = [0, 1].map(|rank| clock(&followed.ranks[&rank]));
    assert!(second > 2.0 * first, "{first} {second}");
    assert!(first > 2e6 && clock(&followed.others) > 2e6, "{followed:?}");
}

#[test]
fn a_command_without_ranks_is_counted_as_a_whole() {
    if !can_count() {
        return;
    }
    let followed = follow(GROUPS, &command(&["sh", "-c", &format!("{WORK}; exit 0")])).unwrap();
    assert!(followed.ranks.is_empty());
    assert!(clock(&followed.others) > 2e6, "{followed:?}");
    // Both methods count the same work, within the differences that the scheduler and the caches cause.
    let whole = count_command(GROUPS, &command(&["sh", "-c", WORK])).unwrap();
    let ratio = clock(&followed.others) / clock(&whole.sums);
    assert!((0.2..5.0).contains(&ratio), "{ratio}");
}

#[test]
fn signals_and_threads_pass_through() {
    if !can_count() {
        return;
    }
    let followed = follow(
        GROUPS,
        &command(&["sh", "-c", "trap 'exit 7' USR1; kill -USR1 $$; exit 1"]),
    )
    .unwrap();
    assert_eq!(followed.status, 7);
    let followed = follow(
        GROUPS,
        &command(&["sh", "-c", "sleep 5 & kill -9 $!; wait $!; kill -TERM $$"]),
    )
    .unwrap();
    assert_eq!(followed.status, 128 + 15);
}

#[test]
fn commands_that_cannot_start_are_named() {
    if !can_count() {
        return;
    }
    for result in [
        count_command(GROUPS, &command(&["/nonexistent/x"])).map(drop),
        follow(GROUPS, &command(&["/nonexistent/x"])).map(drop),
    ] {
        let told = result.unwrap_err().to_string();
        assert!(told.starts_with("cannot start /nonexistent/x: "), "{told}");
    }
}

/// Checks that ranks are counted under the launchers of Open MPI and MPICH, with unmodified command lines.
#[test]
fn ranks_of_open_mpi_and_mpich_are_counted() {
    if !can_count() || !have(Need::Mpi, &["mpirun.openmpi", "mpiexec.hydra"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("rank.sh");
    fs::write(&script, format!("#!/bin/sh\n{WORK}\n")).unwrap();
    let script = script.to_str().unwrap();
    for launcher in [
        &[
            "mpirun.openmpi",
            "--allow-run-as-root",
            "--oversubscribe",
            "-n",
            "3",
        ][..],
        &["mpiexec.hydra", "-n", "3"][..],
    ] {
        let words: Vec<&str> = launcher.iter().copied().chain(["sh", script]).collect();
        let followed = follow(GROUPS, &command(&words)).unwrap();
        assert_eq!(followed.status, 0, "{launcher:?}");
        assert_eq!(
            followed.ranks.keys().copied().collect::<Vec<_>>(),
            [0, 1, 2],
            "{launcher:?}"
        );
        for sums in followed.ranks.values() {
            assert!(clock(sums) > 2e6, "{launcher:?} {sums:?}");
        }
    }
}

/// Checks that a host with a PMU counts cycles and instructions, and that a host without one reports the lack.
#[test]
fn hardware_counters_count_or_say_why_not() {
    let Some(table) = Table::of(&Cpu::host()) else {
        skip(Need::Cpu, "the host's processor is in no table of events");
        return;
    };
    match count_command(table.groups, &command(&["sh", "-c", WORK])) {
        Ok(counted) => {
            let derived = counts(table.groups, &counted.sums);
            assert!(derived.value(nodescope_counters::Quantity::Instructions) > Some(1e5));
        }
        Err(error @ (CountersError::NoPmu { .. } | CountersError::Forbidden { .. })) => {
            let told = error.to_string();
            assert!(
                told.contains("this host has no hardware counters")
                    || told.contains("perf_event_paranoid"),
                "{told}"
            );
            skip(Need::Cpu, told);
        }
        Err(error) => panic!("{error}"),
    }
}

/// Checks that files of this machine's perf are read. Only events that perf could not count may cause an error.
#[test]
fn files_of_this_machines_perf_are_read() {
    if Command::new("perf").arg("--version").output().is_err() {
        skip(
            Need::Cpu,
            "perf is not installed (Debian package linux-perf)",
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("perf");
    let mut read = 0;
    for options in [
        &["-x,"][..],
        &["-x;"],
        &["-j"],
        &["-x,", "-r", "2"],
        &["-j", "-r", "2"],
        &["-x,", "-I", "20"],
        &["-j", "-I", "20"],
        &["-x,", "-a", "-A"],
        &["-j", "-a", "-A"],
        &["-x,", "-a", "--per-core"],
        &["-j", "-a", "--per-core"],
        &["-x,", "-a", "--per-socket"],
        &["-x,", "-a", "--per-node"],
        &["-x,", "-a", "--per-die"],
        &["-j", "-a", "--per-die"],
    ] {
        let output = Command::new("perf")
            .arg("stat")
            .args(options)
            .arg("-o")
            .arg(&file)
            .args(["-e", "task-clock,page-faults,cycles:u,instructions:u"])
            .args(["sleep", "0.05"])
            .output()
            .unwrap();
        if !output.status.success() {
            // Counting whole CPUs needs permissions that tests may lack.
            continue;
        }
        read += 1;
        match import(std::slice::from_ref(&file)) {
            Ok(measurement) => assert!(measurement.derive().unwrap().cpi > 0.0),
            Err(error) => {
                let told = error.to_string();
                let text = fs::read_to_string(&file).unwrap();
                assert!(
                    told.contains("<not supported>\" where")
                        || told.contains("<not counted>\" where"),
                    "{options:?}: {told}\n{text}"
                );
            }
        }
    }
    assert!(read >= 5, "{read}");
}
