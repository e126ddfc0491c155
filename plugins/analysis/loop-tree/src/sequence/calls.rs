//! Conversion of each traced call into operations.

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Class, Function, MpiRecord, Peer, Tag};
use nodescope_trace::{MpiCall, Stamp};

use super::rank::RankState;
use super::{neighbours, one_sided};
use crate::op::{Action, Collective, CollectiveKind, Mode, PeerRef, Source};

/// A persistent operation, as its call prepared it.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    what: Preparation,
    communicator: u64,
    element_size: u32,
    element_blocks: u64,
}

#[derive(Clone, Debug)]
enum Preparation {
    /// Message to or from a rank.
    Message(Action),
    /// A collective, as its call prepared it.
    Collective(Box<MpiRecord>),
    /// Collective with the neighbours in a topology, as its call prepared it.
    Neighbours(Box<MpiRecord>),
}

/// Adds a call's operations to its rank.
pub(super) fn add(state: &mut RankState, call: &MpiCall) {
    let record = &call.record;
    // A receive with too short a buffer has taken its message. The interpreter reports the error.
    let short = record.function == Function::Recv && state.flavour.is_truncation(record.result);
    if record.result != 0 && !short {
        state.notes.push(format!(
            "{} returned an error; it is taken as doing nothing",
            record.function
        ));
        complete(state, record);
        return state.push(record, Action::Nothing, None);
    }
    match record.function {
        Function::Send | Function::Bsend | Function::Ssend | Function::Rsend => {
            let action = send(record, None);
            state.push(record, action, None);
        }
        Function::Isend | Function::Ibsend | Function::Issend | Function::Irsend => {
            start(state, record, record.request, |slot| {
                send(record, Some(slot))
            });
        }
        Function::Recv | Function::Mrecv => {
            let action = receive(record, None);
            state.push(record, action, None);
        }
        Function::Irecv | Function::Imrecv => {
            start(state, record, record.request, |slot| {
                receive(record, Some(slot))
            });
        }
        Function::Sendrecv | Function::SendrecvReplace => {
            let send = match record.destination {
                Peer::Rank(rank) => Some((
                    PeerRef::Absolute(rank),
                    tag(record.send_tag).unwrap_or(0),
                    record.send_bytes,
                )),
                _ => None,
            };
            let receive = match receive(record, None) {
                Action::Receive {
                    from, tag, room, ..
                } => Some((from, tag, room)),
                _ => None,
            };
            state.push(record, Action::SendReceive { send, receive }, None);
        }
        Function::Probe | Function::Iprobe | Function::Mprobe | Function::Improbe => {
            // A single poll that found nothing is no operation.
            let found = !matches!(record.function, Function::Iprobe | Function::Improbe)
                || !record.completions.is_empty();
            let action = match receive(record, None) {
                Action::Receive { from, tag, .. } if found => Action::Probe { from, tag },
                _ => Action::Nothing,
            };
            state.push(record, action, None);
        }
        Function::SendInit | Function::BsendInit | Function::SsendInit | Function::RsendInit => {
            let action = send(record, Some(0));
            prepare(state, record, Preparation::Message(action));
        }
        Function::RecvInit => {
            let action = receive(record, Some(0));
            prepare(state, record, Preparation::Message(action));
        }
        Function::Start | Function::Startall => start_prepared(state, record),
        Function::RequestFree => {
            let mut requests = Vec::new();
            for serial in &record.requests {
                requests.extend(state.requests.end(*serial).map(|live| live.slot));
                requests.extend(state.requests.end_others(*serial));
                state.prepared.remove(serial);
            }
            let requests = requests.into();
            state.push(record, Action::Free { requests }, None);
        }
        // The receive that is cancelled completes, as cancelled, in a later wait.
        Function::Cancel => state.push(record, Action::Nothing, None),
        function => match function.class() {
            Class::Completion => {
                let among = among(state, record);
                let (done, cancelled) = complete(state, record);
                let cancelled_none = cancelled.is_empty();
                if !cancelled_none {
                    let requests = cancelled.into();
                    state.push(record, Action::Cancel { requests }, None);
                }
                let among = match (done.len() < among.len(), cancelled_none) {
                    (true, true) => among,
                    _ => Vec::new(),
                };
                let action = if done.is_empty() {
                    Action::Nothing
                } else {
                    Action::Wait {
                        requests: done.into(),
                        among: among.into(),
                    }
                };
                state.push(record, action, None);
            }
            Class::Collective | Class::StartCollective => collective(state, call),
            Class::StartSendReceive => start_send_receive(state, record),
            Class::PrepareCollective => {
                prepare(
                    state,
                    record,
                    Preparation::Collective(Box::new(record.clone())),
                );
            }
            Class::Neighbor | Class::StartNeighbor => neighbours::exchange(state, record),
            Class::PrepareNeighbor => {
                prepare(
                    state,
                    record,
                    Preparation::Neighbours(Box::new(record.clone())),
                );
            }
            Class::Window | Class::Epoch | Class::Rma | Class::StartRma => {
                if !one_sided::add(state, record) {
                    opaque(state, call);
                }
            }
            Class::Communicator => construct(state, call),
            Class::Environment => state.push(record, Action::Nothing, None),
            // Local work of the caller, which takes as long as in the trace on any cluster.
            Class::Local => state.push(record, Action::Opaque, Some(call.time_inside)),
            _ => opaque(state, call),
        },
    }
}

