//! Calls and operations in words.

use nodescope_hypercall::record::communicator as ids;
use nodescope_hypercall::{Function, MpiRecord, Peer, Tag};

use super::job::Job;
use super::objects;
use super::operation::{self, Incoming, Kind, Operation, Outgoing};
use crate::site::{Call, SiteNames};

/// Returns the name of a communicator for people.
pub fn communicator(id: u64) -> String {
    match id {
        ids::WORLD => "MPI_COMM_WORLD".into(),
        ids::SELF => "MPI_COMM_SELF".into(),
        id => format!("communicator {id:x}"),
    }
}

fn to(send: &Outgoing) -> String {
    format!("to {}, tag {}, {} B", send.to, send.tag, send.bytes)
}

fn from(receive: &Incoming) -> String {
    let source = match receive.from {
        Peer::Rank(rank) => rank.to_string(),
        _ => "any".into(),
    };
    match receive.tag {
        Tag::Value(tag) => format!("from {source}, tag {tag}"),
        _ => format!("from {source}, any tag"),
    }
}

fn arguments(kind: &Kind) -> Vec<String> {
    match kind {
        Kind::Send(send) => vec![to(send), communicator(send.communicator)],
        Kind::Receive(receive) => vec![from(receive), communicator(receive.communicator)],
        Kind::SendReceive(send, receive) => {
            let on = send.map(|send| send.communicator);
            let on = on.or(receive.map(|receive| receive.communicator));
            let parts = [
                send.as_ref().map(to),
                receive.as_ref().map(from),
                on.map(communicator),
            ];
            parts.into_iter().flatten().collect()
        }
        Kind::Collective(..) | Kind::Other => Vec::new(),
    }
}

/// Returns an operation under way as the call that began the operation.
pub fn begun(operation: &Operation, names: &SiteNames) -> Call {
    let site = &operation.site;
    let list = arguments(&operation.kind).join(", ");
    let begun = match list.is_empty() {
        true => site.function.name().to_owned(),
        false => format!("{}({list})", site.function.name()),
    };
    names.call(begun, site.site())
}

/// Returns the arguments of a call on a window or file that name other ranks.
fn on_object(record: &MpiRecord) -> Vec<String> {
    let mut list = Vec::new();
    if record.function == Function::WinLock {
        let kind = match record.detail {
            1 => "exclusive",
            _ => "shared",
        };
        list.push(kind.to_owned());
    }
    if let Some(target) = record.destination.rank().or(record.source.rank()) {
        list.push(format!("target {target}"));
    }
    let groups = [
        ("target", &record.destinations),
        ("origin", &record.sources),
    ];
    for (role, peers) in groups {
        let ranks: Vec<String> = (peers.iter().filter_map(|peer| peer.rank()))
            .map(|rank| rank.to_string())
            .collect();
        match ranks.as_slice() {
            [] => {}
            [one] => list.push(format!("{role} {one}")),
            many => list.push(format!("{role}s {}", many.join(" "))),
        }
    }
    list
}

/// Returns a call with its arguments as text.
pub fn call(record: &MpiRecord, job: &Job) -> String {
    let mut list = match operation::probe(record) {
        Some(probe) => arguments(&Kind::Receive(probe)),
        None => arguments(&operation::messages(record)),
    };
    if list.is_empty() {
        if let Peer::Rank(root) = record.root {
            list.push(format!("root {root}"));
        }
        match record.requests.len() {
            0 => {}
            1 => list.push("1 request".into()),
            count => list.push(format!("{count} requests")),
        }
        if record.object != 0 {
            list.extend(on_object(record));
            let known = job.objects.name(record.object);
            list.push(known.map_or_else(|| objects::name(record), str::to_owned));
        } else if record.communicator != 0 && record.function != Function::Finalize {
            list.push(communicator(record.communicator));
        }
    }
    format!("{}({})", record.function.name(), list.join(", "))
}
