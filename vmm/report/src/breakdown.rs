//! Equations (1) to (5) for one window: the distribution of the cycles of each rank and node over the terms.
//!
//! Cycles are integers in 1/65536 of a cycle, the unit of the nominal CPI, so that every sum is exact. The definitions are in this crate's
//! `README.md`.

use std::collections::BTreeMap;

use nodescope_hypercall::Function;
use nodescope_plugin_api::{
    Context, Counters, FLOP_CLASSES, Privilege, STALL_TERMS, StallTerm, Term,
};
use nodescope_profile::Costs;
use nodescope_window::{NodeRecord, Owner, WindowRecord};
use serde::Serialize;

use crate::calls::Calls;
use crate::code::CodeReport;
use crate::cores::{CoreStacks, CoreTimes};
use crate::flops::Flops;
use crate::input::{CoreCpi, ReportError};
use crate::sampled::SampledReport;
use crate::spinning::{self, Spinning};
use crate::timed::TimedReport;

/// Number of units (1/65536 of a cycle) in one cycle.
pub const CYCLE: i128 = 65_536;

/// Report of a window: its times, and the breakdown of the CPI of every scope.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowReport {
    /// Name of the window.
    pub name: String,
    /// True if the window measured all that it was meant to measure.
    pub complete: bool,
    /// True if the window was closed during its warm-up; the figures are then those of the warm-up.
    pub warm_up_only: bool,
    /// Event that opened the window, in words.
    pub trigger: String,
    /// Virtual time at which the window's trigger fired, picoseconds.
    pub triggered_ps: u64,
    /// Virtual time at which the models were attached, picoseconds.
    pub opened_ps: u64,
    /// Virtual time at which the warm-up ended and measuring started, picoseconds.
    pub measured_from_ps: u64,
    /// Virtual time at which the window closed, picoseconds.
    pub closed_ps: u64,
    /// Attached models, in words.
    pub models: String,
    /// Names of the registered models that the window used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub registered_models: Vec<String>,
    /// Scopes in this order: ranks, other code on each node, nodes, the sum of all ranks, the total.
    pub scopes: Vec<Scope>,
    /// CPI stacks on modelled cores, side by side. If CPI_core is modelled, the first core is the one of the scopes' terms.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<CoreStacks>,
    /// The intervals of a sampled window; `None` for other windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<SampledReport>,
    /// CPI stacks by cause, as the pipeline model gives them; `None` if the window had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed: Option<TimedReport>,
    /// Report of the code that was executed; `None` without a profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<CodeReport>,
}

/// Kind of the parts that a [`Scope`] sums up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScopeKind {
    /// A rank: its address space, in user mode and in the kernel.
    Rank,
    /// All code on a node that belongs to no rank.
    Others,
    /// A node: its ranks and all other code.
    Node,
    /// The sum of all ranks.
    Ranks,
    /// The sum of all nodes.
    Total,
}

/// Breakdown of the CPI of one rank, one node or a sum.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scope {
    /// Name for people, such as `rank 3`.
    pub name: String,
    /// Kind of the scope, for programs.
    pub kind: ScopeKind,
    /// Rank of the scope; `None` unless the scope is a rank.
    pub rank: Option<u32>,
    /// Number of the node that the scope is or belongs to; `None` for sums over nodes.
    pub node: Option<u32>,
    /// Instructions retired outside MPI, the denominator of every CPI and P.
    pub instructions: u128,
    /// Instructions retired inside MPI calls.
    pub instructions_in_mpi: u128,
    /// Modelled cycles, in 1/65536: the sum of the terms.
    pub cycles_65536: i128,
    /// Equation (1): modelled cycles, those of MPI included, per instruction outside MPI; `None` without such instructions.
    pub cpi: Option<f64>,
    /// Terms of equations (1) to (4); their cycles add up to `cycles_65536`.
    pub terms: Vec<TermValue>,
    /// Addends of equations (3) and (4), and events that are only informational.
    pub events: Vec<EventValue>,
    /// Addends of equation (5).
    pub mpi: Vec<MpiValue>,
    /// Floating-point operations: equation (6) and the direct figure.
    pub flops: Flops,
    /// Counts in user mode and in the kernel, separately.
    pub privileges: Vec<PrivilegeValue>,
    /// Check against the vCPUs' clocks; `None` unless the scope is a node or the total, and where a model of the core has set the clocks.
    pub clock: Option<ClockCheck>,
}