/// Adds a call that never ended; returns false if the call is not interpreted.
pub(super) fn add_pending(state: &mut RankState, record: &MpiRecord, entry: Stamp) -> bool {
    match record.function {
        Function::Wait | Function::Waitall => {
            let serials = record.requests.iter();
            let mut requests: Vec<u32> = serials
                .flat_map(|&serial| state.requests.slots(serial))
                .collect();
            requests.sort_unstable();
            if requests.is_empty() {
                return false;
            }
            state.push(record, Action::wait(requests), None);
        }
        Function::Send
        | Function::Ssend
        | Function::Rsend
        | Function::Recv
        | Function::Probe
        | Function::Sendrecv
        | Function::SendrecvReplace => add(state, &unended(record, entry)),
        function if kind(function).is_some() && function.class() == Class::Collective => {
            if record.flags.contains(Flags::INTERCOMM) {
                return false;
            }
            collective(state, &unended(record, entry));
        }
        function => match function.class() {
            Class::Neighbor => neighbours::exchange(state, record),
            Class::Window | Class::Epoch => return one_sided::add(state, record),
            _ => return false,
        },
    }
    true
}

fn unended(record: &MpiRecord, entry: Stamp) -> MpiCall {
    MpiCall {
        record: record.clone(),
        entry,
        exit: entry,
        time_inside: 0,
        instructions_inside: 0,
        entry_seen: true,
    }
}

/// Adds a call that is not interpreted and takes as long as in the trace, and a note on this.
fn opaque(state: &mut RankState, call: &MpiCall) {
    state.notes.push(format!(
        "{} is not interpreted: it takes as long as it was traced to take",
        call.record.function
    ));
    // Requests that the call starts are never waited for, because its time contains their effects.
    state.push(&call.record, Action::Opaque, Some(call.time_inside));
}

fn tag(tag: Tag) -> Option<u32> {
    match tag {
        Tag::Value(value) => Some(value),
        Tag::None | Tag::Any => None,
    }
}

fn mode(function: Function) -> Mode {
    match function {
        Function::Bsend | Function::Ibsend | Function::BsendInit => Mode::Buffered,
        Function::Ssend | Function::Issend | Function::SsendInit => Mode::Synchronous,
        Function::Rsend | Function::Irsend | Function::RsendInit => Mode::Ready,
        _ => Mode::Standard,
    }
}

fn send(record: &MpiRecord, request: Option<u32>) -> Action {
    let Peer::Rank(to) = record.destination else {
        return Action::Nothing;
    };
    Action::Send {
        to: PeerRef::Absolute(to),
        tag: tag(record.send_tag).unwrap_or(0),
        bytes: record.send_bytes,
        mode: mode(record.function),
        request,
    }
}

/// Returns a receive. Where a blocking call accepts any source or tag, its record gives those of the message that matched.
fn receive(record: &MpiRecord, request: Option<u32>) -> Action {
    let done = record.completions.first().filter(|_| request.is_none());
    let matched = done.and_then(|done| done.source.rank());
    let from = match record.source {
        Peer::Rank(rank) => Source::Peer(PeerRef::Absolute(rank)),
        Peer::Any => match matched {
            Some(rank) => Source::Matched(PeerRef::Absolute(rank)),
            None => Source::Any,
        },
        // `MPI_Mrecv` names no source, because the probe before it did.
        Peer::None => match matched {
            Some(rank) => Source::Matched(PeerRef::Absolute(rank)),
            None if matches!(record.function, Function::Mrecv | Function::Imrecv) => Source::Any,
            None => return Action::Nothing,
        },
        Peer::Null | Peer::Outside => return Action::Nothing,
    };
    Action::Receive {
        from,
        tag: tag(record.receive_tag).or_else(|| done.and_then(|done| tag(done.tag))),
        room: record.receive_bytes,
        request,
    }
}

