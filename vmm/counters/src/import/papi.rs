//! PAPI's high-level output, `papi_hl_output/rank_000000.json` (PAPI 6.0 and later; papi wiki, "PAPI-HL"): the counts of regions, by thread.
//!
//! A region's counts include those of the regions inside it, so only the outermost regions are added up. `cycles` of a region are ticks of
//! the time-stamp counter, not cycles of the core, and are left out.

use std::collections::BTreeSet;

use super::Part;
use super::located::{Member, Node, Refusal, Text, some};
use crate::measurement::{Counts, Reading};

/// Members of a region that are not counts of events.
const NO_EVENTS: [&str; 6] = [
    "name",
    "parent_region_id",
    "region_count",
    "cycles",
    "real_time_nsec",
    "virtual_time_nsec",
];
/// Members of the file other than the threads.
const HEAD: [&str; 6] = [
    "papi_version",
    "cpu_info",
    "max_cpu_rate_mhz",
    "min_cpu_rate_mhz",
    "cpu in mhz",
    "event_definitions",
];

/// Returns whether a JSON text has PAPI's format: an object with a member `threads`.
pub(super) fn is_papi(text: Text<'_>) -> Result<bool, Refusal> {
    let object = text.json(text.text)?.object()?;
    Ok(object.iter().any(|member| member.key == "threads"))
}

/// Reads a file of PAPI's high-level output.
pub(super) fn parse(text: Text<'_>) -> Result<Part, Refusal> {
    let root = text.json(text.text)?;
    let mut part = Part {
        tool: "PAPI".into(),
        ..Part::default()
    };
    let mut events: Option<BTreeSet<String>> = None;
    let mut threads = None;
    for member in root.object()? {
        match member.key.as_ref() {
            "threads" => threads = Some(member.value),
            "cpu_info" => part.processor = Some(member.value.string()?),
            "event_definitions" => {
                let names = member
                    .value
                    .object()?
                    .into_iter()
                    .map(|event| event.key.into_owned());
                events = Some(names.collect());
            }
            key if HEAD.contains(&key) => {}
            key => {
                return Err(member.value.refuse(format!(
                    "unknown column {key:?}; PAPI writes {} and threads",
                    HEAD.join(", ")
                )));
            }
        }
    }
    let threads = threads.ok_or_else(|| {
        root.refuse("has no threads; give a file of PAPI's folder papi_hl_output")
    })?;
    let mut names = BTreeSet::new();
    for thread in members(&threads)? {
        for member in thread.object()? {
            match member.key.as_ref() {
                "regions" => {
                    for region in regions(&member.value)? {
                        add(&region, events.as_ref(), &mut part.whole, &mut names)?;
                    }
                }
                "id" => {}
                key => {
                    return Err(member
                        .value
                        .refuse(format!("unknown column {key:?}; a thread has regions")));
                }
            }
        }
    }
    if part.whole.readings.is_empty() {
        return Err(
            threads.refuse("holds no region with events; set PAPI_EVENTS and measure again")
        );
    }
    part.notes.push(format!(
        "counts are of the instrumented regions alone: {}",
        some(&names)
    ));
    Ok(part)
}

/// Lists the threads, which are an object with the thread numbers as keys since PAPI 7, and an array in PAPI 6.
fn members<'a>(node: &Node<'a>) -> Result<Vec<Node<'a>>, Refusal> {
    if node.is_object() {
        return Ok(node
            .object()?
            .into_iter()
            .map(|member| member.value)
            .collect());
    }
    node.array()
}

/// Lists the regions of a thread. The name is none where the region has a member `name`; PAPI 6 has the name as the key instead.
fn regions<'a>(node: &Node<'a>) -> Result<Vec<(Node<'a>, Option<String>)>, Refusal> {
    if node.is_object() {
        return Ok(node
            .object()?
            .into_iter()
            .map(|member| (member.value, None))
            .collect());
    }
    let mut list = Vec::new();
    for region in node.array()? {
        for member in region.object()? {
            list.push((member.value, Some(member.key.into_owned())));
        }
    }
    Ok(list)
}

fn add(
    (region, key): &(Node<'_>, Option<String>),
    events: Option<&BTreeSet<String>>,
    counts: &mut Counts,
    names: &mut BTreeSet<String>,
) -> Result<(), Refusal> {
    let members = region.object()?;
    let find = |key: &str| members.iter().find(|member| member.key == key);
    let parent = find("parent_region_id")
        .map(|member| member.value.string())
        .transpose()?;
    if parent.is_some_and(|parent| parent != "-1") {
        return Ok(());
    }
    match (find("name"), key) {
        (Some(name), _) => names.insert(name.value.string()?),
        (None, Some(key)) => names.insert(key.clone()),
        (None, None) => return Err(region.refuse("has no name; a region of PAPI's has one")),
    };
    for Member { key, value } in &members {
        if NO_EVENTS.contains(&key.as_ref()) {
            continue;
        }
        if events.is_some_and(|events| !events.contains(key.as_ref())) {
            return Err(value.refuse(format!(
                "unknown column {key:?}; event_definitions has no such event"
            )));
        }
        // With PAPI_hl_read, a count is an object of intermediate values and a total.
        let value = match value.is_object() {
            true => {
                let inner = value.object()?;
                let whole = inner
                    .into_iter()
                    .find(|member| member.key == "region_value" || member.key == "total");
                whole
                    .ok_or_else(|| value.refuse(format!("{key} has no region_value")))?
                    .value
            }
            false => *value,
        };
        let reading = Reading::new(key, value.count()?, Some(value.position()));
        counts
            .add(reading)
            .map_err(|message| value.refuse(message))?;
    }
    Ok(())
}
