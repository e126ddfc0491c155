//! Typed reading of a TOML document. Reading continues after a mistake and records the position of each value.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::lines::Lines;
use crate::problem::{Position, Problem, Severity};
use crate::quantity::{Decimal, Quantity};

/// Number of problems of a file that are kept; further ones are only counted.
pub(crate) const KEPT: usize = 1000;

/// Text of a file, with the problems and positions that reading has found so far.
pub struct Source<'a> {
    text: &'a str,
    lines: Lines<'a>,
    what: &'static str,
    problems: RefCell<Vec<Problem>>,
    /// Number of problems that were not kept.
    more: Cell<usize>,
    positions: RefCell<BTreeMap<String, Position>>,
    known: RefCell<BTreeSet<String>>,
    /// First line of values that are not the file's own, but its base's.
    base_from: usize,
}

impl<'a> Source<'a> {
    /// Returns a source for a text of which nothing has been read. `what` is the kind of file in messages, such as "a study".
    pub fn new(text: &'a str, what: &'static str) -> Source<'a> {
        Source {
            text,
            lines: Lines::new(text.as_bytes()),
            what,
            problems: RefCell::default(),
            more: Cell::default(),
            positions: RefCell::default(),
            known: RefCell::default(),
            base_from: usize::MAX,
        }
    }

    /// Takes values from this line on as those of a base, which may have more than the file needs.
    pub(crate) fn base_from(&mut self, line: usize) {
        self.base_from = line;
    }

    /// Returns whether the file itself sets a field that has been read, not only its base.
    pub fn is_own(&self, field: &str) -> bool {
        let positions = self.positions.borrow();
        positions
            .get(field)
            .is_some_and(|at| at.line < self.base_from)
    }

    /// Returns the line and column of a byte offset. An offset at the end of the text or beyond counts as on the last line.
    pub fn position(&self, offset: usize) -> Position {
        self.lines.position(offset)
    }

    /// Adds a problem of `field`, at the line and column where `span` begins. `span` is in bytes of the text.
    pub fn problem(&self, span: &Range<usize>, field: &str, message: impl Into<String>) {
        self.keep(self.position(span.start), field, message);
    }

    fn keep(&self, position: Position, field: &str, message: impl Into<String>) {
        let mut problems = self.problems.borrow_mut();
        if problems.len() == KEPT {
            self.more.set(self.more.get() + 1);
            return;
        }
        problems.push(Problem {
            severity: Severity::Error,
            position: Some(position),
            field: field.to_owned(),
            message: message.into(),
        });
    }

    /// Adds a problem of a field, at the field's position if the file sets the field, otherwise at the position of the nearest table around
    /// it.
    pub fn problem_of(&self, field: &str, message: impl Into<String>) {
        let positions = self.positions.borrow();
        let mut around = field;
        let position = loop {
            if let Some(&position) = positions.get(around) {
                break position;
            }
            match around.rfind(['.', '[']) {
                Some(end) => around = &around[..end],
                None => break Position { line: 1, column: 1 },
            }
        };
        self.keep(position, field, message);
    }

    /// Returns whether the text sets a field that has been read.
    pub fn is_set(&self, field: &str) -> bool {
        self.positions.borrow().contains_key(field)
    }

    /// Returns the number of problems so far, kept or only counted.
    pub fn count(&self) -> usize {
        self.problems.borrow().len() + self.more.get()
    }

    /// Returns the problems, positions and known fields.
    pub(crate) fn finish(self) -> Findings {
        Findings {
            problems: self.problems.into_inner(),
            more: self.more.get(),
            positions: self.positions.into_inner(),
            known: self.known.into_inner(),
        }
    }
}

/// Problems and fields that reading has found in a text.
pub(crate) struct Findings {
    /// Problems that were kept.
    pub(crate) problems: Vec<Problem>,
    /// Number of further problems, which were counted and not kept.
    pub(crate) more: usize,
    /// Positions of all fields that were read, by full name.
    pub(crate) positions: BTreeMap<String, Position>,
    /// Names of all fields that were asked for, with lists of tables as `name[]`.
    pub(crate) known: BTreeSet<String>,
}

