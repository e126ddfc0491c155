//! A predicted run as a trace, from which every export works.
//!
//! Calls have the times of the interpretation. Functions, call sites, peers, tags, sizes and communicators are those of the program's loop
//! trees (the model). The interpretation counts no instructions; the trace has 0 for them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::path::Path;

use nodescope_hypercall::record::{Completion, Flags, communicator};
use nodescope_hypercall::{
    Class, Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, Tag, ThreadId,
};
use nodescope_loop_tree::{Action, Collective, CollectiveKind, Op, PeerRef, Program};
use nodescope_trace::{Body, Event, Header, MpiCall, NodeEntry, Stamp, TraceWriter, WriteError};

use crate::timeline::{Call, Timeline};

/// Key that a send and its receive have in common: sender, receiver, communicator, tag.
type Envelope = (u32, u32, Option<u32>, u32);

/// State of a rank that its later records depend on.
#[derive(Default)]
struct State {
    next: usize,
    serial: u64,
    /// Pending requests by their number in the model: the serial number in the trace, and the received message if it is a receive.
    live: HashMap<u32, (u64, Option<Completion>)>,
    /// Index, in the rank's list of communicators, of the next one that a call constructs.
    made: u32,
    sequence: u64,
    over: bool,
    /// Entry time of the first of several operations that are one call, picoseconds; `None` between calls.
    entered: Option<u64>,
}

struct Writer<'a> {
    program: &'a Program,
    world: u32,
    /// Sizes of the messages that no receive has taken yet, in order of sending, bytes.
    sent: HashMap<Envelope, VecDeque<u64>>,
}

/// Writes the predicted run of a program as a trace.
///
/// `nodes` has the node of each rank.
///
/// # Errors
///
/// Fails if the file cannot be written.
pub fn write_trace(
    program: &Program,
    nodes: &[u32],
    timeline: &Timeline,
    name: &str,
    file: &Path,
) -> Result<(), WriteError> {
    let count = nodes.iter().max().map_or(1, |&node| node + 1);
    let mut ranks_of = vec![0u32; count as usize];
    let mut cpus = Vec::with_capacity(nodes.len());
    for &node in nodes {
        cpus.push(ranks_of[node as usize]);
        ranks_of[node as usize] += 1;
    }
    let entries = (ranks_of.iter().enumerate()).map(|(number, &ranks)| NodeEntry {
        name: format!("node{number}"),
        vcpus: ranks.max(1),
        frequency_hz: 1_000_000_000,
    });
    let mut out = TraceWriter::create(file, &Header::new(name, "", entries.collect()))?;
    let mut sequences = vec![0u64; count as usize];
    let mut put = |out: &mut TraceWriter, rank: u32, time: u64, body: Body| {
        let node = nodes[rank as usize];
        let sequence = &mut sequences[node as usize];
        *sequence += 1;
        let stamp = stamp(time, cpus[rank as usize]);
        out.write(&Event {
            node,
            sequence: *sequence - 1,
            stamp,
            body,
        })
    };
    let world = nodes.len() as u32;
    let mut writer = Writer {
        program,
        world,
        sent: HashMap::new(),
    };
    writer.sends(timeline);
    let mut states: Vec<State> = Vec::new();
    for rank in 0..world {
        let hello = Hello {
            kind: ProcessKind::MpiRank,
            rank: Peer::Rank(rank),
            world_size: world,
            pid: rank + 1,
            flavour: Flavour::None,
            host: format!("node{}", nodes[rank as usize]),
            program: name.to_owned(),
        };
        put(&mut out, rank, 0, Body::Process(hello))?;
    }
    for rank in 0..world {
        let mut state = State {
            made: 2,
            ..State::default()
        };
        let init = writer.empty(rank, &mut state, Function::Init);
        let call = finished(init, (0, 0), cpus[rank as usize]);
        put(&mut out, rank, 0, Body::Mpi(Box::new(call)))?;
        states.push(state);
    }
    // Records follow in the order of the calls' ends, as in a recorded trace.
    let mut queue: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
    let end = |rank: u32, at: usize| match timeline.calls[rank as usize].get(at) {
        Some(call) => call.leave,
        None => timeline.ends[rank as usize],
    };
    queue.extend((0..world).map(|rank| Reverse((end(rank, 0), rank))));
    while let Some(Reverse((time, rank))) = queue.pop() {
        let state = &mut states[rank as usize];
        let calls = &timeline.calls[rank as usize];
        let cpu = cpus[rank as usize];
        match calls.get(state.next) {
            Some(call) => {
                state.next += 1;
                let op = &program.ops[call.op as usize];
                if op.more {
                    state.entered.get_or_insert(call.enter);
                }
                if op.more || matches!(op.action, Action::Mark(_)) {
                    queue.push(Reverse((end(rank, state.next), rank)));
                    continue;
                }
                let enter = state.entered.take().unwrap_or(call.enter);
                let record = writer.record(rank, state, call, &calls[state.next..]);
                state.over |= record.function == Function::Finalize;
                let call = finished(record, (enter, call.leave), cpu);
                put(&mut out, rank, time, Body::Mpi(Box::new(call)))?;
                queue.push(Reverse((end(rank, state.next), rank)));
            }
            None if !state.over => {
                let record = writer.empty(rank, state, Function::Finalize);
                let call = finished(record, (time, time), cpu);
                put(&mut out, rank, time, Body::Mpi(Box::new(call)))?;
            }
            None => {}
        }
    }
    out.finish()
}

