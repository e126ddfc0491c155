//! The core model: finds paths through blocks, times the paths, and divides their cycles among the blocks.

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
    /// Number of `llvm-mca` processes at a time; 0: as many as there are processors.
    pub threads: usize,
}

/// A block's cycles on the core, all loads served by the first level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCycles {
    /// Cycles of all executions, in 1/65536 cycle.
    pub total: u128,
    /// Executions that are on modelled paths. Each other execution is given the mean cycles of these.
    pub on_paths: u64,
    /// Reason for which the block has the mean of all modelled instructions. None: the block has cycles of its own.
    pub reason: Option<Reason>,
}

impl BlockCycles {
    /// Returns the cycles of one execution. `executions` is the block's number of executions.
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
    /// Indices of the path's blocks in [`CoreModel::blocks`], in the order of execution.
    pub blocks: Vec<usize>,
    /// True if the last block leads to the first. An open path is timed as if it did.
    pub closed: bool,
    /// Number of executions of the whole path.
    pub executions: u64,
    /// Cycles of one execution of the whole path, in 1/65536 cycle.
    pub cycles: u64,
}

/// The cycles of a window's blocks on a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreModel {
    /// Source of the figures, such as "llvm-mca 22.1.8, core znver4".
    pub source: String,
    /// Cycles of the blocks, in the order of the input.
    pub blocks: Vec<BlockCycles>,
    /// Timed paths, in the order in which they were found: roughly the hottest first.
    pub paths: Vec<Path>,
    /// Executed instructions of all blocks.
    pub instructions: u128,
    /// Executed instructions of the blocks that have cycles of their own.
    pub modelled: u128,
    /// Cycles of all blocks, in 1/65536 cycle: the sum of [`BlockCycles::total`].
    pub cycles: u128,
}

impl CoreModel {
    /// Returns the share of instructions in blocks that have cycles of their own, 0 to 1.
    pub fn coverage(&self) -> f64 {
        self.modelled as f64 / self.instructions.max(1) as f64
    }

    /// Returns the cycles per instruction (CPI_core); 0 if there are no instructions.
    pub fn cpi(&self) -> f64 {
        self.cycles as f64 / 65536.0 / self.instructions.max(1) as f64
    }

    /// Lists the blocks that have the mean of all modelled instructions, with index and reason. The list includes the least executed
    /// blocks.
    pub fn not_modelled(&self) -> impl Iterator<Item = (usize, &Reason)> {
        let reasons = self.blocks.iter().map(|block| block.reason.as_ref());
        reasons
            .enumerate()
            .filter_map(|(index, reason)| Some((index, reason?)))
    }
}

/// Share of executed instructions, of 1000, that the paths shall cover.
const WANTED: u128 = 990;
/// Share of executed instructions, of 1000, in the hottest blocks that paths may use; less executed blocks are on no path.
const ALLOWED: u128 = 999;

/// A path with at least one `MATTERS`th of the instructions is simulated for all iterations; other paths for fewer.
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

    // The hottest blocks, by executed instructions.
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

    // Blocks that can be timed: decoded here, and accepted by `llvm-mca` below.
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
    // Executions that are on no path cost as much as the block's executions on paths.
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

/// Cycles and executions of a block on the timed paths; cycles in 1/65536 cycle.
#[derive(Clone, Debug, Default)]
struct Share {
    cycles: u128,
    executions: u64,
}

/// Cycles of all modelled instructions, for their mean.
struct Mean {
    cycles: u128,
    instructions: u128,
}

impl Mean {
    fn of(&self, instructions: u128) -> u128 {
        proportion(self.cycles, instructions, self.instructions)
    }
}

/// Returns `value * part / whole`, without overflow: rounded down, or an approximation if a partial product would overflow.
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

/// Divides cycles by weights. The shares add up to exactly `cycles`, since each running sum is rounded and not each share.
fn shares(cycles: u64, weights: impl Iterator<Item = u64> + Clone) -> Vec<u64> {
    // Each weight is at least 1, so a path of only free instructions is divided evenly.
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
