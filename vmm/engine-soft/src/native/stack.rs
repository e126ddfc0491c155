//! Templates of PUSH, POP and LEAVE. Functions begin with several PUSH, and end with several POP and a return. Such a push/pop run needs
//! one look-up.

use iced_x86::{Code, Instruction, OpKind, Register};

use super::assembler::{Label, at, at_offset};
use super::code_map::Part;
use super::emit::{Emitter, number};
use super::out_of_line::EmitterState;
use super::plan::{Branch, Memory, Plan};
use super::registers::{FRAME, HOST, STACK};
use super::runtime::{field, gpr};

use Register::{RAX, RCX};

/// Maximum number of operations of a push/pop run, a return at its end included.
const MAX_RUN: usize = 8;

/// Out-of-line code: the slow path of a push/pop run. The slow path carries out each operation individually, since the run may lie in two
/// lines or pages, and some operations may fault.
pub struct PushPopRun {
    entry: Label,
    resume: Label,
    /// For each operation: its number in the block, its instruction, and the set of guest registers that it writes.
    operations: Vec<(usize, Instruction, u32)>,
    push: bool,
    /// Operation number of the return at the end of the run; None if the run does not end in a return.
    returns: Option<usize>,
    state: EmitterState,
}

/// Returns the number of PUSH or POP operations of the push/pop run that begins with the first operation, and whether a return after them
/// belongs to the run. Returns None where the run would have less than two operations. `unit`: the number of bytes that one look-up can
/// serve.
pub fn push_pop_run(
    instructions: &[Instruction],
    plans: &[Plan],
    unit: u32,
) -> Option<(usize, bool)> {
    let first = plans.first()?;
    let same = |(i, plan): &(&Instruction, &Plan)| match (first, plan) {
        (Plan::Pop, Plan::Pop) => true,
        // PUSH RSP would store a wrong value, since the stack pointer changes after the run.
        (Plan::Push, Plan::Push) => {
            i.op0_kind() != OpKind::Register || i.op0_register() != Register::RSP
        }
        _ => false,
    };
    let pairs = instructions.iter().zip(plans);
    let most = MAX_RUN.min(unit as usize / 8);
    let length = pairs.take(most).take_while(same).count();
    let returns = length > 0
        && length < most
        && matches!(first, Plan::Pop)
        && matches!(plans.get(length), Some(Plan::Branch(Branch::Return(_))));
    (length + usize::from(returns) > 1).then_some((length, returns))
}

impl Emitter {
    /// Emits a look-up of 8 bytes at `base` plus `offset`: the host address is in RAX.
    pub fn stack(&mut self, base: Register, offset: i64, write: bool, operation: usize) {
        self.clobber_flags();
        self.within(Part::LookUp, |e| {
            if offset == 0 {
                e.a.copy(RAX, base);
            } else {
                e.a.rm(Code::Lea_r64_m, RAX, at_offset(base, offset));
            }
        });
        let memory = Memory {
            read: !write,
            write,
            conditional: false,
            size: 8,
            aligned: false,
            non_temporal: false,
            locked: false,
        };
        self.look_up(memory, operation, None);
    }

    /// Emits a change of the guest's stack pointer by this number of bytes; leaves flags unchanged.
    pub fn move_stack(&mut self, by: i64) {
        self.a.rm(Code::Lea_r64_m, STACK, at_offset(STACK, by));
    }

    /// Emits a push/pop run. `operations`: number and instruction of each operation, and the guest registers that it writes. `returns`: the
    /// number of the return at the run's end. The run loads the return's target into RCX.
    pub fn push_pop_run(
        &mut self,
        operations: Vec<(usize, Instruction, u32)>,
        push: bool,
        returns: Option<usize>,
    ) {
        self.clobber_flags();
        let (entry, resume) = (self.a.label(), self.a.label());
        let bytes = 8 * operations.len() as i64;
        let target = if returns.is_some() { 8 } else { 0 };
        let memory = Memory {
            read: !push,
            write: push,
            conditional: false,
            size: (bytes + target) as u32,
            aligned: false,
            non_temporal: false,
            locked: false,
        };
        if push {
            self.a.rm(Code::Lea_r64_m, RAX, at_offset(STACK, -bytes));
        } else {
            self.a.copy(RAX, STACK);
        }
        self.compare(memory, entry);
        self.add_host_address();
        for (n, (_, i, _)) in operations.iter().enumerate() {
            if push {
                self.write_stack(i, bytes - 8 * (n as i64 + 1));
            } else {
                self.read_stack(i, 8 * n as i64);
            }
        }
        if returns.is_some() {
            self.a.rm(Code::Mov_r64_rm64, RCX, at_offset(RAX, bytes));
        }
        self.move_stack(if push { -bytes } else { bytes });
        self.a.bind(resume);
        self.push_pop_runs.push(PushPopRun {
            entry,
            resume,
            operations,
            push,
            returns,
            state: self.state(),
        });
    }

