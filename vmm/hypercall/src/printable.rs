//! Escapes for text from a guest, or from another's file, that a user sees: on a terminal, on a page, in JSON. All three escape the same
//! characters.

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

/// Returns JSON in which the characters that [`printable`] escapes are escaped as JSON does. The JSON keeps its line breaks and its values.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let harmless = |byte| matches!(byte, b' '..=b'~' | b'\n');
    if json.bytes().all(harmless) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        let mut bytes = [0; 4];
        let text: &str = character.encode_utf8(&mut bytes);
        // Outside of strings JSON has only ASCII characters, so that each of the others may become an escape.
        if character == '\n' || printable(text) == text {
            out.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    }
    Cow::Owned(out)
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

    #[test]
    fn json_keeps_its_values_and_escapes_the_same_characters() {
        let same = "{\n  \"Größe\": \"\\u0007 日本語\"\n}\n";
        assert_eq!(printable_json(same), same);
        let json = "{\"a\": \"x\u{202e}\u{7f}\u{e0001}\\n\"}";
        assert_eq!(
            printable_json(json),
            "{\"a\": \"x\\u202e\\u007f\\udb40\\udc01\\n\"}"
        );
    }
}
