//! Pages of 4 KiB. The next page of physical memory may belong to anything, so that most prefetchers stay in a page.

/// Division of the lines into pages of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    /// Binary logarithm of the number of lines in a page.
    shift: u32,
}

impl Pages {
    /// Returns the pages of lines of `1 << line_shift` bytes. A line is no larger than a page.
    pub(super) fn new(line_shift: u32) -> Pages {
        debug_assert!(line_shift <= 12);
        Pages {
            shift: 12 - line_shift,
        }
    }

    /// Returns the number of the page of a line.
    pub(super) fn of(self, line: u64) -> u64 {
        line >> self.shift
    }

    /// Returns the line that is `lines` after `line`, or before it if negative. `None`: that line is in another page.
    pub(super) fn step(self, line: u64, lines: i64) -> Option<u64> {
        self.step_within(1, line, lines)
    }

    /// Returns the line that is `lines` after `line`, or before it if negative. `None`: that line is none of `pages` pages of which `line`'s
    /// is the first in this direction.
    pub(super) fn step_within(self, pages: u32, line: u64, lines: i64) -> Option<u64> {
        line.checked_add_signed(lines)
            .filter(|&to| self.of(to).abs_diff(self.of(line)) < pages.into())
    }
}
