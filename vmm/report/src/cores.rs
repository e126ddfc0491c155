//! Core models: CPI_core of a window from cycles by basic block, for one core or for several side by side.

use std::collections::BTreeMap;

use nodescope_profile::{CoreCycles, Costs, WindowProfile};
use nodescope_window::WindowRecord;
use serde::Serialize;

use crate::breakdown::{CYCLE, Scope, analyse};
use crate::calls::Calls;
use crate::input::{CoreCpi, ReportError, ReportInput};
use crate::spinning::{self, Spinning};
use crate::table::Table;
use crate::units::{cpi, flops};

/// Core for which a model has computed the cycles of the blocks of a window's profile.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelledCore {
    /// Name of the core, such as `znver4`.
    pub name: String,
    /// Name and version of the model, such as `llvm-mca 22.1.8, core znver4`.
    pub source: String,
    /// Published error of this kind of model, in words.
    pub published_error: String,
    /// Cycles of one execution of each block of the profile, in 1/65536, if the first level serves all loads.
    pub cycles_65536: Vec<i128>,
    /// Share of the window's instructions in blocks that the model has timed, 0 to 1.
    pub coverage: f64,
    /// Blocks without cycles of their own, since the model could not time them or they are executed least. They have the mean CPI of the
    /// timed blocks. Each has its index and the reason; most instructions first.
    pub not_modelled: Vec<(u32, String)>,
}

impl CoreCycles for ModelledCore {
    fn block(&self, block: u32) -> i128 {
        self.cycles_65536.get(block as usize).copied().unwrap_or(0)
    }
}

/// Modelled cores of one window's code.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowCores {
    /// Name of the window.
    pub window: String,
    /// Cores for which cycles were modelled. If CPI_core is modelled, the first core is the one of the CPI stack.
    pub cores: Vec<ModelledCore>,
}

/// Core cycles, in 1/65536, by node and context.
#[derive(Clone, Debug, Default)]
pub(crate) struct CoreTimes(BTreeMap<(u32, u32), i128>);

impl CoreTimes {
    /// Sums up the core cycles of the blocks, including long instructions.
    pub(crate) fn new(profile: &WindowProfile, core: &dyn CoreCycles) -> CoreTimes {
        let mut sums = BTreeMap::new();
        for count in &profile.counts {
            let block = &profile.blocks[count.block as usize];
            let costs = Costs::of(block, count, core.block(count.block));
            let cycles = costs.core_65536 + costs.long_cycles as i128 * CYCLE;
            *sums.entry((count.node, count.context)).or_default() += cycles;
        }
        CoreTimes(sums)
    }

    /// Returns the core cycles of a context, in 1/65536; 0 for a context without counts.
    pub(crate) fn of(&self, node: u32, context: u32) -> i128 {
        self.0.get(&(node, context)).copied().unwrap_or(0)
    }
}

/// CPI stacks of all scopes of a window on one modelled core.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoreStacks {
    /// Name of the core.
    pub core: String,
    /// Name and version of the model.
    pub source: String,
    /// Published error of this kind of model, in words.
    pub published_error: String,
    /// Share of the window's instructions in blocks that the model has timed, 0 to 1.
    pub coverage: f64,
    /// Blocks that the model has not timed, which have the mean CPI of the timed blocks; at most 10.
    pub not_modelled: Vec<NotModelled>,
    /// Number of blocks that the model has not timed and that `not_modelled` does not list.
    pub more_not_modelled: usize,
    /// Number of misses that are assumed to overlap in `overlapped_cpi`; 1 for no overlap.
    pub memory_parallelism: f64,
    /// Stacks of the scopes, in the order of the window's scopes.
    pub scopes: Vec<CoreStack>,
}

/// Block that the core model has not timed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotModelled {
    /// Name of the function in which the block begins.
    pub function: String,
    /// Address of the block's first byte in its module, as in the profile.
    pub offset: u64,
    /// Share of the window's instructions in the block, 0 to 1.
    pub share: f64,
    /// Reason why the core model did not time the block.
    pub reason: String,
}

/// CPI stack of one scope on one modelled core; CPIs are `None` without instructions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoreStack {
    /// Name of the scope.
    pub scope: String,
    /// CPI of equation (1): cycles per instruction, with every stall added.
    pub cpi: Option<f64>,
    /// CPI_core of equation (1).
    pub core_cpi: Option<f64>,
    /// CPI_caches + CPI_memory of equation (1).
    pub stall_cpi: Option<f64>,
    /// CPI_MPI of equation (1).
    pub mpi_cpi: Option<f64>,
    /// CPI of code outside MPI in which threads wait for other threads.
    pub spinning_cpi: Option<f64>,
    /// CPI of equation (1) with CPI_caches and CPI_memory divided by `memory_parallelism`.
    pub overlapped_cpi: Option<f64>,
    /// Rate in FLOP/s by equation (6) as published, with this core's CPI_core.
    pub published_flops: Option<f64>,
}

/// Maximum number of blocks in `not_modelled`.
const LISTED: usize = 10;

