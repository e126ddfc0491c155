//! Places, causes and remedies in words.

use std::collections::BTreeMap;

use nodescope_config::quantity::Time;
use nodescope_trace::SiteNames;

use crate::cause::{Cause, Class, Kind, Place, RuledOut, Verdict};
use crate::checks::{Candidate, Subject};
use crate::edit::{Call, Stretch};

/// Returns a call as text: its function and its place.
pub fn at((site, function): Call, names: &SiteNames) -> String {
    match names.place(site) {
        Some(_) => format!("{function} in {}", names.text(site)),
        None => format!("{function} at {}", names.address(site)),
    }
}

/// Returns a computation as text: the code between two calls.
pub fn between(stretch: Stretch, names: &SiteNames) -> String {
    match stretch {
        (None, behind) => format!("the code before {}", at(behind, names)),
        (Some(before), behind) if before == behind => {
            format!("the code between two calls of {}", at(behind, names))
        }
        (Some(before), behind) => format!(
            "the code between {} and {}",
            at(before, names),
            at(behind, names)
        ),
    }
}

/// Returns where a candidate is.
pub(crate) fn place(subject: &Subject, names: &SiteNames) -> Place {
    match subject {
        Subject::Computation { stretch, rank, .. } => Place {
            text: between(*stretch, names),
            code: None,
            rank: Some(*rank),
        },
        Subject::Rank { rank, .. } => Place {
            text: "all computations".into(),
            code: None,
            rank: Some(*rank),
        },
        Subject::Varying { stretch, .. } => Place {
            text: between(*stretch, names),
            code: None,
            rank: None,
        },
        Subject::Call { call, .. } | Subject::Messages(Some(call)) => Place {
            text: at(*call, names),
            code: None,
            rank: None,
        },
        Subject::Nodes(nodes) => Place {
            text: nodes_text(nodes),
            code: None,
            rank: None,
        },
        Subject::Messages(None) => Place {
            text: "all messages".into(),
            code: None,
            rank: None,
        },
    }
}

/// Returns a sentence on what happens at a place.
pub(crate) fn what(candidate: &Candidate, place: &Place) -> String {
    let place = match &place.code {
        Some(code) => format!("{code}, {}", place.text),
        None => place.text.clone(),
    };
    match (&candidate.subject, candidate.kind) {
        (Subject::Computation { rank, own, .. }, Kind::SerialRank) => format!(
            "Rank {rank} alone computes for {} in {place}; the others wait.",
            shown(own.0)
        ),
        (
            Subject::Computation {
                rank, own, others, ..
            },
            _,
        ) => format!(
            "Rank {rank} computes {:.2} times as long as the others in {place}, with {}.",
            own.0 as f64 / others.0.max(1) as f64,
            work(own.1, others.1)
        ),
        (Subject::Rank { rank, own, others }, _) => format!(
            "Rank {rank} computes {:.2} times as long as the others in all computations together, with {}.",
            own.0 as f64 / others.0.max(1) as f64,
            work(own.1, others.1)
        ),
        (Subject::Varying { times, .. }, _) => format!(
            "Each time another rank takes longest in {place}: {times:.2} times the mean of all ranks."
        ),
        (Subject::Call { count, .. }, Kind::Overlap) => format!(
            "{place} ({count} calls) waits for messages before ranks compute what may not need them."
        ),
        (Subject::Call { count, .. }, Kind::Barrier) => {
            format!("{place} ({count} calls) makes ranks wait that nothing else makes wait.")
        }
        (Subject::Call { count, .. }, Kind::ShortMessages) => {
            format!("{place} sends {count} short messages in rows that could be one message each.")
        }
        (Subject::Call { count, .. }, Kind::LateReceiver) => {
            format!("Large messages wait {count} times for their receives, mostly {place}.")
        }
        (Subject::Call { count, .. }, _) => {
            format!("{place} ({count} calls) takes time on all ranks.")
        }
        (Subject::Nodes(_), _) => {
            format!("Ranks that exchange much are on different nodes; better are {place}.")
        }
        (Subject::Messages(_), Kind::Bandwidth) => {
            format!("The bytes of messages take time, most of it in {place}.")
        }
        (Subject::Messages(_), _) => {
            format!("The latency of messages takes time, most of it in {place}.")
        }
    }
}

