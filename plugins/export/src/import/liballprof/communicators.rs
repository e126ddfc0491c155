//! Communicators of a liballprof trace.
//!
//! A line shows a communicator by its handle in the process, and by the caller's rank and the size. The calls that make communicators do
//! not show the new handle. A handle that a rank uses for the first time is therefore that of the oldest communicator which the rank has
//! made, not used yet, and in which it has this rank and size. Members follow from the colors and keys of all ranks of the parent.

use std::collections::HashMap;
use std::rc::Rc;

use nodescope_hypercall::Function;
use nodescope_hypercall::record::communicator;

use super::call::{Call, Communicator};

/// A communicator of the new trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// The id in records.
    pub(super) id: u64,
    /// World ranks of the members, in the order of their ranks.
    pub(super) members: Rc<Vec<u32>>,
}

/// What a rank did with communicators, in order.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The rank used a handle for the first time, or with another rank or size than before.
    Use(Communicator),
    /// The rank called a function that makes a communicator from the communicator of the latest use of this handle.
    Make {
        parent: Communicator,
        split: Option<(i64, i64)>,
    },
}

/// Communicators of a rank in the order of their calls, from a first reading of its file.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    steps: Vec<Step>,
    shown: HashMap<u64, Communicator>,
}

impl Recorder {
    /// Takes the next call of the rank.
    pub(super) fn call(&mut self, call: &Call) {
        let Some(shown) = call.arguments.communicator else {
            return;
        };
        if self.shown.insert(shown.handle, shown) != Some(shown) {
            self.steps.push(Step::Use(shown));
        }
        let split = match call.function {
            Some(Function::CommSplit) => Some((call.arguments.color, call.arguments.key)),
            Some(Function::CommDup | Function::CartCreate) => None,
            _ => return,
        };
        self.steps.push(Step::Make {
            parent: shown,
            split,
        });
    }
}

/// Number of a call that makes communicators: the parent's id, and the number of the call among those on the parent.
type Making = (u64, usize);

/// Color and key (none for a copy), and rank in the parent.
type Given = (Option<(i64, i64)>, u32);

/// What the ranks of a parent gave to a call that makes communicators.
#[derive(Debug, Default)]
struct Made {
    /// What each world rank that has called gave.
    by: HashMap<u32, Given>,
    /// The new communicators, once all members of the parent have called.
    new: Option<Vec<Known>>,
}

#[derive(Debug, Default)]
struct Rank {
    at: usize,
    bound: HashMap<u64, Option<Known>>,
    /// Number of calls on each parent that made communicators.
    counts: HashMap<u64, usize>,
    /// Calls whose communicator the rank has not used yet, with their numbers in `resolved.made`.
    unused: Vec<(Making, usize)>,
    resolved: Resolved,
}

/// What a rank's handles stand for.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    /// What the handle of each use stands for, in order; `None` for communicators whose members the trace does not tell.
    pub(super) uses: Vec<Option<Known>>,
    /// What each call made, in order; `None` for communicators that the rank does not use.
    pub(super) made: Vec<Option<Known>>,
}

/// Returns what the handles of each rank stand for.
pub(super) fn resolve(recorders: Vec<Recorder>) -> Vec<Resolved> {
    let world = Known {
        id: communicator::WORLD,
        members: Rc::new((0..recorders.len() as u32).collect()),
    };
    let mut made: HashMap<Making, Made> = HashMap::new();
    let mut ranks: Vec<Rank> = Vec::new();
    ranks.resize_with(recorders.len(), Rank::default);
    let mut next_id = 1 << 63 | 1;
    // A rank goes on until it uses a communicator that other ranks have not finished to make. If all wait, the trace lacks calls.
    let mut give_up = false;
    loop {
        let mut moved = false;
        for (own, (rank, recorder)) in ranks.iter_mut().zip(&recorders).enumerate() {
            while let Some(step) = recorder.steps.get(rank.at) {
                match step {
                    Step::Use(shown) => {
                        let Some(known) = rank.find(own, *shown, &world, &made, give_up) else {
                            break;
                        };
                        rank.bound.insert(shown.handle, known.clone());
                        rank.resolved.uses.push(known);
                    }
                    Step::Make { parent, split } => {
                        rank.make(own, *parent, *split, &mut made, &mut next_id);
                    }
                }
                rank.at += 1;
                moved = true;
            }
        }
        match (moved, give_up) {
            (true, _) => give_up = false,
            (false, false) => give_up = true,
            (false, true) => break,
        }
    }
    ranks.into_iter().map(|rank| rank.resolved).collect()
}

