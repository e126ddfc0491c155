//! Groups of a trace, their clusters and representatives.

use nodescope_loop_tree::Sequences;
use serde::Serialize;

use crate::cluster::{Cluster, Clustering, Merge};
use crate::group::{Group, groups, vector};
use crate::{RepresentError, ranks_text};

/// Thresholds for which the number of representatives is reported.
const THRESHOLDS: [f64; 12] = [
    0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0,
];

/// A cluster of ranks, one of which represents all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Representation {
    /// World ranks of the cluster, ascending.
    pub ranks: Vec<u32>,
    /// The rank nearest to the centroid.
    pub representative: u32,
    /// The greatest distance of a rank's computation vector to the representative's, as a fraction of the group's root mean square
    /// length.
    pub spread: f64,
    /// The greatest difference of a rank's total computation to the representative's, as a fraction of the representative's.
    pub computation_difference: f64,
    /// Distances to the centroid, parallel to `ranks`, in the unit of `spread`.
    pub to_centroid: Vec<f64>,
}

/// A group of ranks with its tree of merges.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupAnalysis {
    /// World ranks of the group, ascending.
    pub ranks: Vec<u32>,
    /// Number of MPI calls of each rank behind `MPI_Init`, without polls that found nothing.
    pub calls: usize,
    /// Merges in the order in which they happen. In them, numbers below the number of ranks are indices into `ranks`.
    pub merges: Vec<Merge>,
    /// The ranks in the order of the tree's leaves, left to right.
    pub order: Vec<u32>,
    /// Clusters into which the threshold cuts the group.
    pub clusters: Vec<Representation>,
}

/// Number of representatives at a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sensitivity {
    /// The threshold, in the unit of [`Analysis::threshold`].
    pub threshold: f64,
    /// Number of representatives at the threshold.
    pub representatives: usize,
}

/// Computation where the program was traced: what replays of all ranks, and of the representatives alone, have to repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Computation {
    /// Computation of all ranks, picoseconds.
    pub ranks: u64,
    /// Computation of the representatives, picoseconds.
    pub representatives: u64,
}

impl Computation {
    /// Returns the part of all ranks' computation that no representative repeats, from 0 to 1.
    pub fn saved(&self) -> f64 {
        match self.ranks {
            0 => 0.0,
            all => all.saturating_sub(self.representatives) as f64 / all as f64,
        }
    }
}

/// The representatives of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// Version of this format.
    pub format: u32,
    /// Number of ranks.
    pub ranks: usize,
    /// Threshold at which trees are cut, as a fraction of the root mean square length of a group's computation vectors.
    pub threshold: f64,
    /// Analyses of the groups, in the order of their first ranks.
    pub groups: Vec<GroupAnalysis>,
    /// World ranks of the representatives, ascending.
    pub representatives: Vec<u32>,
    /// Computation that replays repeat.
    pub computation: Computation,
    /// Numbers of representatives for several thresholds, [`Analysis::threshold`] among them, in ascending order of thresholds.
    pub sensitivity: Vec<Sensitivity>,
    /// Least threshold with these representatives.
    pub same_from: f64,
    /// Threshold below which the representatives are the same, and at which their number changes; `None` if no higher merge is cut.
    pub same_below: Option<f64>,
    /// Notes on limits of the trace and of the groups.
    pub notes: Vec<String>,
}

