//! Programs with known constructs, run on this machine under the tracer. Counts are exact. No test depends on how fast anything is.

#[path = "support/programs.rs"]
mod programs;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use nodescope_openmp::{
    Analysis, Characteristics, CodeLocator, Kind, Options, Record, Schedule, Site, State,
};
use programs::{Program, tracer};

/// Compilers, with options that change how compilers treat constructs.
const COMPILERS: [(&str, &[&str]); 4] = [
    ("gcc", &["-O0"]),
    ("gcc", &["-O2"]),
    ("clang", &["-O0"]),
    ("clang", &["-O2"]),
];

/// Runs a test with each compiler that is installed and each of its options; runs nothing without the tracer.
fn each(test: impl Fn(&Path, &Program, &str)) {
    let Some(tracer) = tracer() else { return };
    for (compiler, options) in COMPILERS {
        if let Some(program) = Program::new(compiler, "losses.c", options) {
            test(tracer, &program, compiler);
        }
    }
}

/// Returns the number of executions of a kind of construct, in all threads.
fn count(record: &Record, kind: Kind) -> u64 {
    let events = record.threads.iter().flat_map(|thread| &thread.events);
    events
        .filter(|event| event.kind == kind)
        .map(|event| event.count)
        .sum()
}

/// Returns the ticks in a state, of all threads.
fn ticks(record: &Record, state: State) -> u64 {
    let cells = record.threads.iter().flat_map(|thread| &thread.cells);
    cells.map(|cell| cell.ticks[state as usize]).sum()
}

/// Checks the properties that every record must have.
fn check(record: &Record) {
    for interval in 0..record.intervals.len() {
        let of = Characteristics::of_interval(record, interval, record.peak);
        assert_eq!(of.productive + of.idle + of.lost.sum(), of.total);
        let parent = record.intervals[interval].parent;
        assert!(record.intervals[interval].total <= record.intervals[parent].total);
    }
    // A thread is in one state at a time, and no more threads are in a state than there are processors. The start of a worker counts from the
    // region's beginning, before the worker is among the active threads, so that another team may have ended in between.
    let states: u128 = (record.threads.iter().flat_map(|thread| &thread.cells))
        .flat_map(|cell| cell.ticks.map(u128::from))
        .sum();
    let busy = states - u128::from(ticks(record, State::Start));
    let whole = u128::from(record.intervals[0].total) * u128::from(record.peak);
    assert!(busy <= whole, "{busy} of {whole}");
    for event in record.threads.iter().flat_map(|thread| &thread.events) {
        assert!(event.longest <= event.total && event.count > 0, "{event:?}");
    }
}

fn run(tracer: &Path, program: &Program, case: &str) -> Record {
    let record = program.record(tracer, &[case]);
    check(&record);
    assert!(record.notes.is_empty(), "{:?}", record.notes);
    record
}

