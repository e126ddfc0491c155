//! Mutation of bytes and texts: parts are removed, repeated or overwritten, lines are exchanged, and numbers in texts change.

use crate::choices::Choices;

/// Maximum size of a mutated input in bytes.
pub const LARGEST: usize = 1 << 16;

/// Changes bytes; `words` are typical words of this kind of file, which are inserted.
pub fn mutate(bytes: &mut Vec<u8>, words: &[&str], choices: &mut Choices<'_>) {
    for _ in 0..1 + choices.below(6) {
        one(bytes, words, choices);
        bytes.truncate(LARGEST);
    }
}

fn one(bytes: &mut Vec<u8>, words: &[&str], choices: &mut Choices<'_>) {
    let at = choices.below(bytes.len() + 1);
    let length = choices
        .below(bytes.len() - at + 1)
        .min(1 << choices.below(12));
    match choices.below(9) {
        0 => drop(bytes.drain(at..at + length)),
        1 => {
            let part = bytes[at..at + length].to_vec();
            let times = 1 + choices.below(20);
            let room = LARGEST.saturating_sub(bytes.len());
            let part: Vec<u8> = part.repeat(times).into_iter().take(room).collect();
            bytes.splice(at..at, part);
        }
        2 => bytes.truncate(at),
        3 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << choices.below(8);
            }
        }
        4 => {
            let value = choices.number(0);
            let value = value.to_le_bytes();
            let width = [1, 2, 4, 8][choices.below(4)];
            if at + width <= bytes.len() {
                bytes[at..at + width].copy_from_slice(&value[..width]);
            }
        }
        5 => {
            if let Some(word) = choices.of(words) {
                bytes.splice(at..at, word.bytes());
            }
        }
        6 => lines(bytes, choices),
        7 => bytes.insert(at, choices.byte()),
        _ => number(bytes, at, choices),
    }
}

/// Removes, exchanges or repeats lines.
fn lines(bytes: &mut Vec<u8>, choices: &mut Choices<'_>) {
    let mut lines: Vec<Vec<u8>> = bytes
        .split_inclusive(|&byte| byte == b'\n')
        .map(Vec::from)
        .collect();
    if lines.is_empty() {
        return;
    }
    let (a, b) = (choices.below(lines.len()), choices.below(lines.len()));
    match choices.below(3) {
        0 => drop(lines.remove(a)),
        1 => lines.swap(a, b),
        _ => {
            let line = lines[a].clone();
            let count = 1 + choices.below(200);
            lines.splice(b..b, std::iter::repeat_n(line, count));
        }
    }
    *bytes = lines.concat();
}

/// Replaces the first digits at or behind the offset `from` by a boundary value, a random number or a text such as `nan`.
fn number(bytes: &mut Vec<u8>, from: usize, choices: &mut Choices<'_>) {
    let digit = |byte: &u8| byte.is_ascii_digit();
    let Some(start) = bytes[from..].iter().position(digit).map(|at| at + from) else {
        return;
    };
    let length = bytes[start..].iter().position(|byte| !digit(byte));
    let end = length.map_or(bytes.len(), |length| start + length);
    let new = match choices.below(8) {
        0 => "-1".to_owned(),
        1 => "1e308".to_owned(),
        2 => "0.000001".to_owned(),
        3 => "nan".to_owned(),
        4 => "9".repeat(1 + choices.below(60)),
        _ => choices.number(0).to_string(),
    };
    bytes.splice(start..end, new.into_bytes());
}
