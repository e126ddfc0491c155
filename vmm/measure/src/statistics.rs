//! Values of repeated runs.

/// A value of repeated runs, and by how much the runs differ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measurement<T> {
    /// The value: the lower decile of times, the upper decile of rates.
    pub value: T,
    /// Distance of the quartiles as a share of the value. Half of the runs lie between the quartiles.
    pub spread: f64,
}

impl Measurement<f64> {
    /// Returns the lower decile of these times, since noise only ever adds to a time, and may be there most of the time. The minimum is not
    /// taken, since a hypervisor's correction for stolen time can make a single time too short.
    pub fn of_times(times: &[f64]) -> Self {
        let sorted = sorted(times);
        Self::between(&sorted, quantile(&sorted, 0.1))
    }

    /// Returns the upper decile of these rates, for the same reason.
    pub fn of_rates(rates: &[f64]) -> Self {
        let sorted = sorted(rates);
        Self::between(&sorted, quantile(&sorted, 0.9))
    }

    /// Returns the median.
    pub fn median(values: &[f64]) -> Self {
        let sorted = sorted(values);
        Self::between(&sorted, quantile(&sorted, 0.5))
    }

    fn between(sorted: &[f64], value: f64) -> Self {
        let distance = quantile(sorted, 0.75) - quantile(sorted, 0.25);
        let spread = if value == 0.0 { 0.0 } else { distance / value };
        Self { value, spread }
    }

    /// Returns the value in another unit.
    pub fn times(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            ..self
        }
    }

    /// Returns the difference of two values. The spread is that of both, as a share of the difference, and the difference is at least 0.
    pub fn minus(self, other: Self) -> Self {
        let value = (self.value - other.value).max(0.0);
        let distance = self.value * self.spread + other.value * other.spread;
        Self {
            value,
            spread: if value == 0.0 { 0.0 } else { distance / value },
        }
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the quantile `share` of sorted values by linear interpolation, and 0 of no values.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let place = share * last as f64;
    let below = sorted[place.floor() as usize];
    let above = sorted[place.ceil() as usize];
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deciles_leave_disturbed_runs_out() {
        let times = Measurement::of_times(&[50.0, 10.0, 11.0, 10.0, 900.0]);
        assert_eq!(times.value, 10.0);
        assert_eq!(times.spread, 4.0);
        let rates = Measurement::of_rates(&[5.0, 10.0, 9.0, 10.0, 1.0]);
        assert_eq!((rates.value, rates.spread), (10.0, 0.5));
        assert_eq!(
            Measurement::median(&[3.0, 1.0, 2.0]),
            Measurement {
                value: 2.0,
                spread: 0.5
            }
        );
        assert_eq!(
            Measurement::of_times(&[]),
            Measurement {
                value: 0.0,
                spread: 0.0
            }
        );
    }

    #[test]
    fn a_difference_has_the_spread_of_both_values() {
        let long = Measurement {
            value: 20.0,
            spread: 0.1,
        };
        let short = Measurement {
            value: 10.0,
            spread: 0.1,
        };
        let difference = long.minus(short);
        assert_eq!(difference.value, 10.0);
        assert!((difference.spread - 0.3).abs() < 1e-9);
        assert_eq!(short.minus(long).value, 0.0);
        assert_eq!(
            short.times(3.0),
            Measurement {
                value: 30.0,
                spread: 0.1
            }
        );
    }
}
