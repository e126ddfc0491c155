//! Computation: the values of bursts, and the share of the processor that a progress thread takes.

use super::{Interpreter, Options, Phase};
use crate::cluster::{LONGEST, Noise};
use crate::code::NONE;

/// Times at which a rank's progress thread moves data, and the rank's current burst.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgressThread {
    /// Times in which the thread is busy: disjoint, ascending.
    intervals: Vec<(u64, u64)>,
    start: u64,
    work: u64,
}

impl ProgressThread {
    fn add(&mut self, mut from: u64, mut to: u64) {
        let first = self.intervals.partition_point(|&(_, end)| end < from);
        let last = self.intervals.partition_point(|&(start, _)| start <= to);
        if first < last {
            from = from.min(self.intervals[first].0);
            to = to.max(self.intervals[last - 1].1);
        }
        self.intervals.splice(first..last, [(from, to)]);
    }

    /// Returns the time when the current burst ends, with the share `beta` taken in the intervals.
    fn end(&self, beta: f64) -> u64 {
        let (mut time, mut left) = (self.start, self.work);
        for &(from, to) in &self.intervals {
            if to <= time {
                continue;
            }
            if from > time {
                if left <= from - time {
                    break;
                }
                left -= from - time;
                time = from;
            }
            let done = ((to - time) as f64 * (1.0 - beta)).round() as u64;
            if left <= done {
                return time + (left as f64 / (1.0 - beta)).round() as u64;
            }
            left -= done;
            time = to;
        }
        time + left
    }
}

/// Returns a well-mixed number from a counter (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub(crate) fn mixed(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Returns the time when a rank begins: random with a seed and a stagger, otherwise 0.
pub(super) fn begin(options: &Options, rank: u32) -> u64 {
    match options.resample {
        Some(seed) if options.stagger > 0 => {
            mixed(mixed(!seed) ^ u64::from(rank)) % options.stagger.saturating_add(1)
        }
        _ => 0,
    }
}

/// Returns so many millionths of a time, rounded.
fn paced(time: u64, part: u32) -> u64 {
    let millionths = u128::from(time) * u128::from(part) + 500_000;
    u64::try_from(millionths / 1_000_000).map_or(LONGEST, |time| time.min(LONGEST))
}

/// Returns the time that `work` takes on a rank's core from `begin` on, picoseconds.
fn interrupted(noise: Noise, rank: u32, begin: u64, work: u64) -> u64 {
    let Noise { interval, time } = noise;
    let since = (begin + interval - mixed(u64::from(rank)) % interval) % interval;
    // The next interruption begins so much later. One that is under way does not count.
    let first = (interval - since) % interval;
    let times = work.saturating_sub(first).div_ceil(interval - time);
    work.saturating_add(times.saturating_mul(time)).min(LONGEST)
}

impl Interpreter<'_> {
    /// Returns the next value of a column, scaled to the target's speed, picoseconds.
    pub(super) fn burst(&mut self, context: u32, column: u32) -> u64 {
        if column == NONE {
            return 0;
        }
        let rank = self.code.ranks[context as usize];
        let bursts = &self.code.program.bursts[rank.bursts as usize];
        let values = bursts.columns[column as usize];
        let mut at = values.start;
        if values.length > 1 {
            let cursor = &mut self.cursors[(rank.cursors + column) as usize];
            let index = match self.options.resample {
                None => *cursor % values.length,
                Some(seed) => {
                    let key = (u64::from(context) << 32) | u64::from(column);
                    let draw = mixed(mixed(seed ^ mixed(key)) ^ u64::from(*cursor));
                    (draw % u64::from(values.length)) as u32
                }
            };
            *cursor = cursor.wrapping_add(1);
            at += index;
        }
        let time = bursts.times[at as usize];
        let instructions = bursts.instructions.get(at as usize).copied().unwrap_or(0);
        let time = self.cluster.speed.scale(time, instructions);
        let time = match self.options.pace.get(context as usize) {
            None => time,
            Some(&part) => paced(time, part),
        };
        let time = match self.cluster.node_speeds.is_empty() {
            true => time,
            false => self.on_node(context, time),
        };
        match self.cluster.noise {
            None => time,
            Some(noise) => interrupted(noise, context, self.contexts[context as usize].clock, time),
        }
    }

    /// Returns the time that a burst takes on its rank's node.
    fn on_node(&self, rank: u32, time: u64) -> u64 {
        let node = self.node_of[rank as usize];
        match self.cluster.node_speeds.get(&node) {
            None => time,
            Some(&speed) => {
                let time = u128::from(time) * 1_000_000 / u128::from(speed.max(1));
                u64::try_from(time).map_or(LONGEST, |time| time.min(LONGEST))
            }
        }
    }

    /// Computes beside a progress thread. The burst ends later if the thread moves data meanwhile.
    pub(super) fn compute_with_progress_thread(&mut self, context: u32, work: u64) {
        let start = self.contexts[context as usize].clock;
        let busy = &mut self.progress_threads[context as usize];
        busy.intervals.retain(|&(_, to)| to > start);
        (busy.start, busy.work) = (start, work);
        let end = busy.end(self.beta);
        self.contexts[context as usize].phase = Phase::Computing;
        self.contexts[context as usize].clock = end;
        self.wake(context, end);
    }

    /// Notes that a rank's progress thread moves data from `from` to `to`.
    pub(super) fn progresses(&mut self, rank: u32, from: u64, to: u64) {
        if self.beta <= 0.0 || from >= to {
            return;
        }
        let busy = &mut self.progress_threads[rank as usize];
        busy.add(from, to);
        let context = &mut self.contexts[rank as usize];
        if context.phase == Phase::Computing {
            let end = busy.end(self.beta);
            if end != context.clock {
                context.clock = end;
                self.wake(rank, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interruptions_lengthen_work_by_their_share() {
        let noise = Noise {
            interval: 1000,
            time: 100,
        };
        let phase = mixed(7) % 1000;
        // Work that begins with an interruption, ends before the next one, just reaches it, and goes beyond.
        let times = [900, 901, 1800, 1801].map(|work| interrupted(noise, 7, phase + 5000, work));
        assert_eq!(times, [1000, 1101, 2000, 2101]);
        assert_eq!(interrupted(noise, 7, phase + 5400, 600), 600);
        assert_eq!(interrupted(noise, 7, phase + 5400, 601), 701);
        assert_eq!(interrupted(noise, 7, phase, 0), 0);
        // Independently, interruption by interruption.
        for (begin, work) in [(3, 12_345), (777, 5), (950, 51), (0, 899)] {
            let (mut end, mut next) = (begin + work, phase);
            while next < end {
                end += if next >= begin { 100 } else { 0 };
                next += 1000;
            }
            assert_eq!(interrupted(noise, 7, begin, work), end - begin);
        }
    }

    #[test]
    fn bursts_are_slower_while_the_progress_thread_works() {
        let mut busy = ProgressThread {
            start: 100,
            work: 50,
            ..ProgressThread::default()
        };
        assert_eq!(busy.end(0.5), 150);
        // 20 at full speed, 40 at half, 10 at full.
        busy.add(120, 160);
        assert_eq!(busy.end(0.5), 170);
        // Both intervals become one.
        busy.add(150, 170);
        assert_eq!(busy.intervals, [(120, 170)]);
        assert_eq!(busy.end(0.5), 175);
        busy.add(0, 100);
        assert_eq!(busy.intervals, [(0, 100), (120, 170)]);
        // The thread is busy throughout: the burst takes twice as long.
        busy.add(90, 1000);
        assert_eq!(busy.end(0.5), 200);
    }
}