/// Term of a CPI stack, with its cycles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TermValue {
    /// Name of the term: `core`, `L1`, `L2`, ..., `memory_local`, `memory_remote`, `memory_other`, the names of registered
    /// models that add cycles to references, `mpi`, `spinning`, `unattributed`.
    pub term: String,
    /// Cycles of the term, in 1/65536.
    pub cycles_65536: i128,
    /// Cycles of the term per instruction outside MPI; `None` without instructions.
    pub cpi: Option<f64>,
}

/// Addend P * L of equation (3) or (4), for references outside MPI.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventValue {
    /// Name of the event in the model, such as `L2.read_miss`.
    pub event: String,
    /// Name of the term that the event belongs to; `None` if the event is only informational.
    pub term: Option<String>,
    /// Number of events.
    pub count: u128,
    /// P: events per instruction outside MPI; `None` without such instructions.
    pub per_instruction: Option<f64>,
    /// L: mean latency in cycles; 0 without events.
    pub latency: f64,
    /// Cycles of all these events.
    pub cycles: u128,
}

/// Addend P * L of equation (5), for one MPI function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MpiValue {
    /// Name of the MPI function.
    pub function: &'static str,
    /// Number of calls that ended in the window.
    pub calls: u64,
    /// P: calls per instruction outside MPI; `None` without instructions.
    pub per_instruction: Option<f64>,
    /// L: mean cycles per call; `None` if no call ended in the window.
    pub latency: Option<f64>,
    /// All cycles inside the function, in 1/65536: the sum of `executing_65536`, `stalled` and `waiting`.
    pub cycles_65536: i128,
    /// Cycles of executed instructions, in 1/65536, while the rank did not wait.
    pub executing_65536: i128,
    /// Cycles of stalls while the rank did not wait.
    pub stalled: u128,
    /// Cycles while the rank waited: in HLT, or polling for a message or a rank that had not come.
    pub waiting: u128,
    /// Part of `waiting` that the rank spent polling: cycles of instructions and stalls.
    pub polling: u128,
    /// Cycles inside the function per instruction outside MPI; `None` without instructions.
    pub cpi: Option<f64>,
}

/// Counts at one privilege level, of code inside and outside MPI together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrivilegeValue {
    /// `user` or `kernel`.
    pub privilege: &'static str,
    /// Number of instructions retired.
    pub instructions: u128,
    /// Cycles of instructions (by the nominal CPI, with long instructions) and of stalls, in 1/65536.
    pub cycles_65536: i128,
    /// Number of data reads, one for each cache line touched.
    pub loads: u128,
    /// Number of data writes, one for each cache line touched.
    pub stores: u128,
    /// Number of instruction fetches, one for each cache line entered.
    pub fetches: u128,
    /// Number of floating-point operations.
    pub flops: u128,
}

/// Check of the modelled cycles: terms + idle + substituted + difference = clocks, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClockCheck {
    /// Sum of the cycles by which the vCPUs' clocks advanced.
    pub clock_cycles: u128,
    /// Cycles in HLT outside MPI; no term of the CPI contains them.
    pub idle_cycles: u128,
    /// Core cycles that a replaced CPI_core has removed (positive) or added (negative) after the run, in 1/65536.
    pub substituted_65536: i128,
    /// Remaining difference, in 1/65536: fractions of cycles that clocks carry over the window's ends; 0 for a whole nominal CPI.
    pub difference_65536: i128,
    /// True if the difference is less than one cycle per vCPU.
    pub consistent: bool,
}

#[derive(Clone, Debug, Default)]
struct InMpi {
    calls: u64,
    executing: i128,
    stalled: u128,
    /// Cycles in HLT.
    idle: u128,
    /// Cycles of instructions and stalls while the rank waited.
    polling: u128,
}

