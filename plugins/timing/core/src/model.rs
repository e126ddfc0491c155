//! The model: blocks to paths, paths to cycles, cycles to blocks.

use std::path::PathBuf;

use crate::block::{Block, Code, Reason};
use crate::cache::Cache;
use crate::error::CoreError;
use crate::graph::{Graph, Node};
use crate::paths;
use crate::target::{Core, Refusal, threads};
use crate::text;

/// Options of the modelling. No option changes the result.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Folder for results of `llvm-mca`, which several processes may share.
    pub cache: Option<PathBuf>,
    /// Tools that run at a time; 0: as many as there are processors.
    pub threads: usize,
}

/// A block's cycles on the core, all loads served by the first level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCycles {
    /// Cycles of all executions, in 1/65536.
    pub total: u128,
    /// Executions that are on modelled paths. The others count as much as these on average.
    pub on_paths: u64,
    /// Why the block has the mean of all modelled instructions; None: it has cycles of its own.
    pub reason: Option<Reason>,
}

impl BlockCycles {
    /// Returns cycles of one of so many executions.
    pub fn per_execution(&self, executions: u64) -> f64 {
        if executions == 0 {
            return 0.0;
        }
        self.total as f64 / 65536.0 / executions as f64
    }
}

/// Blocks that were timed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Indices of the blocks, in the order of execution.
    pub blocks: Vec<usize>,
    /// True if the last block leads to the first. An open path is timed as if it did.
    pub closed: bool,
    /// Executions of the whole path.
    pub executions: u64,
    /// Cycles of one execution, in 1/65536.
    pub cycles: u64,
}

/// The cycles of a window's blocks on a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreModel {
    /// Origin of the figures: "llvm-mca 22.1.8, core znver4".
    pub source: String,
    /// Cycles of the blocks, in the order in which these were given.
    pub blocks: Vec<BlockCycles>,
    /// The paths, the hottest first.
    pub paths: Vec<Path>,
    /// Instructions of all blocks.
    pub instructions: u128,
    /// Instructions of the blocks that have cycles of their own.
    pub modelled: u128,
    /// Cycles of all blocks, in 1/65536: the sum of theirs.
    pub cycles: u128,
}

impl CoreModel {
    /// Returns the share of instructions in blocks that have cycles of their own, 0 to 1.
    pub fn coverage(&self) -> f64 {
        self.modelled as f64 / self.instructions.max(1) as f64
    }

    /// Returns cycles for each instruction (CPI_core); 0 if there are none.
    pub fn cpi(&self) -> f64 {
        self.cycles as f64 / 65536.0 / self.instructions.max(1) as f64
    }

    /// Lists blocks that have the mean of all modelled instructions, by index, and why; those executed least are among them.
    pub fn not_modelled(&self) -> impl Iterator<Item = (usize, &Reason)> {
        let reasons = self.blocks.iter().map(|block| block.reason.as_ref());
        reasons
            .enumerate()
            .filter_map(|(index, reason)| Some((index, reason?)))
    }
}

/// Modelled instructions out of 1000, if all blocks can be modelled.
const WANTED: u128 = 990;
/// Instructions out of 1000 of blocks that paths may consist of: a seldom executed block closes no loop.
const ALLOWED: u128 = 999;

/// A path matters that has this part of the instructions or more: one of so many.
const MATTERS: u128 = 1000;

