//! Collectives with the neighbours in a topology: one message to each neighbour and one from each (MPI 4.0, section 8.6).

use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Class, Function, MpiRecord, Peer};

use super::rank::RankState;
use crate::op::{Action, Mode, PeerRef, Source};

/// Value that makes the id of the communicator for these messages from the id of the topology's communicator, by exclusive or.
const TOPOLOGY_COMMUNICATOR: u64 = 0x6e65_6967_6862_6f72;

/// Adds a call that exchanges messages with neighbours, or that starts to exchange them.
pub(super) fn exchange(state: &mut RankState, record: &MpiRecord) {
    let (actions, slots) = messages(state, record);
    let record = &on_topology_communicator(state, record, record);
    if record.function.class() == Class::StartNeighbor {
        state.push_all(record, actions);
        return begin(state, record.request, slots);
    }
    let mut actions = actions;
    if !slots.is_empty() {
        state.requests.end_slots(&slots);
        actions.push(Action::wait(slots));
    }
    state.push_all(record, actions);
}

/// Starts a persistent exchange with neighbours.
pub(super) fn start(state: &mut RankState, record: &MpiRecord, prepared: &MpiRecord, serial: u64) {
    let (actions, slots) = messages(state, prepared);
    let record = &on_topology_communicator(state, record, prepared);
    // Each message is added as an operation of its own, not as a part of one call.
    for action in actions {
        state.push(record, action, None);
    }
    begin(state, serial, slots);
}

fn begin(state: &mut RankState, serial: u64, mut slots: Vec<u32>) {
    if let Some(first) = slots.pop() {
        state.begin(serial, first, false);
        state.requests.add_others(serial, slots);
    }
}

/// Returns the record with a communicator that has the topology's members, but messages of its own.
fn on_topology_communicator(
    state: &mut RankState,
    record: &MpiRecord,
    topology: &MpiRecord,
) -> MpiRecord {
    let copy = topology.communicator ^ TOPOLOGY_COMMUNICATOR;
    state.copies.insert(copy, topology.communicator);
    let mut record = record.clone();
    record.communicator = copy;
    record
}

/// Returns the receives and sends of an exchange, and the numbers of their requests.
fn messages(state: &mut RankState, record: &MpiRecord) -> (Vec<Action>, Vec<u32>) {
    if record.flags.contains(Flags::TAIL_DROPPED) {
        state.notes.push(format!(
            "{}: the lists of neighbours or bytes were too long for the trace; those that are not there are left out",
            record.function
        ));
    }
    let real = |peers: &[Peer]| peers.iter().filter(|peer| peer.rank().is_some()).count() as u64;
    let share = |all: u64, lists: &[u64], number: usize, of: &[Peer]| match lists {
        [] => all / real(of).max(1),
        lists => lists.get(number).copied().unwrap_or(0),
    };
    let same_to_all = matches!(
        record.function.blocking(),
        Function::NeighborAllgather | Function::NeighborAllgatherv
    );
    let (mut actions, mut slots) = (Vec::new(), Vec::new());
    for (number, from) in record.sources.iter().enumerate() {
        let Some(rank) = from.rank() else { continue };
        let slot = state.requests.slot();
        slots.push(slot);
        actions.push(Action::Receive {
            from: Source::Peer(PeerRef::Absolute(rank)),
            tag: Some(0),
            room: share(
                record.receive_bytes,
                &record.receive_bytes_from,
                number,
                &record.sources,
            ),
            request: Some(slot),
        });
    }
    for (number, to) in record.destinations.iter().enumerate() {
        let Some(rank) = to.rank() else { continue };
        let slot = state.requests.slot();
        slots.push(slot);
        let bytes = match same_to_all {
            true => record.send_bytes,
            false => share(
                record.send_bytes,
                &record.send_bytes_to,
                number,
                &record.destinations,
            ),
        };
        actions.push(Action::Send {
            to: PeerRef::Absolute(rank),
            tag: 0,
            bytes,
            mode: Mode::Standard,
            request: Some(slot),
        });
    }
    (actions, slots)
}
