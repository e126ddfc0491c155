//! Escapes for text from a guest that is printed on a terminal.

use std::borrow::Cow;

/// Returns a guest's text in one line without characters that control a terminal. Control characters, such as line breaks, become Rust's
/// escapes, such as `\u{1b}`. So do characters that are invisible or reverse the direction of writing.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            // Quotes and backslashes are harmless on a terminal; `escape_debug` would escape them too.
            '"' | '\'' | '\\' => out.push(character),
            _ => out.extend(character.escape_debug()),
        }
    }
    Cow::Owned(out)
}

/// Returns a guest's text as [`printable`] does, but keeps its line breaks.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let harmless = |byte| matches!(byte, b' '..=b'~' | b'\n');
    if text.bytes().all(harmless) {
        return Cow::Borrowed(text);
    }
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(printable).collect();
    Cow::Owned(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_stays_and_what_commands_is_escaped() {
        for same in ["", "rank 0: \"a\\b\" isn't", "Größe 5 µs, 日本語 ✓"] {
            assert_eq!(printable(same), same);
        }
        assert_eq!(printable("\x1b[2J\x07\r\n"), "\\u{1b}[2J\\u{7}\\r\\n");
        // The C1 control characters include an escape sequence introducer (U+009B), and some characters reverse the direction of writing.
        assert_eq!(printable_lines("a\n\x1b\n"), "a\n\\u{1b}\n");
        assert_eq!(printable("\u{9b}2J\u{202e}"), "\\u{9b}2J\\u{202e}");
    }
}
