//! How well the clock of a sampled window is known.

use nodescope_plugin_api::Interval;
use nodescope_window::WindowRecord;
use serde::Serialize;

use crate::units::{si, time};

/// The intervals of a sampled window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SampledReport {
    /// Number of intervals.
    pub intervals: u64,
    /// Length of all intervals in virtual time, picoseconds.
    pub measured_ps: u64,
    /// Length of the window behind its warm-up in virtual time, picoseconds.
    pub window_ps: u64,
    /// Instructions of all intervals.
    pub instructions: u64,
    /// Relative difference of the costs of code, as they were learned before each interval, from what each interval has measured; `None`
    /// without intervals. The first part of this sum has code that was not known yet.
    pub clock_difference: Option<f64>,
    /// Half the width of the interval in which the difference lies with a probability of 95 %; `None` for fewer than three intervals.
    pub clock_difference_interval: Option<f64>,
}

/// Returns the report of a window; `None` if the window was not sampled.
pub(crate) fn report(record: &WindowRecord) -> Option<SampledReport> {
    record.spec.sampling?;
    let mut intervals: Vec<Interval> = Vec::new();
    for node in record.nodes.iter().filter_map(|node| node.core.as_ref()) {
        intervals.resize(
            intervals.len().max(node.intervals.len()),
            Interval::default(),
        );
        for (sum, of_node) in intervals.iter_mut().zip(&node.intervals) {
            sum.instructions += of_node.instructions;
            sum.cycles += of_node.cycles;
            sum.predicted += of_node.predicted;
        }
    }
    let (difference, half) = difference(&intervals);
    Some(SampledReport {
        intervals: intervals.len() as u64,
        measured_ps: record.measured_ps(),
        window_ps: record.closed_ps.saturating_sub(record.measured_from()),
        instructions: intervals.iter().map(|interval| interval.instructions).sum(),
        clock_difference: difference,
        clock_difference_interval: half,
    })
}

/// Returns the ratio of predicted to measured cycles less one, and half the width of its 95 % interval: the ratio estimator of W. G. Cochran,
/// Sampling Techniques, 3rd edition, section 6.4, by the normal distribution.
fn difference(intervals: &[Interval]) -> (Option<f64>, Option<f64>) {
    let measured: f64 = intervals.iter().map(|of| of.cycles as f64).sum();
    let predicted: f64 = intervals.iter().map(|of| of.predicted as f64).sum();
    if measured == 0.0 {
        return (None, None);
    }
    let ratio = predicted / measured;
    let count = intervals.len() as f64;
    let half = (intervals.len() > 2).then(|| {
        let residuals = intervals
            .iter()
            .map(|of| of.predicted as f64 - ratio * of.cycles as f64);
        let squares: f64 = residuals.map(|residual| residual * residual).sum();
        1.96 * (squares * count / (count - 1.0)).sqrt() / measured
    });
    (Some(ratio - 1.0), half)
}

impl SampledReport {
    /// Returns the number of intervals, and how well the clock between them is known, in a few words.
    pub(crate) fn brief(&self) -> String {
        let error = match (self.clock_difference, self.clock_difference_interval) {
            (Some(difference), Some(half)) => format!(
                "error of the clock {:+.1} % ± {:.1} % (95 %)",
                100.0 * difference,
                100.0 * half
            ),
            _ => "too few to tell the error of the clock".to_owned(),
        };
        let share = self.measured_ps as f64 / (self.window_ps as f64).max(1.0);
        format!(
            "{} intervals, {:.1} % of it, {error}",
            self.intervals,
            100.0 * share
        )
    }

    /// Returns sentences for the report.
    pub(crate) fn lines(&self) -> Vec<String> {
        let share = self.measured_ps as f64 / (self.window_ps as f64).max(1.0);
        let mut lines = vec![format!(
            "Sampled: {} intervals with {} instructions, {} or {:.1} % of the window's virtual time. All counts below are of these intervals. Between intervals the clock advances by the costs of code that earlier intervals measured.",
            self.intervals,
            si(self.instructions as f64),
            time(self.measured_ps as f64),
            100.0 * share,
        )];
        if let Some(difference) = self.clock_difference {
            let half = match self.clock_difference_interval {
                Some(half) => format!(" ± {:.1} % (95 %)", 100.0 * half),
                None => String::new(),
            };
            lines.push(format!(
                "Error of the clock, estimated: the costs that were used before an interval differ from those that the interval measured by {:+.1} %{half}.",
                100.0 * difference
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_that_of_the_sums() {
        let of = |cycles, predicted| Interval {
            instructions: 1,
            cycles,
            predicted,
        };
        let (difference, half) = difference(&[of(100, 110), of(100, 90), of(200, 220)]);
        assert!((difference.unwrap() - 0.05).abs() < 1e-12);
        // Residuals 5, -15 and 10.
        assert!((half.unwrap() - 1.96 * (350.0_f64 * 1.5).sqrt() / 400.0).abs() < 1e-12);
        assert_eq!(super::difference(&[]), (None, None));
    }
}
