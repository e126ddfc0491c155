//! Lines of separated fields, each with its byte offset in the file.

use csv::{ReaderBuilder, StringRecord};

use super::located::{Refusal, Text};
use crate::measurement::FilePosition;

/// A line of a file, split into fields.
pub(crate) struct Row<'a> {
    text: Text<'a>,
    /// Offset of the line's first byte in the file. `end` is the offset after its last byte.
    start: usize,
    end: usize,
    /// Offset of each field's first byte in the file, after leading blanks.
    offsets: Vec<usize>,
    fields: StringRecord,
}

impl Row<'_> {
    /// Returns the fields, without blanks around them.
    pub fn fields(&self) -> Vec<&str> {
        self.fields.iter().map(str::trim).collect()
    }

    /// Makes the refusal of the file for the field of this index. A missing field is reported at the end of the line.
    pub fn refuse(&self, field: usize, message: impl Into<String>) -> Refusal {
        self.text.refuse(self.offset(field), message)
    }

    /// Returns the position of the field of this index, or of the end of the line if there is no such field.
    pub fn position(&self, field: usize) -> FilePosition {
        self.text.position(self.offset(field))
    }

    fn offset(&self, field: usize) -> usize {
        let line = &self.text.text[self.start..self.end];
        let end = self.start + line.trim_end().len();
        self.offsets.get(field).copied().unwrap_or(end)
    }

    /// Returns whether this line is the last one and has no line end, as in a truncated file.
    pub fn is_cut(&self) -> bool {
        self.end == self.text.text.len() && !self.text.text.ends_with('\n')
    }
}

/// Returns the offset of each field of a line, where `start` is the offset of the line in the file.
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

/// Splits a text into its lines and fields, without comments and empty lines. `quotes` says whether a quote encloses a field; otherwise it
/// is an ordinary character.
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
        // The reader's position is before the comments and empty lines that it skips.
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
