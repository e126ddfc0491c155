//! How long calls waited for other ranks: for a message that had not been sent, a receive that had not begun, a rank that had not come
//! to a collective operation.
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
//! - polls that found nothing waited for all their time.
//!
//! A message's way through the network is no waiting in this sense. A trace tells nothing of these waits, and they count as none:
//! locks and epochs of windows except fences, collectives between groups, transfers of files, calls that never ended.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Class, Function, MpiRecord, Peer, ProcessKind, Tag};

use crate::event::{Body, Event, MpiCall};
use crate::standing::joins;
use crate::standing::operation::{Kind, Needs, messages, needs, together};

/// A part of a call in which the caller waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    /// The caller's node.
    pub node: u32,
    /// The caller.
    pub rank: u32,
    /// The caller's process id in the guest. Ranks of several programs may have the same number.
    pub pid: u32,
    /// The function called.
    pub function: Function,
    /// When the waiting began, picoseconds.
    pub from: u64,
    /// When it ended.
    pub until: u64,
    /// Picoseconds of waiting in between: fewer than the whole time where a program worked between polls.
    pub time: u64,
}

impl Wait {
    /// The waiting that lies between two moments, picoseconds.
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

/// A process of an MPI job: the job's number, from 0, and the rank.
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

/// A place where collective operations come in one order on all ranks: a communicator, window or file, or one operation prepared
/// there. Starts of a prepared operation come in an order of their own. Number 0: no prepared operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    job: usize,
    key: u64,
    prepared: u64,
}

/// A collective operation by its number in a place.
type Turn = (Place, u64);

/// A call that depends on operations of which not all are known.
#[derive(Clone, Debug)]
struct Open {
    wait: Wait,
    /// Operations still unknown.
    unknown: usize,
    /// The call needs only the first of its operations.
    any: bool,
    /// When its operations began: the latest time, or the earliest if `any`.
    begun: Option<u64>,
}

/// One side of a message.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    /// When the other side began, once that is known.
    other: Option<u64>,
    /// The call that completes this side, once there is one.
    call: Option<usize>,
    /// No call completes it: the program has given its request away.
    given_away: bool,
}

/// The operations that a request stands for.
#[derive(Clone, Debug)]
enum Request {
    /// Sides of messages.
    Sides(Vec<usize>),
    /// A receive of any sender or tag: when it began, and its communicator.
    Receive(u64, u64),
    /// A collective operation, and whom it needs.
    Collective(Turn, Needs),
}

/// The operation that a persistent request stands for.
#[derive(Clone, Debug)]
struct Prepared {
    record: MpiRecord,
    /// Number of the collective operation among those that its rank has prepared there, from 1.
    number: u64,
}

/// A collective operation that not all members have completed.
#[derive(Clone, Debug, Default)]
struct Gathering {
    members: usize,
    /// When each rank entered.
    entered: BTreeMap<u32, u64>,
    /// Calls that complete it, with whom they need.
    calls: Vec<(usize, Needs)>,
    /// Ranks that have completed it.
    left: usize,
}

/// The two ends of a channel. They hold messages sent and not yet received, messages received and not yet known to be sent, each
/// with its beginning, and probes for later messages, with the number of messages before.
#[derive(Clone, Debug, Default)]
struct Ends {
    sent: VecDeque<(usize, u64)>,
    received: VecDeque<(usize, u64)>,
    probes: Vec<(usize, usize)>,
}

