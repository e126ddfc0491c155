//! Wait times of calls for other ranks: for a message that had not been sent, a receive that had not begun, a rank that had not entered a
//! collective operation.
//!
//! A call waits from its entry until the last event that the call depends on has begun on another rank, at most until the call
//! ends:
//!
//! - a receive, a probe, and a call that completes a receive: until the call that sends the message begins (late sender);
//! - a send, and a call that completes a send: until the call that posts the receive begins, if it begins before the send's call ends
//!   (late receiver). A send that ends earlier has not waited for the receiver;
//! - a collective operation, and a call that completes one: until the last rank whose data the caller needs enters
//!   (`MPI_Bcast`: the root; `MPI_Reduce` on its root, `MPI_Allreduce`, `MPI_Barrier` and the like: all ranks; neighbourhood
//!   collectives: the sources). Ranks that enter after the call has ended are not waited for;
//! - of several operations, `MPI_Waitall` waits for the last, `MPI_Waitany` and `MPI_Waitsome` for the first;
//! - polls that found nothing count as waiting for all the time inside them.
//!
//! The transfer of a message through the network is no waiting in this sense. A trace contains nothing about these waits, and they count as
//! none: locks and epochs of windows except fences, collectives between groups, transfers of files, calls that never ended.

use std::collections::{BTreeMap, HashMap, VecDeque};

use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Class, Function, MpiRecord, Peer, Tag};

use crate::event::{Body, Event, MpiCall};
use crate::pending::operation::{
    Kind, RequiredMembers, collective_object, messages, required_members,
};
use crate::programs::ProgramFinder;
use crate::site::Site;

/// A part of a call in which the caller waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    /// Number of the caller's node.
    pub node: u32,
    /// World rank of the caller.
    pub rank: u32,
    /// The caller's process id in the guest. Ranks of several programs may have the same number.
    pub pid: u32,
    /// MPI function in which the caller waited.
    pub function: Function,
    /// Place of the call in the program.
    pub site: Site,
    /// Time at which the waiting began, picoseconds.
    pub from: u64,
    /// Time at which the waiting ended, picoseconds.
    pub until: u64,
    /// Picoseconds of waiting between `from` and `until`: less than the difference if the program worked between polls.
    pub time: u64,
}

impl Wait {
    /// Returns the part of the waiting between two times, picoseconds. The waiting is taken as evenly distributed.
    pub fn within(&self, from: u64, until: u64) -> u64 {
        let extent = self.until.saturating_sub(self.from);
        let part = self.until.min(until).saturating_sub(self.from.max(from));
        if part >= extent {
            return self.time;
        }
        let share = u128::from(self.time) * u128::from(part) / u128::from(extent);
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}

/// A message that was sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// Number of the MPI program of both ranks, from 0.
    pub program: usize,
    /// World rank of the sender.
    pub from: u32,
    /// World rank of the receiver.
    pub to: u32,
    /// Time at which the call that sent the message began, picoseconds.
    pub sent: u64,
    /// Time at which the call that completed the receive began, picoseconds.
    pub completing: u64,
}

/// A process: the number of its MPI program, from 0, and its rank.
type Process = (usize, u32);

/// Messages that do not overtake each other: sender and receiver, communicator and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Channel {
    job: usize,
    from: u32,
    to: u32,
    communicator: u64,
    tag: u32,
}

/// A stream of collective operations, which all ranks call in one order: those of a communicator, window or file, or the starts of one
/// persistent operation. `prepared` is the number of the persistent operation; 0 if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CollectiveStream {
    job: usize,
    key: u64,
    prepared: u64,
}

/// Identity of a collective operation: its stream, and its number in the stream.
type CollectiveId = (CollectiveStream, u64);

/// A call that depends on operations of which not all are known.
#[derive(Clone, Debug)]
struct PendingWait {
    wait: Wait,
    /// Number of operations whose beginning is still unknown.
    unknown: usize,
    /// True if the call needs only the first of its operations.
    any: bool,
    /// Beginning of the call's operations, picoseconds: the latest time, or the earliest if `any`.
    begun: Option<u64>,
}

