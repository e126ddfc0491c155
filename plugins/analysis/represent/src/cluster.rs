//! Agglomerative clustering of computation vectors: the two nearest clusters are merged until one remains, and the tree of merges is cut
//! at a threshold.
//!
//! The distance of two clusters is the Euclidean distance of their centroids (centroid linkage; Müllner, "Modern hierarchical,
//! agglomerative clustering algorithms", 2011, whose generic algorithm the crate kodama has). Distances are relative to the root mean
//! square of the vectors' lengths, so that a threshold means the same for short and long programs.

use kodama::{Method, linkage};
use serde::Serialize;

use crate::RepresentError;

/// Largest number of vectors to cluster; their pairwise distances take 1.6 GB.
pub const MOST_VECTORS: usize = 20_000;

/// Two clusters that become one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Merge {
    /// The two clusters. A number below the number of vectors is that vector. Any other, less the number of vectors, is the index of
    /// an earlier merge.
    pub parts: [usize; 2],
    /// Distance of the two centroids, relative to the root mean square length of the vectors.
    pub distance: f64,
    /// The greatest distance of this merge and of all merges inside it, at which the tree is cut. With centroid linkage, the distance of
    /// a merge may be less than that of an earlier one.
    pub height: f64,
    /// Number of vectors in the merged cluster.
    pub size: usize,
}

/// Merges of a group's vectors, from single vectors to one cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Clustering {
    vectors: Vec<Vec<f64>>,
    scale: f64,
    /// Merges in the order in which they happen.
    pub merges: Vec<Merge>,
}

/// Vectors that form one cluster at a threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Numbers of the vectors, ascending.
    pub members: Vec<usize>,
    /// Number of the vector nearest to the centroid; the first of equally near ones.
    pub representative: usize,
    /// The greatest distance of a member to the representative, relative to the root mean square length of all vectors.
    pub spread: f64,
    /// Distances to the centroid, parallel to `members`, in the unit of `spread`.
    pub to_centroid: Vec<f64>,
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    let squares = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b));
    squares.sum::<f64>().sqrt()
}

impl Clustering {
    /// Clusters vectors of equal lengths.
    ///
    /// # Errors
    ///
    /// Fails for more than [`MOST_VECTORS`] vectors.
    pub fn new(vectors: &[Vec<u64>]) -> Result<Clustering, RepresentError> {
        let count = vectors.len();
        if count > MOST_VECTORS {
            return Err(RepresentError::TooManyRanks {
                ranks: count,
                most: MOST_VECTORS,
            });
        }
        let vectors: Vec<Vec<f64>> = (vectors.iter())
            .map(|vector| vector.iter().map(|&time| time as f64).collect())
            .collect();
        let squares: f64 = vectors.iter().flatten().map(|time| time * time).sum();
        let length = (squares / count.max(1) as f64).sqrt();
        let scale = if length > 0.0 { length } else { 1.0 };
        let mut distances = Vec::with_capacity(count * count.saturating_sub(1) / 2);
        for (number, a) in vectors.iter().enumerate() {
            distances.extend(vectors[number + 1..].iter().map(|b| distance(a, b) / scale));
        }
        let mut merges: Vec<Merge> = Vec::with_capacity(count.saturating_sub(1));
        if count > 1 {
            for step in linkage(&mut distances, count, Method::Centroid).steps() {
                // Rounding can make the square of a distance near 0 negative, and the distance NaN.
                let distance = if step.dissimilarity > 0.0 {
                    step.dissimilarity
                } else {
                    0.0
                };
                let parts = [step.cluster1, step.cluster2];
                let below = parts.iter().filter_map(|part| part.checked_sub(count));
                let height = below
                    .map(|merge| merges[merge].height)
                    .fold(distance, f64::max);
                merges.push(Merge {
                    parts,
                    distance,
                    height,
                    size: step.size,
                });
            }
        }
        Ok(Clustering {
            vectors,
            scale,
            merges,
        })
    }

    /// Cuts the tree: merges up to and including the threshold remain. Clusters are in the order of their first members.
    pub fn cut(&self, threshold: f64) -> Vec<Cluster> {
        let count = self.vectors.len();
        let mut members: Vec<Vec<usize>> = (0..count).map(|vector| vec![vector]).collect();
        for merge in &self.merges {
            let mut joined = Vec::new();
            if merge.height <= threshold {
                for part in merge.parts {
                    joined.append(&mut members[part]);
                }
            }
            members.push(joined);
        }
        let mut clusters: Vec<Cluster> = (members.into_iter())
            .filter(|members| !members.is_empty())
            .map(|members| self.cluster(members))
            .collect();
        clusters.sort_by_key(|cluster| cluster.members.first().copied());
        clusters
    }

