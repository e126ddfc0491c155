//! Interface of models of the core: they time recorded instructions, and learn what code costs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{BlockCounts, Charges, Recording, RecordingPlan, SOURCES, Source, StallTerm};

/// What a core spends cycles on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Cause {
    /// Executing instructions, with all data in the first level and all branches predicted.
    Core,
    /// Branches that were predicted wrongly.
    Speculation,
    /// Translations that the first level of the TLB did not have.
    Translation,
    /// Waiting for the second-level cache.
    Level2,
    /// Waiting for the third-level cache, or a level beyond it.
    Level3,
    /// Waiting for a cache that is not between the core and memory.
    OtherCache,
    /// Waiting for memory of the own socket.
    LocalMemory,
    /// Waiting for memory of another socket.
    RemoteMemory,
    /// Waiting because vCPUs share the bandwidth of a socket's memory. The memory model says how long; no recording decides.
    Bandwidth,
}

/// Number of [`Cause`]s.
pub const CAUSES: usize = 9;

impl Cause {
    /// Every cause, in index order.
    pub const ALL: [Cause; CAUSES] = [
        Cause::Core,
        Cause::Speculation,
        Cause::Translation,
        Cause::Level2,
        Cause::Level3,
        Cause::OtherCache,
        Cause::LocalMemory,
        Cause::RemoteMemory,
        Cause::Bandwidth,
    ];

    /// Returns the cause of waiting for a source.
    pub fn of_source(source: Source) -> Cause {
        match source {
            Source::Level2 => Cause::Level2,
            Source::Level3 => Cause::Level3,
            Source::OtherCache => Cause::OtherCache,
            Source::LocalMemory => Cause::LocalMemory,
            Source::RemoteMemory => Cause::RemoteMemory,
        }
    }

    /// Returns the stable name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Core => "core",
            Cause::Speculation => "bad_speculation",
            Cause::Translation => "tlb",
            Cause::Level2 => "L2",
            Cause::Level3 => "L3",
            Cause::OtherCache => "other_cache",
            Cause::LocalMemory => "memory_local",
            Cause::RemoteMemory => "memory_remote",
            Cause::Bandwidth => "bandwidth",
        }
    }
}

/// Cycles by cause, in units of 1/65536.
pub type CauseCycles = [i64; CAUSES];

/// What code costs on a core. Costs are in 1/65536 of a cycle, and may be negative where one event hides another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeCosts {
    /// Cycles of one instruction by causes that depend on executions alone: [`Cause::Core`], [`Cause::Speculation`] and
    /// [`Cause::Translation`].
    pub each_instruction: [i64; 3],
    /// Cycles of one answer, by [`Source`].
    pub each_answer: [i64; SOURCES],
}

impl CodeCosts {
    /// Returns the cycles of code with these counts; `instructions` are those of one complete execution.
    pub fn of(&self, counts: &BlockCounts, instructions: u32) -> CauseCycles {
        let executed = counts.instructions(instructions);
        let mut cycles = self.of_charges(&counts.charges);
        for (sum, each) in cycles.iter_mut().zip(self.each_instruction) {
            *sum += scaled(each, executed);
        }
        cycles
    }

    fn of_charges(&self, charges: &Charges) -> CauseCycles {
        let mut cycles = CauseCycles::default();
        for source in Source::ALL {
            let each = self.each_answer[source as usize];
            cycles[Cause::of_source(source) as usize] +=
                scaled(each, charges.answers[source as usize]);
        }
        let waited = charges.cycles[StallTerm::Unattributed as usize];
        cycles[Cause::Bandwidth as usize] = scaled(1 << 16, waited);
        cycles
    }
}

fn scaled(each: i64, count: u64) -> i64 {
    each.saturating_mul(i64::try_from(count).unwrap_or(i64::MAX))
}

/// A measured interval of a sampled window on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// Instructions of all vCPUs.
    pub instructions: u64,
    /// Their cycles by what the model of the core has learned.
    pub cycles: u64,
    /// Their cycles by the costs of code from before the interval, by which the clock advanced until then.
    pub predicted: u64,
}

/// Instructions that a model of the core has timed, and their cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// Number of recordings.
    pub recordings: u64,
    /// Timed instructions.
    pub instructions: u64,
    /// Their cycles.
    pub cycles: u64,
    /// Sum of the squares of each recording's cycles per instruction, in units of 2^-32. With the number of recordings it gives the
    /// standard error.
    pub squared_cpi: u64,
}

impl Timed {
    /// Adds what was timed elsewhere.
    pub fn add(&mut self, other: &Timed) {
        self.recordings += other.recordings;
        self.instructions += other.instructions;
        self.cycles += other.cycles;
        self.squared_cpi = self.squared_cpi.saturating_add(other.squared_cpi);
    }

    /// Returns the cycles per instruction; `None` without instructions.
    pub fn cpi(&self) -> Option<f64> {
        (self.instructions != 0).then(|| self.cycles as f64 / self.instructions as f64)
    }

    /// Returns half the width of the interval in which the mean of the recordings' CPIs lies with a probability of 95 %, by the normal
    /// distribution; `None` for fewer than two recordings.
    pub fn interval(&self) -> Option<f64> {
        let mean = self.cpi().filter(|_| self.recordings > 1)?;
        let recordings = self.recordings as f64;
        let squares = self.squared_cpi as f64 / 2f64.powi(32) / recordings;
        let variance = (squares - mean * mean).max(0.0) * recordings / (recordings - 1.0);
        Some(1.96 * (variance / recordings).sqrt())
    }
}

/// What a model of the core has learned in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreCosts {
    /// Name of the modelled core.
    pub core: String,
    /// Costs of blocks by the engine's numbers.
    pub blocks: BTreeMap<u32, CodeCosts>,
    /// Costs of blocks that were not timed.
    pub others: CodeCosts,
    /// What was timed.
    pub timed: Timed,
}

/// A model of the core of one node's vCPUs.
pub trait CoreModel: Send {
    /// Times what a vCPU has recorded. Returns when the vCPU records next, `None` for never. The first recording of a vCPU is empty.
    fn recorded(&mut self, vcpu: u16, recording: &Recording) -> Option<RecordingPlan>;

    /// Returns the cycles by which the vCPU's clock advances because of an answer, in place of the memory model's `stall`: the part of the
    /// wait that other work does not hide. `block` is the number of the block that made the reference.
    fn exposed(&mut self, block: u32, source: Source, stall: u32) -> u32;

    /// Returns whether a recording has timed instructions of the block with this number.
    fn has_timed(&self, block: u32) -> bool;

    /// Forgets what was timed at the end of a warm-up. What was learned stays.
    fn reset_statistics(&mut self);

    /// Returns what the model has learned.
    fn costs(&self) -> CoreCosts;

    /// Returns the same, but what each block's last recordings taught counts most: code may change its behaviour with its data.
    fn recent_costs(&self) -> CoreCosts {
        self.costs()
    }
}
