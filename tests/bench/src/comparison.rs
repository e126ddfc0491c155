//! Comparison of medians of many runs: the table and the line of JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::session::{Run, Session};
use crate::time::{geometric_mean, median};
use crate::workload::{Group, Row};

/// Environment in which the rows run, such as an engine or the host, with its measured runs.
#[derive(Clone, Debug)]
pub struct Column {
    /// Name in tables and results.
    pub name: String,
    runs: BTreeMap<String, Vec<Run>>,
}

impl Column {
    /// Makes a column without runs.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            runs: BTreeMap::new(),
        }
    }

    /// Adds the runs of a session.
    pub fn add(&mut self, session: Session) {
        for (name, run) in session {
            self.runs.entry(name).or_default().push(run);
        }
    }

    fn median(&self, row: &str, of: fn(&Run) -> f64) -> f64 {
        median(self.runs.get(row).into_iter().flatten().map(of))
    }

    /// Returns the median processor time of a row, in seconds; NaN if the row has no runs.
    pub fn cpu(&self, row: &str) -> f64 {
        self.median(row, |r| r.spent.cpu)
    }

    /// Returns the median wall time of a row, in seconds; NaN if it was not measured.
    pub fn wall(&self, row: &str) -> f64 {
        self.median(row, |r| r.spent.wall)
    }

    /// Returns the median speed of a row, in million instructions for each second of processor time; NaN if instructions were not counted.
    pub fn speed(&self, row: &str) -> f64 {
        self.median(row, Run::speed)
    }

    /// Returns the median number of instructions of a row, in millions.
    pub fn instructions(&self, row: &str) -> f64 {
        self.median(row, |r| r.instructions as f64 / 1e6)
    }
}

/// Workloads that were each run on the host, in a peer tool and in nodescope's engines.
pub struct Comparison {
    /// Name of the measurement.
    pub name: &'static str,
    /// Parts of the workloads that were measured.
    pub rows: Vec<Row>,
    /// Measurements on the host; None: not measured.
    pub native: Option<Column>,
    /// Measurements in another tool for the same purpose, such as QEMU; None: not measured.
    pub peer: Option<Column>,
    /// Measurements in nodescope's engines; the means of the last one come first in the JSON.
    pub engines: Vec<Column>,
}

/// Processor times of an engine's row, relative to the host and to the peer.
#[derive(Clone, Copy, Debug)]
struct Ratios {
    /// The engine's processor time divided by the host's: a slowdown.
    native: f64,
    /// The peer's processor time divided by the engine's: above 1 the engine is faster.
    peer: f64,
}

/// Geometric means: name in the table, prefix in JSON, and the groups of rows that count.
const MEANS: [(&str, &str, &[Group]); 2] = [
    ("all", "", &[Group::Original, Group::Avx2, Group::Programs]),
    ("seven, SSE2", "seven_", &[Group::Original]),
];

impl Comparison {
    fn ratios(&self, engine: &Column, row: &str) -> Ratios {
        let cpu = engine.cpu(row);
        let of = |c: &Option<Column>| c.as_ref().map_or(f64::NAN, |c| c.cpu(row));
        Ratios {
            native: cpu / of(&self.native),
            peer: of(&self.peer) / cpu,
        }
    }

