//! Sums over a profile, by block, function and source line.
//!
//! Cycles are integers in 1/65536 of a cycle, so that the sum over functions, lines or blocks is exactly the window's total.

use std::collections::BTreeMap;

use nodescope_plugin_api::{CAUSES, Charges, FLOP_CLASSES};

use crate::record::{Block, Count, WindowProfile};

/// Number of units (1/65536 of a cycle) in one cycle.
pub const CYCLE: i128 = 65_536;

/// Source of the core's cycles for a block.
pub trait CoreCycles {
    /// Returns the cycles of one execution of the block with this index, in 1/65536, if all references hit the first level.
    fn block(&self, block: u32) -> i128;
}

/// Core with one CPI for all instructions.
#[derive(Clone, Debug)]
pub struct NominalCore<'a> {
    /// Profile with the blocks whose cycles are computed.
    pub profile: &'a WindowProfile,
    /// Cycles per instruction, in 1/65536.
    pub cpi_65536: u32,
}

impl CoreCycles for NominalCore<'_> {
    fn block(&self, block: u32) -> i128 {
        let instructions = self.profile.blocks[block as usize].instructions;
        i128::from(instructions) * i128::from(self.cpi_65536)
    }
}

/// Selection of the counts to sum up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All counts of the window.
    Total,
    /// Counts of the node with this number.
    Node(u32),
    /// Counts of one context of a node: number of the node, index of the context.
    Context(u32, u32),
}

impl Scope {
    /// Returns whether a count belongs to the scope.
    pub fn contains(&self, count: &Count) -> bool {
        match *self {
            Scope::Total => true,
            Scope::Node(node) => count.node == node,
            Scope::Context(node, context) => (count.node, count.context) == (node, context),
        }
    }
}

/// Costs of a piece of code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Number of complete executions of blocks.
    pub executions: u128,
    /// Number of instructions retired.
    pub instructions: u128,
    /// Cycles of the core in 1/65536, without the additional cycles of long instructions.
    pub core_65536: i128,
    /// Cycles of long instructions (REP strings, PAUSE) beyond the nominal CPI.
    pub long_cycles: u128,
    /// Number of data reads.
    pub loads: u128,
    /// Number of data writes.
    pub stores: u128,
    /// Floating-point operations by class.
    pub flops: [u128; FLOP_CLASSES],
    /// Number of references that each [`nodescope_plugin_api::Source`] answered.
    pub answers: [u128; nodescope_plugin_api::SOURCES],
    /// Stall cycles by [`nodescope_plugin_api::StallTerm`].
    pub stalls: [u128; nodescope_plugin_api::STALL_TERMS],
    /// Cycles by [`nodescope_plugin_api::Cause`] as a model of the core gives them, in 1/65536; all 0 without one.
    pub causes_65536: [i128; CAUSES],
}

impl Costs {
    /// Adds other costs.
    pub fn add(&mut self, other: &Costs) {
        self.executions += other.executions;
        self.instructions += other.instructions;
        self.core_65536 += other.core_65536;
        self.long_cycles += other.long_cycles;
        self.loads += other.loads;
        self.stores += other.stores;
        let arrays = [
            (&mut self.flops[..], &other.flops[..]),
            (&mut self.answers[..], &other.answers[..]),
            (&mut self.stalls[..], &other.stalls[..]),
        ];
        for (sums, values) in arrays {
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += value;
            }
        }
        for (sum, cycles) in self.causes_65536.iter_mut().zip(other.causes_65536) {
            *sum += cycles;
        }
    }

    /// Returns the sum of core, long and stall cycles, in 1/65536.
    pub fn cycles_65536(&self) -> i128 {
        let stalls: u128 = self.stalls.iter().sum();
        self.core_65536 + (self.long_cycles + stalls) as i128 * CYCLE
    }

    /// Returns the number of floating-point operations of all classes.
    pub fn flops_total(&self) -> u128 {
        self.flops.iter().sum()
    }

    /// Returns the part of the costs from `before` to `after`, of `whole`. Consecutive parts add up to the costs exactly, since each part
    /// is a difference of values that are rounded down.
    pub fn part(&self, before: u128, after: u128, whole: u128) -> Costs {
        let share = |value: u128| scaled(value, after, whole) - scaled(value, before, whole);
        let signed = |value: i128| share(value.unsigned_abs()) as i128 * value.signum();
        Costs {
            executions: share(self.executions),
            instructions: share(self.instructions),
            core_65536: signed(self.core_65536),
            long_cycles: share(self.long_cycles),
            loads: share(self.loads),
            stores: share(self.stores),
            flops: self.flops.map(share),
            answers: self.answers.map(share),
            stalls: self.stalls.map(share),
            causes_65536: self.causes_65536.map(signed),
        }
    }

    /// Returns the costs of a block with these counts. `core_of_block` is the core's cycles of one execution, in 1/65536.
    pub fn of(block: &Block, count: &Count, core_of_block: i128) -> Costs {
        let counts = &count.counts;
        let partial = &counts.partial;
        let times = u128::from(counts.executions);
        let instructions = u128::from(counts.instructions(block.instructions));
        // Executions that were cut short get a share of the block's core cycles, by their instructions.
        let cut = i128::from(partial.instructions) * core_of_block
            / i128::from(block.instructions.max(1));
        let mut flops = [0; FLOP_CLASSES];
        for (class, flops) in flops.iter_mut().enumerate() {
            *flops = times * u128::from(block.flops[class]) + u128::from(partial.flops[class]);
        }
        let Charges { answers, cycles } = counts.charges;
        Costs {
            executions: times,
            instructions,
            core_65536: times as i128 * core_of_block + cut,
            long_cycles: counts.long_cycles.into(),
            loads: times * u128::from(block.loads)
                + u128::from(partial.loads)
                + u128::from(counts.more_loads),
            stores: times * u128::from(block.stores)
                + u128::from(partial.stores)
                + u128::from(counts.more_stores),
            flops,
            answers: answers.map(u128::from),
            stalls: cycles.map(u128::from),
            causes_65536: counts.core_cycles.map(i128::from),
        }
    }
}

