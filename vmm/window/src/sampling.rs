//! Sampled windows: their models are attached in intervals. Between intervals, clocks advance by what code has cost in the intervals.

use serde::{Deserialize, Serialize};

use crate::driver::WindowAction;

/// The intervals of a sampled window. All numbers are instructions of all nodes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// Instructions that run with models attached before each interval but the first. They fill the first levels of the caches; outer
    /// levels keep their contents between intervals.
    pub warm_up: u64,
    /// Instructions of an interval.
    pub measured: u64,
    /// Instructions between the first intervals.
    pub apart: u64,
    /// Most instructions between intervals. Code that changes its behaviour with its data keeps its old cost so long.
    pub most_apart: u64,
    /// Most picoseconds of a warm-up or an interval. Instructions that move strings, or wait for memory, may take long.
    pub longest_ps: u64,
    /// Instructions that the nodes retire in a second at most, by which the next change is awaited.
    pub most_per_second: u64,
}

/// Number of intervals after which their distance doubles.
const DOUBLE_AFTER: u64 = 32;
/// Number of intervals by which the doubling goes back behind an interval that was asked for: another part of the program has begun.
const BACK: u64 = 8;
/// Factor by which an interval that was asked for is shorter.
const URGENT: u64 = 2;

/// Most cycles of a warm-up or an interval.
const LONGEST_CYCLES: u64 = 16_000_000;

impl Sampling {
    /// Returns the intervals for so many vCPUs together, with this clock.
    pub fn of(vcpus: u64, hertz: u64) -> Self {
        let each = |instructions: u64| instructions * vcpus.max(1);
        Self {
            warm_up: each(1_000_000),
            measured: each(1_000_000),
            apart: each(8_000_000),
            most_apart: each(128_000_000),
            longest_ps: (u128::from(LONGEST_CYCLES) * 1_000_000_000_000 / u128::from(hertz.max(1)))
                as u64,
            most_per_second: each(8 * hertz),
        }
    }
}

/// What a sampled window does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Stage {
    Measuring,
    Apart,
    WarmingUp,
}

/// Where a sampled window is in its intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Schedule {
    stage: Stage,
    /// Instructions of all nodes together at the next change.
    until: u64,
    /// Number of intervals that have ended.
    ended: u64,
    /// True if code of unknown cost has asked for an interval.
    requested: bool,
    /// True if the running interval was asked for.
    urgent: bool,
    /// Virtual time in picoseconds at which the running stage ends, unless it has ended before.
    latest_ps: u64,
    /// Virtual time in picoseconds before which the next change is not due.
    not_before_ps: u64,
}

impl Schedule {
    /// Begins the first interval.
    pub(crate) fn new(sampling: &Sampling, now_ps: u64, instructions: u64) -> Self {
        Self {
            stage: Stage::Measuring,
            until: instructions.saturating_add(sampling.measured),
            ended: 0,
            requested: false,
            urgent: false,
            latest_ps: now_ps.saturating_add(sampling.longest_ps),
            not_before_ps: 0,
        }
    }

    /// Asks for an interval.
    pub(crate) fn request(&mut self) {
        self.requested = true;
    }

    /// Returns the virtual time before which [`Schedule::step`] has nothing to do.
    pub(crate) fn next_ps(&self) -> u64 {
        self.not_before_ps
    }