    fn cluster(&self, mut members: Vec<usize>) -> Cluster {
        members.sort_unstable();
        let mut centroid = vec![0.0; self.vectors[members[0]].len()];
        for &member in &members {
            for (sum, time) in centroid.iter_mut().zip(&self.vectors[member]) {
                *sum += time / members.len() as f64;
            }
        }
        let to = |from: &[f64]| -> Vec<f64> {
            let distances = members
                .iter()
                .map(|&member| distance(from, &self.vectors[member]));
            distances.map(|distance| distance / self.scale).collect()
        };
        let to_centroid = to(&centroid);
        let nearest = (0..members.len())
            .min_by(|&a, &b| to_centroid[a].total_cmp(&to_centroid[b]))
            .unwrap_or(0);
        let representative = members[nearest];
        let spread = to(&self.vectors[representative])
            .into_iter()
            .fold(0.0, f64::max);
        Cluster {
            members,
            representative,
            spread,
            to_centroid,
        }
    }

    /// Returns the number of clusters at a threshold.
    pub fn count(&self, threshold: f64) -> usize {
        let kept = self.merges.iter().filter(|merge| merge.height <= threshold);
        self.vectors.len() - kept.count()
    }

    /// Returns the numbers of the vectors in the order of the tree's leaves, left to right.
    pub fn order(&self) -> Vec<usize> {
        let count = self.vectors.len();
        let mut open = vec![(count + self.merges.len()).saturating_sub(1)];
        let mut order = Vec::with_capacity(count);
        while let Some(node) = open.pop() {
            match node
                .checked_sub(count)
                .and_then(|merge| self.merges.get(merge))
            {
                Some(merge) => open.extend(merge.parts.iter().rev()),
                None if node < count => order.push(node),
                None => {}
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the distances of merges by the definition: in each step, the two clusters with the nearest centroids merge.
    fn by_definition(vectors: &[Vec<u64>]) -> Vec<f64> {
        let squares: f64 = (vectors.iter().flatten()).map(|&t| (t * t) as f64).sum();
        let scale = (squares / vectors.len() as f64).sqrt();
        let mut clusters: Vec<Vec<usize>> = (0..vectors.len()).map(|v| vec![v]).collect();
        let centroid = |members: &[usize]| -> Vec<f64> {
            (0..vectors[0].len())
                .map(|at| {
                    let sum: f64 = members.iter().map(|&m| vectors[m][at] as f64).sum();
                    sum / members.len() as f64
                })
                .collect()
        };
        let mut distances = Vec::new();
        while clusters.len() > 1 {
            let mut best = (f64::MAX, 0, 0);
            for a in 0..clusters.len() {
                for b in a + 1..clusters.len() {
                    let between = distance(&centroid(&clusters[a]), &centroid(&clusters[b]));
                    if between < best.0 {
                        best = (between, a, b);
                    }
                }
            }
            let (between, a, b) = best;
            distances.push(between / scale);
            let other = clusters.remove(b);
            clusters[a].extend(other);
        }
        distances
    }

    proptest! {
        #[test]
        fn merges_are_those_of_the_definition(
            vectors in prop::collection::vec(prop::collection::vec(1u64..1_000_000, 3), 2..12)
        ) {
            let clustering = Clustering::new(&vectors).unwrap();
            let expected = by_definition(&vectors);
            for (merge, expected) in clustering.merges.iter().zip(&expected) {
                prop_assert!((merge.distance - expected).abs() < 1e-9, "{clustering:?} {expected:?}");
            }
            let mut order = clustering.order();
            order.sort_unstable();
            prop_assert_eq!(order, (0..vectors.len()).collect::<Vec<_>>());
            for merge in &clustering.merges {
                prop_assert_eq!(clustering.cut(merge.height).len(), clustering.count(merge.height));
            }
            prop_assert_eq!(clustering.cut(f64::MAX).len(), 1);
        }
    }

    #[test]
    fn two_kinds_of_ranks_have_two_representatives() {
        let vectors = [
            vec![100, 10],
            vec![200, 10],
            vec![101, 10],
            vec![102, 10],
            vec![204, 10],
        ];
        let clustering = Clustering::new(&vectors.map(|v| v.to_vec())).unwrap();
        let clusters = clustering.cut(0.05);
        let members: Vec<_> = clusters.iter().map(|c| c.members.clone()).collect();
        assert_eq!(members, [vec![0, 2, 3], vec![1, 4]]);
        // The vector in the middle represents its cluster; of two equally near ones, the first.
        assert_eq!(clusters[0].representative, 2);
        assert_eq!(clusters[1].representative, 1);
        assert_eq!(clustering.cut(0.0).len(), 5);
        assert_eq!(clustering.cut(1.0).len(), 1);
    }

    #[test]
    fn equal_vectors_are_one_cluster_at_any_threshold() {
        for vector in [vec![0, 0], vec![7, 3], vec![]] {
            let clustering = Clustering::new(&vec![vector; 4]).unwrap();
            assert_eq!(clustering.cut(0.0).len(), 1, "{clustering:?}");
        }
        assert_eq!(Clustering::new(&[vec![5]]).unwrap().cut(0.0).len(), 1);
    }
}
