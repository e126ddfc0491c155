//! Models as text and JSON, and runs as data of Extra-P.

use std::fmt::Write;

use serde_json::json;

use super::measure::{Metric, Region};
use super::{Model, Models, Run};
use crate::text::time;

/// Most models of a metric that are listed.
const LINES: usize = 12;

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Region::Program => f.write_str("program"),
            Region::Computation(None, to) => write!(f, "computation from the start to {to}"),
            Region::Computation(Some(from), to) => write!(f, "computation from {from} to {to}"),
            Region::Call(call) => f.write_str(call),
        }
    }
}

impl Models {
    /// Returns the models as text for a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let runs = self
            .runs
            .iter()
            .map(|(p, n)| format!("p={p} {}={n}", self.size));
        let runs: Vec<String> = runs.collect();
        writeln!(
            out,
            "Models of the number of ranks p and {}, from {} runs: {}",
            self.size,
            self.runs.len(),
            runs.join(", ")
        )?;
        for metric in [
            Metric::Time,
            Metric::Instructions,
            Metric::Calls,
            Metric::Bytes,
        ] {
            let models = self.models.iter().filter(|model| model.metric == metric);
            let models: Vec<&Model> = models.collect();
            if models.is_empty() {
                continue;
            }
            let unit = match metric {
                Metric::Time => ", seconds",
                _ => "",
            };
            writeln!(
                out,
                "\n{}{unit}, mean of the ranks; error of runs predicted from the others",
                title(metric)
            )?;
            for model in models.iter().take(LINES) {
                let share = model
                    .share
                    .map(|share| format!("{:5.1} %  ", 100.0 * share));
                writeln!(
                    out,
                    "  {}{}: {}   ({:.2} % off)",
                    share.unwrap_or_default(),
                    model.region,
                    model.function,
                    100.0 * model.fit.error
                )?;
                for ((p, n), value) in self.at.iter().zip(&model.at) {
                    let value = match metric {
                        Metric::Time => time((value.max(0.0) * 1e12) as u64),
                        _ => format!("{value:.0}"),
                    };
                    writeln!(out, "           at p={p} {}={n}: {value}", self.size)?;
                }
            }
            if models.len() > LINES {
                writeln!(out, "  ... {} more", models.len() - LINES)?;
            }
        }
        if !self.left_out.is_empty() {
            writeln!(out, "\nNot in all runs, and therefore without a model")?;
            for region in self.left_out.iter().take(LINES) {
                writeln!(out, "  {region}")?;
            }
            if self.left_out.len() > LINES {
                writeln!(out, "  ... {} more", self.left_out.len() - LINES)?;
            }
        }
        for note in &self.notes {
            writeln!(out, "Note: {note}")?;
        }
        Ok(())
    }

    /// Returns the models as JSON; `SCHEMA.md` describes it.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

fn title(metric: Metric) -> &'static str {
    match metric {
        Metric::Time => "Time",
        Metric::Instructions => "Instructions",
        Metric::Calls => "Calls",
        Metric::Bytes => "Bytes sent",
    }
}

/// Returns runs in Extra-P's format JSON Lines: an object for each value of a metric of a region of a run. Regions are call paths below
/// `program`.
pub fn extra_p(runs: &[Run], name: &str) -> String {
    let mut out = String::new();
    for run in runs {
        for ((metric, region), value) in &run.measured.values {
            let path = match region {
                Region::Program => "program".to_owned(),
                // Extra-P takes an arrow for the step from a caller to its callee.
                other => format!("program->{}", other.to_string().replace("->", "→")),
            };
            let line = json!({
                "params": { "p": run.ranks, name: run.size },
                "callpath": path,
                "metric": metric.name(),
                "value": value,
            });
            out.push_str(&line.to_string());
            out.push('\n');
        }
    }
    out
}
