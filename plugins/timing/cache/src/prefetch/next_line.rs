//! `next-line`: prefetch of the next line (A. J. Smith, "Cache Memories", Computing Surveys 14 (3), 1982, "tagged prefetch").

use super::page::Pages;
use super::{Answer, Observed, Prefetcher};

/// Name in the text form.
pub(super) const NAME: &str = "next-line";

/// A miss, or the first use of a prefetched line, asks for the next line of the page.
#[derive(Debug)]
pub(super) struct NextLine {
    pages: Pages,
}

impl NextLine {
    pub(super) fn new(pages: Pages) -> NextLine {
        NextLine { pages }
    }
}

impl Prefetcher for NextLine {
    fn observe(&mut self, access: &Observed, wanted: &mut Vec<u64>) {
        if access.answer != Answer::Hit {
            wanted.extend(self.pages.step(access.line, 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::testing::{accesses, compare, make, scan};
    use super::super::{Answer, Observed};

    /// Returns the lines of a history that the last access wants.
    fn plain(history: &[Observed], line_shift: u32) -> Vec<u64> {
        let now = history[history.len() - 1];
        let page: BTreeSet<u64> = (0..4096 >> line_shift)
            .map(|n| (now.line << line_shift) / 4096 * (4096 >> line_shift) + n)
            .collect();
        let seen = matches!(now.answer, Answer::Miss | Answer::PrefetchedHit);
        page.into_iter()
            .find(|line| *line > now.line)
            .filter(|_| seen)
            .into_iter()
            .collect()
    }

    proptest! {
        #[test]
        fn equals_the_plain_definition(line_shift in 5u32..=12, accesses in accesses()) {
            compare("next-line", line_shift, &accesses, |history| plain(history, line_shift))?;
        }
    }

    #[test]
    fn a_forward_scan_of_a_page_wants_each_line_but_the_first_once() {
        let scan = scan("next-line", 6, 640..704);
        assert_eq!(scan.wanted.concat(), (641..704).collect::<Vec<_>>());
        assert_eq!(scan.misses, [640]);
    }

    #[test]
    fn a_backward_scan_wants_only_lines_that_the_cache_has() {
        let scan = scan("next-line", 6, (640..704).rev());
        assert!(scan.wanted.concat().is_empty());
        assert_eq!(scan.misses.len(), 64);
    }

    #[test]
    fn the_last_line_of_memory_wants_nothing() {
        let scan = scan("next-line", 12, [u64::MAX - 1, u64::MAX]);
        assert_eq!(scan.wanted, [[]; 2]);
        assert!(!make("next-line", 6).sees_hits());
    }
}
