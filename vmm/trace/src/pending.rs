//! Pending calls at the end of a trace: the calls that never ended, the ranks for which they wait, and further faults.
//!
//! The analysis uses only the contents of the trace and predicts nothing. A message is under way from the entry of its send to the
//! completion that names the message. A call can continue if the messages and ranks that it needs are there. All other calls wait for other
//! ranks, and a set of ranks that wait only for each other, or for ranks that have ended, is a deadlock. Where the standard allows a call
//! to wait for other ranks but does not require it, a pending call is taken to wait for at least one of them, not for all. Ranks that
//! cannot be judged from a trace (a rank that computes, a program that polls, transfers to windows between fences, processes of other
//! worlds) count as able to continue, so that each reported deadlock is real.

mod collectives;
mod deadlock;
mod dependencies;
mod job;
mod messages;
mod objects;
pub(crate) mod operation;
mod text;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use nodescope_hypercall::{Function, MpiRecord, ThreadId};
use serde::{Serialize, Serializer};

use crate::event::{Body, Event, Unfinished};
use crate::programs::{Caller, ProgramFinder};
use crate::site::{Call, Place, Site, SiteNames};
use job::Job;

/// Maximum number of failed calls and of channels with unreceived messages that are reported for a program, and of ranks in a sentence.
const MAX_REPORTED: usize = 10;

/// Calls that had not ended at the end of a trace, with deadlocks and faults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PendingCalls {
    /// Calls that had not ended, by program and rank.
    pub calls: Vec<PendingCall>,
    /// Deadlocks, at most one for each program.
    pub deadlocks: Vec<Deadlock>,
    /// Faults that are no deadlock, such as messages that nobody received.
    pub faults: Vec<Fault>,
    /// Places of call sites in the source, by the number of the MPI program and by address; empty until [`PendingCalls::locate`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<usize, BTreeMap<String, Place>>,
    /// Names of call sites, by the number of the MPI program.
    #[serde(skip)]
    names: Vec<SiteNames>,
}

/// A call that had not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PendingCall {
    /// Number of the MPI program, from 0 in the order of the trace.
    pub job: usize,
    /// World rank of the caller; `None` if the caller's process did not report its rank.
    pub rank: Option<u32>,
    /// Number of the node on which the call was made.
    pub node: u32,
    /// Thread that made the call.
    #[serde(skip)]
    pub thread: ThreadId,
    /// Name of the MPI function.
    pub function: &'static str,
    /// Time at which the call began, picoseconds.
    pub entry_ps: u64,
    /// The call with its arguments, such as `MPI_Recv(from 1, tag 7, MPI_COMM_WORLD)`; only the function if they are not known.
    #[serde(flatten, serialize_with = "call_and_site")]
    pub call: Call,
    /// The needs of the call.
    pub waits: Waits,
}

/// The needs of a pending call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Waits {
    /// Other ranks must do something.
    Waiting {
        /// World ranks for which the call waits.
        ranks: Vec<u32>,
        /// True if all of `ranks` must act, false if one of them suffices.
        all: bool,
        /// The operations waited for, where the call itself does not name them.
        of: Vec<Call>,
    },
    /// The call waits for nothing any more, and was about to continue.
    Ready,
    /// The call is a run of polls: the program polls again and again, and may do other work instead.
    Polling {
        /// Number of polls that found nothing.
        polls: u64,
    },
    /// The needs of the call are not known. The trace does not contain them, or there are too many pending calls to examine all.
    Unknown,
}

/// Ranks that can never continue: they wait for each other, or for ranks that have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deadlock {
    /// Number of the MPI program.
    pub job: usize,
    /// World ranks that cannot continue any more, ascending.
    pub ranks: Vec<u32>,
    /// A cycle among `ranks`: each rank waits for the next one, and the last for the first. Empty if all chains of waits lead to ranks that
    /// have ended.
    pub cycle: Vec<u32>,
    /// For each of `ranks`, a rank for which it waits, and whether that rank has ended. A rank that cannot continue is preferred to a rank
    /// that has ended. A rank that waits for an empty set of ranks has no entry.
    pub next: BTreeMap<u32, (u32, bool)>,
}

