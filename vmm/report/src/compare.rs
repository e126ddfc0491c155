//! Comparison of two reports: differences of the studies, and the change of each figure.
//!
//! Windows, scopes and MPI functions are matched by name. The relative difference is `(b - a) / a`.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::Report;
use crate::breakdown::{PrivilegeValue, Scope, ScopeKind, WindowReport};
use crate::mpi::{FunctionRow, ProgramReport};
use crate::table::{Table, wrap};
use crate::text::WIDTH;
use crate::units::{bytes, si, time};

/// Version of the comparison's JSON schema.
pub const VERSION: u32 = 1;

/// Unit in which a figure is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A number without a unit.
    Count,
    /// Picoseconds of virtual time.
    Ps,
    /// Number of bytes.
    Bytes,
    /// Cycles per instruction.
    CyclesPerInstruction,
    /// Floating-point operations per second.
    FlopPerSecond,
}

/// Figure with its values on both sides of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Name of the figure.
    pub name: String,
    /// Unit of the figure.
    pub unit: Unit,
    /// Value on the first side; `None` if that side lacks the figure.
    pub a: Option<f64>,
    /// Value on the second side; `None` if that side lacks the figure.
    pub b: Option<f64>,
    /// Difference `b - a`; `None` if a side lacks the figure.
    pub difference: Option<f64>,
    /// Relative difference `(b - a) / a`; `None` if a side lacks the figure or `a` is 0.
    pub relative: Option<f64>,
}

impl Figure {
    /// Returns a figure with both sides' values and their differences.
    pub fn new(name: impl Into<String>, unit: Unit, a: Option<f64>, b: Option<f64>) -> Self {
        let difference = a.zip(b).map(|(a, b)| b - a);
        let base = a.filter(|&a| a != 0.0);
        Figure {
            name: name.into(),
            unit,
            a,
            b,
            difference,
            relative: difference.zip(base).map(|(difference, a)| difference / a),
        }
    }

    pub(crate) fn cells(&self) -> Vec<String> {
        let value = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| self.unit.text(v));
        let change = match (self.relative, self.difference) {
            (_, Some(0.0)) => "=".into(),
            (Some(relative), _) => percent(relative),
            _ => "-".into(),
        };
        vec![self.name.clone(), value(self.a), value(self.b), change]
    }
}

/// Formats a relative difference: in percent below a doubling, from a doubling on as a factor.
fn percent(relative: f64) -> String {
    match relative {
        r if r >= 1.0 => format!("{:.2} x", r + 1.0),
        r => format!("{:+.2} %", 100.0 * r),
    }
}

impl Unit {
    fn text(self, value: f64) -> String {
        match self {
            Unit::Count => si(value),
            Unit::Ps => time(value),
            Unit::Bytes => bytes(value as u64),
            Unit::CyclesPerInstruction => format!("{value:.4}"),
            Unit::FlopPerSecond => {
                let text = si(value);
                let gap = if text.contains(' ') { "" } else { " " };
                format!("{text}{gap}FLOP/s")
            }
        }
    }
}

/// Line of the studies' descriptions that differs between the sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DescriptionDifference {
    /// Label of the line, such as `nodes`.
    pub label: String,
    /// Value on the first side; `None` if that side lacks the line.
    pub a: Option<String>,
    /// Value on the second side; `None` if that side lacks the line.
    pub b: Option<String>,
}

/// Figures under one heading.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Heading of the group.
    pub name: String,
    /// Figures that at least one side has.
    pub figures: Vec<Figure>,
}

/// Difference in the work that two windows of one name measured. Their times and rates do not compare as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkDifference {
    /// Name of the window.
    pub window: String,
    /// Counts that differ by more than 2 %: instructions outside MPI, floating-point operations, loads, or stores.
    pub counts: Vec<WorkCount>,
    /// Events at which the windows opened, in words, first of side A; `None` if they are the same.
    pub triggers: Option<[String; 2]>,
    /// Functions with most cycles, first of side A; `None` if they are the same, or unknown on a side.
    pub functions: Option<[String; 2]>,
}

/// Count of a kind of work on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkCount {
    /// Kind of work, such as `floating-point operations`.
    pub what: &'static str,
    /// Count on the first side.
    pub a: f64,
    /// Count on the second side.
    pub b: f64,
    /// `b / a`; `None` if `a` is 0.
    pub ratio: Option<f64>,
}

/// Largest relative difference of a count in windows of equal work.
const EQUAL_WORK: f64 = 0.02;

impl WorkDifference {
    fn is_none(&self) -> bool {
        self.counts.is_empty() && self.triggers.is_none() && self.functions.is_none()
    }

