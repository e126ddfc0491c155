//! Recordings of executed instructions for a model of the core ([`Recording`]). While a vCPU records, the interpreter executes each operation
//! by itself, and notes its accesses.
//!
//! Recordings begin and end at beginnings of blocks: at the first block for which a number of instructions have retired. They therefore
//! have the same instructions whether blocks are translated or not.

use std::collections::HashMap;

use nodescope_plugin_api::{
    Answer, Charges, DataAccess, MemRef, Prefetched, RecordedBlock, Recording, Step,
};

use crate::block::Block;
use crate::block_costs::CostNumber;
use crate::cpu::Cpu;
use crate::lookup::Entry;
use crate::mmu::Intent;
use crate::op::{Done, Flow, Op, RIP, Trap, attr};
use crate::run::executed;

/// Number of the general registers that string instructions count with, and that the stack uses.
const RCX: usize = 1;
const RSP: usize = 4;

/// A vCPU's recording, and when the next one begins.
#[derive(Default)]
pub struct Recorder {
    /// True while instructions are recorded.
    pub active: bool,
    /// True if a model of the core plans recordings.
    pub has_core: bool,
    /// Number of retired instructions at which the next recording begins, or the running one ends. 0: the platform has not said yet.
    due: u64,
    /// Length of the next recording in instructions.
    length: u64,
    recording: Recording,
    /// Index of each block in the recording, by number, address and privilege.
    blocks: HashMap<(u32, u64, bool), u32>,
    /// Number of each recorded block's cost, and the block's number of instructions.
    costs: Vec<(CostNumber, i64)>,
    prefetched: Vec<Prefetched>,
}

impl Recorder {
    /// Adds a step behind the accesses and answers that the instruction has left.
    fn end_step(&mut self, block: u32, instruction: u16, repeats: u32) {
        let recording = &mut self.recording;
        recording.steps.push(Step {
            block,
            instruction,
            repeats,
            accesses: recording.accesses.len() as u32,
            answers: recording.answers.len() as u32,
        });
    }

    /// Forgets what was recorded, and when to record.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

impl Cpu {
    /// Ends a running recording without a use for it, and returns the plan of recordings. In the plan, instructions count from now on.
    pub fn pause_recordings(&mut self) -> Recorder {
        let recorder = std::mem::take(&mut self.recorder);
        let now = self.instructions();
        Recorder {
            // An interrupted recording begins anew.
            due: match recorder.active {
                true => 0,
                false => recorder.due.saturating_sub(now),
            },
            length: recorder.length,
            has_core: recorder.has_core,
            ..Recorder::default()
        }
    }

    /// Continues with a plan of [`Cpu::pause_recordings`].
    pub fn resume_recordings(&mut self, paused: Recorder) {
        if paused.length == 0 {
            return;
        }
        self.recorder = Recorder {
            due: self.instructions().saturating_add(paused.due),
            ..paused
        };
    }

    /// Lets the planned recording begin at the next block.
    pub fn record_soon(&mut self) {
        if self.recorder.length > 0 && !self.recorder.active {
            self.recorder.due = self.instructions();
        }
    }

    /// Returns for how many instructions blocks may begin before a recording begins or ends. At 0 or less, [`Cpu::change_recording`] is due.
    #[inline(always)]
    pub fn until_recording_changes(&self) -> i64 {
        let due = self.recorder.due.min(i64::MAX as u64) as i64;
        due.saturating_sub(self.instructions() as i64).min(1 << 40)
    }

    /// Begins or ends the recording that is due. Called at the beginning of a block, with a model attached, when the clock was just
    /// synchronised.
    pub fn change_recording(&mut self) {
        let now = self.time.instructions;
        while now >= self.recorder.due {
            if self.recorder.active || self.recorder.length == 0 {
                self.recorder.active = false;
                self.plan_recording(now);
            } else {
                self.recorder.active = true;
                self.recorder.due = now + self.recorder.length;
            }
        }
    }

    /// Hands the recording to the platform, and learns when the next one begins and what the recorded blocks cost.
    fn plan_recording(&mut self, now: u64) {
        // Its memory is freed: a cluster has many vCPUs, and recordings are rare.
        let recording = std::mem::take(&mut self.recorder.recording);
        let id = self.id;
        let plan = self
            .profiling()
            .then(|| self.platform().recorded(id, &recording));
        let recorder = &mut self.recorder;
        recorder.blocks = HashMap::new();
        let recorded = std::mem::take(&mut recorder.costs);
        recorder.length = 0;
        recorder.due = u64::MAX;
        if let Some(plan) = plan.flatten() {
            recorder.due = now + plan.after;
            recorder.length = plan.length.max(1);
            recorder.has_core = true;
            self.learn_costs(&recorded, &plan.costs);
        }
    }

