//! Lines of a TOML file.

use std::fmt::Display;

use crate::statistics::Measurement;

/// A TOML file that grows.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// Begins a section, whose header is given with its brackets.
    pub fn section(&mut self, header: &str) {
        self.0 += &format!("\n{header}\n");
    }

    /// Appends a comment of one line.
    pub fn comment(&mut self, comment: &str) {
        self.0 += &format!("# {}\n", comment.replace(char::is_control, " "));
    }

    /// Appends a comment with a measurement's method and spread, and with `more` if that is not empty.
    pub fn measured<T>(&mut self, method: &str, measurement: Measurement<T>, more: &str) {
        let spread = 100.0 * measurement.spread;
        let colon = if more.is_empty() { "" } else { ": " };
        self.comment(&format!("{method}{colon}{more}. Spread {spread:.1} %."));
    }

    /// Appends a key whose value is written as it is.
    pub fn key(&mut self, key: &str, value: impl Display) {
        self.0 += &format!("{key} = {value}\n");
    }

    /// Appends a key whose value is a text.
    pub fn quoted(&mut self, key: &str, value: &str) {
        self.key(key, toml::Value::String(value.to_owned()));
    }

    /// Returns the file.
    pub fn finish(self) -> String {
        self.0
    }
}

/// Returns a text of whole cycles, with quotes: a study has whole cycles.
pub fn whole_cycles(cycles: f64) -> String {
    format!("\"{:.0} cycles\"", cycles.max(0.0))
}

/// Returns a text of GB/s, without quotes.
pub fn gigabytes(rate: f64) -> String {
    format!("{rate:.1} GB/s")
}