impl Rank {
    /// Returns what a handle stands for; `None` if other ranks must go on first.
    fn find(
        &mut self,
        own: usize,
        shown: Communicator,
        world: &Known,
        made: &HashMap<Making, Made>,
        give_up: bool,
    ) -> Option<Option<Known>> {
        // Until a rank has shown the world, it cannot have made another communicator of all ranks. The shown rank must not count: files that
        // are copies of one, as those of examples, all show rank 0.
        let of_all = shown.size as usize == world.members.len();
        let mut bound = self.resolved.uses.iter().flatten();
        if of_all && bound.all(|known| known.id != world.id) {
            return Some(Some(world.clone()));
        }
        if shown.size == 1 {
            return Some(Some(Known {
                id: communicator::SELF,
                members: Rc::new(vec![own as u32]),
            }));
        }
        for (at, (making, number)) in self.unused.iter().enumerate() {
            let Some(new) = made.get(making).and_then(|made| made.new.as_ref()) else {
                match give_up {
                    true => continue,
                    false => return None,
                }
            };
            let fits = new.iter().find(|known| {
                known.members.len() == shown.size as usize
                    && known.members.get(shown.rank as usize) == Some(&(own as u32))
            });
            if let Some(known) = fits {
                self.resolved.made[*number] = Some(known.clone());
                self.unused.remove(at);
                return Some(Some(known.clone()));
            }
        }
        Some(None)
    }

    fn make(
        &mut self,
        own: usize,
        shown: Communicator,
        split: Option<(i64, i64)>,
        made: &mut HashMap<Making, Made>,
        next_id: &mut u64,
    ) {
        self.resolved.made.push(None);
        let Some(Some(parent)) = self.bound.get(&shown.handle) else {
            return;
        };
        let count = self.counts.entry(parent.id).or_default();
        // Communicators of one rank have one id.
        if parent.id == communicator::SELF {
            return;
        }
        let making = (parent.id, *count);
        *count += 1;
        self.unused.push((making, self.resolved.made.len() - 1));
        let entry = made.entry(making).or_default();
        entry.by.insert(own as u32, (split, shown.rank));
        if entry.by.len() == parent.members.len() {
            entry.new = Some(groups(&entry.by, next_id));
        }
    }
}

/// Returns the communicators that a call makes on a parent, with new ids. A negative color is `MPI_UNDEFINED`.
fn groups(by: &HashMap<u32, Given>, next_id: &mut u64) -> Vec<Known> {
    let mut list: Vec<_> = by
        .iter()
        .map(|(&rank, &(split, position))| {
            let (color, key) = split.unwrap_or((0, 0));
            (color, key, position, rank)
        })
        .filter(|(color, ..)| *color >= 0)
        .collect();
    list.sort_unstable();
    let groups = list.chunk_by(|a, b| a.0 == b.0);
    let known = groups.map(|group| {
        *next_id += 1;
        Known {
            id: *next_id - 1,
            members: Rc::new(group.iter().map(|(.., rank)| *rank).collect()),
        }
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::super::call::parse;
    use super::*;

    #[test]
    fn rows_of_ranks_are_found_from_colors_and_keys() {
        // Handles are other ones on each rank. Keys reverse the order.
        let recorders = (0..4u32).map(|rank| {
            let mut recorder = Recorder::default();
            let world = 100 + rank;
            let row = 200 + rank;
            for line in [
                format!("MPI_Comm_rank:1:{world},{rank},4:9:2"),
                format!(
                    "MPI_Comm_split:1:{world},{rank},4:{}:{}:9:2",
                    rank / 2,
                    9 - rank
                ),
                format!("MPI_Comm_dup:1:{world},{rank},4:9:2"),
                format!("MPI_Barrier:1:{row},{},2:2", 1 - rank % 2),
                format!("MPI_Barrier:1:{},{rank},4:2", 300 + rank),
                format!("MPI_Barrier:1:7,{},3:2", rank % 3),
            ] {
                recorder.call(&parse(&line).unwrap());
            }
            recorder
        });
        let found = resolve(recorders.collect());
        for (rank, resolved) in found.iter().enumerate() {
            let [Some(world), Some(row), Some(copy), None] = &resolved.uses[..] else {
                panic!("{resolved:?}");
            };
            assert_eq!(world.id, communicator::WORLD);
            let expected = if rank < 2 { vec![1, 0] } else { vec![3, 2] };
            assert_eq!(*row.members, expected);
            assert_eq!(*copy.members, [0, 1, 2, 3]);
            assert_eq!(row.id, found[rank ^ 1].uses[1].as_ref().unwrap().id);
            assert_ne!(copy.id, world.id);
        }
        assert_ne!(found[0].uses[1], found[2].uses[1]);
        assert_eq!(found[0].made, found[0].uses[1..3]);
    }
}
