//! The characteristics of an interval.

use serde::Serialize;

use crate::record::{Record, STATES, State};

/// Time that processors lost in parallel regions, by cause, in nanoseconds summed over processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Waiting at explicit barriers, and at the ends of regions that do not end with a work-sharing construct.
    pub barrier: u128,
    /// Waiting for locks.
    pub lock: u128,
    /// Waiting for critical and atomic constructs.
    pub critical: u128,
    /// Waiting for ordered constructs and for other iterations of doacross loops.
    pub ordered: u128,
    /// Waiting for tasks, in taskwait and at the end of a taskgroup.
    pub task: u128,
    /// Time of all threads of a team but the primary one outside of work-sharing constructs, and before they run the region's code.
    pub insufficient_parallelism: u128,
    /// Waiting at the ends of work-sharing constructs, and in flushes.
    pub desynchronisation: u128,
}

impl Lost {
    /// Returns the parts with their names, as in the JSON output.
    pub fn parts(&self) -> [(&'static str, u128); 7] {
        [
            ("barrier", self.barrier),
            ("lock", self.lock),
            ("critical", self.critical),
            ("ordered", self.ordered),
            ("task", self.task),
            ("insufficient parallelism", self.insufficient_parallelism),
            ("desynchronisation", self.desynchronisation),
        ]
    }

    /// Returns the sum of all parts.
    pub fn sum(&self) -> u128 {
        self.parts().iter().map(|part| part.1).sum()
    }

    fn of(ticks: &[u128; STATES]) -> Lost {
        let at = |state: State| ticks[state as usize];
        Lost {
            barrier: at(State::WaitBarrier),
            lock: at(State::WaitLock),
            critical: at(State::WaitCritical),
            ordered: at(State::WaitOrdered),
            task: at(State::WaitTask),
            insufficient_parallelism: at(State::Start) + at(State::Replicated),
            desynchronisation: at(State::WaitDesync) + at(State::WaitFlush),
        }
    }

    fn map(self, f: impl Fn(u128) -> u128) -> Lost {
        Lost {
            barrier: f(self.barrier),
            lock: f(self.lock),
            critical: f(self.critical),
            ordered: f(self.ordered),
            task: f(self.task),
            insufficient_parallelism: f(self.insufficient_parallelism),
            desynchronisation: f(self.desynchronisation),
        }
    }
}

/// A part of a whole, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Ratio(pub f64);

impl Ratio {
    /// Returns the ratio of `part` to `whole`. Returns 1 if `whole` is 0.
    pub fn of(part: u128, whole: u128) -> Ratio {
        if whole == 0 {
            Ratio(1.0)
        } else {
            Ratio(part as f64 / whole as f64)
        }
    }
}

/// The characteristics of an interval over `processors` processors. Times are nanoseconds; `productive + idle + lost.sum() == total` exactly.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Characteristics {
    /// Number of processors: the most threads that were active at once in the process, unless the user gives another number.
    pub processors: u32,
    /// Execution time of the interval.
    pub execution: u128,
    /// Execution time times processors.
    pub total: u128,
    /// Time in which processors did work that serves the result.
    pub productive: u128,
    /// Time in which processors had no thread in a parallel region and no thread with serial work.
    pub idle: u128,
    /// Time lost in regions.
    pub lost: Lost,
    /// Sum of the lost time's parts.
    pub lost_sum: u128,
    /// Productive time divided by total time.
    pub efficiency: Ratio,
}

impl Characteristics {
    /// Computes characteristics from an execution time and times by state, all in ticks. `nanoseconds` converts ticks, with rounding. The
    /// productive time takes up what rounding changes, so that the parts give exactly the total.
    pub fn new(
        execution: u128,
        processors: u32,
        ticks: &[u128; STATES],
        nanoseconds: impl Fn(u128) -> u128 + Copy,
    ) -> Characteristics {
        let execution_ns = nanoseconds(execution);
        let total = execution_ns * u128::from(processors);
        let busy: u128 = ticks.iter().sum();
        let whole = execution * u128::from(processors);
        let idle = nanoseconds(whole.saturating_sub(busy));
        let mut lost = Lost::of(ticks).map(nanoseconds);
        // Clocks that differ between processors, or fewer processors than threads, might make the parts exceed the whole.
        let mut left = total.saturating_sub(idle.min(total));
        let mut take = |part: &mut u128| {
            *part = (*part).min(left);
            left -= *part;
        };
        for part in [
            &mut lost.barrier,
            &mut lost.lock,
            &mut lost.critical,
            &mut lost.ordered,
            &mut lost.task,
            &mut lost.insufficient_parallelism,
            &mut lost.desynchronisation,
        ] {
            take(part);
        }
        let productive = left;
        Characteristics {
            processors,
            execution: execution_ns,
            total,
            productive,
            idle: idle.min(total),
            lost,
            lost_sum: lost.sum(),
            efficiency: Ratio::of(productive, total),
        }
    }

    /// Computes the characteristics of an interval of a record.
    pub fn of_interval(record: &Record, interval: usize, processors: u32) -> Characteristics {
        let within = record.within(interval);
        let mut sum = [0; STATES];
        for cells in record.threads.iter().map(|thread| &thread.cells) {
            for cell in cells.iter().filter(|cell| within[cell.interval]) {
                add(&mut sum, &cell.ticks);
            }
        }
        Characteristics::new(
            u128::from(record.intervals[interval].total),
            processors,
            &sum,
            |ticks| record.clock.nanoseconds(ticks),
        )
    }
}

/// Adds times by state.
pub(crate) fn add(sum: &mut [u128; STATES], ticks: &[u64; STATES]) {
    for (sum, ticks) in sum.iter_mut().zip(ticks) {
        *sum += u128::from(*ticks);
    }
}