    /// Emits the slow paths of push/pop runs.
    pub fn emit_run_slow_paths(&mut self) {
        self.a.part(Part::Operation);
        for run in std::mem::take(&mut self.push_pop_runs) {
            self.a.bind(run.entry);
            self.restore_state(run.state);
            for (k, i, written) in run.operations {
                self.before_writes(k, written, false);
                if run.push {
                    self.push(&i, k);
                } else {
                    self.pop(&i, k);
                }
                self.after_writes(written, false);
            }
            if let Some(k) = run.returns {
                self.target_on_stack(k);
            }
            self.a.jmp(run.resume);
            if let Some(k) = run.returns {
                self.resume_by_interpreter(k);
            }
        }
    }

    /// Returns whether the run before a return has loaded the return's target into RCX.
    pub fn run_has_target(&self, operation: usize) -> bool {
        let last = self.push_pop_runs.last();
        last.is_some_and(|run| run.returns == Some(operation))
    }

    /// Emits a load of a return's target into RCX.
    pub fn target_on_stack(&mut self, operation: usize) {
        self.stack(STACK, 0, false, operation);
        self.a.rm(Code::Mov_r64_rm64, RCX, at(RAX));
    }

    /// Emits the store of a PUSH, at an offset from the host address in RAX. Uses RCX.
    fn write_stack(&mut self, i: &Instruction, offset: i64) {
        if i.op0_kind() == OpKind::Register {
            let source = self.fetch(number(i.op0_register()), RCX);
            self.a
                .mr(Code::Mov_rm64_r64, at_offset(RAX, offset), source);
            return;
        }
        let value = i.immediate(0);
        if value as i64 == i64::from(value as i32) {
            self.a
                .mi(Code::Mov_rm64_imm32, at_offset(RAX, offset), value as i32);
        } else {
            self.a.constant(RCX, value);
            self.a.mr(Code::Mov_rm64_r64, at_offset(RAX, offset), RCX);
        }
    }

    /// Emits the load of a POP, at an offset from the host address in RAX. Uses RCX.
    fn read_stack(&mut self, i: &Instruction, offset: i64) {
        let n = number(i.op0_register());
        match HOST[n] {
            Some(host) => self.a.rm(Code::Mov_r64_rm64, host, at_offset(RAX, offset)),
            None => {
                self.a.rm(Code::Mov_r64_rm64, RCX, at_offset(RAX, offset));
                self.a.store(gpr(n), RCX);
            }
        }
    }

    /// Emits PUSH of a register or an immediate.
    pub fn push(&mut self, i: &Instruction, operation: usize) {
        self.stack(STACK, -8, true, operation);
        self.write_stack(i, 0);
        self.move_stack(-8);
        self.resume(operation);
    }

    /// Emits POP of a register other than the stack pointer.
    pub fn pop(&mut self, i: &Instruction, operation: usize) {
        self.stack(STACK, 0, false, operation);
        self.read_stack(i, 0);
        self.move_stack(8);
        self.resume(operation);
    }

    /// Emits the template of a guest LEAVE.
    pub fn leave(&mut self, operation: usize) {
        self.stack(FRAME, 0, false, operation);
        self.a.rm(Code::Lea_r64_m, STACK, at_offset(FRAME, 8));
        self.a.rm(Code::Mov_r64_rm64, FRAME, at(RAX));
        self.resume(operation);
    }

    /// Emits PUSH of memory, 64 bits.
    pub fn push_memory(&mut self, i: &Instruction, operation: usize) {
        self.value(i, operation);
        self.a.store(field!(spill), RCX);
        self.stack(STACK, -8, true, operation);
        self.a.load(RCX, field!(spill));
        self.a.mr(Code::Mov_rm64_r64, at(RAX), RCX);
        self.move_stack(-8);
        self.resume(operation);
    }

    /// Emits POP RSP.
    pub fn pop_stack_pointer(&mut self, operation: usize) {
        self.stack(STACK, 0, false, operation);
        self.a.rm(Code::Mov_r64_rm64, STACK, at(RAX));
        self.resume(operation);
    }
}
