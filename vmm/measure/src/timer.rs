//! Time of the thread, the time-stamp counter, and the clock of the core.

use std::arch::asm;
use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::time::{Duration, Instant};

use crate::statistics::{Measurement, quantile};

/// Dependent additions of a yardstick: about 50 us.
const YARDSTICK: u64 = 160_000;
/// Dependent additions of a round of the loop. The loop's own count and jump run beside them.
const ADDS_A_ROUND: u64 = 64;

/// A time in both units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Cycles of the core.
    pub cycles: Measurement<f64>,
    /// Nanoseconds.
    pub nanoseconds: Measurement<f64>,
}

impl Reading {
    /// Returns the difference of two times, at least 0.
    pub fn minus(self, other: Self) -> Self {
        Self {
            cycles: self.cycles.minus(other.cycles),
            nanoseconds: self.nanoseconds.minus(other.nanoseconds),
        }
    }

    /// Returns the time divided by a number of steps.
    pub fn divided(self, steps: f64) -> Self {
        Self {
            cycles: self.cycles.times(1.0 / steps),
            nanoseconds: self.nanoseconds.times(1.0 / steps),
        }
    }
}

/// How often and for how long something runs.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Number of timed runs.
    pub runs: usize,
    /// Length of each in nanoseconds, so short that most runs meet no interrupt.
    pub length: u64,
}

impl Effort {
    /// For what the core does by itself.
    pub const CORE: Self = Self {
        runs: 61,
        length: 200_000,
    };
    /// For what goes through caches and memory.
    pub const MEMORY: Self = Self {
        runs: 15,
        length: 1_500_000,
    };
}

/// Rates of the clocks.
#[derive(Debug, Clone, PartialEq)]
pub struct ClockReading {
    /// Clock of the core in GHz.
    pub core: Measurement<f64>,
    /// Slowest and fastest of all yardsticks, without the 2 % at each end, in GHz.
    pub range: (f64, f64),
    /// Rate of the time-stamp counter in GHz.
    pub tsc: f64,
}

/// Times runs on the thread that owns it, and the clock of the core between them.
#[derive(Debug)]
pub struct Timer {
    /// GHz of every yardstick.
    clocks: Vec<f64>,
    /// Time-stamp counter and time at the beginning.
    start: (u64, Instant),
    /// Ticks between two readings of the counter with nothing between.
    overhead: u64,
    /// The same for the thread's clock, in nanoseconds.
    clock_overhead: u64,
}

impl Timer {
    /// Makes a timer, and warms the core up.
    pub fn new() -> Self {
        let mut timer = Self {
            clocks: Vec::new(),
            start: (ticks(), Instant::now()),
            overhead: (0..1000)
                .map(|_| ticks().abs_diff(ticks()))
                .min()
                .unwrap_or(0),
            clock_overhead: (0..1000)
                .map(|_| thread_time().abs_diff(thread_time()))
                .min()
                .unwrap_or(0),
        };
        while timer.start.1.elapsed() < Duration::from_millis(100) {
            timer.yardstick();
        }
        timer.clocks.clear();
        for _ in 0..200 {
            timer.yardstick();
        }
        timer
    }

    /// Times dependent additions, each of which takes a cycle, and returns the clock of the core in GHz.
    fn yardstick(&mut self) -> f64 {
        let before = thread_time();
        dependent_additions(YARDSTICK);
        let lasted = (thread_time() - before).saturating_sub(self.clock_overhead);
        let clock = YARDSTICK as f64 / lasted.max(1) as f64;
        self.clocks.push(clock);
        clock
    }

    /// Times `body`, whose argument is how many steps it does, and returns the time of a step. `block` divides all numbers of steps.
    pub fn time(&mut self, effort: Effort, block: u64, mut body: impl FnMut(u64)) -> Reading {
        let steps = steps_of(effort.length, block, &mut body);
        let mut times = Vec::with_capacity(effort.runs);
        for _ in 0..effort.runs {
            let before = thread_time();
            body(steps);
            let lasted = (thread_time() - before).saturating_sub(self.clock_overhead);
            times.push(lasted as f64 / steps as f64);
            self.yardstick();
        }
        self.reading(Measurement::of_times(&times))
    }

    /// Returns a time as a reading, with the clock of all yardsticks so far. Single yardsticks are slower where another thread of the core
    /// works, which is no change of the clock.
    fn reading(&self, nanoseconds: Measurement<f64>) -> Reading {
        let clock = Measurement::of_rates(&self.clocks).value;
        Reading {
            cycles: nanoseconds.times(clock),
            nanoseconds,
        }
    }

