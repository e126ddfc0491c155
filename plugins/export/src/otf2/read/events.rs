//! Conversion of an archive's events into calls.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Class, Completion, Function, MpiRecord, Peer, Tag};

use super::super::library::Handle;
use super::super::{CALL_SITE, value};
use super::jobs::Jobs;
use super::{DONE, Definitions};
use crate::error::ImportError;
use crate::import::{Builder, CallId, Patch, function_named};

/// A communicator of the new trace, with the processes that are its members. `other` has the remote group of an intercommunicator, and is
/// empty for other communicators.
#[derive(Debug)]
struct Group {
    id: u64,
    members: Vec<u32>,
    other: Vec<u32>,
}

/// A thread of the archive, and what it is executing.
#[derive(Debug)]
struct Thread {
    process: usize,
    tid: Option<u32>,
    /// Regions that the thread is in, with their times of entry in picoseconds.
    stack: Vec<(u32, u64)>,
    /// MPI call that the thread is in: the length of `stack` inside the call, and the call's records.
    call: Option<(usize, Vec<MpiRecord>)>,
}

/// Builder of the new trace from the events read so far.
pub(super) struct Events<'a, 'b> {
    builder: &'b mut Builder,
    definitions: &'a Definitions,
    functions: HashMap<u32, Function>,
    groups: HashMap<u32, Group>,
    /// Threads by the number of their location in the archive. The number of a process in the builder is its index in the archive's group.
    threads: HashMap<u64, Thread>,
    /// Index of the record of the call that began each pending request, by process and request.
    requests: HashMap<(usize, u64), Started>,
    outside: u64,
    unknown_requests: u64,
    other_functions: BTreeMap<String, u64>,
    unbalanced: u64,
    last: u64,
    jobs: Jobs,
    /// Communicators that each process still creates: number, side of an intercommunicator, and whether the process is the side's first.
    making: Vec<Vec<(u32, usize, bool)>>,
    /// Number of messages and roots of another job than the caller's.
    between: Cell<u64>,
    /// The first failure to keep a call. Callbacks of the library cannot return it.
    failure: Option<ImportError>,
}

/// Largest sum of the members of all communicators in an archive that is imported. The import makes a record for each of these members.
const MOST_MEMBERS: u64 = 1 << 22;

/// Index of the record of the call that began a request.
#[derive(Clone, Copy, Debug)]
enum Started {
    /// The record is in this call of the builder, of this function.
    Call(CallId, Function),
    /// The record is in the call that is still open on the thread of this location, at this index.
    Open(u64, usize),
}

/// Returns a request's serial number from its number in an archive. An archive may use 0, which stands for no request in a trace.
fn serial(request: u64) -> u64 {
    request.wrapping_add(1).max(1)
}