    /// Returns the rows that count in a mean over these groups.
    fn members(&self, groups: &[Group]) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|r| groups.contains(&r.group))
    }

    fn means(&self, engine: &Column, groups: &[Group]) -> (Ratios, f64) {
        let mean =
            |f: &dyn Fn(&str) -> f64| geometric_mean(self.members(groups).map(|r| f(&r.name)));
        let ratios = Ratios {
            native: mean(&|r| self.ratios(engine, r).native),
            peer: mean(&|r| self.ratios(engine, r).peer),
        };
        (ratios, mean(&|r| engine.speed(r)))
    }

    /// Returns the text tables, one for each engine.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let peer = self.peer.as_ref().map_or("no peer", |p| p.name.as_str());
        for engine in &self.engines {
            let _ = writeln!(
                text,
                "\n{}, {}: median seconds of processor time",
                self.name, engine.name
            );
            let _ = writeln!(
                text,
                "{:<29}{:>10}{:>12}{:>10}{:>10}{:>10}{:>10}{:>12}{:>16}",
                "",
                "native",
                peer,
                "here",
                "(wall)",
                "M instr",
                "M/s",
                "slowdown",
                format!("x {peer}")
            );
            for row in &self.rows {
                let of = |c: &Option<Column>| c.as_ref().map_or(f64::NAN, |c| c.cpu(&row.name));
                let ratios = self.ratios(engine, &row.name);
                let _ = writeln!(
                    text,
                    "{:<29}{:>10}{:>12}{:>10}{:>10}{:>10}{:>10}{:>12}{:>16}",
                    row.name,
                    cell(of(&self.native), 4),
                    cell(of(&self.peer), 3),
                    cell(engine.cpu(&row.name), 3),
                    cell(engine.wall(&row.name), 3),
                    cell(engine.instructions(&row.name), 1),
                    cell(engine.speed(&row.name), 1),
                    cell(ratios.native, 2),
                    cell(ratios.peer, 2),
                );
            }
            for (name, _, groups) in MEANS {
                if self.members(groups).next().is_none() {
                    continue;
                }
                let (ratios, speed) = self.means(engine, groups);
                let _ = writeln!(
                    text,
                    "{:<81}{:>10}{:>12}{:>16}",
                    format!("geometric mean, {name}"),
                    cell(speed, 1),
                    cell(ratios.native, 2),
                    cell(ratios.peer, 2),
                );
            }
        }
        text
    }

    /// Returns the JSON object: first the means of the last of the `engines`, then the values of each row, then the means of each engine.
    pub fn json(&self) -> Map<String, Value> {
        let peer = self.peer.as_ref().map_or("peer", |p| p.name.as_str());
        let mut object = Map::new();
        object.insert("name".into(), self.name.into());
        if let Some(engine) = self.engines.last() {
            object.insert("engine".into(), engine.name.as_str().into());
            object.extend(self.json_means(engine, peer));
        }
        let mut kernels = Map::new();
        for row in &self.rows {
            let mut values = Map::new();
            for column in [&self.native, &self.peer].into_iter().flatten() {
                values.insert(
                    format!("{}_seconds", column.name),
                    number(column.cpu(&row.name)),
                );
            }
            for engine in &self.engines {
                let ratios = self.ratios(engine, &row.name);
                let value = json!({
                    "seconds": number(engine.cpu(&row.name)),
                    "wall_seconds": number(engine.wall(&row.name)),
                    "million_instructions": number(engine.instructions(&row.name)),
                    "million_instructions_per_second": number(engine.speed(&row.name)),
                    "vs_native": number(ratios.native),
                    format!("vs_{peer}"): number(ratios.peer),
                });
                values.insert(engine.name.clone(), value);
            }
            kernels.insert(row.name.clone(), values.into());
        }
        object.insert("kernels".into(), kernels.into());
        let engines: Map<String, Value> = self
            .engines
            .iter()
            .map(|e| (e.name.clone(), self.json_means(e, peer).into()))
            .collect();
        object.insert("engines".into(), engines.into());
        object
    }

    fn json_means(&self, engine: &Column, peer: &str) -> Map<String, Value> {
        let mut object = Map::new();
        for (_, prefix, groups) in MEANS {
            if self.members(groups).next().is_none() {
                continue;
            }
            let (ratios, speed) = self.means(engine, groups);
            for (what, value) in [
                ("vs_native", ratios.native),
                (format!("vs_{peer}").as_str(), ratios.peer),
                ("million_instructions_per_second", speed),
            ] {
                object.insert(format!("{prefix}geomean_{what}"), number(value));
            }
        }
        object
    }
}

/// Returns a number as text; a dash if nothing was measured (the number is not finite).
pub fn cell(value: f64, decimals: usize) -> String {
    if value.is_finite() {
        format!("{value:.decimals$}")
    } else {
        "-".into()
    }
}

/// Returns a number with four significant digits; null if nothing was measured (the number is not finite).
pub fn number(value: f64) -> Value {
    if !value.is_finite() {
        return Value::Null;
    }
    format!("{value:.3e}")
        .parse::<f64>()
        .map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Spent;

    fn column(name: &str, runs: &[(&str, f64)]) -> Column {
        let mut column = Column::new(name);
        for (row, cpu) in runs {
            let spent = Spent {
                cpu: *cpu,
                wall: f64::NAN,
            };
            let run = Run {
                instructions: 6_000_000,
                spent,
            };
            column.add(Session::from([((*row).to_owned(), run)]));
        }
        column
    }

    fn comparison() -> Comparison {
        let row = |name: &str, group| Row {
            name: name.into(),
            group,
        };
        Comparison {
            name: "functional",
            rows: vec![
                row("a", Group::Original),
                row("b", Group::Avx2),
                row("c", Group::Separate),
            ],
            native: Some(column("native", &[("a", 1.0), ("b", 1.0), ("c", 1.0)])),
            peer: Some(column("tcg", &[("a", 6.0), ("b", 32.0), ("c", 1.0)])),
            engines: vec![
                column("slow", &[("a", 12.0), ("b", 16.0), ("c", 9.0)]),
                column(
                    "fast",
                    &[("a", 3.0), ("a", 2.0), ("a", 9.0), ("b", 3.0), ("c", 9.0)],
                ),
            ],
        }
    }

    #[test]
    fn medians_ratios_and_means() {
        let json = Value::from(comparison().json());
        assert_eq!(json["engine"], "fast");
        assert_eq!(json["kernels"]["a"]["tcg_seconds"], 6.0);
        let a = &json["kernels"]["a"]["fast"];
        assert_eq!(a["seconds"], 3.0);
        assert_eq!(a["million_instructions_per_second"], 2.0);
        assert_eq!(a["wall_seconds"], Value::Null);
        assert_eq!((&a["vs_native"], &a["vs_tcg"]), (&json!(3.0), &json!(2.0)));
        // Rows of the group `Separate` count in no mean.
        assert_eq!(json["geomean_vs_native"], 3.0);
        assert_eq!(json["geomean_vs_tcg"], 4.619);
        assert_eq!(json["seven_geomean_vs_tcg"], 2.0);
        assert_eq!(json["engines"]["slow"]["geomean_vs_tcg"], 1.0);
    }

    #[test]
    fn a_missing_peer_is_null_not_a_number() {
        let mut comparison = comparison();
        comparison.peer = None;
        let json = Value::from(comparison.json());
        assert_eq!(json["geomean_vs_native"], 3.0);
        assert_eq!(json["geomean_vs_peer"], Value::Null);
        assert!(comparison.table().contains("no peer"));
    }
}
