//! CPI of a window by cause, as the pipeline model gives it: cycles of recorded instructions, carried over to all instructions by what was
//! counted.

use std::collections::BTreeMap;

use nodescope_plugin_api::{CAUSES, Cause, Timed};
use nodescope_profile::WindowProfile;
use nodescope_window::{Owner, WindowRecord};
use serde::Serialize;

use crate::breakdown::{CYCLE, Scope, ScopeKind, TermValue};
use crate::spinning;
use crate::table::Table;
use crate::units::{cpi, si};

/// CPI stacks of a window by cause on the core of the pipeline model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimedReport {
    /// Name of the core.
    pub core: String,
    /// Number of recordings that were timed.
    pub recordings: u64,
    /// Number of timed instructions.
    pub timed_instructions: u64,
    /// Cycles per instruction of the timed instructions; `None` without any.
    pub timed_cpi: Option<f64>,
    /// Half the width of the interval in which the mean of the recordings' CPIs lies with a probability of 95 %; `None` for fewer than two
    /// recordings.
    pub timed_cpi_interval: Option<f64>,
    /// Stacks of the scopes, in the order of the window's scopes.
    pub scopes: Vec<TimedScope>,
}

/// CPI stack of one scope by cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimedScope {
    /// Name of the scope.
    pub scope: String,
    /// Cycles of the scope, in 1/65536: the sum of the terms.
    pub cycles_65536: i128,
    /// Cycles per instruction outside MPI; `None` without such instructions.
    pub cpi: Option<f64>,
    /// Cycles outside MPI by cause, `mpi`: all cycles of instructions inside MPI, and `spinning`: those of
    /// code outside MPI that waits for other threads. Waiting in HLT is in no term.
    pub terms: Vec<TermValue>,
}

/// Cycles of code outside MPI by cause, of code inside MPI, and of code outside MPI that waits for other threads.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    causes: [i128; CAUSES],
    mpi: i128,
    spinning: i128,
}

impl Sum {
    fn add(&mut self, other: &Sum) {
        for (sum, cycles) in self.causes.iter_mut().zip(other.causes) {
            *sum += cycles;
        }
        self.mpi += other.mpi;
        self.spinning += other.spinning;
    }
}

/// Part of a window that a context belongs to: the number of its node, and its rank if it has one.
type Part = (u32, Option<u32>);

/// Returns the report of a window; `None` if no pipeline model was attached.
pub(crate) fn report(
    record: &WindowRecord,
    profile: &WindowProfile,
    scopes: &[Scope],
) -> Option<TimedReport> {
    let cores = record.nodes.iter().filter_map(|node| node.core.as_ref());
    let core = cores.clone().next()?.core.clone();
    let mut timed = Timed::default();
    for of_node in cores {
        timed.add(&of_node.timed);
    }
    let parts = parts(record, profile);
    let of_scope = |scope: &Scope| {
        let belongs = |part: &Part| match scope.kind {
            ScopeKind::Rank => part.1 == scope.rank && Some(part.0) == scope.node,
            ScopeKind::Others => part.1.is_none() && Some(part.0) == scope.node,
            ScopeKind::Node => Some(part.0) == scope.node,
            ScopeKind::Ranks => part.1.is_some(),
            ScopeKind::Total => true,
        };
        let mut sum = Sum::default();
        for (_, cycles) in parts.iter().filter(|(part, _)| belongs(part)) {
            sum.add(cycles);
        }
        stack(scope, &sum)
    };
    Some(TimedReport {
        core,
        recordings: timed.recordings,
        timed_instructions: timed.instructions,
        timed_cpi: timed.cpi(),
        timed_cpi_interval: timed.interval(),
        scopes: scopes.iter().map(of_scope).collect(),
    })
}

