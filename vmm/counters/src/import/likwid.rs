//! LIKWID: the output of `likwid-perfctr -O`, tables of events by hardware thread (likwid-perfctr(1); the tables are those that
//! `printOutput` of its Lua library writes).
//!
//! LIKWID measures several groups of events in turn, each in other parts of the run. The counts of each further group are scaled by the
//! ratio of the first group's instructions to the group's own.

use std::collections::{BTreeMap, BTreeSet};

use super::Part;
use super::located::{Refusal, Text, count, some};
use super::table::{Row, rows};
use crate::measurement::{Counts, Reading};
use crate::quantity::Quantity;

/// Greatest relative difference between the sum over all threads that LIKWID wrote, which may be rounded to few digits, and the sum of the
/// threads' counts.
const ROUNDED: f64 = 1e-3;

/// First line of a table: `TABLE,Group 1 Raw,NAME,LINES` or `TABLE,Region X,Group 1 Raw,NAME,LINES`.
struct Head {
    region: Option<String>,
    group: u32,
    kind: Kind,
    lines: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Raw,
    Statistics,
    Metric,
}

/// Reads the counts from the output of `likwid-perfctr -O`.
pub(super) fn parse(text: Text<'_>) -> Result<Part, Refusal> {
    let rows = rows(text, ',', false)?;
    let mut part = Part {
        tool: "likwid-perfctr".into(),
        ..Part::default()
    };
    let mut groups: BTreeMap<u32, Counts> = BTreeMap::new();
    let mut regions = BTreeSet::new();
    let mut rows = rows.iter().peekable();
    while let Some(row) = rows.next() {
        let fields = row.fields();
        match fields[0] {
            "CPU name:" => part.processor = fields.get(1).map(|&name| name.to_owned()),
            "TABLE" => {
                let head = head(row, &fields)?;
                regions.extend(head.region.clone());
                let counts = groups.entry(head.group).or_default();
                table(text, &head, &mut rows, counts)?;
            }
            // The program's own output may be between the tables.
            _ => {}
        }
    }
    let mut groups = groups.into_iter();
    let Some((first, counts)) = groups.next() else {
        return Err(text.refuse(
            0,
            "has no table of raw counts; give the whole output of likwid-perfctr -O",
        ));
    };
    part.whole = counts;
    let base = part.whole.value(Quantity::Instructions);
    for (number, counts) in groups {
        join(&mut part, first, base, number, counts).map_err(|message| text.refuse(0, message))?;
    }
    if !regions.is_empty() {
        part.notes.push(format!(
            "counts are of the marked regions alone, added up: {}",
            some(&regions)
        ));
    }
    Ok(part)
}

/// Adds the events of a further group, scaled to the instructions of the first one (`base`).
fn join(
    part: &mut Part,
    first: u32,
    base: Option<f64>,
    number: u32,
    counts: Counts,
) -> Result<(), String> {
    let own = counts
        .value(Quantity::Instructions)
        .filter(|&own| own > 0.0);
    let (Some(base), Some(own)) = (base, own) else {
        return Err(format!(
            "groups {first} and {number} were measured in turn, but not both count instructions, so that their counts cannot be compared; add INSTR_RETIRED_ANY to both"
        ));
    };
    let scale = base / own;
    for reading in counts.readings {
        if part
            .whole
            .readings
            .iter()
            .any(|known| known.event == reading.event)
        {
            continue;
        }
        part.whole.push(Reading {
            value: reading.value.map(|value| (value * scale).round()),
            running: (1.0 / scale).min(1.0),
            ..reading
        })?;
    }
    let note = "groups of events were measured in turn and are scaled by their instructions";
    if !part.notes.iter().any(|known| known == note) {
        part.notes.push(note.into());
    }
    Ok(())
}

fn head(row: &Row<'_>, fields: &[&str]) -> Result<Head, Refusal> {
    let mut at = 1;
    let field = |at: usize| fields.get(at).copied().unwrap_or_default();
    let region = field(at).strip_prefix("Region ").map(str::to_owned);
    at += usize::from(region.is_some());
    let words: Vec<&str> = field(at).split(' ').collect();
    let (group, kind) = match words.as_slice() {
        ["Group", number, kind @ ..] => (number.parse().ok(), kind.join(" ")),
        _ => (None, String::new()),
    };
    let kind = match kind.to_ascii_lowercase().as_str() {
        "raw" => Some(Kind::Raw),
        "raw stat" => Some(Kind::Statistics),
        "metric" | "metric stat" => Some(Kind::Metric),
        _ => None,
    };
    let (Some(group), Some(kind)) = (group, kind) else {
        return Err(row.refuse(
            at,
            format!(
                "unknown table {:?}; LIKWID writes e.g. Group 1 Raw",
                field(at)
            ),
        ));
    };
    let lines = field(at + 2).parse().map_err(|_| {
        row.refuse(
            at + 2,
            format!("{:?} is not the number of the table's lines", field(at + 2)),
        )
    })?;
    Ok(Head {
        region,
        group,
        kind,
        lines,
    })
}

