//! Assignment of the replayed computation of representatives to the ranks of a program.

use std::collections::BTreeMap;

use nodescope_loop_tree::{Burst, Entry, Sequence, Sequences};
use serde::Serialize;

use crate::analysis::Analysis;
use crate::group::vector;
use crate::{RepresentError, call_name, ranks_text};

/// A rank's replay on one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// World rank that was replayed.
    pub rank: u32,
    /// Calls and bursts of the rank on that machine.
    pub sequence: Sequence,
}

/// The replayed rank whose computation a rank takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Assignment {
    /// World rank.
    pub rank: u32,
    /// The replayed rank.
    pub from: u32,
    /// The rank's own computation in the trace, picoseconds.
    pub traced: u64,
    /// Computation of the replayed rank in its replay on the target, picoseconds.
    pub replayed: u64,
    /// Computation of the replayed rank in its replay where the program was traced, picoseconds; `None` without such a replay.
    pub replayed_where_traced: Option<u64>,
    /// The rank's computation in the prediction, picoseconds.
    pub computation: u64,
}

/// Replaces the computation vector of each rank by that of a replayed rank of its cluster: the replayed rank nearest to the centroid, the
/// representative among equally near ones.
///
/// A replay has no messages, and thus lacks the kernel's work on them between calls. `where_traced` may have replays of the same ranks
/// on the machine where the program was traced. What a traced burst has beyond such a replay's burst is that work, and the rank's own
/// difference from the replayed rank. It is added to the burst of the target's replay, scaled by the ratio of the two replays.
///
/// # Errors
///
/// Fails for a cluster without a replay, two replays of one rank, or a replay of another program or run. Fails if `where_traced` has
/// replays, but none of a rank whose replay on the target is used.
pub fn assign_replays(
    sequences: &mut Sequences,
    analysis: &Analysis,
    replays: &[Replay],
    where_traced: &[Replay],
) -> Result<Vec<Assignment>, RepresentError> {
    let on_target = by_rank(sequences, replays)?;
    let at_home = by_rank(sequences, where_traced)?;
    let mut assignments = Vec::new();
    for cluster in analysis.groups.iter().flat_map(|group| &group.clusters) {
        let nearest = (cluster.ranks.iter().zip(&cluster.to_centroid))
            .filter(|(rank, _)| on_target.contains_key(rank))
            .min_by(|(a, near), (b, far)| {
                let chosen = |rank: u32| rank != cluster.representative;
                (near.total_cmp(far)).then(chosen(**a).cmp(&chosen(**b)))
            });
        let Some((from, replay)) =
            nearest.and_then(|(rank, _)| Some((*rank, *on_target.get(rank)?)))
        else {
            return Err(RepresentError::NotReplayed {
                representative: cluster.representative,
                ranks: ranks_text(&cluster.ranks),
            });
        };
        let home = at_home.get(&from).copied();
        if home.is_none() && !at_home.is_empty() {
            return Err(RepresentError::NotReplayedWhereTraced { rank: from });
        }
        for &rank in &cluster.ranks {
            let traced = sum(vector(sequences, rank));
            let entries = &mut sequences.ranks[rank as usize].entries;
            match home {
                None => (entries.iter_mut().zip(&replay.entries))
                    .for_each(|(entry, there)| entry.burst = there.burst),
                Some(home) => add_difference(entries, replay, home),
            }
            assignments.push(Assignment {
                rank,
                from,
                traced,
                replayed: total(replay),
                replayed_where_traced: home.map(total),
                computation: sum(vector(sequences, rank)),
            });
        }
    }
    assignments.sort_by_key(|assignments| assignments.rank);
    Ok(assignments)
}

/// Gives each entry the burst of the replay on the target, and what the traced burst has beyond the replay where the program was traced.
fn add_difference(entries: &mut [Entry], replay: &Sequence, home: &Sequence) {
    let ratio = match total(home) {
        0 => 1.0,
        all => total(replay) as f64 / all as f64,
    };
    for ((entry, there), home) in entries.iter_mut().zip(&replay.entries).zip(&home.entries) {
        let beyond = (entry.burst.time as f64 - home.burst.time as f64) * ratio;
        entry.burst = Burst {
            // The cast saturates: a difference below the whole burst gives 0.
            time: (there.burst.time as f64 + beyond).round() as u64,
            ..there.burst
        };
    }
}

/// Returns replays by rank, after the check that each is of its rank in the trace.
fn by_rank<'a>(
    sequences: &Sequences,
    replays: &'a [Replay],
) -> Result<BTreeMap<u32, &'a Sequence>, RepresentError> {
    let mut found: BTreeMap<u32, &Sequence> = BTreeMap::new();
    for Replay { rank, sequence } in replays {
        check(sequences, *rank, sequence)?;
        if found.insert(*rank, sequence).is_some() {
            return Err(RepresentError::ReplayedTwice { rank: *rank });
        }
    }
    Ok(found)
}

fn sum(times: Vec<u64>) -> u64 {
    times.into_iter().fold(0, u64::saturating_add)
}

/// Returns the computation of a sequence, picoseconds.
fn total(sequence: &Sequence) -> u64 {
    let times = sequence.entries.iter().map(|entry| entry.burst.time);
    times.fold(0, u64::saturating_add)
}

/// Checks that a replay calls the same MPI functions in the same order as its rank in the trace.
fn check(sequences: &Sequences, rank: u32, replay: &Sequence) -> Result<(), RepresentError> {
    let Some(traced) = sequences.ranks.get(rank as usize) else {
        return Err(RepresentError::NoSuchRank {
            rank,
            world: sequences.ranks.len(),
        });
    };
    let function = |sequence: &Sequence, at: usize| {
        let entry = sequence.entries.get(at);
        entry.map(|entry| entry.op.function)
    };
    let longest = traced.entries.len().max(replay.entries.len());
    let other = (0..longest).find(|&at| function(traced, at) != function(replay, at));
    match other {
        None => Ok(()),
        Some(at) => Err(RepresentError::OtherCalls {
            rank,
            call: at + 1,
            replayed: call_name(function(replay, at)),
            traced: call_name(function(traced, at)),
        }),
    }
}
