//! One MPI job: what its ranks have begun and not ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Class, Flavour, Function, MpiRecord, Peer, Tag, ThreadId};

use super::collectives::Order;
use super::messages::Messages;
use super::operation::{self, Incoming, Kind, Operation};
use super::{Fault, Place, Standing, TOLD};
use crate::event::Unfinished;

/// Serial of a standing blocking send's message, which no request has.
pub const STANDING: u64 = u64::MAX;

/// What is known of a rank.
#[derive(Debug, Default)]
pub struct Rank {
    pub flavour: Option<Flavour>,
    /// Operations under way, by the serial of their request.
    pub requests: HashMap<u64, Operation>,
    /// Preparations of persistent operations, by serial.
    prepared: HashMap<u64, Operation>,
    /// Threads that have called MPI.
    pub threads: BTreeSet<ThreadId>,
    /// It has left or aborted MPI.
    pub ended: bool,
    /// It stands in `MPI_Finalize`, or has ended.
    pub finalizing: bool,
    /// A call failed in a way that leaves open what became of its messages.
    inexact: bool,
}

/// The processes of one `MPI_COMM_WORLD`.
#[derive(Debug)]
pub struct Job {
    pub known: BTreeSet<u32>,
    pub world: u32,
    pub ranks: BTreeMap<u32, Rank>,
    pub messages: Messages,
    /// By communicator or window.
    pub orders: BTreeMap<u64, Order>,
    /// Members of communicators, as rank 0 of each told them; of windows, as their communicator's.
    members: BTreeMap<u64, Vec<u32>>,
    failed: BTreeMap<(u32, Place, i32), u64>,
    truncated: Vec<(u32, Place, Incoming)>,
}

impl Job {
    pub fn new(world: u32) -> Job {
        Job {
            known: BTreeSet::new(),
            world,
            ranks: BTreeMap::new(),
            messages: Messages::default(),
            orders: BTreeMap::new(),
            members: BTreeMap::new(),
            failed: BTreeMap::new(),
            truncated: Vec::new(),
        }
    }

    pub fn introduced(&mut self, rank: u32, flavour: Flavour) {
        self.ranks.entry(rank).or_default().flavour = Some(flavour);
    }

    /// The members of a communicator or window, if they are known; of an intercommunicator, of both sides.
    pub fn members(&self, key: u64) -> Option<Vec<u32>> {
        match key {
            communicator::WORLD if self.world > 0 => Some((0..self.world).collect()),
            _ => self.members.get(&key).cloned(),
        }
    }

    fn member_count(&self, key: u64) -> Option<usize> {
        match key {
            communicator::WORLD if self.world > 0 => Some(self.world as usize),
            _ => self.members.get(&key).map(Vec::len),
        }
    }

