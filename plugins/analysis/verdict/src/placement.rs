//! Placements of ranks on the nodes of the run, with as many ranks on each node as it had.

use std::collections::{BTreeMap, BTreeSet};

use nodescope_loop_tree::{Action, PeerRef, Sequences};

/// Most ranks of which the traffic decides a placement: the search takes the square of their number.
const MOST_RANKS: usize = 1024;

/// Returns the placements that may be better than the traced one: successive ranks together, successive ranks apart, and ranks together that
/// exchange most.
pub(crate) fn placements(sequences: &Sequences) -> Vec<Vec<u32>> {
    let traced = &sequences.origin.nodes;
    let ranks = sequences.ranks.len();
    let mut room: BTreeMap<u32, usize> = BTreeMap::new();
    for node in traced {
        *room.entry(*node).or_default() += 1;
    }
    if traced.len() != ranks || room.len() < 2 || room.len() == ranks {
        return Vec::new();
    }
    let block = room.iter().flat_map(|(node, room)| vec![*node; *room]);
    let most = room.values().copied().max().unwrap_or(0);
    let turns = 0..most;
    let cyclic = turns.flat_map(|turn| {
        let with_room = room.iter().filter(move |(_, room)| **room > turn);
        with_room.map(|(node, _)| *node)
    });
    let mut found: Vec<Vec<u32>> = vec![block.collect(), cyclic.collect()];
    if ranks <= MOST_RANKS {
        found.push(by_traffic(sequences, &room));
    }
    let groups = |nodes: &[u32]| {
        let mut groups: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
        for (rank, node) in nodes.iter().enumerate() {
            groups.entry(*node).or_default().insert(rank);
        }
        groups.into_values().collect::<BTreeSet<_>>()
    };
    // Nodes are alike, so that only the groups of ranks count.
    let mut seen = BTreeSet::from([groups(traced)]);
    found.retain(|nodes| seen.insert(groups(nodes)));
    found
}

/// Fills one node after the other: first with the rank that has most traffic, then with the ranks that exchange most with those on the node.
fn by_traffic(sequences: &Sequences, room: &BTreeMap<u32, usize>) -> Vec<u32> {
    let traffic = traffic(sequences);
    let between = |one: usize, other: usize| {
        let of = |from, to| traffic.get(&(from, to)).copied().unwrap_or(0);
        of(one, other).saturating_add(of(other, one))
    };
    let mut free: BTreeSet<usize> = (0..sequences.ranks.len()).collect();
    let mut nodes = vec![0; sequences.ranks.len()];
    for (node, room) in room {
        let mut group: Vec<usize> = Vec::new();
        // Bytes that each free rank exchanges with the group, or for the first rank with all free ranks.
        let mut bytes: BTreeMap<usize, u64> = (free.iter())
            .map(|rank| (*rank, free.iter().map(|other| between(*rank, *other)).sum()))
            .collect();
        while group.len() < *room {
            let best = free
                .iter()
                .copied()
                .max_by_key(|rank| (bytes[rank], usize::MAX - rank));
            let Some(best) = best else {
                break;
            };
            free.remove(&best);
            if group.is_empty() {
                bytes.values_mut().for_each(|bytes| *bytes = 0);
            }
            group.push(best);
            for rank in &free {
                *bytes.entry(*rank).or_default() += between(*rank, best);
            }
            nodes[best] = *node;
        }
    }
    nodes
}

/// Returns the bytes that are sent from rank to rank.
fn traffic(sequences: &Sequences) -> BTreeMap<(usize, usize), u64> {
    let mut traffic: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for (rank, sequence) in sequences.ranks.iter().enumerate() {
        for entry in &sequence.entries {
            if let Action::Send {
                to: PeerRef::Absolute(to),
                bytes,
                ..
            } = &entry.op.action
            {
                let sum = traffic.entry((rank, *to as usize)).or_default();
                *sum = sum.saturating_add(*bytes);
            }
        }
    }
    traffic
}