/// A table of the document, or a stand-in for a table that the file does not have.
pub struct Section<'a> {
    source: &'a Source<'a>,
    path: String,
    /// Full name of the table without indices, for the list of known fields.
    pattern: String,
    span: Range<usize>,
    entries: Option<&'a DeTable<'a>>,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Section<'a> {
    /// Returns the document's outermost table.
    pub fn root(source: &'a Source<'a>, table: &'a DeTable<'a>) -> Section<'a> {
        Section {
            source,
            path: String::new(),
            pattern: String::new(),
            span: 0..0,
            entries: Some(table),
            asked: RefCell::default(),
        }
    }

    /// Returns the source that this table belongs to.
    pub fn source(&self) -> &'a Source<'a> {
        self.source
    }

    /// Returns whether the file has this table.
    pub fn present(&self) -> bool {
        self.entries.is_some()
    }

    /// Returns whether the table has this key, whatever its value.
    pub fn sets(&self, key: &str) -> bool {
        let mut names = self.entries.into_iter().flat_map(|table| table.keys());
        names.any(|name| name.get_ref().as_ref() == key)
    }

    /// Returns the full name of the table.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the full name of a key.
    pub fn name(&self, key: &str) -> String {
        join(&self.path, key)
    }

    fn entry(&self, key: &'static str) -> Option<(Range<usize>, &'a Spanned<DeValue<'a>>)> {
        self.asked.borrow_mut().insert(key);
        let (name, value) = self
            .entries?
            .iter()
            .find(|(name, _)| name.get_ref().as_ref() == key)?;
        Some((name.span(), value))
    }

    /// Returns the value of a key; `None` if the table does not have the key.
    pub fn item(&self, key: &'static str) -> Option<Item<'a>> {
        let known = join(&self.pattern, key);
        self.source.known.borrow_mut().insert(known.clone());
        let (_, value) = self.entry(key)?;
        Some(Item::new(self.source, self.name(key), known, value))
    }

    /// Returns the value of a key that the table must have. Adds a problem and returns `None` if it does not.
    pub fn require(&self, key: &'static str, example: &str) -> Option<Item<'a>> {
        let item = self.item(key);
        if item.is_none() {
            let table = match (self.present(), self.path.as_str()) {
                (true, _) => String::new(),
                (false, path) => format!(" below [{path}]"),
            };
            self.add_problem(
                key,
                format!("is missing; write e.g. {key} = {example}{table}"),
            );
        }
        item
    }

    /// Adds a problem of a key, at the key's position, or at the table's if the key is not set.
    pub fn add_problem(&self, key: &str, message: impl Into<String>) {
        self.source.problem_of(&self.name(key), message);
    }

    /// Returns the table of a key; an empty stand-in if the key is missing or, with a problem, if its value is no table.
    pub fn section(&self, key: &'static str) -> Section<'a> {
        let path = self.name(key);
        let mut section = Section {
            source: self.source,
            pattern: join(&self.pattern, key),
            path,
            span: self.span.clone(),
            entries: None,
            asked: RefCell::default(),
        };
        if let Some((name, value)) = self.entry(key) {
            section.span = name;
            section.note();
            match value.get_ref() {
                DeValue::Table(table) => section.entries = Some(table),
                DeValue::Array(_) => self.source.problem(
                    &section.span,
                    &section.path,
                    format!("is a list; there is one, so write [{}]", section.path),
                ),
                other => self.source.problem(
                    &section.span,
                    &section.path,
                    format!("is {}, not a table; write [{}]", kind(other), section.path),
                ),
            }
        }
        section
    }

    /// Returns the tables of a key that are written as `[[key]]`. Adds a problem if the key's value is no list, and for each member that is
    /// no table.
    pub fn sections(&self, key: &'static str) -> Vec<Section<'a>> {
        let path = self.name(key);
        let Some((name, value)) = self.entry(key) else {
            return Vec::new();
        };
        self.source
            .positions
            .borrow_mut()
            .insert(path.clone(), self.source.position(name.start));
        let wrong = |span: &Range<usize>, path: &str, value: &DeValue<'_>| {
            self.source.problem(
                span,
                path,
                format!(
                    "is {}; write each one below a line [[{}]]",
                    kind(value),
                    self.name(key)
                ),
            );
        };
        let DeValue::Array(array) = value.get_ref() else {
            wrong(&name, &path, value.get_ref());
            return Vec::new();
        };
        let mut sections = Vec::new();
        for (index, value) in array.iter().enumerate() {
            let section = Section {
                source: self.source,
                path: format!("{path}[{index}]"),
                pattern: format!("{}[]", join(&self.pattern, key)),
                span: value.span(),
                entries: value.get_ref().as_table(),
                asked: RefCell::default(),
            };
            section.note();
            if section.entries.is_none() {
                wrong(&section.span, &section.path, value.get_ref());
            } else {
                sections.push(section);
            }
        }
        sections
    }

    /// Returns all keys and values of a table whose keys the user chooses, in the order of the file.
    pub fn free_entries(&self) -> Vec<(String, Item<'a>)> {
        self.source
            .known
            .borrow_mut()
            .insert(format!("{}.*", self.pattern));
        let entries = self.entries.into_iter().flat_map(|table| table.iter());
        let mut list: Vec<_> = entries
            .map(|(name, value)| {
                let key = name.get_ref().to_string();
                let path = join(&self.path, &key);
                (key, Item::new(self.source, path, String::new(), value))
            })
            .collect();
        list.sort_by_key(|(_, item)| item.span.start);
        list
    }

    fn note(&self) {
        self.source
            .positions
            .borrow_mut()
            .insert(self.path.clone(), self.source.position(self.span.start));
    }

    /// Adds a problem for each key of the table that was never asked for.
    pub fn finish(self) {
        let asked = self.asked.borrow();
        for (name, _) in self.entries.into_iter().flat_map(|table| table.iter()) {
            let key = name.get_ref().as_ref();
            if asked.contains(key) {
                continue;
            }
            let what = if self.path.is_empty() {
                format!("is not a section of {}", self.source.what)
            } else {
                "is not a known key".to_owned()
            };
            let message = match closest(key, asked.iter().copied()) {
                Some(close) => format!("{what}; did you mean {close:?}?"),
                None => format!(
                    "{what}; known here: {}",
                    asked.iter().copied().collect::<Vec<_>>().join(", ")
                ),
            };
            self.source
                .problem(&name.span(), &join(&self.path, key), message);
        }
    }
}

/// Returns the candidate that a misspelt word may mean, whatever the case; `None` if no candidate is close enough.
pub fn closest<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let length = word.chars().count();
    candidates
        // Words of very different lengths are no misspelling of each other, and a comparison takes time and memory by their product.
        .filter(|candidate| length.abs_diff(candidate.len()) <= allowed(candidate))
        .map(|candidate| {
            let distance = strsim::damerau_levenshtein(
                &word.to_ascii_lowercase(),
                &candidate.to_ascii_lowercase(),
            );
            (distance, candidate)
        })
        .filter(|(distance, candidate)| *distance <= allowed(candidate))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns the greatest number of mistakes in a misspelling of this word.
fn allowed(candidate: &str) -> usize {
    1 + candidate.len() / 5
}

/// Returns a value without its positions. A number that does not fit becomes its text, which no reader takes for a number.
fn plain(value: &DeValue<'_>) -> toml::Value {
    use toml::Value;
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => {
            let parsed = i64::from_str_radix(number.as_str(), number.radix());
            parsed.map_or_else(|_| Value::String(number.to_string()), Value::Integer)
        }
        DeValue::Float(number) => {
            let parsed = number.as_str().parse();
            parsed.map_or_else(|_| Value::String(number.to_string()), Value::Float)
        }
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Datetime(time) => Value::Datetime(*time),
        DeValue::Array(list) => {
            Value::Array(list.iter().map(|value| plain(value.get_ref())).collect())
        }
        DeValue::Table(table) => {
            let entries = table.iter();
            let entries = entries.map(|(name, value)| (name.get_ref(), plain(value.get_ref())));
            Value::Table(
                entries
                    .map(|(name, value)| (name.to_string(), value))
                    .collect(),
            )
        }
    }
}

/// A value of the document.
pub struct Item<'a> {
    source: &'a Source<'a>,
    path: String,
    pattern: String,
    span: Range<usize>,
    value: &'a DeValue<'a>,
}