/// Models the cycles of blocks on a core.
///
/// # Errors
///
/// If the tool fails, if the folder of the cache cannot be used, or if none of the blocks can be modelled.
pub fn model(blocks: &[Block], core: &Core, options: &Options) -> Result<CoreModel, CoreError> {
    let cache = Cache::new(options.cache.as_deref())?;
    let threads = match options.threads {
        0 => threads(),
        some => some,
    };
    let weight = |index: usize| {
        u128::from(blocks[index].executions) * u128::from(blocks[index].instructions)
    };
    let instructions: u128 = (0..blocks.len()).map(weight).sum();
    let mut reasons: Vec<Option<Reason>> = vec![Some(Reason::Cold); blocks.len()];

    // The hottest blocks.
    let mut order: Vec<usize> = (0..blocks.len())
        .filter(|index| weight(*index) > 0)
        .collect();
    order.sort_by_key(|index| {
        (
            std::cmp::Reverse(weight(*index)),
            blocks[*index].address,
            *index,
        )
    });
    let mut sum = 0;
    let hot: Vec<usize> = order
        .iter()
        .copied()
        .take_while(|index| {
            let before = sum;
            sum += weight(*index);
            before * 1000 < instructions * ALLOWED
        })
        .collect();

    // Blocks that can be timed.
    let mut nodes = Vec::new();
    for index in hot {
        match Code::of(&blocks[index]) {
            Ok(code) => nodes.push((index, code)),
            Err(reason) => reasons[index] = Some(reason),
        }
    }
    let texts: Vec<Vec<String>> = nodes
        .iter()
        .map(|(_, code)| text::lines(&code.instructions, core.traits))
        .collect();
    let slices: Vec<&[String]> = texts.iter().map(Vec::as_slice).collect();
    let mut kept = Vec::new();
    let (mut indices, mut lines, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for (((index, code), text), probe) in nodes
        .into_iter()
        .zip(&texts)
        .zip(core.probe(&slices, &cache, threads)?)
    {
        match probe {
            Err(refusal) => reasons[index] = Some(refusal.reason()),
            Ok(weight) => {
                let Block {
                    address,
                    executions,
                    ..
                } = blocks[index];
                kept.push(Node {
                    address,
                    code,
                    executions,
                });
                indices.push(index);
                lines.push(text);
                weights.push(weight);
            }
        }
    }

    // Paths and their times.
    let graph = Graph::new(kept);
    let traces = paths::find(&graph, (instructions * WANTED).div_ceil(1000));
    let regions: Vec<Vec<String>> = traces
        .iter()
        .map(|trace| {
            trace
                .nodes
                .iter()
                .flat_map(|n| lines[*n].iter().cloned())
                .collect()
        })
        .collect();
    let slices: Vec<&[String]> = regions.iter().map(Vec::as_slice).collect();
    let matters: Vec<bool> = traces
        .iter()
        .map(|trace| {
            let of = |node: &usize| u128::from(blocks[indices[*node]].instructions);
            let size: u128 = trace.nodes.iter().map(of).sum();
            size * u128::from(trace.executions) * MATTERS >= instructions
        })
        .collect();
    let times = core.time(&slices, &matters, &cache, threads)?;

    let mut results = vec![Share::default(); blocks.len()];
    let mut timed = Vec::new();
    for (trace, time) in traces.iter().zip(times) {
        let cycles = match time {
            Ok(cycles) => cycles,
            Err(Refusal { message, .. }) => {
                for node in &trace.nodes {
                    let reason = &mut reasons[indices[*node]];
                    if *reason == Some(Reason::Cold) {
                        *reason = Some(Reason::Path(message.clone()));
                    }
                }
                continue;
            }
        };
        let shares = shares(cycles, trace.nodes.iter().map(|n| weights[*n]));
        for ((node, taken), share) in trace.nodes.iter().zip(&trace.taken).zip(shares) {
            let result = &mut results[indices[*node]];
            result.cycles += u128::from(share) * u128::from(*taken);
            result.executions += taken;
            reasons[indices[*node]] = None;
        }
        timed.push(Path {
            blocks: trace.nodes.iter().map(|n| indices[*n]).collect(),
            closed: trace.closed,
            executions: trace.executions,
            cycles,
        });
    }
    let modelled: u128 = (0..blocks.len())
        .filter(|index| results[*index].executions > 0)
        .map(weight)
        .sum();
    if modelled == 0
        && let Some(hottest) = order.first()
    {
        return Err(CoreError::Nothing {
            blocks: blocks.len(),
            address: blocks[*hottest].address,
            reason: reasons[*hottest]
                .as_ref()
                .map(Reason::to_string)
                .unwrap_or_default(),
        });
    }
    // Executions that no path has count as much as those that one has.
    let own = |index: usize| {
        let Share { cycles, executions } = &results[index];
        cycles + proportion(*cycles, blocks[index].executions - executions, *executions)
    };
    let on_paths = |index: &usize| results[*index].executions > 0;
    let mean = Mean {
        cycles: (0..blocks.len()).filter(on_paths).map(own).sum(),
        instructions: modelled,
    };
    let blocks: Vec<BlockCycles> = (0..blocks.len())
        .zip(reasons)
        .map(|(index, reason)| BlockCycles {
            total: if on_paths(&index) {
                own(index)
            } else {
                mean.of(weight(index))
            },
            on_paths: results[index].executions,
            reason,
        })
        .collect();
    Ok(CoreModel {
        source: core.description(),
        cycles: blocks.iter().map(|block| block.total).sum(),
        blocks,
        paths: timed,
        instructions,
        modelled,
    })
}

/// A block's part of the paths.
#[derive(Clone, Debug, Default)]
struct Share {
    cycles: u128,
    executions: u64,
}

/// Cycles of modelled instructions.
struct Mean {
    cycles: u128,
    instructions: u128,
}

impl Mean {
    fn of(&self, instructions: u128) -> u128 {
        proportion(self.cycles, instructions, self.instructions)
    }
}

/// Returns `value * part / whole`, rounded down, without an overflow on the way.
fn proportion(value: u128, part: impl Into<u128>, whole: impl Into<u128>) -> u128 {
    let (part, whole) = (part.into(), whole.into().max(1));
    let (times, rest) = (value / whole, value % whole);
    match rest.checked_mul(part) {
        Some(product) => times.saturating_mul(part).saturating_add(product / whole),
        None => times
            .saturating_mul(part)
            .saturating_add(rest / whole.div_ceil(part.max(1)).max(1)),
    }
}

/// Divides cycles by weights, exactly: where the sum of weights is passed, the sum of shares is its part of the cycles.
fn shares(cycles: u64, weights: impl Iterator<Item = u64> + Clone) -> Vec<u64> {
    // A path of only free instructions is divided evenly.
    let weights = weights.map(|w| u128::from(w.max(1)));
    let all: u128 = weights.clone().sum();
    let (mut passed, mut given) = (0, 0);
    weights
        .map(|weight| {
            passed += weight;
            let so_far = (u128::from(cycles) * passed / all) as u64;
            let share = so_far - given;
            given = so_far;
            share
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        assert_eq!(shares(10, [1, 1, 1].into_iter()), [3, 3, 4]);
        assert_eq!(shares(7, [0, 0].into_iter()), [3, 4]);
        assert_eq!(
            shares(1 << 40, [u64::MAX, 1, u64::MAX].into_iter())
                .iter()
                .sum::<u64>(),
            1 << 40
        );
    }

    #[test]
    fn proportions_do_not_overflow() {
        assert_eq!(proportion(7, 10_u64, 4_u64), 17);
        assert_eq!(proportion(1 << 100, 1_u64 << 20, 1_u64 << 40), 1 << 80);
        assert_eq!(proportion(u128::MAX, 3_u64, 1_u64), u128::MAX);
        assert_eq!(proportion(5, 0_u64, 0_u64), 0);
    }
}
