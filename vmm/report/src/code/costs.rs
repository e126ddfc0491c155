//! Costs of a piece of code, in the form that the report shows.

use nodescope_plugin_api::{Cause, Source, StallTerm};
use nodescope_profile::Costs;
use serde::Serialize;

use super::Core;
use crate::breakdown::{CYCLE, TermValue};

/// Costs of a piece of code, and its core cycles on further cores in 1/65536.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) costs: Costs,
    pub(crate) further: Vec<i128>,
}

impl Sum {
    pub(crate) fn add(&mut self, other: &Sum) {
        self.costs.add(&other.costs);
        if self.further.len() < other.further.len() {
            self.further.resize(other.further.len(), 0);
        }
        for (sum, value) in self.further.iter_mut().zip(&other.further) {
            *sum += value;
        }
    }
}

/// Costs of a piece of code, with ratios.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CodeCosts {
    /// Number of complete executions of the code's blocks.
    pub executions: u128,
    /// Number of instructions retired.
    pub instructions: u128,
    /// Modelled cycles in 1/65536: the sum of the terms.
    pub cycles_65536: i128,
    /// Share of the window's cycles, from 0 to 1; `None` if the window has no cycles.
    pub share: Option<f64>,
    /// Cycles per instruction; `None` without instructions.
    pub cpi: Option<f64>,
    /// Instructions per cycle; `None` without cycles.
    pub ipc: Option<f64>,
    /// Terms of the cycles: `core` (long instructions included), `L1`, `L2`, `L3`, `memory_local`, `memory_remote`, `other`. Each term's
    /// CPI is per instruction of this code.
    pub terms: Vec<TermValue>,
    /// Cycles by cause on the core of the pipeline model; empty without one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<TermValue>,
    /// Cycles of the term `core` on each modelled core but the first, whose cycles are in `terms`.
    pub further_cores: Vec<CoreValue>,
    /// Number of data reads.
    pub loads: u128,
    /// Number of data writes.
    pub stores: u128,
    /// Number of floating-point operations.
    pub flops: u128,
    /// Floating-point operations per byte that came from memory; `None` if no byte came from memory.
    pub flops_per_byte: Option<f64>,
    /// Numbers of references that missed the first level, by the source that answered.
    pub answers: Vec<AnswerCount>,
}

/// Core cycles of a piece of code on a modelled core other than the first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoreValue {
    /// Name of the core.
    pub core: String,
    /// Core cycles in 1/65536.
    pub cycles_65536: i128,
    /// Core cycles per instruction; `None` without instructions.
    pub cpi: Option<f64>,
}

/// Number of references that one source answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AnswerCount {
    /// Name of the source: `L2`, `L3`, `other_cache`, `memory_local`, `memory_remote`.
    pub source: &'static str,
    /// Number of references.
    pub count: u128,
}

/// Bytes that come from memory for one reference: a cache line.
pub(crate) const LINE: u128 = 64;

impl CodeCosts {
    pub(crate) fn new(sum: &Sum, whole: &Sum, cores: &[Core<'_>]) -> CodeCosts {
        let costs = &sum.costs;
        let cycles = costs.cycles_65536();
        let total = whole.costs.cycles_65536();
        let instructions = costs.instructions;
        let cpi = |cycles: i128| {
            (instructions != 0).then(|| cycles as f64 / CYCLE as f64 / instructions as f64)
        };
        let term = |name: &str, cycles_65536: i128| TermValue {
            term: name.to_owned(),
            cycles_65536,
            cpi: cpi(cycles_65536),
        };
        let stalls = |term: StallTerm| costs.stalls[term as usize] as i128 * CYCLE;
        let own = [
            StallTerm::Level1,
            StallTerm::Level2,
            StallTerm::Level3,
            StallTerm::LocalMemory,
            StallTerm::RemoteMemory,
        ];
        let mut terms = vec![term(
            "core",
            costs.core_65536 + costs.long_cycles as i128 * CYCLE,
        )];
        terms.extend(own.map(|of| term(of.name(), stalls(of))));
        let other = stalls(StallTerm::Unattributed);
        terms.push(term("other", other));
        let further_cores = (cores.iter().skip(1).zip(&sum.further))
            .map(|(core, &cycles_65536)| CoreValue {
                core: core.name.clone(),
                cycles_65536,
                cpi: cpi(cycles_65536),
            })
            .collect();
        let timed = whole.costs.causes_65536.iter().any(|cycles| *cycles != 0);
        let causes = Cause::ALL.into_iter().filter(|_| timed);
        let causes = causes.map(|cause| term(cause.name(), costs.causes_65536[cause as usize]));
        let causes = causes.collect();
        let answers = Source::ALL.map(|source| AnswerCount {
            source: source.name(),
            count: costs.answers[source as usize],
        });
        let bytes = LINE * memory_lines(costs);
        CodeCosts {
            executions: costs.executions,
            instructions,
            cycles_65536: cycles,
            share: (total != 0).then(|| cycles as f64 / total as f64),
            cpi: cpi(cycles),
            ipc: (cycles > 0).then(|| instructions as f64 / (cycles as f64 / CYCLE as f64)),
            terms,
            causes,
            further_cores,
            loads: costs.loads,
            stores: costs.stores,
            flops: costs.flops_total(),
            flops_per_byte: (bytes != 0).then(|| costs.flops_total() as f64 / bytes as f64),
            answers: answers.to_vec(),
        }
    }

    /// Returns the cycles of the cause with this name, in 1/65536; 0 if there is no such cause.
    pub(crate) fn cause(&self, name: &str) -> i128 {
        let mut causes = self.causes.iter().filter(|cause| cause.term == name);
        causes.next().map_or(0, |cause| cause.cycles_65536)
    }

    /// Returns the cycles of the term with this name, in 1/65536; 0 if there is no such term.
    pub(crate) fn term(&self, name: &str) -> i128 {
        let mut terms = self.terms.iter().filter(|term| term.term == name);
        terms.next().map_or(0, |term| term.cycles_65536)
    }
}

/// Returns the number of cache lines that came from local or remote memory.
pub(crate) fn memory_lines(costs: &Costs) -> u128 {
    costs.answers[Source::LocalMemory as usize] + costs.answers[Source::RemoteMemory as usize]
}
