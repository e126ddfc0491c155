//! Search for the ranks that can never proceed, and for a cycle in which they wait.

use std::collections::{BTreeMap, BTreeSet};

use super::Waits;

/// Wait of one call: the ranks that the call still waits for.
struct UnresolvedWait<'a> {
    owner: u32,
    /// Number of `others` that cannot continue; a rank that is named twice counts twice.
    staying: usize,
    others: &'a [u32],
    /// True if all of `others` must continue, false if one of them suffices.
    all: bool,
}

impl UnresolvedWait<'_> {
    fn is_over(&self) -> bool {
        match self.all {
            true => self.staying == 0,
            false => self.staying < self.others.len(),
        }
    }
}

/// Returns the ranks that can never proceed, and for each of them one such rank, or an ended one, for which it waits. Returns `None` if all
/// ranks can proceed. `blocked` has the waits of each rank's threads: a rank proceeds if one of its threads does. The search examines each
/// wait once, and again for each rank of the wait that can continue.
pub fn stuck(
    blocked: &BTreeMap<u32, Vec<Waits>>,
    ended: &impl Fn(u32) -> bool,
) -> Option<(Vec<u32>, BTreeMap<u32, u32>)> {
    let mut stuck: BTreeSet<u32> = blocked.keys().copied().collect();
    let mut free = Vec::new();
    let mut open = Vec::new();
    let mut waited_for: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (&owner, waits) in blocked {
        for wait in waits {
            let Waits::Waiting { ranks, all, .. } = wait else {
                free.push(owner);
                continue;
            };
            let stays = |rank: &&u32| stuck.contains(rank) || ended(**rank);
            let wait = UnresolvedWait {
                owner,
                staying: ranks.iter().filter(stays).count(),
                others: ranks,
                all: *all,
            };
            if wait.is_over() {
                free.push(owner);
            }
            for rank in ranks.iter().filter(|rank| stuck.contains(rank)) {
                waited_for.entry(*rank).or_default().push(open.len());
            }
            open.push(wait);
        }
    }
    while let Some(rank) = free.pop() {
        // A rank that has ended never continues, even if another thread of the rank could.
        if !stuck.remove(&rank) || ended(rank) {
            continue;
        }
        for &wait in waited_for.get(&rank).into_iter().flatten() {
            open[wait].staying -= 1;
            if open[wait].is_over() {
                free.push(open[wait].owner);
            }
        }
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

/// Returns the first cycle that a walk along `next` from one of `ranks` reaches. The walks visit each rank once.
pub fn cycle(next: &BTreeMap<u32, u32>, ranks: &[u32]) -> Option<Vec<u32>> {
    // For each visited rank: the number of the walk, and the index of the rank in this walk.
    let mut passed: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for (walk, &start) in ranks.iter().enumerate() {
        let (mut way, mut at) = (Vec::new(), start);
        loop {
            match passed.get(&at) {
                Some(&(same, first)) if same == walk => return Some(way.split_off(first)),
                Some(_) => break,
                None => {}
            }
            passed.insert(at, (walk, way.len()));
            way.push(at);
            match next.get(&at) {
                Some(&other) => at = other,
                None => break,
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(ranks: &[u32], all: bool) -> Vec<Waits> {
        vec![Waits::Waiting {
            ranks: ranks.into(),
            all,
            of: Vec::new(),
        }]
    }

    #[test]
    fn who_waits_for_one_that_goes_on_goes_on_too() {
        let ended = |rank| rank == 9;
        let mut blocked = BTreeMap::from([
            (0, waiting(&[1], true)),
            (1, waiting(&[2], true)),
            (2, vec![Waits::Ready]),
            (3, waiting(&[4, 0], true)),
            (4, waiting(&[3, 0], true)),
            (5, waiting(&[3, 9], true)),
            (6, waiting(&[3, 2], false)),
        ]);
        let (ranks, next) = stuck(&blocked, &ended).unwrap();
        assert_eq!(ranks, [3, 4, 5]);
        assert_eq!(next, BTreeMap::from([(3, 4), (4, 3), (5, 3)]));
        assert_eq!(cycle(&next, &[5]), Some(vec![3, 4]));
        // Rank 4 now has two threads. One of them that can continue is enough.
        blocked.get_mut(&4).unwrap().push(Waits::Unknown);
        assert_eq!(stuck(&blocked, &ended).unwrap().0, [5]);
    }

    #[test]
    fn long_chains_are_followed_once() {
        const LAST: u32 = 200_000;
        let mut blocked: BTreeMap<u32, Vec<Waits>> = (0..LAST)
            .map(|rank| (rank, waiting(&[rank + 1], true)))
            .collect();
        let (ranks, next) = stuck(&blocked, &|rank| rank == LAST).unwrap();
        assert_eq!(ranks.len(), LAST as usize);
        assert_eq!(cycle(&next, &ranks), None);
        blocked.insert(LAST, vec![Waits::Ready]);
        assert_eq!(stuck(&blocked, &|_| false), None);
    }
}
