//! Changes of a program or its cluster, whose effect on the time is asked.

use std::collections::BTreeMap;

use nodescope_hypercall::Function;
use nodescope_loop_tree::sequence::{Burst, Entry};
use nodescope_loop_tree::{Action, Sequences, Site};
use nodescope_predict::{Channel, Cluster, Placement, Table};

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
}

/// A change.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    /// Computations of ranks take so many parts of a million of their time.
    Scale(Parts),
    /// A call is left out.
    Without(Call),
    /// Messages are joined: of each entry, by rank and index, the bytes that it transfers. An entry without bytes is left out.
    Join(BTreeMap<(usize, usize), Option<u64>>),
    /// Ranks are on these nodes.
    Place(Vec<u32>),
    /// Sends wait for no receive.
    NoRendezvous,
    /// Messages have no latency, and cost nothing for being messages.
    NoLatency,
    /// Bytes cost nothing.
    NoBytes,
}

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
            Edit::Without(left_out) => {
                let entries = (state.sequences.ranks.iter_mut()).flat_map(|rank| &mut rank.entries);
                for entry in entries.filter(|entry| call(entry) == *left_out) {
                    entry.op.action = Action::Nothing;
                }
            }
            Edit::Join(changes) => {
                for (&(rank, index), &bytes) in changes {
                    let entry = &mut state.sequences.ranks[rank].entries[index];
                    entry.op.action = joined(&entry.op.action, bytes);
                    if bytes.is_none() {
                        // What runs between the messages of a row is the loop that sends them.
                        entry.burst = Burst::default();
                    }
                }
            }
            Edit::Place(nodes) => state.cluster.placement = Placement::Nodes(nodes.clone()),
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
                let scaled = |value: u64| {
                    let scaled = u128::from(value) * u128::from(parts) / u128::from(MILLION);
                    u64::try_from(scaled).unwrap_or(u64::MAX)
                };
                entry.burst.time = scaled(entry.burst.time);
                entry.burst.instructions = scaled(entry.burst.instructions);
            }
            before = Some(behind);
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
