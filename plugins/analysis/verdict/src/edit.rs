//! Changes of a program or its cluster, whose effect on the time is asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodescope_hypercall::Function;
use nodescope_loop_tree::sequence::{Burst, Entry};
use nodescope_loop_tree::{Action, Op, Program, Sequences, Site};
use nodescope_predict::{Channel, Cluster, Code, FitError, Options, Placement, Table, interpret};

use crate::replay::{plain, time_on};

/// A call in the program's code: its site and its function.
pub type Call = (Site, Function);

/// A computation: the call before it, if any, and the call behind it.
pub type Stretch = (Option<Call>, Call);

/// Parts of a million of their time that computations take, by the computation and the rank.
pub(crate) type Parts = BTreeMap<(Stretch, usize), u64>;

/// A program on a cluster.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) sequences: Sequences,
    pub(crate) cluster: Cluster,
    /// Calls whose messages take a part of their time.
    pub(crate) messages: Vec<(Call, f64)>,
}

impl State {
    pub(crate) fn new(sequences: Sequences, cluster: Cluster) -> State {
        State {
            sequences,
            cluster,
            messages: Vec::new(),
        }
    }

    /// Returns the time of the program, picoseconds. A program that comes to no end takes for ever.
    ///
    /// # Errors
    ///
    /// As [`interpret`].
    pub(crate) fn time(&self) -> Result<u64, FitError> {
        if self.messages.is_empty() {
            return time_on(&self.cluster, &self.sequences);
        }
        let program = Program::new(&self.sequences);
        let of = |op: &Op| {
            let found = |other: &(Call, f64)| other.0 == (op.site, op.function);
            let found = self.messages.iter().position(found);
            found.map_or(u32::MAX, |index| index as u32)
        };
        let parts = self.messages.iter().map(|(_, part)| *part);
        let channels = parts.map(|part| {
            let cluster = &self.cluster;
            (cluster.network.scaled(part), cluster.memory.scaled(part))
        });
        let options = Options {
            channels: channels.collect(),
            channel_of: program.ops.iter().map(of).collect(),
            ..plain()
        };
        let outcome = interpret(&Code::new(&program), &self.cluster, &options)?;
        Ok(match outcome.complete() {
            true => outcome.time,
            false => u64::MAX,
        })
    }
}

/// A change.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    /// Computations of ranks take so many parts of a million of their time.
    Scale(Parts),
    /// Computations take so many parts of a million of their time, by the rank and the index of the entry behind them.
    ScaleEach(BTreeMap<(usize, usize), u64>),
    /// A call is left out.
    Without(Call),
    /// Ranks compute before they wait for messages what they compute behind it. The call is the last one of those that wait.
    Overlap(Call),
    /// Messages are joined: of each entry, by rank and index, the bytes that it transfers. An entry without bytes is left out.
    Join(BTreeMap<(usize, usize), Option<u64>>),
    /// Ranks are on these nodes.
    Place(Vec<u32>),
    /// Messages that a call sends take a part of their time.
    Messages(Call, f64),
    /// The network costs nothing.
    Ideal,
    /// Sends wait for no receive.
    NoRendezvous,
    /// Messages have no latency, and cost nothing for being messages.
    NoLatency,
    /// Bytes cost nothing.
    NoBytes,
}

/// Longest computation between two calls that count as one row, picoseconds.
const BETWEEN: u64 = 2_000_000;

/// Parts in which [`Edit::Scale`] counts.
pub(crate) const MILLION: u64 = 1_000_000;

pub(crate) fn call(entry: &Entry) -> Call {
    (entry.op.site, entry.op.function)
}

