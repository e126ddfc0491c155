//! `perf stat -x,`: lines of value, unit, event, variance with `-r`, running time, percentage of running time, and a metric (perf-stat(1),
//! "CSV FORMAT"). `--per-core`, `-A`, `-I` and others put fields before the value.

use std::collections::BTreeSet;

use super::Part;
use super::located::{Refusal, Text, count, short};
use super::table::{Row, rows};
use crate::measurement::{Counts, FilePosition, Reading};

/// Separators that `perf stat -x` is often given.
const SEPARATORS: [char; 4] = [',', ';', '\t', '|'];

/// Units of perf's values. Hardware events have none.
const UNITS: [&str; 7] = ["", "msec", "ns", "Joules", "Bytes", "MiB", "Watts"];

/// Returns the first of `SEPARATORS` that occurs at least 4 times in a line; none if no separator does, so that the line is not perf's CSV.
pub(super) fn separator(line: &str) -> Option<char> {
    SEPARATORS
        .into_iter()
        .find(|&separator| line.matches(separator).count() >= 4)
}

/// A line of `perf stat` about one event, in CSV or JSON.
pub(super) struct Line<'a> {
    pub event: &'a str,
    /// The count, or the text that perf wrote in place of a count.
    pub value: Result<f64, &'a str>,
    /// Part of the time in which the counter ran, from 0 to 1.
    pub running: f64,
    pub position: FilePosition,
}

/// Adds a line to the counts. Lines of one event in different scopes are summed. `scope` names the CPU, core or interval of the line, and a
/// scope that occurs twice for one event is refused.
pub(super) fn add(
    counts: &mut Counts,
    seen: &mut BTreeSet<(String, String)>,
    scope: String,
    line: Line<'_>,
) -> Result<(), String> {
    let key = (scope, line.event.to_owned());
    if !seen.insert(key) {
        return Err(format!(
            "{} stands here twice with different counts of one thing; perf was given it twice, so leave one",
            line.event
        ));
    }
    let reading = match line.value {
        Ok(value) => Reading {
            running: line.running,
            ..Reading::new(line.event, value, Some(line.position))
        },
        Err(said) => Reading::unread(line.event, said, Some(line.position)),
    };
    counts.add(reading)
}

/// Reads a file of `perf stat -x`.
pub(super) fn parse(text: Text<'_>) -> Result<Part, Refusal> {
    let first = text
        .text
        .lines()
        .find(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let separator = first.and_then(separator).unwrap_or(',');
    let mut counts = Counts::default();
    let mut seen = BTreeSet::new();
    for row in rows(text, separator, false)? {
        let fields = row.fields();
        // Lines with five empty fields in a row hold only another metric of the event in the line before.
        if fields
            .windows(5)
            .any(|five| five.iter().all(|field| field.is_empty()))
        {
            continue;
        }
        let (scope, line) = read(&row, &fields)?;
        let at = fields
            .iter()
            .position(|field| *field == line.event)
            .unwrap_or(0);
        add(&mut counts, &mut seen, scope, line).map_err(|message| row.refuse(at, message))?;
    }
    Ok(Part {
        tool: "perf stat".into(),
        whole: counts,
        ..Part::default()
    })
}

fn read<'a>(row: &Row<'_>, fields: &[&'a str]) -> Result<(String, Line<'a>), Refusal> {
    let name = |field: &&str| {
        field.starts_with(|c: char| c.is_ascii_alphabetic() || c == '{') && !UNITS.contains(field)
    };
    // The event is the first name, other than a unit, from the third field on.
    let Some(event) = (2..fields.len()).find(|&at| name(&fields[at])) else {
        let why = if row.is_cut() {
            "the file ends in the middle of a line; it is cut, so copy it again"
        } else {
            "has no event in this line; perf stat -x, writes value, unit, event, time, percent"
        };
        return Err(row.refuse(fields.len(), why));
    };
    let (value_at, unit_at) = (event - 2, event - 1);
    if !UNITS.contains(&fields[unit_at]) {
        return Err(row.refuse(
            unit_at,
            format!(
                "unknown unit {:?}; counts of events have none, and times are in msec or ns",
                short(fields[unit_at])
            ),
        ));
    }
    let said = fields[value_at];
    let value = if said.starts_with('<') {
        if said != "<not counted>" && said != "<not supported>" {
            return Err(row.refuse(
                value_at,
                format!("{said:?} is not a number, and nothing that perf writes in place of one"),
            ));
        }
        Err(said)
    } else {
        Ok(count(said).map_err(|message| row.refuse(value_at, message))?)
    };
    let mut next = event + 1;
    // `perf stat -r` adds the deviation between the runs.
    if let Some(deviation) = fields.get(next).and_then(|field| field.strip_suffix('%')) {
        count(deviation).map_err(|message| row.refuse(next, message))?;
        next += 1;
    }
    let number = |at: usize, what: &str| match fields.get(at) {
        Some(field) => {
            count(field).map_err(|message| row.refuse(at, format!("{message} ({what})")))
        }
        None if row.is_cut() => Err(row.refuse(
            at,
            format!(
                "the file ends before the {what} of {}; it is cut, so copy it again",
                fields[event]
            ),
        )),
        None => Err(row.refuse(
            at,
            format!(
                "has no {what} of {}; perf stat -x, writes value, unit, event, time, percent",
                fields[event]
            ),
        )),
    };
    number(next, "running time")?;
    let percent = number(next + 1, "percentage of running time")?;
    if percent > 100.5 {
        return Err(row.refuse(
            next + 1,
            format!("{percent} % of the time is more than all of it"),
        ));
    }
    // A metric and its unit may follow. Fields after them are refused.
    if let Some(extra) = fields
        .iter()
        .skip(next + 4)
        .position(|field| !field.is_empty())
    {
        let at = next + 4 + extra;
        return Err(row.refuse(at, format!("unknown column {:?}; perf stat -x, writes value, unit, event, time, percent, metric, its unit", short(fields[at]))));
    }
    if let Some(metric) = fields.get(next + 2).filter(|metric| !metric.is_empty())
        && !metric.starts_with(['-', 'n', 'i'])
    {
        count(metric).map_err(|message| row.refuse(next + 2, format!("{message} (metric)")))?;
    }
    let line = Line {
        event: fields[event],
        value,
        running: percent.min(100.0) / 100.0,
        position: row.position(value_at),
    };
    Ok((fields[..value_at].join(" "), line))
}