    /// Decides at a boundary of quanta what changes in the window with this index.
    pub(crate) fn step(
        &mut self,
        sampling: &Sampling,
        index: usize,
        now_ps: u64,
        instructions: u64,
    ) -> Option<WindowAction> {
        let left = self.until.saturating_sub(instructions);
        let requested = std::mem::take(&mut self.requested) && self.stage == Stage::Apart;
        let cut = left > 0 && now_ps >= self.latest_ps;
        if left > 0 && !requested && !cut {
            let ps =
                u128::from(left) * 1_000_000_000_000 / u128::from(sampling.most_per_second.max(1));
            self.not_before_ps = match self.stage {
                Stage::Apart => now_ps.saturating_add(ps as u64),
                Stage::Measuring | Stage::WarmingUp => 0,
            };
            return None;
        }
        self.not_before_ps = 0;
        let shorter = |length: u64, urgent: bool| if urgent { length / URGENT } else { length };
        let (stage, length, action) = match self.stage {
            Stage::Measuring => {
                // What a cut interval has measured is little, so that the next one is no later.
                self.ended = match (cut, self.urgent) {
                    (true, _) => self.ended.max(1),
                    (false, true) => (self.ended + 1).saturating_sub(BACK).max(1),
                    (false, false) => self.ended + 1,
                };
                let apart = self.distance(sampling);
                (Stage::Apart, apart, WindowAction::Pause(index))
            }
            Stage::Apart => {
                self.urgent = requested;
                let length = shorter(sampling.warm_up, self.urgent);
                (Stage::WarmingUp, length, WindowAction::Resume(index))
            }
            Stage::WarmingUp => {
                let length = shorter(sampling.measured, self.urgent);
                let start = WindowAction::StartInterval(index);
                (Stage::Measuring, length, start)
            }
        };
        self.stage = stage;
        self.until = instructions.saturating_add(length);
        self.latest_ps = match stage {
            Stage::Apart => u64::MAX,
            Stage::Measuring | Stage::WarmingUp => now_ps.saturating_add(sampling.longest_ps),
        };
        Some(action)
    }

    /// Returns the instructions until the next interval. They vary by up to a quarter, so that intervals do not keep step with loops.
    fn distance(&self, sampling: &Sampling) -> u64 {
        let doublings = ((self.ended - 1) / DOUBLE_AFTER).min(32) as u32;
        let apart = sampling.apart.saturating_mul(1 << doublings);
        let apart = apart.min(sampling.most_apart);
        let drawn = self.ended.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        apart - apart / 4 + ((u128::from(apart) * u128::from(drawn)) >> 17) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_take_turns_and_move_apart() {
        let sampling = Sampling::of(1, 1_000_000_000);
        let mut schedule = Schedule::new(&sampling, 0, 0);
        let mut now = 0;
        let mut paused = Vec::new();
        let mut at = 0;
        for _ in 0..200 {
            now += 500_000;
            match schedule.step(&sampling, 3, 0, now) {
                Some(WindowAction::Pause(3)) => at = now,
                Some(WindowAction::Resume(3)) => paused.push(now - at),
                Some(WindowAction::StartInterval(3)) | None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
        assert!(paused.len() > 6, "{paused:?}");
        assert!(
            paused.iter().all(|n| (6_000_000..=10_500_000).contains(n)),
            "{paused:?}"
        );
        schedule.ended = 1 + 3 * DOUBLE_AFTER;
        assert!(schedule.distance(&sampling) >= 48_000_000);
    }

    #[test]
    fn instructions_that_take_long_cut_an_interval() {
        let sampling = Sampling::of(1, 1_000_000_000);
        let mut schedule = Schedule::new(&sampling, 1_000, 0);
        let longest = 16_000_000_000;
        assert_eq!(sampling.longest_ps, longest);
        assert!(schedule.step(&sampling, 0, longest, 10).is_none());
        let cut = schedule.step(&sampling, 0, 1_000 + longest, 10);
        assert_eq!(cut, Some(WindowAction::Pause(0)));
        assert_eq!(schedule.ended, 1);
        assert!(schedule.step(&sampling, 0, 9 * longest, 20).is_none());
    }

    #[test]
    fn nothing_is_due_before_the_instructions_can_have_retired() {
        let sampling = Sampling::of(2, 1_000_000_000);
        let mut schedule = Schedule::new(&sampling, 0, 0);
        assert!(schedule.step(&sampling, 0, 0, 4_000_000).is_some());
        assert_eq!(schedule.next_ps(), 0);
        assert!(schedule.step(&sampling, 0, 1_000, 4_000_000).is_none());
        let ps = (schedule.until - 4_000_000) * 1_000 / 16;
        assert_eq!(schedule.next_ps(), 1_000 + ps);
    }
}