/// State of the send or of the receive of a message.
#[derive(Clone, Copy, Debug, Default)]
struct MessageSide {
    /// Time at which the other side began, picoseconds, once that is known.
    other: Option<u64>,
    /// Index of the call that completes this side, once the call is known.
    call: Option<usize>,
    /// True if no call completes this side: the program has freed the request.
    detached: bool,
    /// Channel of the message, if this is the receiver's side.
    received: Option<Channel>,
}

/// Operations of a request.
#[derive(Clone, Debug)]
enum Request {
    /// Indices of sides of messages.
    Sides(Vec<usize>),
    /// A receive of any sender or tag: the time at which the receive began, picoseconds, and its communicator.
    Receive(u64, u64),
    /// A collective operation, and the members that the operation needs.
    Collective(CollectiveId, RequiredMembers),
}

/// Operation of a persistent request.
#[derive(Clone, Debug)]
struct Prepared {
    record: MpiRecord,
    /// Number of the collective operation among the rank's preparations on the same communicator, from 1; 0 if not collective.
    number: u64,
}

/// A collective operation that not all members have completed.
#[derive(Clone, Debug, Default)]
struct OpenCollective {
    members: usize,
    /// Time at which each rank entered, picoseconds.
    entered: BTreeMap<u32, u64>,
    /// Indices of calls that complete the operation, with the members that each call needs.
    calls: Vec<(usize, RequiredMembers)>,
    /// Number of ranks that have completed the operation.
    left: usize,
}

/// Queues of a channel: messages sent and not yet received, and messages received and not yet known to be sent, each with the time at which
/// its call began; and probes for later messages, each with the number of messages before.
#[derive(Clone, Debug, Default)]
struct ChannelQueues {
    sent: VecDeque<(usize, u64)>,
    received: VecDeque<(usize, u64)>,
    probes: Vec<(usize, usize)>,
}

/// Store of entries by index. Indices of removed entries are used again.
#[derive(Debug)]
struct Slab<T> {
    all: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab {
            all: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    fn add(&mut self, value: T) -> usize {
        if let Some(slot) = self.free.pop() {
            self.all[slot] = Some(value);
            return slot;
        }
        self.all.push(Some(value));
        self.all.len() - 1
    }

    fn get(&mut self, slot: usize) -> Option<&mut T> {
        self.all.get_mut(slot)?.as_mut()
    }

    fn take(&mut self, slot: usize) -> Option<T> {
        let value = self.all.get_mut(slot)?.take();
        if value.is_some() {
            self.free.push(slot);
        }
        value
    }
}

/// Builder of the waits of a trace. Events must come in the order of the file. A call's wait is known once the calls on which it depends
/// have ended, so that [`WaitBuilder::take`] may return a wait later than the call is added.
#[derive(Debug, Default)]
pub struct WaitBuilder {
    finder: ProgramFinder,
    channels: HashMap<Channel, ChannelQueues>,
    open_collectives: HashMap<CollectiveId, OpenCollective>,
    /// Number of collective operations that each rank has entered, by stream.
    collective_counts: HashMap<(u32, CollectiveStream), u64>,
    /// Number of collective operations that each rank has prepared, by stream.
    preparations: HashMap<(u32, CollectiveStream), u64>,
    sides: Slab<MessageSide>,
    waits: Slab<PendingWait>,
    requests: HashMap<(Process, u64), Request>,
    prepared: HashMap<(Process, u64), Prepared>,
    done: Vec<Wait>,
    /// Messages that have become known; `None` if nobody asks for messages.
    messages: Option<Vec<Message>>,
}

impl WaitBuilder {
    /// Returns a builder that finds messages, too. [`WaitBuilder::take_messages`] returns them.
    pub fn with_messages() -> WaitBuilder {
        WaitBuilder {
            messages: Some(Vec::new()),
            ..WaitBuilder::default()
        }
    }

