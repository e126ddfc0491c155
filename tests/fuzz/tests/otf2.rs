//! Test with damaged OTF2 archives. The foreign library that reads them may crash, so each archive is read in a process of its own. A panic
//! of nodescope fails the test.

use std::process::Command;

use nodescope_fuzz::targets::named;
use nodescope_test_needs::{Need, skip};

/// Number of damaged archives that the test reads; their seed is fixed.
const CASES: u64 = 30;

#[test]
fn damaged_archives_are_refused_or_read() {
    let target = named("otf2").expect("a target");
    let seeds = (target.seeds)();
    if seeds.is_empty() {
        return skip(Need::Otf2, "no archive can be written to be damaged");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("archive");
    let cases = (0..CASES).map(|case| target.input(1, case));
    for (number, input) in seeds.into_iter().chain(cases).enumerate() {
        std::fs::write(&path, input).expect("an archive");
        let output = Command::new(env!("CARGO_BIN_EXE_fuzz"))
            .args(["otf2", "--input"])
            .arg(&path)
            .output()
            .expect("the program runs");
        let said = String::from_utf8_lossy(&output.stderr);
        // A panic in a callback of the library aborts the process, so the output shows the panic and not the exit status.
        assert!(!said.contains("panicked at"), "{number}: {said}");
        assert!(number > 0 || output.status.success(), "the seed: {said}");
    }
}