impl InMpi {
    /// Moves the cycles in which the rank polled from `executing` and `stalled` to `polling`. The rank polled while it waited according to
    /// the trace and was not in HLT. Stalls while polling are not counted separately; their share is assumed to be that of stalls in the
    /// whole function.
    fn wait(&mut self, waited: u128) {
        let busy = self.executing + self.stalled as i128 * CYCLE;
        // Whole cycles are moved, so that a fraction of a cycle remains in `executing`.
        let whole = (busy / CYCLE) as u128;
        let polling = waited.saturating_sub(self.idle).min(whole);
        let executing = (self.executing / CYCLE) as u128;
        let stalled = match whole {
            0 => 0,
            whole => share(self.stalled, polling, whole).max(polling.saturating_sub(executing)),
        };
        self.stalled -= stalled;
        self.executing -= (polling - stalled) as i128 * CYCLE;
        self.polling += polling;
    }
}

/// Returns `value * part / whole`, rounded down, or somewhat less if the product overflows; `part` must not be greater than `whole`.
fn share(value: u128, part: u128, whole: u128) -> u128 {
    match value.checked_mul(part) {
        Some(product) => product / whole,
        None => value / whole * part,
    }
}

#[derive(Clone, Debug, Default)]
struct AtPrivilege {
    instructions: u128,
    cycles: i128,
    loads: u128,
    stores: u128,
    fetches: u128,
    flops: u128,
}

/// Exact sums over the counters of a scope.
#[derive(Clone, Debug, Default)]
struct Sum {
    instructions: u128,
    instructions_in_mpi: u128,
    core: i128,
    substituted: i128,
    stalls: u128,
    events: BTreeMap<(Term, String), (u128, u128)>,
    mpi: BTreeMap<Function, InMpi>,
    /// Part of `core` in code that waits for other threads.
    spinning_core: i128,
    /// Stalls of this code, by term; they are part of `events`.
    spinning_stalls: [u128; STALL_TERMS],
    flops: [u128; FLOP_CLASSES],
    flops_in_mpi: u128,
    privileges: [AtPrivilege; 2],
    /// Modelled cycles in 1/65536, by the node's frequency in Hz.
    cycles_at: BTreeMap<u64, i128>,
}

impl Sum {
    fn count(
        &mut self,
        counters: &Counters,
        privilege: Privilege,
        mpi: Option<Function>,
        rate: Rate,
        core_time: Option<i128>,
    ) {
        let wide = u128::from;
        let base = i128::from(counters.instructions) * i128::from(rate.nominal);
        let long = i128::from(counters.long_cycles) * CYCLE;
        let stall = i128::from(counters.stall_cycles) * CYCLE;
        let flops: u128 = counters.flops.iter().copied().map(wide).sum();
        let mut modelled = base + long + stall;
        if let Some(function) = mpi {
            let inside = self.mpi.entry(function).or_default();
            inside.executing += base + long;
            inside.stalled += wide(counters.stall_cycles);
            inside.idle += wide(counters.idle_cycles);
            modelled += i128::from(counters.idle_cycles) * CYCLE;
            self.instructions_in_mpi += wide(counters.instructions);
            self.flops_in_mpi += flops;
        } else {
            let replaced = rate
                .core
                .map(|cpi| i128::from(counters.instructions) * i128::from(cpi));
            let core = core_time.or(replaced).unwrap_or(base + long);
            self.core += core;
            self.substituted += base + long - core;
            modelled += core - base - long;
            self.instructions += wide(counters.instructions);
            self.stalls += wide(counters.stall_cycles);
            // Idle time outside MPI belongs to the vCPU; the caller sums it up for the node.
        }
        for (sum, count) in self.flops.iter_mut().zip(counters.flops) {
            *sum += wide(count);
        }
        let at = &mut self.privileges[usize::from(privilege == Privilege::Kernel)];
        at.instructions += wide(counters.instructions);
        at.cycles += base + long + stall;
        at.loads += wide(counters.loads);
        at.stores += wide(counters.stores);
        at.fetches += wide(counters.fetches);
        at.flops += flops;
        *self.cycles_at.entry(rate.frequency).or_default() += modelled;
    }