impl<'a, 'b> Events<'a, 'b> {
    pub(super) fn new(
        definitions: &'a Definitions,
        builder: &'b mut Builder,
    ) -> Result<Events<'a, 'b>, String> {
        if definitions.resolution == 0 {
            return Err("has no clock".into());
        }
        let lists = definitions.members.values().filter(|group| {
            group.kind == value::GROUP_COMM_LOCATIONS && group.paradigm == value::PARADIGM_MPI
        });
        let mut lists: Vec<&Vec<u64>> = lists.map(|group| &group.list).collect();
        lists.sort_unstable();
        lists.dedup();
        let ranks = match lists[..] {
            [ranks] => ranks,
            [] => return Err("is of no MPI program: it has no group of MPI's locations".into()),
            // A communicator's members are indices of the group, and do not say of which.
            _ => {
                return Err(format!(
                    "has {} groups of MPI's locations, and OTF2 allows one",
                    lists.len()
                ));
            }
        };
        // Score-P also defines communicators of its own, such as one of all threads, whose members are indices of another group.
        let of_mpi = |group: u32| {
            let group = definitions.members.get(&group);
            group.is_some_and(|group| group.paradigm == value::PARADIGM_MPI)
        };
        let comms = || {
            definitions
                .comms
                .iter()
                .filter(|(_, comm)| of_mpi(comm.group))
        };
        // Many communicators may share one group, so that a small archive could cause huge lists.
        let sizes = comms().flat_map(|(_, comm)| {
            let groups = [Some(comm.group), comm.other].into_iter().flatten();
            groups.filter_map(|group| definitions.members.get(&group))
        });
        let all: u64 = sizes.map(|group| group.list.len() as u64).sum();
        if all > MOST_MEMBERS {
            return Err(format!(
                "has communicators of {all} members in all; {MOST_MEMBERS} can be imported"
            ));
        }
        let positions: HashMap<u64, u32> = ranks.iter().copied().zip(0..).collect();
        let members = |group: u32| -> Vec<u32> {
            let Some(group) = definitions.members.get(&group) else {
                return Vec::new();
            };
            let global = group.flags & value::GROUP_FLAG_GLOBAL != 0;
            let list = group.list.iter();
            list.filter_map(|&member| match global {
                true => positions.get(&member).copied(),
                false => u32::try_from(member)
                    .ok()
                    .filter(|&at| (at as usize) < ranks.len()),
            })
            .collect()
        };
        let sides: BTreeMap<u32, (Vec<u32>, Vec<u32>)> = comms()
            .map(|(&number, comm)| {
                let other = comm.other.map(members).unwrap_or_default();
                (number, (members(comm.group), other))
            })
            .collect();
        let own: Vec<&[u32]> = sides
            .values()
            .filter(|(_, other)| other.is_empty())
            .map(|(one, _)| &one[..])
            .collect();
        let jobs = Jobs::of(ranks.len(), &own);
        // Nodes of the trace are the innermost nodes of the system tree that contain processes.
        let mut nodes: BTreeMap<u32, u32> = BTreeMap::new();
        let mut threads = HashMap::new();
        let mut by_group = HashMap::new();
        let name = |string: u32| {
            definitions
                .strings
                .get(&string)
                .cloned()
                .unwrap_or_default()
        };
        for (location, rank) in ranks.iter().zip(0..) {
            let group = definitions.locations.get(location);
            let group =
                group.ok_or_else(|| format!("has no location {location}, rank {rank}'s"))?;
            let parent = definitions.groups.get(group).copied();
            let parent = parent.unwrap_or(value::UNDEFINED);
            let next = nodes.len() as u32;
            let node = *nodes.entry(parent).or_insert(next);
            let host = definitions
                .tree
                .get(&parent)
                .map(|(string, _)| name(*string));
            let host = host.unwrap_or_else(|| format!("node{node}"));
            if node == next {
                builder.nodes.push(host.clone());
            }
            let (job, in_job) = jobs.place(rank);
            let process = builder.process(job, in_job, node, &host);
            by_group.insert(*group, process);
            let thread = Thread {
                process,
                tid: None,
                stack: Vec::new(),
                call: None,
            };
            threads.insert(*location, thread);
        }
        for ((location, group), number) in definitions.locations.iter().zip(0..) {
            if let (Some(&process), false) = (by_group.get(group), threads.contains_key(location)) {
                let thread = Thread {
                    process,
                    tid: Some(1_000_000 + number),
                    stack: Vec::new(),
                    call: None,
                };
                threads.insert(*location, thread);
            }
        }
        let mut groups = HashMap::new();
        let mut worlds = vec![false; jobs.count()];
        for (&number, comm) in comms() {
            let kind = definitions.members.get(&comm.group).map(|group| group.kind);
            let (members, other) = sides.get(&number).cloned().unwrap_or_default();
            let job = jobs.of_world(&members).filter(|_| other.is_empty());
            let id = match (kind, job) {
                (Some(value::GROUP_COMM_SELF), _) => communicator::SELF,
                (_, Some(job)) if !std::mem::replace(&mut worlds[job as usize], true) => {
                    communicator::WORLD
                }
                _ => 1 << 63 | u64::from(number),
            };
            let group = Group { id, members, other };
            groups.insert(number, group);
        }
        // Communicators that each process creates, in the order of their ids.
        let mut making = vec![Vec::new(); ranks.len()];
        let mut numbers: Vec<(&u32, &Group)> = groups.iter().collect();
        numbers.sort_by_key(|(_, group)| group.id);
        for (&number, group) in numbers {
            if matches!(group.id, communicator::WORLD | communicator::SELF) {
                continue;
            }
            for (side, members) in [&group.members, &group.other].into_iter().enumerate() {
                for (position, &process) in members.iter().enumerate() {
                    making[process as usize].push((number, side, position == 0));
                }
            }
        }
        Ok(Events {
            making,
            jobs,
            failure: None,
            between: Cell::new(0),
            functions: definitions
                .regions
                .iter()
                .filter_map(|(&region, string)| {
                    Some((region, function_named(definitions.strings.get(string)?)?))
                })
                .collect(),
            builder,
            definitions,
            groups,
            threads,
            requests: HashMap::new(),
            outside: 0,
            unknown_requests: 0,
            other_functions: BTreeMap::new(),
            unbalanced: 0,
            last: 0,
        })
    }

