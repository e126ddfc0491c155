//! Classes of steps: k-means, its comparison with another clustering, and the number of classes.

use std::collections::{BTreeMap, BTreeSet};

use kodama::{Method, linkage};
use linfa::DatasetBase;
use linfa::traits::{Fit, Predict};
use linfa_clustering::{KMeans, KMeansError, KMeansInit};
use ndarray::{Array1, Array2};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use serde::Serialize;

use crate::haar::CELLS;

/// Most classes that are tried where the number is not given.
pub const MOST_CLASSES: usize = 16;
/// Share of the vectors' sum of squares that classes may leave unexplained where their number is not given.
pub const RESIDUAL: f64 = 0.05;
/// Greatest squared distance of a mixed step from the line between the means of its neighbours, as a part of the larger mean's square.
pub const MIXED: f64 = 0.1;
/// Number of other seeds for which k-means is repeated.
pub const SEEDS: u64 = 10;
/// Runs of k-means for each seed, of which the best result counts.
const RUNS: usize = 10;
/// Most iterations of a run of k-means.
const ROUNDS: u64 = 100;

/// The classes of all steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Classes {
    /// Class of each step. Classes are numbered in the order in which they first occur.
    pub of: Vec<u32>,
    /// Number of classes that k-means made. [`Vectors::join_mixed`] may leave fewer.
    clusters: usize,
    /// True if mixed steps have joined the classes of their neighbours.
    joined: bool,
    /// Choice of the number of classes.
    pub choice: ClassChoice,
}

/// Choice of the number of classes, and the stability of the classes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClassChoice {
    /// Number of classes.
    pub count: usize,
    /// True if the user gave the number of classes.
    pub given: bool,
    /// Number of steps that were the only step of a phase, held parts of both neighbouring phases, and joined one of the phases. 0 if the
    /// user gave the step.
    pub mixed: usize,
    /// Number of different vectors of the steps, which limits the number of classes.
    pub different: usize,
    /// Share of the vectors' sum of squares that 1, 2, 3, ... classes leave unexplained, as far as they were tried; empty if the user gave
    /// the number of classes.
    pub residuals: Vec<f64>,
    /// Seed of k-means.
    pub seed: u64,
    /// Number of other seeds for which k-means was repeated.
    pub seeds: u64,
    /// Mean adjusted Rand index between the classes and those of the other seeds; 1 if they are the same.
    pub stability: f64,
    /// Least adjusted Rand index between the classes and those of another seed.
    pub least_stability: f64,
    /// Adjusted Rand index between the classes and as many classes of Ward's method.
    pub ward_agreement: f64,
    /// Number of phases with Ward's classes.
    pub ward_phases: usize,
}

/// Vectors of the steps, scaled for clustering.
#[derive(Clone, Debug)]
pub struct Vectors {
    /// A row for each step, divided by the greatest component of all steps. This scaling changes no comparison.
    rows: Array2<f64>,
    /// Number of different rows.
    different: usize,
    /// Sum of squares of all rows.
    squares: f64,
}

impl Vectors {
    /// Returns the scaled vectors of all steps.
    pub fn new(vectors: &[[f64; CELLS]]) -> Vectors {
        let all = vectors.iter().flatten();
        let greatest = all.fold(0.0f64, |greatest, value| greatest.max(value.abs()));
        let scale = if greatest > 0.0 { greatest } else { 1.0 };
        let rows = Array2::from_shape_fn((vectors.len(), CELLS), |(row, column)| {
            vectors[row][column] / scale
        });
        let different: BTreeSet<Vec<u64>> = (rows.rows().into_iter())
            // Adding 0.0 makes the two signs of zero equal.
            .map(|row| row.iter().map(|value| (value + 0.0).to_bits()).collect())
            .collect();
        Vectors {
            different: different.len(),
            squares: rows.iter().map(|value| value * value).sum(),
            rows,
        }
    }

    /// Returns the number of steps.
    pub fn len(&self) -> usize {
        self.rows.nrows()
    }

