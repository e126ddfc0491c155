//! Which ranks can never go on, and in which cycle they wait.

use std::collections::{BTreeMap, BTreeSet};

use super::Waits;

/// Ranks that can never go on, with one that each waits for among those that cannot either; none if all can.
pub fn stuck(
    blocked: &BTreeMap<u32, Vec<Waits>>,
    ended: &impl Fn(u32) -> bool,
) -> Option<(Vec<u32>, BTreeMap<u32, u32>)> {
    let mut stuck: BTreeSet<u32> = blocked.keys().copied().collect();
    let stays = |rank: u32, stuck: &BTreeSet<u32>| stuck.contains(&rank) || ended(rank);
    loop {
        let waits = |wait: &Waits| match wait {
            Waits::Waiting {
                ranks, all: true, ..
            } => ranks.iter().any(|&other| stays(other, &stuck)),
            Waits::Waiting {
                ranks, all: false, ..
            } => ranks.iter().all(|&other| stays(other, &stuck)),
            Waits::Ready | Waits::Polling { .. } | Waits::Unknown => false,
        };
        let free: Vec<u32> = (stuck.iter().copied())
            .filter(|rank| !blocked[rank].iter().all(waits))
            .collect();
        if free.is_empty() {
            break;
        }
        free.iter().for_each(|rank| {
            stuck.remove(rank);
        });
    }
    let next = |rank: &u32| {
        let others = blocked[rank].iter().filter_map(|wait| match wait {
            Waits::Waiting { ranks, .. } => Some(ranks),
            _ => None,
        });
        let others: Vec<u32> = others.flatten().copied().collect();
        let waiting = others.iter().find(|other| stuck.contains(other));
        Some((
            *rank,
            *waiting.or_else(|| others.iter().find(|&&other| ended(other)))?,
        ))
    };
    let next = stuck.iter().filter_map(next).collect();
    (!stuck.is_empty()).then(|| (stuck.into_iter().collect(), next))
}

/// A cycle that is reached from a rank, if each waits for one other.
pub fn cycle(next: &BTreeMap<u32, u32>, start: u32) -> Option<Vec<u32>> {
    let (mut seen, mut way, mut at) = (BTreeMap::new(), Vec::new(), start);
    loop {
        if let Some(&first) = seen.get(&at) {
            return Some(way.split_off(first));
        }
        seen.insert(at, way.len());
        way.push(at);
        at = *next.get(&at)?;
    }
}
