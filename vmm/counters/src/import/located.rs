//! Parts of an imported file's text, each with its byte offset in the file for error messages.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::value::RawValue;

use crate::measurement::FilePosition;

/// The text of one imported file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    /// Index of the file in [`Measurement::files`](crate::measurement::Measurement::files).
    pub file: usize,
    pub text: &'a str,
}

/// A reason to refuse a file, and the position of the byte that it is about.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub position: FilePosition,
    pub message: String,
}

impl<'a> Text<'a> {
    /// Returns the position of the byte at `offset`.
    pub fn position(&self, offset: usize) -> FilePosition {
        FilePosition {
            file: self.file,
            offset,
        }
    }

    /// Makes the refusal of the file for its content at byte `offset`.
    pub fn refuse(&self, offset: usize, message: impl Into<String>) -> Refusal {
        Refusal {
            position: self.position(offset),
            message: message.into(),
        }
    }

    /// Returns the byte offset at which `part`, a slice of this text, begins.
    pub fn offset(&self, part: &str) -> usize {
        (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize)
    }

    /// Reads `part`, which is the text or a slice of it, as one JSON value.
    pub fn json(self, part: &'a str) -> Result<Node<'a>, Refusal> {
        let start = self.offset(part);
        match serde_json::from_str::<&RawValue>(part) {
            Ok(raw) => Ok(Node {
                text: self,
                raw: raw.get(),
            }),
            Err(error) => Err(self.syntax(start, part, &error)),
        }
    }

    fn syntax(&self, start: usize, part: &str, error: &serde_json::Error) -> Refusal {
        // serde_json counts columns in bytes from 1. Column 0 means the end of the line before.
        let line_start: usize = part
            .split_inclusive('\n')
            .take(error.line().saturating_sub(1))
            .map(str::len)
            .sum();
        let mut offset = start + (line_start + error.column().saturating_sub(1)).min(part.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or_default();
        if error.is_eof() {
            return self.refuse(
                self.text.trim_end().len(),
                format!(
                    "the file ends in the middle of a value ({what}); it is cut, so copy it again"
                ),
            );
        }
        self.refuse(offset, format!("is not JSON: {what}"))
    }
}

/// Returns line and column of the byte at `offset`, both from 1. The column counts characters.
pub(crate) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

/// Shortens a part of a file to 40 characters for a message.
pub(crate) fn short(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Lists the first 8 names and says how many more there are.
pub(crate) fn some(names: &BTreeSet<String>) -> String {
    const SHOWN: usize = 8;
    let first: Vec<String> = names.iter().take(SHOWN).map(|name| short(name)).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// A JSON value in an imported file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a> {
    text: Text<'a>,
    raw: &'a str,
}

/// A member of a JSON object.
pub(crate) struct Member<'a> {
    pub key: Cow<'a, str>,
    pub value: Node<'a>,
}

impl<'a> Node<'a> {
    /// Returns the position of the value's first byte.
    pub fn position(&self) -> FilePosition {
        self.text.position(self.text.offset(self.raw))
    }

    /// Makes the refusal of the file for this value.
    pub fn refuse(&self, message: impl Into<String>) -> Refusal {
        self.text.refuse(self.text.offset(self.raw), message)
    }

    /// Reads the members of an object, in the order of the file. A repeated key is refused.
    pub fn object(&self) -> Result<Vec<Member<'a>>, Refusal> {
        if !self.raw.starts_with('{') {
            return Err(self.refuse(format!("{} is no object; write {{...}} here", self.short())));
        }
        let members: Members<'a> =
            serde_json::from_str(self.raw).map_err(|error| self.refuse(error.to_string()))?;
        let mut seen = BTreeSet::new();
        let mut list = Vec::new();
        for (key, raw) in members.0 {
            let value = Node {
                text: self.text,
                raw: raw.get(),
            };
            if !seen.insert(key.clone()) {
                return Err(value.refuse(format!("{key:?} stands here twice; leave one of them")));
            }
            list.push(Member { key, value });
        }
        Ok(list)
    }

    /// Returns whether the value is a JSON object.
    pub fn is_object(&self) -> bool {
        self.raw.starts_with('{')
    }

    /// Reads the elements of a JSON array.
    pub fn array(&self) -> Result<Vec<Node<'a>>, Refusal> {
        if !self.raw.starts_with('[') {
            return Err(self.refuse(format!("{} is no list; write [...] here", self.short())));
        }
        let list: Vec<&'a RawValue> =
            serde_json::from_str(self.raw).map_err(|error| self.refuse(error.to_string()))?;
        let node = |raw: &'a RawValue| Node {
            text: self.text,
            raw: raw.get(),
        };
        Ok(list.into_iter().map(node).collect())
    }

    /// Reads a JSON string.
    pub fn string(&self) -> Result<String, Refusal> {
        serde_json::from_str(self.raw)
            .map_err(|_| self.refuse(format!("{} is no text; write it in quotes", self.short())))
    }

    /// Reads a count, which may be a JSON number or a string with a number.
    pub fn count(&self) -> Result<f64, Refusal> {
        let text = self.string().unwrap_or_else(|_| self.raw.to_owned());
        count(&text).map_err(|message| self.refuse(message))
    }

    /// Reads a whole number below 2^32, which may be a JSON number or a string with a number.
    pub fn whole(&self) -> Result<u32, Refusal> {
        let text = self.string().unwrap_or_else(|_| self.raw.to_owned());
        text.parse()
            .map_err(|_| self.refuse(format!("{} is not a whole number below 2^32", self.short())))
    }

    /// Reads a JSON boolean.
    pub fn truth(&self) -> Result<bool, Refusal> {
        self.raw
            .parse()
            .map_err(|_| self.refuse(format!("{} is neither true nor false", self.short())))
    }

    /// Returns the value as the file writes it, shortened to 40 characters.
    fn short(&self) -> String {
        short(self.raw)
    }
}