    /// Adds the creation of the communicators of a process at a time: at the end of `MPI_Init`, since events do not name the call that
    /// creates a communicator.
    fn communicators(&mut self, process: usize, time: u64) {
        for (number, side, first) in std::mem::take(&mut self.making[process]) {
            let Some(group) = self.groups.get(&number) else {
                continue;
            };
            let function = match group.other.is_empty() {
                true => Function::CommCreateGroup,
                false => Function::IntercommCreate,
            };
            // Members of another job are outside of the caller's.
            let (job, _) = self.jobs.place(process as u32);
            let peers = |list: &[u32]| {
                let peer = |&member: &u32| match self.jobs.place(member) {
                    (of, rank) if of == job => Peer::Rank(rank),
                    _ => Peer::Outside,
                };
                list.iter().map(peer).collect()
            };
            let mut record = self.builder.record(process, function);
            record.communicator = communicator::WORLD;
            record.new_communicator = group.id;
            if first {
                let sides = [&group.members, &group.other];
                record.members = peers(sides[side]);
                record.remote_members = peers(sides[1 - side]);
            }
            let added = self.builder.call(process, record, (time, time), (0, 0));
            if let Err(error) = added {
                self.failure.get_or_insert(error);
            }
        }
    }

    fn time(&mut self, ticks: u64) -> u64 {
        let since = u128::from(ticks.saturating_sub(self.definitions.offset));
        let time = since * 1_000_000_000_000 / u128::from(self.definitions.resolution);
        let time = u64::try_from(time).unwrap_or(u64::MAX);
        self.last = self.last.max(time);
        time
    }

    fn region_name(&self, region: u32) -> &str {
        let string = self.definitions.regions.get(&region);
        let name = string.and_then(|string| self.definitions.strings.get(string));
        name.map_or("", String::as_str)
    }

    fn enter(&mut self, location: u64, ticks: u64, region: u32) {
        let time = self.time(ticks);
        let function = self.functions.get(&region).copied();
        if function.is_none() && self.region_name(region).starts_with("MPI_") {
            let name = self.region_name(region).to_string();
            *self.other_functions.entry(name).or_default() += 1;
        }
        let site = self.threads.get(&location).and_then(|thread| {
            let &(region, _) = thread.stack.last()?;
            self.region_name(region)
                .strip_prefix(CALL_SITE)
                .map(str::to_string)
        });
        let Some(thread) = self.threads.get_mut(&location) else {
            return;
        };
        thread.stack.push((region, time));
        // MPI calls that the library makes inside a call are not the program's.
        if let (Some(function), None) = (function, &thread.call) {
            let mut record = self.builder.record(thread.process, function);
            if let Some(tid) = thread.tid {
                record.thread.tid = tid;
            }
            if let Some(site) = site {
                let (module, address) = site.rsplit_once('+').unwrap_or(("", &site));
                let digits = address.trim_start_matches("0x");
                record.call_site = u64::from_str_radix(digits, 16).unwrap_or(0);
                record.call_module = hash(module);
                record.module_name = module.into();
            }
            thread.call = Some((thread.stack.len(), vec![record]));
        }
    }

    fn leave(&mut self, location: u64, ticks: u64, region: u32) {
        let time = self.time(ticks);
        let Some(thread) = self.threads.get_mut(&location) else {
            return;
        };
        let Some((entered, begin)) = thread.stack.pop() else {
            self.unbalanced += 1;
            return;
        };
        self.unbalanced += u64::from(entered != region);
        match thread.call.take() {
            Some((depth, records)) if thread.stack.len() < depth => {
                let process = thread.process;
                self.close(location, process, records, begin, time);
            }
            open => thread.call = open,
        }
    }

    /// Ends a call. A call that started several operations becomes as many calls, of which the first has all the time.
    fn close(
        &mut self,
        location: u64,
        process: usize,
        records: Vec<MpiRecord>,
        begin: u64,
        end: u64,
    ) {
        let initialises = records
            .first()
            .is_some_and(|first| matches!(first.function, Function::Init | Function::InitThread));
        if !initialises {
            self.communicators(process, begin);
        }
        for (position, record) in records.into_iter().enumerate() {
            let (request, function) = (record.request, record.function);
            let from = if position == 0 { begin } else { end };
            let call = match self.builder.call(process, record, (from, end), (0, 0)) {
                Ok(call) => call,
                Err(error) => {
                    self.failure.get_or_insert(error);
                    return;
                }
            };
            if request != 0
                && let Some(started) = self.requests.get_mut(&(process, request))
                && matches!(started, Started::Open(at, _) if *at == location)
            {
                *started = Started::Call(call, function);
            }
        }
        self.communicators(process, end);
    }