#[test]
fn constructs_are_counted_exactly() {
    each(|tracer, program, compiler| {
        let counts = |case: &str, expected: &[(Kind, u64)]| {
            let record = run(tracer, program, case);
            for (kind, times) in expected {
                let counted = count(&record, *kind);
                assert_eq!(counted, *times, "{compiler}: {} of {case}", kind.name());
            }
        };
        counts("critical", &[(Kind::Parallel, 4), (Kind::Critical, 4 * 20)]);
        counts("lock", &[(Kind::Lock, 4 * 7 * 3)]);
        counts("barrier", &[(Kind::Barrier, 4 * 5)]);
        counts("ordered", &[(Kind::Ordered, 60), (Kind::Loop, 4)]);
        counts("single", &[(Kind::Single, 4 * 6), (Kind::Barrier, 0)]);
        counts("sections", &[(Kind::Sections, 8), (Kind::Parallel, 8)]);
        counts("fixed", &[(Kind::Loop, 4), (Kind::Parallel, 4)]);
        counts("fixed_chunks", &[(Kind::Loop, 4)]);
        counts(
            "tasks",
            &[
                (Kind::CreatedTask, 52),
                (Kind::Task, 52),
                (Kind::Taskwait, 1),
                (Kind::Taskgroup, 1),
            ],
        );
        counts("nested", &[(Kind::Parallel, 2 + 4), (Kind::Barrier, 4 * 2)]);
        counts("reduction", &[(Kind::Task, 4)]);
        // fibonacci(15) is called 1973 times, of which all but the first are tasks; those with n > 1 wait.
        counts(
            "recursion",
            &[
                (Kind::Task, 1972),
                (Kind::CreatedTask, 1972),
                (Kind::Taskwait, 986),
            ],
        );
        if compiler == "clang" {
            counts("copied", &[(Kind::Single, 4 * 6)]);
            counts("master", &[(Kind::Master, 3)]);
            counts("flush", &[(Kind::Flush, 4 * 3)]);
            counts("taskloop", &[(Kind::Taskloop, 2), (Kind::Task, 40)]);
        } else {
            // The thread that executes a construct with copyprivate counts it once more, as what the others wait for.
            counts("copied", &[(Kind::Single, 4 * 6 + 6)]);
            counts("taskloop", &[(Kind::Taskloop, 2), (Kind::Task, 40)]);
            counts("doacross", &[(Kind::Loop, 4), (Kind::Ordered, 99)]);
        }
    });
}

#[test]
fn iterations_and_chunks_of_loops_are_counted_exactly() {
    let Some(tracer) = tracer() else { return };
    for options in [["-O0"], ["-O2"]] {
        let Some(program) = Program::new("gcc", "losses.c", &options) else {
            return;
        };
        let loops = |case: &str| {
            let record = run(tracer, &program, case);
            let mut loops: BTreeMap<Site, (Schedule, i64, u64, u64, u64)> = BTreeMap::new();
            for event in record.threads.iter().flat_map(|thread| &thread.events) {
                if event.kind == Kind::Loop {
                    let sum =
                        loops
                            .entry(event.site)
                            .or_insert((event.schedule, event.chunk, 0, 0, 0));
                    sum.2 += event.count;
                    sum.3 += event.iterations;
                    sum.4 += event.chunks;
                }
            }
            loops.into_values().collect::<Vec<_>>()
        };
        let found = loops("dynamic");
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], (Schedule::Dynamic, 7, 12, 2100, 300));
        let (schedule, chunk, times, iterations, _) = found[1];
        assert_eq!(
            (schedule, chunk, times, iterations),
            (Schedule::Guided, 5, 12, 3000)
        );
        assert_eq!(found[2], (Schedule::Dynamic, 1, 12, 300, 300));
        assert_eq!(loops("combined"), [(Schedule::Dynamic, 5, 4, 100, 20)]);
    }
}

#[test]
fn an_uneven_loop_is_the_dearest_point() {
    each(|tracer, program, compiler| {
        let record = run(tracer, program, "imbalance");
        let analysis = Analysis::new(
            vec![record],
            &Options::default(),
            &mut CodeLocator::new(&[]),
        );
        let process = &analysis.processes[0];
        let point = &process.points[0];
        assert_eq!(
            (point.kind, point.threads.len()),
            (Kind::Loop, 4),
            "{compiler}"
        );
        assert_eq!(process.loops[0].location, point.location);
        // One of four threads does all the work, so the mean is a quarter of the most: the imbalance is 3/4, less what delays the other
        // threads in the loop.
        assert!(
            process.loops[0].imbalance.0 > 0.5,
            "{compiler}: {:?}",
            process.loops[0]
        );
        let file = point.location.file.as_deref().unwrap_or_default();
        assert!(
            file.ends_with("losses.c"),
            "{compiler}: {:?}",
            point.location
        );
        let line = include_str!("programs/losses.c")
            .lines()
            .position(|line| line.contains("schedule(dynamic, 1)"))
            .unwrap() as u32
            + 1;
        assert!(
            (line - 3..line + 3).contains(&point.location.line.unwrap()),
            "{:?}",
            point.location
        );
    });
}

