//! One clock for all bursts of a traced run.
//!
//! In a measurement window, clocks also count the stalls that models find. So the same computation lasts longer there than outside. Bursts
//! outside get the time that they would have lasted in a window: the time of an instruction differs by the same factor for all bursts
//! between the same two call sites. The factor is that of all ranks' bursts there. Where no burst between two call sites lay in a window,
//! the mean factor of the others stands for it.

use std::collections::BTreeMap;

use crate::sequence::limits::LATEST;
use crate::{Burst, Sequences, Site};

/// Time of bursts outside measurement windows that has been converted to the clock of the windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// Time of the bursts as traced, picoseconds, of all ranks together.
    pub traced: u64,
    /// Time of the bursts on the clock of the windows, picoseconds.
    pub time: u64,
    /// Part of the traced time whose call sites had bursts in windows, picoseconds.
    pub matched: u64,
}

/// Call sites before and after a burst; `None` before the first call.
type Place = (Option<Site>, Site);

/// Time in picoseconds and instructions of bursts.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    time: u64,
    instructions: u64,
}

impl Sum {
    fn add(&mut self, burst: &Burst) {
        self.time = self.time.saturating_add(burst.time);
        self.instructions = self.instructions.saturating_add(burst.instructions);
    }

    /// Returns the time of an instruction; `None` without bursts.
    fn pace(&self) -> Option<f64> {
        (self.instructions > 0).then(|| self.time as f64 / self.instructions as f64)
    }
}

impl Sequences {
    /// Converts the bursts outside measurement windows to the clock of the windows, and notes this in the origin. Nothing changes if there is
    /// no window, or if no two call sites have bursts on both sides.
    pub fn use_clock_of_windows(&mut self) {
        let windows = self.merged_windows();
        if windows.is_empty() || self.begins.len() != self.ranks.len() {
            return;
        }
        // By place: bursts in windows, and bursts outside.
        let mut sums: BTreeMap<Place, [Sum; 2]> = BTreeMap::new();
        self.each_burst(&windows, |place, burst, inside| {
            if burst.instructions == 0 {
                return;
            }
            let [within, outside] = sums.entry(place).or_default();
            if inside == burst.time {
                within.add(burst);
            } else if inside == 0 {
                outside.add(burst);
            }
        });
        let mut factors: BTreeMap<Place, f64> = BTreeMap::new();
        let (mut before, mut after) = (0.0, 0.0);
        for (&place, [within, outside]) in &sums {
            if let (Some(timed), Some(plain)) = (within.pace(), outside.pace()) {
                factors.insert(place, timed / plain);
                before += outside.time as f64;
                after += outside.time as f64 * timed / plain;
            }
        }
        if before <= 0.0 {
            return;
        }
        let mean = after / before;
        let mut converted = Converted::default();
        self.each_burst(&windows, |place, burst, inside| {
            let outside = burst.time - inside;
            let known = factors.get(&place);
            let time = (outside as f64 * known.unwrap_or(&mean)).round() as u64;
            burst.time = inside.saturating_add(time).min(LATEST);
            converted.traced = converted.traced.saturating_add(outside);
            converted.time = converted.time.saturating_add(time);
            if known.is_some() {
                converted.matched = converted.matched.saturating_add(outside);
            }
        });
        self.origin.converted = Some(converted);
    }

    /// Returns the times in which any window was open, ascending and apart.
    fn merged_windows(&self) -> Vec<(u64, u64)> {
        let windows = self.origin.windows.iter();
        let mut spans: Vec<(u64, u64)> = windows.map(|span| (span.opened, span.closed)).collect();
        spans.sort_unstable();
        spans.dedup_by(|next, last| {
            let overlap = next.0 <= last.1;
            if overlap {
                last.1 = last.1.max(next.1);
            }
            overlap
        });
        spans
    }