    /// Returns the messages that have become known since the last call. A message is known once its send and the call that completed its
    /// receive have ended.
    pub fn take_messages(&mut self) -> Vec<Message> {
        self.messages
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Adds an event.
    pub fn add(&mut self, event: &Event) {
        let caller = self.finder.caller(event);
        if let (Some(caller), Body::Mpi(call)) = (caller, &event.body) {
            self.call(event.node, (caller.program, caller.rank), call);
        }
    }

    /// Returns the waits that have become known since the last call.
    pub fn take(&mut self) -> Vec<Wait> {
        std::mem::take(&mut self.done)
    }

    /// Returns the remaining waits at the end of the trace. Operations that the trace does not contain count as not waited for.
    pub fn finish(mut self) -> Vec<Wait> {
        let mut waiting = Vec::new();
        for (&id, collective) in &mut self.open_collectives {
            let calls = std::mem::take(&mut collective.calls).into_iter();
            waiting.extend(calls.map(|(slot, needs)| (id, slot, needs)));
        }
        for (id, slot, needs) in waiting {
            self.resolve_collective(id, slot, &needs);
        }
        let left = std::mem::take(&mut self.waits.all);
        for pending in left.into_iter().flatten() {
            self.end(pending);
        }
        // The waits are sorted because the hash map has no fixed order.
        self.done.sort_unstable();
        self.done
    }

    fn call(&mut self, node: u32, process: Process, call: &MpiCall) {
        let record = &call.record;
        if record.rank.rank().is_none() {
            return;
        }
        let (_, rank) = process;
        let mut wait = Wait {
            node,
            rank,
            pid: record.thread.pid,
            function: record.function,
            site: Site::of(record),
            from: call.entry.time,
            until: call.exit.time,
            time: 0,
        };
        if record.flags.contains(Flags::POLL_RUN) {
            wait.time = call.time_inside;
            self.done.push(wait);
            return;
        }
        match record.function.class() {
            _ if matches!(record.function, Function::Start | Function::Startall) => {
                return self.completion(process, wait, record);
            }
            Class::Persistent | Class::PrepareCollective | Class::PrepareNeighbor => {
                return self.prepare(process, record);
            }
            Class::Completion => return self.completion(process, wait, record),
            _ => {}
        }
        if let Some(stream) = collective_stream(process.0, record) {
            let id = self.enter(rank, stream, record, wait.from);
            let needs = required_members(record);
            if record.request == 0 {
                let slot = self.add_wait(wait, 1, false);
                self.complete_collective(id, slot, needs);
            } else {
                let request = Request::Collective(id, needs);
                self.requests.insert((process, record.request), request);
            }
            return;
        }
        match record.function {
            Function::Probe | Function::Iprobe => self.probe(process, wait, record),
            // The call that later receives the probed message has nothing to wait for.
            Function::Mprobe | Function::Improbe => {
                if let Some(side) = self.add_completed_receive(process, record, wait.from) {
                    let slot = self.add_wait(wait, 1, false);
                    self.complete_side(side, slot);
                }
            }
            _ => self.transfer(process, wait, record, record.request),
        }
    }

    // ---- messages ----

    /// Adds a call that sends or receives, or that starts a send or receive.
    fn transfer(&mut self, process: Process, wait: Wait, record: &MpiRecord, request: u64) {
        let (send, receive) = match messages(record) {
            Kind::Send(send) => (Some(send), None),
            Kind::Receive(receive) => (None, Some(receive)),
            Kind::SendReceive(send, receive) => (send, receive),
            _ => return,
        };
        let (job, rank) = process;
        let mut sides = Vec::new();
        if let Some(send) = send {
            let channel = Channel {
                job,
                from: rank,
                to: send.to,
                communicator: send.communicator,
                tag: send.tag,
            };
            let side = self.add_send(channel, wait.from);
            // A buffered send does not wait for a receiver.
            match send.buffered {
                true => self.detach(side),
                false => sides.push(side),
            }
        }
        match receive {
            Some(_) if request == 0 => {
                sides.extend(self.add_completed_receive(process, record, wait.from))
            }
            Some(receive) => match (receive.from, receive.tag) {
                (Peer::Rank(from), Tag::Value(tag)) => {
                    let communicator = receive.communicator;
                    let channel = Channel {
                        job,
                        from,
                        to: rank,
                        communicator,
                        tag,
                    };
                    sides.push(self.add_receive(channel, wait.from));
                }
                _ if sides.is_empty() => {
                    let receive = Request::Receive(wait.from, receive.communicator);
                    self.requests.insert((process, request), receive);
                }
                _ => {}
            },
            None => {}
        }
        if sides.is_empty() {
            return;
        }
        if request != 0 {
            self.requests
                .insert((process, request), Request::Sides(sides));
            return;
        }
        let slot = self.add_wait(wait, sides.len(), false);
        for side in sides {
            self.complete_side(side, slot);
        }
    }

    /// Adds the receive side of a call whose record names the received message. Returns the index of the side.
    fn add_completed_receive(
        &mut self,
        process: Process,
        record: &MpiRecord,
        begun: u64,
    ) -> Option<usize> {
        let channel = received_channel(process, record)?;
        Some(self.add_receive(channel, begun))
    }

    fn add_send(&mut self, channel: Channel, begun: u64) -> usize {
        let side = self.sides.add(MessageSide::default());
        let queues = self.channels.entry(channel).or_default();
        let mut probes = Vec::new();
        queues.probes.retain_mut(|(before, slot)| match before {
            0 => {
                probes.push(*slot);
                false
            }
            before => {
                *before -= 1;
                true
            }
        });
        let other = queues.received.pop_front();
        if other.is_none() {
            queues.sent.push_back((side, begun));
        }
        self.remove_if_idle(channel);
        for slot in probes {
            self.resolve_one(slot, Some(begun));
        }
        if let Some((receive, received)) = other {
            self.set_other_side(side, received);
            self.set_other_side(receive, begun);
        }
        side
    }

    fn add_receive(&mut self, channel: Channel, begun: u64) -> usize {
        let side = self.sides.add(MessageSide {
            received: Some(channel),
            ..MessageSide::default()
        });
        let queues = self.channels.entry(channel).or_default();
        let other = queues.sent.pop_front();
        if other.is_none() {
            queues.received.push_back((side, begun));
        }
        self.remove_if_idle(channel);
        if let Some((send, sent)) = other {
            self.set_other_side(side, sent);
            self.set_other_side(send, begun);
        }
        side
    }

    fn probe(&mut self, process: Process, wait: Wait, record: &MpiRecord) {
        let Some(channel) = received_channel(process, record) else {
            return;
        };
        let slot = self.add_wait(wait, 1, false);
        let queues = self.channels.entry(channel).or_default();
        match queues.sent.front() {
            Some(&(_, begun)) => self.resolve_one(slot, Some(begun)),
            None => queues.probes.push((queues.received.len(), slot)),
        }
    }

    /// Removes a channel whose queues are empty.
    fn remove_if_idle(&mut self, channel: Channel) {
        let idle = |queues: &ChannelQueues| {
            queues.sent.is_empty() && queues.received.is_empty() && queues.probes.is_empty()
        };
        if self.channels.get(&channel).is_some_and(idle) {
            self.channels.remove(&channel);
        }
    }

    /// Records the time at which the other side of a message began.
    fn set_other_side(&mut self, side: usize, other: u64) {
        let Some(entry) = self.sides.get(side) else {
            return;
        };
        match (entry.call, entry.detached) {
            (Some(slot), _) => self.end_side(side, slot, other),
            (None, true) => drop(self.sides.take(side)),
            (None, false) => entry.other = Some(other),
        }
    }

    /// Records that the call at `slot` completes a side.
    fn complete_side(&mut self, side: usize, slot: usize) {
        match self.sides.get(side) {
            Some(MessageSide {
                other: Some(other), ..
            }) => {
                let other = *other;
                self.end_side(side, slot, other);
            }
            Some(entry) => entry.call = Some(slot),
            None => self.resolve_one(slot, None),
        }
    }

    /// Ends a side that the call at `slot` completes. The other side began at `other`.
    fn end_side(&mut self, side: usize, slot: usize, other: u64) {
        let received = self.sides.take(side).and_then(|side| side.received);
        if let (Some(messages), Some(channel), Some(pending)) =
            (&mut self.messages, received, self.waits.get(slot))
        {
            messages.push(Message {
                program: channel.job,
                from: channel.from,
                to: channel.to,
                sent: other,
                completing: pending.wait.from,
            });
        }
        self.resolve_one(slot, Some(other));
    }

    fn detach(&mut self, side: usize) {
        match self.sides.get(side) {
            Some(entry) if entry.other.is_none() => entry.detached = true,
            _ => drop(self.sides.take(side)),
        }
    }

    // ---- collective operations ----

    fn enter(
        &mut self,
        rank: u32,
        stream: CollectiveStream,
        record: &MpiRecord,
        entry: u64,
    ) -> CollectiveId {
        let number = self.collective_counts.entry((rank, stream)).or_default();
        let id = (stream, *number);
        *number += 1;
        let collective = self.open_collectives.entry(id).or_default();
        collective.members = record.communicator_size as usize;
        collective.entered.insert(rank, entry);
        if collective.entered.len() == collective.members {
            for (slot, needs) in std::mem::take(&mut collective.calls) {
                self.resolve_collective(id, slot, &needs);
            }
        }
        id
    }

    /// Adds the call at `slot`, which completes a collective operation.
    fn complete_collective(&mut self, id: CollectiveId, slot: usize, needs: RequiredMembers) {
        let Some(collective) = self.open_collectives.get_mut(&id) else {
            return self.resolve_one(slot, None);
        };
        if collective.entered.len() < collective.members {
            collective.calls.push((slot, needs));
        } else {
            self.resolve_collective(id, slot, &needs);
        }
        self.release_collective(id);
    }

    /// Records that a rank has completed a collective operation.
    fn release_collective(&mut self, id: CollectiveId) {
        if let Some(collective) = self.open_collectives.get_mut(&id) {
            collective.left += 1;
            if collective.left >= collective.members && collective.calls.is_empty() {
                self.open_collectives.remove(&id);
            }
        }
    }

    /// Resolves the wait of a call for a collective operation. All ranks have entered, or the trace has ended.
    fn resolve_collective(&mut self, id: CollectiveId, slot: usize, needs: &RequiredMembers) {
        let (Some(collective), Some(pending)) =
            (self.open_collectives.get(&id), self.waits.get(slot))
        else {
            return;
        };
        let (rank, exit) = (pending.wait.rank, pending.wait.until);
        let entered = |rank: &u32| collective.entered.get(rank).copied();
        let in_time = |entry: &u64| *entry <= exit;
        let begun = match needs {
            RequiredMembers::All => collective.entered.values().copied().filter(in_time).max(),
            RequiredMembers::Root(root) => entered(root),
            RequiredMembers::Before => {
                let before = collective.entered.range(..rank).map(|(_, entry)| *entry);
                before.filter(in_time).max()
            }
            RequiredMembers::Neighbours { sources, .. } => {
                sources.iter().filter_map(entered).filter(in_time).max()
            }
            RequiredMembers::Some => None,
        };
        self.resolve_one(slot, begun);
    }

    // ---- requests ----

    fn prepare(&mut self, process: Process, record: &MpiRecord) {
        let mut number = 0;
        if let Some(stream) = collective_stream(process.0, record) {
            let count = self.preparations.entry((process.1, stream)).or_default();
            *count += 1;
            number = *count;
        }
        let record = record.clone();
        self.prepared
            .insert((process, record.request), Prepared { record, number });
    }

    fn start(&mut self, process: Process, wait: Wait, serial: u64, prepared: u64) {
        let Some(Prepared { record, number }) = self.prepared.get(&(process, prepared)).cloned()
        else {
            return;
        };
        match collective_stream(process.0, &record) {
            Some(stream) => {
                let stream = CollectiveStream {
                    prepared: number,
                    ..stream
                };
                let id = self.enter(process.1, stream, &record, wait.from);
                let request = Request::Collective(id, required_members(&record));
                self.requests.insert((process, serial), request);
            }
            None => self.transfer(process, wait, &record, serial),
        }
    }

    fn forget(&mut self, request: Option<Request>) {
        match request {
            Some(Request::Sides(sides)) => {
                sides.into_iter().for_each(|side| self.detach(side));
            }
            Some(Request::Collective(id, _)) => self.release_collective(id),
            Some(Request::Receive(..)) | None => {}
        }
    }

    /// Adds a call on requests: a start, a wait, a successful test, or a release.
    fn completion(&mut self, process: Process, wait: Wait, record: &MpiRecord) {
        use Function::*;
        match record.function {
            Start | Startall => {
                for (&serial, &prepared) in record.requests.iter().zip(&record.prepared) {
                    if serial != 0 {
                        self.start(process, wait, serial, prepared);
                    }
                }
                return;
            }
            RequestFree => {
                for serial in &record.requests {
                    self.prepared.remove(&(process, *serial));
                    let request = self.requests.remove(&(process, *serial));
                    self.forget(request);
                }
                return;
            }
            _ => {}
        }
        let (mut sides, mut collectives) = (Vec::new(), Vec::new());
        for done in record.completions.iter().filter(|done| done.request != 0) {
            match self.requests.remove(&(process, done.request)) {
                cancelled if done.cancelled => self.forget(cancelled),
                Some(Request::Sides(own)) => sides.extend(own),
                Some(Request::Receive(begun, communicator)) => {
                    if let (Peer::Rank(from), Tag::Value(tag)) = (done.source, done.tag) {
                        let (job, to) = process;
                        let channel = Channel {
                            job,
                            from,
                            to,
                            communicator,
                            tag,
                        };
                        sides.push(self.add_receive(channel, begun));
                    }
                }
                Some(Request::Collective(id, needs)) => collectives.push((id, needs)),
                None => {}
            }
        }
        let unknown = sides.len() + collectives.len();
        if unknown == 0 {
            return;
        }
        let any = matches!(record.function, Waitany | Waitsome | Testany | Testsome);
        let slot = self.add_wait(wait, unknown, any);
        for side in sides {
            self.complete_side(side, slot);
        }
        for (id, needs) in collectives {
            self.complete_collective(id, slot, needs);
        }
    }

    // ---- calls ----

    fn add_wait(&mut self, wait: Wait, unknown: usize, any: bool) -> usize {
        self.waits.add(PendingWait {
            wait,
            unknown,
            any,
            begun: None,
        })
    }

    /// Records that one of the operations on which a call depends is known. `begun` is the time at which the operation began; `None` if the
    /// call cannot have waited for the operation.
    fn resolve_one(&mut self, slot: usize, begun: Option<u64>) {
        let Some(pending) = self.waits.get(slot) else {
            return;
        };
        // A call did not wait for an operation that began after the call had ended.
        let begun = begun.filter(|begun| *begun <= pending.wait.until);
        pending.begun = match (pending.begun, begun) {
            (Some(before), Some(now)) if pending.any => Some(before.min(now)),
            (Some(before), Some(now)) => Some(before.max(now)),
            (before, now) => before.or(now),
        };
        pending.unknown = pending.unknown.saturating_sub(1);
        if pending.unknown == 0
            && let Some(pending) = self.waits.take(slot)
        {
            self.end(pending);
        }
    }

    fn end(&mut self, pending: PendingWait) {
        let mut wait = pending.wait;
        let Some(begun) = pending.begun else { return };
        wait.until = begun;
        wait.time = begun.saturating_sub(wait.from);
        if wait.time > 0 {
            self.done.push(wait);
        }
    }
}

/// Returns the stream of collective operations to which a call belongs. `None` for a call that is not collective, for a record without
/// the communicator's size, and for a call between two groups, where not all ranks wait for all.
fn collective_stream(job: usize, record: &MpiRecord) -> Option<CollectiveStream> {
    let followed = !record.flags.contains(Flags::INTERCOMM) && record.communicator_size != 0;
    let key = collective_object(record).filter(|_| followed)?;
    Some(CollectiveStream {
        job,
        key,
        prepared: 0,
    })
}

/// Returns the channel of the message that a call received or probed; `None` if the record does not name the message.
fn received_channel((job, to): Process, record: &MpiRecord) -> Option<Channel> {
    let done = record.completions.first();
    let source = done.map_or(record.source, |done| done.source);
    let tag = done.map_or(record.receive_tag, |done| done.tag);
    let (Peer::Rank(from), Tag::Value(tag)) = (source, tag) else {
        return None;
    };
    Some(Channel {
        job,
        from,
        to,
        communicator: record.communicator,
        tag,
    })
}