    /// Returns whether there is no step.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Clusters the steps into `count` classes (or as many as there are different vectors, if these are fewer). Without `count`, takes the
    /// fewest classes that leave at most [`RESIDUAL`] unexplained, up to [`MOST_CLASSES`].
    ///
    /// # Errors
    ///
    /// Where the library fails.
    pub fn classify(&self, count: Option<usize>, seed: u64) -> Result<Classes, KMeansError> {
        let mut residuals = Vec::new();
        let of = match count {
            Some(count) => self.k_means(count.clamp(1, self.different.max(1)), seed)?,
            None => {
                let most = self.different.clamp(1, MOST_CLASSES);
                let mut of = Vec::new();
                for count in 1..=most {
                    of = self.k_means(count, seed)?;
                    let residual = self.residual(&of);
                    residuals.push(residual);
                    if residual <= RESIDUAL {
                        break;
                    }
                }
                of
            }
        };
        let found = distinct(&of);
        let choice = ClassChoice {
            count: found,
            given: count.is_some(),
            different: self.different,
            residuals,
            seed,
            ..ClassChoice::default()
        };
        Ok(Classes {
            of,
            clusters: found,
            joined: false,
            choice,
        })
    }

    /// Joins mixed steps with their neighbours. A mixed step is a phase of one step whose vector lies near the line between the means of
    /// the classes before and after it: the step holds the end of one phase and the beginning of the next. The step joins the class whose
    /// mean is nearer, but not a silent one.
    pub fn join_mixed(&self, classes: &mut Classes) {
        classes.choice.mixed = self.join(&mut classes.of);
        classes.of = in_order(classes.of.iter().copied());
        classes.choice.count = distinct(&classes.of);
        classes.joined = true;
    }

    /// Joins mixed steps, and returns their number.
    fn join(&self, of: &mut [u32]) -> usize {
        let means = self.means(of);
        let mut joined = 0;
        // A step that joins makes a neighbouring phase longer, and no other phase shorter, so that one pass suffices.
        let mut at = 1;
        while at + 1 < of.len() {
            let (before, own, after) = (of[at - 1], of[at], of[at + 1]);
            if own != before
                && own != after
                && let Some(class) =
                    self.mixed(at, (before, &means[&before]), (after, &means[&after]))
            {
                of[at] = class;
                joined += 1;
            }
            at += 1;
        }
        joined
    }

    /// Returns the class of the nearer neighbour if a step is a mixture of the means of two classes; `None` for other steps.
    fn mixed(
        &self,
        step: usize,
        (before, first): (u32, &Array1<f64>),
        (after, second): (u32, &Array1<f64>),
    ) -> Option<u32> {
        let row = self.rows.row(step);
        let way = second - first;
        let length = way.dot(&way);
        let part = match length > 0.0 {
            true => ((&row - first).dot(&way) / length).clamp(0.0, 1.0),
            false => 0.0,
        };
        let off = &row - first - &(part * &way);
        let squares = [first.dot(first), second.dot(second)];
        let largest = squares[0].max(squares[1]);
        let class = match squares {
            // A silent phase stays without messages.
            [first, _] if first <= 0.0 => after,
            [_, second] if second <= 0.0 => before,
            _ if part < 0.5 => before,
            _ => after,
        };
        (off.dot(&off) <= MIXED * largest).then_some(class)
    }

    /// Returns the mean of each class.
    fn means(&self, of: &[u32]) -> BTreeMap<u32, Array1<f64>> {
        let mut means: BTreeMap<u32, (f64, Array1<f64>)> = BTreeMap::new();
        for (row, &class) in self.rows.rows().into_iter().zip(of) {
            let (count, sum) = (means.entry(class)).or_insert_with(|| (0.0, Array1::zeros(CELLS)));
            *count += 1.0;
            *sum += &row;
        }
        (means.into_iter())
            .map(|(class, (count, sum))| (class, sum / count))
            .collect()
    }

    /// Compares classes with those of other seeds and of Ward's method.
    ///
    /// # Errors
    ///
    /// Where the library fails.
    pub fn compare(&self, classes: &mut Classes) -> Result<(), KMeansError> {
        let choice = &mut classes.choice;
        let mut indices = Vec::new();
        for other in 1..=SEEDS {
            let mut again = self.k_means(classes.clusters, choice.seed.wrapping_add(other))?;
            if classes.joined {
                self.join(&mut again);
            }
            indices.push(rand_index(&classes.of, &again));
        }
        choice.seeds = SEEDS;
        choice.stability = indices.iter().sum::<f64>() / indices.len() as f64;
        choice.least_stability = indices.iter().copied().fold(1.0, f64::min);
        let mut ward = self.ward(classes.clusters);
        if classes.joined {
            self.join(&mut ward);
        }
        choice.ward_agreement = rand_index(&classes.of, &ward);
        choice.ward_phases = runs(&ward).len();
        Ok(())
    }

