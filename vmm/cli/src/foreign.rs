//! Files that are not nodescope's traces, where a command wants a trace.

use std::path::Path;

use nodescope_export::{ImportError, recognise};
use nodescope_trace::TraceError;

use crate::exit::{Exit, Failure};

/// Returns the failure of a trace that cannot be read. If the file that the user named is of another tool, the message says of which, and
/// how it becomes a trace.
pub fn unreadable(input: &Path, error: &TraceError) -> Failure {
    let mut failure = Failure::of(Exit::of_trace(error), error);
    let foreign = match error {
        TraceError::NotATrace { .. } => true,
        // A folder without a trace may hold a trace of another tool.
        TraceError::Io { cause, .. } => {
            cause.kind() == std::io::ErrorKind::NotFound && input.is_dir()
        }
        _ => false,
    };
    if foreign && let Some(what) = looks_like(input) {
        failure.chain[0] += &format!(": {what}");
    }
    failure
}

/// Returns what a file or folder is, and what to do with it; `None` for a folder in which no trace is found.
fn looks_like(input: &Path) -> Option<String> {
    match recognise(input) {
        Ok((kind, file)) => Some(format!(
            "{} is {}, and nodescope import {} -o trace.nst makes a trace of it",
            file.display(),
            kind.name(),
            file.display()
        )),
        Err(ImportError::Unknown { what, .. }) if !input.is_dir() => Some(format!(
            "it {what}, and is of no format that can be imported"
        )),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodescope_trace::TraceReader;

    fn told(input: &Path) -> String {
        let file = match input.is_dir() {
            true => input.join("trace.nst"),
            false => input.to_owned(),
        };
        let error = TraceReader::open(&file).map(|_| ()).unwrap_err();
        let failure = unreadable(input, &error);
        assert_eq!(failure.exit, Exit::Study);
        failure.chain[0].clone()
    }

    #[test]
    fn traces_of_other_tools_are_named_with_the_command_that_imports_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("schedule.goal");
        assert!(!told(folder.path()).contains("import"));
        std::fs::write(&file, "num_ranks 1\nrank 0 {\n}\n").unwrap();
        for input in [file.as_path(), folder.path()] {
            let told = told(input);
            assert!(
                told.contains("schedule.goal is a GOAL schedule, and nodescope import "),
                "{told}"
            );
        }
        std::fs::write(&file, b"\x1f\x8b\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0").unwrap();
        let told = told(&file);
        assert!(
            told.contains("is not a nodescope trace: it is compressed by gzip"),
            "{told}"
        );
    }
}
