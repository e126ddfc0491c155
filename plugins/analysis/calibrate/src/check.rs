//! Check of fitted costs: patterns of messages are predicted for one network from their trace on another, and compared with their times there.

use nodescope_hypercall::Function;
use nodescope_loop_tree::{Program, SequenceOptions, Sequences};
use nodescope_predict::{Cluster, FitError, Options, Outcome, interpret};

/// Number of patterns that `measure check` runs.
const PATTERNS: usize = 30;

/// Names of the patterns, by kind; each kind has as many sizes.
const KINDS: [&str; 5] = ["borders", "a wave", "sums", "broadcasts", "all to all"];

/// Predicted and measured times of patterns of messages, none of which the costs were fitted to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checked {
    /// Predicted over measured time of each pattern.
    pub ratios: Vec<f64>,
    /// Root of the mean square of the relative differences between the ranks' computation in both runs.
    pub computation: f64,
}

/// Returns the options by which sequences of `measure check` have a mark before each pattern and after the last.
pub fn sequence_options(program: usize) -> SequenceOptions {
    SequenceOptions {
        program: Some(program),
        marks: (1..=PATTERNS as u64 + 1)
            .map(|number| (Function::Barrier, number))
            .collect(),
        ..SequenceOptions::default()
    }
}

/// Predicts the patterns of `elsewhere` for a cluster, and compares the times with those of `there`, which was traced on such a cluster. Returns
/// `None` if a run did not come to its end.
///
/// # Errors
///
/// Ranks that do not fit on the cluster.
pub fn check(
    elsewhere: &Sequences,
    there: &Sequences,
    cluster: &Cluster,
) -> Result<Option<Checked>, FitError> {
    let options = Options {
        critical_path: false,
        links: 0,
        ..Options::default()
    };
    let interpreted = |sequences: &Sequences| {
        let program = Program::new(sequences);
        interpret(&nodescope_predict::Code::new(&program), cluster, &options)
    };
    let (predicted, again) = (interpreted(elsewhere)?, interpreted(there)?);
    let measured: Option<Vec<(u64, u64)>> = there.marks.iter().copied().collect();
    let Some(measured) = measured.filter(|marks| marks.len() == predicted.marks.len()) else {
        return Ok(None);
    };
    let times = |marks: &[(u64, u64)]| -> Vec<f64> {
        let sections = marks.windows(2);
        sections
            .map(|ends| ends[1].1.saturating_sub(ends[0].0) as f64)
            .collect()
    };
    let (predicted_times, measured_times) = (times(&predicted.marks), times(&measured));
    if !predicted.complete() || measured_times.len() != PATTERNS || measured_times.contains(&0.0) {
        return Ok(None);
    }
    let computed = |outcome: &Outcome| -> Vec<f64> {
        let ranks = outcome.ranks.iter();
        ranks.map(|rank| rank.computation as f64).collect()
    };
    let computation = computed(&predicted);
    let differences = (computation.iter().zip(computed(&again)))
        .filter(|&(_, other)| other > 0.0)
        .map(|(one, other)| one / other - 1.0);
    Ok(Some(Checked {
        ratios: (predicted_times.iter().zip(&measured_times))
            .map(|(predicted, measured)| predicted / measured)
            .collect(),
        computation: rms(differences),
    }))
}

fn rms(values: impl Iterator<Item = f64>) -> f64 {
    let squares: Vec<f64> = values.map(|value| value * value).collect();
    (squares.iter().sum::<f64>() / squares.len().max(1) as f64).sqrt()
}

impl Checked {
    /// Returns the relative standard deviation of the errors, at most 1: that of a normal distribution with the same mean absolute error,
    /// so that a single pattern does not decide.
    pub fn messages(&self) -> f64 {
        let errors = self.errors().map(f64::abs);
        let mean = errors.sum::<f64>() / self.ratios.len().max(1) as f64;
        (mean * std::f64::consts::FRAC_PI_2.sqrt()).min(1.0)
    }

    fn errors(&self) -> impl Iterator<Item = f64> {
        self.ratios.iter().map(|ratio| ratio - 1.0)
    }

    /// Returns the errors in words: all patterns, then each kind.
    pub fn summary(&self) -> String {
        let mean = |ratios: &[f64]| {
            let errors = ratios.iter().map(|ratio| (ratio - 1.0).abs());
            100.0 * errors.sum::<f64>() / ratios.len().max(1) as f64
        };
        let most = self.errors().fold(0.0, |most: f64, error| {
            if error.abs() > most.abs() {
                error
            } else {
                most
            }
        });
        let sizes = self.ratios.len().div_ceil(KINDS.len()).max(1);
        let kinds = KINDS.iter().zip(self.ratios.chunks(sizes));
        let kinds = kinds.map(|(name, ratios)| format!("{name} {:.1} %", mean(ratios)));
        format!(
            "{} patterns, off by {:.1} % in the mean ({}), by {:+.1} % at most",
            self.ratios.len(),
            mean(&self.ratios),
            kinds.collect::<Vec<_>>().join(", "),
            100.0 * most
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_by_kind() {
        let checked = Checked {
            ratios: [1.1, 0.9, 1.0, 1.0, 0.8].repeat(6),
            computation: 0.0,
        };
        assert!((checked.messages() - 0.08 * std::f64::consts::FRAC_PI_2.sqrt()).abs() < 1e-12);
        assert!(
            checked
                .summary()
                .starts_with("30 patterns, off by 8.0 % in the mean (borders ")
        );
        assert!(checked.summary().ends_with("by -20.0 % at most"));
        assert_eq!(Checked::default().messages(), 0.0);
    }
}
