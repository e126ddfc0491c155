//! Who waits for whom: what each unfinished call needs, and which ranks can never go on.

use std::collections::{BTreeMap, BTreeSet};

use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Class, Function, MpiRecord, Peer, Tag};

use super::job::{Job, STANDING, communicator_name, truncation};
use super::operation::{self, Incoming, Kind, Needs, Operation, Outgoing};
use super::{Deadlock, Place, Standing, StandingCall, Waits};
use crate::event::Unfinished;

/// A call that has not ended, with what it says.
struct Stand<'a> {
    rank: u32,
    record: &'a MpiRecord,
    /// Its own operation.
    operation: Operation,
}

/// Adds a job's unfinished calls, its deadlock if there is one, and messages that receives found too long.
pub fn stand(
    job: &mut Job,
    number: usize,
    mut calls: Vec<(u32, Unfinished)>,
    modules: &BTreeMap<u64, String>,
    standing: &mut Standing,
) {
    calls.sort_by_key(|(node, call)| (call.rank, *node, call.thread, call.sequence));
    // First what the calls have done by entering, then what they need.
    let mut stands = Vec::new();
    for (_, call) in &calls {
        if let Peer::Rank(rank) = call.rank {
            let state = job.ranks.entry(rank).or_default();
            state.threads.insert(call.thread);
            state.finalizing |= call.function == Function::Finalize;
        }
        stands.push(Stand::new(job, call));
    }
    let posted: Vec<(u32, Incoming)> = (stands.iter().flatten())
        .filter_map(|stand| match stand.operation.kind {
            Kind::Receive(receive) | Kind::Both(_, Some(receive)) => Some((stand.rank, receive)),
            _ => None,
        })
        .collect();
    let needs = Finder { job, posted };
    let mut blocked: BTreeMap<u32, Vec<Waits>> = BTreeMap::new();
    for ((node, call), stand) in calls.iter().zip(&stands) {
        let waits = match stand {
            Some(stand) => needs.of(stand, modules),
            None => Waits::Unknown,
        };
        if let Some(stand) = stand
            && let Kind::Receive(receive) = &stand.operation.kind
            && let Some(found) = needs.job.messages.fits(stand.rank, receive)
            && found.2.bytes > receive.room
        {
            // It would have returned an error, or has ended the program from within.
            let at = (stand.operation.place, stand.rank);
            let fault = truncation(number, at, receive, found, modules);
            standing.faults.push(fault);
        }
        if let Peer::Rank(rank) = call.rank {
            blocked.entry(rank).or_default().push(waits.clone());
        }
        let record = call.record.as_ref();
        standing.calls.push(StandingCall {
            job: number,
            rank: call.rank.rank(),
            node: *node,
            thread: call.thread,
            function: call.function.name(),
            entry_ps: call.entry.time,
            call: record.map_or_else(|| call.function.name().to_owned(), describe),
            site: record.and_then(|record| Place::of(record).site(modules)),
            waits,
        });
    }
    // A rank is stuck if all threads of it that ever called MPI stand in calls.
    blocked.retain(|rank, waits| job.ranks[rank].threads.len() <= waits.len());
    let ended = |rank: u32| job.ranks.get(&rank).is_some_and(|state| state.ended);
    if let Some((ranks, next)) = stuck(&blocked, &ended) {
        let cycle = ranks.iter().find_map(|&start| cycle(&next, start));
        standing.deadlocks.push(Deadlock {
            job: number,
            ranks,
            cycle: cycle.unwrap_or_default(),
            next: (next.into_iter())
                .map(|(rank, other)| (rank, (other, ended(other))))
                .collect(),
        });
    }
}