    /// Clusters by k-means with Euclidean distances.
    fn k_means(&self, count: usize, seed: u64) -> Result<Vec<u32>, KMeansError> {
        if count <= 1 {
            return Ok(vec![0; self.len()]);
        }
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let data = DatasetBase::from(self.rows.clone());
        let model = KMeans::params_with_rng(count, random)
            .init_method(KMeansInit::KMeansPlusPlus)
            .n_runs(RUNS)
            .max_n_iterations(ROUNDS)
            .tolerance(1e-9)
            .fit(&data)?;
        let labels = model.predict(&self.rows);
        Ok(in_order(labels.iter().map(|&label| label as u32)))
    }

    /// Clusters by Ward's method: the two classes whose union adds least to the sum of squares are joined, until `count` are left.
    fn ward(&self, count: usize) -> Vec<u32> {
        let steps = self.len();
        let mut distances = Vec::with_capacity(steps * steps.saturating_sub(1) / 2);
        for one in 0..steps {
            for other in one + 1..steps {
                let difference = &self.rows.row(one) - &self.rows.row(other);
                distances.push(difference.dot(&difference).sqrt());
            }
        }
        if steps < 2 {
            return vec![0; steps];
        }
        let dendrogram = linkage(&mut distances, steps, Method::Ward);
        // A union has the number after those of the steps and of the unions before it.
        let mut joined: Vec<usize> = (0..2 * steps).collect();
        let unions = steps.saturating_sub(count.max(1));
        for (number, union) in dendrogram.steps().iter().take(unions).enumerate() {
            joined[union.cluster1] = steps + number;
            joined[union.cluster2] = steps + number;
        }
        let root = |mut at: usize| {
            while joined[at] != at {
                at = joined[at];
            }
            at as u32
        };
        in_order((0..steps).map(root))
    }

    /// Returns the share of the vectors' sum of squares that the means of the classes leave unexplained.
    fn residual(&self, of: &[u32]) -> f64 {
        if self.squares <= 0.0 {
            return 0.0;
        }
        let mut sums: BTreeMap<u32, (f64, Vec<f64>)> = BTreeMap::new();
        for (row, &class) in self.rows.rows().into_iter().zip(of) {
            let (count, sum) = sums.entry(class).or_insert((0.0, vec![0.0; CELLS]));
            *count += 1.0;
            sum.iter_mut()
                .zip(row)
                .for_each(|(sum, value)| *sum += value);
        }
        // The squares around a mean are all squares less those of the mean.
        let explained: f64 = (sums.values())
            .map(|(count, sum)| sum.iter().map(|value| value * value).sum::<f64>() / count)
            .sum();
        ((self.squares - explained) / self.squares).max(0.0)
    }
}

/// Numbers classes in the order in which they first occur.
fn in_order(labels: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut numbers = BTreeMap::new();
    labels
        .map(|label| {
            let next = numbers.len() as u32;
            *numbers.entry(label).or_insert(next)
        })
        .collect()
}

fn distinct(of: &[u32]) -> usize {
    of.iter().collect::<BTreeSet<_>>().len().max(1)
}

/// Returns the class and the steps of each run of one class, as long as possible.
pub fn runs(of: &[u32]) -> Vec<(u32, std::ops::Range<usize>)> {
    let mut runs: Vec<(u32, std::ops::Range<usize>)> = Vec::new();
    for (step, &class) in of.iter().enumerate() {
        match runs.last_mut() {
            Some((last, range)) if *last == class => range.end = step + 1,
            _ => runs.push((class, step..step + 1)),
        }
    }
    runs
}

