//! Ranks that make the same MPI calls in the same order.

use std::collections::BTreeMap;

use nodescope_hypercall::Function;
use nodescope_loop_tree::Sequences;

/// Ranks with equal communication sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// World ranks, ascending.
    pub ranks: Vec<u32>,
    /// Calls of each of them behind `MPI_Init`.
    pub calls: usize,
}

/// Groups the ranks of a trace by the types of their calls in the order of time. Polls that found nothing are no part of a sequence: how
/// many a rank makes depends on how long its messages take. Groups are ordered by their first rank.
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

/// Returns the computation vector of a rank, picoseconds.
pub fn vector(sequences: &Sequences, rank: u32) -> Vec<u64> {
    let sequence = sequences.ranks.get(rank as usize);
    let entries = sequence.map_or(&[][..], |sequence| &sequence.entries);
    entries.iter().map(|entry| entry.burst.time).collect()
}
