//! The local APIC timer in virtual time (SDM vol. 3A, "APIC Timer").
//!
//! The timer does not count down. It stores when it was started, and computes its current count and next expiry from the virtual time. So
//! no work is needed between expiries, and periods do not drift.

use serde::{Deserialize, Serialize};

use crate::time::{Hertz, saturate, scale_up};

/// Frequencies that the timer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerClock {
    /// Frequency of the node's cycles, in which times are given: the nominal TSC frequency.
    pub tsc: Hertz,
    /// Input of the divider in one-shot and periodic mode: the core crystal clock (CPUID leaf 0x15).
    pub input: Hertz,
}

impl TimerClock {
    /// Returns the number of timer ticks in `cycles`, rounded down.
    fn ticks(&self, cycles: u64, divisor: u32) -> u64 {
        let product = cycles as u128 * self.input.get() as u128;
        saturate(product / (self.tsc.get() as u128 * divisor as u128))
    }

    /// Returns the number of cycles in `ticks` timer ticks, rounded up.
    fn cycles(&self, ticks: u64, divisor: u32) -> u64 {
        let num = self.tsc.get() as u128 * divisor as u128;
        scale_up(ticks, num, self.input.get() as u128)
    }
}

/// Timer mode, bits 18:17 of the timer's local vector table entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimerMode {
    /// Counts down once.
    #[default]
    OneShot,
    /// Restarts from the initial count after each expiry.
    Periodic,
    /// Expires when the TSC reaches IA32_TSC_DEADLINE.
    TscDeadline,
    /// Reserved encoding. A count that is started in this mode expires once, and the current count register reads as 0.
    Reserved,
}

impl TimerMode {
    /// Decodes the mode in a local vector table entry.
    pub fn of(lvt: u32) -> Self {
        match lvt >> 17 & 3 {
            0 => Self::OneShot,
            1 => Self::Periodic,
            2 => Self::TscDeadline,
            _ => Self::Reserved,
        }
    }
}

/// State of one local APIC timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    mode: TimerMode,
    /// Contents of the initial count register.
    initial: u32,
    /// Bits 3, 1 and 0 of the divide configuration register, as written.
    divide: u32,
    /// Virtual time in cycles at which the current count was started.
    start: u64,
    /// Ticks from `start` to the first expiry; 0 if the timer is stopped.
    first: u32,
    /// Number of expiries since `start`.
    fired: u64,
    /// IA32_TSC_DEADLINE as a TSC value; 0 if the timer is disarmed.
    deadline: u64,
    /// Offset from the virtual time in cycles to the vCPU's TSC.
    tsc_offset: u64,
    /// Virtual time in cycles of the next expiry; `u64::MAX` for never.
    next: u64,
}

impl Default for Timer {
    fn default() -> Self {
        Self {
            mode: TimerMode::OneShot,
            initial: 0,
            divide: 0,
            start: 0,
            first: 0,
            fired: 0,
            deadline: 0,
            tsc_offset: 0,
            next: u64::MAX,
        }
    }
}

impl Timer {
    /// Returns the virtual time in cycles of the next expiry; `u64::MAX` for never.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Resets the timer to its state after power-on or INIT. The TSC offset does not change.
    pub fn reset(&mut self) {
        *self = Self {
            tsc_offset: self.tsc_offset,
            ..Self::default()
        };
    }

    /// Returns the initial count register.
    pub fn initial(&self) -> u32 {
        self.initial
    }

    /// Returns the divide configuration register.
    pub fn divide(&self) -> u32 {
        self.divide
    }

    /// Returns the divisor that the divide configuration register encodes.
    fn divisor(&self) -> u32 {
        let code = self.divide & 3 | self.divide >> 1 & 4;
        if code == 7 { 1 } else { 2 << code }
    }

    fn elapsed(&self, clock: &TimerClock, now: u64) -> u64 {
        clock.ticks(now.saturating_sub(self.start), self.divisor())
    }

    /// Returns the current count register.
    pub fn current(&self, clock: &TimerClock, now: u64) -> u32 {
        let first = u64::from(self.first);
        let elapsed = self.elapsed(clock, now);
        let left = match self.mode {
            _ if first == 0 => 0,
            TimerMode::Periodic if elapsed >= first && self.initial != 0 => {
                let initial = u64::from(self.initial);
                initial - (elapsed - first) % initial
            }
            TimerMode::OneShot | TimerMode::Periodic => first.saturating_sub(elapsed),
            TimerMode::TscDeadline | TimerMode::Reserved => 0,
        };
        left as u32
    }

    /// Writes the initial count register, which starts the count; 0 stops it. Ignored in TSC-deadline mode.
    pub fn set_initial(&mut self, clock: &TimerClock, now: u64, count: u32) {
        if self.mode == TimerMode::TscDeadline {
            return;
        }
        self.initial = count;
        self.begin(clock, now, count);
    }