fn stamp(time: u64, vcpu: u32) -> Stamp {
    Stamp {
        time,
        instructions: 0,
        vcpu,
    }
}

fn finished(record: MpiRecord, (enter, leave): (u64, u64), vcpu: u32) -> MpiCall {
    MpiCall {
        record,
        entry: stamp(enter, vcpu),
        exit: stamp(leave, vcpu),
        time_inside: leave - enter,
        instructions_inside: 0,
        entry_seen: true,
    }
}

impl Writer<'_> {
    fn empty(&self, rank: u32, state: &mut State, function: Function) -> MpiRecord {
        let thread = ThreadId {
            pid: rank + 1,
            tid: rank + 1,
        };
        let mut record = MpiRecord::new(function, thread, Peer::Rank(rank), state.sequence);
        state.sequence += 1;
        record.communicator = communicator::WORLD;
        record.communicator_size = self.world;
        record
    }

    /// Returns the program's number of an operation's communicator; `None` for a communicator of this rank alone.
    fn communicator(&self, rank: u32, op: &Op) -> Option<u32> {
        let list = self.program.ranks[rank as usize].communicators;
        let list = &self.program.communicator_lists[list as usize];
        list.get(op.communicator as usize).copied().flatten()
    }

    fn members(&self, number: u32) -> Vec<u32> {
        match self.program.communicators.get(number as usize) {
            Some(members) if !members.is_empty() => members.clone(),
            _ => (0..self.world).collect(),
        }
    }

    fn resolve(&self, peer: PeerRef, rank: u32) -> u32 {
        peer.resolve(rank, self.world)
    }

    /// Collects the sizes of all point-to-point messages, so that records of receives can state the received bytes.
    fn sends(&mut self, timeline: &Timeline) {
        for (calls, rank) in timeline.calls.iter().zip(0..) {
            for call in calls {
                let op = &self.program.ops[call.op as usize];
                let (to, tag, bytes) = match &op.action {
                    Action::Send { to, tag, bytes, .. } => (*to, *tag, *bytes),
                    Action::SendReceive {
                        send: Some((to, tag, bytes)),
                        ..
                    } => (*to, *tag, *bytes),
                    _ => continue,
                };
                let to = self.resolve(to, rank);
                let envelope = (rank, to, self.communicator(rank, op), tag);
                self.sent.entry(envelope).or_default().push_back(bytes);
            }
        }
    }

    /// Returns the message that a receive gets: the next one with its sender, communicator and tag. With an unknown sender or tag, the
    /// size is 0.
    fn got(
        &mut self,
        rank: u32,
        op: &Op,
        from: nodescope_loop_tree::Source,
        tag: Option<u32>,
    ) -> Completion {
        let source = from.peer().map(|peer| self.resolve(peer, rank));
        let envelope = source
            .zip(tag)
            .map(|(source, tag)| (source, rank, self.communicator(rank, op), tag));
        let bytes = envelope.and_then(|envelope| self.sent.get_mut(&envelope)?.pop_front());
        Completion {
            request: 0,
            bytes: bytes.unwrap_or(0),
            index: 0,
            source: source.map_or(Peer::Any, Peer::Rank),
            tag: tag.map_or(Tag::Any, Tag::Value),
            cancelled: false,
        }
    }

    /// Returns the record of a call; `later` has the calls of the rank after it.
    fn record(&mut self, rank: u32, state: &mut State, call: &Call, later: &[Call]) -> MpiRecord {
        let program = self.program;
        let op = &program.ops[call.op as usize];
        let mut record = self.empty(rank, state, function(op));
        (record.call_site, record.call_module) = (op.site.address, op.site.module);
        let module_name = program.origin.names.modules.get(&op.site.module);
        record.module_name = module_name.cloned().unwrap_or_default();
        if op.site.address != 0 && op.site.module == 0 {
            record.flags = Flags(record.flags.0 | Flags::CALL_SITE_IN_PROGRAM.0);
        }
        match self.communicator(rank, op) {
            None => (record.communicator, record.communicator_size) = (communicator::SELF, 1),
            Some(0) => {}
            Some(number) => {
                record.communicator = id(number);
                record.communicator_size = self.members(number).len() as u32;
            }
        }
        let mut start = |record: &mut MpiRecord, request: Option<u32>, got| {
            if let Some(request) = request {
                state.serial += 1;
                record.request = state.serial;
                state.live.insert(request, (state.serial, got));
            }
        };
        match &op.action {
            // The model does not keep the parts of such a call: the record has no peers or sizes.
            _ if composed(op.function) => {}
            // The flag keeps a later interpretation of this trace from taking the call for an ordinary collective.
            Action::Opaque if collective_class(op.function) => {
                record.flags = Flags(record.flags.0 | Flags::INTERCOMM.0);
            }
            Action::Nothing | Action::Opaque | Action::Mark(_) | Action::Reduced(_) => {}
            Action::Send {
                to,
                tag,
                bytes,
                request,
                ..
            } => {
                record.destination = Peer::Rank(self.resolve(*to, rank));
                record.send_tag = Tag::Value(*tag);
                record.send_bytes = *bytes;
                start(&mut record, *request, None);
            }
            Action::Receive {
                from,
                tag,
                room,
                request,
            } => {
                let got = self.got(rank, op, *from, *tag);
                (record.source, record.receive_tag) = (got.source, got.tag);
                record.receive_bytes = *room;
                match request {
                    None => record.completions.push(got),
                    Some(_) => start(&mut record, *request, Some(got)),
                }
            }
            Action::SendReceive { send, receive } => {
                record.destination = Peer::Null;
                record.source = Peer::Null;
                if let Some((to, tag, bytes)) = send {
                    record.destination = Peer::Rank(self.resolve(*to, rank));
                    record.send_tag = Tag::Value(*tag);
                    record.send_bytes = *bytes;
                }
                if let Some((from, tag, room)) = receive {
                    let got = self.got(rank, op, *from, *tag);
                    (record.source, record.receive_tag) = (got.source, got.tag);
                    record.receive_bytes = *room;
                    record.completions.push(got);
                }
            }
            Action::OneSided {
                to,
                out,
                back,
                request,
            } => {
                let to = Peer::Rank(self.resolve(*to, rank));
                (record.send_bytes, record.receive_bytes) = (*out, *back);
                match op.function.blocking() {
                    Function::Get => record.source = to,
                    Function::Put | Function::Accumulate => record.destination = to,
                    _ => (record.source, record.destination) = (to, to),
                }
                if op.function.class() == Class::StartRma {
                    start(&mut record, *request, None);
                }
            }
            Action::Probe { from, tag } => {
                let source = from.peer().map(|peer| self.resolve(peer, rank));
                record.source = source.map_or(Peer::Any, Peer::Rank);
                record.receive_tag = tag.map_or(Tag::Any, Tag::Value);
                record.completions.push(Completion {
                    source: record.source,
                    tag: record.receive_tag,
                    ..Completion::default()
                });
            }
            Action::Wait { requests, .. } | Action::Cancel { requests } => {
                let cancelled = matches!(op.action, Action::Cancel { .. });
                for (request, index) in requests.iter().zip(0..) {
                    let Some((serial, got)) = state.live.remove(request) else {
                        continue;
                    };
                    record.requests.push(serial);
                    record.completions.push(Completion {
                        request: serial,
                        index,
                        cancelled,
                        ..got.unwrap_or_default()
                    });
                }
            }
            Action::Free { requests } => {
                let live = requests
                    .iter()
                    .filter_map(|request| state.live.remove(request));
                record.requests = live.map(|(serial, _)| serial).collect();
            }
            Action::Collective(collective) => {
                self.collective(rank, op, collective, &mut record);
                start(&mut record, collective.request, None);
                if collective.kind == CollectiveKind::Create {
                    self.construct(rank, state, later, &mut record);
                }
            }
        }
        record
    }

    /// Fills in the bytes that a caller sends and has buffer space for, in the way that records count them.
    fn collective(&self, rank: u32, op: &Op, collective: &Collective, record: &mut MpiRecord) {
        use CollectiveKind::*;
        let size = u64::from(record.communicator_size.max(1));
        let number = self.communicator(rank, op);
        let members = number.map_or(vec![rank], |number| self.members(number));
        let kind = collective.kind;
        if kind.rooted() {
            let root = members.get(collective.root as usize);
            record.root = root.map_or(Peer::None, |&root| Peer::Rank(root));
        }
        let is_root = record.root == record.rank;
        let bytes = collective.bytes;
        let all = bytes.saturating_mul(size);
        (record.send_bytes, record.receive_bytes) = match kind {
            Barrier | Create => (0, 0),
            Bcast if is_root => (bytes, 0),
            Bcast => (0, bytes),
            Reduce if !is_root => (bytes, 0),
            Reduce | Allreduce | Scan | Exscan => (bytes, bytes),
            ReduceScatter | ReduceScatterBlock => (bytes, bytes / size),
            Gather if is_root => (bytes, all),
            Gather | Gatherv => (bytes, 0),
            Scatter if is_root => (all, bytes),
            Scatter | Scatterv => (0, bytes),
            Allgather => (bytes, all),
            Allgatherv => (bytes, collective.receive_from.iter().sum()),
            Alltoall => (all, all),
            Alltoallv => (bytes, collective.receive_from.iter().sum()),
        };
        record.send_bytes_to = collective.send_to.to_vec();
        record.receive_bytes_from = collective.receive_from.to_vec();
    }

    /// Sets the communicator that a call constructs: the rank's next one, if a later call uses it. The model does not store which call
    /// constructed a communicator.
    fn construct(&self, rank: u32, state: &mut State, later: &[Call], record: &mut MpiRecord) {
        let list = self.program.ranks[rank as usize].communicators;
        let list = &self.program.communicator_lists[list as usize];
        let copy = |number: &Option<u32>| {
            number.is_some_and(|number| self.program.copies.contains(&number))
        };
        while list.get(state.made as usize).is_some_and(copy) {
            state.made += 1;
        }
        let Some(&number) = list.get(state.made as usize) else {
            return;
        };
        let used = |call: &Call| self.program.ops[call.op as usize].communicator == state.made;
        if !later.iter().any(used) {
            return;
        }
        state.made += 1;
        let Some(number) = number else {
            return;
        };
        record.new_communicator = id(number);
        let members = self.members(number);
        if members.first() == Some(&rank) {
            record.members = members.into_iter().map(Peer::Rank).collect();
        }
    }
}