    /// Counts code outside MPI that waits for other threads, which `count` has counted as work.
    fn count_spinning(&mut self, costs: &Costs, rate: Rate) {
        let core = match rate.core {
            Some(cpi) => costs.instructions as i128 * i128::from(cpi),
            None => costs.core_65536 + costs.long_cycles as i128 * CYCLE,
        };
        self.spinning_core += core;
        let stalls = self.spinning_stalls.iter_mut().zip(costs.stalls);
        stalls.for_each(|(sum, cycles)| *sum += cycles);
    }

    fn add(&mut self, other: &Sum) {
        self.instructions += other.instructions;
        self.instructions_in_mpi += other.instructions_in_mpi;
        self.core += other.core;
        self.substituted += other.substituted;
        self.stalls += other.stalls;
        for (key, (count, cycles)) in &other.events {
            let sum = self.events.entry(key.clone()).or_default();
            sum.0 += count;
            sum.1 += cycles;
        }
        for (function, inside) in &other.mpi {
            let sum = self.mpi.entry(*function).or_default();
            sum.calls = sum.calls.saturating_add(inside.calls);
            sum.executing += inside.executing;
            sum.stalled += inside.stalled;
            sum.idle += inside.idle;
            sum.polling += inside.polling;
        }
        self.spinning_core += other.spinning_core;
        let stalls = self.spinning_stalls.iter_mut().zip(other.spinning_stalls);
        stalls.for_each(|(sum, cycles)| *sum += cycles);
        for (sum, count) in self.flops.iter_mut().zip(other.flops) {
            *sum += count;
        }
        self.flops_in_mpi += other.flops_in_mpi;
        for (sum, at) in self.privileges.iter_mut().zip(&other.privileges) {
            sum.instructions += at.instructions;
            sum.cycles += at.cycles;
            sum.loads += at.loads;
            sum.stores += at.stores;
            sum.fetches += at.fetches;
            sum.flops += at.flops;
        }
        for (frequency, cycles) in &other.cycles_at {
            *self.cycles_at.entry(*frequency).or_default() += cycles;
        }
    }

