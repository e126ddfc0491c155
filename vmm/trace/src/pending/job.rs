//! State of an MPI job: the operations that its ranks have begun and not ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Class, Flavour, Function, MpiRecord, Peer, Tag, ThreadId};

use super::collectives::{CollectiveId, CollectiveOrder};
use super::messages::Messages;
use super::objects::Objects;
use super::operation::{self, Incoming, Kind, Operation, RequiredMembers};
use super::text;
use super::windows::Windows;
use super::{CallSite, Fault, MAX_REPORTED, PendingCalls};
use crate::event::Unfinished;
use crate::site::SiteNames;

/// Serial of the message of a pending blocking send. No request has this serial.
pub const PENDING_SEND: u64 = u64::MAX;

/// State of a rank.
#[derive(Debug, Default)]
pub struct Rank {
    pub flavour: Option<Flavour>,
    /// Operations under way, by the serial of their request.
    pub requests: HashMap<u64, Operation>,
    /// Preparations of persistent operations, by serial.
    prepared: HashMap<u64, Operation>,
    /// Threads that have called MPI.
    pub threads: BTreeSet<ThreadId>,
    /// True once the rank has left or aborted MPI.
    pub ended: bool,
    /// True once the rank has entered `MPI_Finalize`.
    pub finalizing: bool,
    /// True if a call failed so that the fate of its messages is not known.
    inexact: bool,
}

/// The processes of one `MPI_COMM_WORLD`.
#[derive(Debug)]
pub struct Job {
    /// Number of ranks, as the processes state it; 0 if unknown.
    pub world: u32,
    pub ranks: BTreeMap<u32, Rank>,
    pub messages: Messages,
    /// Collective operations, by communicator, window or file.
    pub orders: BTreeMap<u64, CollectiveOrder>,
    pub objects: Objects,
    pub windows: Windows,
    /// True if records of calls that started prepared operations were incomplete. The needs of pending calls are then unknown.
    pub inexact: bool,
    /// World ranks of communicators' members, as rank 0 of each communicator reported them.
    members: BTreeMap<u64, Vec<u32>>,
    failed: BTreeMap<(u32, CallSite, i32), u64>,
    truncated: Vec<(u32, CallSite, Incoming)>,
}

impl Job {
    pub fn new(world: u32) -> Job {
        Job {
            world,
            ranks: BTreeMap::new(),
            messages: Messages::default(),
            orders: BTreeMap::new(),
            objects: Objects::default(),
            windows: Windows::default(),
            inexact: false,
            members: BTreeMap::new(),
            failed: BTreeMap::new(),
            truncated: Vec::new(),
        }
    }

    pub fn introduce(&mut self, rank: u32, flavour: Flavour) {
        self.ranks.entry(rank).or_default().flavour = Some(flavour);
    }

    /// Returns the world ranks of a communicator's, window's or file's members in the order of their ranks there; of an intercommunicator,
    /// the members of both sides. Returns `None` if the members are not known.
    pub fn members(&self, key: u64) -> Option<Vec<u32>> {
        let made_of = self.objects.communicator(key);
        let communicator = made_of.unwrap_or(key);
        let members = match communicator {
            communicator::WORLD if self.world > 0 => (0..self.world).collect(),
            _ => self.members.get(&communicator)?.clone(),
        };
        let same = made_of.is_none() || self.objects.ids_agree(communicator, &members);
        same.then_some(members)
    }

    /// Returns the number of members, if known. Unlike [`Job::members`], does not check that ids of windows and files agree.
    pub fn member_count(&self, key: u64) -> Option<usize> {
        match self.objects.communicator(key).unwrap_or(key) {
            communicator::WORLD if self.world > 0 => Some(self.world as usize),
            communicator => self.members.get(&communicator).map(Vec::len),
        }
    }

    /// Returns the name of a communicator, window or file for people.
    pub fn name(&self, key: u64) -> String {
        match self.objects.name(key) {
            Some(name) => name.to_owned(),
            None => text::communicator(key),
        }
    }