/// Largest number of nodes, and of ranks on a node, that a placement names.
const MOST_NODES: usize = 4;
const MOST_RANKS: usize = 8;

/// Returns the ranks of each node.
fn nodes_text(nodes: &[u32]) -> String {
    let mut ranks: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (rank, node) in nodes.iter().enumerate() {
        ranks.entry(*node).or_default().push(rank.to_string());
    }
    let more = |all: usize, most: usize| if all > most { ", ..." } else { "" };
    let of_node = |ranks: &Vec<String>| {
        let first = &ranks[..ranks.len().min(MOST_RANKS)];
        format!("{}{}", first.join(", "), more(ranks.len(), MOST_RANKS))
    };
    let shown: Vec<String> = ranks.values().take(MOST_NODES).map(of_node).collect();
    format!(
        "ranks {}{} together",
        shown.join(" and "),
        more(ranks.len(), MOST_NODES)
    )
}

/// Says whether a computation has more instructions, or slower ones.
fn work(own: u64, others: u64) -> String {
    match (own, others) {
        (0, _) | (_, 0) => "an unknown number of instructions".into(),
        _ => format!("{:.2} times the instructions", own as f64 / others as f64),
    }
}

/// Returns a sentence on what to try.
pub(crate) fn remedy(kind: Kind) -> &'static str {
    match kind {
        Kind::Imbalance => "Give ranks equal shares of the work.",
        Kind::SerialRank => "Share the work between all ranks, or do it while the others compute.",
        Kind::SlowRank => "Give this rank less work, or find what slows its node.",
        Kind::VaryingWork => {
            "Share the work of each step evenly, or let ranks run ahead of each other."
        }
        Kind::Overlap => "Compute first what needs none of these messages, and wait afterwards.",
        Kind::Barrier => "Leave the barrier out, if nothing outside of MPI needs it.",
        Kind::Collective => "Call it less often or with less data, or use its non-blocking form.",
        Kind::ShortMessages => "Join the messages.",
        Kind::LateReceiver => "Post the receive before the computation (MPI_Irecv).",
        Kind::Placement => "Give mpirun this placement, such as by a rankfile.",
        Kind::Latency => "Send fewer messages, or messages that do not wait for each other.",
        Kind::Bandwidth => "Send less data, or send it while ranks compute.",
        Kind::ScalarLoop => {
            "Compile with -O3 and for this processor (-march), or write #pragma omp simd before the loop; the compiler must know that arrays do not overlap (restrict)."
        }
        Kind::MemoryBound => {
            "Access data in the order in which it lies, in blocks that fit into the caches."
        }
        Kind::RemoteMemory => {
            "Let each thread write its data first, or bind ranks to sockets and their memory."
        }
        Kind::ContendedLine => {
            "Give each thread lines of its own: pad the data to 64 bytes or more."
        }
        Kind::ThreadImbalance => "Try schedule(dynamic) or schedule(guided), or smaller chunks.",
        Kind::SerialThread => "Share this code between threads.",
    }
}

/// Returns a time for people.
pub fn shown(picoseconds: u64) -> String {
    Time(picoseconds).rounded(3)
}

/// What a verdict without a cause says.
pub const NO_CAUSE: &str = "No cause was found whose removal saves 2 % of the time.";

impl Cause {
    fn class(&self) -> &'static str {
        match self.class {
            Class::Replayed => "replayed",
            Class::Bound => "at most",
        }
    }

    /// Returns the cause with its gain and its remedy, as sentences. `verdict` is the one that has the cause.
    pub fn text(&self, verdict: &Verdict) -> String {
        format!(
            "{:.0} % of {} saved, {}: {} {}",
            100.0 * self.gain,
            shown(verdict.traced_ps),
            self.class(),
            self.what,
            self.remedy
        )
    }
}

impl Verdict {
    /// Returns the kinds of causes that are ruled out, with the gain of each that has one, as a list.
    pub fn ruled_out_text(&self) -> String {
        let text = |out: &RuledOut| match 100.0 * out.gain {
            0.05.. => format!("{} {:.1} %", out.kind.name(), 100.0 * out.gain),
            _ => out.kind.name().to_owned(),
        };
        self.ruled_out
            .iter()
            .map(text)
            .collect::<Vec<_>>()
            .join(", ")
    }
}