    fn finish(self, name: String, kind: ScopeKind, window_seconds: f64, levels: u8) -> Scope {
        let instructions = self.instructions;
        let per_instruction = |value: f64| (instructions != 0).then(|| value / instructions as f64);
        let cpi = |cycles: i128| per_instruction(cycles as f64 / CYCLE as f64);

        let mut sums: BTreeMap<String, u128> = BTreeMap::new();
        let mut attributed = 0;
        let mut events = Vec::new();
        for ((term, event), (count, cycles)) in self.events {
            let name = term_name(term, &event);
            if let Some(name) = &name {
                *sums.entry(name.clone()).or_default() += cycles;
                attributed += cycles;
            }
            events.push(EventValue {
                event,
                term: name,
                count,
                per_instruction: per_instruction(count as f64),
                latency: if count == 0 {
                    0.0
                } else {
                    cycles as f64 / count as f64
                },
                cycles,
            });
        }
        let spinning_core = self.spinning_core.min(self.core);
        let mut spinning = spinning_core;
        for (term, cycles) in StallTerm::ALL.iter().zip(self.spinning_stalls) {
            // A profile that was cut may lack stalls, and an event of another name keeps them.
            if let Some(sum) = sums.get_mut(term.name()) {
                let moved = cycles.min(*sum);
                *sum -= moved;
                spinning += moved as i128 * CYCLE;
            }
        }
        let mut terms = vec![("core".to_owned(), self.core - spinning_core)];
        let mut take = |name: String, always: bool, terms: &mut Vec<(String, i128)>| {
            let cycles = sums.remove(&name);
            if always || cycles.is_some() {
                terms.push((name, cycles.unwrap_or(0) as i128 * CYCLE));
            }
        };
        for level in 1..=levels {
            take(format!("L{level}"), true, &mut terms);
        }
        take("memory_local".into(), true, &mut terms);
        take("memory_remote".into(), true, &mut terms);
        take("memory_other".into(), false, &mut terms);
        // The rest are terms of registered models.
        for (name, cycles) in std::mem::take(&mut sums) {
            terms.push((name, cycles as i128 * CYCLE));
        }
        let mpi: Vec<MpiValue> = self
            .mpi
            .iter()
            .map(|(function, inside)| {
                let waiting = inside.idle + inside.polling;
                let cycles = inside.executing + (inside.stalled + waiting) as i128 * CYCLE;
                MpiValue {
                    function: function.name(),
                    calls: inside.calls,
                    per_instruction: per_instruction(inside.calls as f64),
                    latency: (inside.calls != 0)
                        .then(|| cycles as f64 / CYCLE as f64 / inside.calls as f64),
                    cycles_65536: cycles,
                    executing_65536: inside.executing,
                    stalled: inside.stalled,
                    waiting,
                    polling: inside.polling,
                    cpi: cpi(cycles),
                }
            })
            .collect();
        terms.push(("mpi".into(), mpi.iter().map(|m| m.cycles_65536).sum()));
        if spinning != 0 {
            terms.push((spinning::TERM.into(), spinning));
        }
        let unattributed = self.stalls as i128 - attributed as i128;
        if unattributed != 0 {
            terms.push(("unattributed".into(), unattributed * CYCLE));
        }
        let cycles: i128 = terms.iter().map(|(_, cycles)| cycles).sum();
        let core = self.core;
        let busy_seconds = self
            .cycles_at
            .iter()
            .map(|(&frequency, &cycles)| cycles as f64 / CYCLE as f64 / frequency as f64)
            .sum();
        let privileges = ["user", "kernel"]
            .into_iter()
            .zip(self.privileges)
            .map(|(privilege, at)| PrivilegeValue {
                privilege,
                instructions: at.instructions,
                cycles_65536: at.cycles,
                loads: at.loads,
                stores: at.stores,
                fetches: at.fetches,
                flops: at.flops,
            })
            .collect();
        Scope {
            name,
            kind,
            rank: None,
            node: None,
            instructions,
            instructions_in_mpi: self.instructions_in_mpi,
            cycles_65536: cycles,
            cpi: cpi(cycles),
            terms: terms
                .into_iter()
                .map(|(term, cycles_65536)| TermValue {
                    term,
                    cycles_65536,
                    cpi: cpi(cycles_65536),
                })
                .collect(),
            events,
            mpi,
            flops: Flops::new(
                &self.flops,
                self.flops_in_mpi,
                instructions,
                core,
                cycles,
                busy_seconds,
                window_seconds,
            ),
            privileges,
            clock: None,
        }
    }
}

/// Returns the name of the term that an event belongs to; `None` for an informational event.
fn term_name(term: Term, event: &str) -> Option<String> {
    match term {
        Term::Cache(level) => Some(format!("L{level}")),
        Term::Memory if event.starts_with("memory.local") => Some("memory_local".into()),
        Term::Memory if event.starts_with("memory.remote") => Some("memory_remote".into()),
        Term::Memory => Some("memory_other".into()),
        Term::Model => event.split('.').next().map(str::to_owned),
        Term::None => None,
    }
}

#[derive(Clone, Copy)]
struct Rate {
    frequency: u64,
    nominal: u32,
    /// CPI in 1/65536 that replaces the core's cycles; `None` if nothing replaces them.
    core: Option<u32>,
}

/// Fixed CPIs, in 1/65536, that replace the core's cycles.
pub(crate) struct Fixed {
    whole: Option<u32>,
    ranks: BTreeMap<u32, u32>,
}

impl Fixed {
    /// Returns the CPI of a rank, or of code of no rank; `None` if nothing is replaced.
    pub(crate) fn of(&self, rank: Option<u32>) -> Option<u32> {
        let own = rank.and_then(|rank| self.ranks.get(&rank).copied());
        own.or(self.whole)
    }
}