/// Returns the adjusted Rand index of two clusterings of the same elements (Hubert and Arabie, "Comparing Partitions", 1985): 1 if they
/// are the same, about 0 if they agree as much as by chance.
pub fn rand_index(one: &[u32], other: &[u32]) -> f64 {
    let mut both: BTreeMap<(u32, u32), f64> = BTreeMap::new();
    let (mut rows, mut columns): (BTreeMap<u32, f64>, BTreeMap<u32, f64>) = Default::default();
    for (&a, &b) in one.iter().zip(other) {
        *both.entry((a, b)).or_default() += 1.0;
        *rows.entry(a).or_default() += 1.0;
        *columns.entry(b).or_default() += 1.0;
    }
    let pairs = |count: f64| count * (count - 1.0) / 2.0;
    let sum = |counts: &BTreeMap<u32, f64>| counts.values().copied().map(pairs).sum::<f64>();
    let together: f64 = both.values().copied().map(pairs).sum();
    let (rows, columns, all) = (sum(&rows), sum(&columns), pairs(one.len() as f64));
    let by_chance = if all > 0.0 { rows * columns / all } else { 0.0 };
    let most = (rows + columns) / 2.0;
    // Where both have one class, or each step has its own, nothing can differ.
    if (most - by_chance).abs() < f64::EPSILON {
        return 1.0;
    }
    (together - by_chance) / (most - by_chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_row_has_six_phases() {
        let of = [1, 1, 0, 3, 4, 4, 4, 4, 4, 0, 1];
        let found = runs(&of);
        assert_eq!(found.len(), 6);
        let expected = [
            (1, 0..2),
            (0, 2..3),
            (3, 3..4),
            (4, 4..9),
            (0, 9..10),
            (1, 10..11),
        ];
        assert_eq!(found, expected);
        assert_eq!(runs(&[]), []);
    }

    #[test]
    fn rand_indices_are_as_published() {
        assert_eq!(rand_index(&[0, 0, 1, 1], &[5, 5, 2, 2]), 1.0);
        // By hand: 1 pair is together in both, 3 and 2 of 10 pairs in each, so that (1 - 0.6) / (2.5 - 0.6).
        let index = rand_index(&[0, 0, 0, 1, 2], &[0, 0, 1, 1, 2]);
        assert!((index - (1.0 - 0.6) / (2.5 - 0.6)).abs() < 1e-12, "{index}");
        assert_eq!(rand_index(&[0, 0, 0], &[0, 0, 0]), 1.0);
        assert_eq!(rand_index(&[], &[]), 1.0);
        assert!(rand_index(&[0, 0, 1, 1], &[0, 1, 0, 1]) < 0.0);
    }

    fn vector(kind: usize, size: f64) -> [f64; CELLS] {
        let mut vector = [0.0; CELLS];
        vector[kind] = size;
        vector
    }

    #[test]
    fn as_many_classes_are_found_as_there_are_kinds() {
        let kinds = [1, 2, 1, 1, 3, 3, 2];
        let vectors: Vec<_> = kinds.map(|kind| vector(kind, 1e9)).to_vec();
        let vectors = Vectors::new(&vectors);
        let mut classes = vectors.classify(None, 1).unwrap();
        vectors.compare(&mut classes).unwrap();
        assert_eq!(classes.of, [0, 1, 0, 0, 2, 2, 1]);
        let choice = classes.choice;
        assert_eq!(
            (choice.count, choice.different, choice.given),
            (3, 3, false)
        );
        assert_eq!(choice.residuals.len(), 3);
        assert!(choice.residuals[1] > RESIDUAL && choice.residuals[2] < 1e-12);
        assert_eq!((choice.stability, choice.least_stability), (1.0, 1.0));
        assert_eq!((choice.ward_agreement, choice.ward_phases), (1.0, 5));
    }

    #[test]
    fn one_class_is_possible() {
        let steady: Vec<_> = [1.0, 1.1, 0.9, 1.05].map(|size| vector(7, size)).to_vec();
        let silent = vec![[0.0; CELLS]; 9];
        for vectors in [steady, silent, vec![vector(1, 1.0)]] {
            let vectors = Vectors::new(&vectors);
            let mut classes = vectors.classify(None, 1).unwrap();
            vectors.compare(&mut classes).unwrap();
            assert_eq!(classes.choice.count, 1);
            assert_eq!(classes.choice.stability, 1.0);
        }
    }

    #[test]
    fn more_classes_than_kinds_are_not_made() {
        let vectors = Vectors::new(&[vector(1, 1.0), vector(2, 1.0), vector(1, 1.0)]);
        let classes = vectors.classify(Some(9), 3).unwrap();
        assert_eq!(classes.of, [0, 1, 0]);
        assert!(classes.choice.given);
    }
}
