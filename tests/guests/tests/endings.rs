//! Tests that the outcome reports how a run ended: a job that fails, a window that never triggers, a guest that panics, hangs or resets.

use nodescope_cluster::run::TRACE_FILE;
use nodescope_cluster::{Ending, RunError};
use nodescope_guest_tests::{
    Finished, SECOND_PS, cluster, image, run, run_well, script, small_node,
};
use nodescope_hypercall::Function;
use nodescope_machine::node::NodeError;
use nodescope_report::{CoreCpi, ReportInput, StudyInfo};
use nodescope_study::Study;
use nodescope_window::{
    Ending as WindowEnding, Measure, ModelSpec, Trigger, WindowRecord, WindowSpec,
};

fn window(name: &str, open: Trigger) -> WindowSpec {
    WindowSpec {
        name: name.into(),
        open,
        warm_up: 0,
        attribution: true,
        sampling: None,
        measure: Measure::Instructions(1000),
        models: ModelSpec::default(),
    }
}

/// Runs a small node with a job and a time limit in virtual seconds. None: there is no guest image.
fn end(
    job: &str,
    limit_s: u64,
    windows: Vec<WindowSpec>,
) -> Option<(Result<Finished, RunError>, tempfile::TempDir)> {
    let mut config = cluster(image()?, 1, small_node(128), &script(job));
    config.time_limit_ps = limit_s * SECOND_PS;
    config.windows = windows;
    let dir = tempfile::tempdir().unwrap();
    let result = run(&config, dir.path());
    Some((result, dir))
}

#[test]
fn a_job_that_fails_and_windows_that_never_open() {
    let windows = vec![
        window(
            "marked",
            Trigger::Marker {
                name: "nowhere".into(),
                occurrence: 2,
            },
        ),
        window(
            "called",
            Trigger::MpiCall {
                function: Function::Allreduce,
                call: 5,
                rank: 0,
            },
        ),
        window("late", Trigger::Time { ps: 50 * SECOND_PS }),
        window("early", Trigger::Time { ps: 1000 }),
    ];
    let job = "#!/bin/sh\nnodescope-guest mark nowhere\nnodescope-guest open unheard-of\necho all wrong\nexit 7\n";
    let Some((result, _dir)) = end(job, 60, windows) else {
        return;
    };
    let finished = result.unwrap();
    let outcome = &finished.outcome;
    assert_eq!(outcome.ending, Ending::PoweredOff);
    assert_eq!(outcome.job_status, Some(7));
    assert!(finished.consoles[0].contains("all wrong\n"));
    let endings: Vec<_> = outcome.windows.outcomes.iter().map(|o| o.ending).collect();
    assert_eq!(
        endings,
        [
            WindowEnding::NeverTriggered,
            WindowEnding::NeverTriggered,
            WindowEnding::NeverTriggered,
            WindowEnding::Complete
        ]
    );
    let texts: Vec<_> = outcome.windows.outcomes.iter().map(|o| &o.text).collect();
    assert!(
        texts[0].contains("seen: 1 markers \"nowhere\""),
        "{texts:?}"
    );
    assert!(texts[1].contains("seen: 0"), "{texts:?}");
    assert_eq!(outcome.windows.windows.len(), 1);
    assert!(
        outcome.warnings.iter().any(|w| w.contains("unheard-of")),
        "{:?}",
        outcome.warnings
    );
}

#[test]
fn a_guest_kernel_that_panics() {
    let job = "#!/bin/sh\necho before\necho c >/proc/sysrq-trigger\nsleep 1000\n";
    let Some((result, _dir)) = end(job, 60, Vec::new()) else {
        return;
    };
    let finished = result.unwrap();
    let Ending::GuestPanic { node: 0, line } = &finished.outcome.ending else {
        panic!("{:?}\n{}", finished.outcome.ending, finished.consoles[0]);
    };
    assert!(line.contains("sysrq triggered crash"), "{line}");
    assert_eq!(finished.outcome.job_status, None);
    assert!(finished.consoles[0].contains("before\n"));
    assert!(finished.outcome.virtual_ps < 60 * SECOND_PS);
}

/// A file beyond the study's limits is refused: the guest's tool fails with a message. For all such files together the user gets at most
/// three warnings, and the run continues.
#[test]
fn a_guest_that_puts_too_much_is_told_so() {
    let Some(image) = image() else { return };
    let job = "#!/bin/sh
head -c 1000000 /dev/zero >/tmp/well
head -c 2000000 /dev/zero >/tmp/much
for name in a/b a long much; do
    from=/tmp/well
    [ $name = much ] && from=/tmp/much
    nodescope-guest put $from $name; echo $name: $?
done
for i in $(seq 50); do nodescope-guest put /tmp/much $i 2>/dev/null; done
exit 0
";
    let mut config = cluster(image, 1, small_node(128), &script(job));
    config.file_limits.file = 1_500_000;
    config.file_limits.node = 5_000_000;
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    let console = &finished.consoles[0];
    for line in ["a/b: 0\n", "a: 1\n", "long: 0\n", "much: 1\n"] {
        assert!(console.contains(line), "{line}{console}");
    }
    assert!(
        console.contains("much: over a limit of the study"),
        "{console}"
    );
    let warnings = &finished.outcome.warnings;
    assert!(
        warnings.len() <= 3 && warnings.iter().any(|w| w.contains("results.file_limit")),
        "{warnings:?}"
    );
    let length = |name| std::fs::metadata(dir.path().join("files").join(name)).map(|m| m.len());
    assert_eq!(length("a/b").unwrap(), 1_000_000);
    assert!(length("much").unwrap() <= 1_500_000);
}

