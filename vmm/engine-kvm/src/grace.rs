//! Grace: time that a vCPU gets beyond its limit on a host where entering the guest is slow.
//!
//! The alarm's time includes the entry itself. If an entry takes longer than the vCPU may run, the alarm ends each entry before the guest's
//! next instruction, so the vCPU would never progress. Hosts that are themselves emulated take up to a millisecond for an entry. Each entry
//! without progress doubles the grace of the next one, and progress halves it. A vCPU that overruns its limit waits for its node.

use std::time::Duration;

/// Grace after the first entry without progress.
const FIRST: Duration = Duration::from_micros(20);
/// Largest grace of an entry.
const MOST: Duration = Duration::from_millis(10);

/// Registers that show progress of the guest: RIP, RSP, RCX (for repeated string instructions) and RFLAGS.
pub(crate) type Position = [u64; 4];

/// Grace of a vCPU's next entry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Grace {
    time: Duration,
    /// Position of the last entry that a signal ended; none if the guest has progressed since.
    position: Option<Position>,
}

impl Grace {
    /// Adds the grace to the time limit of an entry in ns; `None` is no limit.
    pub(crate) fn extend(&self, ns: Option<u64>) -> Option<u64> {
        let grace = u64::try_from(self.time.as_nanos()).unwrap_or(u64::MAX);
        ns.map(|ns| ns.saturating_add(grace))
    }

    /// Records that a signal ended an entry at this position. The grace doubles if the position is that of the last such entry.
    pub(crate) fn cut_short(&mut self, position: Position) {
        if self.position == Some(position) {
            self.time = (2 * self.time).clamp(FIRST, MOST);
        } else {
            self.progress();
            self.position = Some(position);
        }
    }

    /// Records that the guest executed an instruction, which halves the grace.
    pub(crate) fn progress(&mut self) {
        self.position = None;
        self.time /= 2;
        if self.time < FIRST {
            self.time = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Position = [0x1000, 0x8000, 7, 2];
    const THERE: Position = [0x1001, 0x8000, 7, 2];

    #[test]
    fn fruitless_entries_double_the_grace() {
        let mut grace = Grace::default();
        grace.cut_short(HERE);
        assert_eq!(
            grace.extend(Some(5)),
            Some(5),
            "the first cut shows nothing"
        );
        for expected in [20_000, 40_000, 80_000] {
            grace.cut_short(HERE);
            assert_eq!(grace.extend(Some(5)), Some(5 + expected));
        }
        for _ in 0..40 {
            grace.cut_short(HERE);
        }
        assert_eq!(grace.extend(Some(0)), Some(10_000_000), "bounded");
        assert_eq!(grace.extend(None), None);
        assert_eq!(grace.extend(Some(u64::MAX)), Some(u64::MAX));
    }

    #[test]
    fn progress_halves_the_grace_down_to_none() {
        let mut grace = Grace::default();
        for _ in 0..3 {
            grace.cut_short(HERE);
        }
        assert_eq!(grace.extend(Some(0)), Some(40_000));
        grace.cut_short(THERE);
        assert_eq!(grace.extend(Some(0)), Some(20_000));
        grace.progress();
        assert_eq!(grace.extend(Some(0)), Some(0));
    }
}
