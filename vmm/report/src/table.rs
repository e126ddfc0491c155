//! Tables, for text and HTML alike.

use std::borrow::Cow;

use nodescope_hypercall::printable;

/// A table. The first columns are left-aligned names; the other columns are right-aligned numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// The title, with units and sources.
    pub(crate) title: String,
    /// Topic under which [`crate::explain`] explains the columns' heads.
    pub(crate) topic: &'static str,
    pub(crate) names: usize,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    /// Indices of the rows at which a further group begins. The HTML page sorts rows within their group only.
    pub(crate) groups: Vec<usize>,
    /// Number of rows at the end that are sums of other rows.
    pub(crate) sums: usize,
    /// True if the order of rows has a meaning, so that the HTML page must not sort them.
    pub(crate) ordered: bool,
    /// Sentences below the table.
    pub(crate) below: Vec<String>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, names: usize, head: &[&str]) -> Table {
        Table {
            title: title.into(),
            names,
            head: head.iter().map(|&word| word.to_owned()).collect(),
            ..Table::default()
        }
    }

    /// Returns the table with the topic under which its columns' heads are explained.
    pub(crate) fn about(mut self, topic: &'static str) -> Table {
        self.topic = topic;
        self
    }

    /// Begins a new group of rows.
    pub(crate) fn group(&mut self) {
        self.groups.push(self.rows.len());
    }

    /// Keeps the first `rows` rows and all sums, and adds a sentence with the number of omitted rows.
    pub(crate) fn limited(mut self, rows: usize) -> Table {
        let own = self.rows.len() - self.sums.min(self.rows.len());
        if own > rows {
            self.rows.drain(rows..own);
            self.below
                .push(format!("{} more rows in report.json", own - rows));
        }
        self
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        // Names come from guests, so characters that could control a terminal are escaped.
        let cells = cells.into_iter().map(|cell| match printable(&cell) {
            Cow::Borrowed(_) => cell,
            Cow::Owned(escaped) => escaped,
        });
        self.rows.push(cells.collect());
    }

    /// Returns the table as text. Every cell is cut to `width` characters. Cells of the first column are cut further, to 8 characters at
    /// least, where lines would be longer than `width`.
    pub(crate) fn text(&self, width: usize) -> String {
        let columns = self.head.len();
        let mut widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells
                    .chain([&self.head[column]])
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
                    // Names come from guests and from files, so a cell may be of any length.
                    .min(width)
            })
            .collect();
        let total = 2 + widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1);
        if let Some(first) = widths.first_mut() {
            *first = first.saturating_sub(total.saturating_sub(width)).max(8);
        }
        let mut out = String::new();
        for line in wrap(&self.title, width) {
            out.push_str(&line);
            out.push('\n');
        }
        if !self.rows.is_empty() {
            for row in [&self.head].into_iter().chain(&self.rows) {
                let mut line = String::from("  ");
                for (column, cell) in row.iter().enumerate() {
                    let width = widths.get(column).copied().unwrap_or(0);
                    if column > 0 {
                        line.push_str("  ");
                    }
                    let cell = cut(cell, width);
                    if column < self.names {
                        line.push_str(&format!("{cell:<width$}"));
                    } else {
                        line.push_str(&format!("{cell:>width$}"));
                    }
                }
                out.push_str(line.trim_end());
                out.push('\n');
            }
        }
        for sentence in &self.below {
            // A sentence keeps its indentation. If the sentence is indented, its further lines are indented by two more characters.
            let indent = sentence.len() - sentence.trim_start().len();
            let room = width
                .saturating_sub(2 + indent + 2 * usize::from(indent > 0))
                .max(8);
            for (number, line) in wrap(sentence, room).iter().enumerate() {
                let further = if number > 0 && indent > 0 { 2 } else { 0 };
                out.push_str(&" ".repeat(2 + indent + further));
                out.push_str(line);
                out.push('\n');
            }
        }
        out
    }
}

/// Cuts a text to at most `width` characters. A `~` at the end marks the cut.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    let mut out: String = text.chars().take(width.saturating_sub(1)).collect();
    out.push('~');
    out
}

/// Returns words in lines of at most `width` characters. The first line begins with `begin`; all others are indented by `indent` characters.
pub(crate) fn hanging(begin: &str, indent: usize, words: &str, width: usize) -> String {
    let mut out = String::new();
    for (index, line) in wrap(words, width - indent).iter().enumerate() {
        let begin = if index == 0 { begin } else { "" };
        out.push_str(&format!("{begin:<indent$}{line}\n"));
    }
    out
}

/// Breaks a sentence into lines of at most `width` characters; a word longer than a line is broken, too. A percent sign stays with its
/// number. Characters that could control a terminal are escaped.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match words.last_mut() {
            Some(number)
                if word.starts_with('%') && number.ends_with(|c: char| c.is_ascii_digit()) =>
            {
                *number += &format!(" {}", printable(word));
            }
            _ => words.push(printable(word).into_owned()),
        }
    }
    for word in words {
        let mut word: Vec<char> = word.chars().collect();
        let room = width.saturating_sub(line.chars().count() + usize::from(!line.is_empty()));
        if word.len() > room && !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        while word.len() > width {
            lines.push(word.drain(..width).collect());
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word);
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_lines_stay_within_the_width() {
        let mut table = Table::new("title", 1, &["name", "n"]);
        table.row(vec!["a".into(), "10".into()]);
        table.row(vec!["a very long name".into(), "5".into()]);
        table.below.push("one two three four five six".into());
        table.below.push("  seven eight".into());
        assert_eq!(
            table.text(16),
            "title\n  name         n\n  a           10\n  a very lo~   5\n  one two three\n  four five six\n    seven\n      eight\n"
        );
        assert!(table.text(16).lines().all(|line| line.len() <= 16));
    }

    #[test]
    fn cells_of_any_length_fit() {
        // The standard library's formatting accepts widths up to 65,535.
        let long = "x".repeat(100_000);
        let mut table = Table::new("title", 1, &["name", "n"]);
        table.row(vec![long.clone(), long]);
        assert!(table.text(20).lines().all(|line| line.len() <= 2 * 20 + 4));
    }

    #[test]
    fn sentences_wrap_at_words() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrap("abcdefgh i", 3), ["abc", "def", "gh", "i"]);
        assert!(wrap("", 3).is_empty());
        assert_eq!(wrap("at 47 % or", 5), ["at", "47 %", "or"]);
    }
}
