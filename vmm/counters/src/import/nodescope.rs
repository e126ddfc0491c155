//! Files of nodescope itself, which `nodescope counters --json` writes. `README.md` has the schema.

use super::Part;
use super::located::{Node, Refusal, Text};
use crate::formulas::Derived;
use crate::json::{FORMAT, VERSION};
use crate::measurement::{Counts, Measurement, Reading};
use crate::quantity::Quantity;

/// Largest relative difference between a derived figure or a sum over ranks in a file and that computed from the file's counts. Figures in
/// a file are rounded.
const ROUNDED: f64 = 1e-5;

/// Reads a file of `nodescope counters --json`.
pub(super) fn parse(text: Text<'_>) -> Result<Part, Refusal> {
    let root = text.json(text.text)?;
    let members = root.object()?;
    let Some(format) = members.iter().find(|member| member.key == "format") else {
        return Err(root.refuse(
            "is no format of counters that is known here; give the output of perf stat -x, or -j, likwid-perfctr -O, PAPI's papi_hl_output, vtune -report summary -format csv, or nodescope counters --json",
        ));
    };
    if format.value.string()? != FORMAT {
        return Err(format.value.refuse(format!(
            "is not {FORMAT:?}; give a file of nodescope counters --json"
        )));
    }
    let mut part = Part {
        tool: "nodescope counters".into(),
        ..Part::default()
    };
    let mut whole = None;
    let mut version = None;
    for member in &members {
        let value = &member.value;
        match member.key.as_ref() {
            "format" => {}
            "tool" => part.tool = value.string()?,
            "version" => version = Some((value.whole()?, *value)),
            "processor" => part.processor = Some(value.string()?),
            "ranks" => {
                for rank in value.array()? {
                    let (number, counts) = scope(&rank)?;
                    let number = number.ok_or_else(|| rank.refuse("has no rank; write its number, e.g. \"rank\": 0"))?;
                    if part.ranks.insert(number, counts).is_some() {
                        return Err(rank.refuse(format!("rank {number} stands here twice; leave one of them")));
                    }
                }
            }
            "whole" => whole = Some((scope(value)?.1, *value)),
            "notes" => {
                for note in value.array()? {
                    part.notes.push(note.string()?);
                }
            }
            key => return Err(value.refuse(format!("unknown column {key:?}; known here: format, version, tool, processor, ranks, whole, notes"))),
        }
    }
    match version {
        Some((VERSION, _)) => {}
        Some((version, node)) => {
            return Err(node.refuse(format!(
                "version {version} is not known here; this program reads version {VERSION}"
            )));
        }
        None => return Err(root.refuse("has no version; write \"version\": 1")),
    }
    match whole {
        Some((whole, node)) => {
            check_sum(&part, &whole, &node)?;
            part.whole = whole;
        }
        None if part.ranks.is_empty() => {
            return Err(root
                .refuse("has neither ranks nor whole; give a file of nodescope counters --json"));
        }
        None => {}
    }
    Ok(part)
}

/// Refuses a file whose counts of the whole program differ from the sum of its ranks.
fn check_sum(part: &Part, whole: &Counts, node: &Node<'_>) -> Result<(), Refusal> {
    if part.ranks.is_empty() {
        return Ok(());
    }
    let mut sum = Measurement {
        ranks: part.ranks.clone(),
        ..Measurement::default()
    };
    sum.sum_ranks();
    for reading in &whole.readings {
        let own = sum
            .whole
            .readings
            .iter()
            .find(|own| own.event == reading.event);
        let (Some(own), Some(value)) = (own.and_then(|own| own.value), reading.value) else {
            continue;
        };
        if (own - value).abs() > ROUNDED * own.max(1.0) {
            return Err(Refusal {
                position: reading.position.unwrap_or(node.position()),
                message: format!(
                    "{value} of {} contradicts the ranks, whose sum is {own}; leave out whole, or measure again",
                    reading.event
                ),
            });
        }
    }
    Ok(())
}