    /// Lets the clock advance by what a recording has taught of its blocks.
    fn learn_costs(&mut self, recorded: &[(CostNumber, i64)], costs: &[Option<u32>]) {
        for (&(number, instructions), each) in recorded.iter().zip(costs) {
            let Some(each) = each else {
                continue;
            };
            let nominal = self.nominal_cost(instructions);
            let (_, code) = self.blocks_and_code();
            if let Some(table) = &mut code.block_costs {
                let work = (instructions as u64 * u64::from(*each) + (1 << 11)) >> 12;
                table.set_attached(number, work.max(instructions as u64), nominal);
            }
        }
    }

    /// Notes the answer to a reference, and the lines that prefetchers brought because of it.
    #[cold]
    pub fn record_answer(&mut self, reference: &MemRef, line: u64, charges: &Charges) {
        let mut prefetched = std::mem::take(&mut self.recorder.prefetched);
        self.platform().take_prefetched(&mut prefetched);
        let access = reference.access;
        let answers = &mut self.recorder.recording.answers;
        answers.push(Answer::of_reference(line, access, charges));
        answers.extend(prefetched.drain(..).map(|prefetch| Answer {
            line: prefetch.line,
            access,
            prefetched_into: prefetch.level,
            source: Some(prefetch.source),
            stall: 0,
        }));
        self.recorder.prefetched = prefetched;
    }

    /// Returns the index of a block in the recording. Adds the block if need be.
    fn recorded_block(&mut self, block: &Block) -> u32 {
        let kernel = self.cpl != 3;
        let address = self.gpr[RIP as usize];
        let key = (self.native.site.block(), address, kernel);
        if let Some(&known) = self.recorder.blocks.get(&key) {
            return known;
        }
        let index = self.recorder.recording.blocks.len() as u32;
        let recorded = RecordedBlock {
            number: key.0,
            address,
            kernel,
            bits: self.mode.bits() as u8,
            bytes: self.bytes_of(block).unwrap_or_default(),
        };
        self.recorder.recording.blocks.push(recorded);
        let instructions = block.ops().len() as i64;
        self.recorder.costs.push((block.cost, instructions));
        self.recorder.blocks.insert(key, index);
        index
    }

    /// Executes the first `count` operations of a block as [`Cpu::run_operations`] does, and records them.
    pub fn run_recorded(&mut self, entry: Entry, block: &Block, count: usize) -> Done {
        let index = self.recorded_block(block);
        let start = entry.ops;
        // SAFETY: `count` is at most the block's length.
        let end = unsafe { start.add(count) };
        self.block_start = start;
        let mut op = start;
        loop {
            // SAFETY: `op` is below `end`, within the block, which outlives this call as in `run_operations`.
            let operation = unsafe { &*op };
            self.current = op;
            // An operation that ends the block clears this field.
            // SAFETY: one past an element of the block.
            self.block_end = unsafe { op.add(1) };
            let operand = has_memory_operand(operation).then(|| self.linear(operation));
            let count_before = self.gpr[RCX];
            let done = (operation.handler)(self, operation);
            let retired = executed(start, op);
            if done.is_err() {
                self.end_trapped(operation, retired);
                return Err(Trap);
            }
            self.record_accesses(operation, operand);
            let repeats = match operation.attr & (attr::REP | attr::REPNE) {
                0 => 0,
                _ => count_before.wrapping_sub(self.gpr[RCX]).min(1 << 30) as u32,
            };
            self.recorder.end_step(index, retired as u16, repeats);
            // SAFETY: one past an element of the block.
            let next = unsafe { op.add(1) };
            match done {
                Ok(Flow::Next) if next < end && !self.block_end.is_null() => op = next,
                Ok(Flow::Next) => {
                    self.end_straight(operation, retired);
                    return Ok(Flow::Next);
                }
                flow => {
                    self.retire(retired + 1);
                    return flow;
                }
            }
        }
    }

    /// Notes the accesses of an operation that has just been executed.
    fn record_accesses(&mut self, op: &Op, operand: Option<u64>) {
        let stack = (op.attr & attr::STACK != 0).then(|| {
            // A pop has moved the stack pointer past what it has read.
            let popped = op.stores == 0 && op.loads > 0;
            self.gpr[RSP].wrapping_sub(if popped { 8 } else { 0 })
        });
        for linear in operand.into_iter().chain(stack) {
            let privilege = self.privilege();
            let page = self.translate_at(linear, Intent::Read, privilege).ok();
            if page.is_none() {
                // The instruction has changed the page tables.
                self.exception = None;
            }
            let in_ram = page.filter(|page| !page.host.is_null());
            let access = DataAccess {
                linear,
                physical: in_ram.map_or(DataAccess::DEVICE, |p| p.physical | linear & 0xfff),
                large_page: page.is_some_and(|page| page.large()),
            };
            self.recorder.recording.accesses.push(access);
        }
    }
}

/// Returns whether an operation accesses memory by the operand that its `base` … `disp` describe.
fn has_memory_operand(op: &Op) -> bool {
    op.loads + op.stores > u8::from(op.attr & attr::STACK != 0)
}
