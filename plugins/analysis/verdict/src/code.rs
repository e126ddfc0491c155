//! What a window measured of the code of ranks: which code makes a computation longer on one rank than on the others, and which code one
//! thread runs while others wait.

use std::collections::BTreeMap;

use nodescope_loop_tree::Sequences;
use nodescope_plugin_api::Cause;
use nodescope_profile::{Clock, Count, WindowProfile};

use crate::edit::Stretch;
use crate::scalar::lanes;
use crate::shares::{Sample, Shares, moments};

/// A block is looked at if it has one part in so many of the window's cycles.
const LEAST_PART: i128 = 1000;

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

/// A loop that computes with one number at a time, though no register carries a value between iterations.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalarLoop {
    /// Function, file and line.
    pub place: String,
    /// Numbers that an AVX2 instruction computes with.
    pub lanes: u32,
    /// Share of the core's cycles in the loop, without waiting for memory, in the cycles of all code of the window.
    pub share: f64,
}

impl MeasuredCode<'_> {
    /// Returns the loops of ranks that compute with one number at a time, though no register carries a value between iterations. Loops with
    /// most cycles come first.
    pub fn scalar_loops(&self) -> Vec<ScalarLoop> {
        let mut all = 0;
        let mut cycles: BTreeMap<u32, i128> = BTreeMap::new();
        for count in &self.profile.counts {
            let of_count = self.clock.of(count);
            all += of_count.iter().sum::<i128>();
            if (self.rank_of)(count.node, count.context).is_some() {
                *cycles.entry(count.block).or_default() += of_count[Cause::Core as usize];
            }
        }
        // Blocks of one place, such as versions of a loop, are one loop.
        let mut loops: BTreeMap<(String, u32), i128> = BTreeMap::new();
        for (index, cycles) in cycles {
            // Most blocks have few cycles, and need not be decoded.
            let block = &self.profile.blocks[index as usize];
            if let Some(lanes) = (cycles * LEAST_PART > all).then(|| lanes(block)).flatten() {
                let only = |count: &Count| (count.block == index).then_some(1.0);
                let place = self.place(block.function, &only);
                *loops.entry((place, lanes)).or_default() += cycles;
            }
        }
        let mut loops: Vec<ScalarLoop> = (loops.into_iter())
            .map(|((place, lanes), cycles)| ScalarLoop {
                place,
                lanes,
                share: cycles as f64 / all.max(1) as f64,
            })
            .collect();
        loops.sort_by(|a, b| b.share.total_cmp(&a.share));
        loops
    }

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