    /// Returns a sentence for people.
    fn text(&self) -> String {
        let mut parts: Vec<String> = (self.counts.iter())
            .map(|count| match count.ratio {
                Some(ratio) => format!("{:.3} times the {}", ratio, count.what),
                None => format!("{} where A has none", count.what),
            })
            .collect();
        if let Some([a, b]) = &self.functions {
            parts.push(format!("most cycles in {b}, and A in {a}"));
        }
        if let Some([a, b]) = &self.triggers {
            parts.push(format!("another trigger ({b}; A: {a})"));
        }
        format!(
            "window \"{}\" did other work in B than in A, so that times do not compare: B has {}.",
            self.window,
            parts.join(", ")
        )
    }
}

/// Comparison of two results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Version of the JSON schema, [`VERSION`].
    pub version: u32,
    /// Names of the sides, as the user gave them.
    pub sides: [String; 2],
    /// True if both sides ran the study with the same inputs.
    pub same_inputs: bool,
    /// Lines of the studies' descriptions that differ.
    pub description: Vec<DescriptionDifference>,
    /// Windows that only one side has: name of the window, name of the side.
    pub unmatched_windows: Vec<(String, String)>,
    /// Windows of one name that measured different work.
    pub different_work: Vec<WorkDifference>,
    /// Groups in this order: the run, each window that both sides have, the MPI profile, the network. Groups without figures are left out.
    pub groups: Vec<Group>,
}

/// Compares two reports. `run` are figures of the whole runs, which reports lack.
pub fn compare(sides: [String; 2], a: &Report, b: &Report, run: Vec<Figure>) -> Comparison {
    let mut groups = vec![Group {
        name: "Run".into(),
        figures: run,
    }];
    let window = |of: &Report, name: &str| of.windows.iter().position(|w| w.name == name);
    let mut unmatched = Vec::new();
    let mut different_work = Vec::new();
    for one in &a.windows {
        match window(b, &one.name) {
            Some(other) => {
                let other = &b.windows[other];
                let work = work(one, other);
                groups.extend(windows(one, other, !work.counts.is_empty()));
                if !work.is_none() {
                    different_work.push(work);
                }
            }
            None => unmatched.push((one.name.clone(), sides[0].clone())),
        }
    }
    for other in &b.windows {
        if window(a, &other.name).is_none() {
            unmatched.push((other.name.clone(), sides[1].clone()));
        }
    }
    groups.extend(mpi(a, b));
    groups.extend(network(a, b));
    groups.retain(|group| !group.figures.is_empty());
    Comparison {
        version: VERSION,
        same_inputs: a.study.id == b.study.id,
        description: description(&a.study.description, &b.study.description),
        unmatched_windows: unmatched,
        different_work,
        groups,
        sides,
    }
}

fn description(a: &[(String, String)], b: &[(String, String)]) -> Vec<DescriptionDifference> {
    let value = |of: &[(String, String)], label: &str| {
        let values: Vec<_> = of.iter().filter(|(l, _)| l == label).collect();
        let joined = values.iter().map(|(_, v)| v.as_str()).collect::<Vec<_>>();
        (!values.is_empty()).then(|| joined.join("; "))
    };
    let mut seen = BTreeSet::new();
    (a.iter().chain(b))
        .filter(|(label, _)| seen.insert(label))
        .map(|(label, _)| DescriptionDifference {
            label: label.clone(),
            a: value(a, label),
            b: value(b, label),
        })
        .filter(|line| line.a != line.b)
        .collect()
}

/// Returns the names of both lists, each once: those of the first list in its order, then the others.
fn names<'a>(a: impl Iterator<Item = &'a str>, b: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    a.chain(b).filter(|name| seen.insert(*name)).collect()
}

/// Returns the scope of all ranks, or the total without ranks.
fn total(of: &WindowReport) -> Option<&Scope> {
    let of = of.scopes.iter().rev();
    let kind = |kind| move |scope: &&Scope| scope.kind == kind;
    (of.clone().find(kind(ScopeKind::Ranks))).or_else(|| of.clone().find(kind(ScopeKind::Total)))
}

/// Kind of work: its name, and its count in a scope.
type Kind<'a> = (&'static str, &'a dyn Fn(&Scope) -> f64);

