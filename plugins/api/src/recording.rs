//! Recordings: instructions that a vCPU executed one after the other, with what a model of the core needs to time them.

use serde::{Deserialize, Serialize};

use crate::{Access, Charges, Source};

/// A block of code in a [`Recording`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedBlock {
    /// Number of the block ([`crate::Site::block`]); 0 for blocks without a number.
    pub number: u32,
    /// Linear address of the first byte.
    pub address: u64,
    /// True for code at CPL 0.
    pub kernel: bool,
    /// Width of the code segment in bits: 16, 32 or 64.
    pub bits: u8,
    /// Machine code of the block; empty if it cannot be read.
    pub bytes: Vec<u8>,
}

/// An executed instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Index of the block in [`Recording::blocks`].
    pub block: u32,
    /// Number of the instruction within the block, from 0 on.
    pub instruction: u16,
    /// Number of elements that a repeated string instruction has processed; 0 for all other instructions.
    pub repeats: u32,
    /// End of the instruction's accesses in [`Recording::accesses`]. They begin where those of the step before end.
    pub accesses: u32,
    /// End of the instruction's answers in [`Recording::answers`]. They begin where those of the step before end.
    pub answers: u32,
}

/// An access to data. An instruction has one for its memory operand, then one for the stack if it pushes or pops. The instruction says which
/// of them read and write. String instructions and gathers have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataAccess {
    /// Linear address of the first byte.
    pub linear: u64,
    /// Physical address of the first byte; [`DataAccess::DEVICE`] where there is no RAM.
    pub physical: u64,
    /// True if a page of more than 4 KiB maps the address.
    pub large_page: bool,
}

impl DataAccess {
    /// Physical address of an access that does not go to RAM.
    pub const DEVICE: u64 = u64::MAX;
}

/// A line that a reference or a prefetcher brought to a core. References without an answer in a [`Recording`] were hits of the first level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Physical address of the line.
    pub line: u64,
    /// Kind of the reference, or of the reference that caused the prefetch.
    pub access: Access,
    /// Level of the cache that a prefetcher filled, from 1 on; 0 for a reference.
    pub prefetched_into: u8,
    /// Where the line came from; `None` for the first level.
    pub source: Option<Source>,
    /// Cycles of the answer beyond a hit of the first level, as the memory model gives them. 0 for a prefetch.
    pub stall: u32,
}

/// When a vCPU records next, and what a recording has taught.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingPlan {
    /// Instructions until the next recording begins.
    pub after: u64,
    /// Length of the recording in instructions, at least 1.
    pub length: u64,
    /// For each block of the recording: cycles of an instruction that waits for no answer, in 1/65536. `None` for blocks that were not timed,
    /// whose cost does not change.
    pub costs: Vec<Option<u32>>,
}

/// A line that a prefetcher brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetched {
    /// Physical address of the line.
    pub line: u64,
    /// Level of the cache that was filled, from 1 on.
    pub level: u8,
    /// Where the line came from.
    pub source: Source,
}

/// Instructions that a vCPU executed one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// Blocks that were executed.
    pub blocks: Vec<RecordedBlock>,
    /// Executed instructions, in order.
    pub steps: Vec<Step>,
    /// Accesses of the steps.
    pub accesses: Vec<DataAccess>,
    /// Answers to references of the steps.
    pub answers: Vec<Answer>,
}

impl Recording {
    /// Returns the accesses of a step.
    pub fn accesses_of(&self, step: usize) -> &[DataAccess] {
        let from = step.checked_sub(1).map_or(0, |s| self.steps[s].accesses);
        &self.accesses[from as usize..self.steps[step].accesses as usize]
    }

    /// Returns the answers to references of a step.
    pub fn answers_of(&self, step: usize) -> &[Answer] {
        let from = step.checked_sub(1).map_or(0, |s| self.steps[s].answers);
        &self.answers[from as usize..self.steps[step].answers as usize]
    }
}

impl Answer {
    /// Returns the answer to a reference with these charges, which name at most one source.
    pub fn of_reference(line: u64, access: Access, charges: &Charges) -> Self {
        Self {
            line,
            access,
            prefetched_into: 0,
            source: Source::of(charges),
            stall: u32::try_from(charges.total()).unwrap_or(u32::MAX),
        }
    }
}
