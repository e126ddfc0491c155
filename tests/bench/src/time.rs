//! Measurement of host time.

use std::time::Instant;

/// Wall and processor time of an interval, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Wall time; NaN where only processor time was measured.
    pub wall: f64,
    /// Processor time, summed over all threads.
    pub cpu: f64,
}

/// A point in time, with the processor time that a process had used until then.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    wall: Instant,
    cpu: f64,
}

impl Point {
    /// Returns the present point in time, with this process's processor time.
    pub fn now() -> Self {
        let mut t = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `t` is valid for the call to write.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
        Self::with_cpu(t.tv_sec as f64 + 1e-9 * t.tv_nsec as f64)
    }

    /// Returns the present point in time, with a given processor time in seconds.
    pub fn with_cpu(cpu: f64) -> Self {
        Self {
            wall: Instant::now(),
            cpu,
        }
    }

    /// Returns the time spent from this point to a later one.
    pub fn to(self, end: Self) -> Spent {
        Spent {
            wall: (end.wall - self.wall).as_secs_f64(),
            cpu: end.cpu - self.cpu,
        }
    }
}

/// Returns the processor time of another process, summed over all threads, in seconds; `None` if the process has ended.
pub fn of_process(pid: u32) -> Option<f64> {
    let mut clock = 0;
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `clock` and `t` are valid for the calls to write. For a process that has ended the calls only return an error.
    let failed = unsafe {
        libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) != 0
            || libc::clock_gettime(clock, &mut t) != 0
    };
    (!failed).then_some(t.tv_sec as f64 + 1e-9 * t.tv_nsec as f64)
}

/// Returns the middle of an odd number of values, or the lower middle of an even number; NaN if there are no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => values[(n - 1) / 2],
    }
}

/// Returns the lower and the upper quartile, without interpolation; NaN if there are no values.
pub fn quartiles(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => (f64::NAN, f64::NAN),
        n => (values[(n - 1) / 4], values[n - 1 - (n - 1) / 4]),
    }
}

/// Returns the geometric mean; NaN if there are no values.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, n) = values
        .into_iter()
        .fold((0.0, 0), |(sum, n), v| (sum + f64::ln(v), n + 1));
    (sum / f64::from(n)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_of_few_values() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.0);
        assert!(median([]).is_nan());
        assert_eq!(quartiles([5.0, 1.0, 4.0, 2.0, 3.0]), (2.0, 4.0));
        assert_eq!(quartiles([7.0]), (7.0, 7.0));
        assert!(quartiles([]).0.is_nan());
        assert!((geometric_mean([2.0, 8.0]) - 4.0).abs() < 1e-12);
        assert!(geometric_mean([]).is_nan());
    }
}
