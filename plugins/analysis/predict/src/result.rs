//! The results of an interpretation.

use nodescope_trace::Call;
use serde::Serialize;

use crate::interpreter::Meetings;
use crate::timeline::Timeline;

/// Times of a rank by kind, picoseconds. `computation + opaque + communication + wait + idle` is the program's time, exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RankTimes {
    /// Time in bursts.
    pub computation: u64,
    /// Time in calls that are not interpreted.
    pub opaque: u64,
    /// Time in interpreted MPI calls without `wait`: overheads, and waiting while messages of prompt ranks are on their way.
    pub communication: u64,
    /// Time in MPI in which the rank waits because another rank was late.
    pub wait: u64,
    /// Time from the rank's end to the last rank's end.
    pub idle: u64,
}

/// Kinds of waiting, as in Scalasca's and KOJAK's catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitKind {
    /// A receive had begun before its message was sent.
    LateSender,
    /// A send that needs its receive had begun before the receive.
    LateReceiver,
    /// An n-to-n collective had been entered before its last rank did.
    Collective,
    /// The root of an n-to-1 collective had entered before any other rank did.
    EarlyReduce,
    /// A 1-to-n collective had been entered before its root did.
    LateBroadcast,
}

impl WaitKind {
    /// Returns the kind in words.
    pub fn name(self) -> &'static str {
        match self {
            WaitKind::LateSender => "late sender",
            WaitKind::LateReceiver => "late receiver",
            WaitKind::Collective => "wait at collective",
            WaitKind::EarlyReduce => "early reduce",
            WaitKind::LateBroadcast => "late broadcast",
        }
    }
}

/// Waiting of one kind at one call site because of another call site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitState {
    /// Kind of the waiting.
    pub kind: WaitKind,
    /// The call that waited.
    pub at: Call,
    /// The call that was late.
    pub because_of: Call,
    /// Number of times that a call waited.
    pub count: u64,
    /// Sum of these waits of all ranks, picoseconds.
    pub time: u64,
    /// Longest single wait, picoseconds.
    pub longest: u64,
    /// Rank that was late in the longest wait.
    pub late_rank: u32,
}

/// A link's use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkLoad {
    /// Name of the link: its two ends, or its switch or node and its direction.
    pub link: String,
    /// Bytes that passed the link.
    pub bytes: u64,
    /// Time in which the link was busy, picoseconds.
    pub busy: u64,
}

/// The chain of computation and messages that determines the program's time. Its parts add up to that time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CriticalPath {
    /// Time of bursts and uninterpreted calls on the path, picoseconds.
    pub computation: u64,
    /// Time in MPI on the path, picoseconds.
    pub communication: u64,
    /// Picoseconds of messages on the path, from their send to the end of the wait for them.
    pub transfer: u64,
    /// Number of messages on the path.
    pub messages: u64,
    /// Ranks with the longest time on the path, greatest first, at most ten: world rank, picoseconds.
    pub ranks: Vec<(u32, u64)>,
    /// Calls that waited for messages of the path, greatest first, at most ten: call, picoseconds of transfer.
    pub calls: Vec<(Call, u64)>,
    /// What the time of the path is made of.
    #[serde(skip)]
    pub composition: Composition,
}

/// Time on the critical path by what it is spent on, picoseconds. The parts add up to the program's time exactly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Composition {
    /// Number of network latencies. A message above the eager limit has up to three: request, permission, data.
    pub latencies: u64,
    /// Time of these latencies.
    pub latency: u64,
    /// Time of the latencies of links within the network.
    pub hops: u64,
    /// Time in which messages between nodes pass their own bytes.
    pub bandwidth: u64,
    /// Time in which messages wait for links, for their sender's earlier messages, or until a rank is in MPI.
    pub queueing: u64,
    /// Time of processors for messages: at both ends, for copies, datatypes and reductions.
    pub overhead: u64,
    /// Time on the way of messages within nodes.
    pub within_nodes: u64,
    /// Bursts and uninterpreted calls: world rank, picoseconds, by ascending rank.
    pub computation: Vec<(u32, u64)>,
}