impl Analysis {
    /// Finds the representatives of a trace's ranks.
    ///
    /// # Errors
    ///
    /// Fails if a group has too many ranks.
    pub fn new(sequences: &Sequences, threshold: f64) -> Result<Analysis, RepresentError> {
        let mut found: Vec<(Group, Clustering)> = Vec::new();
        for group in groups(sequences) {
            let vectors: Vec<_> = (group.ranks.iter())
                .map(|&rank| vector(sequences, rank))
                .collect();
            found.push((group, Clustering::new(&vectors)?));
        }
        let total = |rank: u32| {
            let times = vector(sequences, rank).into_iter();
            times.fold(0, u64::saturating_add)
        };
        let groups: Vec<GroupAnalysis> = (found.iter())
            .map(|(group, clustering)| {
                let rank = |&at: &usize| group.ranks[at];
                let represent = |cluster: Cluster| {
                    let ranks: Vec<u32> = cluster.members.iter().map(rank).collect();
                    let representative = rank(&cluster.representative);
                    let own = total(representative);
                    let differences = ranks.iter().map(|&rank| total(rank).abs_diff(own));
                    let greatest = differences.max().unwrap_or(0);
                    Representation {
                        representative,
                        spread: cluster.spread,
                        computation_difference: greatest as f64 / own.max(1) as f64,
                        to_centroid: cluster.to_centroid,
                        ranks,
                    }
                };
                GroupAnalysis {
                    ranks: group.ranks.clone(),
                    calls: group.calls,
                    merges: clustering.merges.clone(),
                    order: clustering.order().iter().map(rank).collect(),
                    clusters: clustering
                        .cut(threshold)
                        .into_iter()
                        .map(represent)
                        .collect(),
                }
            })
            .collect();
        let count = |threshold: f64| -> usize {
            let counts = found
                .iter()
                .map(|(_, clustering)| clustering.count(threshold));
            counts.sum()
        };
        let mut thresholds = THRESHOLDS.to_vec();
        thresholds.push(threshold);
        thresholds.sort_by(f64::total_cmp);
        thresholds.dedup();
        let heights = || {
            let merges = found.iter().flat_map(|(_, clustering)| &clustering.merges);
            merges.map(|merge| merge.height)
        };
        let mut representatives: Vec<u32> = (groups.iter())
            .flat_map(|group| group.clusters.iter().map(|cluster| cluster.representative))
            .collect();
        representatives.sort_unstable();
        let mut notes = sequences.notes.clone();
        notes.extend(saving_note(
            &groups,
            sequences.ranks.len(),
            representatives.len(),
        ));
        Ok(Analysis {
            format: 1,
            ranks: sequences.ranks.len(),
            threshold,
            groups,
            computation: Computation {
                ranks: (0..sequences.ranks.len() as u32)
                    .map(total)
                    .fold(0, u64::saturating_add),
                representatives: (representatives.iter().copied())
                    .map(total)
                    .fold(0, u64::saturating_add),
            },
            representatives,
            sensitivity: (thresholds.into_iter())
                .map(|threshold| Sensitivity {
                    threshold,
                    representatives: count(threshold),
                })
                .collect(),
            same_from: heights().filter(|&h| h <= threshold).fold(0.0, f64::max),
            same_below: heights().filter(|&h| h > threshold).reduce(f64::min),
            notes,
        })
    }

    /// Returns the cluster of a world rank; `None` if the trace lacks the rank.
    pub fn cluster_of(&self, rank: u32) -> Option<&Representation> {
        let mut clusters = self.groups.iter().flat_map(|group| &group.clusters);
        clusters.find(|cluster| cluster.ranks.binary_search(&rank).is_ok())
    }

    /// Returns the analysis as JSON; `SCHEMA.md` describes it.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// Returns the reason for which every rank represents itself; `None` if some rank represents another.
fn saving_note(groups: &[GroupAnalysis], ranks: usize, representatives: usize) -> Option<String> {
    // Without representatives the method still needs one node of the target alone.
    let left = "each needs a replay of its own, still on one node of the target alone";
    if ranks == 1 {
        return Some("the program has one rank, which represents itself".into());
    }
    if representatives < ranks {
        return None;
    }
    if groups.len() == ranks {
        return Some(format!(
            "no two ranks make the same calls in the same order: every rank represents itself, and {left}"
        ));
    }
    let together: Vec<String> = (groups.iter())
        .filter(|group| group.ranks.len() > 1)
        .map(|group| ranks_text(&group.ranks))
        .collect();
    Some(format!(
        "the ranks that make the same calls ({}) compute for times that differ by more than the threshold: every rank represents itself, and {left}; a higher --threshold saves replays",
        together.join("; ")
    ))
}
