//! Partial interpretation: a fragment of a program is replaced by its costs.
//!
//! A fragment is the part of each of its ranks between two moments: all calls of a call site, a loop, or an interval of time. It is closed
//! under communication if three conditions hold (Padaryan, 2005). Every message that is sent in the fragment is received in it, and the
//! other way round. Every member of a collective in the fragment takes part in it. No request is pending at the fragment's borders.
//!
//! The ranks leave a closed fragment at times that depend only on when they enter it. Where links are not shared, that dependence has a
//! simple form: rank r leaves at the latest of entry(s) + delay(s, r) over the ranks s for which it waits, directly or through others
//! (linear in the algebra of maximum and sum: Baccelli, Cohen, Olsder and Quadrat, "Synchronization and Linearity", 1992). To find the
//! delays, only the fragment is interpreted, once for each rank, which enters long after the others. The delays are the fragment's
//! attributes, with its computation, messages and bytes. A program with these attributes in place of the fragment takes exactly as long as
//! with the fragment itself, whatever else changes in the program. Where a time depends on the order in which messages come, that form
//! does not hold, and the fragment is refused.

mod closure;
mod select;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use nodescope_loop_tree::{Action, Entry, Mode, Op, Program, Sequence, Sequences, Source};
use serde::Serialize;

use crate::cluster::{Cluster, FitError, Progress};
use crate::code::{Code, describe};
use crate::interpreter::{Ends, interpret_from};
use crate::timeline::Timeline;

pub use select::{Occurrence, Selection, SelectionError, outline};

/// Most ranks of a fragment, which has delays from every rank to every other.
const MOST_RANKS: usize = 512;

/// Input of a fragment: which time of a rank's entry a delay counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// Time at which the rank enters.
    Clock,
    /// Time from which the rank's port, on which its messages follow one another, is free.
    Port,
}

/// Least time from an input of a fragment until one of its ranks leaves it, or until that rank's port is free ([`Exit`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Delay {
    /// Index, in [`Fragment::ranks`], of the rank whose input the delay counts from.
    pub from: u32,
    /// Time of that rank from which the delay counts.
    pub input: Input,
    /// Least time from the input to the exit or to the free port, picoseconds.
    pub time: u64,
}

/// Delays that determine when a rank leaves a fragment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exit {
    /// Delays of the rank's exit, which is at the latest of the times that they give.
    pub clock: Vec<Delay>,
    /// Delays of the rank's port, which is free at the latest of the times that they give.
    pub port: Vec<Delay>,
}

/// The costs of a rank in a fragment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Time of bursts in picoseconds.
    pub computation: u64,
    /// Time of calls that are not interpreted, picoseconds.
    pub opaque: u64,
    /// Number of instructions of the bursts.
    pub instructions: u64,
    /// Number of operations.
    pub operations: u64,
    /// Number of messages; those of all ranks of the fragment are counted with its first rank.
    pub messages: u64,
    /// Bytes of all messages that [`Cost::messages`] counts.
    pub bytes: u64,
}

/// A fragment's attributes on a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fragment {
    /// World ranks that take part in the fragment, ascending.
    pub ranks: Vec<u32>,
    /// Costs by index of the rank in `ranks`.
    pub costs: Vec<Cost>,
    /// Exits by index of the rank in `ranks`.
    pub exits: Vec<Exit>,
    /// Picoseconds from the entry to the last exit if all ranks enter at once.
    pub alone: u64,
    /// Number of occurrences that have the same calls and bursts, and so these attributes.
    pub occurrences: u64,
}

/// A program in which fragments are reduced.
#[derive(Clone, Debug)]
pub struct Reduced {
    /// Program with its fragments replaced.
    pub program: Program,
    /// Fragments that were reduced, by their numbers in the program.
    pub fragments: Vec<Fragment>,
    /// Number of MPI operations of all ranks that the fragments replace, summed over all occurrences. Bursts do not count.
    pub operations: u64,
}

/// Reason for which a fragment cannot be reduced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReduceError {
    /// The selection has no meaning.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// The program does not fit on the cluster.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// The fragment is not closed, or its times depend on more than entries.
    #[error(
        "occurrence {occurrence} of the fragment cannot be reduced: rank {rank}, {call}: {reason}"
    )]
    Refused {
        /// Number of the occurrence, from 1.
        occurrence: usize,
        /// World rank at which the reduction fails.
        rank: u32,
        /// Call at which the reduction fails.
        call: String,
        /// Reason for which the fragment cannot be reduced.
        reason: String,
    },
    /// The fragment as a whole cannot be reduced, for this reason.
    #[error("the fragment cannot be reduced: {0}")]
    Whole(String),
}