/// Numbered entries whose numbers are used again.
#[derive(Debug)]
struct Slots<T> {
    all: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots {
            all: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
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

/// Follows a trace. Events must come in the order of the file. A call's waiting is known once the calls that it depends on have
/// ended, so that the wait may be handed over later than the call.
#[derive(Debug, Default)]
pub struct WaitBuilder {
    /// Ranks known of each job, and how many ranks the job has.
    jobs: Vec<(BTreeSet<u32>, u32)>,
    /// The job of a process, by node and process id.
    processes: HashMap<(u32, u32), usize>,
    channels: HashMap<Channel, Ends>,
    gatherings: HashMap<Turn, Gathering>,
    /// Collective operations that each rank has entered in a place.
    turns: HashMap<(u32, Place), u64>,
    /// Collective operations that each rank has prepared in a place.
    preparations: HashMap<(u32, Place), u64>,
    sides: Slots<Side>,
    calls: Slots<Open>,
    requests: HashMap<(Process, u64), Request>,
    prepared: HashMap<(Process, u64), Prepared>,
    done: Vec<Wait>,
}

impl WaitBuilder {
    /// Adds an event.
    pub fn add(&mut self, event: &Event) {
        match &event.body {
            Body::Process(hello) if hello.kind == ProcessKind::MpiRank => {
                let Peer::Rank(rank) = hello.rank else { return };
                let size = hello.world_size;
                let fits = |(known, world): &(_, u32)| joins(known, *world, rank, size);
                if !self.jobs.last().is_some_and(fits) {
                    self.jobs.push((BTreeSet::new(), size));
                }
                let job = self.jobs.len() - 1;
                self.jobs[job].0.insert(rank);
                self.processes.insert((event.node, hello.pid), job);
            }
            Body::Mpi(call) => self.call(event.node, call),
            _ => {}
        }
    }

    /// Takes the waits that are known by now and were not taken before.
    pub fn take(&mut self) -> Vec<Wait> {
        std::mem::take(&mut self.done)
    }

    /// Takes the rest, at the end of the trace. Operations that the trace lacks count as not waited for.
    pub fn finish(mut self) -> Vec<Wait> {
        let mut waiting = Vec::new();
        for (&turn, gathering) in &mut self.gatherings {
            let calls = std::mem::take(&mut gathering.calls).into_iter();
            waiting.extend(calls.map(|(slot, needs)| (turn, slot, needs)));
        }
        for (turn, slot, needs) in waiting {
            self.resolve(turn, slot, &needs);
        }
        let left = std::mem::take(&mut self.calls.all);
        for open in left.into_iter().flatten() {
            self.end(open);
        }
        // The gatherings come in no fixed order.
        self.done.sort_unstable();
        self.done
    }

    fn call(&mut self, node: u32, call: &MpiCall) {
        let record = &call.record;
        let Peer::Rank(rank) = record.rank else {
            return;
        };
        let job = self.processes.get(&(node, record.thread.pid)).copied();
        // Processes that did not introduce themselves make one job of their own.
        let process = (job.unwrap_or(usize::MAX), rank);
        let mut wait = Wait {
            node,
            rank,
            pid: record.thread.pid,
            function: record.function,
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
        if let Some(place) = place(process.0, record) {
            let turn = self.enter(rank, place, record, wait.from);
            let needs = needs(record);
            if record.request == 0 {
                let slot = self.open(wait, 1, false);
                self.leave(turn, slot, needs);
            } else {
                let request = Request::Collective(turn, needs);
                self.requests.insert((process, record.request), request);
            }
            return;
        }
        match record.function {
            Function::Probe | Function::Iprobe => self.probe(process, wait, record),
            // The call that later receives the probed message has nothing to wait for.
            Function::Mprobe | Function::Improbe => {
                if let Some(side) = self.received(process, record, wait.from) {
                    let slot = self.open(wait, 1, false);
                    self.complete(side, slot);
                }
            }
            _ => self.transfer(process, wait, record, record.request),
        }
    }

    // ---- messages ----

    /// A call that sends or receives, or starts to.
    fn transfer(&mut self, process: Process, wait: Wait, record: &MpiRecord, request: u64) {
        let (send, receive) = match messages(record) {
            Kind::Send(send) => (Some(send), None),
            Kind::Receive(receive) => (None, Some(receive)),
            Kind::Both(send, receive) => (send, receive),
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
            let side = self.sent(channel, wait.from);
            // A message in the program's own buffer has no receiver to wait for.
            match send.buffered {
                true => self.give_away(side),
                false => sides.push(side),
            }
        }
        match receive {
            Some(_) if request == 0 => sides.extend(self.received(process, record, wait.from)),
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
                    sides.push(self.taken(channel, wait.from));
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
        let slot = self.open(wait, sides.len(), false);
        for side in sides {
            self.complete(side, slot);
        }
    }

    /// The receiving side of a call that says whose message it received.
    fn received(&mut self, process: Process, record: &MpiRecord, begun: u64) -> Option<usize> {
        let channel = from_whom(process, record)?;
        Some(self.taken(channel, begun))
    }

    fn sent(&mut self, channel: Channel, begun: u64) -> usize {
        let side = self.sides.add(Side::default());
        let ends = self.channels.entry(channel).or_default();
        let mut probes = Vec::new();
        ends.probes.retain_mut(|(before, slot)| match before {
            0 => {
                probes.push(*slot);
                false
            }
            before => {
                *before -= 1;
                true
            }
        });
        let other = ends.received.pop_front();
        if other.is_none() {
            ends.sent.push_back((side, begun));
        }
        self.tidy(channel);
        for slot in probes {
            self.known(slot, Some(begun));
        }
        if let Some((receive, received)) = other {
            self.meets(side, received);
            self.meets(receive, begun);
        }
        side
    }

    fn taken(&mut self, channel: Channel, begun: u64) -> usize {
        let side = self.sides.add(Side::default());
        let ends = self.channels.entry(channel).or_default();
        let other = ends.sent.pop_front();
        if other.is_none() {
            ends.received.push_back((side, begun));
        }
        self.tidy(channel);
        if let Some((send, sent)) = other {
            self.meets(side, sent);
            self.meets(send, begun);
        }
        side
    }

    fn probe(&mut self, process: Process, wait: Wait, record: &MpiRecord) {
        let Some(channel) = from_whom(process, record) else {
            return;
        };
        let slot = self.open(wait, 1, false);
        let ends = self.channels.entry(channel).or_default();
        match ends.sent.front() {
            Some(&(_, begun)) => self.known(slot, Some(begun)),
            None => ends.probes.push((ends.received.len(), slot)),
        }
    }

    /// Forgets a channel on which nothing is under way.
    fn tidy(&mut self, channel: Channel) {
        let idle = |ends: &Ends| {
            ends.sent.is_empty() && ends.received.is_empty() && ends.probes.is_empty()
        };
        if self.channels.get(&channel).is_some_and(idle) {
            self.channels.remove(&channel);
        }
    }

    /// The other side of a message is known.
    fn meets(&mut self, side: usize, other: u64) {
        let Some(entry) = self.sides.get(side) else {
            return;
        };
        match (entry.call, entry.given_away) {
            (Some(slot), _) => {
                self.sides.take(side);
                self.known(slot, Some(other));
            }
            (None, true) => drop(self.sides.take(side)),
            (None, false) => entry.other = Some(other),
        }
    }

    /// A call completes a side.
    fn complete(&mut self, side: usize, slot: usize) {
        match self.sides.get(side) {
            Some(Side {
                other: Some(other), ..
            }) => {
                let other = *other;
                self.sides.take(side);
                self.known(slot, Some(other));
            }
            Some(entry) => entry.call = Some(slot),
            None => self.known(slot, None),
        }
    }

    fn give_away(&mut self, side: usize) {
        match self.sides.get(side) {
            Some(entry) if entry.other.is_none() => entry.given_away = true,
            _ => drop(self.sides.take(side)),
        }
    }

    // ---- collective operations ----

    fn enter(&mut self, rank: u32, place: Place, record: &MpiRecord, entry: u64) -> Turn {
        let number = self.turns.entry((rank, place)).or_default();
        let turn = (place, *number);
        *number += 1;
        let gathering = self.gatherings.entry(turn).or_default();
        gathering.members = record.communicator_size as usize;
        gathering.entered.insert(rank, entry);
        if gathering.entered.len() == gathering.members {
            for (slot, needs) in std::mem::take(&mut gathering.calls) {
                self.resolve(turn, slot, &needs);
            }
        }
        turn
    }

    /// A call completes a collective operation.
    fn leave(&mut self, turn: Turn, slot: usize, needs: Needs) {
        let Some(gathering) = self.gatherings.get_mut(&turn) else {
            return self.known(slot, None);
        };
        if gathering.entered.len() < gathering.members {
            gathering.calls.push((slot, needs));
        } else {
            self.resolve(turn, slot, &needs);
        }
        self.left(turn);
    }

    /// A rank has nothing to do with a collective operation any more.
    fn left(&mut self, turn: Turn) {
        if let Some(gathering) = self.gatherings.get_mut(&turn) {
            gathering.left += 1;
            if gathering.left >= gathering.members && gathering.calls.is_empty() {
                self.gatherings.remove(&turn);
            }
        }
    }

    /// The ranks that a call needs of an operation have all entered.
    fn resolve(&mut self, turn: Turn, slot: usize, needs: &Needs) {
        let (Some(gathering), Some(open)) = (self.gatherings.get(&turn), self.calls.get(slot))
        else {
            return;
        };
        let (rank, exit) = (open.wait.rank, open.wait.until);
        let entered = |rank: &u32| gathering.entered.get(rank).copied();
        let in_time = |entry: &u64| *entry <= exit;
        let begun = match needs {
            Needs::All => gathering.entered.values().copied().filter(in_time).max(),
            Needs::Root(root) => entered(root),
            Needs::Before => {
                let before = gathering.entered.range(..rank).map(|(_, entry)| *entry);
                before.filter(in_time).max()
            }
            Needs::Neighbours { sources, .. } => {
                sources.iter().filter_map(entered).filter(in_time).max()
            }
            Needs::Some => None,
        };
        self.known(slot, begun);
    }

    // ---- requests ----

    fn prepare(&mut self, process: Process, record: &MpiRecord) {
        let mut number = 0;
        if let Some(place) = place(process.0, record) {
            let count = self.preparations.entry((process.1, place)).or_default();
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
        match place(process.0, &record) {
            Some(place) => {
                let place = Place {
                    prepared: number,
                    ..place
                };
                let turn = self.enter(process.1, place, &record, wait.from);
                let request = Request::Collective(turn, needs(&record));
                self.requests.insert((process, serial), request);
            }
            None => self.transfer(process, wait, &record, serial),
        }
    }

    fn forget(&mut self, request: Option<Request>) {
        match request {
            Some(Request::Sides(sides)) => {
                sides.into_iter().for_each(|side| self.give_away(side));
            }
            Some(Request::Collective(turn, _)) => self.left(turn),
            Some(Request::Receive(..)) | None => {}
        }
    }

    /// A start, a wait, a successful test, or another call on requests.
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
                        sides.push(self.taken(channel, begun));
                    }
                }
                Some(Request::Collective(turn, needs)) => collectives.push((turn, needs)),
                None => {}
            }
        }
        let unknown = sides.len() + collectives.len();
        if unknown == 0 {
            return;
        }
        let any = matches!(record.function, Waitany | Waitsome | Testany | Testsome);
        let slot = self.open(wait, unknown, any);
        for side in sides {
            self.complete(side, slot);
        }
        for (turn, needs) in collectives {
            self.leave(turn, slot, needs);
        }
    }