/// Adds an operation that starts a request. A request with `MPI_PROC_NULL` ends at once.
fn start(state: &mut RankState, record: &MpiRecord, serial: u64, make: impl FnOnce(u32) -> Action) {
    let slot = state.requests.slot();
    let action = make(slot);
    let open = matches!(
        &action,
        Action::Receive { from, tag, .. } if *from == Source::Any || tag.is_none()
    );
    state.begin(serial, slot, open);
    if action == Action::Nothing {
        state.requests.end(serial);
    }
    state.push(record, action, None);
}

/// Adds a send and a receive that have one common request.
fn start_send_receive(state: &mut RankState, record: &MpiRecord) {
    let slot = state.requests.slot();
    let send = send(record, Some(slot));
    state.push_part(record, send);
    let serial = record.request;
    start(state, record, serial, |slot| receive(record, Some(slot)));
    state.requests.add_others(serial, vec![slot]);
}

fn prepare(state: &mut RankState, record: &MpiRecord, what: Preparation) {
    let communicator = record.communicator;
    state.prepared.insert(
        record.request,
        Prepared {
            what,
            communicator,
            element_size: record.element_size,
            element_blocks: record.element_blocks,
        },
    );
    state.push(record, Action::Nothing, None);
}

/// Starts prepared operations. Each becomes an operation of its own, at the call site of the start.
fn start_prepared(state: &mut RankState, record: &MpiRecord) {
    let pairs = record.requests.iter().zip(&record.prepared);
    let mut any = false;
    for (&serial, preparation) in pairs {
        let Some(prepared) = state.prepared.get(preparation).cloned() else {
            state.notes.push(format!(
                "{} starts a request whose preparation is not in the trace; it is left out",
                record.function
            ));
            continue;
        };
        let mut record = record.clone();
        record.communicator = prepared.communicator;
        record.element_size = prepared.element_size;
        record.element_blocks = prepared.element_blocks;
        any = true;
        match prepared.what {
            Preparation::Message(action) => start(state, &record, serial, |slot| match action {
                Action::Send {
                    to,
                    tag,
                    bytes,
                    mode,
                    ..
                } => Action::Send {
                    to,
                    tag,
                    bytes,
                    mode,
                    request: Some(slot),
                },
                Action::Receive {
                    from, tag, room, ..
                } => Action::Receive {
                    from,
                    tag,
                    room,
                    request: Some(slot),
                },
                other => other,
            }),
            Preparation::Collective(prepared) => {
                let interpreted = start_collective(state, &record, &prepared, serial);
                any &= interpreted;
            }
            Preparation::Neighbours(prepared) => {
                neighbours::start(state, &record, &prepared, serial);
            }
        }
    }
    if !any {
        state.push(record, Action::Nothing, None);
    }
}

/// Most requests of a call that waits for some of them, for that call to take those that complete first. Longer lists differ from call to
/// call and would fill the memory.
const MOST_AMONG: usize = 64;

/// Returns the requests among which a call waits for some; nothing if it waits for all, or if a request consists of several operations.
fn among(state: &mut RankState, record: &MpiRecord) -> Vec<u32> {
    let some = matches!(
        record.function,
        Function::Waitany | Function::Waitsome | Function::Testany | Function::Testsome
    );
    if !some || record.requests.len() > MOST_AMONG {
        return Vec::new();
    }
    let serials = record.requests.iter().filter(|&&serial| serial != 0);
    let mut slots: Vec<u32> = Vec::new();
    for &serial in serials {
        match state.requests.slots(serial)[..] {
            [slot] => slots.push(slot),
            [] => {}
            _ => return Vec::new(),
        }
    }
    slots.sort_unstable();
    slots
}

/// Ends the requests that a call completed. Returns the request numbers of those that took effect, then of those that were cancelled.
fn complete(state: &mut RankState, record: &MpiRecord) -> (Vec<u32>, Vec<u32>) {
    let (mut done, mut cancelled) = (Vec::new(), Vec::new());
    for completion in &record.completions {
        let others = state.requests.end_others(completion.request);
        let Some(live) = state.requests.end(completion.request) else {
            done.extend(others);
            continue;
        };
        state.matched(live, completion.source.rank(), tag(completion.tag));
        if completion.cancelled {
            cancelled.push(live.slot);
        } else {
            done.push(live.slot);
            done.extend(others);
        }
    }
    done.sort_unstable();
    (done, cancelled)
}