impl Composition {
    /// Returns the sum of all parts.
    pub fn sum(&self) -> u64 {
        let parts = [
            self.latency,
            self.hops,
            self.bandwidth,
            self.queueing,
            self.overhead,
            self.within_nodes,
        ];
        let computation = self.computation.iter().map(|(_, time)| time);
        parts.iter().chain(computation).sum()
    }
}

/// Faults of the program that the interpreter found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "problem", rename_all = "snake_case")]
pub enum Problem {
    /// Ranks wait for one another, or for ranks that have ended; the interpretation stopped there.
    Deadlock {
        /// Time after which no rank continued, picoseconds.
        time: u64,
        /// Ranks that wait.
        blocked: u32,
        /// A cycle of ranks, each waiting for the next; empty if there is none, such as where a rank waits for one that has ended.
        cycle: Vec<Blocked>,
        /// Ranks that wait and are not in the cycle, at most ten.
        others: Vec<Blocked>,
    },
    /// A message that no rank received.
    Unreceived {
        /// World rank of the sender.
        from: u32,
        /// World rank of the receiver.
        to: u32,
        /// Tag of the message.
        tag: u32,
        /// Size of the message in bytes.
        bytes: u64,
        /// Call that sent the message.
        at: Call,
        /// Number of such messages.
        count: u64,
    },
    /// A receive with less room than its message.
    Truncated {
        /// World rank of the sender.
        from: u32,
        /// World rank of the receiver.
        to: u32,
        /// Size of the message in bytes.
        bytes: u64,
        /// Size of the receive buffer in bytes.
        room: u64,
        /// Call that received the message.
        at: Call,
        /// Number of such messages.
        count: u64,
    },
    /// Ranks of a communicator in different collectives.
    Mismatch {
        /// World rank whose call differs.
        rank: u32,
        /// Call of that rank.
        at: Call,
        /// First rank that entered the collective.
        other: u32,
        /// Call of the first rank.
        other_at: Call,
        /// Description of the difference.
        what: String,
    },
    /// The program takes longer than an interpretation counts; the interpretation stopped there.
    TooLong {
        /// The longest time that is interpreted, picoseconds.
        time: u64,
    },
    /// A receive that was begun and never matched.
    Unmatched {
        /// World rank of the receiver.
        rank: u32,
        /// Call that began the receive.
        at: Call,
        /// Number of such receives.
        count: u64,
    },
}

/// A rank that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blocked {
    /// World rank that waits.
    pub rank: u32,
    /// Call in which the rank waits.
    pub at: Call,
    /// World rank that the rank waits for; `None` for any rank, or if unknown.
    pub waits_for: Option<u32>,
    /// True if the rank that is waited for has ended.
    pub ended: bool,
}

/// The results of an interpretation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Picoseconds from the start to the end of the last rank.
    pub time: u64,
    /// Times of each rank, by world rank.
    pub ranks: Vec<RankTimes>,
    /// Times at which the first and the last rank passed each mark of the program, picoseconds.
    pub marks: Vec<(u64, u64)>,
    /// Sums of waiting, greatest first.
    pub waits: Vec<WaitState>,
    /// Busiest links, greatest first.
    pub links: Vec<LinkLoad>,
    /// The critical path; `None` if it was not requested.
    pub critical_path: Option<CriticalPath>,
    /// Calls of each rank over time; `None` if they were not requested.
    #[serde(skip)]
    pub timeline: Option<Timeline>,
    /// Waits and meetings of ranks; `None` if they were not requested.
    #[serde(skip)]
    pub(crate) meetings: Option<Meetings>,
    /// Faults of the program that the interpreter found.
    pub problems: Vec<Problem>,
    /// Number of operations plus messages sent plus receives begun, those within collectives included.
    pub events: u64,
    /// Messages, those within collectives included.
    pub messages: u64,
    /// Bytes of all messages that [`Outcome::messages`] counts.
    pub bytes: u64,
    /// First messages between ranks of different nodes; `None` if they were not requested.
    pub connections: Option<Connections>,
}