    /// Updates the job's state by a call that ended.
    pub fn call(&mut self, record: &MpiRecord) {
        let Peer::Rank(number) = record.rank else {
            return;
        };
        let state = self.ranks.entry(number).or_default();
        state.threads.insert(record.thread);
        state.ended |= matches!(record.function, Function::Finalize | Function::Abort);
        state.finalizing |= record.function == Function::Finalize;
        if record.flags.contains(Flags::POLL_RUN) {
            return;
        }
        if record.result != 0 {
            return self.record_failure(number, record);
        }
        self.learn_members(record);
        self.objects.learn(record);
        let collective = self.enter_collective(number, record);
        self.windows.record_ended_call(number, record);
        let kind = match collective {
            // Only a collective operation with a request can still be waited for.
            Some(collective) if record.request != 0 => {
                Kind::Collective(collective, self.needs(number, record))
            }
            _ => operation::messages(record),
        };
        let begun = Operation::new(CallSite::of(record), kind);
        match record.function.class() {
            Class::Send | Class::Receive | Class::SendReceive => {
                self.begin_operation(number, &begun, 0);
                self.record_receive(number, record);
            }
            Class::StartSend | Class::StartReceive | Class::StartSendReceive => {
                self.begin_operation(number, &begun, record.request);
                let state = self.ranks.entry(number).or_default();
                state.requests.insert(record.request, begun);
            }
            Class::Persistent if !record.prepared.is_empty() => self.start_prepared(number, record),
            Class::Persistent if record.flags.contains(Flags::TAIL_DROPPED) => self.inexact = true,
            Class::Persistent | Class::PrepareCollective | Class::PrepareNeighbor => {
                let state = self.ranks.entry(number).or_default();
                state.prepared.insert(record.request, begun);
            }
            Class::Completion | Class::EndFileTransfer => self.complete_requests(number, record),
            // Operations that are not followed are kept, too: a wait for any of several requests must see all of them.
            _ if record.request != 0 => {
                let state = self.ranks.entry(number).or_default();
                state.requests.insert(record.request, begun);
            }
            _ => {}
        }
        if matches!(record.function, Function::WinFree | Function::FileClose) {
            self.free_object(record.object);
        }
    }

    /// Records that a rank has freed a window or closed a file. After the last rank, removes the object, unless its calls have a mismatch.
    fn free_object(&mut self, object: u64) {
        let members = self.member_count(object);
        if !self.objects.is_last(object, members) {
            return;
        }
        self.windows.forget(object);
        let order = self.orders.get(&object);
        if order.is_none_or(|order| order.mismatch.is_none()) {
            self.orders.remove(&object);
            self.objects.forget(object);
        }
    }

    fn learn_members(&mut self, record: &MpiRecord) {
        let ranks = record.members.iter().chain(&record.remote_members);
        let told: Option<Vec<u32>> = ranks.map(|member| member.rank()).collect();
        if let Some(members) = told.filter(|members| !members.is_empty()) {
            self.members.insert(record.new_communicator, members);
        }
    }

    /// Records a rank's entry into a collective operation, whether the call has ended or not. Returns `None` for other calls.
    pub fn enter_collective(&mut self, rank: u32, record: &MpiRecord) -> Option<CollectiveId> {
        let key = operation::collective_object(record)?;
        let members = self.member_count(key);
        // On an intercommunicator, ranks of the root's side name no root, so that roots are not compared.
        let root = match record.flags.contains(Flags::INTERCOMM) {
            true => Peer::None,
            false => record.root,
        };
        let order = self.orders.entry(key).or_default();
        let number = order.enter(rank, CallSite::of(record), root, members);
        let round = None;
        Some(CollectiveId { key, number, round })
    }

    /// Returns the members that must enter a collective operation before a rank may leave the operation.
    pub fn needs(&self, rank: u32, record: &MpiRecord) -> RequiredMembers {
        match record.function {
            Function::WinFence | Function::WinFree => match self.windows.is_barrier(rank, record) {
                true => RequiredMembers::All,
                false => RequiredMembers::Some,
            },
            _ => operation::required_members(record),
        }
    }

    /// Adds the message that an operation sends when it begins, if any.
    pub fn begin_operation(&mut self, rank: u32, operation: &Operation, serial: u64) {
        if let Kind::Send(send) | Kind::SendReceive(Some(send), _) = &operation.kind {
            self.messages
                .record_send(rank, send, operation.site, serial);
        }
    }

    /// Starts the prepared operations that a call names.
    fn start_prepared(&mut self, rank: u32, record: &MpiRecord) {
        for (&serial, preparation) in record.requests.iter().zip(&record.prepared) {
            let state = self.ranks.entry(rank).or_default();
            let Some(mut operation) = state.prepared.get(preparation).cloned() else {
                continue;
            };
            if let Kind::Collective(collective, _) = &mut operation.kind {
                let order = self.orders.entry(collective.key).or_default();
                collective.round = Some(order.start(rank, collective.number));
            }
            state.requests.insert(serial, operation.clone());
            self.begin_operation(rank, &operation, serial);
        }
    }

