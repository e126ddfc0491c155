//! Intervals that a user names when a record is read: the parallel regions of a function, or of some source lines.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::code_location::CodeLocation;

/// Selection of parallel regions by the call site. Serial code around the regions is no part of the interval, because no record contains
/// the time when that code runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Regions that this function calls.
    Function(String),
    /// Regions that lines of a source file call.
    Lines {
        /// The file's name, or the end of its path.
        file: String,
        /// Number of the first line, from 1.
        from: u32,
        /// Number of the last line, which is part of the selection.
        to: u32,
    },
}

/// A selection that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no selection of regions: write function=NAME or lines=FILE:FROM-TO, such as lines=solve.c:10-90"
)]
pub struct SelectionError(String);

impl FromStr for Selection {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Selection, SelectionError> {
        let wrong = || SelectionError(text.to_owned());
        let (what, value) = text.split_once('=').ok_or_else(wrong)?;
        match what {
            "function" if !value.is_empty() => Ok(Selection::Function(value.to_owned())),
            "lines" => {
                let (file, lines) = value.rsplit_once(':').ok_or_else(wrong)?;
                let (from, to) = lines.split_once('-').unwrap_or((lines, lines));
                let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
                let (from, to) = (number(from)?, number(to)?);
                if file.is_empty() || from == 0 || to < from {
                    return Err(wrong());
                }
                let file = file.to_owned();
                Ok(Selection::Lines { file, from, to })
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selection::Function(name) => write!(f, "regions of {name}"),
            Selection::Lines { file, from, to } => write!(f, "regions of {file}:{from}-{to}"),
        }
    }
}

impl Selection {
    /// Returns whether a call site is part of the selection.
    pub fn holds(&self, location: &CodeLocation) -> bool {
        match self {
            Selection::Function(name) => location.function.as_ref() == Some(name),
            Selection::Lines { file, from, to } => {
                let same = location
                    .file
                    .as_ref()
                    .is_some_and(|path| Path::new(path).ends_with(file));
                same && location
                    .line
                    .is_some_and(|line| (*from..=*to).contains(&line))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(function: &str, file: &str, line: u32) -> CodeLocation {
        CodeLocation {
            module: "p".into(),
            address: 1,
            function: Some(function.into()),
            file: Some(file.into()),
            line: Some(line),
        }
    }

    #[test]
    fn selections_are_read_and_hold_their_places() {
        let function: Selection = "function=solve".parse().unwrap();
        assert!(
            function.holds(&location("solve", "a.c", 1))
                && !function.holds(&location("solver", "a.c", 1))
        );
        let lines: Selection = "lines=src/a.c:10-20".parse().unwrap();
        assert!(lines.holds(&location("f", "/home/x/src/a.c", 20)));
        assert!(!lines.holds(&location("f", "/home/x/src/a.c", 21)));
        assert!(!lines.holds(&location("f", "/home/x/src/aa.c", 10)));
        assert_eq!(
            "lines=a.c:7".parse(),
            Ok(Selection::Lines {
                file: "a.c".into(),
                from: 7,
                to: 7
            })
        );
        for wrong in [
            "",
            "solve",
            "function=",
            "lines=a.c",
            "lines=a.c:9-8",
            "lines=:1-2",
            "lines=a.c:0",
            "phase=1",
        ] {
            let error = wrong.parse::<Selection>().unwrap_err();
            assert!(error.to_string().contains("write function=NAME"), "{wrong}");
        }
    }
}
