//! Problems of a study: all of them at once, each with its position in the file.

use std::fmt;
use std::path::{Path, PathBuf};

/// Severity of a problem: errors keep a study from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The study cannot run.
    Error,
    /// The study can run, but perhaps not as meant.
    Warning,
}

/// A position in a study file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Number of the line.
    pub line: usize,
    /// Column of the line, in characters.
    pub column: usize,
}

/// Problem of a file or of the host: a fault and its fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Severity of the problem.
    pub severity: Severity,
    /// Position in the file; none if the file is not at fault (a missing tool) or cannot be read at all.
    pub position: Option<Position>,
    /// The field, such as `network.latency`; empty if there is none.
    pub field: String,
    /// The fault and its fix.
    pub message: String,
}

/// Problems that are shown; more are counted.
const SHOWN: usize = 100;

/// List of all problems of a study, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    file: PathBuf,
    list: Vec<Problem>,
    more: usize,
}

impl Problems {
    /// Makes the problems of `file`, sorted by position; problems without a position come last.
    pub fn new(file: &Path, list: Vec<Problem>) -> Problems {
        Problems::with_more(file, list, 0)
    }

    /// Makes the problems of a file, with the number of further problems that are not kept.
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

    /// Returns the study file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the problems, as far as they are kept.
    pub fn list(&self) -> &[Problem] {
        &self.list
    }

    /// Returns the number of problems, kept or not.
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// Returns whether there is no problem.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether one of them keeps the study from running.
    pub fn has_errors(&self) -> bool {
        self.list
            .iter()
            .any(|problem| problem.severity == Severity::Error)
    }

    /// Joins the problems of `other`.
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
                // A host's problem has no place in the file; naming the file would mislead.
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