    /// Removes the message that a blocking receive or a matched probe took. A matched receive has no message to remove, because its probe
    /// took the message.
    fn record_receive(&mut self, rank: u32, record: &MpiRecord) {
        use Function::{Improbe, Mprobe, Recv, Sendrecv, SendrecvReplace};
        let takes = matches!(
            record.function,
            Recv | Sendrecv | SendrecvReplace | Mprobe | Improbe
        );
        for completion in record.completions.iter().filter(|_| takes) {
            if let (Peer::Rank(from), Tag::Value(tag)) = (completion.source, completion.tag) {
                self.messages
                    .record_receive(from, rank, record.communicator, tag);
            }
        }
    }

    /// Completes the operations of a wait or a test, and removes freed ones.
    fn complete_requests(&mut self, rank: u32, record: &MpiRecord) {
        let state = self.ranks.entry(rank).or_default();
        if record.function == Function::RequestFree {
            for serial in &record.requests {
                state.requests.remove(serial);
                state.prepared.remove(serial);
            }
        }
        if record.function == Function::Cancel {
            for serial in &record.requests {
                if let Some(operation) = state.requests.get_mut(serial) {
                    operation.cancelled = true;
                }
            }
        }
        for completion in &record.completions {
            let Some(operation) = state.requests.remove(&completion.request) else {
                continue;
            };
            match operation.kind {
                Kind::Send(send) if completion.cancelled => {
                    self.messages.withdraw(rank, &send, completion.request);
                }
                Kind::Receive(receive) | Kind::SendReceive(_, Some(receive)) => {
                    if let (Peer::Rank(from), Tag::Value(tag), false) =
                        (completion.source, completion.tag, completion.cancelled)
                    {
                        self.messages
                            .record_receive(from, rank, receive.communicator, tag);
                    }
                }
                _ => {}
            }
        }
    }

    /// Records a call that returned an error.
    fn record_failure(&mut self, rank: u32, record: &MpiRecord) {
        let site = CallSite::of(record);
        let key = (rank, site, record.result);
        self.enter_collective(rank, record);
        self.objects.record_failure(rank, record);
        self.windows.record_failure(record);
        *self.failed.entry(key).or_default() += 1;
        let state = self.ranks.entry(rank).or_default();
        match operation::messages(record) {
            // A receive whose buffer is too short has still taken the message.
            Kind::Receive(receive)
                if state
                    .flavour
                    .is_some_and(|flavour| flavour.is_truncation(record.result)) =>
            {
                self.truncated.push((rank, site, receive));
            }
            _ => state.inexact |= record.function.class() != Class::Environment,
        }
    }

    pub fn finish(
        mut self,
        number: usize,
        calls: Vec<(u32, Unfinished)>,
        names: &SiteNames,
        pending: &mut PendingCalls,
    ) {
        for (rank, site, receive) in std::mem::take(&mut self.truncated) {
            if let Some((from, tag, message)) = self.messages.take_match(rank, &receive) {
                let at = (site, rank);
                let fault = truncation(number, at, &receive, (from, tag, message), names);
                pending.faults.push(fault);
            }
        }
        super::dependencies::add_pending_calls(&mut self, number, calls, names, pending);
        for (&key, order) in &self.orders {
            if let Some(mismatch) = &order.mismatch {
                pending.faults.push(Fault::Mismatch {
                    job: number,
                    communicator: self.name(key),
                    rank: mismatch.rank,
                    at: mismatch.at.call(names),
                    other: mismatch.other,
                    other_at: mismatch.other_at.call(names),
                });
            }
        }
        let over = |rank: u32| {
            let state = self.ranks.get(&rank);
            state.is_some_and(|state| state.finalizing && !state.inexact)
        };
        let left = self.messages.unreceived().filter(|&(_, to, ..)| over(to));
        for (from, to, tag, first, count) in left.take(MAX_REPORTED) {
            pending.faults.push(Fault::Unreceived {
                job: number,
                from,
                to,
                tag,
                bytes: first.bytes,
                sent_by: first.site.call(names),
                count,
            });
        }
        for (&(rank, site, result), &count) in self.failed.iter().take(MAX_REPORTED) {
            pending.faults.push(Fault::Failed {
                job: number,
                rank,
                at: site.call(names),
                result,
                count,
            });
        }
    }
}

/// Returns the fault of a message that is longer than the buffer of its receive.
pub fn truncation(
    job: usize,
    (site, to): (CallSite, u32),
    receive: &Incoming,
    (from, tag, message): (u32, u32, super::messages::Message),
    names: &SiteNames,
) -> Fault {
    Fault::Truncated {
        job,
        from,
        to,
        tag,
        bytes: message.bytes,
        room: receive.room,
        at: site.call(names),
        sent_by: message.site.call(names),
    }
}
