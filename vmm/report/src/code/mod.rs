//! Report of the code that was executed in a window: functions, source lines, machine code, MPI functions and a roofline, from the window's
//! profile.
//!
//! All costs are integers. The listed functions and those left out add up to the window's totals exactly; so do the source lines, and code
//! inside and outside MPI.

mod annotate;
mod chart;
mod contended;
mod costs;
mod export;
mod html;
mod mpi;
mod roofline;
mod side_by_side;
mod tables;

use std::collections::{BTreeMap, BTreeSet};

use nodescope_profile::{
    ContextLabel, CoreCycles, Costs, Detail, Labels, NominalCore, Scope, Stacks, WindowProfile,
    flame,
};
use nodescope_window::{NodeRecord, Owner, WindowRecord};
use serde::Serialize;

pub use annotate::{InstructionRow, Listing};
pub use contended::{ContendedLine, ContendedPlace, LineVariable, VcpuUse};
pub use costs::{AnswerCount, CodeCosts, CoreValue};
pub use export::{Format, export};
pub use mpi::MpiCode;
pub use roofline::{Ceiling, LevelPoint, Roofline, RooflineRow};

pub(crate) use html::{style, write as html};
pub(crate) use tables::text;

use crate::breakdown::{CYCLE, fixed};
use crate::cores::ModelledCore;
use crate::input::{CoreCpi, ReportError, ReportInput};
use crate::units::grouped as grouped_digits;
use costs::Sum;

/// Core for which the report has cycles of code.
pub struct Core<'a> {
    /// Name of the core, such as `nominal CPI`.
    pub name: String,
    /// Cycles of the core for each block.
    pub cycles: Box<dyn CoreCycles + 'a>,
    /// True if cycles of long instructions (REP strings, PAUSE) must be added to `cycles`.
    pub long_instructions: bool,
}

impl Core<'_> {
    /// Returns the cycles of long instructions that `cycles` does not contain, in 1/65536.
    fn long(&self, costs: &Costs) -> i128 {
        match self.long_instructions {
            true => costs.long_cycles as i128 * CYCLE,
            false => 0,
        }
    }
}

/// Report of a window's code. The serialized form is `windows[].code` in `report.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CodeReport {
    /// Names of the cores for which the report has cycles. Cycles and shares are those of the first core.
    pub cores: Vec<String>,
    /// Costs of all code of the window.
    pub total: CodeCosts,
    /// Functions that together have 99.9 % of the cycles, most expensive first, at most 5000.
    pub functions: Vec<FunctionCost>,
    /// Sum of the functions that `functions` does not list.
    pub other_functions: Rest,
    /// Source lines that together have 99.9 % of the cycles, most expensive first, at most 5000.
    pub lines: Vec<LineCost>,
    /// Sum of the source lines that `lines` does not list.
    pub other_lines: Rest,
    /// Machine code of the most expensive basic blocks, most expensive first, at most 50.
    pub blocks: Vec<Listing>,
    /// Code inside MPI calls by MPI function, most expensive function first.
    pub mpi: Vec<MpiCode>,
    /// Costs of code outside MPI calls.
    pub outside_mpi: CodeCosts,
    /// Lines of memory that vCPUs took from each other, with most cycles first; at most 100 of each node.
    pub contended_lines: Vec<ContendedLine>,
    /// Rates of functions with floating-point operations, and the machine's limits.
    pub roofline: Roofline,
    /// Sentences for the user about missing or inconsistent information.
    pub notes: Vec<String>,
    /// True if the window was sampled.
    #[serde(skip)]
    pub(crate) sampled: bool,
    #[serde(skip)]
    pub(crate) drawings: Drawings,
    /// Texts of source files, by their path in the debugging information; may be empty.
    #[serde(skip)]
    pub(crate) sources: BTreeMap<String, String>,
}

impl CodeReport {
    /// Returns the paths of the source files of the listed machine code.
    pub(crate) fn source_files(&self) -> BTreeSet<&str> {
        let instructions = self.blocks.iter().flat_map(|block| &block.instructions);
        let sources = instructions.filter_map(|row| row.source.as_deref()?.rsplit_once(':'));
        sources.map(|(file, _)| file).collect()
    }
}

/// SVG drawings of a window's code.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Drawings {
    pub(crate) flame: String,
    pub(crate) roofline: Option<String>,
}

/// Costs of a function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionCost {
    /// Name of the function, demangled; `module+0xoffset` if no symbol is known.
    pub function: String,
    /// Path of the function's module in the guest, or a name in brackets.
    pub module: String,
    /// Costs of the function, without those of the functions that it called.
    pub costs: CodeCosts,
}

/// Costs of a source line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LineCost {
    /// Path of the source file, as the debugging information gives it; `None` for code without a line.
    pub file: Option<String>,
    /// Number of the line, from 1; `None` for code without a line.
    pub line: Option<u32>,
    /// Share of the costs of the blocks that the line is in, in proportion to the number of the line's instructions.
    pub costs: CodeCosts,
}

/// Sum of the entries that a list leaves out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rest {
    /// Number of entries that are not listed.
    pub count: usize,
    /// Sum of the costs of these entries.
    pub costs: CodeCosts,
}

