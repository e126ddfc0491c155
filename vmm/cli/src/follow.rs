//! Shows a node's console while the run writes it. A guest's output must not control the host's terminal.

use nodescope_hypercall::printable;
use serde_json::json;

use crate::args::LogFormat;
use crate::terminal::{print_error_json, print_error_line};

/// Greatest number of bytes of a line that are shown as one piece.
const LONGEST: usize = 4096;

/// Shows the console of one node, line by line.
pub struct Follower {
    node: u32,
    format: LogFormat,
    line: Vec<u8>,
}

impl Follower {
    /// Returns a follower of a node's console.
    pub fn new(node: u32, format: LogFormat) -> Follower {
        Follower {
            node,
            format,
            line: Vec::new(),
        }
    }

    /// Takes console output of any node, and shows the complete lines of the followed one.
    pub fn console(&mut self, node: u32, bytes: &[u8]) {
        if node != self.node {
            return;
        }
        for &byte in bytes {
            if byte == b'\n' {
                self.show();
            } else {
                self.line.push(byte);
                if self.line.len() >= LONGEST {
                    self.show();
                }
            }
        }
    }

    /// Shows the incomplete last line, if there is one.
    pub fn end(&mut self) {
        if !self.line.is_empty() {
            self.show();
        }
    }

    fn show(&mut self) {
        let bytes = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&bytes);
        // The serial console ends lines with CR and LF.
        let text = text.trim_end_matches('\r');
        match self.format {
            LogFormat::Text => print_error_line(&format!("node{}| {}", self.node, visible(text))),
            LogFormat::Json => {
                print_error_json(&json!({"event": "console", "node": self.node, "text": text}));
            }
        }
    }
}

/// Returns a console's line in which every character that could control a terminal is escaped. Tabs remain.
fn visible(text: &str) -> String {
    let parts: Vec<_> = text.split('\t').map(printable).collect();
    parts.join("\t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_text_cannot_control_the_terminal() {
        assert_eq!(
            visible("\u{1b}[2Jx\ty\u{7}\r\n\u{9b}31m\u{7f}"),
            "\\u{1b}[2Jx\ty\\u{7}\\r\\n\\u{9b}31m\\u{7f}"
        );
        assert_eq!(visible("Zeit: 3 µs"), "Zeit: 3 µs");
    }
}