/// Fault in the use of MPI that is no deadlock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum Fault {
    /// Messages to a rank that has entered `MPI_Finalize` without receiving them.
    Unreceived {
        /// Number of the MPI program.
        job: usize,
        /// World rank of the sender.
        from: u32,
        /// World rank of the receiver.
        to: u32,
        /// Tag of the messages.
        tag: u32,
        /// Bytes of the first of these messages.
        bytes: u64,
        /// MPI function and call site of the first message's send.
        sent_by: Call,
        /// Number of unreceived messages with this sender, receiver, communicator and tag.
        count: u64,
    },
    /// A message that is longer than the receive buffer.
    Truncated {
        /// Number of the MPI program.
        job: usize,
        /// World rank of the sender.
        from: u32,
        /// World rank of the receiver.
        to: u32,
        /// Tag of the message.
        tag: u32,
        /// Bytes of the message.
        bytes: u64,
        /// Bytes of the receive's buffer.
        room: u64,
        /// MPI function and call site of the receive.
        at: Call,
        /// MPI function and call site of the send.
        sent_by: Call,
    },
    /// Two ranks call different collective operations, or name different roots, where all must agree. Only the first mismatch on each
    /// communicator, window or file is reported.
    Mismatch {
        /// Number of the MPI program.
        job: usize,
        /// Name of the communicator, window or file.
        communicator: String,
        /// World rank of the member whose call does not match.
        rank: u32,
        /// MPI function and call site of `rank`.
        at: Call,
        /// World rank of a member that called before `rank`.
        other: u32,
        /// MPI function and call site of `other`.
        other_at: Call,
    },
    /// A call that returned an error.
    Failed {
        /// Number of the MPI program.
        job: usize,
        /// World rank of the caller.
        rank: u32,
        /// MPI function and call site of the failed call.
        at: Call,
        /// Return code of the call. Its meaning depends on the MPI library.
        result: i32,
        /// Number of calls of this rank from this call site that returned this code.
        count: u64,
    },
}

/// Builder that follows a trace; [`PendingCallsBuilder::finish`] returns the calls that are pending at the trace's end.
#[derive(Debug, Default)]
pub struct PendingCallsBuilder {
    finder: ProgramFinder,
    /// A job for each of the finder's programs.
    jobs: Vec<Job>,
    /// Names of all modules.
    names: SiteNames,
    /// Calls that did not end, with the numbers of their jobs and nodes.
    unfinished: Vec<(usize, u32, Unfinished)>,
}

impl PendingCallsBuilder {
    /// Adds an event. Events must come in the order of the file.
    pub fn add(&mut self, event: &Event) {
        let caller = self.finder.caller(event);
        let number = match &caller {
            Some(caller) => {
                self.join(caller);
                caller.program
            }
            // A process that did not report its rank counts to the last program.
            None => self.jobs.len().saturating_sub(1),
        };
        match &event.body {
            Body::Mpi(call) => {
                self.names.learn(&call.record);
                if let Some(job) = self.jobs.get_mut(number) {
                    job.call(&call.record);
                }
            }
            Body::Unfinished(unfinished) => {
                if let Some(record) = &unfinished.record {
                    self.names.learn(record);
                }
                self.unfinished
                    .push((number, event.node, (**unfinished).clone()));
            }
            _ => {}
        }
    }

    /// Adds a process to its job.
    fn join(&mut self, caller: &Caller) {
        while self.jobs.len() <= caller.program {
            self.jobs.push(Job::new(0));
        }
        let job = &mut self.jobs[caller.program];
        if let Some(hello) = &caller.introduced {
            job.world = job.world.max(hello.world_size);
            job.introduce(caller.rank, hello.flavour);
        }
    }

    /// Returns the pending calls after the given events.
    pub fn finish(mut self) -> PendingCalls {
        let mut pending = PendingCalls::default();
        for (_, caller) in self.finder.settle() {
            self.join(&caller);
        }
        if self.jobs.is_empty() && !self.unfinished.is_empty() {
            self.jobs.push(Job::new(0));
        }
        let mut of_job: BTreeMap<usize, Vec<(u32, Unfinished)>> = BTreeMap::new();
        for (number, node, call) in std::mem::take(&mut self.unfinished) {
            of_job.entry(number).or_default().push((node, call));
        }
        for (number, job) in self.jobs.into_iter().enumerate() {
            let calls = of_job.remove(&number).unwrap_or_default();
            let program = self.finder.programs().get(number);
            let names = SiteNames {
                executables: program.map_or_else(BTreeSet::new, |program| program.names.clone()),
                ..self.names.clone()
            };
            job.finish(number, calls, &names, &mut pending);
            pending.names.push(names);
        }
        pending
    }
}

