//! One file that a user wrote, read into a value or into everything that is wrong with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::de::DeTable;

use crate::problem::{Position, Problem, Problems, Severity};
use crate::reader::{Section, Source, position};

/// What a text was found to be.
pub struct Document<T> {
    /// The value with the places of all fields, or all problems in the order of the file.
    pub checked: Result<(T, BTreeMap<String, Position>), Problems>,
    /// Every field that was asked for, lists of tables as `name[]`, free names as `*`.
    pub known: BTreeSet<String>,
}

/// Reads the file `path` and gives its text to `parse`; `what` says in messages what it is, such as "a study".
///
/// # Errors
///
/// A file that cannot be read or is not UTF-8, and what `parse` says.
pub fn load<T>(
    path: &Path,
    what: &str,
    parse: impl FnOnce(&Path, &str) -> Result<T, Problems>,
) -> Result<T, Problems> {
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
            format!("cannot be read: {error}; give the path of {what} file"),
        )
    })?;
    match std::str::from_utf8(&bytes) {
        Ok(text) => parse(path, text),
        Err(error) => Err(whole(
            Some(position(&bytes, error.valid_up_to())),
            "is not UTF-8 text from here on; save the file as UTF-8".into(),
        )),
    }
}

/// Reads a text of `file`, which need not exist, by asking `check` for its sections. Sections that it does not ask for are problems.
pub fn read<T>(
    file: &Path,
    text: &str,
    what: &'static str,
    check: impl FnOnce(&Section<'_>) -> T,
) -> Document<T> {
    let (document, syntax) = DeTable::parse_recoverable(text);
    let source = Source::new(text, what);
    let root = Section::root(&source, document.get_ref());
    let value = check(&root);
    root.finish();
    let (mut problems, places, known) = source.finish();
    if !syntax.is_empty() {
        // What the parser skipped is not missing, and a line that it could not read has one problem, not two.
        let syntax: Vec<Problem> = (syntax.iter())
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
    let checked = if problems.is_empty() {
        Ok((value, places))
    } else {
        Err(Problems::new(file, problems))
    };
    Document { checked, known }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Document<Option<u64>> {
        read(Path::new("f.toml"), text, "a test", |root| {
            let section = root.section("part");
            let number = section.require("number", "7");
            section.finish();
            number.and_then(|item| item.integer(1..=9))
        })
    }

    #[test]
    fn a_good_text_gives_its_value_and_its_places() {
        let document = number("# comment\n[part]\nnumber = 3\n");
        let (value, places) = document.checked.unwrap();
        assert_eq!(value, Some(3));
        assert_eq!(places["part.number"].line, 3);
        assert!(document.known.contains("part.number"));
    }

    #[test]
    fn problems_come_together_and_syntax_hides_what_it_caused() {
        let told = |text: &str| number(text).checked.unwrap_err().to_string();
        let both = told("x = 1\n[part]\nnumber = 30\n");
        assert!(both.contains("f.toml:1: x: is not a section of a test"));
        assert!(both.contains("f.toml:3: part.number: is 30"));
        let syntax = told("[part]\nnumber = \n");
        assert!(syntax.starts_with("f.toml:2: is not TOML"), "{syntax}");
        assert!(!syntax.contains("missing"), "{syntax}");
    }

    #[test]
    fn files_that_are_no_texts_are_refused() {
        let missing = load(Path::new("/nonexistent/f.toml"), "a test", |_, _| Ok(()));
        let told = missing.unwrap_err().to_string();
        assert!(told.contains("give the path of a test file"), "{told}");
        let path = std::env::temp_dir().join(format!("nodescope-{}.toml", std::process::id()));
        std::fs::write(&path, b"a = 1\nb = \"\xff\"\n").unwrap();
        let told = load(&path, "a test", |_, _| Ok(()))
            .unwrap_err()
            .to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(told.contains(".toml:2: is not UTF-8"), "{told}");
    }
}