    /// Returns the first record of the MPI call that a thread is in. Outside of an MPI call, counts an event outside and returns `None`.
    fn record(&mut self, location: u64) -> Option<&mut MpiRecord> {
        let call = self.threads.get_mut(&location)?.call.as_mut();
        if call.is_none() {
            self.outside += 1;
        }
        call?.1.first_mut()
    }

    /// Returns the peer that has the rank `rank` in a communicator, as a world rank, and the communicator's id. In an intercommunicator,
    /// `rank` counts in the group to which the thread does not belong. The peer is `Peer::Outside` if unknown.
    fn peer(&self, location: u64, comm: u32, rank: u32) -> (Peer, u64) {
        let Some(group) = self.groups.get(&comm) else {
            return (Peer::Outside, communicator::NONE);
        };
        let own = self
            .threads
            .get(&location)
            .map(|thread| thread.process as u32);
        if group.id == communicator::SELF {
            let own = own.map(|own| self.jobs.place(own).1);
            return (own.map_or(Peer::Outside, Peer::Rank), group.id);
        }
        // In an intercommunicator, the peer is in the other group.
        let inside = own.is_some_and(|own| group.members.contains(&own));
        let list = match !group.other.is_empty() && inside {
            true => &group.other,
            false => &group.members,
        };
        let Some(&peer) = list.get(rank as usize) else {
            return (Peer::Outside, group.id);
        };
        let (job, rank) = self.jobs.place(peer);
        if own.is_some_and(|own| self.jobs.place(own).0 != job) {
            self.between.set(self.between.get() + 1);
            return (Peer::Outside, group.id);
        }
        (Peer::Rank(rank), group.id)
    }

    /// Returns the record for an operation that the thread's call starts: the call's own record, or a further one if the call has already
    /// started an operation. The send and the receive of `MPI_Isendrecv` share one record. `None` outside of an MPI call.
    fn start(&mut self, location: u64, request: u64, function: Function) -> Option<&mut MpiRecord> {
        let thread = self.threads.get_mut(&location)?;
        let process = thread.process;
        let Some((_, records)) = &mut thread.call else {
            self.outside += 1;
            return None;
        };
        let first = records.first()?.clone();
        let both = first.function.class() == Class::StartSendReceive;
        if first.request != 0 && !both {
            let mut record = self.builder.record(process, function);
            record.thread = first.thread;
            (record.call_site, record.call_module) = (first.call_site, first.call_module);
            records.push(record);
        }
        let position = records.len() - 1;
        let record = records.last_mut()?;
        // The archive lacks the preparation of persistent requests, so that a start becomes the operation itself.
        if matches!(record.function, Function::Start | Function::Startall) {
            record.function = function;
        }
        record.request = request;
        self.requests
            .insert((process, request), Started::Open(location, position));
        Some(record)
    }

    /// Ends a request in a thread's call; `patch` completes the record of the call that began the request, whose function it is given.
    fn complete(
        &mut self,
        location: u64,
        request: u64,
        completion: Completion,
        patch: impl FnOnce(Function) -> Option<Patch>,
    ) {
        let Some(thread) = self.threads.get_mut(&location) else {
            return;
        };
        match self.requests.remove(&(thread.process, request)) {
            Some(Started::Call(call, function)) => {
                if let Some(patch) = patch(function) {
                    self.builder.patch(call, patch);
                }
            }
            Some(Started::Open(at, position)) => {
                let call = self
                    .threads
                    .get_mut(&at)
                    .and_then(|thread| thread.call.as_mut());
                if let Some(record) = call.and_then(|(_, records)| records.get_mut(position))
                    && let Some(patch) = patch(record.function)
                {
                    patch.apply(record);
                }
            }
            None => self.unknown_requests += 1,
        }
        if let Some(record) = self.record(location) {
            let index = record.requests.len() as u32;
            record.requests.push(request);
            record.completions.push(Completion {
                request,
                index,
                ..completion
            });
        }
    }