/// Function of a call and the return address of the call, relative to its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallSite {
    function: Function,
    module: u64,
    address: u64,
}

impl CallSite {
    fn of(record: &MpiRecord) -> CallSite {
        CallSite {
            function: record.function,
            module: record.call_module,
            address: record.call_site,
        }
    }

    fn site(&self) -> Site {
        Site {
            address: self.address,
            module: self.module,
        }
    }

    /// Returns the function and its call site.
    fn call(&self, names: &SiteNames) -> Call {
        names.call(self.function.name(), self.site())
    }
}

/// Serialises a call and its call site as two fields.
fn call_and_site<S: Serializer>(call: &Call, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Parts<'a> {
        call: &'a str,
        site: Option<&'a str>,
    }
    let parts = Parts {
        call: &call.call,
        site: call.address.as_deref(),
    };
    parts.serialize(serializer)
}

impl PendingCalls {
    /// Finds the pending calls after these events.
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> PendingCalls {
        let mut builder = PendingCallsBuilder::default();
        events.into_iter().for_each(|event| builder.add(event));
        builder.finish()
    }

    /// Gives each call the place of its call site. `add` adds the places of a program's call sites to their names.
    pub fn locate(&mut self, mut add: impl FnMut(&mut SiteNames, BTreeSet<Site>)) {
        let mut sites: BTreeMap<usize, BTreeSet<Site>> = BTreeMap::new();
        self.each_call(|job, call| _ = sites.entry(job).or_default().insert(call.site));
        let mut names = std::mem::take(&mut self.names);
        for (job, sites) in sites {
            if let Some(names) = names.get_mut(job) {
                add(names, sites);
                let places = names.by_address();
                if !places.is_empty() {
                    self.places.insert(job, places);
                }
            }
        }
        self.each_call(|job, call| {
            call.place = (names.get(job)).and_then(|names| names.place(call.site).cloned());
        });
        self.names = names;
    }

    /// Calls `visit` with each call of which a text tells, and with the number of the call's program.
    fn each_call(&mut self, mut visit: impl FnMut(usize, &mut Call)) {
        for pending in &mut self.calls {
            visit(pending.job, &mut pending.call);
            if let Waits::Waiting { of, .. } = &mut pending.waits {
                of.iter_mut().for_each(|call| visit(pending.job, call));
            }
        }
        for fault in &mut self.faults {
            match fault {
                Fault::Unreceived { job, sent_by, .. } => visit(*job, sent_by),
                Fault::Failed { job, at, .. } => visit(*job, at),
                Fault::Truncated {
                    job, at, sent_by, ..
                } => [at, sent_by].into_iter().for_each(|call| visit(*job, call)),
                Fault::Mismatch {
                    job, at, other_at, ..
                } => [at, other_at]
                    .into_iter()
                    .for_each(|call| visit(*job, call)),
            }
        }
    }

    /// Returns whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.deadlocks.is_empty() && self.faults.is_empty()
    }

    /// Returns lines of text: deadlocks with their cycles, the other unfinished calls, then faults.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let jobs: BTreeSet<usize> = self.calls.iter().map(|call| call.job).collect();
        let job = |number: usize| match jobs.len() {
            0 | 1 => String::new(),
            _ => format!("program {number}, "),
        };
        let mut told: BTreeSet<(usize, u32)> = BTreeSet::new();
        let mut of_rank: BTreeMap<(usize, u32), Vec<&PendingCall>> = BTreeMap::new();
        for call in &self.calls {
            if let Some(rank) = call.rank {
                of_rank.entry((call.job, rank)).or_default().push(call);
            }
        }
        let calls_of = |job, rank| of_rank.get(&(job, rank)).into_iter().flatten();
        for deadlock in &self.deadlocks {
            let ranks = deadlock.ranks.iter();
            let calls = ranks.flat_map(|&rank| calls_of(deadlock.job, rank));
            let since = calls.map(|call| call.entry_ps).max().unwrap_or(0) as f64 * 1e-12;
            let who = match deadlock.ranks.as_slice() {
                [one] => format!("rank {one}"),
                many => format!("{} ranks", many.len()),
            };
            let job = job(deadlock.job);
            lines.push(format!(
                "deadlock since {since:.6} s: {job}{who} can never go on"
            ));
            if !deadlock.cycle.is_empty() {
                lines.push("  in a cycle:".into());
            }
            let cycle: BTreeSet<u32> = deadlock.cycle.iter().copied().collect();
            let others = deadlock.ranks.iter();
            let others: Vec<u32> = others
                .copied()
                .filter(|rank| !cycle.contains(rank))
                .collect();
            for (title, ranks) in [("", &deadlock.cycle), ("besides", &others)] {
                if title == "besides" && !ranks.is_empty() && !deadlock.cycle.is_empty() {
                    lines.push("  waiting besides:".into());
                }
                for &rank in ranks {
                    told.insert((deadlock.job, rank));
                    let next = deadlock.next.get(&rank).copied();
                    for call in calls_of(deadlock.job, rank) {
                        lines.push(format!("    {}", call.sentence(next)));
                    }
                }
            }
        }
        let mut first = true;
        for call in &self.calls {
            if call
                .rank
                .is_some_and(|rank| told.contains(&(call.job, rank)))
            {
                continue;
            }
            if std::mem::take(&mut first) {
                lines.push("calls that had not ended:".into());
            }
            lines.push(format!("    {}{}", job(call.job), call.sentence(None)));
        }
        lines.extend(self.faults.iter().map(Fault::to_string));
        lines
    }
}