/// Returns what two windows measured differently.
fn work(a: &WindowReport, b: &WindowReport) -> WorkDifference {
    let mut found = WorkDifference {
        window: a.name.clone(),
        ..WorkDifference::default()
    };
    let references = |of: &Scope, count: fn(&PrivilegeValue) -> u128| {
        of.privileges.iter().map(count).sum::<u128>() as f64
    };
    if let (Some(one), Some(other)) = (total(a), total(b)) {
        let kinds: [Kind<'_>; 4] = [
            ("instructions outside MPI", &|of| of.instructions as f64),
            ("floating-point operations", &|of| {
                (of.flops.total - of.flops.in_mpi.min(of.flops.total)) as f64
            }),
            ("loads", &|of| references(of, |of| of.loads)),
            ("stores", &|of| references(of, |of| of.stores)),
        ];
        // Loads and stores are counted inside MPI, too, where a rank that polls for longer has more of them.
        let share = |of: &Scope| {
            let inside = of.instructions_in_mpi as f64;
            inside / (inside + of.instructions as f64).max(1.0)
        };
        let alike = (share(one) - share(other)).abs() <= EQUAL_WORK;
        for (what, count) in kinds.into_iter().take(if alike { 4 } else { 2 }) {
            let (a, b) = (count(one), count(other));
            if (a - b).abs() > EQUAL_WORK * a.max(b) {
                let ratio = (a > 0.0).then(|| b / a);
                found.counts.push(WorkCount { what, a, b, ratio });
            }
        }
    }
    if a.trigger != b.trigger {
        found.triggers = Some([a.trigger.clone(), b.trigger.clone()]);
    }
    let busiest = |of: &WindowReport| Some(of.code.as_ref()?.functions.first()?.function.clone());
    if let (Some(one), Some(other)) = (busiest(a), busiest(b))
        && one != other
    {
        found.functions = Some([one, other]);
    }
    found
}

/// Returns two groups: figures of the sum of all ranks (of the total, without ranks), and the CPI of each rank. Where the work differs, the
/// first group also has the time for equal work.
fn windows(a: &WindowReport, b: &WindowReport, work_differs: bool) -> Vec<Group> {
    let (one, other) = (total(a).cloned(), total(b).cloned());
    let both = |name: &str, unit, value: &dyn Fn(&Scope) -> Option<f64>| {
        let of = |scope: &Option<Scope>| scope.as_ref().and_then(value);
        Figure::new(name, unit, of(&one), of(&other))
    };
    let duration =
        |of: &WindowReport| Some(of.closed_ps.saturating_sub(of.measured_from_ps) as f64);
    let mut figures = vec![Figure::new(
        "virtual time measured",
        Unit::Ps,
        duration(a),
        duration(b),
    )];
    if work_differs {
        let each = |name: &str, count: &dyn Fn(&Scope) -> f64| {
            let of = |window: &WindowReport, scope: &Option<Scope>| {
                let count = count(scope.as_ref()?);
                (count > 0.0).then_some(duration(window)? / count * 1e6)
            };
            Figure::new(name, Unit::Ps, of(a, &one), of(b, &other))
        };
        figures.push(each("virtual time for 10^6 instructions", &|s| {
            s.instructions as f64
        }));
        let by_flop = each("virtual time for 10^6 FLOP", &|s| s.flops.total as f64);
        figures.extend((by_flop.a.is_some() || by_flop.b.is_some()).then_some(by_flop));
    }
    figures.extend([
        both("instructions outside MPI", Unit::Count, &|s| {
            Some(s.instructions as f64)
        }),
        both("instructions inside MPI", Unit::Count, &|s| {
            Some(s.instructions_in_mpi as f64)
        }),
        both("CPI", Unit::CyclesPerInstruction, &|s| s.cpi),
    ]);
    let terms = |of: &Option<Scope>| -> Vec<String> {
        let terms = of.iter().flat_map(|scope| &scope.terms);
        terms.map(|term| term.term.clone()).collect()
    };
    let (own, others) = (terms(&one), terms(&other));
    for term in names(
        own.iter().map(String::as_str),
        others.iter().map(String::as_str),
    ) {
        figures.push(both(
            &format!("CPI_{term}"),
            Unit::CyclesPerInstruction,
            &|scope| scope.terms.iter().find(|t| t.term == term)?.cpi,
        ));
    }
    figures.push(both("floating-point operations", Unit::Count, &|s| {
        Some(s.flops.total as f64)
    }));
    figures.push(both(
        "FLOPS as published, of one core",
        Unit::FlopPerSecond,
        &|s| s.flops.published_per_second,
    ));
    figures.push(both(
        "FLOPS, direct, of one core",
        Unit::FlopPerSecond,
        &|s| s.flops.direct_per_second,
    ));
    figures.push(both(
        "FLOPS of all in the window",
        Unit::FlopPerSecond,
        &|s| s.flops.window_per_second,
    ));
    let ranks = |of: &'_ WindowReport| -> Vec<(String, Option<f64>)> {
        let ranks = of.scopes.iter().filter(|s| s.kind == ScopeKind::Rank);
        ranks.map(|s| (s.name.clone(), s.cpi)).collect()
    };
    let (own, others) = (ranks(a), ranks(b));
    let cpi = |of: &[(String, Option<f64>)], name: &str| {
        of.iter().find(|(n, _)| n == name).and_then(|(_, cpi)| *cpi)
    };
    let by_rank = names(
        own.iter().map(|(name, _)| name.as_str()),
        others.iter().map(|(name, _)| name.as_str()),
    );
    let by_rank = by_rank.into_iter().map(|name| {
        let (a, b) = (cpi(&own, name), cpi(&others, name));
        Figure::new(name, Unit::CyclesPerInstruction, a, b)
    });
    vec![
        Group {
            name: format!("Window \"{}\", all ranks", a.name),
            figures,
        },
        Group {
            name: format!("Window \"{}\", CPI by rank", a.name),
            figures: by_rank.collect(),
        },
    ]
}