fn collective_class(function: Function) -> bool {
    matches!(
        function.class(),
        Class::Collective | Class::StartCollective | Class::Communicator
    )
}

/// Returns the id by which records name a communicator of the program.
fn id(number: u32) -> u64 {
    match number {
        0 => communicator::WORLD,
        number => 1 << 63 | u64::from(number),
    }
}

/// Returns true if the model interprets a call of this function as several operations or messages.
fn composed(function: Function) -> bool {
    use Class::{Epoch, Neighbor, StartNeighbor, StartSendReceive, Window};
    matches!(
        function.class(),
        Epoch | Neighbor | StartNeighbor | StartSendReceive | Window
    )
}

/// Returns the function for the record. An operation that a persistent request starts has its own record, as a non-blocking call.
fn function(op: &Op) -> Function {
    match (&op.action, op.function.class()) {
        (Action::Send { mode, .. }, _)
            if matches!(op.function, Function::Start | Function::Startall) =>
        {
            match mode {
                nodescope_loop_tree::Mode::Standard => Function::Isend,
                nodescope_loop_tree::Mode::Buffered => Function::Ibsend,
                nodescope_loop_tree::Mode::Synchronous => Function::Issend,
                nodescope_loop_tree::Mode::Ready => Function::Irsend,
            }
        }
        (Action::Receive { .. }, _)
            if matches!(op.function, Function::Start | Function::Startall) =>
        {
            Function::Irecv
        }
        (Action::Collective(collective), _)
            if matches!(op.function, Function::Start | Function::Startall) =>
        {
            begun(collective.kind)
        }
        // The call that completes cancelled requests has the record.
        (Action::Cancel { .. }, class) if class != Class::Completion => Function::Wait,
        _ => op.function,
    }
}

/// Returns the non-blocking function of a kind of collective.
fn begun(kind: CollectiveKind) -> Function {
    match kind {
        CollectiveKind::Barrier | CollectiveKind::Create => Function::Ibarrier,
        CollectiveKind::Bcast => Function::Ibcast,
        CollectiveKind::Reduce => Function::Ireduce,
        CollectiveKind::Allreduce => Function::Iallreduce,
        CollectiveKind::Gather => Function::Igather,
        CollectiveKind::Gatherv => Function::Igatherv,
        CollectiveKind::Scatter => Function::Iscatter,
        CollectiveKind::Scatterv => Function::Iscatterv,
        CollectiveKind::Allgather => Function::Iallgather,
        CollectiveKind::Allgatherv => Function::Iallgatherv,
        CollectiveKind::Alltoall => Function::Ialltoall,
        CollectiveKind::Alltoallv => Function::Ialltoallv,
        CollectiveKind::ReduceScatter => Function::IreduceScatter,
        CollectiveKind::ReduceScatterBlock => Function::IreduceScatterBlock,
        CollectiveKind::Scan => Function::Iscan,
        CollectiveKind::Exscan => Function::Iexscan,
    }
}
