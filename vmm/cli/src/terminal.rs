//! The terminal: output that may be closed, lines above progress bars, raw mode.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use indicatif::MultiProgress;

use nodescope_hypercall::{printable_json, printable_lines};

use crate::exit::{Exit, Failure};

/// Prints to standard output. A reader that has closed the pipe (`| head`) is no failure. Names in the text may come from guests and from
/// other people's files, so characters that could control the terminal are escaped.
pub fn print(text: &str) -> Result<(), Failure> {
    print_bytes(printable_lines(text).as_bytes())
}

/// Prints JSON to standard output, as [`print()`] does. Escapes are JSON's own, so that a parser reads the values as they are.
pub fn print_json(json: &str) -> Result<(), Failure> {
    print_bytes(printable_json(json).as_bytes())
}

/// Writes bytes to standard output unchanged. A reader that has closed the pipe is no failure.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    printed(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Returns the failure for the result of a write to standard output.
pub fn printed(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            Exit::Host,
            format!("cannot write to standard output: {error}"),
        )),
        _ => Ok(()),
    }
}

/// Returns a path as a word that a user can copy into a command line: a name with a leading dash is no option, and the shell leaves blanks
/// and other characters alone.
pub fn argument(path: &Path) -> String {
    let text = path.display().to_string();
    let text = match text.starts_with('-') {
        true => format!("./{text}"),
        false => text,
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:=@%".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Progress bars, above which lines are printed.
static BARS: Mutex<Option<MultiProgress>> = Mutex::new(None);

/// Sets the progress bars at the bottom of the terminal, or removes them.
pub fn set_progress_bars(bars: Option<MultiProgress>) {
    *BARS.lock().unwrap_or_else(PoisonError::into_inner) = bars;
}

/// Prints a JSON value in a line on standard error, with the characters escaped that could control a terminal.
pub fn print_error_json(value: &serde_json::Value) {
    print_error_line(&printable_json(&value.to_string()));
}

/// Prints a line on standard error. A standard error that is closed or on a full disk is no failure.
pub fn print_error_line(line: &str) {
    let bars = BARS.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = match &*bars {
        Some(bars) => bars.println(line),
        None => writeln!(io::stderr(), "{line}"),
    };
}

/// True if notes are not printed, by `--quiet`.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Suppresses all later notes.
pub fn set_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Prints a line on standard error, unless `--quiet` was given.
pub fn print_note(line: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        print_error_line(line);
    }
}

/// Raw mode of the terminal on standard input, until this value is dropped.
pub struct RawMode {
    before: libc::termios,
}

impl RawMode {
    /// Sets the terminal to raw mode, so that every key reaches the program as it is. Returns `None` if standard input is no terminal.
    pub fn enter() -> Option<RawMode> {
        // SAFETY: an all-zero termios is a valid value of that plain C struct.
        let mut before: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: `before` is a termios that outlives the call; on failure it is not used.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, &mut before) } != 0 {
            return None;
        }
        let mut raw = before;
        // SAFETY: `raw` was filled by tcgetattr.
        unsafe { libc::cfmakeraw(&mut raw) };
        // SAFETY: `raw` is a valid termios that outlives the call.
        let entered = unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &raw) } == 0;
        entered.then_some(RawMode { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // SAFETY: `before` was filled by tcgetattr.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &self.before) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_can_be_copied_into_a_command_line() {
        for (path, word) in [
            ("results/s", "results/s"),
            ("-rf", "./-rf"),
            ("--help me", "'./--help me'"),
            ("it's; rm -r ~", r"'it'\''s; rm -r ~'"),
            ("~x", "'~x'"),
            ("", "''"),
        ] {
            assert_eq!(argument(Path::new(path)), word);
        }
    }
}