/// Members of an object in the order of the text. A map would lose the order and hide repeated keys.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> serde::Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    list.push((Cow::Owned(key), value));
                }
                Ok(Members(list))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// Reads a finite number of 0 or more: it begins with a digit and may have a fraction or an exponent.
pub(crate) fn count(text: &str) -> Result<f64, String> {
    let plain = text.starts_with(|c: char| c.is_ascii_digit())
        && text
            .chars()
            .all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'));
    match text.parse::<f64>() {
        Ok(value) if plain && value.is_finite() => Ok(value),
        _ => Err(format!(
            "{:?} is not a number; write digits, with a point before a fraction",
            short(text)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_know_their_places() {
        let text = "{\"a\": 1,\n \"ä\": [\"x\", 2]}";
        let text = Text { file: 0, text };
        let object = text.json(text.text).unwrap().object().unwrap();
        let list = object[1].value.array().unwrap();
        let position = |position: FilePosition| line_and_column(text.text, position.offset);
        assert_eq!(position(list[1].position()), (2, 13));
        assert_eq!(list[1].count().unwrap(), 2.0);
        assert!(
            list[0]
                .count()
                .unwrap_err()
                .message
                .contains("\"x\" is not a number")
        );
        let twice = Text {
            file: 0,
            text: "{\"a\":1,\"a\":2}",
        };
        let twice = twice.json(twice.text).unwrap().object().err().unwrap();
        assert_eq!(
            (twice.position.offset, twice.message.contains("twice")),
            (11, true)
        );
        for (cut, column) in [("{\"a\": [1, 2", 12), ("{\"a\": x}", 7), ("", 1)] {
            let text = Text { file: 0, text: cut };
            let position = text.json(cut).err().unwrap().position;
            assert_eq!(line_and_column(cut, position.offset), (1, column), "{cut}");
        }
    }

    #[test]
    fn numbers_are_plain_and_lists_short() {
        assert_eq!(count("1.5e+09"), Ok(1.5e9));
        assert_eq!(count("12"), Ok(12.0));
        let names = |count: u32| some(&(0..count).map(|n| n.to_string()).collect());
        assert_eq!(names(2), "0, 1");
        assert!(names(100).ends_with(" and 92 more"));
        for wrong in ["", "-1", "+1", "inf", "NaN", "1,5", "0x1", "1e999", "1 "] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
    }
}