/// Returns the sequences of a program.
pub(crate) fn unfolded(program: &Program) -> Sequences {
    Sequences {
        ranks: (0..program.ranks.len() as u32)
            .map(|rank| program.unfold(rank))
            .collect(),
        communicators: program.communicators.clone(),
        copies: program.copies.clone(),
        origin: program.origin.clone(),
        notes: program.notes.clone(),
        ..Sequences::default()
    }
}

/// Reduces a fragment of a program on a cluster, in all its occurrences. `timeline` is needed for intervals.
///
/// # Errors
///
/// A selection without meaning, a program that does not fit on the cluster, fragments that are not closed or whose times depend on more
/// than their ranks' entries, and progress threads that take a share of the processor.
pub fn reduce(
    program: &Program,
    cluster: &Cluster,
    selection: &Selection,
    timeline: Option<&Timeline>,
) -> Result<Reduced, ReduceError> {
    let sequences = unfolded(program);
    let nodes = cluster.place_ranks(sequences.ranks.len() as u32, &program.origin)?;
    let occurrences = selection.occurrences(program, &sequences, timeline)?;
    if let Progress::Thread { beta } = cluster.progress
        && beta > 0.0
    {
        return Err(ReduceError::Whole(
            "the progress thread takes a share of the processor (network.beta), which depends on what else it moves; set network.beta = 0".into(),
        ));
    }
    let closure = closure::Closure::new(&sequences);
    for (number, occurrence) in occurrences.iter().enumerate() {
        let refused = |(rank, call, reason): closure::Refusal| ReduceError::Refused {
            occurrence: number + 1,
            rank,
            call,
            reason,
        };
        closure.check(occurrence).map_err(refused)?;
        linear(&sequences, cluster, &nodes, occurrence).map_err(refused)?;
    }
    let mut fragments: Vec<Fragment> = Vec::new();
    let mut examples: Vec<&Occurrence> = Vec::new();
    let mut by_hash: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut numbers = Vec::with_capacity(occurrences.len());
    for occurrence in &occurrences {
        let same = by_hash.entry(hash(&sequences, occurrence)).or_default();
        let known =
            (same.iter().copied()).find(|&number| equal(&sequences, examples[number], occurrence));
        let number = match known {
            Some(number) => number,
            None => {
                let fragment = attributes(&sequences, cluster, &nodes, occurrence)?;
                fragments.push(fragment);
                examples.push(occurrence);
                same.push(fragments.len() - 1);
                fragments.len() - 1
            }
        };
        fragments[number].occurrences += 1;
        numbers.push(number as u32);
    }
    let operations = (fragments.iter())
        .map(|f| f.occurrences * f.costs.iter().map(|cost| cost.operations).sum::<u64>())
        .sum();
    Ok(Reduced {
        program: Program::new(&replaced(&sequences, &occurrences, &numbers)),
        fragments,
        operations,
    })
}

/// Returns the entries of an occurrence on each rank. The burst in the first entry is not part of the occurrence.
fn content<'a>(
    sequences: &'a Sequences,
    occurrence: &'a Occurrence,
) -> impl Iterator<Item = (u32, &'a [Entry])> {
    (occurrence.ranges.iter())
        .map(|&(rank, start, end)| (rank, &sequences.ranks[rank as usize].entries[start..end]))
}