    /// Passes each burst that takes time on, with its place and the part of its time that lies in windows.
    fn each_burst(&mut self, windows: &[(u64, u64)], mut each: impl FnMut(Place, &mut Burst, u64)) {
        for (rank, begins) in self.ranks.iter_mut().zip(&self.begins) {
            let mut before = None;
            for (entry, &end) in rank.entries.iter_mut().zip(begins) {
                let place = (before, entry.op.site);
                before = Some(entry.op.site);
                if entry.burst.time == 0 {
                    continue;
                }
                let start = end.saturating_sub(entry.burst.time);
                let first = windows.partition_point(|&(_, closed)| closed <= start);
                let open = windows[first..]
                    .iter()
                    .take_while(|&&(opened, _)| opened < end);
                let inside = open.map(|&(opened, closed)| closed.min(end) - opened.max(start));
                let inside = inside.sum::<u64>().min(entry.burst.time);
                each(place, &mut entry.burst, inside);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nodescope_hypercall::Function;

    use super::*;
    use crate::{Action, Entry, Op, Sequence, WindowSpan};

    /// Returns a rank whose bursts have these times and instructions and end at calls from these sites, each of which takes no time.
    fn sequences(bursts: &[(u64, u64, u64)], windows: &[(u64, u64)]) -> Sequences {
        let mut sequences = Sequences::default();
        let (mut rank, mut begins, mut clock) = (Sequence::default(), Vec::new(), 0);
        for &(time, instructions, site) in bursts {
            clock += time;
            begins.push(clock);
            rank.entries.push(Entry {
                burst: Burst { time, instructions },
                op: Arc::new(Op {
                    function: Function::Barrier,
                    site: Site {
                        address: site,
                        ..Site::default()
                    },
                    communicator: 0,
                    block: None,
                    more: false,
                    action: Action::Nothing,
                }),
                opaque: None,
            });
        }
        sequences.ranks.push(rank);
        sequences.begins.push(begins);
        sequences.origin.windows = (windows.iter())
            .map(|&(opened, closed)| WindowSpan {
                name: "w".into(),
                opened,
                closed,
            })
            .collect();
        sequences
    }

    fn times(sequences: &Sequences) -> Vec<u64> {
        let entries = sequences.ranks[0].entries.iter();
        entries.map(|entry| entry.burst.time).collect()
    }

    #[test]
    fn bursts_outside_last_as_long_as_in_a_window() {
        // Sites 1 and 2 alternate. In the window, an instruction takes three times as long before site 1, and twice before site 2.
        let steps = [
            (100, 100, 2),
            (100, 100, 1),
            (200, 100, 2),
            (300, 100, 1),
            (50, 50, 2),
        ];
        let mut of = sequences(&steps, &[(200, 700)]);
        of.use_clock_of_windows();
        // The first burst has no call before it, and so the mean factor of those outside: (100 * 3 + 50 * 2) / 150.
        assert_eq!(times(&of), [267, 300, 200, 300, 100]);
        let converted = of.origin.converted.unwrap();
        assert_eq!(
            (converted.traced, converted.time, converted.matched),
            (250, 667, 150)
        );
    }

    #[test]
    fn bursts_of_unknown_instructions_decide_no_factor() {
        let steps = [(100, 100, 1), (100, 100, 1), (100, 0, 1), (300, 100, 1)];
        let mut of = sequences(&steps, &[(300, 600)]);
        of.use_clock_of_windows();
        assert_eq!(times(&of), [300, 300, 300, 300]);
    }

    #[test]
    fn a_burst_at_the_end_of_a_window_is_converted_in_part() {
        let steps = [
            (10, 10, 1),
            (20, 10, 1),
            (20, 10, 1),
            (15, 10, 1),
            (10, 10, 1),
        ];
        let mut of = sequences(&steps, &[(10, 50), (40, 60)]);
        of.use_clock_of_windows();
        assert_eq!(times(&of), [20, 20, 20, 20, 20]);
    }

    #[test]
    fn without_bursts_on_both_sides_nothing_changes() {
        for windows in [&[][..], &[(0, 300)], &[(0, 100)]] {
            let mut of = sequences(&[(100, 100, 1), (200, 100, 2)], windows);
            of.use_clock_of_windows();
            assert_eq!(times(&of), [100, 200]);
            assert_eq!(of.origin.converted, None);
        }
    }
}