/// Share of the window's cycles, in thousandths, at which a list ends.
const COVERED: i128 = 999;
/// Maximum number of entries in a list.
const MOST_ROWS: usize = 5000;
/// Width of the flame graph in a page, pixels.
const FLAME_WIDTH: u32 = 1080;
/// Width of a flame graph in a file of its own, pixels.
const WIDE_FLAME: u32 = 1280;

impl CodeReport {
    /// Makes the report of a window's code. Cycles are those of the first core; each further core adds a column. Fails without a core, or
    /// if the roofline cannot be drawn.
    pub fn new(
        record: &WindowRecord,
        profile: &WindowProfile,
        cores: &[Core<'_>],
    ) -> Result<CodeReport, ReportError> {
        let core: &dyn CoreCycles = match cores.first() {
            Some(core) => &*core.cycles,
            None => {
                return Err(ReportError::Code {
                    window: record.name.clone(),
                    what: "no core is given whose cycles it could show".into(),
                });
            }
        };
        let whole = grouped(cores, |core| {
            BTreeMap::from([((), profile.total(Scope::Total, core))])
        });
        let whole = whole.into_values().next().unwrap_or_default();
        let shown = |sum: &Sum| CodeCosts::new(sum, &whole, cores);
        let rest = |(count, sum): (usize, Sum)| Rest {
            count,
            costs: shown(&sum),
        };

        let by_function = grouped(cores, |core| profile.by_function(Scope::Total, core));
        let (functions, other_functions) = ranked(by_function, &whole);
        let roofline = Roofline::new(record, profile, &functions);
        let by_line = grouped(cores, |core| profile.by_line(Scope::Total, core));
        let (lines, other_lines) = ranked(by_line, &whole);
        let by_block = grouped(cores, |core| profile.by_block(Scope::Total, core));
        let (blocks, _) = ranked(by_block, &whole);
        let labels = labels(record);
        let (mpi, outside) = mpi::split(profile, cores, &labels, &shown);

        let stacks = Stacks::new(profile, core, &labels, Detail::Functions);
        let tree = flame::tree(profile, &stacks);
        let drawings = Drawings {
            flame: flame::svg(&tree, FLAME_WIDTH),
            roofline: chart::draw(&roofline)?,
        };
        let mut notes = profile.notes.clone();
        notes.extend(unaccounted(record, &whole.costs));
        notes.extend(unequal(record));
        Ok(CodeReport {
            cores: cores.iter().map(|core| core.name.clone()).collect(),
            total: shown(&whole),
            functions: (functions.iter())
                .map(|(index, sum)| {
                    let function = &profile.functions[*index as usize];
                    FunctionCost {
                        function: function.name.clone(),
                        module: profile.modules[function.module as usize].name.clone(),
                        costs: shown(sum),
                    }
                })
                .collect(),
            other_functions: rest(other_functions),
            lines: (lines.iter())
                .map(|(index, sum)| {
                    let line = index.map(|index| &profile.lines[index as usize]);
                    LineCost {
                        file: line.map(|line| line.file.clone()),
                        line: line.map(|line| line.line),
                        costs: shown(sum),
                    }
                })
                .collect(),
            other_lines: rest(other_lines),
            blocks: (blocks.iter().take(Listing::MOST))
                .filter(|(_, sum)| sum.costs.executions > 0)
                .map(|(index, sum)| Listing::new(profile, *index, sum, shown(sum)))
                .collect(),
            mpi,
            outside_mpi: shown(&outside),
            contended_lines: contended::lines(
                profile,
                whole.costs.cycles_65536() as f64 / CYCLE as f64,
            ),
            roofline,
            notes,
            sampled: record.spec.sampling.is_some(),
            drawings,
            sources: BTreeMap::new(),
        })
    }
}

/// Returns the cores for which the code of a window is shown. The first core is the one of the window's CPI stack. If a number replaces
/// CPI_core, the nominal CPI is first and the number is second.
pub fn cores<'p>(
    core: &CoreCpi,
    record: &WindowRecord,
    profile: &'p WindowProfile,
    models: &'p [ModelledCore],
) -> Result<Vec<Core<'p>>, ReportError> {
    let of_cpi = |name: String, cpi_65536, long_instructions| Core {
        name,
        cycles: Box::new(NominalCore { profile, cpi_65536 }),
        long_instructions,
    };
    let modelled = models.iter().map(|core| Core {
        name: core.name.clone(),
        cycles: Box::new(core.clone()),
        long_instructions: true,
    });
    let mut cores = Vec::new();
    if models.is_empty() || !matches!(core, CoreCpi::Modelled { .. }) {
        let nominal = record.nodes.first().map_or(0, |n| n.nominal_cpi_65536);
        cores.push(of_cpi("the nominal CPI".into(), nominal, true));
        if let Some(cpi) = fixed(core)?.of(None) {
            cores.push(of_cpi("replaced".into(), cpi, false));
        }
    }
    cores.extend(modelled);
    Ok(cores)
}

