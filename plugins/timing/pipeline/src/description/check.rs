//! Checks of descriptions of cores.

use super::{Core, DescriptionError};
use crate::class::Class;

/// Largest number of anything in a description. It keeps sums of times far from overflow.
const MOST: u64 = 1_000_000;

/// Checks that the numbers of a core are possible.
pub(super) fn core(core: &Core) -> Result<(), DescriptionError> {
    for (field, value) in positive(core) {
        if !(1..=MOST).contains(&value) {
            return Err(wrong(field, format!("is not from 1 to {MOST}")));
        }
    }
    names(core)?;
    schedulers(core)?;
    tlb(core)?;
    for class in Class::ALL {
        steps(core, *class)?;
    }
    Ok(())
}

fn wrong(field: impl Into<String>, problem: impl Into<String>) -> DescriptionError {
    DescriptionError::Value {
        field: field.into(),
        problem: problem.into(),
    }
}

/// Returns the numbers that cannot be 0, with their fields.
fn positive(core: &Core) -> Vec<(&'static str, u64)> {
    let (pipeline, renaming) = (&core.pipeline, &core.renaming);
    let (load, store) = (&core.load, &core.store);
    let (tlb, strings) = (&core.tlb, &core.strings);
    vec![
        ("pipeline.dispatch", pipeline.dispatch.into()),
        ("pipeline.retire", pipeline.retire.into()),
        ("pipeline.reorder_buffer", pipeline.reorder_buffer.into()),
        (
            "pipeline.mispredict_penalty",
            pipeline.mispredict_penalty.into(),
        ),
        ("pipeline.taken_branches", pipeline.taken_branches.into()),
        ("pipeline.decode", pipeline.decode.into()),
        ("pipeline.vector_bytes", pipeline.vector_bytes.into()),
        (
            "renaming.general_registers",
            renaming.general_registers.into(),
        ),
        (
            "renaming.vector_registers",
            renaming.vector_registers.into(),
        ),
        ("load.bytes", load.bytes.into()),
        ("load.queue", load.queue.into()),
        ("load.latency", load.latency.into()),
        ("load.line_fills", load.line_fills.into()),
        ("load.second_level_misses", load.second_level_misses.into()),
        ("store.bytes", store.bytes.into()),
        ("store.queue", store.queue.into()),
        ("store.commits", store.commits.into()),
        ("store.early", store.early.into()),
        ("store.forward", store.forward.into()),
        ("store.forward_vector", store.forward_vector.into()),
        ("store.split_commit", store.split_commit.into()),
        ("store.page_split_commit", store.page_split_commit.into()),
        ("tlb.first_entries", tlb.first_entries.into()),
        ("tlb.first_ways", tlb.first_ways.into()),
        ("tlb.second_entries", tlb.second_entries.into()),
        ("tlb.second_ways", tlb.second_ways.into()),
        ("tlb.walkers", tlb.walkers.into()),
        ("strings.copy_bytes", strings.copy_bytes.into()),
        ("strings.set_bytes", strings.set_bytes.into()),
    ]
}

fn names(core: &Core) -> Result<(), DescriptionError> {
    for (index, port) in core.ports.iter().enumerate() {
        if port.is_empty() || port.contains(char::is_whitespace) {
            return Err(wrong("ports", format!("{port:?} is no name")));
        }
        if core.ports[..index].contains(port) {
            return Err(wrong("ports", format!("{port:?} is there twice")));
        }
    }
    if core.name.is_empty() {
        return Err(wrong("name", "is empty"));
    }
    Ok(())
}

/// Each port that an instruction uses has one scheduler, so that each micro-operation waits in one.
fn schedulers(core: &Core) -> Result<(), DescriptionError> {
    let mut served = 0;
    for scheduler in &core.schedulers {
        if !(1..=MOST).contains(&scheduler.entries.into()) {
            return Err(wrong(
                "schedulers.entries",
                format!("is not from 1 to {MOST}"),
            ));
        }
        if served & scheduler.ports != 0 {
            return Err(wrong("schedulers.ports", "a port has two schedulers"));
        }
        served |= scheduler.ports;
    }
    let missing = core
        .ports
        .iter()
        .enumerate()
        .find(|(bit, _)| served & (1 << bit) == 0);
    match missing {
        Some((_, port)) => Err(wrong(
            "schedulers.ports",
            format!("{port:?} has no scheduler"),
        )),
        None => Ok(()),
    }
}

fn tlb(core: &Core) -> Result<(), DescriptionError> {
    let tlb = &core.tlb;
    for (field, entries, ways) in [
        ("tlb.first_ways", tlb.first_entries, tlb.first_ways),
        ("tlb.second_ways", tlb.second_entries, tlb.second_ways),
    ] {
        if entries % ways != 0 {
            return Err(wrong(field, "does not divide the number of entries"));
        }
    }
    Ok(())
}

fn steps(core: &Core, class: Class) -> Result<(), DescriptionError> {
    let field = || format!("classes.{}", class.name());
    let recipe = core.recipe(class);
    for step in &recipe.steps {
        if step.busy == 0 || step.count == 0 {
            return Err(wrong(field(), "busy and count are at least 1"));
        }
    }
    if recipe.steps.last().is_some_and(|step| step.beside) {
        return Err(wrong(field(), "the last step has the result"));
    }
    if recipe.slots == 0 {
        return Err(wrong(format!("slots.{}", class.name()), "is 0"));
    }
    Ok(())
}