/// Reads the counts of a rank or of the whole program, and the rank's number if the object has one.
fn scope(node: &Node<'_>) -> Result<(Option<u32>, Counts), Refusal> {
    let mut rank = None;
    let mut counts = Counts::default();
    let mut derived = None;
    for member in node.object()? {
        match member.key.as_ref() {
            "rank" => rank = Some(member.value.whole()?),
            "events" => {
                for event in member.value.array()? {
                    let reading = reading(&event)?;
                    if counts
                        .readings
                        .iter()
                        .any(|known| known.event == reading.event)
                    {
                        return Err(event.refuse(format!(
                            "{} stands here twice; leave one of them",
                            reading.event
                        )));
                    }
                    counts
                        .push(reading)
                        .map_err(|message| event.refuse(message))?;
                }
            }
            "derived" => derived = Some(member.value),
            key => {
                return Err(member.value.refuse(format!(
                    "unknown column {key:?}; known here: rank, events, derived"
                )));
            }
        }
    }
    if counts.readings.is_empty() {
        return Err(node.refuse("has no events"));
    }
    if let Some(derived) = derived {
        check_derived(&derived, &counts)?;
    }
    Ok((rank, counts))
}

/// Refuses derived figures that differ from those computed from the counts.
fn check_derived(node: &Node<'_>, counts: &Counts) -> Result<(), Refusal> {
    let derived = Derived::new(counts).map_err(|problem| Refusal {
        position: problem.position.unwrap_or(node.position()),
        message: problem.message,
    })?;
    for member in node.object()? {
        let own = match member.key.as_ref() {
            "cpi" => Some(derived.cpi),
            "cpi_core" => derived.core.as_ref().ok().map(|core| core.cpi),
            "alpha" => derived.alpha,
            _ => continue,
        };
        let value = member.value.count()?;
        if own.is_none_or(|own| (own - value).abs() > ROUNDED * own.max(value)) {
            return Err(member.value.refuse(format!(
                "{} of {value} contradicts the events, which give {}; leave it out, it is not needed",
                member.key,
                own.map_or("none".to_owned(), |own| own.to_string())
            )));
        }
    }
    Ok(())
}

fn reading(node: &Node<'_>) -> Result<Reading, Refusal> {
    let members = node.object()?;
    let find = |key: &str| {
        members
            .iter()
            .find(|member| member.key == key)
            .map(|member| member.value)
    };
    let known = [
        "event",
        "quantity",
        "value",
        "unread",
        "running",
        "user_only",
    ];
    if let Some(unknown) = members
        .iter()
        .find(|member| !known.contains(&member.key.as_ref()))
    {
        return Err(unknown.value.refuse(format!(
            "unknown column {:?}; known here: {}",
            unknown.key,
            known.join(", ")
        )));
    }
    let event = find("event")
        .ok_or_else(|| node.refuse("has no event; write its name, e.g. \"event\": \"cycles\""))?
        .string()?;
    let mut reading = match (find("value"), find("unread")) {
        (Some(value), None) => Reading::new(&event, value.count()?, Some(value.position())),
        (None, Some(said)) => Reading::unread(&event, &said.string()?, Some(said.position())),
        _ => {
            return Err(node.refuse(format!(
                "{event} needs a value, or unread with why there is none"
            )));
        }
    };
    if let Some(quantity) = find("quantity") {
        let name = quantity.string()?;
        let quantity = Quantity::of_name(&name).ok_or_else(|| {
            let names: Vec<&str> = Quantity::all().map(Quantity::name).collect();
            quantity.refuse(format!(
                "unknown quantity {name:?}; quantities are {}",
                names.join(", ")
            ))
        })?;
        reading.quantity = Some(quantity);
    }
    if let Some(running) = find("running") {
        reading.running = running.count()?;
        if reading.running > 1.0 {
            return Err(
                running.refuse("is the part of the time in which the counter ran, from 0 to 1")
            );
        }
    }
    if let Some(user) = find("user_only") {
        reading.user_only = user.truth()?;
    }
    Ok(reading)
}
