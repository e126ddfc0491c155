//! A file of the user that is read into a value, or into the list of all its problems.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::lines::Lines;
use crate::problem::{Position, Problem, Problems, Severity};
use crate::reader::{Findings, KEPT, Section, Source};

/// Size in bytes beyond which a file is refused.
const LARGEST: u64 = 16 << 20;

/// The result of reading a text.
pub struct Document<T> {
    /// The value with the positions of all fields, or all problems in the order of the file.
    pub checked: Result<(T, BTreeMap<String, Position>), Problems>,
    /// Names of all fields that were asked for, with lists of tables as `name[]` and free names as `*`.
    pub known: BTreeSet<String>,
}

/// Reads the file `path` and passes its text to `parse`. `what` is the kind of file in messages, such as "a study".
///
/// # Errors
///
/// A file that cannot be read, has more than 16 MiB or is not UTF-8, and the problems that `parse` returns.
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
    let mut bytes = Vec::new();
    // Devices and pipes may have no end, so reading is limited.
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
    read.map_err(|error| {
        whole(
            None,
            format!("cannot be read: {error}; give the path of {what} file"),
        )
    })?;
    if bytes.len() as u64 > LARGEST {
        let message = format!("has more than 16 MiB; give the path of {what} file");
        return Err(whole(None, message));
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => parse(path, text),
        Err(error) => Err(whole(
            Some(Lines::new(&bytes).position(error.valid_up_to())),
            "is not UTF-8 text from here on; save the file as UTF-8".into(),
        )),
    }
}

/// Reads a text by asking `check` for its sections and fields. A key of the outermost table that `check` does not ask for is a problem; for
/// other tables see [`Section::finish`]. `file` is the name in messages and need not exist. `what` is the kind of file in messages.
pub fn read<T>(
    file: &Path,
    text: &str,
    what: &'static str,
    check: impl FnOnce(&Section<'_>) -> T,
) -> Document<T> {
    read_all(file, text, None, &[], what, check)
}

/// A text whose values a file takes where it has none of its own.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// Name of the text in messages.
    pub name: &'a str,
    /// The text.
    pub text: &'a str,
}

