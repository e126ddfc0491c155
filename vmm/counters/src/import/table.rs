//! Lines of separated fields, each with its place.

use csv::{ReaderBuilder, StringRecord};

use super::located::{Refusal, Text};

/// A line of a file.
pub(crate) struct Row<'a> {
    text: Text<'a>,
    /// Where the line begins and ends.
    start: usize,
    end: usize,
    separator: char,
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
    pub fn place(&self, field: usize) -> crate::measurement::Place {
        self.text.place(self.offset(field))
    }

    fn offset(&self, field: usize) -> usize {
        let line = &self.text.text[self.start..self.end];
        let mut quoted = false;
        let mut left = field;
        for (at, c) in line.char_indices() {
            if left == 0 {
                let blanks = line[at..].len() - line[at..].trim_start_matches(' ').len();
                return self.start + at + blanks;
            }
            match c {
                '"' => quoted = !quoted,
                c if c == self.separator && !quoted => left -= 1,
                _ => {}
            }
        }
        self.start + line.trim_end().len()
    }

    /// Returns whether the file ends with this line, without an end of the line.
    pub fn is_cut(&self) -> bool {
        self.end == self.text.text.len() && !self.text.text.ends_with('\n')
    }
}

/// Splits a text into its lines and fields; comments and empty lines are left out.
pub(crate) fn rows(text: Text<'_>, separator: char) -> Result<Vec<Row<'_>>, Refusal> {
    let mut reader = ReaderBuilder::new()
        .delimiter(separator as u8)
        .has_headers(false)
        .flexible(true)
        .comment(Some(b'#'))
        .from_reader(text.text.as_bytes());
    let mut rows = Vec::new();
    let mut fields = StringRecord::new();
    loop {
        match reader.read_record(&mut fields) {
            Ok(true) => {}
            Ok(false) => return Ok(rows),
            Err(error) => {
                let at = error.position().map_or(0, |place| place.byte() as usize);
                return Err(text.refuse(at, format!("is no line of fields: {error}")));
            }
        }
        // The reader's position is before comments and empty lines that it skips.
        let from = fields.position().map_or(0, |place| place.byte() as usize);
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
            separator,
            fields: fields.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_know_their_places() {
        let text = Text {
            file: 0,
            text: "# a,b\n\n  x,\"y, z\",\u{e4},w\n1,2",
        };
        let rows = rows(text, ',').unwrap();
        assert_eq!(rows[0].fields(), ["x", "y, z", "\u{e4}", "w"]);
        let places = [0, 1, 2, 3, 9]
            .map(|field| rows[0].place(field))
            .map(|place| (place.line, place.column));
        assert_eq!(places, [(3, 3), (3, 5), (3, 12), (3, 14), (3, 15)]);
        assert!(!rows[0].is_cut());
        assert!(rows[1].is_cut());
    }
}
