//! Predictions for several values of a parameter, or for several numbers of ranks.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::predict::Prediction;
use crate::result::Outcome;
use crate::sweep::{Scale, Value};

/// Mean times of the ranks of a program by kind, picoseconds. The parts add up to the program's time exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Split {
    /// Time in bursts.
    pub computation: u64,
    /// Time in calls that are not interpreted.
    pub opaque: u64,
    /// Time in interpreted MPI calls without `wait`.
    pub communication: u64,
    /// Time in MPI calls in which another rank was late.
    pub wait: u64,
    /// Time from a rank's end to the last rank's end, with the remainder of rounding the other parts.
    pub idle: u64,
}

impl Split {
    /// Returns the mean times of an outcome.
    pub fn new(outcome: &Outcome) -> Split {
        let ranks = outcome.ranks.len().max(1) as u128;
        let mean = |part: fn(&crate::result::RankTimes) -> u64| {
            let sum: u128 = outcome.ranks.iter().map(|r| u128::from(part(r))).sum();
            (sum / ranks) as u64
        };
        let (computation, opaque) = (mean(|r| r.computation), mean(|r| r.opaque));
        let (communication, wait) = (mean(|r| r.communication), mean(|r| r.wait));
        let busy = computation + opaque + communication + wait;
        Split {
            computation,
            opaque,
            communication,
            wait,
            idle: outcome.time.saturating_sub(busy),
        }
    }

    /// Returns the parts with their names, in the order in which they are shown.
    pub fn parts(&self) -> [(&'static str, u64); 5] {
        [
            ("computation", self.computation),
            ("other", self.opaque),
            ("communication", self.communication),
            ("wait", self.wait),
            ("idle", self.idle),
        ]
    }
}

/// Prediction for one value of the parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The parameter's value.
    pub value: Value,
    /// The prediction; `None` if the program cannot run, or does not come to its end, with this value.
    pub result: Option<PointResult>,
    /// Reason for which the program cannot run, or does not come to its end, with this value; `None` if there is a prediction.
    pub error: Option<String>,
    /// Differences between the traced run and the cluster with this value, one sentence each.
    pub differences: Vec<String>,
}

/// Results of a prediction that a series contains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PointResult {
    /// Time of the program in picoseconds.
    pub time: u64,
    /// Ends of the 95 % interval of the time, picoseconds; `None` if no interval was predicted.
    pub interval: Option<(u64, u64)>,
    /// Mean times by kind.
    pub split: Split,
    /// Parallel efficiency: mean useful computation over the time.
    pub parallel: f64,
    /// Load balance: mean over maximum of useful computation.
    pub load_balance: f64,
    /// Serialisation efficiency: the longest useful computation over the ideal network's time.
    pub serialisation: f64,
    /// Transfer efficiency: the ideal network's time over the time.
    pub transfer: f64,
    /// Number of messages.
    pub messages: u64,
    /// Bytes of the messages.
    pub bytes: u64,
}

impl Point {
    /// Makes a point from a prediction, or from the reason for which there is no prediction.
    pub fn new(value: Value, prediction: &Result<Prediction, String>) -> Point {
        let (result, error) = match prediction {
            Err(error) => (None, Some(error.clone())),
            Ok(prediction) => match &prediction.efficiencies {
                Some(of) => (Some(PointResult::new(prediction, of)), None),
                None => {
                    let problems = prediction.outcome.problems.iter();
                    let told: Vec<_> = problems.map(|p| p.to_string().trim().to_owned()).collect();
                    (None, Some(told.join("; ").replace('\n', " ")))
                }
            },
        };
        let differences = prediction.as_ref().map(|of| of.differences.clone());
        Point {
            value,
            result,
            error,
            differences: differences.unwrap_or_default(),
        }
    }
}

impl PointResult {
    fn new(prediction: &Prediction, of: &crate::result::Efficiencies) -> PointResult {
        let outcome = &prediction.outcome;
        PointResult {
            time: outcome.time,
            interval: prediction.interval.as_ref().map(|i| (i.low, i.high)),
            split: Split::new(outcome),
            parallel: of.parallel(),
            load_balance: of.load_balance(),
            serialisation: of.serialisation(),
            transfer: of.transfer(),
            messages: outcome.messages,
            bytes: outcome.bytes,
        }
    }
}