/// Reads a document as [`read`] does, with the values of `base` where the file has none. A list of the file replaces the base's list. A key
/// of the file that excludes keys of the base, by `excludes` (key, excluded key), takes their place. Problems of the base name the base.
pub fn read_based<T>(
    file: &Path,
    text: &str,
    base: Option<(Base<'_>, &[(&str, &str)])>,
    what: &'static str,
    check: impl FnOnce(&Section<'_>) -> T,
) -> Document<T> {
    read_all(file, text, base, &[], what, check)
}

/// Reads a document as [`read`] does, with these settings in place of the file's own values. Problems of a setting have no position in the
/// file.
pub fn read_with<T>(
    file: &Path,
    text: &str,
    settings: &[Setting],
    what: &'static str,
    check: impl FnOnce(&Section<'_>) -> T,
) -> Document<T> {
    read_all(file, text, None, settings, what, check)
}

fn read_all<T>(
    file: &Path,
    text: &str,
    base: Option<(Base<'_>, &[(&str, &str)])>,
    settings: &[Setting],
    what: &'static str,
    check: impl FnOnce(&Section<'_>) -> T,
) -> Document<T> {
    // The text of each setting is placed after the file's, and padded to its offset there, so that positions of both are in one text.
    let mut whole = text.to_owned();
    let mut padded = Vec::new();
    let padded_base = base.map(|(base, excludes)| {
        whole.push('\n');
        let padded = " ".repeat(whole.len()) + base.text;
        whole.push_str(base.text);
        (padded, excludes)
    });
    for setting in settings {
        whole.push('\n');
        padded.push(format!("{}v={}", " ".repeat(whole.len()), setting.value));
        whole.push_str(&format!("v={}", setting.value));
    }
    let lines = Lines::new(text.as_bytes());
    let last = lines.position(text.len()).line;
    let (mut document, syntax) = DeTable::parse_recoverable(text);
    let mut misplaced = Vec::new();
    if let Some((padded, excludes)) = &padded_base {
        let (based, wrong) = DeTable::parse_recoverable(padded);
        misplaced.extend(wrong.iter().map(|error| Problem {
            severity: Severity::Error,
            position: None,
            field: String::new(),
            message: format!(
                "{} is not TOML: {}",
                base.map_or("", |(base, _)| base.name),
                error.message().replace('\n', ", ")
            ),
        }));
        fill(document.get_mut(), based.into_inner(), excludes);
    }
    for (setting, padded) in settings.iter().zip(&padded) {
        if let Err(message) = put(document.get_mut(), &setting.field, padded) {
            misplaced.push(Problem {
                severity: Severity::Error,
                position: None,
                field: setting.field.clone(),
                message,
            });
        }
    }
    let mut source = Source::new(&whole, what);
    if base.is_some() {
        source.base_from(last + 1);
    }
    let root = Section::root(&source, document.get_ref());
    let value = check(&root);
    root.finish();
    let Findings {
        mut problems,
        mut more,
        positions,
        known,
    } = source.finish();
    if !syntax.is_empty() {
        // A field that the parser skipped is not missing, and a line that the parser could not read has one problem, not several.
        more += syntax.len().saturating_sub(KEPT);
        let start = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
        let of_syntax: BTreeSet<usize> = (syntax.iter())
            .map(|error| lines.position(start(error)).line)
            .collect();
        let syntax: Vec<Problem> = (syntax.iter().take(KEPT))
            .map(|error| Problem {
                severity: Severity::Error,
                position: Some(lines.position(start(error))),
                field: String::new(),
                message: format!("is not TOML: {}", error.message().replace('\n', ", ")),
            })
            .collect();
        problems.retain(|problem| {
            let line = problem.position.map(|position| position.line);
            !problem.message.starts_with("is missing")
                && !line.is_some_and(|line| of_syntax.contains(&line))
        });
        problems.extend(syntax);
    }
    for problem in &mut problems {
        let set = |position: &Position| position.line > last;
        if problem.position.as_ref().is_some_and(set) {
            problem.position = None;
            problem.message.push_str(&match base {
                Some((base, _)) => format!(" (in {})", base.name),
                None => " (set for this run, not by the file)".to_owned(),
            });
        }
    }
    problems.extend(misplaced);
    let checked = if problems.is_empty() {
        Ok((value, positions))
    } else {
        Err(Problems::with_more(file, problems, more))
    };
    Document { checked, known }
}

/// Adds the keys of `from` that `into` lacks, in tables of both as well.
fn fill<'a>(into: &mut DeTable<'a>, from: DeTable<'a>, excludes: &[(&str, &str)]) {
    for (name, value) in from {
        let key = name.get_ref().as_ref();
        let has = |wanted: &str| into.keys().any(|name| name.get_ref() == wanted);
        let excluded = |(by, key): &(&str, &str)| *key == name.get_ref().as_ref() && has(by);
        if excludes.iter().any(excluded) {
            continue;
        }
        let own = into.iter_mut().find(|(name, _)| name.get_ref() == key);
        match own.map(|(_, own)| own.get_mut()) {
            None => {
                into.insert(name, value);
            }
            Some(DeValue::Table(own)) => {
                if let DeValue::Table(from) = value.into_inner() {
                    fill(own, from, excludes);
                }
            }
            Some(_) => {}
        }
    }
}

/// A field whose value is set by something other than the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    field: String,
    /// The value, written as TOML.
    value: String,
}

impl Setting {
    /// Returns a setting of `field`, such as `network.latency`. A `value` that is TOML on one line, other than a date, is taken as such;
    /// anything else is taken as a text.
    pub fn new(field: &str, value: &str) -> Setting {
        let value = value.trim();
        let written = format!("v={value}");
        let plain = DeTable::parse(&written).is_ok_and(|table| {
            let table = table.get_ref();
            let only = table.values().next().map(Spanned::get_ref);
            table.len() == 1 && only.is_some_and(|value| !matches!(value, DeValue::Datetime(_)))
        });
        Setting {
            field: field.trim().to_owned(),
            value: if plain && !value.contains('\n') {
                value.to_owned()
            } else {
                toml::Value::String(value.to_owned()).to_string()
            },
        }
    }

    /// Returns the full name of the field.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Returns the value as TOML.
    pub fn value(&self) -> &str {
        &self.value
    }
}

/// Sets a field in a document, and adds missing tables. `written` is `v=` and the value, padded to the value's offset.
fn put<'a>(table: &mut DeTable<'a>, field: &str, written: &'a str) -> Result<(), String> {
    let parsed = DeTable::parse(written).map_err(|error| error.message().to_owned())?;
    let Some((name, value)) = parsed.into_inner().into_iter().next() else {
        return Err("has no value".to_owned());
    };
    let span = name.span();
    let mut keys: Vec<&str> = field.split('.').collect();
    let plain = |key: &&str| {
        let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        !key.is_empty() && key.chars().all(bare)
    };
    if !keys.iter().all(plain) {
        return Err(
            "is no field of a file; write e.g. network.latency, with names as in the file".into(),
        );
    }
    let last = keys.pop().unwrap_or_default();
    let mut table = table;
    for (depth, key) in keys.iter().enumerate() {
        let known = table.keys().any(|name| name.get_ref() == key);
        if !known {
            let empty = Spanned::new(span.clone(), DeValue::Table(DeTable::new()));
            table.insert(Spanned::new(span.clone(), (*key).to_owned().into()), empty);
        }
        let inner = table.iter_mut().find(|(name, _)| name.get_ref() == key);
        match inner.map(|(_, value)| value.get_mut()) {
            Some(DeValue::Table(inner)) => table = inner,
            _ => return Err(format!("{} is no table", keys[..=depth].join("."))),
        }
    }
    match table.iter_mut().find(|(name, _)| name.get_ref() == last) {
        Some((_, old)) => *old = value,
        None => {
            table.insert(Spanned::new(span, last.to_owned().into()), value);
        }
    }
    Ok(())
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
    fn a_valid_text_gives_its_value_and_the_positions() {
        let document = number("# comment\n[part]\nnumber = 3\n");
        let (value, positions) = document.checked.unwrap();
        assert_eq!(value, Some(3));
        assert_eq!(positions["part.number"].line, 3);
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
    fn of_many_problems_the_first_are_shown_and_the_others_counted() {
        let many = "[part]\nnumber = 30\n".repeat(5000);
        let problems = number(&many).checked.unwrap_err();
        assert!(problems.count() > 4000, "{}", problems.count());
        assert!(problems.list().len() <= 2 * KEPT);
        let told = problems.to_string();
        assert_eq!(told.lines().count(), 101, "{told}");
        let more = format!(
            "f.toml: {} more problems; fix these first",
            problems.count() - 100
        );
        assert_eq!(told.lines().last(), Some(more.as_str()));
    }

    #[test]
    fn fields_on_one_line_have_their_columns() {
        let text = "[part]\nnumber = [".to_owned() + &"3, ".repeat(10_000) + "x]\n";
        let told = number(&text).checked.unwrap_err();
        let column = told.list()[0].position.unwrap().column;
        assert_eq!(column, text.len() - "[part]\n".len() - 2);
    }

    #[test]
    fn a_word_is_no_misspelling_of_a_much_longer_one() {
        let key = "k".repeat(1 << 20);
        let told = number(&format!("[part]\n{key} = 1\nnumber = 3\n"));
        let told = told.checked.unwrap_err();
        assert!(told.list()[0].message.contains("known here: number"));
    }

    fn set(text: &str, field: &str, value: &str) -> Result<Option<u64>, String> {
        let settings = [Setting::new(field, value)];
        let document = read_with(Path::new("f.toml"), text, &settings, "a test", |root| {
            let section = root.section("part");
            let number = section.require("number", "7");
            let size = section.item("size");
            section.finish();
            let size = size.and_then(|item| item.quantity::<crate::quantity::Bytes>());
            size.map(|size| size.0)
                .or(number.and_then(|item| item.integer(1..=9)))
        });
        let value = document.checked.map(|(value, _)| value);
        value.map_err(|problems| problems.to_string())
    }

    #[test]
    fn settings_take_the_place_of_what_the_file_says() {
        let text = "[part]\nnumber = 3";
        assert_eq!(set(text, "part.number", "5"), Ok(Some(5)));
        assert_eq!(set("", "part.number", "5"), Ok(Some(5)));
        assert_eq!(set(text, "part.size", "2 KiB"), Ok(Some(2048)));
        assert_eq!(set(text, "part.size", "\"2 KiB\""), Ok(Some(2048)));
    }

    #[test]
    fn settings_are_checked_like_the_file() {
        let text = "[part]\nnumber = 3\n";
        let told = |field: &str, value: &str| set(text, field, value).unwrap_err();
        assert_eq!(
            told("part.number", "50"),
            "f.toml: part.number: is 50; write a whole number from 1 to 9 (set for this run, not by the file)"
        );
        assert!(told("part.numbre", "5").contains("did you mean \"number\"?"));
        assert!(told("prt.number", "5").contains("prt: is not a section of a test"));
        assert!(told("part.size", "5").contains("5 has no unit"));
        assert!(told("part.number.x", "5").contains("part.number is no table"));
        assert!(told("part..x", "5").contains("is no field of a file"));
        assert!(told("part.size", "").contains("does not begin with a number"));
        // A problem of the file itself has its line.
        let told = set("[part]\nnumber = 30\n", "part.size", "1 B").unwrap_err();
        assert!(told.starts_with("f.toml:2:"), "{told}");
    }

    fn based(text: &str, base: &str) -> Result<Option<u64>, String> {
        let base = Base {
            name: "b.toml",
            text: base,
        };
        let excludes: &[(&str, &str)] = &[("size", "number")];
        let file = Path::new("f.toml");
        let document = read_based(file, text, Some((base, excludes)), "a test", |root| {
            let section = root.section("part");
            let (number, size) = (section.item("number"), section.item("size"));
            section.finish();
            size.or(number).and_then(|item| item.integer(1..=9))
        });
        let value = document.checked.map(|(value, _)| value);
        value.map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_file_takes_what_it_lacks_from_its_base() {
        let base = "[part]\nnumber = 4\n";
        assert_eq!(based("", base), Ok(Some(4)));
        assert_eq!(based("[part]\n", base), Ok(Some(4)));
        assert_eq!(based("[part]\nnumber = 5\n", base), Ok(Some(5)));
        // The size excludes the base's number.
        assert_eq!(based("[part]\nsize = 6\n", base), Ok(Some(6)));
        let told = based("", "[part]\nnumber = 40\n").unwrap_err();
        assert!(told.contains("part.number: is 40"), "{told}");
        assert!(told.ends_with("(in b.toml)"), "{told}");
        let told = based("", "[part\n").unwrap_err();
        assert!(told.contains("b.toml is not TOML"), "{told}");
        let told = based("[part]\nnumber = 50\n", base).unwrap_err();
        assert!(told.starts_with("f.toml:2:"), "{told}");
    }

    #[test]
    fn files_that_are_no_texts_are_refused() {
        let missing = load(Path::new("/nonexistent/f.toml"), "a test", |_, _| Ok(()));
        let told = missing.unwrap_err().to_string();
        assert!(told.contains("give the path of a test file"), "{told}");
        let endless = load(Path::new("/dev/zero"), "a test", |_, _| Ok(()));
        let told = endless.unwrap_err().to_string();
        assert!(told.contains("has more than 16 MiB"), "{told}");
        let path = std::env::temp_dir().join(format!("nodescope-{}.toml", std::process::id()));
        std::fs::write(&path, b"a = 1\nb = \"\xff\"\n").unwrap();
        let told = load(&path, "a test", |_, _| Ok(()))
            .unwrap_err()
            .to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(told.contains(".toml:2: is not UTF-8"), "{told}");
    }
}
