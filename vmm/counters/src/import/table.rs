//! Lines of separated fields, each with its place.

use csv::{ReaderBuilder, StringRecord};

use super::located::{Refusal, Text};
use crate::measurement::FilePosition;

/// A line of a file.
pub(crate) struct Row<'a> {
    text: Text<'a>,
    /// Offset of the line's first byte in the file; `end` is the offset after the line.
    start: usize,
    end: usize,
    /// Offset of each field's first byte, behind the blanks before it.
    offsets: Vec<usize>,
    fields: StringRecord,
}

impl Row<'_> {
    /// Returns the fields, without blanks around them.
    pub fn fields(&self) -> Vec<&str> {
        self.fields.iter().map(str::trim).collect()
    }

    /// Refuses the file for a field; one that is not there is refused where it should be.
    pub fn refuse(&self, field: usize, message: impl Into<String>) -> Refusal {
        self.text.refuse(self.offset(field), message)
    }

    /// Finds the place of a field.
    pub fn position(&self, field: usize) -> FilePosition {
        self.text.position(self.offset(field))
    }

    fn offset(&self, field: usize) -> usize {
        let line = &self.text.text[self.start..self.end];
        let end = self.start + line.trim_end().len();
        self.offsets.get(field).copied().unwrap_or(end)
    }

    /// Returns whether the file ends with this line, without an end of the line.
    pub fn is_cut(&self) -> bool {
        self.end == self.text.text.len() && !self.text.text.ends_with('\n')
    }
}

/// Finds where the fields of a line begin, which begins at `start` itself.
fn offsets(line: &str, start: usize, separator: char, quotes: bool) -> Vec<usize> {
    let blanks = |at: usize| line[at..].len() - line[at..].trim_start_matches(' ').len();
    let mut offsets = vec![start + blanks(0)];
    let mut quoted = false;
    for (at, c) in line.char_indices() {
        if c == '"' && quotes {
            quoted = !quoted;
        } else if c == separator && !quoted {
            let next = at + c.len_utf8();
            offsets.push(start + next + blanks(next));
        }
    }
    offsets
}

/// Splits a text into its lines and fields; comments and empty lines are left out. Not every tool puts fields in quotes: elsewhere a quote is a
/// character as others.
pub(crate) fn rows(text: Text<'_>, separator: char, quotes: bool) -> Result<Vec<Row<'_>>, Refusal> {
    let mut reader = ReaderBuilder::new()
        .delimiter(separator as u8)
        .has_headers(false)
        .flexible(true)
        .quoting(quotes)
        .comment(Some(b'#'))
        .from_reader(text.text.as_bytes());
    let mut rows = Vec::new();
    let mut fields = StringRecord::new();
    loop {
        match reader.read_record(&mut fields) {
            Ok(true) => {}
            Ok(false) => return Ok(rows),
            Err(error) => {
                let at = error
                    .position()
                    .map_or(0, |position| position.byte() as usize);
                return Err(text.refuse(at, format!("is no line of fields: {error}")));
            }
        }
        // The reader's position is before comments and empty lines that it skips.
        let from = fields
            .position()
            .map_or(0, |position| position.byte() as usize);
        let to = reader.position().byte() as usize;
        let mut start = from;
        for line in text.text[from..to].split_inclusive('\n') {
            if !line.starts_with('#') && !line.trim_end_matches(['\r', '\n']).is_empty() {
                break;
            }
            start += line.len();
        }
        let end = start + text.text[start..to].trim_end_matches(['\r', '\n']).len();
        rows.push(Row {
            text,
            start,
            end,
            offsets: offsets(&text.text[start..end], start, separator, quotes),
            fields: fields.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::located::line_and_column;
    use super::*;

    #[test]
    fn fields_know_their_places() {
        let text = Text {
            file: 0,
            text: "# a,b\n\n  x,\"y, z\",\u{e4},w\n1,2",
        };
        let rows = rows(text, ',', true).unwrap();
        assert_eq!(rows[0].fields(), ["x", "y, z", "\u{e4}", "w"]);
        let positions = [0, 1, 2, 3, 9]
            .map(|field| rows[0].position(field))
            .map(|position| line_and_column(text.text, position.offset));
        assert_eq!(positions, [(3, 3), (3, 5), (3, 12), (3, 14), (3, 15)]);
        assert!(!rows[0].is_cut());
        assert!(rows[1].is_cut());
    }
}