impl<'a> Stand<'a> {
    /// None for a call whose arguments are not known. What it has sent or entered is added to the job.
    fn new(job: &mut Job, call: &'a Unfinished) -> Option<Stand<'a>> {
        let (Some(record), Peer::Rank(rank)) = (&call.record, call.rank) else {
            return None;
        };
        let kind = match job.enter_collective(rank, record) {
            Some((key, index)) => Kind::Collective {
                key,
                index,
                needs: operation::needs(record),
            },
            None => operation::messages(record),
        };
        let operation = Operation {
            place: Place::of(record),
            kind,
        };
        let blocking = matches!(record.function.class(), Class::Send | Class::SendReceive);
        if blocking {
            job.begins(rank, &operation, STANDING);
        }
        Some(Stand {
            rank,
            record,
            operation,
        })
    }
}

/// What an operation needs.
enum Need {
    Nothing,
    All(Vec<u32>),
    Any(Vec<u32>),
}

struct Finder<'a> {
    job: &'a Job,
    /// Receives that stand in blocking calls.
    posted: Vec<(u32, Incoming)>,
}

impl Finder<'_> {
    fn of(&self, stand: &Stand<'_>, modules: &BTreeMap<u64, String>) -> Waits {
        let (rank, record) = (stand.rank, stand.record);
        if record.flags.contains(Flags::POLL_RUN) || record.function.polls() {
            return Waits::Polling {
                polls: record.calls,
            };
        }
        let (need, of) = match record.function {
            Function::Wait | Function::Waitall => self.all_of(rank, record, modules),
            Function::Waitany | Function::Waitsome => self.any_of(rank, record, modules),
            Function::Finalize => (Some(self.finalize()), Vec::new()),
            Function::Probe | Function::Mprobe => {
                let probe = operation::probe(record);
                (probe.map(|probe| self.receive(rank, &probe)), Vec::new())
            }
            _ => match record.function.class() {
                // A non-blocking call that has not ended is about to.
                Class::Send | Class::Receive | Class::SendReceive => {
                    (self.operation(rank, &stand.operation, STANDING), Vec::new())
                }
                Class::Collective
                | Class::Neighbor
                | Class::Communicator
                | Class::Window
                | Class::Epoch => (self.operation(rank, &stand.operation, 0), Vec::new()),
                _ => (None, Vec::new()),
            },
        };
        match need {
            None => Waits::Unknown,
            Some(Need::Nothing) => Waits::Ready,
            Some(Need::All(ranks)) => Waits::Waiting {
                ranks,
                all: true,
                of,
            },
            Some(Need::Any(ranks)) => Waits::Waiting {
                ranks,
                all: false,
                of,
            },
        }
    }

    /// None for what is not followed.
    fn operation(&self, rank: u32, operation: &Operation, serial: u64) -> Option<Need> {
        Some(match &operation.kind {
            Kind::Send(send) => self.send(rank, send, serial),
            Kind::Receive(receive) => self.receive(rank, receive),
            Kind::Both(send, receive) => {
                // A short send is over although its message waits: the receive decides, unless its message is there.
                let receive = receive.map(|receive| self.receive(rank, &receive));
                let send = send.map(|send| self.send(rank, &send, serial));
                match (receive, send) {
                    (Some(Need::Nothing) | None, Some(send)) => send,
                    (receive, _) => receive.unwrap_or(Need::Nothing),
                }
            }
            Kind::Collective { key, index, needs } => {
                self.collective(rank, *key, *index, *needs)?
            }
            Kind::Other => return None,
        })
    }

    fn send(&self, rank: u32, send: &Outgoing, serial: u64) -> Need {
        let taken = |receive: &Incoming| {
            receive.communicator == send.communicator
                && (receive.from == Peer::Any || receive.from == Peer::Rank(rank))
                && (receive.tag == Tag::Any || receive.tag == Tag::Value(send.tag))
        };
        let standing = self.posted.iter();
        let started = self.job.ranks.get(&send.to).into_iter();
        let started = started.flat_map(|state| state.requests.values());
        let meets = standing
            .filter(|(to, _)| *to == send.to)
            .any(|(_, receive)| taken(receive))
            || started.into_iter().any(|operation| match &operation.kind {
                Kind::Receive(receive) | Kind::Both(_, Some(receive)) => taken(receive),
                _ => false,
            });
        if send.buffered || meets || !self.job.messages.holds(rank, send, serial) {
            Need::Nothing
        } else {
            Need::All(vec![send.to])
        }
    }

    fn receive(&self, rank: u32, receive: &Incoming) -> Need {
        if self.job.messages.fits(rank, receive).is_some() {
            return Need::Nothing;
        }
        match receive.from {
            Peer::Rank(from) => Need::All(vec![from]),
            _ => {
                let members = self.job.members(receive.communicator);
                // Of a communicator that is not known anybody may be a member.
                let members = members.unwrap_or_else(|| self.job.ranks.keys().copied().collect());
                Need::Any(members.into_iter().filter(|&other| other != rank).collect())
            }
        }
    }

    fn collective(&self, rank: u32, key: u64, index: u64, needs: Needs) -> Option<Need> {
        let order = self.job.orders.get(&key)?;
        let mut late = self.job.members(key)?;
        late.retain(|&member| member != rank && !order.has_entered(member, index));
        Some(match needs {
            _ if late.is_empty() => Need::Nothing,
            Needs::All => Need::All(late),
            Needs::Root(root) if late.contains(&root) => Need::All(vec![root]),
            Needs::Root(_) | Needs::Some => Need::Any(late),
        })
    }

    fn finalize(&self) -> Need {
        let ranks = &self.job.ranks;
        let late = |rank: &u32| !ranks.get(rank).is_some_and(|state| state.finalizing);
        let late: Vec<u32> = (0..self.job.world).filter(late).collect();
        match late.is_empty() {
            true => Need::Nothing,
            false => Need::All(late),
        }
    }

    /// The operations that a call waits for and that are under way, with what each needs.
    fn waited<'b>(
        &'b self,
        rank: u32,
        record: &'b MpiRecord,
    ) -> impl Iterator<Item = (&'b Operation, Option<Need>)> {
        let requests = self.job.ranks.get(&rank).map(|state| &state.requests);
        record.requests.iter().filter_map(move |serial| {
            let operation = requests?.get(serial)?;
            Some((operation, self.operation(rank, operation, *serial)))
        })
    }

    fn all_of(
        &self,
        rank: u32,
        record: &MpiRecord,
        modules: &BTreeMap<u64, String>,
    ) -> (Option<Need>, Vec<String>) {
        let (mut all, mut of) = (BTreeSet::new(), Vec::new());
        let (mut sends, mut sends_of) = (BTreeSet::new(), Vec::new());
        let mut any: Option<(Vec<u32>, String)> = None;
        let mut known = false;
        for (operation, need) in self.waited(rank, record) {
            let Some(need) = need else { continue };
            known = true;
            let text = begun(operation, modules);
            match (need, &operation.kind) {
                (Need::Nothing, _) => {}
                // Of short sends some may be over although their messages wait: only a rank that waits for nothing else stands for
                // its sends, and then for one of them at least.
                (Need::All(ranks), Kind::Send(_)) => {
                    sends.extend(ranks);
                    sends_of.push(text);
                }
                (Need::All(ranks), _) => {
                    all.extend(ranks);
                    of.push(text);
                }
                (Need::Any(ranks), _) => any = any.or(Some((ranks, text))),
            }
        }
        if !all.is_empty() {
            (Some(Need::All(all.into_iter().collect())), of)
        } else if let Some((ranks, text)) = any {
            (Some(Need::Any(ranks)), vec![text])
        } else if !sends.is_empty() {
            (Some(Need::Any(sends.into_iter().collect())), sends_of)
        } else {
            (known.then_some(Need::Nothing), Vec::new())
        }
    }

    fn any_of(
        &self,
        rank: u32,
        record: &MpiRecord,
        modules: &BTreeMap<u64, String>,
    ) -> (Option<Need>, Vec<String>) {
        let (mut any, mut of) = (BTreeSet::new(), Vec::new());
        for (operation, need) in self.waited(rank, record) {
            match need {
                // One that cannot be judged may complete.
                None => return (None, Vec::new()),
                Some(Need::Nothing) => return (Some(Need::Nothing), Vec::new()),
                Some(Need::All(ranks) | Need::Any(ranks)) => {
                    any.extend(ranks);
                    of.push(begun(operation, modules));
                }
            }
        }
        let ranks: Vec<u32> = any.into_iter().collect();
        ((!ranks.is_empty()).then_some(Need::Any(ranks)), of)
    }
}