    /// Writes the divide configuration register. A running count continues from its current value.
    pub fn set_divide(&mut self, clock: &TimerClock, now: u64, divide: u32) {
        let left = self.current(clock, now);
        self.divide = divide & 0b1011;
        // A deadline counts ticks of the TSC, which the divisor does not change.
        if self.mode != TimerMode::TscDeadline {
            self.begin(clock, now, left);
        }
    }

    /// Sets the mode from the local vector table entry at the time `now`, up to which expiries have been handled. A running count goes on
    /// between one-shot and periodic mode, as on processors. A change to or from any other mode disarms the timer.
    pub fn set_mode(&mut self, clock: &TimerClock, now: u64, mode: TimerMode) {
        let old = std::mem::replace(&mut self.mode, mode);
        match (old, mode) {
            _ if old == mode => {}
            (TimerMode::OneShot, TimerMode::Periodic) => {}
            (TimerMode::Periodic, TimerMode::OneShot) => self.end_periods(clock, now),
            _ => {
                self.first = 0;
                self.deadline = 0;
                self.next = u64::MAX;
            }
        }
    }

    /// Makes the running period the last one. The next expiry stays where it is.
    fn end_periods(&mut self, clock: &TimerClock, now: u64) {
        if self.fired == 0 || self.initial == 0 {
            return;
        }
        let past = self.elapsed(clock, now).saturating_sub(self.first.into());
        let periods = past / u64::from(self.initial);
        let ticks = u64::from(self.first) + periods.saturating_mul(self.initial.into());
        let cycles = clock.cycles(ticks, self.divisor());
        self.start = self.start.saturating_add(cycles);
        self.first = self.initial;
        self.fired = 0;
    }

    /// Returns IA32_TSC_DEADLINE, which is 0 if the timer is disarmed or in another mode.
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Writes IA32_TSC_DEADLINE; 0 disarms the timer. Ignored in other modes.
    pub fn set_deadline(&mut self, now: u64, deadline: u64) {
        if self.mode == TimerMode::TscDeadline {
            self.deadline = deadline;
            self.arm_deadline(now);
        }
    }

    /// Sets the TSC offset. From now on, the TSC is the virtual time in cycles plus `offset` (wrapping).
    pub fn set_tsc_offset(&mut self, now: u64, offset: u64) {
        self.tsc_offset = offset;
        if self.deadline != 0 {
            self.arm_deadline(now);
        }
    }

    fn arm_deadline(&mut self, now: u64) {
        let tsc = now.wrapping_add(self.tsc_offset);
        self.next = match self.deadline {
            0 => u64::MAX,
            deadline => now.saturating_add(deadline.saturating_sub(tsc)),
        };
    }

    fn begin(&mut self, clock: &TimerClock, now: u64, count: u32) {
        self.start = now;
        self.first = count;
        self.fired = 0;
        self.next = match count {
            0 => u64::MAX,
            _ => now.saturating_add(clock.cycles(count.into(), self.divisor())),
        };
    }

