//! Problems of a file that a user wrote, such as a study: all of them at once, each with its position.

use std::fmt;
use std::path::{Path, PathBuf};

/// Severity of a problem: an error makes the file unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The file cannot be used: a study, for example, cannot run.
    Error,
    /// The file can be used, but perhaps not as meant.
    Warning,
}

/// Position in a file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Number of the line.
    pub line: usize,
    /// Column within the line, in characters.
    pub column: usize,
}

/// Problem of a file or of the host: a fault and its fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Severity of the problem.
    pub severity: Severity,
    /// Position in the file. `None` if the file cannot be read, or if something else is at fault: the host, or a value that was set
    /// otherwise.
    pub position: Option<Position>,
    /// Full name of the field, such as `network.latency`; empty if the problem belongs to none.
    pub field: String,
    /// The fault and its fix.
    pub message: String,
}

/// Number of problems that are shown; further ones are counted.
const SHOWN: usize = 100;

/// List of all problems of a file, in the order of their positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    file: PathBuf,
    list: Vec<Problem>,
    more: usize,
}

impl Problems {
    /// Returns the problems of `file`, sorted by position; problems without a position come last.
    pub fn new(file: &Path, list: Vec<Problem>) -> Problems {
        Problems::with_more(file, list, 0)
    }

    /// Returns the problems of a file. `more` is the number of further problems, which are not in the list.
    pub fn with_more(file: &Path, mut list: Vec<Problem>, more: usize) -> Problems {
        list.sort_by_key(|problem| {
            let position = problem.position;
            (position.is_none(), position, problem.severity)
        });
        list.dedup();
        Problems {
            file: file.to_path_buf(),
            list,
            more,
        }
    }

    /// Returns the path of the file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the listed problems, without those that were only counted.
    pub fn list(&self) -> &[Problem] {
        &self.list
    }

    /// Returns the number of all problems, listed or only counted.
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// Returns whether there is no problem.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether any of the problems is an error, which prevents the study from running.
    pub fn has_errors(&self) -> bool {
        self.list
            .iter()
            .any(|problem| problem.severity == Severity::Error)
    }

    /// Returns the problems of both, under the name of this file.
    pub fn and(self, other: Problems) -> Problems {
        let Problems {
            file,
            mut list,
            more,
        } = self;
        list.extend(other.list);
        Problems::with_more(&file, list, more + other.more)
    }
}

impl fmt::Display for Problems {
    /// Writes a line for each of the first hundred problems: `study.toml:14: network.latency: "1.3" has no unit; write e.g. "1.3 us"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate().take(SHOWN) {
            if index > 0 {
                f.write_str("\n")?;
            }
            match problem.position {
                Some(position) => write!(f, "{}:{}: ", self.file.display(), position.line)?,
                // A problem of the host has no position in the file, and the file's name would mislead.
                None if problem.field == HOST => {}
                None => write!(f, "{}: ", self.file.display())?,
            }
            if problem.severity == Severity::Warning {
                f.write_str("warning: ")?;
            }
            if !problem.field.is_empty() {
                write!(f, "{}: ", problem.field)?;
            }
            f.write_str(&problem.message)?;
        }
        match self.count().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(
                f,
                "\n{}: {more} more problems; fix these first",
                self.file.display()
            ),
        }
    }
}

impl std::error::Error for Problems {}

/// Name of the field of problems that only the host causes.
pub const HOST: &str = "host";