fn hash(sequences: &Sequences, occurrence: &Occurrence) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (rank, entries) in content(sequences, occurrence) {
        (rank, entries.len()).hash(&mut hasher);
        for entry in entries {
            entry.op.hash(&mut hasher);
            entry.opaque.hash(&mut hasher);
        }
        for entry in entries.iter().skip(1) {
            (entry.burst.time, entry.burst.instructions).hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn equal(sequences: &Sequences, one: &Occurrence, other: &Occurrence) -> bool {
    one.ranges.len() == other.ranges.len()
        && content(sequences, one)
            .zip(content(sequences, other))
            .all(|((a, ones), (b, others))| {
                let first = |entries: &[Entry]| entries.first().map(|e| (e.op.clone(), e.opaque));
                a == b && first(ones) == first(others) && ones.get(1..) == others.get(1..)
            })
}

/// Checks that the times of a closed fragment have the form that delays have; the error is the reason why they have not.
fn linear(
    sequences: &Sequences,
    cluster: &Cluster,
    nodes: &[u32],
    occurrence: &Occurrence,
) -> Result<(), closure::Refusal> {
    let calls = matches!(cluster.progress, Progress::Calls);
    for (rank, entries) in content(sequences, occurrence) {
        for entry in entries {
            let op = &entry.op;
            let call = || describe(&sequences.origin.names, op).to_string();
            let fail = |reason: &str| Err((rank, call(), reason.to_owned()));
            let request = match &op.action {
                Action::Send { request, .. } | Action::Receive { request, .. } => request.is_some(),
                _ => false,
            };
            let message = match &op.action {
                Action::Send {
                    to, bytes, mode, ..
                } => Some((*to, *bytes, *mode)),
                Action::Receive {
                    from: Source::Peer(peer) | Source::Matched(peer),
                    room,
                    ..
                } => Some((*peer, *room, Mode::Standard)),
                Action::SendReceive {
                    send: Some((to, _, bytes)),
                    ..
                } => Some((*to, *bytes, Mode::Standard)),
                _ => None,
            };
            let sends = !matches!(op.action, Action::Receive { .. });
            match &op.action {
                Action::Probe { .. } => return fail("what a probe finds depends on what has come"),
                Action::Mark(_) => return fail("a moment in it is of interest"),
                Action::Reduced(_) => return fail("it is reduced already"),
                Action::OneSided { .. } => {
                    return fail("what it reads or writes takes time of another rank's links");
                }
                Action::Cancel { .. } => {
                    return fail("whether a cancelled receive got something depends on the order");
                }
                Action::Collective(collective) if collective.request.is_some() => {
                    return fail("a non-blocking collective goes on beside what its rank does");
                }
                _ => {}
            }
            let other = message.map(|(peer, ..)| peer.resolve(rank, nodes.len() as u32));
            let far = match (&op.action, other) {
                (Action::Collective(_), _) => (occurrence.ranges.iter())
                    .any(|&(other, ..)| nodes[other as usize] != nodes[rank as usize]),
                (_, Some(other)) => nodes.get(other as usize) != nodes.get(rank as usize),
                _ => false,
            };
            let communicates = message.is_some() || matches!(op.action, Action::Collective(_));
            if !communicates {
                continue;
            }
            if far && cluster.contention {
                return fail(
                    "its messages share links with those of others (network.contention); set network.contention = false",
                );
            }
            if calls && cluster.receives_unexpected {
                return fail(
                    "a rank that waits takes in the messages of others too (network.take_in); set network.take_in = false",
                );
            }
            let channels = match (far, &op.action) {
                (true, Action::Collective(_)) => vec![&cluster.network, &cluster.memory],
                (true, _) => vec![&cluster.network],
                (false, _) => vec![&cluster.memory],
            };
            for channel in channels {
                if channel.send_per_byte > 0.0 || channel.acknowledgement_overhead > 0 {
                    return fail(
                        "what a message costs depends on what else its sender does (send_bandwidth, acknowledgement_overhead); leave both keys out",
                    );
                }
                if channel.copy_per_byte > 0.0
                    || channel.buffered_overhead.is_some()
                    || channel.queued_overhead.is_some()
                {
                    return fail(
                        "what a message costs depends on whether it comes before its receive (copy_bandwidth, buffered overheads)",
                    );
                }
                if let Some((_, bytes, mode)) = message
                    && calls
                    && request
                    && (mode == Mode::Synchronous || (sends && bytes > channel.eager_limit))
                {
                    return fail(
                        "a message above the eager limit goes on when its rank next calls MPI; set network.progress_thread = true",
                    );
                }
            }
        }
    }
    Ok(())
}

/// Returns the calls of one occurrence of a fragment as sequences of their own. The burst before each rank's first call is empty, since it
/// is not part of the fragment.
fn alone(sequences: &Sequences, occurrence: &Occurrence) -> Sequences {
    let mut only = Sequences {
        ranks: (sequences.ranks.iter())
            .map(|sequence| Sequence {
                entries: Vec::new(),
                communicators: sequence.communicators.clone(),
            })
            .collect(),
        communicators: sequences.communicators.clone(),
        copies: sequences.copies.clone(),
        ..Sequences::default()
    };
    for (rank, entries) in content(sequences, occurrence) {
        let own = &mut only.ranks[rank as usize].entries;
        own.extend_from_slice(entries);
        if let Some(first) = own.first_mut() {
            first.burst = nodescope_loop_tree::Burst::default();
        }
    }
    only
}

/// Returns the attributes of an occurrence. The occurrence is interpreted alone: once with all ranks at once, and for each rank once with
/// the rank as the last to enter, and once with its port as the last to be free.
fn attributes(
    sequences: &Sequences,
    cluster: &Cluster,
    nodes: &[u32],
    occurrence: &Occurrence,
) -> Result<Fragment, ReduceError> {
    let ranks: Vec<u32> = occurrence.ranges.iter().map(|&(rank, ..)| rank).collect();
    if ranks.len() > MOST_RANKS {
        return Err(ReduceError::Whole(format!(
            "it is of {} ranks, more than {MOST_RANKS}",
            ranks.len()
        )));
    }
    let only = alone(sequences, occurrence);
    let program = Program::new(&only);
    let code = Code::new(&program);
    let world = nodes.len();
    let zero = vec![0; world];
    let run = |clocks: &[u64], ports: &[u64]| interpret_from(&code, cluster, nodes, clocks, ports);
    let together = run(&zero, &zero);
    if let Some(problem) = &together.problem {
        return Err(ReduceError::Whole(format!(
            "alone it does not come to its end: {problem}"
        )));
    }
    if together.queued {
        return Err(ReduceError::Whole(
            "a call in it receives several messages, which cost the receiver time in the order in which they come; it can be reduced where receiving costs nothing (network.receive_overhead)".into(),
        ));
    }
    let latest = |ends: &Ends| {
        ends.clocks
            .iter()
            .chain(&ends.ports)
            .copied()
            .max()
            .unwrap_or(0)
    };
    let late = latest(&together) + 1;
    let mut exits = vec![Exit::default(); ranks.len()];
    for (from, &rank) in (0..).zip(&ranks) {
        for input in [Input::Clock, Input::Port] {
            if input == Input::Port && cluster.contention {
                continue;
            }
            let mut times = zero.clone();
            times[rank as usize] = late;
            let ends = match input {
                Input::Clock => run(&times, &zero),
                Input::Port => run(&zero, &times),
            };
            for (exit, &rank) in exits.iter_mut().zip(&ranks) {
                let delay = |end: u64| Delay {
                    from,
                    input,
                    time: end - late,
                };
                let (clock, port) = (ends.clocks[rank as usize], ends.ports[rank as usize]);
                if clock >= late {
                    exit.clock.push(delay(clock));
                }
                if port >= late && !cluster.contention {
                    exit.port.push(delay(port));
                }
            }
        }
    }
    let mut costs: Vec<Cost> = (ranks.iter())
        .map(|&rank| {
            let entries = &only.ranks[rank as usize].entries;
            let (computation, opaque) = together.computation[rank as usize];
            Cost {
                computation,
                opaque,
                instructions: (entries.iter().map(|entry| entry.burst.instructions))
                    .fold(0, u64::saturating_add),
                operations: entries.len() as u64,
                ..Cost::default()
            }
        })
        .collect();
    if let Some(first) = costs.first_mut() {
        (first.messages, first.bytes) = together.sent;
    }
    Ok(Fragment {
        ranks,
        costs,
        exits,
        alone: together.clocks.iter().copied().max().unwrap_or(0),
        occurrences: 0,
    })
}

/// Returns the sequences with a single operation in place of each occurrence on each of its ranks.
fn replaced(sequences: &Sequences, occurrences: &[Occurrence], numbers: &[u32]) -> Sequences {
    let mut ranges: Vec<Vec<(usize, usize, u32)>> = vec![Vec::new(); sequences.ranks.len()];
    for (occurrence, &number) in occurrences.iter().zip(numbers) {
        for &(rank, start, end) in &occurrence.ranges {
            ranges[rank as usize].push((start, end, number));
        }
    }
    let mut reduced = Sequences {
        communicators: sequences.communicators.clone(),
        copies: sequences.copies.clone(),
        origin: sequences.origin.clone(),
        notes: sequences.notes.clone(),
        ..Sequences::default()
    };
    for (sequence, mut ranges) in sequences.ranks.iter().zip(ranges) {
        ranges.sort_unstable();
        let mut entries = Vec::new();
        let mut next = 0;
        for (start, end, number) in ranges {
            entries.extend_from_slice(&sequence.entries[next..start]);
            let first = &sequence.entries[start];
            entries.push(Entry {
                burst: first.burst,
                op: Arc::new(Op {
                    action: Action::Reduced(number),
                    ..Op::clone(&first.op)
                }),
                opaque: None,
            });
            next = end;
        }
        entries.extend_from_slice(&sequence.entries[next..]);
        reduced.ranks.push(Sequence {
            entries,
            communicators: sequence.communicators.clone(),
        });
    }
    reduced
}
