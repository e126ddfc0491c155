//! `adjacent-line`: prefetch of the other line of a pair, as Intel's spatial prefetcher does (Intel, Optimization Reference Manual, "Data
//! Prefetch to L2 and Last Level Cache").

use super::page::Pages;
use super::{Answer, Observed, Prefetcher};

/// Name in the text form.
pub(super) const NAME: &str = "adjacent-line";

/// A miss asks for the other line of the aligned pair of lines: 128 bytes with lines of 64 bytes.
#[derive(Debug)]
pub(super) struct AdjacentLine {
    pages: Pages,
}

impl AdjacentLine {
    pub(super) fn new(pages: Pages) -> AdjacentLine {
        AdjacentLine { pages }
    }
}

impl Prefetcher for AdjacentLine {
    fn observe(&mut self, access: &Observed, wanted: &mut Vec<u64>) {
        if access.answer == Answer::Miss {
            let to_other = if access.line.is_multiple_of(2) { 1 } else { -1 };
            wanted.extend(self.pages.step(access.line, to_other));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{accesses, compare, scan};
    use super::super::{Answer, Observed};

    /// Returns the lines of a history that the last access wants.
    fn plain(history: &[Observed], line_shift: u32) -> Vec<u64> {
        let now = history[history.len() - 1];
        let pair = now.line / 2;
        [2 * pair, 2 * pair + 1]
            .into_iter()
            .filter(|line| now.answer == Answer::Miss && *line != now.line && line_shift < 12)
            .collect()
    }

    proptest! {
        #[test]
        fn equals_the_plain_definition(line_shift in 5u32..=12, accesses in accesses()) {
            compare("adjacent-line", line_shift, &accesses, |history| plain(history, line_shift))?;
        }
    }

    #[test]
    fn a_scan_misses_one_line_of_each_pair() {
        let forward = scan("adjacent-line", 6, 0..128);
        assert!(forward.misses.into_iter().eq((0..128).step_by(2)));
        let backward = scan("adjacent-line", 6, (0..128).rev());
        assert!(backward.misses.into_iter().eq((0..128).rev().step_by(2)));
    }

    #[test]
    fn the_pair_of_the_last_lines_of_memory() {
        let last = u64::MAX;
        assert_eq!(scan("adjacent-line", 6, [last]).wanted, [[last - 1]]);
        assert_eq!(scan("adjacent-line", 6, [last - 1]).wanted, [[last]]);
        assert_eq!(scan("adjacent-line", 12, [last]).wanted, [[]]);
    }
}