    /// Returns notes for the user, after the last event.
    pub(super) fn finish(self) -> Result<Vec<String>, ImportError> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        let mut notes = vec![
            "archives do not say which call makes which communicator: they are made at the end of MPI_Init here".into(),
        ];
        let mut note = |count: u64, what: &str| {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        };
        note(self.between.get(), "messages between jobs are left out");
        note(
            self.outside,
            "messages or collectives outside of an MPI call are left out",
        );
        note(
            self.unknown_requests,
            "requests completed whose beginning is not in the archive",
        );
        note(self.unbalanced, "regions are left that were not entered");
        let open = self.threads.values().filter(|thread| thread.call.is_some());
        note(
            open.count() as u64,
            "threads end inside an MPI call, which is left out",
        );
        for (function, count) in &self.other_functions {
            note(*count, &format!("calls of {function} are left out"));
        }
        if self.jobs.count() > 1 {
            notes.push(format!(
                "the archive holds {} MPI jobs, which are kept apart: no communicator has processes of two; commands that take one want --program N",
                self.jobs.count()
            ));
        }
        Ok(notes)
    }
}

/// Returns a number for a module that depends only on its name (FNV-1a); 0 for the main program, whose name is empty.
fn hash(name: &str) -> u64 {
    if name.is_empty() {
        return 0;
    }
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Returns the events to which the user data of callbacks point.
///
/// # Safety
///
/// The pointer must be the one that [`super::Open::events`] passed to the library.
unsafe fn events<'a>(data: *mut c_void) -> &'a mut Events<'a, 'a> {
    // SAFETY: by contract; no other code has a reference while the library reads.
    unsafe { &mut *data.cast() }
}

macro_rules! event_callbacks {
    ($($name:ident ($events:ident, $location:ident, $time:ident, $($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            /// # Safety
            ///
            /// Must be called by the library, with the user data of [`super::Open::events`].
            pub(super) unsafe extern "C" fn $name($location: u64, $time: u64, data: *mut c_void, _attributes: Handle, $($argument: $type),*) -> c_int {
                // SAFETY: by contract.
                let $events = unsafe { events(data) };
                $body
                DONE
            }
        )*
    };
}

event_callbacks! {
    on_enter(events, location, time, region: u32) {
        events.enter(location, time, region);
    }
    on_leave(events, location, time, region: u32) {
        events.leave(location, time, region);
    }
    on_send(events, location, _time, to: u32, comm: u32, tag: u32, bytes: u64) {
        let (peer, id) = events.peer(location, comm, to);
        if let Some(record) = events.record(location) {
            (record.destination, record.communicator) = (peer, id);
            (record.send_tag, record.send_bytes) = (Tag::Value(tag), bytes);
        }
    }
    on_isend(events, location, _time, to: u32, comm: u32, tag: u32, bytes: u64, request: u64) {
        let (peer, id) = events.peer(location, comm, to);
        if let Some(record) = events.start(location, serial(request), Function::Isend) {
            (record.destination, record.communicator) = (peer, id);
            (record.send_tag, record.send_bytes) = (Tag::Value(tag), bytes);
        }
    }
    on_isend_complete(events, location, _time, request: u64) {
        events.complete(location, serial(request), Completion::default(), |_| None);
    }
    on_irecv_request(events, location, _time, request: u64) {
        events.start(location, serial(request), Function::Irecv);
    }
    on_recv(events, location, _time, from: u32, comm: u32, tag: u32, bytes: u64) {
        let (peer, id) = events.peer(location, comm, from);
        if let Some(record) = events.record(location) {
            (record.source, record.communicator) = (peer, id);
            (record.receive_tag, record.receive_bytes) = (Tag::Value(tag), bytes);
            record.completions.push(Completion {
                bytes,
                source: peer,
                tag: Tag::Value(tag),
                ..Completion::default()
            });
        }
    }
    on_irecv(events, location, _time, from: u32, comm: u32, tag: u32, bytes: u64, request: u64) {
        let (peer, id) = events.peer(location, comm, from);
        let completion = Completion {
            bytes,
            source: peer,
            tag: Tag::Value(tag),
            ..Completion::default()
        };
        events.complete(location, serial(request), completion, |_| {
            Some(Patch::Posted {
                source: peer,
                tag: Tag::Value(tag),
                bytes,
                communicator: id,
            })
        });
    }
    on_cancelled(events, location, _time, request: u64) {
        let completion = Completion { cancelled: true, ..Completion::default() };
        events.complete(location, serial(request), completion, |_| None);
    }
    on_collective_end(events, location, _time, _operation: u8, comm: u32, root: u32, sent: u64, received: u64) {
        let (peer, id) = events.root(location, comm, root);
        if let Some(record) = events.record(location) {
            (record.root, record.communicator) = (peer, id);
            (record.send_bytes, record.receive_bytes) = (sent, received);
        }
    }
    on_collective_request(events, location, _time, request: u64) {
        events.start(location, serial(request), Function::Ibarrier);
    }
    on_collective_complete(events, location, _time, operation: u8, comm: u32, root: u32, sent: u64, received: u64, request: u64) {
        let (peer, id) = events.root(location, comm, root);
        events.complete(location, serial(request), Completion::default(), |function| {
            // The operation was persistent, and its start does not say which function it is.
            let known = super::super::operation(function.blocking()) == Some(operation);
            let of_operation = |candidate: &Function| {
                candidate.class() == Class::StartCollective
                    && super::super::operation(*candidate) == Some(operation)
            };
            let function = match known {
                true => function,
                false => Function::ALL.iter().copied().find(of_operation).unwrap_or(function),
            };
            Some(Patch::Collective {
                function,
                root: peer,
                communicator: id,
                bytes: (sent, received),
            })
        });
    }
}

impl Events<'_, '_> {
    /// Returns the root of a collective operation (`Peer::None` without a root), and the id of the operation's communicator.
    fn root(&self, location: u64, comm: u32, root: u32) -> (Peer, u64) {
        match root {
            value::ROOT_NONE => (Peer::None, self.peer(location, comm, 0).1),
            value::ROOT_SELF => {
                let own = self
                    .threads
                    .get(&location)
                    .map(|thread| self.jobs.place(thread.process as u32).1);
                (
                    own.map_or(Peer::None, Peer::Rank),
                    self.peer(location, comm, 0).1,
                )
            }
            root => self.peer(location, comm, root),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Comm, Members};
    use super::*;

    const MEASUREMENT_SYSTEM: u8 = 8;

    /// Two processes of two threads, as Score-P defines them: communicator 0 is Score-P's own, of all threads.
    fn of_score_p() -> Definitions {
        let mut definitions = Definitions {
            resolution: 1_000_000_000,
            ..Definitions::default()
        };
        for (location, process) in [(0, 0), (1, 1), (1 << 32, 0), (1 << 32 | 1, 1)] {
            definitions.locations.insert(location, process);
        }
        let mut group = |number, kind, paradigm, list: &[u64]| {
            let members = Members {
                kind,
                paradigm,
                flags: 0,
                list: list.to_vec(),
            };
            definitions.members.insert(number, members);
        };
        let (locations, of_ranks) = (value::GROUP_COMM_LOCATIONS, value::GROUP_COMM);
        group(0, locations, value::PARADIGM_MPI, &[0, 1]);
        let threads = [0, 1 << 32, 1, 1 << 32 | 1];
        group(1, locations, MEASUREMENT_SYSTEM, &threads);
        group(2, of_ranks, MEASUREMENT_SYSTEM, &[0, 1, 2, 3]);
        group(3, value::GROUP_COMM_SELF, value::PARADIGM_MPI, &[]);
        group(4, of_ranks, value::PARADIGM_MPI, &[0, 1]);
        for (number, group) in [(0, 2), (1, 4), (2, 3)] {
            definitions
                .comms
                .insert(number, Comm { group, other: None });
        }
        definitions
    }

    #[test]
    fn score_ps_own_communicators_are_not_mpis() {
        let definitions = of_score_p();
        let folder = tempfile::tempdir().unwrap();
        let mut builder = Builder::new("test", &folder.path().join("trace.nst"));
        let events = Events::new(&definitions, &mut builder).unwrap();
        let mut ids: Vec<(u32, u64)> = events
            .groups
            .iter()
            .map(|(&number, group)| (number, group.id))
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, [(1, communicator::WORLD), (2, communicator::SELF)]);
        assert_eq!(events.threads.len(), 4);
        assert_eq!((events.jobs.count(), events.builder.ranks()), (1, 2));
    }

    #[test]
    fn two_groups_of_mpis_locations_are_refused() {
        let mut definitions = of_score_p();
        let group = Members {
            kind: value::GROUP_COMM_LOCATIONS,
            paradigm: value::PARADIGM_MPI,
            flags: 0,
            list: vec![1],
        };
        definitions.members.insert(9, group);
        let folder = tempfile::tempdir().unwrap();
        let mut builder = Builder::new("test", &folder.path().join("trace.nst"));
        let told = Events::new(&definitions, &mut builder)
            .map(|_| ())
            .unwrap_err();
        assert!(told.contains("2 groups of MPI's locations"), "{told}");
    }
}
