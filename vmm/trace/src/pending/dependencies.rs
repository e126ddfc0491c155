//! Dependencies between ranks: the needs of each pending call, and the ranks that can never proceed.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Class, Function, MpiRecord, Peer, Tag};

use super::collectives::CollectiveId;
use super::deadlock::{cycle, stuck};
use super::job::{Job, PENDING_SEND, truncation};
use super::operation::{self, Incoming, Kind, Need, Operation, Outgoing, RequiredMembers};
use super::{CallSite, Deadlock, PendingCall, PendingCalls, Waits, text};
use crate::event::Unfinished;
use crate::site::{Call, Site, SiteNames};

/// Maximum number of ranks, receives and requests that are examined for all calls of a job together: a second or two of the host's time.
/// The limit exists because a guest can report any number of calls. Calls beyond the limit are not judged. About 4000 ranks that all wait
/// for all others are within the limit.
const EFFORT_LIMIT: u64 = 1 << 25;

/// Pending call with the operation that the call began.
struct PendingOperation<'a> {
    rank: u32,
    record: &'a MpiRecord,
    /// Operation of the call itself.
    operation: Operation,
}

/// Adds a job's unfinished calls, its deadlock if there is one, and faults for messages that are too long for a pending receive.
pub fn add_pending_calls(
    job: &mut Job,
    number: usize,
    mut calls: Vec<(u32, Unfinished)>,
    names: &SiteNames,
    pending: &mut PendingCalls,
) {
    calls.sort_by_key(|(node, call)| (call.rank, *node, call.thread, call.sequence));
    // The first loop records the sends and collective entries of all calls. Only then can the needs of each call be found.
    let mut operations = Vec::new();
    for (_, call) in &calls {
        if let Peer::Rank(rank) = call.rank {
            let state = job.ranks.entry(rank).or_default();
            state.threads.insert(call.thread);
            state.finalizing |= call.function == Function::Finalize;
        }
        operations.push(PendingOperation::new(job, call));
    }
    let posted: Vec<(u32, Incoming)> = (operations.iter().flatten())
        .filter_map(|pending_operation| match pending_operation.operation.kind {
            Kind::Receive(receive) | Kind::SendReceive(_, Some(receive)) => {
                Some((pending_operation.rank, receive))
            }
            _ => None,
        })
        .collect();
    let needs = DependencyFinder {
        job,
        posted,
        effort: Cell::new(EFFORT_LIMIT),
    };
    let mut blocked: BTreeMap<u32, Vec<Waits>> = BTreeMap::new();
    for ((node, call), pending_operation) in calls.iter().zip(&operations) {
        let waits = match pending_operation {
            Some(pending_operation) => needs.of(pending_operation, names),
            None => Waits::Unknown,
        };
        if let Some(pending_operation) = pending_operation
            && let Kind::Receive(receive) = &pending_operation.operation.kind
            && let Some(found) = needs
                .job
                .messages
                .find_match(pending_operation.rank, receive)
            && found.2.bytes > receive.room
        {
            // The receive would have returned an error, or the MPI library has ended the program inside the call.
            let at = (pending_operation.operation.site, pending_operation.rank);
            let fault = truncation(number, at, receive, found, names);
            pending.faults.push(fault);
        }
        if let Peer::Rank(rank) = call.rank {
            blocked.entry(rank).or_default().push(waits.clone());
        }
        let record = call.record.as_ref();
        pending.calls.push(PendingCall {
            job: number,
            rank: call.rank.rank(),
            node: *node,
            thread: call.thread,
            function: call.function.name(),
            entry_ps: call.entry.time,
            call: record.map_or_else(
                || Call::without_site(call.function.name()),
                |record| names.call(text::call(record, needs.job), Site::of(record)),
            ),
            waits,
        });
    }
    // A rank can be stuck only if all its threads that ever called MPI are in pending calls.
    blocked.retain(|rank, waits| job.ranks[rank].threads.len() <= waits.len());
    let ended = |rank: u32| job.ranks.get(&rank).is_some_and(|state| state.ended);
    if let Some((ranks, next)) = stuck(&blocked, &ended) {
        let cycle = cycle(&next, &ranks);
        pending.deadlocks.push(Deadlock {
            job: number,
            ranks,
            cycle: cycle.unwrap_or_default(),
            next: (next.into_iter())
                .map(|(rank, other)| (rank, (other, ended(other))))
                .collect(),
        });
    }
}