/// Series of predictions for the values of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Version of this format.
    pub format: u32,
    /// The cluster's name.
    pub cluster: String,
    /// The parameter: a field of the cluster file, or `ranks`.
    pub parameter: String,
    /// Unit of the parameter's numbers; empty for plain numbers and names.
    pub unit: &'static str,
    /// Distribution of the parameter's values.
    pub scale: Scale,
    /// Predictions, in the order of the parameter's values.
    pub points: Vec<Point>,
    /// Notes on results that are less exact than possible.
    pub notes: Vec<String>,
}

/// Calls `work` with each number from 0 to `count` - 1, on as many threads as the host has cores. Results are in order of the numbers.
pub fn in_parallel<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let one = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return done;
            }
            done.push((index, work(index)));
        }
    };
    let mut all: Vec<(usize, T)> = std::thread::scope(|scope| {
        // If the host refuses more threads, the threads that exist do the work.
        let workers: Vec<_> = (1..threads.min(count))
            .map_while(|_| std::thread::Builder::new().spawn_scoped(scope, one).ok())
            .collect();
        let mut all = one();
        for worker in workers {
            match worker.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, value)| value).collect()
}

impl Series {
    /// Returns the value and the result of each point that has a result.
    pub fn times(&self) -> impl Iterator<Item = (&Value, &PointResult)> {
        let points = self.points.iter();
        points.filter_map(|point| point.result.as_ref().map(|result| (&point.value, result)))
    }

    /// Returns each difference from the traced run with the values that have it; no values if all have it.
    pub(crate) fn differences(&self) -> Vec<(String, Vec<&str>)> {
        let mut found: Vec<(String, Vec<&str>)> = Vec::new();
        for point in &self.points {
            for difference in &point.differences {
                let known = found.iter_mut().find(|(other, _)| other == difference);
                match known {
                    Some((_, values)) => values.push(&point.value.text),
                    None => found.push((difference.clone(), vec![&point.value.text])),
                }
            }
        }
        let all = self.times().count();
        for (_, values) in &mut found {
            if values.len() == all {
                values.clear();
            }
        }
        found
    }

    /// Returns the contents as JSON; `SCHEMA.md` describes it.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Headings of the results in a table of comma-separated values.
    pub(crate) const CSV_RESULTS: &str = "time_s,low_s,high_s,computation_s,other_s,communication_s,wait_s,idle_s,parallel_efficiency,load_balance,serialisation,transfer,messages,bytes,error,differences";

    /// Returns a table of comma-separated values (RFC 4180), with a heading and a line for each value; times are in seconds.
    pub fn csv(&self) -> String {
        let parameter = Series::csv_parameter(&self.parameter, self.unit);
        let mut out = format!("{parameter},{}\r\n", Series::CSV_RESULTS);
        for point in &self.points {
            out.push_str(&Series::csv_value(&point.value));
            out.push(',');
            out.push_str(&point.csv_results());
            out.push_str("\r\n");
        }
        out
    }

    /// Returns the two headings of a parameter's values.
    pub(crate) fn csv_parameter(parameter: &str, unit: &str) -> String {
        let unit = if unit.is_empty() { "number" } else { unit };
        let number = format!("{parameter} [{unit}]");
        format!("{},{}", quoted(parameter), quoted(&number))
    }

    /// Returns the two fields of a parameter's value.
    pub(crate) fn csv_value(value: &Value) -> String {
        let number = value.number.map_or(String::new(), |n| format!("{n}"));
        format!("{},{number}", quoted(&value.text))
    }
}

impl Point {
    /// Returns the fields of the results, as [`Series::CSV_RESULTS`] names them.
    pub(crate) fn csv_results(&self) -> String {
        let seconds = |time: u64| {
            format!(
                "{}.{:012}",
                time / 1_000_000_000_000,
                time % 1_000_000_000_000
            )
        };
        let mut fields = Vec::new();
        match &self.result {
            None => fields.extend(vec![String::new(); 14]),
            Some(result) => {
                fields.push(seconds(result.time));
                let ends = result.interval.map(|(low, high)| [low, high].map(seconds));
                fields.extend(ends.unwrap_or_default());
                fields.extend(result.split.parts().map(|(_, part)| seconds(part)));
                let ratios = [
                    result.parallel,
                    result.load_balance,
                    result.serialisation,
                    result.transfer,
                ];
                fields.extend(ratios.map(|ratio| format!("{ratio:.6}")));
                fields.extend([result.messages, result.bytes].map(|n| n.to_string()));
            }
        }
        fields.push(quoted(self.error.as_deref().unwrap_or_default()));
        fields.push(quoted(&self.differences.join("; ")));
        fields.join(",")
    }
}

/// Returns a field of comma-separated values, in quotes where it needs them.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
