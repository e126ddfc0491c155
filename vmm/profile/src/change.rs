//! Changes of what code costs, such as "function `solve` twice as fast".
//!
//! A change keeps a part of the cost of each block ([`WindowProfile::kept`]). What runs and predictions make of a change follows from these
//! parts alone.

use nodescope_plugin_api::{CAUSES, Cause};

use crate::record::{Block, Count, WindowProfile};
use crate::totals::{CYCLE, CoreCycles, Costs, NominalCore};

/// Code by its place in a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodePlace {
    /// A function's own code, with what the compiler has inlined in it: the demangled name, or the name without parameters.
    Function(String),
    /// A source line: the file, or the end of its path, and the number of the line.
    Line(String, u32),
}

/// A change of what code costs.
#[derive(Clone, Debug, PartialEq)]
pub struct CodeChange {
    /// Code that changes; `None` for all code.
    pub place: Option<CodePlace>,
    /// Causes whose cycles change; empty for all causes.
    pub causes: Vec<Cause>,
    /// Part of these cycles that is kept, 0 or more: 0.5 for code that is twice as fast, 0 for code that costs nothing.
    pub kept: f64,
}

/// A place that no code of a window has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no code in window \"{window}\" is {place}; most of the cycles are in {known}")]
pub struct NoSuchCode {
    /// Name of the window.
    pub window: String,
    /// The place, as text.
    pub place: String,
    /// The places with most cycles, as text.
    pub known: String,
}

/// Largest number of places that [`NoSuchCode`] names.
const NAMED: usize = 5;

/// Cycles of a vCPU's clock in code, by [`Cause`], in 1/65536.
pub type ClockCycles = [i128; CAUSES];

/// The clock of the vCPUs in a window: the cycles of the model of the core, or else the nominal CPI and all stall cycles.
#[derive(Clone, Debug)]
pub struct Clock<'a> {
    core: NominalCore<'a>,
    modelled: bool,
}

impl<'a> Clock<'a> {
    /// Returns the clock of a window with this nominal CPI in 1/65536.
    pub fn new(profile: &'a WindowProfile, cpi_65536: u32) -> Self {
        let mut causes = profile.counts.iter().map(|count| &count.counts.core_cycles);
        Self {
            core: NominalCore { profile, cpi_65536 },
            modelled: causes.any(|cycles| cycles.iter().any(|of| *of != 0)),
        }
    }

    /// Returns the clock's cycles of a count.
    pub fn of(&self, count: &Count) -> ClockCycles {
        let block = &self.core.profile.blocks[count.block as usize];
        let costs = Costs::of(block, count, self.core.block(count.block));
        if self.modelled {
            return costs.causes_65536;
        }
        let [level1, level2, level3, local, remote, other] =
            costs.stalls.map(|cycles| cycles as i128 * CYCLE);
        let mut cycles = ClockCycles::default();
        cycles[Cause::Core as usize] =
            costs.core_65536 + costs.long_cycles as i128 * CYCLE + level1 + other;
        cycles[Cause::Level2 as usize] = level2;
        cycles[Cause::Level3 as usize] = level3;
        cycles[Cause::LocalMemory as usize] = local;
        cycles[Cause::RemoteMemory as usize] = remote;
        cycles
    }

    /// Returns the clock's cycles of each block of the window, over all nodes and contexts.
    pub fn by_block(&self) -> Vec<ClockCycles> {
        let profile = self.core.profile;
        let mut sums = vec![ClockCycles::default(); profile.blocks.len()];
        for count in &profile.counts {
            let sum = &mut sums[count.block as usize];
            for (sum, cycles) in sum.iter_mut().zip(self.of(count)) {
                *sum += cycles;
            }
        }
        sums
    }
}

impl CodePlace {
    /// Returns the number of a block's instructions that are at this place.
    fn instructions(&self, profile: &WindowProfile, block: &Block) -> u32 {
        match self {
            CodePlace::Function(name) => {
                let own = &profile.functions[block.function as usize].name;
                match is_named(own, name) {
                    true => block.instructions,
                    false => block.sum_of_ranges(|range| {
                        let mut inlined = range.inlined.iter();
                        inlined.any(|inlined| is_named(&inlined.function, name))
                    }),
                }
            }
            CodePlace::Line(file, number) => block.sum_of_ranges(|range| {
                let line = range.line.map(|line| &profile.lines[line as usize]);
                line.is_some_and(|line| line.line == *number && is_file(&line.file, file))
            }),
        }
    }
}

impl std::fmt::Display for CodePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CodePlace::Function(name) => f.write_str(name),
            CodePlace::Line(file, line) => write!(f, "{file}:{line}"),
        }
    }
}

/// Returns whether a function's name is the wanted one, as a whole or without parameters.
fn is_named(name: &str, wanted: &str) -> bool {
    let parameters = name.strip_prefix(wanted);
    parameters.is_some_and(|rest| rest.is_empty() || rest.starts_with('('))
}