    /// A call that ended.
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
            return self.failed(number, record);
        }
        self.learn_members(record);
        let place = Place::of(record);
        let index = self.enter_collective(number, record);
        let kind = match (index, record.function.class()) {
            // A persistent operation begins when it is started; its preparation is what all call in one order.
            (Some((key, index)), Class::StartCollective | Class::StartNeighbor) => {
                Kind::Collective {
                    key,
                    index,
                    needs: operation::needs(record),
                }
            }
            _ => operation::messages(record),
        };
        let begun = Operation { place, kind };
        match record.function.class() {
            Class::Send | Class::Receive | Class::SendReceive => {
                self.begins(number, &begun, 0);
                self.receives(number, record);
            }
            Class::StartSend
            | Class::StartReceive
            | Class::StartSendReceive
            | Class::StartCollective
            | Class::StartNeighbor => {
                self.begins(number, &begun, record.request);
                let state = self.ranks.entry(number).or_default();
                state.requests.insert(record.request, begun);
            }
            Class::Persistent if !record.prepared.is_empty() => self.starts(number, record),
            Class::Persistent => {
                let state = self.ranks.entry(number).or_default();
                state.prepared.insert(record.request, begun);
            }
            Class::Completion => self.completes(number, record),
            _ => {}
        }
    }

    fn learn_members(&mut self, record: &MpiRecord) {
        let ranks = record.members.iter().chain(&record.remote_members);
        let told: Option<Vec<u32>> = ranks.map(|member| member.rank()).collect();
        if let Some(members) = told.filter(|members| !members.is_empty()) {
            self.members.insert(record.new_communicator, members);
        }
        let makes = record.function.class() == Class::Window && record.object != 0;
        if makes && let Some(members) = self.members(record.communicator) {
            self.members.entry(record.object).or_insert(members);
        }
    }

    /// Counts a collective operation, whether it has ended or not.
    pub fn enter_collective(&mut self, rank: u32, record: &MpiRecord) -> Option<(u64, u64)> {
        let key = operation::together(record)?;
        let members = self.member_count(key);
        // On the side of the root of an intercommunicator the others name no root.
        let root = match record.flags.contains(Flags::INTERCOMM) {
            true => Peer::None,
            false => record.root,
        };
        let order = self.orders.entry(key).or_default();
        Some((key, order.enter(rank, Place::of(record), root, members)))
    }

    /// The message of an operation that begins.
    pub fn begins(&mut self, rank: u32, operation: &Operation, serial: u64) {
        if let Kind::Send(send) | Kind::Both(Some(send), _) = &operation.kind {
            self.messages.sent(rank, send, operation.place, serial);
        }
    }

    /// Starts prepared operations.
    fn starts(&mut self, rank: u32, record: &MpiRecord) {
        for (&serial, preparation) in record.requests.iter().zip(&record.prepared) {
            let state = self.ranks.entry(rank).or_default();
            let Some(operation) = state.prepared.get(preparation).cloned() else {
                continue;
            };
            state.requests.insert(serial, operation.clone());
            self.begins(rank, &operation, serial);
        }
    }

    /// The message that a blocking call received. A matched one is taken by its probe.
    fn receives(&mut self, rank: u32, record: &MpiRecord) {
        use Function::{Improbe, Mprobe, Recv, Sendrecv, SendrecvReplace};
        let takes = matches!(
            record.function,
            Recv | Sendrecv | SendrecvReplace | Mprobe | Improbe
        );
        for completion in record.completions.iter().filter(|_| takes) {
            if let (Peer::Rank(from), Tag::Value(tag)) = (completion.source, completion.tag) {
                self.messages.received(from, rank, record.communicator, tag);
            }
        }
    }

    /// Operations that a wait or a test completed, or that are freed.
    fn completes(&mut self, rank: u32, record: &MpiRecord) {
        let state = self.ranks.entry(rank).or_default();
        if record.function == Function::RequestFree {
            for serial in &record.requests {
                state.requests.remove(serial);
                state.prepared.remove(serial);
            }
        }
        for completion in &record.completions {
            let Some(operation) = state.requests.remove(&completion.request) else {
                continue;
            };
            match operation.kind {
                Kind::Send(send) if completion.cancelled => {
                    self.messages.withdrawn(rank, &send, completion.request);
                }
                Kind::Receive(receive) | Kind::Both(_, Some(receive)) => {
                    if let (Peer::Rank(from), Tag::Value(tag), false) =
                        (completion.source, completion.tag, completion.cancelled)
                    {
                        self.messages
                            .received(from, rank, receive.communicator, tag);
                    }
                }
                _ => {}
            }
        }
    }

    /// A call that returned an error.
    fn failed(&mut self, rank: u32, record: &MpiRecord) {
        let place = Place::of(record);
        let key = (rank, place, record.result);
        self.enter_collective(rank, record);
        *self.failed.entry(key).or_default() += 1;
        let state = self.ranks.entry(rank).or_default();
        match operation::messages(record) {
            // It has taken the message, as much of it as there was room for.
            Kind::Receive(receive)
                if state
                    .flavour
                    .is_some_and(|flavour| flavour.is_truncation(record.result)) =>
            {
                self.truncated.push((rank, place, receive));
            }
            _ => state.inexact |= record.function.class() != Class::Environment,
        }
    }

    pub fn finish(
        mut self,
        number: usize,
        calls: Vec<(u32, Unfinished)>,
        modules: &BTreeMap<u64, String>,
        standing: &mut Standing,
    ) {
        for (rank, place, receive) in std::mem::take(&mut self.truncated) {
            if let Some((from, tag, message)) = self.messages.take(rank, &receive) {
                let at = (place, rank);
                let fault = truncation(number, at, &receive, (from, tag, message), modules);
                standing.faults.push(fault);
            }
        }
        super::waits::stand(&mut self, number, calls, modules, standing);
        for (&key, order) in &self.orders {
            if let Some(difference) = &order.difference {
                standing.faults.push(Fault::Mismatch {
                    job: number,
                    communicator: communicator_name(key),
                    rank: difference.rank,
                    at: difference.at.text(modules),
                    other: difference.other,
                    other_at: difference.other_at.text(modules),
                });
            }
        }
        let over = |rank: u32| {
            let state = self.ranks.get(&rank);
            state.is_some_and(|state| state.finalizing && !state.inexact)
        };
        let left = self.messages.left().filter(|&(_, to, ..)| over(to));
        for (from, to, tag, first, count) in left.take(TOLD) {
            standing.faults.push(Fault::Unreceived {
                job: number,
                from,
                to,
                tag,
                bytes: first.bytes,
                sent_by: first.place.text(modules),
                count,
            });
        }
        for (&(rank, place, result), &count) in self.failed.iter().take(TOLD) {
            standing.faults.push(Fault::Failed {
                job: number,
                rank,
                at: place.text(modules),
                result,
                count,
            });
        }
    }
}

/// A message that is longer than the receive which takes it.
pub fn truncation(
    job: usize,
    (place, to): (Place, u32),
    receive: &Incoming,
    (from, tag, message): (u32, u32, super::messages::Message),
    modules: &BTreeMap<u64, String>,
) -> Fault {
    Fault::Truncated {
        job,
        from,
        to,
        tag,
        bytes: message.bytes,
        room: receive.room,
        at: place.text(modules),
        sent_by: message.place.text(modules),
    }
}

/// How people call a communicator.
pub fn communicator_name(id: u64) -> String {
    match id {
        communicator::WORLD => "MPI_COMM_WORLD".into(),
        communicator::SELF => "MPI_COMM_SELF".into(),
        id => format!("communicator {id:x}"),
    }
}
