//! JSON with one row of a table on each line: indented down to the tables' rows, and each row on one line.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Depth of the tables' rows: those of `windows[].code.functions[]`.
const ROWS: usize = 6;

/// Returns a value as JSON, with a line break at the end.
pub fn text(value: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    let rows = Rows {
        pretty: PrettyFormatter::new(),
        depth: 0,
    };
    // Serialising to memory cannot fail here: every key is a string, and every number is finite or null.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut bytes, rows));
    bytes.push(b'\n');
    // JSON is UTF-8. The bytes are not copied: reports of many windows have many.
    String::from_utf8(bytes).unwrap_or_default()
}

struct Rows {
    pretty: PrettyFormatter<'static>,
    /// Number of arrays and objects that have begun and not ended.
    depth: usize,
}

impl Rows {
    fn in_row(&self) -> bool {
        self.depth >= ROWS
    }
}

/// Writes the comma before an element of a row.
fn comma<W: ?Sized + Write>(writer: &mut W, first: bool) -> io::Result<()> {
    match first {
        true => Ok(()),
        false => writer.write_all(b", "),
    }
}

impl Formatter for Rows {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth += 1;
        match self.in_row() {
            true => writer.write_all(b"["),
            false => self.pretty.begin_array(writer),
        }
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        let in_row = self.in_row();
        self.depth -= 1;
        match in_row {
            true => writer.write_all(b"]"),
            false => self.pretty.end_array(writer),
        }
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        match self.in_row() {
            true => comma(writer, first),
            false => self.pretty.begin_array_value(writer, first),
        }
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.in_row() {
            true => Ok(()),
            false => self.pretty.end_array_value(writer),
        }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth += 1;
        match self.in_row() {
            true => writer.write_all(b"{"),
            false => self.pretty.begin_object(writer),
        }
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        let in_row = self.in_row();
        self.depth -= 1;
        match in_row {
            true => writer.write_all(b"}"),
            false => self.pretty.end_object(writer),
        }
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        match self.in_row() {
            true => comma(writer, first),
            false => self.pretty.begin_object_key(writer, first),
        }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.in_row() {
            true => Ok(()),
            false => self.pretty.end_object_value(writer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_line_and_the_value_stays() {
        let rows = serde_json::json!([{"name": "f", "terms": [{"term": "core", "cpi": 1.0}, {}]}, {"name": "g\n", "terms": []}]);
        let value = serde_json::json!({"windows": [{"code": {"functions": rows, "lines": []}}]});
        let text = text(&value);
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
        let row = r#"{"name": "f", "terms": [{"cpi": 1.0, "term": "core"}, {}]},"#;
        let expected = format!(
            "{{\n  \"windows\": [\n    {{\n      \"code\": {{\n        \"functions\": [\n          {row}\n          {{\"name\": \"g\\n\", \"terms\": []}}\n        ],\n        \"lines\": []\n      }}\n    }}\n  ]\n}}\n"
        );
        assert_eq!(text, expected);
    }
}
