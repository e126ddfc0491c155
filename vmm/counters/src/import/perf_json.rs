//! `perf stat -j`: one object on each line (perf-stat(1), "JSON FORMAT").

use std::collections::BTreeSet;

use super::Part;
use super::located::{Node, Refusal, Text};
use super::perf_csv::{Line, add};
use crate::measurement::Counts;

/// Members that name the part of the machine or of the time that a count covers.
const SCOPES: [&str; 10] = [
    "cpu", "core", "die", "socket", "node", "cache", "cluster", "thread", "cgroup", "interval",
];
/// Members that a count does not depend on.
const UNUSED: [&str; 8] = [
    "aggregate-number",
    "counters",
    "variance",
    "metric-value",
    "metric-unit",
    "metric-threshold",
    "event-runtime",
    "unit",
];
const UNITS: [&str; 5] = ["", "msec", "ns", "Joules", "MiB"];

/// Reads a file of `perf stat -j`.
pub(super) fn parse(text: Text<'_>) -> Result<Part, Refusal> {
    let mut counts = Counts::default();
    let mut seen = BTreeSet::new();
    for line in text.text.lines() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        object(text.json(line)?, &mut counts, &mut seen)?;
    }
    Ok(Part {
        tool: "perf stat".into(),
        whole: counts,
        ..Part::default()
    })
}

fn object(
    line: Node<'_>,
    counts: &mut Counts,
    seen: &mut BTreeSet<(String, String)>,
) -> Result<(), Refusal> {
    let (mut event, mut value, mut percent) = (None, None, None);
    let mut scope = Vec::new();
    for member in line.object()? {
        match member.key.as_ref() {
            "event" => event = Some((member.value.string()?, member.value)),
            "counter-value" => value = Some(member.value),
            "pcnt-running" => percent = Some(member.value),
            "unit" => {
                let unit = member.value.string()?;
                if !UNITS.contains(&unit.as_str()) {
                    return Err(member.value.refuse(format!("unknown unit {unit:?}; counts of events have none, and times are in msec or ns")));
                }
            }
            key if SCOPES.contains(&key) => {
                let value = member.value.string().or_else(|_| member.value.count().map(|count| count.to_string()))?;
                scope.push(format!("{key} {value}"));
            }
            key if UNUSED.contains(&key) => {}
            key => return Err(member.value.refuse(format!("unknown column {key:?}; perf stat -j writes counter-value, unit, event, event-runtime, pcnt-running, metric-value, metric-unit"))),
        }
    }
    let Some((event, node)) = event else {
        // An object without an event holds another metric of the event before.
        return match value {
            Some(value) => {
                Err(value.refuse("has no event; perf stat -j writes one with each counter-value"))
            }
            None => Ok(()),
        };
    };
    let value = value.ok_or_else(|| node.refuse(format!("{event} has no counter-value")))?;
    let percent = percent.ok_or_else(|| {
        node.refuse(format!(
            "{event} has no pcnt-running, the percentage of the time in which it was counted"
        ))
    })?;
    let running = percent.count()?;
    if running > 100.5 {
        return Err(percent.refuse(format!("{running} % of the time is more than all of it")));
    }
    let said = value.string().unwrap_or_default();
    let line = Line {
        event: &event,
        value: match said.as_str() {
            "<not counted>" | "<not supported>" => Err(said.as_str()),
            _ => Ok(value.count()?),
        },
        running: running.min(100.0) / 100.0,
        position: value.position(),
    };
    add(counts, seen, scope.join(" "), line).map_err(|message| node.refuse(message))
}