/// Returns whether a path ends in the wanted file.
fn is_file(path: &str, wanted: &str) -> bool {
    let folders = path.strip_suffix(wanted);
    folders.is_some_and(|folders| folders.is_empty() || folders.ends_with('/'))
}

impl Block {
    /// Returns the number of instructions in ranges that fulfil a condition.
    fn sum_of_ranges(&self, condition: impl Fn(&crate::SourceRange) -> bool) -> u32 {
        let ends = self.source_ranges.iter().skip(1).map(|next| next.first);
        let ends = ends.chain([self.instructions]);
        let ranges = self.source_ranges.iter().zip(ends);
        let lengths = ranges
            .filter(|(range, _)| condition(range))
            .map(|(range, end)| end.saturating_sub(range.first));
        lengths.sum::<u32>().min(self.instructions)
    }
}

impl WindowProfile {
    /// Returns the part of its cost that each block keeps under changes. The instructions of a block share its cost equally.
    ///
    /// # Errors
    ///
    /// A change of code that the window does not have.
    pub fn kept(&self, clock: &Clock<'_>, changes: &[CodeChange]) -> Result<Vec<f64>, NoSuchCode> {
        let cycles = clock.by_block();
        let mut kept = vec![1.0; self.blocks.len()];
        for change in changes {
            let mut found = change.place.is_none();
            for (number, block) in self.blocks.iter().enumerate() {
                let part = match &change.place {
                    None => 1.0,
                    Some(place) => match place.instructions(self, block) {
                        0 => continue,
                        some => f64::from(some) / f64::from(block.instructions.max(1)),
                    },
                };
                found = true;
                let part = part * share(&cycles[number], &change.causes);
                kept[number] *= 1.0 - part * (1.0 - change.kept);
            }
            if let (false, Some(place)) = (found, &change.place) {
                return Err(NoSuchCode {
                    window: self.name.clone(),
                    place: place.to_string(),
                    known: self.most_expensive(place, &cycles),
                });
            }
        }
        Ok(kept)
    }

    /// Returns the mean cost of one execution of each block under changes, in sixteenths of a cycle, by the block's index. `kept` is what
    /// [`WindowProfile::kept`] gives. Blocks without machine code are left out.
    pub fn costs(&self, clock: &Clock<'_>, kept: &[f64]) -> Vec<(u32, u64)> {
        let mut executions = vec![0_u64; self.blocks.len()];
        for count in &self.counts {
            let counts = &count.counts;
            let sum = &mut executions[count.block as usize];
            *sum = sum.saturating_add(counts.executions + counts.partial.executions);
        }
        let cycles = clock.by_block();
        let blocks = self.blocks.iter().enumerate();
        let known = blocks.filter(|(at, block)| executions[*at] > 0 && !block.bytes.is_empty());
        known
            .map(|(at, _)| {
                let all = cycles[at].iter().sum::<i128>().max(0) as f64 / CYCLE as f64;
                let each = all * kept[at] / executions[at] as f64;
                (at as u32, (16.0 * each).round() as u64)
            })
            .collect()
    }

    /// Returns the functions, or the source lines, with most cycles as text.
    fn most_expensive(&self, like: &CodePlace, cycles: &[ClockCycles]) -> String {
        let mut sums: std::collections::BTreeMap<String, i128> = Default::default();
        for (block, cycles) in self.blocks.iter().zip(cycles) {
            let all: i128 = cycles.iter().sum();
            match like {
                CodePlace::Function(_) => {
                    let name = &self.functions[block.function as usize].name;
                    *sums.entry(name.clone()).or_default() += all;
                }
                CodePlace::Line(..) => {
                    for line in block.source_ranges.iter().filter_map(|range| range.line) {
                        let line = &self.lines[line as usize];
                        let name = line.file.rsplit('/').next().unwrap_or(&line.file);
                        *sums.entry(format!("{name}:{}", line.line)).or_default() += all;
                    }
                }
            }
        }
        let mut sums: Vec<(String, i128)> = sums.into_iter().collect();
        sums.sort_by_key(|(_, cycles)| -cycles);
        let names: Vec<String> = sums.into_iter().take(NAMED).map(|(name, _)| name).collect();
        match names.is_empty() {
            true => "code without source lines (compile with -g)".into(),
            false => names.join(", "),
        }
    }
}

/// Returns the share of some causes in cycles; 1 for no causes.
fn share(cycles: &ClockCycles, causes: &[Cause]) -> f64 {
    let all: i128 = cycles.iter().sum();
    if causes.is_empty() || all <= 0 {
        return if causes.is_empty() { 1.0 } else { 0.0 };
    }
    let of: i128 = causes.iter().map(|cause| cycles[*cause as usize]).sum();
    (of as f64 / all as f64).clamp(0.0, 1.0)
}