/// Returns the groups of figures by MPI function. Programs with the same number are compared; the titles name the program where a side
/// has several. Returns none unless both sides have an MPI profile.
fn mpi(a: &Report, b: &Report) -> Vec<Group> {
    let (Some(own), Some(others)) = (&a.mpi, &b.mpi) else {
        return Vec::new();
    };
    let most = own.programs.len().max(others.programs.len());
    let programs = (0..most).flat_map(|number| {
        let pair = (own.programs.get(number), others.programs.get(number));
        let title = match (most, pair) {
            (2.., (Some(a), Some(b))) if a.name == b.name => {
                format!("MPI program {number}, {}", a.name)
            }
            (2.., (Some(a), Some(b))) => {
                format!("MPI program {number}, {} and {}", a.name, b.name)
            }
            (2.., (Some(one), None) | (None, Some(one))) => {
                format!("MPI program {number}, {}", one.name)
            }
            _ => "MPI".into(),
        };
        program(&title, pair)
    });
    programs.collect()
}

/// Returns three groups of figures by MPI function: time, calls and bytes of a program on either side, each summed over all ranks.
fn program(title: &str, pair: (Option<&ProgramReport>, Option<&ProgramReport>)) -> Vec<Group> {
    let rows = |of: Option<&ProgramReport>| of.map(|program| program.functions.clone());
    let (own, others) = (rows(pair.0), rows(pair.1));
    let all = names(
        own.iter().flatten().map(|row| row.function),
        others.iter().flatten().map(|row| row.function),
    );
    let figures = |unit, value: &dyn Fn(&FunctionRow) -> f64| {
        let of = |rows: &Option<Vec<FunctionRow>>, name: &str| {
            let row = rows.as_ref()?.iter().find(|row| row.function == name);
            // A function that a traced side never calls has the value 0.
            Some(row.map_or(0.0, value))
        };
        let figure = |name: &&str| Figure::new(*name, unit, of(&own, name), of(&others, name));
        let moved = |figure: &Figure| figure.a != Some(0.0) || figure.b != Some(0.0);
        all.iter().map(figure).filter(moved).collect()
    };
    let group = |name: &str, figures| Group {
        name: format!("{title}, {name}"),
        figures,
    };
    let mut times: Vec<Figure> = figures(Unit::Ps, &|row| row.time_ps as f64);
    // Functions are sorted by the change of their time, largest first.
    let change = |figure: &Figure| figure.difference.map_or(0.0, f64::abs);
    times.sort_by(|a, b| change(b).total_cmp(&change(a)));
    vec![
        group("time inside, summed over ranks", times),
        group("calls", figures(Unit::Count, &|row| row.calls as f64)),
        group(
            "bytes passed in",
            figures(Unit::Bytes, &|row| row.send_bytes as f64),
        ),
    ]
}

fn network(a: &Report, b: &Report) -> Option<Group> {
    let sum = |of: &Report, value: fn(&crate::NetworkCounts) -> u64| {
        let counts = of.network.iter().map(value);
        (!of.network.is_empty()).then(|| counts.sum::<u64>() as f64)
    };
    let figure = |name: &str, unit, value| Figure::new(name, unit, sum(a, value), sum(b, value));
    (!a.network.is_empty() || !b.network.is_empty()).then(|| Group {
        name: "Network, all nodes".into(),
        figures: vec![
            figure("frames sent", Unit::Count, |node| node.sent_frames),
            figure("bytes sent", Unit::Bytes, |node| node.sent_bytes),
            figure("frames dropped", Unit::Count, |node| node.dropped_frames),
        ],
    })
}