/// Ranks that can never go on, with one that each waits for among those that cannot either; none if all can.
fn stuck(
    blocked: &BTreeMap<u32, Vec<Waits>>,
    ended: &impl Fn(u32) -> bool,
) -> Option<(Vec<u32>, BTreeMap<u32, u32>)> {
    let mut stuck: BTreeSet<u32> = blocked.keys().copied().collect();
    let stays = |rank: u32, stuck: &BTreeSet<u32>| stuck.contains(&rank) || ended(rank);
    loop {
        let waits = |wait: &Waits| match wait {
            Waits::Waiting {
                ranks, all: true, ..
            } => ranks.iter().any(|&other| stays(other, &stuck)),
            Waits::Waiting {
                ranks, all: false, ..
            } => ranks.iter().all(|&other| stays(other, &stuck)),
            Waits::Ready | Waits::Polling { .. } | Waits::Unknown => false,
        };
        let free: Vec<u32> = (stuck.iter().copied())
            .filter(|rank| !blocked[rank].iter().all(waits))
            .collect();
        if free.is_empty() {
            break;
        }
        free.iter().for_each(|rank| {
            stuck.remove(rank);
        });
    }
    let next = |rank: &u32| {
        let others = blocked[rank].iter().filter_map(|wait| match wait {
            Waits::Waiting { ranks, .. } => Some(ranks),
            _ => None,
        });
        let others: Vec<u32> = others.flatten().copied().collect();
        let waiting = others.iter().find(|other| stuck.contains(other));
        Some((
            *rank,
            *waiting.or_else(|| others.iter().find(|&&other| ended(other)))?,
        ))
    };
    let next = stuck.iter().filter_map(next).collect();
    (!stuck.is_empty()).then(|| (stuck.into_iter().collect(), next))
}