impl WindowProfile {
    /// Returns the costs of each block in a scope, by the block's index. Blocks without counts are left out.
    pub fn by_block(&self, scope: Scope, core: &dyn CoreCycles) -> BTreeMap<u32, Costs> {
        let mut sums: BTreeMap<u32, Costs> = BTreeMap::new();
        for count in self.counts.iter().filter(|count| scope.contains(count)) {
            let block = &self.blocks[count.block as usize];
            let costs = Costs::of(block, count, core.block(count.block));
            sums.entry(count.block).or_default().add(&costs);
        }
        sums
    }

    /// Returns the costs of each function in a scope, by the function's index.
    pub fn by_function(&self, scope: Scope, core: &dyn CoreCycles) -> BTreeMap<u32, Costs> {
        let mut sums: BTreeMap<u32, Costs> = BTreeMap::new();
        for (block, costs) in self.by_block(scope, core) {
            let function = self.blocks[block as usize].function;
            sums.entry(function).or_default().add(&costs);
        }
        sums
    }

    /// Returns the costs of each source line in a scope, by the line's index; `None` is code without a line. The lines of a block share its
    /// costs: executions belong to the line of the first instruction, all other costs are divided in proportion to the number of
    /// instructions of each line.
    pub fn by_line(&self, scope: Scope, core: &dyn CoreCycles) -> BTreeMap<Option<u32>, Costs> {
        let mut sums: BTreeMap<Option<u32>, Costs> = BTreeMap::new();
        for (index, costs) in self.by_block(scope, core) {
            let block = &self.blocks[index as usize];
            for (line, part) in split_by_line(block, &costs) {
                sums.entry(line).or_default().add(&part);
            }
        }
        sums
    }

    /// Returns the costs of all code in a scope: the whole window, a node, or a context of a node. `core` gives the cycles of the core.
    pub fn total(&self, scope: Scope, core: &dyn CoreCycles) -> Costs {
        let mut sum = Costs::default();
        for costs in self.by_block(scope, core).values() {
            sum.add(costs);
        }
        sum
    }
}

/// Returns `value * part / whole` rounded down, without multiplying the two large numbers.
fn scaled(value: u128, part: u128, whole: u128) -> u128 {
    let whole = whole.max(1);
    value / whole * part + value % whole * part / whole
}

impl Block {
    /// Returns the share of the block's instructions that each of its source lines has; `None` is code without a line.
    pub fn parts_by_line(&self) -> Vec<(Option<u32>, f64)> {
        let whole = f64::from(self.instructions.max(1));
        let parts = instructions_by_line(self).into_iter();
        parts.map(|(line, of)| (line, of as f64 / whole)).collect()
    }
}

/// Returns the number of a block's instructions by source line.
fn instructions_by_line(block: &Block) -> Vec<(Option<u32>, u128)> {
    let mut parts: Vec<(Option<u32>, u128)> = Vec::new();
    if block.source_ranges.is_empty() {
        parts.push((None, u128::from(block.instructions.max(1))));
    }
    for (n, range) in block.source_ranges.iter().enumerate() {
        let end = block
            .source_ranges
            .get(n + 1)
            .map_or(block.instructions, |next| next.first);
        let instructions = u128::from(end.saturating_sub(range.first));
        match parts.iter_mut().find(|(line, _)| *line == range.line) {
            Some((_, sum)) => *sum += instructions,
            None => parts.push((range.line, instructions)),
        }
    }
    parts
}

/// Divides a block's costs among its source lines, in proportion to their numbers of instructions. The sum of the shares is the whole.
fn split_by_line(block: &Block, costs: &Costs) -> Vec<(Option<u32>, Costs)> {
    let whole = u128::from(block.instructions.max(1));
    let mut before = 0;
    let mut split = Vec::new();
    for (line, instructions) in instructions_by_line(block) {
        let after = (before + instructions).min(whole);
        let mut part = costs.part(before, after, whole);
        part.executions = if before == 0 { costs.executions } else { 0 };
        split.push((line, part));
        before = after;
    }
    split
}