impl PendingCall {
    /// Returns the needs of the call in words. In a deadlock, `next` is the rank of [`Deadlock::next`] and whether that rank has ended.
    pub fn need(&self, next: Option<(u32, bool)>) -> String {
        match &self.waits {
            Waits::Waiting { ranks, all, of } => {
                let whom = match (next, ranks.as_slice()) {
                    (Some((rank, true)), _) => format!("rank {rank}, which has ended"),
                    (_, []) => "nobody".to_owned(),
                    (Some((rank, false)), [_]) => format!("rank {rank}"),
                    (_, many) => {
                        let shown: Vec<_> =
                            many.iter().take(MAX_REPORTED).map(u32::to_string).collect();
                        let more = match many.len() - shown.len() {
                            0 => String::new(),
                            more => format!(" and {more} more"),
                        };
                        let word = match (many.len(), *all) {
                            (1, _) => "rank",
                            (_, true) => "ranks",
                            (_, false) => "any of ranks",
                        };
                        format!("{word} {}{more}", shown.join(", "))
                    }
                };
                match of.as_slice() {
                    [] => format!("waits for {whom}"),
                    of => {
                        let of: Vec<String> = of.iter().map(Call::to_string).collect();
                        format!("waits for {whom}: {}", of.join(", "))
                    }
                }
            }
            Waits::Ready => "could go on: what the call needs had come".into(),
            Waits::Polling { polls } => format!("has polled {polls} times in vain"),
            Waits::Unknown => "has not ended".into(),
        }
    }

    fn sentence(&self, next: Option<(u32, bool)>) -> String {
        let who = match self.rank {
            Some(rank) => format!("rank {rank}"),
            None => format!("process {} of node {}", self.thread.pid, self.node),
        };
        format!("{who} in {} {}", self.call, self.need(next))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unreceived {
                from,
                to,
                tag,
                bytes,
                sent_by,
                count,
                ..
            } => {
                let what = match count {
                    1 => "1 message is".to_owned(),
                    count => format!("{count} messages are"),
                };
                write!(
                    f,
                    "{what} never received: tag {tag}, {bytes} B, from rank {from} to rank {to}, sent by {sent_by}"
                )
            }
            Fault::Truncated {
                from,
                to,
                tag,
                bytes,
                room,
                at,
                sent_by,
                ..
            } => write!(
                f,
                "a message is longer than its receive: {bytes} B with tag {tag} from rank {from}, sent by {sent_by}, meet room for {room} B on rank {to} in {at}"
            ),
            Fault::Mismatch {
                communicator,
                rank,
                at,
                other,
                other_at,
                ..
            } => write!(
                f,
                "collectives differ on {communicator}: rank {other} calls {other_at}, rank {rank} calls {at}"
            ),
            Fault::Failed {
                rank,
                at,
                result,
                count,
                ..
            } => {
                let times = match count {
                    1 => String::new(),
                    count => format!(" {count} times"),
                };
                write!(f, "rank {rank}: {at} returned error {result}{times}")
            }
        }
    }
}