/// Converts CPIs to 1/65536. Fails for a CPI outside 0 to 65535.
pub(crate) fn fixed(core: &CoreCpi) -> Result<Fixed, ReportError> {
    let (whole, ranks, source) = match core {
        CoreCpi::Nominal { source } | CoreCpi::Modelled { source } => (None, None, source),
        CoreCpi::Replaced { cpi, source } => (Some(cpi), None, source),
        CoreCpi::PerRank {
            whole,
            ranks,
            source,
        } => (Some(whole), Some(ranks), source),
    };
    let fixed = |cpi: &f64| match (0.0..=65_535.0).contains(cpi) {
        true => Ok((cpi * 65_536.0).round() as u32),
        false => Err(ReportError::CoreCpi {
            cpi: *cpi,
            origin: source.clone(),
        }),
    };
    let ranks = ranks.into_iter().flatten();
    Ok(Fixed {
        whole: whole.map(fixed).transpose()?,
        ranks: ranks
            .map(|(rank, cpi)| Ok((*rank, fixed(cpi)?)))
            .collect::<Result<_, ReportError>>()?,
    })
}

fn check(window: &str, node: &NodeRecord) -> Result<(), ReportError> {
    let wrong = |what: String| {
        Err(ReportError::Inconsistent {
            window: window.to_owned(),
            node: node.node,
            what,
        })
    };
    if node.frequency_hz == 0 {
        return wrong("its frequency is 0 Hz".into());
    }
    if node.cycles.len() != node.vcpus.len() {
        return wrong(format!(
            "{} clocks for {} vCPUs",
            node.cycles.len(),
            node.vcpus.len()
        ));
    }
    if let Some(vcpu) = node.cycles.iter().position(|(start, end)| end < start) {
        return wrong(format!("the clock of vCPU {vcpu} ran backwards"));
    }
    let keys = node
        .counters
        .iter()
        .map(|(vcpu, context, ..)| (*vcpu, *context))
        .chain(node.statistics.iter().map(|s| (s.vcpu, s.context)));
    for (vcpu, context) in keys {
        if usize::from(vcpu) >= node.vcpus.len() {
            return wrong(format!("it counts for vCPU {vcpu}, which it has not"));
        }
        if context.0 as usize >= node.owners.len() {
            return wrong(format!("context {} has no owner", context.0));
        }
    }
    Ok(())
}

/// Returns the number of whole cycles in a time in picoseconds.
fn cycles_of(ps: u64, frequency: u64) -> u128 {
    u128::from(ps) * u128::from(frequency) / 1_000_000_000_000
}

/// Returns the check of the clocks; `None` where a model of the core has set the clocks, which then count the exposed part of stalls.
fn clock(nodes: &[&NodeRecord], sum: &Sum, scope: &Scope, idle: u128) -> Option<ClockCheck> {
    if nodes.iter().any(|node| node.core.is_some()) {
        return None;
    }
    let clocks = nodes.iter().flat_map(|node| &node.cycles);
    let clock_cycles: u128 = clocks.map(|(start, end)| u128::from(end - start)).sum();
    let vcpus: usize = nodes.iter().map(|node| node.vcpus.len()).sum();
    let difference =
        (clock_cycles as i128 - idle as i128) * CYCLE - scope.cycles_65536 - sum.substituted;
    Some(ClockCheck {
        clock_cycles,
        idle_cycles: idle,
        substituted_65536: sum.substituted,
        difference_65536: difference,
        consistent: difference.abs() < CYCLE * vcpus.max(1) as i128,
    })
}

