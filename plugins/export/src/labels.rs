//! Arguments of calls as names and values, for formats that show them.

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{MpiRecord, Peer, Reduction, Tag};

use crate::survey::{CallSite, World};

/// A value of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u64),
    Text(String),
    Address(u64),
}

/// Returns the names and values of the arguments that a call has.
pub(crate) fn arguments(
    record: &MpiRecord,
    world: &World,
    instructions: u64,
) -> Vec<(&'static str, Value)> {
    let mut list = Vec::with_capacity(10);
    let mut number = |name, value: u64| {
        if value != 0 {
            list.push((name, Value::Number(value)));
        }
    };
    number("send bytes", record.send_bytes);
    number("receive bytes", record.receive_bytes);
    number("request", record.request);
    number("completed", record.completions.len() as u64);
    number("instructions", instructions);
    if record.calls != 1 {
        list.push(("polls", Value::Number(record.calls)));
    }
    if record.result != 0 {
        list.push(("error", Value::Text(record.result.to_string())));
    }
    for (name, value) in [
        ("destination", record.destination),
        ("source", record.source),
        ("root", record.root),
    ] {
        match value {
            Peer::None => {}
            Peer::Rank(rank) => list.push((name, Value::Number(rank.into()))),
            other => list.push((name, Value::Text(peer(other)))),
        }
    }
    for (name, value) in [
        ("send tag", record.send_tag),
        ("receive tag", record.receive_tag),
    ] {
        match value {
            Tag::None => {}
            Tag::Value(value) => list.push((name, Value::Number(value.into()))),
            Tag::Any => list.push((name, Value::Text("any".into()))),
        }
    }
    if record.communicator != communicator::NONE && record.communicator != communicator::WORLD {
        let name = communicator_name(world, record.communicator);
        list.push(("communicator", Value::Text(name)));
    }
    if record.new_communicator != communicator::NONE {
        let name = communicator_name(world, record.new_communicator);
        list.push(("new communicator", Value::Text(name)));
    }
    if record.reduction != Reduction::None {
        list.push(("reduction", Value::Text(reduction(record.reduction))));
    }
    let site = CallSite::of(record);
    if site.address != 0 {
        list.push(("call site", Value::Address(site.address)));
    }
    list
}

/// Returns a peer as text; empty for none.
pub(crate) fn peer(peer: Peer) -> String {
    match peer {
        Peer::None => String::new(),
        Peer::Null => "null".into(),
        Peer::Any => "any".into(),
        Peer::Outside => "outside".into(),
        Peer::Rank(rank) => rank.to_string(),
    }
}

/// Returns a tag as text; empty for none.
pub(crate) fn tag(tag: Tag) -> String {
    match tag {
        Tag::None => String::new(),
        Tag::Any => "any".into(),
        Tag::Value(value) => value.to_string(),
    }
}

/// Returns a reduction as text; empty for none.
pub(crate) fn reduction(reduction: Reduction) -> String {
    match reduction {
        Reduction::None => String::new(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// Returns a communicator's name, such as `world` or `Comm_split 3`.
pub(crate) fn communicator_name(world: &World, id: u64) -> String {
    match id {
        communicator::NONE => return String::new(),
        communicator::WORLD => return "world".into(),
        communicator::SELF => return "self".into(),
        _ => {}
    }
    let Some(number) = world.communicator(id) else {
        return format!("{id:#x}");
    };
    let made_by = world.communicators[number].made_by;
    let name = made_by.map_or("communicator", |function| {
        function.name().trim_start_matches("MPI_")
    });
    format!("{name} {number}")
}
