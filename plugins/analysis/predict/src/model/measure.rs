//! Metrics of a traced run, by region.

use std::collections::BTreeMap;

use nodescope_loop_tree::{Action, Sequences};
use serde::Serialize;

/// A part of a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Region {
    /// The whole program.
    Program,
    /// The computation between two calls: their names; `None` is the start.
    Computation(Option<String>, String),
    /// A call, by its name.
    Call(String),
}

/// A metric, as a mean over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Seconds; of the program, from its start to its end.
    Time,
    /// Number of executed instructions.
    Instructions,
    /// Number of calls.
    Calls,
    /// Bytes that the calls send; of a collective, the bytes that each rank states.
    Bytes,
}

impl Metric {
    /// Returns the name of the metric.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Time => "time",
            Metric::Instructions => "instructions",
            Metric::Calls => "calls",
            Metric::Bytes => "bytes",
        }
    }
}

/// Values of a run's metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Time of the program in seconds.
    pub time: f64,
    /// Values that are not 0.
    pub values: BTreeMap<(Metric, Region), f64>,
}

impl Measured {
    /// Returns the metrics of a traced run. `predicted` is the program's time on another cluster, picoseconds.
    pub fn new(sequences: &Sequences, predicted: Option<u64>) -> Measured {
        let names = &sequences.origin.names;
        let ranks = sequences.ranks.len().max(1) as f64;
        let traced = sequences.spans.iter().copied().max().unwrap_or(0);
        let time = predicted.unwrap_or(traced) as f64 / 1e12;
        let mut of = Measured {
            time,
            ..Measured::default()
        };
        let mut texts = BTreeMap::new();
        let mut add = |metric: Metric, region: &Region, value: f64| {
            if value > 0.0 {
                let sum = of.values.entry((metric, region.clone())).or_insert(0.0);
                *sum += value / ranks;
            }
        };
        add(Metric::Time, &Region::Program, time * ranks);
        for rank in &sequences.ranks {
            let mut before: Option<String> = None;
            for entry in &rank.entries {
                let at = (entry.op.site, entry.op.function);
                let text = texts.entry(at).or_insert_with(|| {
                    let (site, function) = at;
                    format!("{function} at {}", names.text(site))
                });
                let computation = Region::Computation(before.take(), text.clone());
                let call = Region::Call(text.clone());
                let instructions = entry.burst.instructions as f64;
                add(Metric::Time, &computation, entry.burst.time as f64 / 1e12);
                add(Metric::Instructions, &computation, instructions);
                add(Metric::Instructions, &Region::Program, instructions);
                if let Some(time) = entry.opaque {
                    add(Metric::Time, &call, time as f64 / 1e12);
                }
                let bytes = bytes(&entry.op.action) as f64;
                if !entry.op.more {
                    add(Metric::Calls, &call, 1.0);
                }
                add(Metric::Bytes, &call, bytes);
                add(Metric::Bytes, &Region::Program, bytes);
                before = Some(text.clone());
            }
        }
        of
    }
}

/// Returns the bytes that an operation sends.
fn bytes(action: &Action) -> u64 {
    match action {
        Action::Send { bytes, .. } => *bytes,
        Action::SendReceive { send, .. } => send.map_or(0, |(_, _, bytes)| bytes),
        Action::OneSided { out, back, .. } => out.saturating_add(*back),
        Action::Collective(collective) => collective.bytes,
        _ => 0,
    }
}