#[test]
fn serial_parts_leave_other_processors_idle() {
    each(|tracer, program, compiler| {
        let record = run(tracer, program, "serial");
        assert_eq!(record.peak, 4);
        let serial = u128::from(ticks(&record, State::Serial));
        let of = Characteristics::of_interval(&record, 0, 4);
        // While only one thread runs, three processors are idle; a nanosecond is for rounding.
        assert!(
            of.idle + 1 >= 3 * record.clock.nanoseconds(serial),
            "{compiler}: {of:?}"
        );
        assert!(of.productive >= record.clock.nanoseconds(serial).saturating_sub(1));
    });
}

#[test]
fn work_outside_of_sharing_is_useful_in_one_thread_alone() {
    each(|tracer, program, compiler| {
        let record = run(tracer, program, "replicated");
        let of = Characteristics::of_interval(&record, 0, 4);
        let replicated = ticks(&record, State::Replicated);
        assert!(
            replicated > 0 && ticks(&record, State::Shared) == 0,
            "{compiler}"
        );
        assert!(of.lost.insufficient_parallelism >= record.clock.nanoseconds(replicated.into()));
        assert_eq!(of.lost.desynchronisation, 0);
    });
}

#[test]
fn waiting_belongs_to_its_construct() {
    each(|tracer, program, compiler| {
        let lost =
            |case: &str| Characteristics::of_interval(&run(tracer, program, case), 0, 4).lost;
        let (critical, lock, ordered) = (lost("critical"), lost("lock"), lost("ordered"));
        assert!(
            critical.critical > 0 && critical.lock == 0 && critical.ordered == 0,
            "{compiler}"
        );
        assert!(
            lock.lock > 0 && lock.critical == 0 && lock.ordered == 0,
            "{compiler}"
        );
        assert!(
            ordered.ordered > 0 && ordered.critical == 0 && ordered.lock == 0,
            "{compiler}"
        );
        assert!(lost("barrier").barrier > 0, "{compiler}");
        assert!(lost("tasks").task > 0, "{compiler}");
    });
}

#[test]
fn intervals_nest_and_keep_their_statistics_apart() {
    each(|tracer, program, compiler| {
        let record = run(tracer, program, "intervals");
        let names: Vec<_> = (0..record.intervals.len())
            .map(|interval| {
                (
                    record.interval_path(interval),
                    record.intervals[interval].count,
                )
            })
            .collect();
        let expected = [("whole program", 1), ("outer", 1), ("outer / inner", 5)];
        assert_eq!(
            names,
            expected.map(|(name, count)| (name.to_owned(), count)),
            "{compiler}"
        );
        for (interval, times) in [(0, 0), (1, 4), (2, 20)] {
            let events = record.threads.iter().flat_map(|thread| &thread.events);
            let criticals =
                events.filter(|event| event.kind == Kind::Critical && event.interval == interval);
            assert_eq!(
                criticals.map(|event| event.count).sum::<u64>(),
                times,
                "{compiler}: interval {interval}"
            );
        }
        // gcc may give a region's call the line of the code before it, which must not be one of the header that the program includes.
        let mut locator = CodeLocator::new(&[]);
        let analysis = Analysis::new(vec![record.clone()], &Options::default(), &mut locator);
        for region in &analysis.processes[0].regions {
            let (location, text) = (&region.location, region.location.text());
            let file = location.file.as_ref();
            assert!(
                file.is_some_and(|file| file.ends_with("losses.c")),
                "{compiler}: {text}"
            );
            assert_eq!(
                location.function.as_deref(),
                Some("intervals"),
                "{compiler}: {text}"
            );
        }
        // Inner intervals are part of the interval around them.
        let [outer, inner] =
            [1, 2].map(|interval| Characteristics::of_interval(&record, interval, 4));
        assert!(outer.lost.critical >= inner.lost.critical);
    });
}