impl<'a> PendingOperation<'a> {
    /// Returns the pending operation of a call; `None` if the call's rank or arguments are not known. Adds the call's send or its entry
    /// into a collective operation to the job.
    fn new(job: &mut Job, call: &'a Unfinished) -> Option<PendingOperation<'a>> {
        let (Some(record), Peer::Rank(rank)) = (&call.record, call.rank) else {
            return None;
        };
        let collective = job.enter_collective(rank, record);
        job.windows.record_entered_call(rank, record);
        let kind = match (collective, record.function.class()) {
            // The preparation of a collective operation may wait for other ranks, whatever the operation itself requires (MPI 4.0,
            // section 6.13).
            (Some(collective), Class::PrepareCollective | Class::PrepareNeighbor) => {
                Kind::Collective(collective, RequiredMembers::Some)
            }
            (Some(collective), _) => Kind::Collective(collective, job.needs(rank, record)),
            (None, _) => operation::messages(record),
        };
        let operation = Operation::new(CallSite::of(record), kind);
        let blocking = matches!(record.function.class(), Class::Send | Class::SendReceive);
        if blocking {
            job.begin_operation(rank, &operation, PENDING_SEND);
        }
        Some(PendingOperation {
            rank,
            record,
            operation,
        })
    }
}

struct DependencyFinder<'a> {
    job: &'a Job,
    /// Receives of pending blocking calls, each with the receiver's rank.
    posted: Vec<(u32, Incoming)>,
    /// Effort that may still be spent, of [`EFFORT_LIMIT`].
    effort: Cell<u64>,
}

