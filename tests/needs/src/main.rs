//! Prints the summary of a test run: `nodescope-test-needs LOG SKIPS`. The exit code is 1 if a test failed or a file cannot be read.

use std::process::ExitCode;

use nodescope_test_needs::summary::Summary;

fn main() -> ExitCode {
    let files: Vec<_> = std::env::args_os().skip(1).collect();
    let [log, skips] = &files[..] else {
        eprintln!("usage: nodescope-test-needs LOG SKIPS");
        return ExitCode::FAILURE;
    };
    // The output of tests may contain bytes that are not UTF-8.
    let read = |file| std::fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    match (read(log), read(skips)) {
        (Ok(log), Ok(skips)) => {
            let summary = Summary::new(&log, &skips);
            print!("{}", summary.text());
            ExitCode::from(u8::from(summary.failed > 0))
        }
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("cannot read what the tests left: {error}");
            ExitCode::FAILURE
        }
    }
}
