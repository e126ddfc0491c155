//! Models of what a program does as functions of its problem size n and its number of ranks p together.
//!
//! Several runs of one program are compared by region: the whole program, each computation between two calls, and each call. Each metric
//! of a region is a mean over ranks, and is fitted as a function of n and p.
//!
//! - [`fit`]: functions of two parameters.
//! - [`measure`]: metrics of a run.
//! - `text`: models as text, and the data as Extra-P reads them.

pub mod fit;
pub mod measure;

mod text;

pub use text::extra_p;

use std::collections::BTreeMap;

use serde::Serialize;

use fit::{Fit2, Sample};
use measure::{Measured, Metric, Region};

/// A run: its parameters and what it did.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Number of ranks.
    pub ranks: f64,
    /// Problem size.
    pub size: f64,
    /// Values of the metrics.
    pub measured: Measured,
}

/// Reason for which runs have no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// Too few values of the parameters.
    #[error(
        "the runs have {ranks} numbers of ranks and {sizes} values of {name}; give at least three different values of one of them, and one or at least three of the other"
    )]
    Few {
        /// Number of different numbers of ranks.
        ranks: usize,
        /// Number of different problem sizes.
        sizes: usize,
        /// Name of the problem size.
        name: String,
    },
    /// No line of runs that differ in one parameter alone.
    #[error(
        "no three runs differ in {name} alone; give runs with at least three values of it and an equal value of the other parameter"
    )]
    NoLine {
        /// Name of the parameter.
        name: String,
    },
}

/// Model of a metric of a region.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Model {
    /// The region.
    pub region: Region,
    /// The metric.
    pub metric: Metric,
    /// The function.
    pub fit: Fit2,
    /// The function as text.
    pub function: String,
    /// Share of the region in the program's time in the run with the longest time; `None` for metrics other than times.
    pub share: Option<f64>,
    /// Values of the function for the requested parameters.
    pub at: Vec<f64>,
}

/// Models of several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Models {
    /// Version of this format.
    pub format: u32,
    /// Name of the problem size.
    pub size: String,
    /// Number of ranks and problem size of each run.
    pub runs: Vec<(f64, f64)>,
    /// Number of ranks and problem size for which the functions' values were requested.
    pub at: Vec<(f64, f64)>,
    /// Models: times by share, then the other metrics.
    pub models: Vec<Model>,
    /// Regions that do not occur in all runs.
    pub left_out: Vec<Region>,
    /// Notes on results that are less exact than possible.
    pub notes: Vec<String>,
}

/// Fits all metrics of runs. `name` is the name of the problem size; `at` has numbers of ranks and problem sizes for which values are
/// requested.
///
/// # Errors
///
/// Runs with too few values of the parameters.
pub fn models(runs: &[Run], name: &str, at: &[(f64, f64)]) -> Result<Models, ModelError> {
    let distinct = |of: fn(&Run) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values.len()
    };
    let (ranks, sizes) = (distinct(|run| run.ranks), distinct(|run| run.size));
    let fits = |count: usize| count == 1 || count >= 3;
    if !fits(ranks) || !fits(sizes) || ranks.max(sizes) < 3 {
        return Err(ModelError::Few {
            ranks,
            sizes,
            name: name.to_owned(),
        });
    }
    let mut values: BTreeMap<(Metric, Region), Vec<Sample>> = BTreeMap::new();
    for run in runs {
        for (key, value) in &run.measured.values {
            values.entry(key.clone()).or_default().push(Sample {
                ranks: run.ranks,
                size: run.size,
                value: *value,
            });
        }
    }
    let longest = runs
        .iter()
        .max_by(|a, b| a.measured.time.total_cmp(&b.measured.time));
    let (mut models, mut left_out) = (Vec::new(), Vec::new());
    for ((metric, region), samples) in values {
        if samples.len() < runs.len() {
            left_out.push(region);
            continue;
        }
        let fit = Fit2::new(&samples).map_err(|ranks| ModelError::NoLine {
            name: if ranks {
                "p".to_owned()
            } else {
                name.to_owned()
            },
        })?;
        let share = longest.filter(|_| metric == Metric::Time).map(|run| {
            let key = (metric, region.clone());
            let of = run.measured.values.get(&key).copied().unwrap_or(0.0);
            of / run.measured.time.max(f64::MIN_POSITIVE)
        });
        models.push(Model {
            function: fit.text(name),
            at: at.iter().map(|&(p, n)| fit.at(p, n)).collect(),
            region,
            metric,
            fit,
            share,
        });
    }
    models.sort_by(|a, b| {
        let order = (a.metric, b.share.unwrap_or(0.0));
        (order.0.cmp(&b.metric))
            .then(order.1.total_cmp(&a.share.unwrap_or(0.0)))
            .then(a.region.cmp(&b.region))
    });
    left_out.sort();
    left_out.dedup();
    Ok(Models {
        format: 1,
        size: name.to_owned(),
        runs: runs.iter().map(|run| (run.ranks, run.size)).collect(),
        at: at.to_vec(),
        models,
        left_out,
        notes: Vec::new(),
    })
}