impl<'a> Item<'a> {
    fn new(
        source: &'a Source<'a>,
        path: String,
        pattern: String,
        value: &'a Spanned<DeValue<'a>>,
    ) -> Item<'a> {
        let span = value.span();
        source
            .positions
            .borrow_mut()
            .insert(path.clone(), source.position(span.start));
        Item {
            source,
            path,
            pattern,
            span,
            value: value.get_ref(),
        }
    }

    /// Adds a problem at the position of this value.
    pub fn add_problem(&self, message: impl Into<String>) {
        self.source.problem(&self.span, &self.path, message);
    }

    /// Returns the value as TOML, for a reader of its own.
    pub fn toml(&self) -> toml::Value {
        plain(self.value)
    }

    /// Returns whether the value is a table.
    pub fn is_table(&self) -> bool {
        self.value.is_table()
    }

    /// Returns whether the value is a list.
    pub fn is_list(&self) -> bool {
        self.value.is_array()
    }

    /// Returns the beginning of the value as it is written in the file: up to 40 characters of the first line.
    fn raw(&self) -> String {
        let text = self.source.text.get(self.span.clone()).unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let short: String = line.chars().take(40).collect();
        if short.len() < text.len() {
            format!("{short}…")
        } else {
            short
        }
    }

    /// Returns the value as a text. Adds a problem and returns `None` if the value is no text.
    pub fn text(&self, example: &str) -> Option<String> {
        match self.value {
            DeValue::String(text) => Some(text.to_string()),
            other => {
                self.add_problem(format!(
                    "is {} ({}), not a text; write e.g. {example:?}",
                    kind(other),
                    self.raw()
                ));
                None
            }
        }
    }

    /// Returns a text that is not empty and has no control characters. Adds a problem and returns `None` otherwise.
    pub fn line(&self, example: &str) -> Option<String> {
        let text = self.text(example)?;
        if text.trim().is_empty() {
            self.add_problem(format!("is empty; write e.g. {example:?}"));
            return None;
        }
        if text.chars().any(char::is_control) {
            self.add_problem(format!("holds a control character; write e.g. {example:?}"));
            return None;
        }
        Some(text)
    }

    /// Returns `true` or `false`. Adds a problem and returns `None` if the value is neither.
    pub fn boolean(&self) -> Option<bool> {
        let value = self.value.as_bool();
        if value.is_none() {
            self.add_problem(format!("is {}; write true or false", self.raw()));
        }
        value
    }

    /// Returns a whole number in `range`. Adds a problem and returns `None` if the value is not such a number.
    pub fn integer(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let (least, most) = (range.start(), range.end());
        let wanted = if *most == u64::MAX {
            format!("a whole number of at least {least}")
        } else {
            format!("a whole number from {least} to {most}")
        };
        let DeValue::Integer(digits) = self.value else {
            self.add_problem(format!(
                "is {} ({}); write {wanted}, without quotes",
                kind(self.value),
                self.raw()
            ));
            return None;
        };
        let value = i128::from_str_radix(digits.as_str(), digits.radix()).ok();
        match value
            .and_then(|value| u64::try_from(value).ok())
            .filter(|value| range.contains(value))
        {
            Some(value) => Some(value),
            None => {
                self.add_problem(format!("is {}; write {wanted}", self.raw()));
                None
            }
        }
    }

    /// Returns a whole number in `range`, as 32 bits, or adds a problem as [`Item::integer`] does.
    pub fn count(&self, range: RangeInclusive<u32>) -> Option<u32> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        self.integer(range)
            .and_then(|value| u32::try_from(value).ok())
    }

    /// Returns a decimal number without a unit, in millionths; `range` is in millionths, too. Adds a problem and returns `None` if the
    /// value is not a number in `range` with at most six decimals.
    pub fn millionths(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let digits = match self.value {
            DeValue::Integer(digits) if digits.radix() == 10 => digits.as_str(),
            DeValue::Float(digits) => digits.as_str(),
            _ => "",
        };
        let wanted = format!(
            "a number from {} to {} with at most six decimals, without quotes",
            *range.start() as f64 / 1e6,
            *range.end() as f64 / 1e6
        );
        let value = Decimal::parse(digits).and_then(|decimal| decimal.scaled(1_000_000).ok());
        let value = value.filter(|value| range.contains(value));
        if value.is_none() {
            self.add_problem(format!("is {}; write {wanted}", self.raw()));
        }
        value
    }

    /// Returns a quantity that is written with its unit. Adds a problem and returns `None` if the value is not such a quantity.
    pub fn quantity<Q: Quantity>(&self) -> Option<Q> {
        self.parsed(Q::EXAMPLE, Q::WHAT, crate::quantity::parse::<Q>)
    }

    /// Returns a value that is written as a text with a unit, by the type's own [`FromStr`]. Adds a problem and returns `None` on failure.
    pub fn with_unit<T: FromStr>(&self, example: &str, what: &str) -> Option<T>
    where
        T::Err: std::fmt::Display,
    {
        self.parsed(example, what, T::from_str)
    }

    /// Returns a value that is written as a text, by the type's own [`FromStr`]. Adds a problem and returns `None` on failure.
    pub fn named<T: FromStr>(&self, example: &str) -> Option<T>
    where
        T::Err: std::fmt::Display,
    {
        match self.text(example)?.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.add_problem(error.to_string());
                None
            }
        }
    }

    fn parsed<T, E: std::fmt::Display>(
        &self,
        example: &str,
        what: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        match self.value {
            DeValue::String(text) => match parse(text) {
                Ok(value) => Some(value),
                Err(error) => {
                    self.add_problem(error.to_string());
                    None
                }
            },
            DeValue::Integer(_) | DeValue::Float(_) => {
                self.add_problem(format!(
                    "{} has no unit; write e.g. {example:?}",
                    self.raw()
                ));
                None
            }
            other => {
                self.add_problem(format!(
                    "is {}, not {what}; write e.g. {example:?}",
                    kind(other)
                ));
                None
            }
        }
    }

    /// Returns the value that `choices` pairs with the word in the file. Adds a problem and returns `None` for any other word.
    pub fn choice<T: Copy>(&self, what: &str, choices: &[(&str, T)]) -> Option<T> {
        let words: Vec<_> = choices
            .iter()
            .map(|(word, _)| format!("{word:?}"))
            .collect();
        let words = words.join(", ");
        let DeValue::String(text) = self.value else {
            self.add_problem(format!("is {}; write one of {words}", self.raw()));
            return None;
        };
        if let Some((_, value)) = choices.iter().find(|(word, _)| *word == text.as_ref()) {
            return Some(*value);
        }
        let hint = closest(text, choices.iter().map(|(word, _)| *word))
            .map(|close| format!("; did you mean {close:?}?"))
            .unwrap_or_default();
        self.add_problem(format!(
            "{:?} is not {what} (there are {words}){hint}",
            text.as_ref()
        ));
        None
    }

    /// Returns the members of a list. Adds a problem and returns nothing if the value is no list.
    pub fn list(&self, example: &str) -> Vec<Item<'a>> {
        let DeValue::Array(array) = self.value else {
            self.add_problem(format!(
                "is {}, not a list; write e.g. {example}",
                kind(self.value)
            ));
            return Vec::new();
        };
        let members = array.iter().enumerate().map(|(index, value)| {
            Item::new(
                self.source,
                format!("{}[{index}]", self.path),
                format!("{}[]", self.pattern),
                value,
            )
        });
        members.collect()
    }

    /// Returns the texts of a list with their items. Members that [`Item::line`] refuses are left out, with a problem.
    pub fn lines(&self, example: &str) -> Vec<(Item<'a>, String)> {
        self.list(&format!("[{example:?}]"))
            .into_iter()
            .filter_map(|item| item.line(example).map(|text| (item, text)))
            .collect()
    }

    /// Returns the value as a table; an empty stand-in, without a problem, if the value is no table.
    pub fn section(&self) -> Section<'a> {
        Section {
            source: self.source,
            path: self.path.clone(),
            pattern: self.pattern.clone(),
            span: self.span.clone(),
            entries: self.value.as_table(),
            asked: RefCell::default(),
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