#[test]
fn a_job_that_never_ends_meets_the_time_limit() {
    let Some((result, _dir)) = end("#!/bin/sh\nsleep 1000000\n", 8, Vec::new()) else {
        return;
    };
    let finished = result.unwrap();
    assert_eq!(finished.outcome.ending, Ending::TimeLimit);
    assert_eq!(finished.outcome.job_status, None);
    assert_eq!(finished.outcome.virtual_ps, 8 * SECOND_PS);
    assert!(finished.consoles[0].contains("nodescope: job starts"));
}

#[test]
fn a_guest_that_resets_itself() {
    let Some(image) = image() else { return };
    let job = script("#!/bin/sh\nbusybox reboot -f\nsleep 1000\n");
    let mut config = cluster(image, 1, small_node(128), &job);
    let dir = tempfile::tempdir().unwrap();
    // The guest resets with the reset register of the ACPI tables.
    config.kernel_parameters = vec!["reboot=acpi".into()];
    let finished = run(&config, dir.path()).unwrap();
    assert_eq!(finished.outcome.ending, Ending::Reset { node: 0 });
    assert_eq!(finished.outcome.job_status, None);
    // The guest resets with a triple fault, the default of the image's kernels. No message before the fault explains it.
    config.kernel_parameters.clear();
    let error = run(&config, dir.path()).unwrap_err();
    assert!(
        matches!(
            error,
            RunError::Node(NodeError::TripleFault { node: 0, .. })
        ),
        "{error}"
    );
    assert!(error.to_string().contains("console log"), "{error}");
}

/// A node that sleeps during a whole window counts no instructions. The report can be made nevertheless.
#[test]
fn a_window_over_an_idle_node() {
    let Some(image) = image() else { return };
    let job = script("#!/bin/sh\nsleep 0.3\n");
    let mut config = cluster(image, 2, small_node(128), &job);
    // Node 0 sleeps for two seconds before it starts the job; node 1 has nothing to do from its boot on.
    let windows = (0..4).map(|n| WindowSpec {
        attribution: true,
        sampling: None,
        measure: Measure::Time { ps: 200_000_000 },
        ..window(
            &format!("window{n}"),
            Trigger::Time {
                ps: SECOND_PS + n * 400_000_000_000,
            },
        )
    });
    config.windows = windows.collect();
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    let windows = &finished.outcome.windows;
    let slept = |record: &WindowRecord| {
        let counted = record.nodes[1].counters.iter();
        counted
            .map(|(.., counters)| counters.instructions)
            .sum::<u64>()
            == 0
    };
    assert!(windows.windows.iter().any(slept), "{windows:?}");
    let report = nodescope_report::build(&ReportInput {
        profiles: None,
        models: Vec::new(),
        memory_parallelism: 1.0,
        windows: windows.clone(),
        trace: Some(finished.dir.join(TRACE_FILE)),
        study: StudyInfo::default(),
        core: CoreCpi::Nominal {
            source: "stated in the test".into(),
        },
        network: Vec::new(),
        notes: Vec::new(),
    });
    assert_eq!(report.unwrap().windows.len(), 4);
}

/// A damaged root disk is a failure of the host: the run ends when a guest reads damaged blocks, and reports the offset.
#[test]
fn a_root_disk_that_does_not_hold_what_was_built() {
    use std::os::unix::fs::FileExt;
    let Some(image) = image() else { return };
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root.img");
    std::fs::copy(&image.root, &root).unwrap();
    let file = std::fs::File::options().write(true).open(&root).unwrap();
    // The disk is damaged from 1 MiB to 80 MiB; the superblock and the group descriptors in front remain whole.
    let noise = vec![0x5a; 1 << 20];
    for at in (1 << 20..80 << 20).step_by(noise.len()) {
        file.write_all_at(&noise, at).unwrap();
    }
    let mut config = cluster(image, 1, small_node(128), &script("#!/bin/sh\n"));
    config.root = root;
    let error = run(&config, &dir.path().join("results")).unwrap_err();
    assert!(matches!(error, RunError::Disk { .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("root.img: damaged: the 65536 bytes at offset "),
        "{message}"
    );
    assert!(
        message.contains("nodescope image build --force"),
        "{message}"
    );
}

/// The job's files are collected by patterns, from folders and from other nodes. A missing file does not change the job's status.
#[test]
fn files_are_collected_from_every_node() {
    let Some(image) = image() else { return };
    let text = r#"
[cluster]
nodes = 2
[job]
command = "/opt/nodescope/rsh node1 'mkdir sub; echo far >sub/out.far; echo 1 >sub/x.log'; echo near >out.near; echo two >'two words'; echo 0 >x.log"
mpi = "none"
collect = ["out.*", "two words", "node1:/job/sub/out.far", "*:**/*.log", "node1:sub", "absent.*"]
"#;
    let study = Study::parse(std::path::Path::new("s.toml"), text).unwrap();
    let job = script(&study.job.start_script());
    let config = cluster(image, 2, small_node(128), &job);
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    for (name, contents) in [
        ("out.near", "near\n"),
        ("two words", "two\n"),
        ("node0/x.log", "0\n"),
        ("node1/sub/x.log", "1\n"),
        ("node1/out.far", "far\n"),
        ("node1/sub/out.far", "far\n"),
    ] {
        assert_eq!(finished.file(name), contents, "{name}");
    }
    let console = &finished.consoles[0];
    assert!(
        console.contains("the job left no file absent.*\n"),
        "{console}"
    );
}
