//! Out-of-line code of a translation block: its slow paths, which are look-ups that miss and calls of the interpreter.

use iced_x86::{Code, MemoryOperand, Register};

use super::access::describe;
use super::assembler::{Label, cc, field_of_cpu, indexed_field};
use super::code_map::Part;
use super::emit::{Emitter, READ, WRITE};
use super::flags::FlagsRematerialisation;
use super::plan::Memory;
use super::runtime::field;
use super::way_lookup::DataAccess;

use Register::{EAX, RAX, RCX};

/// Out-of-line code: the interpreter carries out an operation, then the block continues.
pub struct InterpreterCall {
    entry: Label,
    resume: Label,
    operation: usize,
    /// True if the code at `resume` expects the guest's flags in the host's flags.
    flags_in_host: bool,
    /// True if the code at `resume` expects that [`super::Native::vectors_wide`] is set. The interpreter leaves it set only if some upper
    /// half was in use before.
    wide: bool,
    /// Instructions that make the flags; None if the flags are in memory.
    rematerialisation: Option<FlagsRematerialisation>,
}

/// Out-of-line code: the slow path of a look-up that missed, after which the instruction continues.
pub struct SlowPath {
    /// The beginning of the slow path.
    pub entry: Label,
    /// The point where the instruction continues, with the host address in RAX.
    pub resume: Label,
    /// The entry of the interpreter's call, for an access that only the interpreter can carry out.
    pub interpret: Label,
    /// Memory operand of the instruction.
    pub memory: Memory,
    /// The operand's linear address, if host registers hold all its parts.
    pub address: Option<MemoryOperand>,
    /// Numbers of the operations that read and that write the operand. They differ only in a fused pair.
    pub operations: [usize; 2],
    /// The point where the code continues if the way look-up cannot serve the access: no way of the set permits the access, the access lies
    /// in two lines, or the L0 filter cache does not keep whole sets. None: a function is called for the access.
    pub fallback: Option<Label>,
}

/// State of flags and vector registers at a point of a block: copies of the [`Emitter`]'s fields of these names.
#[derive(Clone, Copy)]
pub struct EmitterState {
    pub flags_in_host: bool,
    pub flags_in_memory: bool,
    pub rematerialisation: Option<FlagsRematerialisation>,
    pub wide: bool,
}

impl Emitter {
    /// Emits a call of the interpreter for an operation, in line.
    pub fn interpret(&mut self, operation: usize) {
        self.save_flags();
        self.flags_in_host = false;
        self.rematerialisation = None;
        self.call_interpreter(operation);
        // The next instruction that uses an upper half must set the vCPU's mark again.
        self.wide = false;
    }

    fn call_interpreter(&mut self, operation: usize) {
        self.within(Part::Call, |e| {
            e.a.constant(RAX, e.translation);
            e.a.constant(RCX, operation as u64);
            e.a.call_to(e.routines.interpret);
        });
    }

    /// Returns the emitter's state at this point.
    pub fn state(&self) -> EmitterState {
        EmitterState {
            flags_in_host: self.flags_in_host,
            flags_in_memory: self.flags_in_memory,
            rematerialisation: self.rematerialisation,
            wide: self.wide,
        }
    }

    /// Restores the state of an earlier point, for code that begins there. Operations that were emitted before may be emitted again, with
    /// out-of-line code of their own.
    pub fn restore_state(&mut self, state: EmitterState) {
        self.first_interpreter_call = self.interpreter_calls.len();
        self.flags_in_host = state.flags_in_host;
        self.flags_in_memory = state.flags_in_memory;
        self.rematerialisation = state.rematerialisation;
        self.wide = state.wide;
    }

    /// Returns the label of the code that calls the interpreter for an operation. [`Emitter::resume`] binds the point that the code returns
    /// to.
    pub fn interpreter_entry(&mut self, operation: usize) -> Label {
        let mut last = self.interpreter_calls[self.first_interpreter_call..]
            .iter()
            .rev()
            .take(2);
        if let Some(call) = last.find(|call| call.operation == operation) {
            return call.entry;
        }
        let (entry, resume) = (self.a.label(), self.a.label());
        self.interpreter_calls.push(InterpreterCall {
            entry,
            resume,
            operation,
            flags_in_host: false,
            wide: false,
            rematerialisation: if self.flags_in_memory {
                None
            } else {
                self.rematerialisation
            },
        });
        debug_assert!(self.flags_in_memory || self.rematerialisation.is_some());
        entry
    }

    /// Marks the end of an operation: after a call of the interpreter for the operation, the code continues here.
    pub fn resume(&mut self, operation: usize) {
        let wanted = self.flags_in_host && !self.flags_in_memory;
        if let Some(last) = self.interpreter_calls[self.first_interpreter_call..].last_mut()
            && last.operation == operation
        {
            last.flags_in_host = wanted;
            last.wide = self.wide;
            let label = last.resume;
            self.a.bind(label);
            if !wanted {
                self.flags_in_host = false;
            }
        }
    }

