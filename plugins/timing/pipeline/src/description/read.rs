//! Descriptions of cores as text.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Table, Value};

use super::{
    Bandwidth, Core, Costs, DescriptionError, Groups, Load, Pipeline, Recipe, Renaming, Scheduler,
    Step, Store, Strings, Tlb, check, preset_text,
};
use crate::class::Class;
use crate::micro::Ports;

/// Bytes of a line.
const LINE: f64 = 64.0;
/// Most ports of a core.
const MOST_PORTS: usize = Ports::BITS as usize;
/// Longest chain of descriptions that are based on each other.
const DEEPEST: usize = 8;

/// A description as it is written. Sets of ports are names of ports and groups, separated by spaces.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    name: String,
    title: String,
    validated: bool,
    sources: String,
    ports: Vec<String>,
    #[serde(default)]
    groups: Groups,
    pipeline: Pipeline,
    renaming: Renaming,
    schedulers: Vec<SchedulerText>,
    load: LoadText,
    store: StoreText,
    #[serde(default)]
    bandwidth: BandwidthText,
    tlb: Tlb,
    strings: Strings,
    costs: Costs,
    classes: BTreeMap<Class, Vec<StepText>>,
    #[serde(default)]
    slots: BTreeMap<Class, u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SchedulerText {
    entries: u32,
    ports: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadText {
    ports: String,
    vector_ports: String,
    bytes: u32,
    queue: u32,
    latency: u16,
    vector_latency: u16,
    indexed_latency: u16,
    complex_latency: u16,
    split_latency: u16,
    line_fills: u32,
    second_level_misses: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoreText {
    address_ports: String,
    data_ports: String,
    vector_data_ports: String,
    bytes: u32,
    queue: u32,
    commits: u32,
    commits_together: bool,
    early: u32,
    forward: u16,
    forward_same: Option<u16>,
    forward_vector: u16,
    failed_forward: u16,
    split_commit: u16,
    page_split_commit: u16,
}

/// Bytes that one core gets in a cycle; 0 for no limit.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BandwidthText {
    second_level: f64,
    third_level: f64,
    other_cache: f64,
    memory: f64,
    remote_memory: f64,
    second_level_written: f64,
    third_level_written: f64,
    memory_written: f64,
}

impl BandwidthText {
    fn resolve(&self) -> Result<Bandwidth, DescriptionError> {
        let each_line = |field: &str, bytes: f64| match bytes {
            0.0 => Ok(0),
            0.001..=1e6 => Ok((LINE * 256.0 / bytes).round() as u32),
            _ => Err(wrong(
                &format!("bandwidth.{field}"),
                "is not from 0.001 to 1,000,000 bytes in a cycle, nor 0 for no limit",
            )),
        };
        let share = |field: &str, share: f64| match share {
            0.0..=1.0 => Ok((share * 256.0).round() as u32),
            _ => Err(wrong(
                &format!("bandwidth.{field}"),
                "is not from 0 to 1, the share of a line's time that a written line takes on its way back",
            )),
        };
        Ok(Bandwidth {
            written: [
                share("second_level_written", self.second_level_written)?,
                share("third_level_written", self.third_level_written)?,
                share("memory_written", self.memory_written)?,
            ],
            second_level: each_line("second_level", self.second_level)?,
            third_level: each_line("third_level", self.third_level)?,
            other_cache: each_line("other_cache", self.other_cache)?,
            memory: each_line("memory", self.memory)?,
            remote_memory: each_line("remote_memory", self.remote_memory)?,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepText {
    ports: String,
    latency: u16,
    #[serde(default = "one")]
    busy: u16,
    #[serde(default = "one")]
    count: u8,
    #[serde(default)]
    beside: bool,
}

fn one<T: From<u8>>() -> T {
    T::from(1)
}

/// Reads a description.
pub(super) fn core(text: &str) -> Result<Core, DescriptionError> {
    let text: Text = with_bases(text)?.try_into().map_err(Box::new)?;
    let core = resolve(text)?;
    check::core(&core)?;
    Ok(core)
}

/// Returns a description with all that it takes over from its bases.
fn with_bases(text: &str) -> Result<Table, DescriptionError> {
    let mut all: Table = text.parse().map_err(Box::new)?;
    for _ in 0..DEEPEST {
        let Some(base) = all.remove("base") else {
            return Ok(all);
        };
        let Value::String(base) = base else {
            return Err(wrong("base", "is no name of a core"));
        };
        let mut table: Table = preset_text(&base)?.parse().map_err(Box::new)?;
        overlay(&mut table, all);
        all = table;
    }
    Err(wrong("base", "goes through too many descriptions"))
}

/// Puts the values of a table over those of another. Tables are merged, other values replaced.
fn overlay(below: &mut Table, above: Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(Value::Table(inner)), Value::Table(table)) => overlay(inner, table),
            (_, value) => drop(below.insert(key, value)),
        }
    }
}

fn wrong(field: &str, problem: impl Into<String>) -> DescriptionError {
    DescriptionError::Value {
        field: field.into(),
        problem: problem.into(),
    }
}

/// Names of ports and groups, with their bits.
struct Names<'a> {
    ports: &'a [String],
    groups: &'a Groups,
}

impl Names<'_> {
    /// Returns the set that names stand for.
    fn set(&self, field: &str, names: &str) -> Result<Ports, DescriptionError> {
        let mut set = 0;
        for name in names.split_whitespace() {
            let bit = self.ports.iter().position(|port| port == name);
            set |= match (bit, self.groups.get(name)) {
                (Some(bit), _) => 1 << bit,
                (None, Some(members)) => self.members(name, members)?,
                (None, None) => return Err(wrong(field, format!("there is no port {name:?}"))),
            };
        }
        match set {
            0 => Err(wrong(field, "names no port")),
            set => Ok(set),
        }
    }

    /// Returns the set of a group. Its members are ports.
    fn members(&self, group: &str, members: &str) -> Result<Ports, DescriptionError> {
        let mut set = 0;
        for name in members.split_whitespace() {
            let bit = self.ports.iter().position(|port| port == name);
            let bit = bit.ok_or_else(|| {
                wrong(
                    &format!("groups.{group}"),
                    format!("there is no port {name:?}"),
                )
            })?;
            set |= 1 << bit;
        }
        Ok(set)
    }
}