fn parts(record: &WindowRecord, profile: &WindowProfile) -> BTreeMap<Part, Sum> {
    let owners: BTreeMap<u32, &[Owner]> = (record.nodes.iter())
        .map(|node| (node.node, node.owners.as_slice()))
        .collect();
    let waits = spinning::waits(profile);
    let mut parts: BTreeMap<Part, Sum> = BTreeMap::new();
    for count in &profile.counts {
        let owner = owners
            .get(&count.node)
            .and_then(|owners| owners.get(count.context as usize));
        let (rank, in_mpi) = match owner {
            Some(Owner::Rank { rank, mpi, .. }) => (Some(*rank), mpi.is_some()),
            _ => (None, false),
        };
        let sum = parts.entry((count.node, rank)).or_default();
        let cycles = count.counts.core_cycles.map(i128::from);
        let all: i128 = cycles.iter().sum();
        match (in_mpi, waits[count.block as usize]) {
            (true, _) => sum.mpi += all,
            (false, true) => sum.spinning += all,
            (false, false) => sum.add(&Sum {
                causes: cycles,
                ..Sum::default()
            }),
        }
    }
    parts
}

fn stack(scope: &Scope, sum: &Sum) -> TimedScope {
    let per_instruction = |cycles: i128| {
        (scope.instructions != 0).then(|| cycles as f64 / CYCLE as f64 / scope.instructions as f64)
    };
    let term = |name: &str, cycles_65536| TermValue {
        term: name.to_owned(),
        cycles_65536,
        cpi: per_instruction(cycles_65536),
    };
    let mut terms: Vec<TermValue> = Cause::ALL
        .map(|cause| term(cause.name(), sum.causes[cause as usize]))
        .into();
    terms.push(term("mpi", sum.mpi));
    terms.push(term(spinning::TERM, sum.spinning));
    let cycles_65536 = terms.iter().map(|term| term.cycles_65536).sum();
    TimedScope {
        scope: scope.name.clone(),
        cycles_65536,
        cpi: per_instruction(cycles_65536),
        terms,
    }
}

/// Returns the head of the column of a cause or a term.
pub(crate) fn head(cause: &str) -> &str {
    match cause {
        "bad_speculation" => "bad spec",
        "tlb" => "TLB",
        "other_cache" => "oth cache",
        "memory_local" => "mem loc",
        "memory_remote" => "mem rem",
        "memory_other" => "mem other",
        "unattributed" => "unattrib.",
        "bandwidth" => "mem bw",
        "mpi" => "MPI",
        cause => cause,
    }
}

/// Returns the table of the stacks, with the CPI of equation (1) beside them. Scopes whose names are in `empty` are left out.
pub(crate) fn table(timed: &TimedReport, scopes: &[Scope], empty: &[&str]) -> Table {
    let used = |at: &usize| {
        let mut all = timed.scopes.iter().map(|scope| &scope.terms[*at]);
        all.any(|term| term.cycles_65536 != 0)
    };
    let columns = timed.scopes.first().map_or(0, |scope| scope.terms.len());
    let columns: Vec<usize> = (0..columns).filter(used).collect();
    let mut head = vec!["", "all stalls", "CPI"];
    let terms = timed.scopes.first();
    let terms = terms.map_or(&[][..], |scope| scope.terms.as_slice());
    head.extend(columns.iter().map(|at| self::head(&terms[*at].term)));
    let title = format!(
        "CPI by cause on {}: each micro-operation of recorded instructions was timed, so that misses overlap and branches are predicted. Modelled",
        timed.core
    );
    let mut table = Table::new(title, 1, &head).about("causes");
    for (scope, of_scope) in scopes.iter().zip(&timed.scopes) {
        if empty.contains(&scope.name.as_str()) {
            continue;
        }
        let mut row = vec![scope.name.clone(), cpi(scope.cpi), cpi(of_scope.cpi)];
        row.extend(columns.iter().map(|at| cpi(of_scope.terms[*at].cpi)));
        table.row(row);
    }
    let interval = match (timed.timed_cpi, timed.timed_cpi_interval) {
        (Some(mean), Some(half)) => format!("; their CPI is {mean:.3} ± {half:.3} (95 %)"),
        _ => String::new(),
    };
    table.below.push(format!(
        "all stalls: the CPI of the published formula, which adds every stall. {} recordings with {} instructions were timed{interval}.",
        timed.recordings,
        si(timed.timed_instructions as f64)
    ));
    table
}
