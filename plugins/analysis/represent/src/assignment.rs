//! Assignment of the replayed computation of representatives to the ranks of a program.

use std::collections::BTreeMap;

use nodescope_loop_tree::{Sequence, Sequences};
use serde::Serialize;

use crate::analysis::Analysis;
use crate::group::vector;
use crate::{RepresentError, call_name, ranks_text};

/// A rank's replay on the target cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// World rank that was replayed.
    pub rank: u32,
    /// Calls and bursts of the rank on the target.
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
    /// Computation of the replayed rank on the target, picoseconds.
    pub computation: u64,
}

/// Replaces the computation vector of each rank by that of a replayed rank of its cluster: the replayed rank nearest to the centroid, the
/// representative among equally near ones.
///
/// # Errors
///
/// Fails for a cluster without a replay, two replays of one rank, or a replay of another program or run.
pub fn assign_replays(
    sequences: &mut Sequences,
    analysis: &Analysis,
    replays: &[Replay],
) -> Result<Vec<Assignment>, RepresentError> {
    let mut by_rank: BTreeMap<u32, &Sequence> = BTreeMap::new();
    for Replay { rank, sequence } in replays {
        check(sequences, *rank, sequence)?;
        if by_rank.insert(*rank, sequence).is_some() {
            return Err(RepresentError::ReplayedTwice { rank: *rank });
        }
    }
    let mut assignments = Vec::new();
    for cluster in analysis.groups.iter().flat_map(|group| &group.clusters) {
        let nearest = (cluster.ranks.iter().zip(&cluster.to_centroid))
            .filter(|(rank, _)| by_rank.contains_key(rank))
            .min_by(|(a, near), (b, far)| {
                let chosen = |rank: u32| rank != cluster.representative;
                (near.total_cmp(far)).then(chosen(**a).cmp(&chosen(**b)))
            });
        let Some((from, replay)) = nearest.and_then(|(rank, _)| Some((*rank, *by_rank.get(rank)?)))
        else {
            return Err(RepresentError::NotReplayed {
                representative: cluster.representative,
                ranks: ranks_text(&cluster.ranks),
            });
        };
        let sum = |times: Vec<u64>| times.into_iter().fold(0, u64::saturating_add);
        for &rank in &cluster.ranks {
            let traced = sum(vector(sequences, rank));
            let entries = &mut sequences.ranks[rank as usize].entries;
            for (entry, there) in entries.iter_mut().zip(&replay.entries) {
                entry.burst = there.burst;
            }
            assignments.push(Assignment {
                rank,
                from,
                traced,
                computation: sum(vector(sequences, rank)),
            });
        }
    }
    assignments.sort_by_key(|assignments| assignments.rank);
    Ok(assignments)
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
