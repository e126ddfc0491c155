//! Test that a small study has the results whose digests are in `digests.txt`.
//!
//! Other tests compare runs of one version with each other. Only this test sees a change that all runs have in common. A change to
//! nodescope's computations, or to the format of results, shows in the files that differ. To accept a change, commit new digests.

mod study;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use nodescope_cluster::Ending;
use nodescope_cluster::run::TRACE_FILE;
use nodescope_test_golden::{CALLS, NODES, VCPUS};
use sha2::{Digest, Sha256};
use study::{config, run};

/// Environment variable; if it is 1, the test writes the digests instead of comparing them.
const BLESS: &str = "NODESCOPE_BLESS";

/// Returns the SHA-256 digests of the compared files of results, by file name.
fn digests(results: &Path) -> BTreeMap<String, String> {
    let names = [
        TRACE_FILE,
        "windows.json",
        "profile.json",
        "fabric.pcap",
        "console-node0.log",
        "report.txt",
        "report.json",
    ];
    let digest = |name: &str| {
        let bytes = std::fs::read(results.join(name)).unwrap();
        let digest = Sha256::digest(&bytes);
        digest.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
    };
    names.map(|name| (name.into(), digest(name))).into()
}

#[test]
fn a_small_study_has_the_results_that_it_had() {
    let files = tempfile::tempdir().unwrap();
    let results = files.path().join("results");
    let outcome = run(&config(files.path()), &results);
    assert_eq!(outcome.ending, Ending::PoweredOff);
    assert_eq!(outcome.job_status, Some(0));
    for window in &outcome.windows.outcomes {
        assert_eq!(
            window.ending,
            nodescope_window::Ending::Complete,
            "{window}"
        );
    }
    let report = std::fs::read_to_string(results.join("report.txt")).unwrap();
    println!("{report}");
    let calls = format!("MPI_Allreduce     {}", CALLS * u64::from(NODES * VCPUS));
    assert!(report.contains(&calls), "no '{calls}' in\n{report}");

    let now = digests(&results);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/digests.txt");
    if std::env::var_os(BLESS).is_some_and(|value| value == "1") {
        let lines = now
            .iter()
            .map(|(name, digest)| format!("{digest}  {name}\n"));
        std::fs::write(&file, lines.collect::<String>()).unwrap();
        return;
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let before: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(digest, name)| (name.into(), digest.into()))
        .collect();
    let changed: Vec<&String> = now
        .iter()
        .filter(|(name, digest)| before.get(*name) != Some(*digest))
        .map(|(name, _)| name)
        .collect();
    if changed.is_empty() && now.len() == before.len() {
        return;
    }
    // The results are kept, so that they can be compared with earlier ones.
    let kept = files.keep().join("results");
    panic!(
        "a fixed study has other results than before: {changed:?}. They are in {}. If this change is meant, say in the \
         commit what it changes, and accept the new results with {BLESS}=1 cargo test -p nodescope-test-golden",
        kept.display()
    );
}