    /// Handles the expiries up to `now` and computes the next one. Several missed expiries count as one, as they do on hardware while the
    /// interrupt stays pending.
    pub fn expire(&mut self, clock: &TimerClock, now: u64) {
        self.next = u64::MAX;
        match self.mode {
            TimerMode::Periodic if self.initial != 0 => {
                let past = self.elapsed(clock, now).saturating_sub(self.first.into());
                self.fired = 1 + past / u64::from(self.initial);
                let ticks = u64::from(self.first) + self.fired.saturating_mul(self.initial.into());
                let cycles = clock.cycles(ticks, self.divisor());
                self.next = self.start.saturating_add(cycles);
            }
            TimerMode::TscDeadline => self.deadline = 0,
            _ => self.first = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> TimerClock {
        TimerClock {
            tsc: Hertz::new(2_900_000_000).unwrap(),
            input: Hertz::new(1_000_000_000).unwrap(),
        }
    }

    #[test]
    fn one_shot_expires_on_the_first_cycle_at_which_the_count_is_zero() {
        let (c, mut t) = (clock(), Timer::default());
        t.set_divide(&c, 0, 0b1011);
        t.set_initial(&c, 100, 10);
        assert_eq!(t.next(), 129);
        assert_eq!(
            (t.current(&c, 100), t.current(&c, 128), t.current(&c, 129)),
            (10, 1, 0)
        );
        t.expire(&c, 129);
        assert_eq!(
            (t.next(), t.current(&c, 500), t.initial()),
            (u64::MAX, 0, 10)
        );
    }

    #[test]
    fn all_divisors() {
        let (c, mut t) = (clock(), Timer::default());
        let codes = [
            (0b1011, 1),
            (0, 2),
            (1, 4),
            (2, 8),
            (3, 16),
            (8, 32),
            (9, 64),
            (10, 128),
        ];
        for (code, divisor) in codes {
            t.set_divide(&c, 0, code);
            t.set_initial(&c, 0, 1000);
            assert_eq!(t.next(), 2900 * divisor, "divide {code:#b}");
        }
    }

    #[test]
    fn periods_do_not_drift_and_missed_ones_merge() {
        let (c, mut t) = (clock(), Timer::default());
        t.set_mode(&c, 0, TimerMode::Periodic);
        t.set_divide(&c, 0, 0b1011);
        t.set_initial(&c, 0, 7);
        for k in 1..1000u64 {
            assert_eq!(t.next(), (7 * k * 29).div_ceil(10));
            t.expire(&c, t.next());
        }
        t.expire(&c, 29_000);
        assert_eq!(
            t.next(),
            (10_003u64 * 29).div_ceil(10),
            "10003 = 7 * 1429 is the first multiple after tick 10000"
        );
        assert_eq!(t.current(&c, 29_000), 3);
    }

    #[test]
    fn a_new_divisor_keeps_the_count_and_then_the_period() {
        let (c, mut t) = (clock(), Timer::default());
        t.set_mode(&c, 0, TimerMode::Periodic);
        t.set_divide(&c, 0, 0b1011);
        t.set_initial(&c, 0, 1000);
        t.set_divide(&c, 2610, 0);
        assert_eq!(t.current(&c, 2610), 100);
        assert_eq!(t.next(), 2610 + 580);
        t.expire(&c, t.next());
        assert_eq!(t.next(), 2610 + 580 + 5800);
    }

    /// Linux's KVM does the same (arch/x86/kvm/lapic.c, apic_update_lvtt): only TSC-deadline mode stops the count.
    #[test]
    fn the_count_goes_on_between_one_shot_and_periodic_mode() {
        let (c, mut t) = (clock(), Timer::default());
        t.set_divide(&c, 0, 0b1011);
        t.set_initial(&c, 0, 1000);
        t.set_mode(&c, 2030, TimerMode::Periodic);
        assert_eq!((t.current(&c, 2030), t.next()), (300, 2900));
        t.expire(&c, 2900);
        assert_eq!((t.current(&c, 2900), t.next()), (1000, 5800));
        t.expire(&c, 5800);
        t.set_mode(&c, 5829, TimerMode::OneShot);
        assert_eq!((t.current(&c, 5829), t.next()), (990, 8700));
        assert_eq!((t.current(&c, 8699), t.current(&c, 8700)), (1, 0));
        t.expire(&c, 8700);
        assert_eq!((t.current(&c, 9000), t.next()), (0, u64::MAX));
        t.set_mode(&c, 9000, TimerMode::Periodic);
        assert_eq!(
            (t.current(&c, 9500), t.next(), t.initial()),
            (0, u64::MAX, 1000),
            "a count that has ended does not begin again"
        );
        t.set_initial(&c, 9500, 10);
        t.set_mode(&c, 9500, TimerMode::TscDeadline);
        assert_eq!((t.current(&c, 9500), t.next()), (0, u64::MAX));
        t.set_mode(&c, 9500, TimerMode::Periodic);
        assert_eq!((t.current(&c, 9500), t.next()), (0, u64::MAX));
    }

    #[test]
    fn deadlines_follow_the_tsc_offset() {
        let mut t = Timer::default();
        t.set_deadline(0, 1000);
        assert_eq!(
            (t.next(), t.deadline()),
            (u64::MAX, 0),
            "another mode ignores it"
        );
        t.set_mode(&clock(), 0, TimerMode::TscDeadline);
        t.set_tsc_offset(0, 0u64.wrapping_sub(100));
        t.set_deadline(200, 1000);
        assert_eq!(t.next(), 1100);
        t.set_tsc_offset(300, 300);
        assert_eq!(t.next(), 700);
        t.set_initial(&clock(), 300, 5);
        assert_eq!((t.next(), t.initial()), (700, 0));
        t.set_divide(&clock(), 300, 3);
        assert_eq!(
            (t.next(), t.deadline()),
            (700, 1000),
            "a deadline stays armed"
        );
        t.expire(&clock(), 700);
        assert_eq!((t.next(), t.deadline()), (u64::MAX, 0));
        t.set_deadline(800, 5);
        assert_eq!(t.next(), 800, "a deadline in the past expires at once");
        t.set_mode(&clock(), 800, TimerMode::OneShot);
        assert_eq!((t.next(), t.deadline()), (u64::MAX, 0));
    }
}