/// Calls `visit` for each entry of a rank, with the computation before it.
pub(crate) fn stretches<'a>(
    entries: &'a [Entry],
) -> impl Iterator<Item = (Stretch, &'a Entry)> + 'a {
    let before = entries.iter().map(|entry| Some(call(entry)));
    let before = std::iter::once(None).chain(before);
    (before.zip(entries)).map(|(before, entry)| ((before, call(entry)), entry))
}

impl Edit {
    /// Returns the state with the change.
    pub(crate) fn apply(&self, state: &State) -> State {
        let mut state = state.clone();
        match self {
            Edit::Scale(parts) => scale(&mut state.sequences, parts),
            Edit::ScaleEach(parts) => {
                for (&(rank, index), &parts) in parts {
                    shorten(&mut state.sequences.ranks[rank].entries[index].burst, parts);
                }
            }
            Edit::Overlap(last) => {
                for rank in &mut state.sequences.ranks {
                    overlap(&mut rank.entries, *last);
                }
            }
            Edit::Without(left_out) => {
                let entries = (state.sequences.ranks.iter_mut()).flat_map(|rank| &mut rank.entries);
                for entry in entries.filter(|entry| call(entry) == *left_out) {
                    Arc::make_mut(&mut entry.op).action = Action::Nothing;
                }
            }
            Edit::Join(changes) => {
                for (&(rank, index), &bytes) in changes {
                    let entry = &mut state.sequences.ranks[rank].entries[index];
                    let op = Arc::make_mut(&mut entry.op);
                    op.action = joined(&op.action, bytes);
                    if bytes.is_none() {
                        // What runs between the messages of a row is the loop that sends them.
                        entry.burst = Burst::default();
                    }
                }
            }
            Edit::Place(nodes) => state.cluster.placement = Placement::Nodes(nodes.clone()),
            Edit::Messages(call, part) => {
                let known = state.messages.iter_mut().find(|(other, _)| other == call);
                match known {
                    Some((_, known)) => *known *= part,
                    None => state.messages.push((*call, *part)),
                }
            }
            Edit::Ideal => state.cluster = state.cluster.ideal_network(),
            Edit::NoRendezvous => each_channel(&mut state.cluster, |channel| {
                channel.eager_limit = u64::MAX;
            }),
            Edit::NoLatency => each_channel(&mut state.cluster, |channel| {
                channel.latency = 0;
                each_table(channel, |first, time| time.saturating_sub(first));
            }),
            Edit::NoBytes => each_channel(&mut state.cluster, |channel| {
                channel.per_byte = 0.0;
                each_table(channel, |first, _| first);
            }),
        }
        state
    }
}

fn scale(sequences: &mut Sequences, parts: &Parts) {
    for (rank, sequence) in sequences.ranks.iter_mut().enumerate() {
        let mut before = None;
        for entry in &mut sequence.entries {
            let behind = call(entry);
            if let Some(&parts) = parts.get(&((before, behind), rank)) {
                shorten(&mut entry.burst, parts);
            }
            before = Some(behind);
        }
    }
}

/// Makes a computation take so many parts of a million of its time.
fn shorten(burst: &mut Burst, parts: u64) {
    let scaled = |value: u64| {
        let scaled = u128::from(value) * u128::from(parts) / u128::from(MILLION);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    };
    burst.time = scaled(burst.time);
    burst.instructions = scaled(burst.instructions);
}

/// Returns whether a call does nothing but wait for messages.
fn waits(entry: &Entry) -> bool {
    matches!(
        entry.op.action,
        Action::Wait { .. } | Action::Receive { request: None, .. }
    )
}

/// Returns for each row of calls that wait, without a computation between, the index of its first call and of its last one. A computation
/// follows each row.
pub(crate) fn waiting_rows(entries: &[Entry]) -> Vec<(usize, usize)> {
    let mut rows: Vec<(usize, usize)> = Vec::new();
    for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| waits(entry)) {
        match rows.last_mut() {
            Some(row) if row.1 + 1 == index && entry.burst.time <= BETWEEN => row.1 = index,
            _ => rows.push((index, index)),
        }
    }
    let computes = |at: usize| {
        entries
            .get(at + 1)
            .is_some_and(|next| next.burst.time > BETWEEN)
    };
    rows.retain(|row| computes(row.1));
    rows
}

/// Moves what follows rows of calls that wait before these rows, where `last` is the last call of the row.
fn overlap(entries: &mut [Entry], last: Call) {
    for (first, end) in waiting_rows(entries) {
        if call(&entries[end]) == last {
            let moved = std::mem::take(&mut entries[end + 1].burst);
            let burst = &mut entries[first].burst;
            burst.time = burst.time.saturating_add(moved.time);
            burst.instructions = burst.instructions.saturating_add(moved.instructions);
        }
    }
}

/// Returns the send or receive with other bytes.
fn joined(action: &Action, bytes: Option<u64>) -> Action {
    let Some(all) = bytes else {
        return Action::Nothing;
    };
    let mut action = action.clone();
    match &mut action {
        Action::Send { bytes, .. } => *bytes = all,
        Action::Receive { room, .. } => *room = all,
        _ => {}
    }
    action
}

fn each_channel(cluster: &mut Cluster, change: impl Fn(&mut Channel)) {
    change(&mut cluster.network);
    change(&mut cluster.memory);
}

/// Changes each time of a channel's overheads; `change` gets the time for no bytes, and the time.
fn each_table(channel: &mut Channel, change: impl Fn(u64, u64) -> u64) {
    let changed = |table: &Table| {
        let first = table.at(0);
        let points = table.points.iter();
        Table {
            points: points
                .map(|&(bytes, time)| (bytes, change(first, time)))
                .collect(),
        }
    };
    channel.send_overhead = changed(&channel.send_overhead);
    channel.receive_overhead = changed(&channel.receive_overhead);
}
