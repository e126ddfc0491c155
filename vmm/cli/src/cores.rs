//! Core models of the code that ran in windows.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nodescope_plugin_core::{Block, Core, CoreError, CoreModel, Options, PUBLISHED_ERROR, model};
use nodescope_profile::{ProfilesFile, WindowProfile};
use nodescope_report::{ModelledCore, WindowCores};
use serde::{Deserialize, Serialize};

/// Operating mode, in bits, of the blocks that are given to LLVM's models: 64-bit mode. Blocks of other modes are not modelled.
const BITS: u8 = 64;

/// Cores that a study names for its core models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreNames {
    /// Names of the cores, as LLVM knows them; the CPI stack uses the first one.
    pub names: Vec<String>,
    /// Memory-level parallelism: number of misses that overlap. 1 is the published formula.
    pub memory_parallelism: f64,
}

impl Default for CoreNames {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            memory_parallelism: 1.0,
        }
    }
}

/// Returns the folder in which results of the model are cached between reports; `None` if there is no cache folder.
pub fn cache() -> Option<PathBuf> {
    let images = nodescope_image::default_cache_dir().ok()?;
    Some(images.with_file_name("cores"))
}

/// Models, on each of the named cores, the cycles of each window's code. Leaves out windows in which no block was executed.
pub fn models(profiles: &ProfilesFile, names: &[String]) -> Result<Vec<WindowCores>, CoreError> {
    let cores: Vec<Core> = names
        .iter()
        .map(|name| Core::named(name))
        .collect::<Result<_, _>>()?;
    let options = Options {
        cache: cache(),
        threads: 0,
    };
    let window = |profile: &WindowProfile| {
        let timed = cores.iter().map(|core| modelled(profile, core, &options));
        Ok(WindowCores {
            window: profile.name.clone(),
            cores: timed.collect::<Result<_, _>>()?,
        })
    };
    let windows = profiles.windows.iter();
    windows
        .filter(|profile| {
            profile
                .counts
                .iter()
                .any(|count| count.counts.executions > 0)
        })
        .map(window)
        .collect()
}

/// Returns an address for a block, in a space in which modules do not overlap. Within a module, distances are those of its file, so direct
/// jumps stay right.
fn address(profile: &WindowProfile, block: usize) -> u64 {
    let block = &profile.blocks[block];
    if block.offset >> 47 != 0 {
        // The kernel's blocks have their own addresses already.
        return block.offset;
    }
    (u64::from(block.module) + 1) << 48 | block.offset
}

fn modelled(
    profile: &WindowProfile,
    core: &Core,
    options: &Options,
) -> Result<ModelledCore, CoreError> {
    let mut executions: BTreeMap<u32, u64> = BTreeMap::new();
    for count in &profile.counts {
        *executions.entry(count.block).or_default() += count.counts.executions;
    }
    let known = |index: &u32| {
        let block = &profile.blocks[*index as usize];
        block.bits == BITS && !block.bytes.is_empty()
    };
    let indices: Vec<u32> = executions.keys().copied().filter(known).collect();
    let blocks: Vec<Block> = indices
        .iter()
        .map(|index| {
            let block = &profile.blocks[*index as usize];
            Block {
                address: address(profile, *index as usize),
                bytes: block.bytes.clone(),
                executions: executions[index],
                instructions: block.instructions,
            }
        })
        .collect();
    let timed = model(&blocks, core, options)?;
    let mean = timed.cpi();
    let mut cycles_65536: Vec<i128> = profile
        .blocks
        .iter()
        .map(|block| (mean * f64::from(block.instructions) * 65_536.0).round() as i128)
        .collect();
    for ((index, block), timed) in indices.iter().zip(&blocks).zip(&timed.blocks) {
        let executions = u128::from(block.executions);
        // Rounded to the nearest integer.
        let each = (timed.total + executions / 2).checked_div(executions);
        if let Some(each) = each {
            cycles_65536[*index as usize] = each as i128;
        }
    }
    Ok(ModelledCore {
        name: core.name().to_owned(),
        source: timed.source.clone(),
        published_error: PUBLISHED_ERROR.into(),
        cycles_65536,
        coverage: timed.coverage(),
        not_modelled: not_modelled(&timed, &indices, &blocks),
    })
}

/// Returns the blocks that the model could not time, with the reason; the block with the most executed instructions first.
fn not_modelled(timed: &CoreModel, indices: &[u32], blocks: &[Block]) -> Vec<(u32, String)> {
    let mut list: Vec<(u128, u32, String)> = timed
        .not_modelled()
        .map(|(at, reason)| {
            let block = &blocks[at];
            let weight = u128::from(block.executions) * u128::from(block.instructions);
            (weight, indices[at], reason.to_string())
        })
        .collect();
    list.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    list.into_iter()
        .map(|(_, index, reason)| (index, reason))
        .collect()
}
