//! Counts by basic block: what an engine counted in the code that ran in a window.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{CauseCycles, Charges, Context, CoreCosts, FLOP_CLASSES};

/// A basic block that ran while a window was open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfiledBlock {
    /// Guest-linear address of the block's first instruction, in the address space in which the block was first entered.
    pub address: u64,
    /// Guest-physical address of the block's first byte.
    pub physical: u64,
    /// Guest-physical address of the second page's first byte if an instruction of the block crosses into a second page; otherwise 0.
    pub second_page: u64,
    /// CR3 of the address space in which the block was first entered.
    pub address_space: u64,
    /// True if the block ran at CPL 0.
    pub kernel: bool,
    /// Width of the code segment in bits: 16, 32 or 64.
    pub bits: u8,
    /// The machine code.
    pub bytes: Vec<u8>,
    /// Number of instructions in the block.
    pub instructions: u32,
    /// Data reads of one execution, one for each line touched by an aligned access.
    pub loads: u32,
    /// Data writes of one execution, counted as `loads` are.
    pub stores: u32,
    /// Floating-point operations of one execution by class.
    pub flops: [u32; FLOP_CLASSES],
}

/// Executions that an exception, an interrupted string instruction or the end of a time slice cut short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialCounts {
    /// Number of executions that were cut short.
    pub executions: u64,
    /// Instructions that retired in these executions.
    pub instructions: u64,
    /// Data reads of these executions.
    pub loads: u64,
    /// Data writes of these executions.
    pub stores: u64,
    /// Floating-point operations of these executions by class.
    pub flops: [u64; FLOP_CLASSES],
}

impl PartialCounts {
    /// Adds the counts of other executions of the same block.
    pub fn add(&mut self, other: &PartialCounts) {
        self.executions += other.executions;
        self.instructions += other.instructions;
        self.loads += other.loads;
        self.stores += other.stores;
        for (sum, flops) in self.flops.iter_mut().zip(other.flops) {
            *sum += flops;
        }
    }
}

/// Counts of one block in one context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCounts {
    /// Number of complete executions, from the first to the last instruction.
    pub executions: u64,
    /// Counts of the executions that were cut short.
    #[serde(default, skip_serializing_if = "is_default")]
    pub partial: PartialCounts,
    /// Cycles of long instructions (REP strings, PAUSE) beyond the nominal CPI.
    #[serde(default, skip_serializing_if = "is_default")]
    pub long_cycles: u64,
    /// Data reads beyond those in [`ProfiledBlock::loads`]: of string instructions and gathers, and second lines of split accesses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub more_loads: u64,
    /// Data writes beyond those in [`ProfiledBlock::stores`], such as those of string instructions and second lines of split accesses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub more_stores: u64,
    /// Answers and stall cycles of the block's references.
    #[serde(default, skip_serializing_if = "is_default")]
    pub charges: Charges,
    /// Cycles by cause as a model of the core gives them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub core_cycles: CauseCycles,
}

/// Returns true if a count has its default value and is left out of files, as are most counts of most blocks.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl BlockCounts {
    /// Adds the counts of other executions of the same block.
    pub fn add(&mut self, other: &BlockCounts) {
        self.executions += other.executions;
        self.partial.add(&other.partial);
        self.long_cycles += other.long_cycles;
        self.more_loads += other.more_loads;
        self.more_stores += other.more_stores;
        self.charges.add(&other.charges);
        for (sum, cycles) in self.core_cycles.iter_mut().zip(other.core_cycles) {
            *sum = sum.saturating_add(cycles);
        }
    }

    /// Returns the number of instructions that retired in a block that has `of_block` instructions.
    pub fn instructions(&self, of_block: u32) -> u64 {
        self.executions * u64::from(of_block) + self.partial.instructions
    }
}

/// Blocks that ran on a node in a window, with their counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockProfile {
    /// Blocks by number. Block 0 is not code: it has the costs outside blocks, such as the delivery of interrupts.
    pub blocks: Vec<ProfiledBlock>,
    /// Number of each block in the engine ([`crate::Site::block`]).
    pub numbers: Vec<u32>,
    /// Counts by context and block number, sorted by these two.
    pub counts: Vec<(Context, u32, BlockCounts)>,
    /// Number of times that a new block found the table full: its misses are counted for block 0, its instructions not at all.
    pub lost_blocks: u64,
    /// Number of times that a new context found the table full: its counts are added to those of another context.
    pub lost_contexts: u64,
}

impl BlockProfile {
    /// Adds the counts of a later time on the same node, whose engine gave the same numbers to blocks.
    pub fn add(&mut self, later: &BlockProfile) {
        let mut at: BTreeMap<u32, u32> = self.numbers.iter().copied().zip(0..).collect();
        let mut counts: BTreeMap<(Context, u32), BlockCounts> = BTreeMap::new();
        for (context, block, of_block) in std::mem::take(&mut self.counts) {
            counts.insert((context, block), of_block);
        }
        for (context, block, of_block) in &later.counts {
            let number = later.numbers[*block as usize];
            let block = *at.entry(number).or_insert_with(|| {
                self.numbers.push(number);
                self.blocks.push(later.blocks[*block as usize].clone());
                self.blocks.len() as u32 - 1
            });
            counts.entry((*context, block)).or_default().add(of_block);
        }
        let rows = counts.into_iter();
        self.counts = rows
            .map(|((context, block), of)| (context, block, of))
            .collect();
        self.lost_blocks = later.lost_blocks;
        self.lost_contexts = later.lost_contexts;
    }

    /// Fills in the cycles of all counts from what a model of the core has learned.
    pub fn apply(&mut self, costs: &CoreCosts) {
        for (_, block, counts) in &mut self.counts {
            let number = self.numbers.get(*block as usize);
            let learned = number.and_then(|number| costs.blocks.get(number));
            let of_block = self.blocks.get(*block as usize);
            let instructions = of_block.map_or(0, |block| block.instructions);
            let costs = learned.unwrap_or(&costs.others);
            counts.core_cycles = costs.of(counts, instructions);
        }
    }
}