impl Comparison {
    /// Returns the comparison as tables of at most 100 columns.
    pub fn text(&self) -> String {
        let [a, b] = &self.sides;
        let mut out = format!("A: {}\nB: {}\n", line(a), line(b));
        if self.same_inputs {
            out.push_str("Both ran the study with the same inputs.\n");
        }
        if let Some(table) = self.differences() {
            out.push_str(&format!("\n{}", described(&table)));
        }
        for note in self.notes() {
            for line in wrap(&format!("note: {note}"), WIDTH) {
                out.push_str(&format!("{line}\n"));
            }
        }
        for group in &self.groups {
            let mut table = Table::new(&group.name, 1, &["", "A", "B", "change"]);
            for figure in &group.figures {
                table.row(figure.cells());
            }
            out.push_str(&format!("\n{}", table.text(WIDTH)));
        }
        out
    }

    /// Returns the table of what differs between the studies; `None` if nothing does.
    pub(crate) fn differences(&self) -> Option<Table> {
        let mut table = Table::new("The studies differ in:", 3, &["", "A", "B"]);
        let lacks = || "-".to_owned();
        for line in &self.description {
            table.row(vec![
                line.label.clone(),
                line.a.clone().unwrap_or_else(lacks),
                line.b.clone().unwrap_or_else(lacks),
            ]);
        }
        (!table.rows.is_empty()).then_some(table)
    }

    /// Returns sentences on what does not compare.
    pub(crate) fn notes(&self) -> Vec<String> {
        let unmatched = (self.unmatched_windows.iter())
            .map(|(window, side)| format!("only {side} has window \"{window}\""));
        let different = self.different_work.iter().map(WorkDifference::text);
        unmatched.chain(different).collect()
    }

    /// Returns the comparison as JSON, in the schema of `SCHEMA.md`.
    pub fn json(&self) -> String {
        // Serializing to memory cannot fail, because every key is a string and every number is finite or null.
        let mut json = serde_json::to_string_pretty(self).unwrap_or_default();
        json.push('\n');
        json
    }
}

fn line(text: &str) -> String {
    wrap(text, WIDTH - 3).join(" ")
}

/// Formats the description's lines. Values are sentences, so each is printed on lines of its own below its label.
fn described(table: &Table) -> String {
    let mut out = format!("{}\n", table.title);
    for row in &table.rows {
        let [label, a, b] = &row[..] else { continue };
        out.push_str(&format!("  {label}\n"));
        for (side, value) in [("A", a), ("B", b)] {
            for (index, line) in wrap(value, WIDTH - 7).iter().enumerate() {
                let mark = if index == 0 { side } else { " " };
                out.push_str(&format!("    {mark}  {line}\n"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_relative_to_the_first_side() {
        let figure = Figure::new("x", Unit::Count, Some(200.0), Some(150.0));
        assert_eq!(figure.difference, Some(-50.0));
        assert_eq!(figure.relative, Some(-0.25));
        assert_eq!(figure.cells(), ["x", "200", "150", "-25.00 %"]);
        let new = Figure::new("x", Unit::Ps, Some(0.0), Some(2e12));
        assert_eq!(new.relative, None);
        assert_eq!(new.cells(), ["x", "0 s", "2.000 s", "-"]);
        let twice = Figure::new("x", Unit::Bytes, Some(1024.0), Some(3072.0));
        assert_eq!(twice.cells(), ["x", "1.00 KiB", "3.00 KiB", "3.00 x"]);
        let equal = Figure::new("x", Unit::CyclesPerInstruction, Some(1.5), Some(1.5));
        assert_eq!(equal.cells(), ["x", "1.5000", "1.5000", "="]);
        let lacks = Figure::new("x", Unit::Count, None, Some(1.0));
        assert_eq!(lacks.cells(), ["x", "-", "1", "-"]);
    }

    #[test]
    fn descriptions_differ_by_label() {
        let pair = |label: &str, value: &str| (label.to_owned(), value.to_owned());
        let a = [pair("nodes", "2"), pair("job", "x"), pair("window", "w")];
        let b = [pair("nodes", "4"), pair("job", "x"), pair("core", "c")];
        let found = description(&a, &b);
        let labels: Vec<_> = found.iter().map(|line| line.label.as_str()).collect();
        assert_eq!(labels, ["nodes", "window", "core"]);
        assert_eq!(found[0].b.as_deref(), Some("4"));
        assert_eq!((found[1].b.clone(), found[2].a.clone()), (None, None));
    }
}