/// Makes the report of a window's code, on the cores that the input selects.
pub(crate) fn of_window(
    input: &ReportInput,
    record: &WindowRecord,
    profile: &WindowProfile,
    models: &[ModelledCore],
) -> Result<CodeReport, ReportError> {
    let cores = cores(&input.core, record, profile, models)?;
    CodeReport::new(record, profile, &cores)
}

/// Draws the flame graph of a window's cycles, for an SVG file of its own.
pub fn flame_svg(record: &WindowRecord, profile: &WindowProfile, core: &dyn CoreCycles) -> String {
    let stacks = Stacks::new(profile, core, &labels(record), Detail::Functions);
    flame::svg(&flame::tree(profile, &stacks), WIDE_FLAME)
}

/// Sums the first core's costs by a key, and adds the core cycles of each further core.
fn grouped<K: Ord>(
    cores: &[Core<'_>],
    sums: impl Fn(&dyn CoreCycles) -> BTreeMap<K, Costs>,
) -> BTreeMap<K, Sum> {
    let mut grouped: BTreeMap<K, Sum> = BTreeMap::new();
    for (n, core) in cores.iter().enumerate() {
        for (key, costs) in sums(&*core.cycles) {
            let further = costs.core_65536 + core.long(&costs);
            let sum = grouped.entry(key).or_default();
            match n {
                0 => sum.costs = costs,
                _ => sum.further.push(further),
            }
        }
    }
    grouped
}

/// Returns the entries that have most of the cycles, most expensive first. Also returns the number and the sum of the others.
fn ranked<K: Ord>(sums: BTreeMap<K, Sum>, whole: &Sum) -> (Vec<(K, Sum)>, (usize, Sum)) {
    let mut entries: Vec<(K, Sum)> = sums.into_iter().collect();
    // The sort is stable: entries with equal cycles keep the order of their keys.
    entries.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.costs.cycles_65536()));
    let total = whole.costs.cycles_65536();
    let mut covered = 0;
    let mut listed = 0;
    for (_, sum) in entries.iter().take(MOST_ROWS) {
        if covered * 1000 >= total * COVERED {
            break;
        }
        covered += sum.costs.cycles_65536();
        listed += 1;
    }
    let mut rest = Sum {
        further: vec![0; whole.further.len()],
        ..Sum::default()
    };
    let others = entries.split_off(listed);
    for (_, sum) in &others {
        rest.add(sum);
    }
    (entries, (others.len(), rest))
}

/// Returns the owner of each context of a window.
pub fn labels(record: &WindowRecord) -> Labels {
    let mut programs: Vec<&str> = Vec::new();
    for owner in record.nodes.iter().flat_map(|node| &node.owners) {
        if let Owner::Rank { program, .. } = owner {
            programs.push(program);
        }
    }
    programs.sort_unstable();
    programs.dedup();
    let mut labels = Labels::new();
    for node in &record.nodes {
        for (context, owner) in node.owners.iter().enumerate() {
            let mut label = ContextLabel {
                node: node.node,
                ..ContextLabel::default()
            };
            let others = format!("others {}", node.name);
            match owner {
                Owner::Rank { rank, program, mpi } => {
                    label.frames.push(if programs.len() > 1 {
                        format!("rank {rank} {program}")
                    } else {
                        format!("rank {rank}")
                    });
                    label.rank = Some(*rank);
                    label.program = Some(program.clone());
                    label.mpi = mpi.map(|function| function.name().to_owned());
                    label.frames.extend(label.mpi.clone());
                }
                Owner::Process { program, .. } => {
                    label.frames.extend([others, program.clone()]);
                    label.program = Some(program.clone());
                }
                Owner::Other => label.frames.push(others),
            }
            labels.insert((node.node, context as u32), label);
        }
    }
    labels
}

/// Returns a note if nodes have different nominal CPIs or frequencies, since the code's cycles use those of the first node.
fn unequal(record: &WindowRecord) -> Option<String> {
    let first = record.nodes.first()?;
    let equal = |node: &NodeRecord| {
        (node.nominal_cpi_65536, node.frequency_hz) == (first.nominal_cpi_65536, first.frequency_hz)
    };
    (!record.nodes.iter().all(equal)).then(|| {
        format!(
            "nodes have different nominal CPIs or frequencies; the code's cycles are by those of {}",
            first.name
        )
    })
}

/// Returns a note if the profile's instructions or stall cycles differ from those of the window's counters.
fn unaccounted(record: &WindowRecord, costs: &Costs) -> Option<String> {
    let counters = record.nodes.iter().flat_map(|node| &node.counters);
    let (mut instructions, mut stalls) = (0, 0);
    for (.., counters) in counters {
        instructions += u128::from(counters.instructions);
        stalls += u128::from(counters.stall_cycles);
    }
    let of_code: u128 = costs.stalls.iter().sum();
    (instructions != costs.instructions || stalls != of_code).then(|| {
        format!(
            "the profile of the code has {} instructions and {} stall cycles, the window's counters have {} and {}",
            grouped_digits(costs.instructions),
            grouped_digits(of_code),
            grouped_digits(instructions),
            grouped_digits(stalls),
        )
    })
}
