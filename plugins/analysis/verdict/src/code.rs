//! What a window measured of the code of ranks: which code makes a computation longer on one rank than on the others, and which code one
//! thread runs while others wait.

use std::collections::BTreeMap;

use nodescope_loop_tree::Sequences;
use nodescope_profile::{Clock, Count, WindowProfile};

use crate::edit::Stretch;
use crate::shares::{Sample, Shares, moments};

/// The code of ranks, outside of MPI calls, in a window.
pub struct MeasuredCode<'a> {
    /// Counts of the code, and its names.
    pub profile: &'a WindowProfile,
    /// The clock of the window.
    pub clock: Clock<'a>,
    /// Returns the rank that computes in a context, by the node and the context; `None` within MPI calls and for other processes.
    pub rank_of: &'a dyn Fn(u32, u32) -> Option<usize>,
    /// Samples of the ranks.
    pub samples: &'a [Sample],
}

impl MeasuredCode<'_> {
    /// Returns the code in which a rank computes longest beyond the mean of the other ranks, as text. `computed` is the time of each rank in
    /// this computation.
    pub(crate) fn excess(
        &self,
        sequences: &Sequences,
        stretch: Stretch,
        rank: usize,
        computed: &dyn Fn(usize) -> f64,
    ) -> Option<String> {
        let shares = Shares::new(sequences, self.samples.to_vec());
        let others = sequences
            .ranks
            .len()
            .checked_sub(1)
            .filter(|others| *others > 0)?;
        let mut excess: BTreeMap<u32, f64> = BTreeMap::new();
        for of in 0..sequences.ranks.len() {
            let weights = shares.weights(stretch, of);
            let all: f64 = weights.values().sum();
            let sign = if of == rank {
                1.0
            } else {
                -1.0 / others as f64
            };
            for (function, weight) in weights {
                *excess.entry(*function).or_default() += sign * computed(of) * weight / all;
            }
        }
        let function = largest(excess)?;
        let of_rank = |count: &Count| match (self.rank_of)(count.node, count.context)? == rank {
            true => Some(1.0),
            false => Some(-1.0 / others as f64),
        };
        Some(self.place(function, &of_rank))
    }

    /// Returns the code that a thread of a rank runs most while no other thread works, as text.
    pub fn of_one_thread(&self, rank: usize) -> Option<String> {
        let mut weights: BTreeMap<u32, f64> = BTreeMap::new();
        for moment in moments(&mut self.samples.to_vec()) {
            let mut works = moment.iter().filter(|sample| !sample.waits);
            if let (Some(sample), None) = (works.next(), works.next())
                && sample.rank == rank
            {
                *weights.entry(sample.function).or_default() += 1.0;
            }
        }
        let function = largest(weights)?;
        let of_rank =
            |count: &Count| ((self.rank_of)(count.node, count.context)? == rank).then_some(1.0);
        Some(self.place(function, &of_rank))
    }

    /// Returns a function with its source line that has most cycles, weighted by counts.
    fn place(&self, function: u32, weight: &dyn Fn(&Count) -> Option<f64>) -> String {
        let profile = self.profile;
        let mut lines: BTreeMap<u32, f64> = BTreeMap::new();
        for count in &profile.counts {
            let block = &profile.blocks[count.block as usize];
            let weight = match block.function == function {
                true => weight(count),
                false => None,
            };
            let Some(weight) = weight else {
                continue;
            };
            let cycles = self.clock.of(count).iter().sum::<i128>() as f64;
            for (line, part) in block.parts_by_line() {
                if let Some(line) = line {
                    *lines.entry(line).or_default() += weight * cycles * part;
                }
            }
        }
        let name = &profile.functions[function as usize].name;
        match largest(lines) {
            Some(line) => {
                let line = &profile.lines[line as usize];
                let file = line.file.rsplit('/').next().unwrap_or(&line.file);
                format!("{name} ({file}:{})", line.line)
            }
            None => name.clone(),
        }
    }
}

/// Returns the key with the largest value above 0.
fn largest(values: BTreeMap<u32, f64>) -> Option<u32> {
    let positive = values.into_iter().filter(|(_, value)| *value > 0.0);
    let largest = positive.max_by(|a, b| a.1.total_cmp(&b.1));
    largest.map(|(key, _)| key)
}
