//! `up-down`: prefetch of the next or the previous line, as the accesses before tell (AMD, "Software Optimization Guide for the AMD Zen4
//! Microarchitecture", publication 57647, section 2.12.1, "L2 Up/Down Prefetcher"; the guide publishes no details).

use super::page::Pages;
use super::{Answer, Observed, Prefetcher};

/// Name in the text form.
pub(super) const NAME: &str = "up-down";

/// Accesses that count are misses and first uses of prefetched lines. Such an access asks for the next line if the one before was to a lower
/// line of the same page. It asks for the previous line if the one before was to a higher line of the page.
#[derive(Debug)]
pub(super) struct UpDown {
    pages: Pages,
    last: Option<u64>,
}

impl UpDown {
    pub(super) fn new(pages: Pages) -> UpDown {
        UpDown { pages, last: None }
    }
}

impl Prefetcher for UpDown {
    fn observe(&mut self, access: &Observed, wanted: &mut Vec<u64>) {
        if access.answer == Answer::Hit {
            return;
        }
        let line = access.line;
        if let Some(last) = self.last.replace(line)
            && last != line
            && self.pages.of(last) == self.pages.of(line)
        {
            let direction = if last < line { 1 } else { -1 };
            wanted.extend(self.pages.step(line, direction));
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
        let seen: Vec<i128> = (history.iter())
            .filter(|access| access.answer != Answer::Hit)
            .map(|access| access.line.into())
            .collect();
        let page = |line: i128| line << line_shift >> 12;
        let now = history[history.len() - 1];
        match seen[..] {
            [.., before, last] if now.answer != Answer::Hit && page(before) == page(last) => {
                let wanted = last + (last - before).signum();
                let there = wanted != last && page(wanted) == page(last);
                there.then_some(wanted as u64).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    proptest! {
        #[test]
        fn equals_the_plain_definition(line_shift in 5u32..=12, accesses in accesses()) {
            compare("up-down", line_shift, &accesses, |history| plain(history, line_shift))?;
        }
    }

    #[test]
    fn scans_in_both_directions_miss_twice_a_page() {
        let up = scan("up-down", 6, 640..704);
        assert_eq!(up.misses, [640, 641]);
        let down = scan("up-down", 6, (640..704).rev());
        assert_eq!(down.misses, [703, 702]);
    }
}
