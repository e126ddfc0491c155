//! Which functions the computations of ranks run, from samples of their code.

use std::collections::BTreeMap;

use nodescope_loop_tree::Sequences;

use crate::edit::{MILLION, Parts, Stretch, stretches};

/// A moment at which a thread of a rank ran code outside of MPI calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The rank.
    pub rank: usize,
    /// Virtual time, picoseconds.
    pub time: u64,
    /// Number of the function.
    pub function: u32,
    /// True if the thread only waited for other threads.
    pub waits: bool,
}

/// Samples of a rank's threads that lie closer together than this, in picoseconds, count as one moment. The threads of a rank are sampled
/// at the same readings of their clocks, 25 us or more apart.
const MOMENT: u64 = 10_000_000;
/// Fewest moments of a computation on a rank that tell what it runs; with fewer, those of all ranks do, or else those of the whole run.
const FEWEST: f64 = 8.0;

/// Moments by function. Threads that work at the same moment share it.
type Weights = BTreeMap<u32, f64>;

/// What the computations of ranks run.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    of_rank: BTreeMap<(Stretch, usize), Weights>,
    of_all: BTreeMap<Stretch, Weights>,
    whole: Weights,
}

impl Shares {
    pub(crate) fn new(sequences: &Sequences, mut samples: Vec<Sample>) -> Shares {
        let mut shares = Shares::default();
        for moment in moments(&mut samples) {
            let Some(stretch) = stretch_at(sequences, &moment[0]) else {
                continue;
            };
            let works = moment.iter().filter(|sample| !sample.waits).count();
            let weight = 1.0 / works.max(1) as f64;
            // A moment at which all threads wait is one of what they wait in.
            let counted = moment.iter().filter(|sample| !sample.waits || works == 0);
            for sample in counted.take(works.max(1)) {
                let sums = [
                    shares.of_rank.entry((stretch, sample.rank)).or_default(),
                    shares.of_all.entry(stretch).or_default(),
                    &mut shares.whole,
                ];
                for sum in sums {
                    *sum.entry(sample.function).or_default() += weight;
                }
            }
        }
        shares
    }

    /// Returns the functions with their shares of all computation, largest first.
    pub(crate) fn functions(&self) -> Vec<(u32, f64)> {
        let all: f64 = self.whole.values().sum();
        let mut functions: Vec<(u32, f64)> = (self.whole.iter())
            .map(|(function, weight)| (*function, weight / all))
            .collect();
        functions.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        functions
    }

    /// Returns the change of all computations if functions keep parts of their costs. `kept` gives the part by rank and function.
    pub(crate) fn scaled(&self, sequences: &Sequences, kept: &dyn Fn(usize, u32) -> f64) -> Parts {
        let mut parts = Parts::new();
        for (rank, sequence) in sequences.ranks.iter().enumerate() {
            for (stretch, _) in stretches(&sequence.entries) {
                parts.entry((stretch, rank)).or_insert_with(|| {
                    let weights = self.weights(stretch, rank);
                    let all: f64 = weights.values().sum();
                    let of = |(function, weight): (&u32, &f64)| weight * kept(rank, *function);
                    let kept: f64 = weights.iter().map(of).sum();
                    match all > 0.0 {
                        true => (kept / all * MILLION as f64).round() as u64,
                        false => MILLION,
                    }
                });
            }
        }
        parts.retain(|_, of| *of != MILLION);
        parts
    }

    /// Returns what a computation of a rank runs, by function.
    pub(crate) fn weights(&self, stretch: Stretch, rank: usize) -> &Weights {
        let enough = |weights: &&Weights| weights.values().sum::<f64>() >= FEWEST;
        let of_rank = self.of_rank.get(&(stretch, rank)).filter(enough);
        let of_all = self.of_all.get(&stretch).filter(enough);
        of_rank.or(of_all).unwrap_or(&self.whole)
    }
}

/// Returns the samples of each moment of a rank.
pub(crate) fn moments(samples: &mut [Sample]) -> impl Iterator<Item = &[Sample]> {
    samples.sort_unstable_by_key(|sample| (sample.rank, sample.time, sample.function));
    let same = |one: &Sample, next: &Sample| one.rank == next.rank && next.time - one.time < MOMENT;
    samples.chunk_by(same)
}

/// Returns the computation in which a sample lies.
fn stretch_at(sequences: &Sequences, sample: &Sample) -> Option<Stretch> {
    let (begin, end) = *sequences.extents.get(sample.rank)?;
    if !(begin..end).contains(&sample.time) {
        return None;
    }
    let begins = sequences.begins.get(sample.rank)?;
    let at = begins.partition_point(|begin| *begin <= sample.time);
    let entries = &sequences.ranks.get(sample.rank)?.entries;
    let before = at.checked_sub(1).and_then(|before| entries.get(before));
    Some((
        before.map(crate::edit::call),
        crate::edit::call(entries.get(at)?),
    ))
}
