//! Comparison of the runs of one program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::point::{Group, Point};

/// The runs of all programs, by program and number of nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    /// Version of the JSON output: [`Analysis::VERSION`].
    pub version: u32,
    /// Series in the order of their names.
    pub series: Vec<Series>,
}

/// The runs of one program on growing numbers of nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name of the studies, without `-` and the number of nodes at its end.
    pub name: String,
    /// Runs in the order of their numbers of nodes.
    pub points: Vec<Point>,
    /// Variation of each group of CPI terms, in the order of equation (1); empty if fewer than two runs have a window.
    pub spreads: Vec<Spread>,
    /// Host cost of a larger cluster; `None` if it was not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
}

/// Variation of a group of CPI terms over all numbers of nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// `core`, `caches`, `memory`, `mpi`, or `total`.
    pub term: String,
    /// Least CPI of the group in a run.
    pub least: f64,
    /// Largest CPI of the group in a run.
    pub largest: f64,
    /// Mean CPI of the group, each run counted once.
    pub mean: f64,
    /// (largest - least) / mean; 0 if the mean is 0.
    pub relative: f64,
}

/// Reason for which runs cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnalysisError {
    /// The list of runs is empty.
    #[error("there are no runs; give the results folders of at least one")]
    Empty,
    /// Two runs of one program have the same number of nodes.
    #[error(
        "studies {one} and {other} are both runs of {series} on {nodes} nodes; leave out one, or give one another study.name"
    )]
    Twice {
        /// Name of the series.
        series: String,
        /// Number of nodes of both runs.
        nodes: u32,
        /// Name of one study.
        one: String,
        /// Name of the other study.
        other: String,
    },
}

impl Analysis {
    /// The version of the JSON that this program writes and reads.
    pub const VERSION: u32 = 1;

    /// Sorts runs into series by program and number of nodes.
    ///
    /// # Errors
    ///
    /// Fails if there are no runs, or if two runs of one program have the same number of nodes.
    pub fn new(points: Vec<Point>) -> Result<Analysis, AnalysisError> {
        if points.is_empty() {
            return Err(AnalysisError::Empty);
        }
        let mut series: BTreeMap<String, BTreeMap<u32, Point>> = BTreeMap::new();
        for point in points {
            let name = series_name(&point);
            let by_nodes = series.entry(name.clone()).or_default();
            if let Some(other) = by_nodes.get(&point.nodes) {
                return Err(AnalysisError::Twice {
                    series: name,
                    nodes: point.nodes,
                    one: other.study.clone(),
                    other: point.study,
                });
            }
            by_nodes.insert(point.nodes, point);
        }
        let series = series
            .into_iter()
            .map(|(name, points)| Series::new(name, points.into_values().collect()));
        Ok(Analysis {
            version: Analysis::VERSION,
            series: series.collect(),
        })
    }

    /// Returns the analysis as JSON (SCHEMA.md describes it).
    pub fn json(&self) -> String {
        // All keys of maps are strings, so that this cannot fail.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Reads the JSON of an analysis, or returns what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Analysis, String> {
        let analysis: Analysis = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match analysis.version {
            Analysis::VERSION => Ok(analysis),
            other => Err(format!("it has version {other}")),
        }
    }
}

/// Returns the name of the series that a run belongs to.
fn series_name(point: &Point) -> String {
    let ending = format!("-{}", point.nodes);
    let name = point.study.strip_suffix(&ending);
    name.filter(|name| !name.is_empty())
        .unwrap_or(&point.study)
        .to_owned()
}

impl Series {
    fn new(name: String, points: Vec<Point>) -> Series {
        let spreads = spreads(&points);
        Series {
            name,
            points,
            spreads,
            plan: None,
        }
    }
}

fn spreads(points: &[Point]) -> Vec<Spread> {
    let windows: Vec<_> = points
        .iter()
        .filter_map(|point| point.window.as_ref())
        .collect();
    if windows.len() < 2 {
        return Vec::new();
    }
    let groups: [(&str, &[Group]); 5] = [
        ("core", &[Group::Core]),
        ("caches", &[Group::L1, Group::L2, Group::L3]),
        ("memory", &[Group::Memory]),
        ("mpi", &[Group::Mpi]),
        ("total", &Group::ALL),
    ];
    let spread = |(term, groups): (&str, &[Group])| {
        let values = windows
            .iter()
            .map(|window| groups.iter().map(|&group| window.group(group)).sum());
        Spread::of(term, &values.collect::<Vec<f64>>())
    };
    groups.into_iter().map(spread).collect()
}

impl Spread {
    /// Computes the spread of a term's values, of which there must be at least one.
    fn of(term: &str, values: &[f64]) -> Spread {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let largest = values.iter().copied().fold(0.0, f64::max);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Spread {
            term: term.to_owned(),
            least,
            largest,
            mean,
            relative: if mean > 0.0 {
                (largest - least) / mean
            } else {
                0.0
            },
        }
    }
}