/// A cycle that is reached from a rank, if each waits for one other.
fn cycle(next: &BTreeMap<u32, u32>, start: u32) -> Option<Vec<u32>> {
    let (mut seen, mut way, mut at) = (BTreeMap::new(), Vec::new(), start);
    loop {
        if let Some(&first) = seen.get(&at) {
            return Some(way.split_off(first));
        }
        seen.insert(at, way.len());
        way.push(at);
        at = *next.get(&at)?;
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
        Kind::Send(send) => vec![to(send), communicator_name(send.communicator)],
        Kind::Receive(receive) => vec![from(receive), communicator_name(receive.communicator)],
        Kind::Both(send, receive) => {
            let on = send.map(|send| send.communicator);
            let on = on.or(receive.map(|receive| receive.communicator));
            let parts = [
                send.as_ref().map(to),
                receive.as_ref().map(from),
                on.map(communicator_name),
            ];
            parts.into_iter().flatten().collect()
        }
        Kind::Collective { .. } | Kind::Other => Vec::new(),
    }
}

/// An operation under way, with the call that began it.
fn begun(operation: &Operation, modules: &BTreeMap<u64, String>) -> String {
    let place = &operation.place;
    let list = arguments(&operation.kind).join(", ");
    let begun = match list.is_empty() {
        true => place.function.name().to_owned(),
        false => format!("{}({list})", place.function.name()),
    };
    match place.site(modules) {
        Some(site) => format!("{begun} at {site}"),
        None => begun,
    }
}

/// A call with its arguments.
fn describe(record: &MpiRecord) -> String {
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
        if record.communicator != 0 && record.function != Function::Finalize {
            list.push(communicator_name(record.communicator));
        }
    }
    format!("{}({})", record.function.name(), list.join(", "))
}