#[test]
fn threads_that_the_program_makes_start_regions_too() {
    each(|tracer, program, compiler| {
        let record = run(tracer, program, "threads");
        let roots = record.threads.iter().filter(|thread| thread.root).count();
        assert!((2..=3).contains(&roots), "{compiler}: {roots}");
        assert_eq!(count(&record, Kind::Parallel), 4, "{compiler}");
        assert_eq!(count(&record, Kind::Critical), 4, "{compiler}");
    });
}

#[test]
fn a_record_does_not_grow_with_iterations() {
    let Some(tracer) = tracer() else { return };
    for compiler in ["gcc", "clang"] {
        let Some(program) = Program::new(compiler, "ep.c", &["-O2"]) else {
            return;
        };
        let sizes = ["100", "10000", "1000000"].map(|batches| {
            let (_, paths, _log) = program.run(tracer, &[batches]);
            let text = std::fs::read_to_string(&paths[0]).unwrap();
            check(&Record::parse(&paths[0], &text).unwrap());
            // Threads without any iteration write all lines, too.
            text.lines().count()
        });
        assert!(
            sizes[0] == sizes[1] && sizes[1] == sizes[2],
            "{compiler}: {sizes:?}"
        );
    }
}

#[test]
fn programs_in_fortran_are_recorded() {
    let Some(tracer) = tracer() else { return };
    for options in [["-O0"], ["-O2"]] {
        let Some(program) = Program::new("gfortran", "sum.f90", &options) else {
            return;
        };
        let record = program.record(tracer, &[]);
        check(&record);
        let counts = [Kind::Loop, Kind::Critical, Kind::Lock].map(|kind| count(&record, kind));
        assert_eq!(counts, [4, 100, 4]);
    }
}

#[test]
fn programs_without_openmp_leave_nothing() {
    each(|tracer, program, _| {
        let (_, paths, _log) = program.run(tracer, &["none"]);
        assert!(paths.is_empty(), "{paths:?}");
    });
}

#[test]
fn a_killed_program_leaves_what_it_did_until_then() {
    let Some(tracer) = tracer() else { return };
    let Some(program) = Program::new("gcc", "losses.c", &["-O2"]) else {
        return;
    };
    let log = tempfile::tempdir().unwrap();
    let mut child = program
        .command(tracer, log.path(), &["endless"])
        .spawn()
        .unwrap();
    let found = || {
        let mut entries = log
            .path()
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().path());
        entries.find(|path| path.extension().is_some_and(|suffix| suffix == "openmp"))
    };
    // The tracer writes the record once a second; a machine under load may take longer.
    for _ in 0..1200 {
        if found().is_some() || child.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let record = Record::read(&found().expect("no record after two minutes")).unwrap();
    let notes = record.notes.join("\n");
    assert!(
        notes.contains("the process was killed or still runs"),
        "{notes}"
    );
    assert!(count(&record, Kind::Parallel) > 0);
}

#[test]
fn a_stripped_program_has_addresses_and_says_why() {
    let Some(tracer) = tracer() else { return };
    let Some(program) = Program::new("gcc", "losses.c", &["-O2", "-s"]) else {
        return;
    };
    let record = run(tracer, &program, "critical");
    let analysis = Analysis::new(
        vec![record],
        &Options::default(),
        &mut CodeLocator::new(&[]),
    );
    let location = &analysis.processes[0].points[0].location;
    assert_eq!((location.line, &location.file), (None, &None));
    assert!(
        location.text().starts_with("program+0x"),
        "{}",
        location.text()
    );
    let notes = analysis.notes.join("\n");
    assert!(notes.contains("has no debug information"), "{notes}");
}
