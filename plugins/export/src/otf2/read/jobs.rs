//! The MPI jobs of an archive.
//!
//! An archive lists all processes that use MPI in one group, and a tool may have merged the archives of several jobs. Processes are of one
//! job if a communicator has both. Intercommunicators do not count: they may be between jobs.

use std::collections::BTreeMap;

/// Job and rank in the job of each process, by the process's number in the archive.
#[derive(Debug)]
pub(super) struct Jobs {
    places: Vec<(u32, u32)>,
    /// Processes of each job, in the order of their ranks.
    members: Vec<Vec<u32>>,
}

impl Jobs {
    /// Returns the jobs of `processes` processes with these communicators, each with its members. An archive without communicators of
    /// several processes has one job.
    pub(super) fn of(processes: usize, communicators: &[&[u32]]) -> Jobs {
        let mut parents: Vec<u32> = (0..processes as u32).collect();
        fn root(parents: &mut [u32], mut at: u32) -> u32 {
            while parents[at as usize] != at {
                // Paths are halved on the way.
                parents[at as usize] = parents[parents[at as usize] as usize];
                at = parents[at as usize];
            }
            at
        }
        let mut several = false;
        for members in communicators {
            for pair in members.windows(2) {
                several = true;
                let (one, other) = (root(&mut parents, pair[0]), root(&mut parents, pair[1]));
                let (low, high) = (one.min(other), one.max(other));
                parents[high as usize] = low;
            }
        }
        let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for process in 0..processes as u32 {
            let job = if several {
                root(&mut parents, process)
            } else {
                0
            };
            groups.entry(job).or_default().push(process);
        }
        let mut jobs = Jobs {
            places: vec![(0, 0); processes],
            members: groups.into_values().collect(),
        };
        for (members, job) in jobs.members.iter_mut().zip(0..) {
            // The first communicator of all processes is the world, unless one has them in the archive's order.
            let all = |list: &&&[u32]| {
                list.len() == members.len() && members.first().is_some_and(|one| list.contains(one))
            };
            let mut worlds = communicators.iter().filter(all);
            let first = worlds.clone().next();
            if let Some(first) = first
                && !worlds.any(|list| *list == &members[..])
            {
                members.clone_from(&first.to_vec());
            }
            for (&process, rank) in members.iter().zip(0..) {
                jobs.places[process as usize] = (job, rank);
            }
        }
        jobs
    }

    /// Returns the number of jobs.
    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    /// Returns the job of a process, and its rank in the job.
    pub(super) fn place(&self, process: u32) -> (u32, u32) {
        self.places[process as usize]
    }

    /// Returns the job whose processes, in the order of their ranks, are these; `None` if there is none.
    pub(super) fn of_world(&self, members: &[u32]) -> Option<u32> {
        let (job, _) = *self.places.get(*members.first()? as usize)?;
        (self.members[job as usize] == members).then_some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_a_common_communicator_are_of_one_job() {
        let jobs = Jobs::of(6, &[&[0, 1], &[2, 3, 4], &[4, 2], &[5]]);
        assert_eq!(jobs.count(), 3);
        let places: Vec<_> = (0..6).map(|process| jobs.place(process)).collect();
        assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)]);
        assert_eq!(jobs.of_world(&[2, 3, 4]), Some(1));
        assert_eq!(jobs.of_world(&[4, 2]), None);
    }

    #[test]
    fn the_world_decides_the_order_of_ranks() {
        let jobs = Jobs::of(3, &[&[2, 0, 1], &[0, 1]]);
        assert_eq!(jobs.of_world(&[2, 0, 1]), Some(0));
        assert_eq!(jobs.place(2), (0, 0));
        let jobs = Jobs::of(3, &[&[2, 0, 1], &[0, 1, 2]]);
        assert_eq!(jobs.of_world(&[0, 1, 2]), Some(0));
    }

    #[test]
    fn without_communicators_there_is_one_job() {
        let jobs = Jobs::of(3, &[&[0]]);
        assert_eq!((jobs.count(), jobs.place(2)), (1, (0, 2)));
    }
}
