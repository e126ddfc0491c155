//! A prefetcher that stops while too few of its lines are used, as in feedback-directed prefetching (S. Srinath, O. Mutlu, H. Kim and Y. Patt,
//! "Feedback Directed Prefetching", HPCA 2007).

use nodescope_plugin_api::Parameter;

use super::parameters::parameter;
use super::{Answer, Observed, Prefetcher};

/// The parameter of all prefetchers: the least part of the lines that must be used, in percent.
pub(super) const ACCURACY: Parameter = parameter(
    "accuracy",
    "least percentage of its lines that must be used; 0: never stops",
    0,
    100,
);

/// Lines that are remembered until they are used or another line takes their place: a power of two.
const REMEMBERED: usize = 1024;
/// Lines after whose end the prefetcher is judged anew.
const JUDGED: u32 = 256;

/// A prefetcher whose lines are remembered, also while they are not brought in. So a prefetcher that was stopped starts again when its lines
/// would have been used.
#[derive(Debug)]
pub(super) struct Accurate {
    prefetcher: Box<dyn Prefetcher>,
    /// Least part of the lines that must be used, in percent.
    least: u32,
    /// The last wanted line of each place. `None`: that line was used.
    remembered: Vec<Option<u64>>,
    /// Lines that were used, and lines that another line replaced, since the last judgement.
    used: u32,
    unused: u32,
    stopped: bool,
}

impl Accurate {
    pub(super) fn new(prefetcher: Box<dyn Prefetcher>, least: u32) -> Accurate {
        Accurate {
            prefetcher,
            least,
            remembered: vec![None; REMEMBERED],
            used: 0,
            unused: 0,
            stopped: false,
        }
    }

    fn place(&mut self, line: u64) -> &mut Option<u64> {
        // Fibonacci hashing spreads lines that are at equal places of their pages.
        let hash = line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &mut self.remembered[(hash >> (64 - REMEMBERED.trailing_zeros())) as usize]
    }

    fn judge(&mut self) {
        let all = self.used + self.unused;
        if all >= JUDGED {
            self.stopped = self.used * 100 < all * self.least;
            (self.used, self.unused) = (0, 0);
        }
    }
}

impl Prefetcher for Accurate {
    fn observe(&mut self, access: &Observed, wanted: &mut Vec<u64>) {
        if access.answer != Answer::Hit && *self.place(access.line) == Some(access.line) {
            *self.place(access.line) = None;
            self.used += 1;
        }
        let before = wanted.len();
        self.prefetcher.observe(access, wanted);
        for &line in &wanted[before..] {
            let replaced = self.place(line).replace(line);
            self.unused += u32::from(replaced.is_some_and(|replaced| replaced != line));
        }
        self.judge();
        if self.stopped {
            wanted.truncate(before);
        }
    }

    fn sees_hits(&self) -> bool {
        self.prefetcher.sees_hits()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::scan;

    /// Returns how many of the last lines of a scan ask for lines.
    fn asking(text: &str, lines: impl Iterator<Item = u64>) -> usize {
        let scan = scan(text, 6, lines);
        let last = scan.wanted.len() - 64..;
        scan.wanted[last].iter().filter(|w| !w.is_empty()).count()
    }

    #[test]
    fn a_stream_of_every_fourth_line_stops_the_prefetcher_of_all_lines() {
        let every_fourth = || (0..4096).map(|n| 4 * n);
        assert_eq!(asking("next-line", every_fourth()), 64);
        assert_eq!(asking("next-line:accuracy=60", every_fourth()), 0);
    }

    #[test]
    fn lines_that_would_be_used_start_the_prefetcher_again() {
        let lines = (0..4096).map(|n| 4 * n).chain(1 << 20..(1 << 20) + 4096);
        assert_eq!(asking("next-line:accuracy=60", lines), 63);
    }
}
