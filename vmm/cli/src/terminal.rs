//! The terminal: output that may be closed, raw mode.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use indicatif::MultiProgress;

use nodescope_hypercall::printable_lines;

use crate::exit::{Exit, Failure};

/// Prints to standard output. A reader that has gone (`| head`) is no failure. Names in the text may come from guests and from
/// files of others, so characters that could control the terminal are escaped.
pub fn print(text: &str) -> Result<(), Failure> {
    let text = printable_lines(text);
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            Exit::Host,
            format!("cannot write to standard output: {error}"),
        )),
        _ => Ok(()),
    }
}

/// The progress bars above which lines are printed.
static BARS: Mutex<Option<MultiProgress>> = Mutex::new(None);

/// Sets the progress bars at the bottom of the terminal, or removes them.
pub fn set_progress_bars(bars: Option<MultiProgress>) {
    *BARS.lock().unwrap_or_else(PoisonError::into_inner) = bars;
}

/// Prints a line on standard error. A closed standard error is no failure.
pub fn print_error_line(line: &str) {
    let bars = BARS.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = match &*bars {
        Some(bars) => bars.println(line),
        None => writeln!(io::stderr(), "{line}"),
    };
}

/// True if only errors are shown.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Shows, from now on, nothing but errors.
pub fn set_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Prints a line on standard error that `--quiet` leaves out.
pub fn print_note(line: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        print_error_line(line);
    }
}

/// The terminal on standard input in raw mode, for as long as this lives.
pub struct RawMode {
    before: libc::termios,
}

impl RawMode {
    /// Passes every key to the program as it is. Returns none if standard input is no terminal.
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
