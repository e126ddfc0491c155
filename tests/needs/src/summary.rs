//! Counts the results of tests, from the output of `cargo test` and from the skips that tests have recorded.

use std::collections::{BTreeMap, BTreeSet};

use crate::without_hash;

/// The results of the tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of tests that ran completely and passed.
    pub passed: u64,
    /// Number of tests that failed, and of test programs that ended without a result.
    pub failed: u64,
    /// Tests and checks that did not run, or not completely, each with its reasons.
    pub skipped: BTreeMap<String, BTreeSet<String>>,
    /// Names of failed tests, and of test programs that ended without a result.
    pub failures: BTreeSet<String>,
}

impl Summary {
    /// Makes a summary of the log of `cargo test` and of the skips. Each line of skips has a name, a need and a reason, separated by tabs.
    /// A name with `::` is a test, which the log counts as passed.
    pub fn new(log: &str, skips: &str) -> Self {
        let mut summary = Summary::default();
        // The test program that runs, and whether its result line is still missing.
        let mut program = String::new();
        let mut open = false;
        // True while the lines that follow are names of failed tests.
        let mut names = false;
        for line in log.lines() {
            if let Some(next) = program_of(line) {
                if open {
                    summary.ended_without_result(&program);
                }
                (program, open, names) = (next, true, false);
            } else if let Some(result) = line.strip_prefix("test result: ") {
                let count = |what: &str| {
                    let words: Vec<&str> = result.split([' ', ';', '.']).collect();
                    let found = words.windows(2).find(|pair| pair[1] == what);
                    found.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
                };
                summary.passed += count("passed");
                summary.failed += count("failed");
                (open, names) = (false, false);
            } else if line == "failures:" {
                names = true;
            } else if names && let Some(name) = line.strip_prefix("    ") {
                summary.failures.insert(format!("{program}::{name}"));
            } else if let Some((name, reason)) = ignored(line) {
                let skipped = summary.skipped.entry(format!("{program}::{name}"));
                skipped.or_default().insert(reason.to_owned());
            } else if !line.is_empty() {
                // The first section after "failures:" has the tests' output, which may be indented; it is no list of names.
                names = false;
            }
        }
        if open {
            summary.ended_without_result(&program);
        }
        for line in skips.lines() {
            let mut fields = line.splitn(3, '\t');
            let mut field = || fields.next().unwrap_or_default();
            let (name, need, reason) = (field(), field(), field());
            if summary.failures.contains(name) {
                continue;
            }
            let reasons = summary.skipped.entry(name.to_owned()).or_default();
            if reasons.is_empty() && name.contains("::") {
                summary.passed = summary.passed.saturating_sub(1);
            }
            reasons.insert(format!("{reason} ({need})"));
        }
        summary
    }

    fn ended_without_result(&mut self, program: &str) {
        self.failed += 1;
        self.failures
            .insert(format!("{program}, which ended without a result"));
    }

    /// Returns the summary as text: skipped tests with reasons, failed tests, and the numbers in the last line.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if !self.skipped.is_empty() {
            text += "skipped:\n";
        }
        for (name, reasons) in &self.skipped {
            let reasons: Vec<&str> = reasons.iter().map(String::as_str).collect();
            text += &format!("  {name}: {}\n", reasons.join("; "));
        }
        if !self.failures.is_empty() {
            text += "failed:\n";
        }
        for name in &self.failures {
            text += &format!("  {name}\n");
        }
        let skipped = self.skipped.len();
        text + &format!(
            "{} passed, {} failed, {skipped} skipped\n",
            self.passed, self.failed
        )
    }
}

/// Returns the name of the test program whose tests begin at this line of the log, as [`crate::skip`] writes it; None for other lines.
fn program_of(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(of) = line.strip_prefix("Doc-tests ") {
        return Some(of.to_owned());
    }
    let path = line.strip_prefix("Running ")?.strip_suffix(')')?;
    let (_, path) = path.split_once('(')?;
    let file = path.rsplit('/').next()?;
    Some(without_hash(file).to_owned())
}

/// Returns the name of an ignored test, and the reason; None for other lines.
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (name, how) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    Some((name, how.strip_prefix(", ").unwrap_or("ignored")))
}

#[cfg(test)]
mod tests {
    use super::Summary;

    const LOG: &str = "\
   Compiling nodescope-x86 v0.1.0
     Running unittests src/lib.rs (target/debug/deps/nodescope_x86-0123456789abcdef)

running 3 tests
test a ... ok
test long ... ignored, the long campaign
test b::c ... some output
ok

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/exports.rs (target/debug/deps/exports-0123456789abcdef)

running 3 tests
test half ... FAILED
test otf2 ... ok
test whole ... ok

failures:

---- half stdout ----
    indented output
skipped: no smpirun (simgrid)

failures:
    half

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/abort.rs (target/debug/deps/abort-0123456789abcdef)

running 1 test
error: test failed, to rerun pass `-p x --test abort`
   Doc-tests nodescope_x86

running 0 tests

test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn what_did_not_run_is_not_counted_as_passed() {
        let skips = "exports::otf2\totf2\tno otf2-print\nexports::otf2\tsimgrid\tno smpirun\n\
                     exports::otf2\totf2\tno otf2-print\nexports::half\tsimgrid\tno smpirun\n\
                     lints\tclippy\tno cargo clippy here\n";
        assert_eq!(
            Summary::new(LOG, skips).text(),
            "skipped:\n  exports::otf2: no otf2-print (otf2); no smpirun (simgrid)\n  lints: no cargo clippy here (clippy)\n  \
             nodescope_x86::long: the long campaign\nfailed:\n  abort, which ended without a result\n  exports::half\n\
             3 passed, 2 failed, 3 skipped\n"
        );
    }

    #[test]
    fn a_log_that_breaks_off_has_failed() {
        let (log, _) = LOG.split_once("test result").unwrap();
        let summary = Summary::new(log, "");
        assert_eq!((summary.passed, summary.failed), (0, 1));
        assert_eq!(
            Summary::new("", "").text(),
            "0 passed, 0 failed, 0 skipped\n"
        );
    }
}