    /// Emits all out-of-line code of the operations.
    pub fn emit_out_of_line(&mut self) {
        self.emit_run_slow_paths();
        self.emit_uncoalesced();
        self.emit_pair_slow_paths();
        self.a.part(Part::SlowPath);
        for slow_path in std::mem::take(&mut self.slow_paths) {
            let memory = slow_path.memory;
            self.a.bind(slow_path.entry);
            let described = describe(&slow_path, self.count);
            if let Some(site) = self.site {
                // RAX and RCX are in use.
                let [first, _] = slow_path.operations;
                for (field, value) in [
                    (field!(site), site.constant(first)),
                    (field!(described), described as i32),
                ] {
                    self.a.mi(Code::Mov_rm32_imm32, field_of_cpu(field), value);
                }
            }
            if self.layout.way_shift == 0
                && let Some(fallback) = slow_path.fallback
            {
                self.a.jmp(fallback);
                continue;
            }
            // The entry for accesses that lie in two lines.
            let splits = self.a.label();
            let address = slow_path
                .address
                .filter(|_| self.layout.way_shift != 0 && !memory.aligned);
            if let Some(address) = address {
                // RAX is the address less the entry's base: the lowest bits are the address's.
                self.leave_if_split(memory, splits);
                // Compute the address again: a load of the entry could wait for a recent store to it.
                self.a.rm(Code::Lea_r64_m, RAX, address);
                self.a.store(field!(linear), RAX);
                self.way_lookup(&slow_path);
            } else {
                // RAX is the linear address less the entry's base, RCX the entry.
                let tag = if memory.write { WRITE } else { READ };
                self.a.rm(
                    Code::Add_r64_rm64,
                    RAX,
                    indexed_field(self.entries + tag, RCX),
                );
                if memory.aligned {
                    self.a
                        .ri(Code::Test_rm8_imm8, Register::AL, memory.size as i32 - 1);
                    self.a.jcc(cc::NE, slow_path.interpret);
                }
                self.a.store(field!(linear), RAX);
                if self.layout.way_shift != 0 {
                    if !memory.aligned {
                        self.leave_if_split(memory, splits);
                        self.a.load(RAX, field!(linear));
                    }
                    self.way_lookup(&slow_path);
                }
            }
            if let Some(fallback) = slow_path.fallback {
                self.a.bind(splits);
                self.a.jmp(fallback);
                continue;
            }
            self.a.constant(RCX, described.into());
            self.a.call_to(self.routines.access);
            self.a.rr(Code::Test_rm64_r64, RAX, RAX);
            self.a.jcc(cc::E, slow_path.interpret);
            self.a.jmp(slow_path.resume);
            if self.layout.way_shift == 0 || memory.aligned || memory.size == 1 {
                continue;
            }
            self.a.bind(splits);
            if memory.read && memory.write {
                self.a.jmp(slow_path.interpret);
                continue;
            }
            match address {
                Some(address) => {
                    self.a.rm(Code::Lea_r64_m, RAX, address);
                    self.a.store(field!(linear), RAX);
                }
                None => self.a.load(RAX, field!(linear)),
            }
            self.split(&slow_path, described);
        }
        self.a.part(Part::Call);
        for call in std::mem::take(&mut self.interpreter_calls) {
            self.a.bind(call.entry);
            if let Some(rematerialisation) = &call.rematerialisation {
                self.rematerialise_flags(rematerialisation);
                self.store_flags();
            }
            self.call_interpreter(call.operation);
            if call.operation & super::runtime::NON_CANONICAL_TARGET as usize != 0 {
                // The interpreter never returns here.
                self.a.plain(Code::Ud2);
                continue;
            }
            if call.wide {
                self.set_width(true);
            }
            if call.flags_in_host {
                self.restore_flags();
            }
            self.a.jmp(call.resume);
        }
    }

    /// Emits a jump to `splits` for an access that lies in two lines. EAX has the lowest bits of the address, and is lost.
    fn leave_if_split(&mut self, memory: Memory, splits: Label) {
        if memory.size > 1 {
            let line = self.layout.unit;
            self.a.ri(Code::And_rm32_imm32, EAX, line as i32 - 1);
            self.a
                .ri(Code::Cmp_rm32_imm32, EAX, (line - memory.size) as i32);
            self.a.jcc(cc::A, splits);
        }
    }

    /// Emits a call of the routine that looks up both lines of a split access, whose address is in RAX.
    fn split(&mut self, slow_path: &SlowPath, described: u32) {
        let SlowPath { memory, resume, .. } = *slow_path;
        let routines = &self.routines.split;
        let routine = routines.routine(self.layout.way_shift, self.kernel, memory.write);
        self.a.constant(RCX, described.into());
        self.a.call_to(routine);
        self.a.rr(Code::Test_rm64_r64, RAX, RAX);
        self.a.jcc(cc::NE, resume);
        self.a.jmp(slow_path.interpret);
    }

    /// Emits a call of the routine that looks up the other lines of the set, for an access within a line, whose address is in RAX.
    fn way_lookup(&mut self, slow_path: &SlowPath) {
        let SlowPath { memory, resume, .. } = *slow_path;
        let access = match (memory.read, memory.write) {
            (true, true) => DataAccess::ReadWrite,
            (_, true) => DataAccess::Write,
            _ => DataAccess::Read,
        };
        let way_shift = self.layout.way_shift;
        let routine = self
            .routines
            .way_lookup
            .data(way_shift, self.kernel, access);
        self.a.call_to(routine);
        self.a.rr(Code::Test_rm64_r64, RAX, RAX);
        self.a.jcc(cc::NE, resume);
    }

    /// Binds the point where a branch's call of the interpreter would return to. The call never returns, since a branch ends the block.
    pub fn resume_by_interpreter(&mut self, operation: usize) {
        for call in self.interpreter_calls.iter().rev() {
            if call.operation == operation {
                self.a.bind(call.resume);
                self.a.plain(Code::Ud2);
            }
        }
    }
}
