//! VTune: `vtune -report summary -format csv`, lines of level, metric and value, and the table of hardware events in it (VTune user guide,
//! "Generate Command Line Reports").

use super::Part;
use super::located::{Refusal, Text, count};
use super::table::{Row, rows};
use crate::measurement::Reading;
use crate::quantity::Quantity as Q;

/// Separators of a report. VTune writes tabs unless `-csv-delimiter` names another one.
const SEPARATORS: [char; 3] = [',', '\t', ';'];

/// Metrics of the summary that are read, by VTune's names.
const METRICS: [(&str, Q); 7] = [
    ("Clockticks", Q::Cycles),
    ("Instructions Retired", Q::Instructions),
    ("Retiring", Q::ShareRetiring),
    ("Bad Speculation", Q::ShareBadSpeculation),
    ("Front-End Bound", Q::ShareFrontend),
    ("Back-End Bound", Q::ShareBackend),
    ("Memory Bound", Q::ShareMemory),
];

/// Largest relative difference between VTune's CPI Rate, which is rounded, and cycles divided by instructions.
const ROUNDED: f64 = 0.01;

/// Returns whether a line is the header of VTune's summary.
pub(super) fn is_header(line: &str) -> bool {
    line.contains("Metric Name") && line.contains("Metric Value")
}

/// Reads a file of `vtune -report summary -format csv`.
pub(super) fn parse(text: Text<'_>) -> Result<Part, Refusal> {
    let first = text
        .text
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default();
    let separator = SEPARATORS
        .into_iter()
        .find(|&separator| first.contains(separator))
        .unwrap_or(',');
    let rows = rows(text, separator, true)?;
    let mut part = Part {
        tool: "VTune".into(),
        ..Part::default()
    };
    let mut rate = None;
    // The table of hardware events has its own header, and its lines have other fields.
    let mut events = false;
    let mut rows = rows.iter();
    let Some(head) = rows.next() else {
        return Err(text.refuse(0, "is empty"));
    };
    let name = column(head, "Metric Name")?;
    let value = column(head, "Metric Value")?;
    for row in rows {
        let fields = row.fields();
        let Some(metric) = fields.get(name).copied() else {
            return Err(row.refuse(
                fields.len(),
                "has no metric; the file is cut or damaged, so copy it again",
            ));
        };
        let level = fields[0];
        if name > 0 && level.parse::<u32>().is_err() {
            return Err(row.refuse(
                0,
                format!("{level:?} is not a level; VTune writes a number before each metric"),
            ));
        }
        if metric == "Hardware Event Type" {
            events = true;
            if fields.get(value) != Some(&"Hardware Event Count") {
                return Err(row.refuse(
                    value,
                    "unknown column; VTune writes Hardware Event Count behind Hardware Event Type",
                ));
            }
            continue;
        }
        if events && level == "0" {
            events = false;
        }
        if metric == "CPU" || metric == "Name" {
            // The processor's name is in the platform part at the end of the report.
            if metric == "Name" {
                part.processor = part
                    .processor
                    .or(fields.get(value).map(|&name| name.to_owned()));
            }
            continue;
        }
        if events {
            let count = number(row, &fields, value, metric)?;
            add(
                &mut part,
                row,
                value,
                Reading::new(metric, count, Some(row.position(value))),
            )?;
            continue;
        }
        if metric == "CPI Rate" {
            rate = Some((row, number(row, &fields, value, metric)?));
            continue;
        }
        let Some((title, quantity)) = METRICS.iter().find(|(title, _)| *title == metric) else {
            continue;
        };
        // VTune writes N/A for metrics that the processor cannot measure or that have too few samples.
        if fields
            .get(value)
            .is_some_and(|field| field.starts_with("N/A"))
        {
            add(
                &mut part,
                row,
                value,
                of(
                    Reading::unread(title, "N/A", Some(row.position(value))),
                    *quantity,
                ),
            )?;
            continue;
        }
        let mut number = number(row, &fields, value, metric)?;
        if quantity.is_share() {
            if number > 100.0 {
                return Err(row.refuse(
                    value,
                    format!("{number} % of the slots is more than all of them"),
                ));
            }
            number /= 100.0;
        }
        add(
            &mut part,
            row,
            value,
            of(
                Reading::new(title, number, Some(row.position(value))),
                *quantity,
            ),
        )?;
    }
    if let (Some((row, rate)), Some(cycles), Some(instructions)) = (
        rate,
        part.whole.value(Q::Cycles),
        part.whole.value(Q::Instructions),
    ) {
        let own = cycles / instructions;
        if (own - rate).abs() > ROUNDED * rate.max(own) {
            return Err(row.refuse(value, format!("a CPI Rate of {rate} contradicts the cycles and instructions of this file, which give {own:.3}")));
        }
    }
    if part.whole.readings.is_empty() {
        return Err(head.refuse(0, "has no metric that is used here; report a result of the analyses uarch-exploration, hpc-performance or memory-access"));
    }
    Ok(part)
}

fn of(reading: Reading, quantity: Q) -> Reading {
    Reading {
        quantity: Some(quantity),
        ..reading
    }
}

/// Adds a reading to the whole. A metric that the report repeats with the same value is added once; with another value, the file is
/// refused.
fn add(part: &mut Part, row: &Row<'_>, at: usize, reading: Reading) -> Result<(), Refusal> {
    let known = part
        .whole
        .readings
        .iter()
        .find(|known| known.event == reading.event);
    match known {
        Some(known) if known.value != reading.value => Err(row.refuse(
            at,
            format!(
                "{} stands here twice with different values; report one result",
                reading.event
            ),
        )),
        Some(_) => Ok(()),
        None => part
            .whole
            .push(reading)
            .map_err(|message| row.refuse(at, message)),
    }
}

fn column(head: &Row<'_>, name: &str) -> Result<usize, Refusal> {
    let fields = head.fields();
    if let Some((at, unknown)) = fields
        .iter()
        .enumerate()
        .find(|(_, field)| !["Hierarchy Level", "Metric Name", "Metric Value", ""].contains(field))
    {
        return Err(head.refuse(at, format!("unknown column {unknown:?}; VTune writes Hierarchy Level, Metric Name, Metric Value")));
    }
    fields
        .iter()
        .position(|field| *field == name)
        .ok_or_else(|| head.refuse(0, format!("has no column {name:?}; VTune writes Hierarchy Level, Metric Name, Metric Value")))
}

fn number(row: &Row<'_>, fields: &[&str], at: usize, metric: &str) -> Result<f64, Refusal> {
    match fields.get(at) {
        Some(field) => {
            let plain = field.strip_suffix('%').unwrap_or(field).trim_end();
            let unit = plain.split_once(' ').map(|(_, unit)| unit);
            if let Some(unit) = unit {
                return Err(row.refuse(
                    at,
                    format!("unknown unit {unit:?} of {metric}; VTune's CSV has plain numbers"),
                ));
            }
            count(plain).map_err(|message| row.refuse(at, format!("{message} ({metric})")))
        }
        None => Err(row.refuse(
            fields.len(),
            format!("{metric} has no value; the file is cut or damaged, so copy it again"),
        )),
    }
}