fn resolve(text: Text) -> Result<Core, DescriptionError> {
    if !(1..=MOST_PORTS).contains(&text.ports.len()) {
        return Err(wrong("ports", format!("are not 1 to {MOST_PORTS}")));
    }
    let names = Names {
        ports: &text.ports,
        groups: &text.groups,
    };
    let schedulers = text
        .schedulers
        .iter()
        .map(|scheduler| {
            Ok(Scheduler {
                entries: scheduler.entries,
                ports: names.set("schedulers.ports", &scheduler.ports)?,
            })
        })
        .collect::<Result<_, DescriptionError>>()?;
    Ok(Core {
        schedulers,
        load: load(&text.load, &names)?,
        store: store(&text.store, &names)?,
        recipes: recipes(&text, &names)?,
        bandwidth: text.bandwidth.resolve()?,
        name: text.name,
        title: text.title,
        validated: text.validated,
        sources: text.sources,
        ports: text.ports,
        pipeline: text.pipeline,
        renaming: text.renaming,
        tlb: text.tlb,
        strings: text.strings,
        costs: text.costs,
    })
}

fn load(text: &LoadText, names: &Names<'_>) -> Result<Load, DescriptionError> {
    Ok(Load {
        ports: names.set("load.ports", &text.ports)?,
        vector_ports: names.set("load.vector_ports", &text.vector_ports)?,
        bytes: text.bytes,
        queue: text.queue,
        latency: text.latency,
        vector_latency: text.vector_latency,
        indexed_latency: text.indexed_latency,
        complex_latency: text.complex_latency,
        split_latency: text.split_latency,
        line_fills: text.line_fills,
        second_level_misses: text.second_level_misses,
    })
}

fn store(text: &StoreText, names: &Names<'_>) -> Result<Store, DescriptionError> {
    Ok(Store {
        address_ports: names.set("store.address_ports", &text.address_ports)?,
        data_ports: names.set("store.data_ports", &text.data_ports)?,
        vector_data_ports: names.set("store.vector_data_ports", &text.vector_data_ports)?,
        bytes: text.bytes,
        queue: text.queue,
        commits: text.commits,
        commits_together: text.commits_together,
        early: text.early,
        forward: text.forward,
        forward_same: text.forward_same.unwrap_or(text.forward),
        forward_vector: text.forward_vector,
        failed_forward: text.failed_forward,
        split_commit: text.split_commit,
        page_split_commit: text.page_split_commit,
    })
}

/// Returns the micro-operations of all classes.
fn recipes(text: &Text, names: &Names<'_>) -> Result<Vec<Recipe>, DescriptionError> {
    Class::ALL
        .iter()
        .map(|class| {
            let field = format!("classes.{}", class.name());
            let steps = text
                .classes
                .get(class)
                .ok_or_else(|| wrong(&field, "is missing"))?
                .iter()
                .map(|step| {
                    Ok(Step {
                        ports: names.set(&field, &step.ports)?,
                        latency: step.latency,
                        busy: step.busy,
                        count: step.count,
                        beside: step.beside,
                    })
                })
                .collect::<Result<Vec<Step>, DescriptionError>>()?;
            let sum = steps
                .iter()
                .fold(0_u8, |sum, step| sum.saturating_add(step.count));
            let slots = text.slots.get(class).copied().unwrap_or(sum.max(1));
            Ok(Recipe { steps, slots })
        })
        .collect()
}