fn kind(function: Function) -> Option<CollectiveKind> {
    use CollectiveKind::*;
    Some(match function.blocking() {
        Function::Barrier => Barrier,
        Function::Bcast => Bcast,
        Function::Reduce => Reduce,
        Function::Allreduce => Allreduce,
        Function::Gather => Gather,
        Function::Gatherv => Gatherv,
        Function::Scatter => Scatter,
        Function::Scatterv => Scatterv,
        Function::Allgather => Allgather,
        Function::Allgatherv => Allgatherv,
        Function::Alltoall => Alltoall,
        Function::Alltoallv | Function::Alltoallw => Alltoallv,
        Function::ReduceScatter => ReduceScatter,
        Function::ReduceScatterBlock => ReduceScatterBlock,
        Function::Scan => Scan,
        Function::Exscan => Exscan,
        _ => return None,
    })
}

/// Returns the bytes of a collective, as its `bytes` counts them, from the sizes of the caller's data and buffers.
fn collective_bytes(record: &MpiRecord, kind: CollectiveKind, is_root: bool) -> u64 {
    let size = u64::from(record.communicator_size.max(1));
    let (sent, received) = (record.send_bytes, record.receive_bytes);
    let in_place = record.flags.contains(Flags::IN_PLACE);
    use CollectiveKind::*;
    match kind {
        Barrier | Create => 0,
        Bcast => sent.max(received),
        Reduce | Allreduce | Scan | Exscan | ReduceScatter | ReduceScatterBlock => {
            if in_place || sent == 0 {
                received.max(sent)
            } else {
                sent
            }
        }
        Gather if is_root && (in_place || sent == 0) => received / size,
        Gather | Gatherv => sent,
        Scatter if is_root => sent / size,
        Scatter | Scatterv => received,
        Allgather if in_place || sent == 0 => received / size,
        Allgather => sent,
        Allgatherv => sent,
        Alltoall if in_place => received / size,
        Alltoall => sent / size,
        Alltoallv => sent,
    }
}

fn collective(state: &mut RankState, call: &MpiCall) {
    let record = &call.record;
    let starts = record.function.class() == Class::StartCollective;
    let serial = starts.then_some(record.request);
    let Some(kind) = kind(record.function).filter(|_| !record.flags.contains(Flags::INTERCOMM))
    else {
        return opaque(state, call);
    };
    let collective = described(state, record, kind, serial);
    state.push_collective(record, collective);
}

/// Starts a persistent collective; returns false if the collective is not interpreted.
fn start_collective(
    state: &mut RankState,
    record: &MpiRecord,
    prepared: &MpiRecord,
    serial: u64,
) -> bool {
    let Some(kind) = kind(prepared.function).filter(|_| !prepared.flags.contains(Flags::INTERCOMM))
    else {
        state.notes.push(format!(
            "{} is not interpreted where it is started",
            prepared.function
        ));
        return false;
    };
    let collective = described(state, prepared, kind, Some(serial));
    state.push_collective(record, collective);
    true
}

/// Returns a collective as its record describes it, with a request if `serial` is given.
fn described(
    state: &mut RankState,
    record: &MpiRecord,
    kind: CollectiveKind,
    serial: Option<u64>,
) -> Collective {
    if record.flags.contains(Flags::TAIL_DROPPED) {
        state.notes.push(format!(
            "{}: the lists of bytes were too long for the trace; equal shares are taken",
            record.function
        ));
    }
    let is_root = record.root == record.rank;
    let request = serial.map(|serial| {
        let slot = state.requests.slot();
        state.begin(serial, slot, false);
        slot
    });
    Collective {
        kind,
        root: record.root.rank().unwrap_or(0),
        bytes: collective_bytes(record, kind, is_root),
        send_to: record.send_bytes_to.clone().into(),
        receive_from: record.receive_bytes_from.clone().into(),
        request,
    }
}

/// Adds the construction of a communicator, which synchronises its members; freeing does not synchronise.
fn construct(state: &mut RankState, call: &MpiCall) {
    let record = &call.record;
    match record.function {
        Function::CommFree | Function::CommDisconnect => {
            state.push(record, Action::Nothing, None);
        }
        Function::IntercommCreate | Function::IntercommMerge => {
            state.communicator(record.new_communicator);
            opaque(state, call);
        }
        function => {
            if record.new_communicator != communicator::NONE {
                state.communicator(record.new_communicator);
            }
            let mut over = record.clone();
            if function == Function::CommCreateGroup {
                // Only the members of the group take part.
                over.communicator = record.new_communicator;
            }
            if over.communicator == communicator::NONE || record.flags.contains(Flags::INTERCOMM) {
                return opaque(state, call);
            }
            let starts = matches!(function, Function::CommIdup | Function::CommIdupWithInfo);
            let request = starts.then(|| {
                let slot = state.requests.slot();
                state.begin(record.request, slot, false);
                slot
            });
            let collective = Collective {
                request,
                ..Collective::of(CollectiveKind::Create)
            };
            state.push_collective(&over, collective);
        }
    }
}
