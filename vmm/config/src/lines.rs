//! Conversion of byte offsets of a text to lines and columns.

use crate::problem::Position;

/// Bytes of a block: the characters before each block are counted in advance.
const BLOCK: usize = 1024;

/// Index of the lines and characters of a text. Positions are looked up rather than counted: a text may have many fields, even on one line.
#[derive(Debug)]
pub(crate) struct Lines<'a> {
    text: &'a [u8],
    /// Offset at which each line begins, bytes.
    starts: Vec<usize>,
    /// Number of characters that begin before each block.
    characters: Vec<usize>,
}

impl<'a> Lines<'a> {
    /// Returns the index of a text, whose lines and characters are counted once.
    pub(crate) fn new(text: &'a [u8]) -> Lines<'a> {
        let ends = text.iter().enumerate().filter(|&(_, &byte)| byte == b'\n');
        let mut characters = vec![0];
        for block in text.chunks(BLOCK) {
            let before = characters.last().copied().unwrap_or(0);
            characters.push(before + begin(block));
        }
        Lines {
            text,
            starts: [0].into_iter().chain(ends.map(|(at, _)| at + 1)).collect(),
            characters,
        }
    }

    /// Returns the line and column of a byte offset, clamped to the text. If the text ends with a line feed, its end is on the last line,
    /// and not on a line after that.
    pub(crate) fn position(&self, offset: usize) -> Position {
        let mut offset = offset.min(self.text.len());
        if offset == self.text.len() && self.text.last() == Some(&b'\n') {
            offset -= 1;
        }
        let line = self.starts.partition_point(|&start| start <= offset);
        let start = self.starts[line.saturating_sub(1)];
        Position {
            line,
            column: self.before(offset) - self.before(start) + 1,
        }
    }

    /// Returns the number of characters that begin before an offset.
    fn before(&self, offset: usize) -> usize {
        let block = offset / BLOCK;
        self.characters[block] + begin(&self.text[block * BLOCK..offset])
    }
}

/// Returns the number of characters that begin in these bytes of UTF-8: bytes that are no continuation bytes.
fn begin(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the line and column from the beginning of the text.
    fn counted(text: &str, offset: usize) -> Position {
        let before = &text[..offset];
        let line = before.rsplit('\n').next().unwrap_or_default();
        Position {
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
        }
    }

    #[test]
    fn positions_are_those_that_counting_gives() {
        let long = "ä€x".repeat(1000);
        for text in [
            "",
            "a",
            "a\nb",
            "ä\nöü\n\nx",
            &format!("a\n{long}\n{long}z"),
        ] {
            let lines = Lines::new(text.as_bytes());
            for offset in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
                let ends = offset == text.len() && text.ends_with('\n');
                let offset = offset - usize::from(ends);
                assert_eq!(lines.position(offset), counted(text, offset), "{offset}");
            }
        }
    }

    #[test]
    fn the_end_of_a_text_is_on_its_last_line() {
        let lines = Lines::new(b"a = 1\nb = 2\n");
        assert_eq!(lines.position(usize::MAX).line, 2);
        assert_eq!(Lines::new(b"\n").position(1).line, 1);
    }
}
