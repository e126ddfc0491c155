//! Test of some cases of a fixed seed for each target; `scripts/fuzz` runs cases as long as it is told to.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nodescope_fuzz::targets::{Target, named};

/// Checks the seeds and some cases of a target, and reports which case failed.
fn cases(name: &str, count: u64) {
    let target: &Target = named(name).expect("a target");
    for (number, seed) in (target.seeds)().iter().enumerate() {
        assert!(!seed.is_empty(), "seed {number} of {name} is empty");
        target.check(seed);
    }
    for case in 0..count {
        let checked = catch_unwind(AssertUnwindSafe(|| target.check(&target.input(1, case))));
        assert!(
            checked.is_ok(),
            "case {case}; run scripts/fuzz {name} --seed 1 --first {case} --seconds 1, which keeps its input"
        );
    }
}

#[test]
fn a_sum_that_wraps_fails_a_test() {
    let sum = || std::hint::black_box(u64::MAX) + std::hint::black_box(1);
    assert!(
        catch_unwind(sum).is_err(),
        "build tests with overflow-checks"
    );
}

// All targets but `otf2`, which has a test of its own, are in one test, since memory is counted for the whole process.
#[test]
fn damaged_inputs_are_refused_or_read() {
    for (name, count) in [
        ("trace", 150),
        ("predict", 150),
        ("export", 80),
        ("raw", 300),
        ("scale", 100),
        ("study", 300),
        ("cluster", 300),
        ("sweep", 200),
        ("recipe", 200),
        ("kernel", 1000),
        ("netpipe", 150),
        ("simgrid", 200),
        ("log", 200),
        ("windows", 200),
        ("run", 100),
        ("profile", 200),
        ("snapshot", 300),
        ("zmtp", 20),
        ("debug", 300),
    ] {
        cases(name, count);
    }
}