/// Pairs of ranks of different nodes that exchange messages. The first message of a pair opens its connection, where the MPI library does
/// that at the first use. Messages within reduced fragments are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Connections {
    /// Number of such pairs in the whole program.
    pub pairs: u64,
    /// Number of pairs whose first message begins between the program's two marks; `None` without two marks.
    pub in_section: Option<u64>,
    /// True if the times of the outcome contain what opening connections takes.
    pub timed: bool,
}

impl Connections {
    /// Counts pairs from the times of their first messages.
    pub(crate) fn new(
        first: impl Iterator<Item = u64>,
        marks: &[(u64, u64)],
        timed: bool,
    ) -> Connections {
        let section = match *marks {
            [(from, _), (_, to)] if from <= to => Some(from..=to),
            _ => None,
        };
        let (mut pairs, mut within) = (0, 0);
        for time in first {
            pairs += 1;
            within += u64::from(section.as_ref().is_some_and(|of| of.contains(&time)));
        }
        Connections {
            pairs,
            in_section: section.map(|_| within),
            timed,
        }
    }
}

impl Outcome {
    /// Returns whether all ranks came to their end.
    pub fn complete(&self) -> bool {
        let stopped = |problem: &Problem| {
            matches!(
                problem,
                Problem::Deadlock { .. } | Problem::Mismatch { .. } | Problem::TooLong { .. }
            )
        };
        !self.problems.iter().any(stopped)
    }
}

/// Parallel efficiencies after the POP project's methodology. Numerators and denominators are kept, so that the identities
/// parallel = balance * communication and communication = serialisation * transfer hold exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Efficiencies {
    /// Useful computation of all ranks, picoseconds.
    pub useful: u64,
    /// Useful computation of the rank with most, picoseconds.
    pub most: u64,
    /// Number of ranks.
    pub ranks: u64,
    /// Time of the program, picoseconds.
    pub time: u64,
    /// Time of the program on a network of zero latency and infinite bandwidth, picoseconds.
    pub ideal: u64,
}

impl Efficiencies {
    /// Returns the efficiencies of an outcome, given the outcome of the same program on an ideal network. Calls that are not interpreted
    /// count as useful: they take their time on any network.
    pub fn new(outcome: &Outcome, ideal: &Outcome) -> Efficiencies {
        let useful = outcome
            .ranks
            .iter()
            .map(|rank| rank.computation.saturating_add(rank.opaque));
        Efficiencies {
            // Very many ranks that compute for weeks exceed 64 bits, and then the sum is the greatest number.
            useful: useful.clone().fold(0, u64::saturating_add),
            most: useful.max().unwrap_or(0),
            ranks: outcome.ranks.len() as u64,
            time: outcome.time,
            ideal: ideal.time,
        }
    }

    fn ratio(part: u64, whole: u128) -> f64 {
        if whole == 0 {
            1.0
        } else {
            part as f64 / whole as f64
        }
    }

    /// Returns LB: mean over maximum of useful computation.
    pub fn load_balance(&self) -> f64 {
        Self::ratio(self.useful, u128::from(self.ranks) * u128::from(self.most))
    }

    /// Returns SerE: the longest useful computation over the ideal network's time.
    pub fn serialisation(&self) -> f64 {
        Self::ratio(self.most, u128::from(self.ideal))
    }

    /// Returns TE: the ideal network's time over the time.
    pub fn transfer(&self) -> f64 {
        Self::ratio(self.ideal, u128::from(self.time))
    }

    /// Returns CommE: the longest useful computation over the time.
    pub fn communication(&self) -> f64 {
        Self::ratio(self.most, u128::from(self.time))
    }

    /// Returns PE: mean useful computation over the time.
    pub fn parallel(&self) -> f64 {
        Self::ratio(self.useful, u128::from(self.ranks) * u128::from(self.time))
    }
}