/// Makes the report of one window, without its code.
///
/// `times` are the core's cycles by a core model; `None` if CPI_core is not modelled. `spinning` is the code that waits for other threads.
pub(crate) fn analyse(
    record: &WindowRecord,
    core: &CoreCpi,
    times: Option<&CoreTimes>,
    spinning: &Spinning,
    calls: &Calls,
) -> Result<WindowReport, ReportError> {
    let core = fixed(core)?;
    let measured_from = record.measured_from();
    let seconds = record.measured_ps() as f64 / 1e12;
    let mut levels = record
        .spec
        .models
        .caches
        .as_ref()
        .map_or(0, |caches| caches.levels.len().min(16) as u8);

    let mut ranks: BTreeMap<(String, u32), (u32, Sum)> = BTreeMap::new();
    let mut others: BTreeMap<u32, Sum> = BTreeMap::new();
    let mut nodes: BTreeMap<u32, (Sum, u128)> = BTreeMap::new();
    for node in &record.nodes {
        check(&record.name, node)?;
        let rate = Rate {
            frequency: node.frequency_hz,
            nominal: node.nominal_cpi_65536,
            core: core.of(None),
        };
        let mut own: BTreeMap<Option<(String, u32)>, Sum> = BTreeMap::new();
        own.insert(None, Sum::default());
        let whose = |index: u32| match &node.owners[index as usize] {
            Owner::Rank { rank, program, mpi } => (Some((program.clone(), *rank)), *mpi),
            _ => (None, None),
        };
        let mut idle = 0;
        // A modelled core has cycles for contexts, without distinguishing vCPUs and privileges.
        let mut counted: BTreeMap<(Context, Privilege), Counters> = BTreeMap::new();
        for (_, context, privilege, counters) in &node.counters {
            counted
                .entry((*context, *privilege))
                .or_default()
                .add(counters);
        }
        let mut last = None;
        for ((context, privilege), counters) in &counted {
            let (owner, mpi) = whose(context.0);
            if mpi.is_none() {
                idle += u128::from(counters.idle_cycles);
            }
            let rate = Rate {
                core: core.of(owner.as_ref().map(|(_, rank)| *rank)),
                ..rate
            };
            // A context's core cycles are added with its first privilege, because both privileges belong to one owner.
            let first = last != Some(*context);
            last = Some(*context);
            let core_time = times.map(|times| match first {
                true => times.of(node.node, context.0),
                false => 0,
            });
            own.entry(owner)
                .or_default()
                .count(counters, *privilege, mpi, rate, core_time);
        }
        for (context, costs) in spinning.of(node.node) {
            if (context as usize) < node.owners.len()
                && let (owner, None) = whose(context)
            {
                let core = core.of(owner.as_ref().map(|(_, rank)| *rank));
                let sum = own.entry(owner).or_default();
                sum.count_spinning(costs, Rate { core, ..rate });
            }
        }
        for statistic in &node.statistics {
            if let Term::Cache(level) = statistic.term {
                levels = levels.max(level);
            }
            if let (owner, None) = whose(statistic.context.0) {
                let key = (statistic.term, statistic.event.clone());
                let sum = own.entry(owner).or_default().events.entry(key).or_default();
                sum.0 += u128::from(statistic.count);
                sum.1 += u128::from(statistic.cycles);
            }
        }
        // Number of programs that have a rank of this number on the node.
        let mut same: BTreeMap<u32, usize> = BTreeMap::new();
        for (_, rank) in own.keys().flatten() {
            *same.entry(*rank).or_default() += 1;
        }
        for (owner, sum) in &mut own {
            if let Some((program, rank)) = owner {
                let only = same.get(rank) == Some(&1);
                // Calls of a process whose code did not run in the window are not counted.
                for (function, traced) in calls.of(node.node, *rank, program, only) {
                    let inside = sum.mpi.entry(function).or_default();
                    inside.calls = traced.ended;
                    inside.wait(cycles_of(traced.waited_ps, rate.frequency));
                }
            }
        }
        let whole = nodes.entry(node.node).or_default();
        whole.1 += idle;
        for (owner, sum) in own {
            whole.0.add(&sum);
            match owner {
                Some(rank) => {
                    let entry = ranks
                        .entry(rank)
                        .or_insert_with(|| (node.node, Sum::default()));
                    entry.1.add(&sum);
                }
                None => others.entry(node.node).or_default().add(&sum),
            }
        }
    }

    let programs: std::collections::BTreeSet<&String> =
        ranks.keys().map(|(program, _)| program).collect();
    let several = programs.len() > 1;
    let name_of = |node: u32| {
        record
            .nodes
            .iter()
            .find(|n| n.node == node)
            .map_or_else(|| format!("node {node}"), |n| n.name.clone())
    };
    let mut all_ranks = Sum::default();
    let mut total = (Sum::default(), 0);
    let mut scopes = Vec::new();
    let rank_count = ranks.len();
    for ((program, rank), (node, sum)) in ranks {
        all_ranks.add(&sum);
        let name = if several {
            format!("rank {rank} {program}")
        } else {
            format!("rank {rank}")
        };
        let mut scope = sum.finish(name, ScopeKind::Rank, seconds, levels);
        (scope.rank, scope.node) = (Some(rank), Some(node));
        scopes.push(scope);
    }
    for (node, sum) in others {
        let name = format!("others {}", name_of(node));
        let mut scope = sum.finish(name, ScopeKind::Others, seconds, levels);
        scope.node = Some(node);
        scopes.push(scope);
    }
    for (node, (sum, idle)) in nodes {
        total.0.add(&sum);
        total.1 += idle;
        let mut scope = sum
            .clone()
            .finish(name_of(node), ScopeKind::Node, seconds, levels);
        let records: Vec<&NodeRecord> = record.nodes.iter().filter(|n| n.node == node).collect();
        scope.node = Some(node);
        scope.clock = clock(&records, &sum, &scope, idle);
        scopes.push(scope);
    }
    if rank_count > 0 {
        scopes.push(all_ranks.finish("all ranks".into(), ScopeKind::Ranks, seconds, levels));
    }
    let (sum, idle) = total;
    let mut scope = sum
        .clone()
        .finish("total".into(), ScopeKind::Total, seconds, levels);
    let records: Vec<&NodeRecord> = record.nodes.iter().collect();
    scope.clock = clock(&records, &sum, &scope, idle);
    scopes.push(scope);

    Ok(WindowReport {
        name: record.name.clone(),
        complete: record.complete,
        warm_up_only: record.measured_from_ps.is_none(),
        trigger: record.spec.open.to_string(),
        triggered_ps: record.triggered_ps,
        opened_ps: record.opened_ps,
        measured_from_ps: measured_from,
        closed_ps: record.closed_ps,
        models: models(record),
        registered_models: (record.spec.models.registered.iter())
            .map(|model| model.name.clone())
            .collect(),
        scopes,
        cores: Vec::new(),
        sampled: crate::sampled::report(record),
        timed: None,
        code: None,
    })
}