/// Returns the CPI stacks of a window on each of its modelled cores.
pub(crate) fn stacks(
    input: &ReportInput,
    record: &WindowRecord,
    profile: &WindowProfile,
    calls: &Calls,
    cores: &[ModelledCore],
) -> Result<Vec<CoreStacks>, ReportError> {
    let total: u128 = profile
        .counts
        .iter()
        .map(|count| instructions(profile, count))
        .sum();
    let mut by_block: BTreeMap<u32, u128> = BTreeMap::new();
    for count in &profile.counts {
        *by_block.entry(count.block).or_default() += instructions(profile, count);
    }
    let modelled = CoreCpi::Modelled {
        source: String::new(),
    };
    let stacks = cores.iter().map(|core| {
        let times = CoreTimes::new(profile, core);
        let spinning = Spinning::new(profile, core);
        let report = analyse(record, &modelled, Some(&times), &spinning, calls)?;
        let not_modelled = core.not_modelled.iter().take(LISTED);
        let not_modelled = not_modelled.map(|(index, reason)| {
            let block = &profile.blocks[*index as usize];
            NotModelled {
                function: profile.functions[block.function as usize].name.clone(),
                offset: block.offset,
                share: by_block.get(index).copied().unwrap_or(0) as f64 / total.max(1) as f64,
                reason: reason.clone(),
            }
        });
        Ok(CoreStacks {
            core: core.name.clone(),
            source: core.source.clone(),
            published_error: core.published_error.clone(),
            coverage: core.coverage,
            not_modelled: not_modelled.collect(),
            more_not_modelled: core.not_modelled.len().saturating_sub(LISTED),
            memory_parallelism: input.memory_parallelism,
            scopes: report
                .scopes
                .iter()
                .map(|scope| stack(scope, input.memory_parallelism))
                .collect(),
        })
    });
    stacks.collect()
}

fn instructions(profile: &WindowProfile, count: &nodescope_profile::Count) -> u128 {
    let block = &profile.blocks[count.block as usize];
    count.counts.instructions(block.instructions).into()
}

fn stack(scope: &Scope, parallelism: f64) -> CoreStack {
    let per_instruction = |cycles: i128| {
        (scope.instructions != 0).then(|| cycles as f64 / CYCLE as f64 / scope.instructions as f64)
    };
    let term = |name: &str| {
        let terms = scope.terms.iter().filter(|term| term.term == name);
        terms.map(|term| term.cycles_65536).sum::<i128>()
    };
    let [core, mpi, spinning] = ["core", "mpi", spinning::TERM].map(term);
    let stalls = scope.cycles_65536 - core - mpi - spinning;
    let (all, stall_cpi) = (per_instruction(scope.cycles_65536), per_instruction(stalls));
    CoreStack {
        scope: scope.name.clone(),
        cpi: all,
        core_cpi: per_instruction(core),
        stall_cpi,
        mpi_cpi: per_instruction(mpi),
        spinning_cpi: per_instruction(spinning),
        overlapped_cpi: all
            .zip(stall_cpi)
            .map(|(all, stalls)| all - stalls + stalls / parallelism),
        published_flops: scope.flops.published_per_second,
    }
}

/// Returns the tables of the stacks, and of the blocks that the models have not timed. Scopes whose names are in `empty` are left out.
pub(crate) fn tables(stacks: &[CoreStacks], empty: &[&str]) -> Vec<Table> {
    if stacks.is_empty() {
        return Vec::new();
    }
    let parallelism = stacks[0].memory_parallelism;
    let overlaps = parallelism > 1.0;
    let mut all = stacks.iter().flat_map(|stack| &stack.scopes);
    let spins = all.any(|scope| scope.spinning_cpi.is_some_and(|cpi| cpi > 0.0));
    let overlap = match overlaps {
        true => {
            format!("; overlapped: caches and memory divided by {parallelism} misses at a time")
        }
        false => String::new(),
    };
    let title = format!(
        "CPI on modelled cores, side by side. Modelled ({}). Every stall is added in full, as the published method does{overlap}",
        stacks[0].published_error
    );
    let mut head = vec!["", "on core", "CPI", "core", "stalls", "MPI"];
    head.extend(spins.then_some("spinning"));
    head.push("formula");
    if overlaps {
        head.push("overlapped");
    }
    let mut table = Table::new(title, 2, &head).about("cores");
    let scopes = stacks.iter().map(|stack| stack.scopes.len()).max();
    for scope in 0..scopes.unwrap_or(0) {
        for stack in stacks {
            let values = stack.scopes.get(scope);
            let Some(values) = values.filter(|values| !empty.contains(&values.scope.as_str()))
            else {
                continue;
            };
            let mut row = vec![
                values.scope.clone(),
                stack.core.clone(),
                cpi(values.cpi),
                cpi(values.core_cpi),
                cpi(values.stall_cpi),
                cpi(values.mpi_cpi),
            ];
            row.extend(spins.then(|| cpi(values.spinning_cpi)));
            row.push(flops(values.published_flops));
            if overlaps {
                row.push(cpi(values.overlapped_cpi));
            }
            table.row(row);
        }
    }
    table.below.push(
        "formula: floating-point rate of one core by the published formula, see FLOPS below".into(),
    );
    for stack in stacks {
        table.below.push(format!(
            "{}: {}. The model timed code with {:.2} % of the instructions; other code has the mean CPI of this code",
            stack.core,
            stack.source,
            stack.coverage * 100.0
        ));
    }
    let mut tables = vec![table];
    let mut missing = Table::new(
        "Basic blocks that the model of a core could not time. Shares counted",
        3,
        &["core", "function", "reason", "share"],
    )
    .about("blocks");
    for stack in stacks {
        for block in &stack.not_modelled {
            missing.row(vec![
                stack.core.clone(),
                block.function.clone(),
                block.reason.clone(),
                format!("{:.2} %", block.share * 100.0),
            ]);
        }
        if stack.more_not_modelled > 0 {
            missing.below.push(format!(
                "{}: {} more blocks",
                stack.core, stack.more_not_modelled
            ));
        }
    }
    if !missing.rows.is_empty() {
        tables.push(missing);
    }
    tables
}