/// Reads the lines of a table, and adds the counts of a raw table to `counts`.
fn table<'r, 'a: 'r>(
    text: Text<'_>,
    head: &Head,
    rows: &mut std::iter::Peekable<impl Iterator<Item = &'r Row<'a>>>,
    counts: &mut Counts,
) -> Result<(), Refusal> {
    let cut = || {
        text.refuse(
            text.text.trim_end().len(),
            "the file ends in the middle of a table; it is cut, so copy it again",
        )
    };
    let mut columns: Vec<Column> = Vec::new();
    let mut lines = 0;
    // The table's number of lines does not include the line with the columns' names.
    while lines < head.lines || columns.is_empty() {
        let Some(row) = rows.next() else {
            return Err(cut());
        };
        let fields = row.fields();
        if fields[0] == "TABLE" || fields[0] == "STRUCT" {
            return Err(row.refuse(
                0,
                format!("the table before has {lines} of {} lines", head.lines),
            ));
        }
        // Tables of regions begin with their run times and calls.
        if ["Region Info", "RDTSC Runtime [s]", "call count"].contains(&fields[0]) {
            continue;
        }
        if head.kind == Kind::Metric {
            if columns.is_empty() {
                columns.push(Column::Empty);
            } else {
                lines += 1;
            }
            continue;
        }
        if columns.is_empty() {
            columns = names(row, &fields)?;
            continue;
        }
        lines += 1;
        line(head, row, &fields, &columns, counts)?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Event,
    Counter,
    /// A hardware thread; LIKWID 4 writes `Core` in its name.
    Thread,
    Sum,
    OtherStatistic,
    Empty,
}

fn names(row: &Row<'_>, fields: &[&str]) -> Result<Vec<Column>, Refusal> {
    let column = |(at, name): (usize, &&str)| {
        Ok(match *name {
            "Event" => Column::Event,
            "Counter" => Column::Counter,
            "Sum" => Column::Sum,
            "Min" | "Max" | "Avg" | "%ile 25" | "%ile 50" | "%ile 75" => Column::OtherStatistic,
            "" => Column::Empty,
            name if name.starts_with("HWThread ") || name.starts_with("Core ") => Column::Thread,
            name => return Err(row.refuse(
                at,
                format!(
                    "unknown column {name:?}; LIKWID writes Event, Counter, HWThread 0 and so on"
                ),
            )),
        })
    };
    let columns = fields
        .iter()
        .enumerate()
        .map(column)
        .collect::<Result<Vec<_>, _>>()?;
    if columns.first() != Some(&Column::Event) {
        return Err(row.refuse(
            0,
            format!(
                "{:?} stands where a table of LIKWID's begins with Event",
                fields[0]
            ),
        ));
    }
    Ok(columns)
}

fn line(
    head: &Head,
    row: &Row<'_>,
    fields: &[&str],
    columns: &[Column],
    counts: &mut Counts,
) -> Result<(), Refusal> {
    let event = fields[0];
    if event == "Runtime (RDTSC) [s]" || fields.get(1) == Some(&"TSC") {
        return Ok(());
    }
    if fields.len() < columns.len() {
        return Err(row.refuse(
            fields.len(),
            format!(
                "{event} has {} of {} columns; the file is damaged, so copy it again",
                fields.len(),
                columns.len()
            ),
        ));
    }
    if head.kind == Kind::Statistics {
        return statistics(head, row, fields, columns, counts);
    }
    for (at, column) in columns.iter().enumerate() {
        if *column != Column::Thread {
            continue;
        }
        let position = Some(row.position(at));
        let reading = match fields[at] {
            "-" | "nan" | "nil" => Reading::unread(event, fields[at], position),
            text => Reading::new(
                event,
                count(text).map_err(|message| row.refuse(at, message))?,
                position,
            ),
        };
        counts
            .add(reading)
            .map_err(|message| row.refuse(0, message))?;
    }
    Ok(())
}

/// Checks that the sum that LIKWID wrote agrees with the sum of the threads' counts. Sums of regions are not checked.
fn statistics(
    head: &Head,
    row: &Row<'_>,
    fields: &[&str],
    columns: &[Column],
    counts: &Counts,
) -> Result<(), Refusal> {
    let Some(at) = columns.iter().position(|column| *column == Column::Sum) else {
        return Ok(());
    };
    let event = fields[0].strip_suffix(" STAT").unwrap_or(fields[0]);
    let own = counts
        .readings
        .iter()
        .find(|reading| reading.event == event);
    // With several regions, `counts` is their sum, and this table has the sum of only one.
    let (Some(value), None) = (own.and_then(|reading| reading.value), &head.region) else {
        return Ok(());
    };
    let sum = count(fields[at]).map_err(|message| row.refuse(at, message))?;
    if (sum - value).abs() > ROUNDED * value.max(1.0) {
        return Err(row.refuse(at, format!("the sum {sum} of {event} contradicts its threads, which have {value}; the file is damaged, so copy it again")));
    }
    Ok(())
}