/// Returns a short description of the attached models.
fn models(record: &WindowRecord) -> String {
    use nodescope_window::{Latencies, MemorySpec};
    let models = &record.spec.models;
    let mut words = Vec::new();
    if let Some(caches) = &models.caches {
        let sizes: Vec<String> = caches
            .levels
            .iter()
            .enumerate()
            .map(|(index, level)| {
                let unit = if level.size >= 1 << 20 && level.size % (1 << 20) == 0 {
                    format!("{} MiB", level.size >> 20)
                } else {
                    format!("{} KiB", level.size >> 10)
                };
                format!("L{} {unit}", index + 1)
            })
            .collect();
        words.push(format!("caches ({})", sizes.join(", ")));
    }
    match &models.memory {
        Some(MemorySpec::Flat { latency }) => words.push(format!("memory of {latency} cycles")),
        Some(MemorySpec::Numa { latency, .. }) => words.push(match latency {
            Latencies::Uniform { local, remote } => {
                format!("NUMA (local {local}, remote {remote} cycles)")
            }
            Latencies::Matrix(_) => "NUMA (latency matrix)".into(),
        }),
        None if models.caches.is_some() => words.push("memory of 100 cycles".into()),
        None => {}
    }
    words.extend(models.registered.iter().map(|model| {
        let values = model.parameters.iter();
        let values: Vec<String> = values
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        match values.is_empty() {
            true => model.name.clone(),
            false => format!("{} ({})", model.name, values.join(", ")),
        }
    }));
    if words.is_empty() {
        "none: instructions are counted, memory is not timed".into()
    } else {
        words.join(", ")
    }
}
