//! Lines that are on their way to the core.

/// A line on its way, or that has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// Cycle in which the line is there.
    pub(crate) ready: u64,
    /// Cycles from the request to then.
    pub(crate) latency: u64,
    /// Level of the cache that gets the line, from 1 on.
    pub(crate) level: u8,
    /// Sources that the line has come from, one after the other, one bit each.
    pub(crate) sources: u8,
    /// True if a store has written to the line, so that it goes back where it came from.
    pub(crate) written: bool,
}

/// Number of lines that are remembered at a time: a power of two.
const ENTRIES: usize = 1 << 12;

/// The lines that came last. A line may push another one out of this table, which then counts as there.
#[derive(Clone, Debug)]
pub(crate) struct Lines(Vec<(u64, Line)>);

impl Default for Lines {
    fn default() -> Self {
        Self(vec![(u64::MAX, Line::default()); ENTRIES])
    }
}

impl Lines {
    fn slot(line: u64) -> usize {
        // Fibonacci hashing: Knuth, The Art of Computer Programming, volume 3, section 6.4.
        ((line >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ENTRIES.trailing_zeros()))
            as usize
    }

    /// Returns when a line came or comes, and where to; `None` if that is not known.
    pub(crate) fn find(&self, line: u64) -> Option<Line> {
        let (known, at) = self.0[Self::slot(line)];
        (known == line).then_some(at)
    }

    /// Returns when the first level has a line that an earlier instruction has brought there; 0 if that is not known. The access starts at
    /// `start`, maybe before the earlier instruction has requested the line. It then requests the line itself.
    pub(crate) fn first_level(&mut self, line: u64, start: u64) -> u64 {
        let (known, at) = &mut self.0[Self::slot(line)];
        if *known != line || at.level != 1 {
            return 0;
        }
        at.ready = at.ready.min(start + at.latency);
        at.ready
    }

    /// Returns whether a line is still on its way at `now`.
    pub(crate) fn is_pending(&self, line: u64, now: u64) -> bool {
        self.find(line).is_some_and(|at| at.ready > now)
    }

    /// Notes a store to a line. Returns the sources to which the line goes back, if it is the first store to the line since it came.
    pub(crate) fn write(&mut self, line: u64) -> u8 {
        let (known, at) = &mut self.0[Self::slot(line)];
        if *known != line || at.written {
            return 0;
        }
        at.written = true;
        at.sources
    }

    /// Remembers a line.
    pub(crate) fn set(&mut self, line: u64, at: Line) {
        self.0[Self::slot(line)] = (line, at);
    }
}