    // ---- calls ----

    fn open(&mut self, wait: Wait, unknown: usize, any: bool) -> usize {
        self.calls.add(Open {
            wait,
            unknown,
            any,
            begun: None,
        })
    }

    /// One of the operations that a call depends on is known: `begun` is when the operation began, none if the call cannot have
    /// waited for it.
    fn known(&mut self, slot: usize, begun: Option<u64>) {
        let Some(open) = self.calls.get(slot) else {
            return;
        };
        // A call did not wait for an operation that began after the call had ended.
        let begun = begun.filter(|begun| *begun <= open.wait.until);
        open.begun = match (open.begun, begun) {
            (Some(before), Some(now)) if open.any => Some(before.min(now)),
            (Some(before), Some(now)) => Some(before.max(now)),
            (before, now) => before.or(now),
        };
        open.unknown = open.unknown.saturating_sub(1);
        if open.unknown == 0
            && let Some(open) = self.calls.take(slot)
        {
            self.end(open);
        }
    }

    fn end(&mut self, open: Open) {
        let mut wait = open.wait;
        let Some(begun) = open.begun else { return };
        wait.until = begun;
        wait.time = begun.saturating_sub(wait.from);
        if wait.time > 0 {
            self.done.push(wait);
        }
    }
}

/// Where a call takes its turn among collective operations. None for a call that is not collective, and for one between two groups,
/// where not all ranks wait for all.
fn place(job: usize, record: &MpiRecord) -> Option<Place> {
    let followed = !record.flags.contains(Flags::INTERCOMM) && record.communicator_size != 0;
    let key = together(record).filter(|_| followed)?;
    Some(Place {
        job,
        key,
        prepared: 0,
    })
}

/// The channel of the message that a call received or probed.
fn from_whom((job, to): Process, record: &MpiRecord) -> Option<Channel> {
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