impl DependencyFinder<'_> {
    /// Spends this much effort. Returns `None` if less is left; then nothing is left for later calls.
    fn spend(&self, effort: usize) -> Option<()> {
        let left = self.effort.get().checked_sub(effort as u64);
        self.effort.set(left.unwrap_or(0));
        left.map(drop)
    }

    /// Returns the number of ranks, receives and requests to examine for the need of an operation.
    fn effort(&self, operation: &Operation) -> usize {
        let ranks = self.job.ranks.len();
        let send = |send: &Outgoing| {
            let receiver = self.job.ranks.get(&send.to);
            self.posted.len() + receiver.map_or(0, |state| state.requests.len())
        };
        let receive = |receive: &Incoming| {
            let members = self.job.member_count(receive.communicator);
            members.unwrap_or(ranks)
        };
        1 + match &operation.kind {
            Kind::Send(one) => send(one),
            Kind::Receive(one) => receive(one),
            Kind::SendReceive(one, other) => {
                one.as_ref().map_or(0, send) + other.as_ref().map_or(0, receive)
            }
            Kind::Collective(collective, _) => {
                2 * self.job.member_count(collective.key).unwrap_or(ranks)
            }
            Kind::Other => 0,
        }
    }

    fn of(&self, pending_operation: &PendingOperation<'_>, names: &SiteNames) -> Waits {
        let (rank, record) = (pending_operation.rank, pending_operation.record);
        if record.flags.contains(Flags::POLL_RUN) || record.function.polls() {
            return Waits::Polling {
                polls: record.calls,
            };
        }
        let (need, of) = match record.function {
            _ if self.job.inexact => (None, Vec::new()),
            Function::Wait | Function::Waitall => self.all_of(rank, record, names),
            Function::Waitany | Function::Waitsome => self.any_of(rank, record, names),
            Function::Finalize => (self.finalize(), Vec::new()),
            Function::Probe | Function::Mprobe => {
                let probe = operation::probe(record);
                let probe =
                    probe.map(|probe| Operation::new(CallSite::of(record), Kind::Receive(probe)));
                let need = probe.and_then(|probe| self.operation(rank, &probe, PENDING_SEND));
                (need, Vec::new())
            }
            // A call that only starts an operation is about to return.
            function if operation::returns_at_once(function) => (None, Vec::new()),
            _ => match pending_operation.operation.kind {
                Kind::Other => (self.window(rank, record), Vec::new()),
                _ => (
                    self.operation(rank, &pending_operation.operation, PENDING_SEND),
                    Vec::new(),
                ),
            },
        };
        let waiting = |ranks, all| Waits::Waiting { ranks, all, of };
        match need {
            None => Waits::Unknown,
            Some(Need::Nothing) => Waits::Ready,
            Some(Need::All(ranks)) => waiting(ranks, true),
            Some(Need::Any(ranks)) => waiting(ranks, false),
            // The call is pending, so that the operation is not over.
            Some(Need::Perhaps(ranks)) => {
                let all = ranks.len() == 1;
                waiting(ranks, all)
            }
        }
    }

    /// Returns the need of a call on a window; `None` for other calls, and if the members of the window are not known.
    fn window(&self, rank: u32, record: &MpiRecord) -> Option<Need> {
        self.spend(1 + self.job.member_count(record.object).unwrap_or(0))?;
        let need = self.job.windows.need(rank, record)?;
        // If the members are not sure, the id may stand for different windows on different ranks.
        self.job.members(record.object).map(|_| need)
    }

    /// Returns the need of a rank's operation; `None` for operations that are not followed, and beyond the limit of effort.
    fn operation(&self, rank: u32, operation: &Operation, serial: u64) -> Option<Need> {
        self.spend(self.effort(operation))?;
        Some(match &operation.kind {
            _ if operation.cancelled => Need::Nothing,
            Kind::Send(send) => self.send(rank, send, serial),
            Kind::Receive(receive) => self.receive(rank, receive),
            Kind::SendReceive(send, receive) => {
                // A short send may be over before its message is received. So the receive decides, unless the receive's message is there.
                let receive = receive.map(|receive| self.receive(rank, &receive));
                let send = send.map(|send| self.send(rank, &send, serial));
                match (receive, send) {
                    (Some(Need::Nothing) | None, Some(send)) => send,
                    (receive, _) => receive.unwrap_or(Need::Nothing),
                }
            }
            Kind::Collective(collective, needs) => self.collective(rank, *collective, needs)?,
            Kind::Other => return None,
        })
    }

    fn send(&self, rank: u32, send: &Outgoing, serial: u64) -> Need {
        let taken = |receive: &Incoming| {
            receive.communicator == send.communicator
                && (receive.from == Peer::Any || receive.from == Peer::Rank(rank))
                && (receive.tag == Tag::Any || receive.tag == Tag::Value(send.tag))
        };
        let blocking = self.posted.iter();
        let started = self.job.ranks.get(&send.to).into_iter();
        let started = started.flat_map(|state| state.requests.values());
        let meets = blocking
            .filter(|(to, _)| *to == send.to)
            .any(|(_, receive)| taken(receive))
            || started.into_iter().any(|operation| match &operation.kind {
                Kind::Receive(receive) | Kind::SendReceive(_, Some(receive)) => taken(receive),
                _ => false,
            });
        if send.buffered || meets || !self.job.messages.is_unreceived(rank, send, serial) {
            Need::Nothing
        } else {
            Need::Perhaps(vec![send.to])
        }
    }

    fn receive(&self, rank: u32, receive: &Incoming) -> Need {
        if self.job.messages.find_match(rank, receive).is_some() {
            return Need::Nothing;
        }
        match receive.from {
            Peer::Rank(from) => Need::All(vec![from]),
            _ => {
                let members = self.job.members(receive.communicator);
                // Any rank may be a member of an unknown communicator.
                let members = members.unwrap_or_else(|| self.job.ranks.keys().copied().collect());
                Need::Any(members.into_iter().filter(|&other| other != rank).collect())
            }
        }
    }

    fn collective(
        &self,
        rank: u32,
        collective: CollectiveId,
        needs: &RequiredMembers,
    ) -> Option<Need> {
        let order = self.job.orders.get(&collective.key)?;
        let members = self.job.members(collective.key)?;
        // The result is sorted and has each rank once, whatever the communicator's order, and even if a neighbour is named twice.
        let late = |ranks: &[u32]| -> Vec<u32> {
            let ranks = ranks.iter().copied();
            let late: BTreeSet<u32> = ranks
                .filter(|&member| member != rank && !order.has_come(member, collective))
                .collect();
            late.into_iter().collect()
        };
        // The ranks `needed` must enter the operation. The call may also wait for the ranks `others`.
        let (needed, others) = match needs {
            RequiredMembers::All => (late(&members), Vec::new()),
            RequiredMembers::Root(root) => (late(&[*root]), late(&members)),
            RequiredMembers::Before => {
                let own = members.iter().position(|&member| member == rank)?;
                (late(&members[..own]), late(&members))
            }
            RequiredMembers::Neighbours {
                sources,
                destinations,
            } => (late(sources), late(destinations)),
            RequiredMembers::Some => (Vec::new(), late(&members)),
        };
        Some(match (needed.is_empty(), others.is_empty()) {
            (false, _) => Need::All(needed),
            (true, false) => Need::Perhaps(others),
            (true, true) => Need::Nothing,
        })
    }

    fn finalize(&self) -> Option<Need> {
        self.spend(self.job.world as usize)?;
        let ranks = &self.job.ranks;
        let late = |rank: &u32| !ranks.get(rank).is_some_and(|state| state.finalizing);
        let late: Vec<u32> = (0..self.job.world).filter(late).collect();
        Some(match late.is_empty() {
            true => Need::Nothing,
            false => Need::All(late),
        })
    }

    /// Returns each operation that a call waits for, with the operation's need; `None` for an operation that is not followed.
    fn waited<'b>(
        &'b self,
        rank: u32,
        record: &'b MpiRecord,
    ) -> impl Iterator<Item = Option<(&'b Operation, Need)>> {
        let requests = self.job.ranks.get(&rank).map(|state| &state.requests);
        // Requests without a serial are null or inactive.
        let serials = record.requests.iter().filter(|&&serial| serial != 0);
        serials.map(move |serial| {
            let operation = requests?.get(serial)?;
            Some((operation, self.operation(rank, operation, *serial)?))
        })
    }

    fn all_of(
        &self,
        rank: u32,
        record: &MpiRecord,
        names: &SiteNames,
    ) -> (Option<Need>, Vec<Call>) {
        let (mut all, mut of) = (BTreeSet::new(), Vec::new());
        let (mut perhaps, mut perhaps_of) = (BTreeSet::new(), Vec::new());
        let mut any: Option<(Vec<u32>, Call)> = None;
        let mut sure = record.requests.iter().any(|&serial| serial != 0);
        for waited in self.waited(rank, record) {
            let Some((operation, need)) = waited else {
                sure = false;
                continue;
            };
            let text = text::begun(operation, names);
            match need {
                Need::Nothing => {}
                Need::All(ranks) => {
                    all.extend(ranks);
                    of.push(text);
                }
                Need::Any(ranks) => any = any.or(Some((ranks, text))),
                // Some of these operations may be over, such as short sends whose messages are buffered. Only a rank that waits for no
                // other operation counts as waiting for these, and then for at least one of them.
                Need::Perhaps(ranks) => {
                    perhaps.extend(ranks);
                    perhaps_of.push(text);
                }
            }
        }
        if !all.is_empty() {
            (Some(Need::All(all.into_iter().collect())), of)
        } else if let Some((ranks, text)) = any {
            (Some(Need::Any(ranks)), vec![text])
        } else if !sure {
            // The call may wait for an operation that cannot be judged.
            (None, Vec::new())
        } else if !perhaps.is_empty() {
            let ranks = perhaps.into_iter().collect();
            (Some(Need::Perhaps(ranks)), perhaps_of)
        } else {
            (Some(Need::Nothing), Vec::new())
        }
    }

    fn any_of(
        &self,
        rank: u32,
        record: &MpiRecord,
        names: &SiteNames,
    ) -> (Option<Need>, Vec<Call>) {
        let (mut any, mut of) = (BTreeSet::new(), Vec::new());
        for waited in self.waited(rank, record) {
            match waited {
                // An operation that cannot be judged may complete.
                None => return (None, Vec::new()),
                Some((_, Need::Nothing)) => return (Some(Need::Nothing), Vec::new()),
                Some((operation, Need::All(ranks) | Need::Any(ranks) | Need::Perhaps(ranks))) => {
                    any.extend(ranks);
                    of.push(text::begun(operation, names));
                }
            }
        }
        let ranks: Vec<u32> = any.into_iter().collect();
        ((!ranks.is_empty()).then_some(Need::Any(ranks)), of)
    }
}
