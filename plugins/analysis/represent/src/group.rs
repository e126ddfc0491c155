//! Ranks that make the same MPI calls in the same order.

use std::collections::BTreeMap;

use nodescope_hypercall::Function;
use nodescope_loop_tree::Sequences;

/// Ranks with equal communication sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// World ranks, ascending.
    pub ranks: Vec<u32>,
    /// Number of MPI calls of each rank behind `MPI_Init`, without polls that found nothing.
    pub calls: usize,
}

/// Groups the ranks of a trace whose sequences call the same MPI functions in the same order. Sequences lack polls that found nothing,
/// since their number depends on how long messages take. Groups are in the order of their first rank.
pub fn groups(sequences: &Sequences) -> Vec<Group> {
    let mut by_calls: BTreeMap<Vec<Function>, Vec<u32>> = BTreeMap::new();
    for (rank, sequence) in sequences.ranks.iter().enumerate() {
        let calls = sequence.entries.iter().map(|entry| entry.op.function);
        (by_calls.entry(calls.collect()).or_default()).push(rank as u32);
    }
    let mut groups: Vec<Group> = (by_calls.into_iter())
        .map(|(calls, ranks)| Group {
            ranks,
            calls: calls.len(),
        })
        .collect();
    groups.sort_by_key(|group| group.ranks.first().copied());
    groups
}

/// Returns the computation vector of a rank: the time before each of its calls since the previous call, picoseconds.
pub fn vector(sequences: &Sequences, rank: u32) -> Vec<u64> {
    let sequence = sequences.ranks.get(rank as usize);
    let entries = sequence.map_or(&[][..], |sequence| &sequence.entries);
    entries.iter().map(|entry| entry.burst.time).collect()
}
