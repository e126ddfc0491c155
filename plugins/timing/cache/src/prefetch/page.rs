//! Pages of 4 KiB, which no prefetcher leaves: the next page of physical memory may belong to anything.

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
        line.checked_add_signed(lines)
            .filter(|&to| self.of(to) == self.of(line))
    }
}