    /// Times `runs` short runs of `body`, each after `prepare`, and returns the time of one of its `steps`.
    ///
    /// The time-stamp counter tells the time, since the clock of the thread takes as long to read as a short run lasts. A run in which the
    /// thread loses the CPU is too long, but few are hit.
    pub fn sample(
        &mut self,
        runs: usize,
        steps: u64,
        prepare: impl FnMut(),
        body: impl FnMut(),
    ) -> Reading {
        let times = self.times(runs, steps, prepare, body);
        self.reading(Measurement::of_times(&times))
    }

    /// The same for what is not only slower when it is disturbed: the median takes the place of the lower decile.
    pub fn median(
        &mut self,
        runs: usize,
        steps: u64,
        prepare: impl FnMut(),
        body: impl FnMut(),
    ) -> Reading {
        let times = self.times(runs, steps, prepare, body);
        self.reading(Measurement::median(&times))
    }

    fn times(
        &mut self,
        runs: usize,
        steps: u64,
        mut prepare: impl FnMut(),
        mut body: impl FnMut(),
    ) -> Vec<f64> {
        let tsc = self.tsc();
        let mut times = Vec::with_capacity(runs);
        for run in 0..runs {
            prepare();
            let before = ticks();
            body();
            let lasted = (ticks() - before).saturating_sub(self.overhead);
            times.push(lasted as f64 / tsc / steps as f64);
            if run % 10 == 0 {
                self.yardstick();
            }
        }
        times
    }

    /// Returns the rate of the time-stamp counter in GHz, against the system's clock since the timer was made.
    fn tsc(&self) -> f64 {
        let (first, start) = self.start;
        (ticks() - first) as f64 / start.elapsed().as_nanos() as f64
    }

    /// Returns the rates of the clocks over all that was timed.
    pub fn clock(&self) -> ClockReading {
        let mut sorted = self.clocks.clone();
        sorted.sort_by(f64::total_cmp);
        ClockReading {
            core: Measurement::of_rates(&sorted),
            range: (quantile(&sorted, 0.02), quantile(&sorted, 0.98)),
            tsc: self.tsc(),
        }
    }
}

/// Returns how many steps of `body` take about `length` nanoseconds: a multiple of `block`.
pub fn steps_of(length: u64, block: u64, body: &mut impl FnMut(u64)) -> u64 {
    let mut steps = block;
    loop {
        let before = thread_time();
        body(steps);
        let time = (thread_time() - before).max(1);
        if time >= length / 4 {
            let whole = u128::from(steps) * u128::from(length) / u128::from(time);
            return (whole as u64 / block).max(1) * block;
        }
        steps *= 2;
    }
}

/// Returns the processor time of this thread in nanoseconds. Time in which other threads run on the CPU is not part of it.
pub fn thread_time() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of this function. The clock exists on every Linux, so that the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the time-stamp counter when all earlier instructions have executed and no later one has.
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has these instructions, and Linux lets programs execute them.
    unsafe {
        _mm_lfence();
        let ticks = _rdtsc();
        _mm_lfence();
        ticks
    }
}

/// Executes `count` additions, each of which needs the sum before it.
///
/// Both operands are registers, since some cores add constants when they rename registers, several in a cycle.
fn dependent_additions(count: u64) {
    // SAFETY: the loop changes the three registers that it names and the flags.
    unsafe {
        asm!(
            "2:",
            ".rept {block}",
            "add {sum}, {addend}",
            ".endr",
            "dec {rounds}",
            "jnz 2b",
            block = const ADDS_A_ROUND,
            sum = inout(reg) 0_u64 => _,
            addend = in(reg) 3_u64,
            rounds = inout(reg) (count / ADDS_A_ROUND).max(1) => _,
            options(nomem, nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_fill_the_length_in_whole_blocks() {
        let mut spin = |steps: u64| dependent_additions(steps * 1000);
        let steps = steps_of(100_000, 8, &mut spin);
        assert!(steps >= 8 && steps.is_multiple_of(8), "{steps}");
    }

    #[test]
    fn both_clocks_go_forward() {
        let (time, tick) = (thread_time(), ticks());
        dependent_additions(100_000);
        assert!(thread_time() > time && ticks() > tick);
    }
}
