//! From a file to a [`Study`], or to everything that is wrong with it.

use std::collections::BTreeSet;
use std::path::Path;

use toml::de::DeTable;

use crate::plan::Study;
use crate::sections;
use nodescope_config::problem::{Problem, Problems, Severity};
use nodescope_config::reader::{Section, Source, position};

impl Study {
    /// Reads and checks the study in file `path`.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it, in the order of the file.
    pub fn load(path: &Path) -> Result<Study, Problems> {
        let whole = |position, message: String| {
            let problem = Problem {
                severity: Severity::Error,
                position,
                field: String::new(),
                message,
            };
            Problems::new(path, vec![problem])
        };
        let bytes = std::fs::read(path).map_err(|error| {
            whole(
                None,
                format!("cannot be read: {error}; give the path of a study file"),
            )
        })?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Study::parse(path, text),
            Err(error) => Err(whole(
                Some(position(&bytes, error.valid_up_to())),
                "is not UTF-8 text from here on; save the file as UTF-8".into(),
            )),
        }
    }

    /// Checks the text of a study. Paths in it are relative to the folder of `file`, which need not exist.
    ///
    /// # Errors
    ///
    /// As [`Study::load`].
    pub fn parse(file: &Path, text: &str) -> Result<Study, Problems> {
        read(file, text).0
    }
}

/// All fields that a text has been asked for, lists of tables as `window[]`, free names as `*`. For the test of the reference.
#[doc(hidden)]
pub fn known_fields(file: &Path, text: &str) -> BTreeSet<String> {
    read(file, text).1
}

fn read(file: &Path, text: &str) -> (Result<Study, Problems>, BTreeSet<String>) {
    let (document, syntax) = DeTable::parse_recoverable(text);
    let source = Source::new(text, "a study");
    let root = Section::root(&source, document.get_ref());
    let study = sections::study(file, &root);
    root.finish();
    let (mut problems, places, known) = source.finish();
    if !syntax.is_empty() {
        // What the parser skipped is not missing, and a line that it could not read has one problem, not two.
        let syntax: Vec<Problem> = syntax
            .iter()
            .map(|error| Problem {
                severity: Severity::Error,
                position: Some(position(
                    text.as_bytes(),
                    error.span().map_or(0, |span| span.start),
                )),
                field: String::new(),
                message: format!("is not TOML: {}", error.message().replace('\n', ", ")),
            })
            .collect();
        let line = |problem: &Problem| problem.position.map(|position| position.line);
        problems.retain(|problem| {
            !problem.message.starts_with("is missing")
                && !syntax.iter().any(|error| line(error) == line(problem))
        });
        problems.extend(syntax);
    }
    if problems.is_empty() {
        let study = Study {
            text: text.to_owned(),
            places,
            ..study
        };
        (Ok(study), known)
    } else {
        (Err(Problems::new(file, problems)), known)
    }
}
