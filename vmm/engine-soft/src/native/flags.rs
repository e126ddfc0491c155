//! Lazy flags: the guest's status flags remain in the host's flags as long as no host instruction clobbers them.
//!
//! Where translated code may exit, the flags must be in [`super::Native::flags`]. LAHF and SETO store the flags there before an instruction
//! clobbers the host's flags. Most look-ups clobber them. Often this is unnecessary: a comparison, an addition or a logical operation can
//! be repeated as long as its operands are unchanged (rematerialisation). Then the flags are stored only on slow paths, out of line.

use iced_x86::{Code, Instruction, Mnemonic, OpAccess, OpKind, Register};

use super::assembler::field_of_cpu;
use super::code_map::Part;
use super::emit::Emitter;
use super::plan::{Passthrough, Plan};
use super::runtime::field;

use Register::EAX;

/// Lazy flags rematerialisation: host instructions that compute the flags of an earlier guest instruction again, and leave registers
/// unchanged.
#[derive(Clone, Copy, Debug)]
pub struct FlagsRematerialisation {
    /// The inverse instruction, which restores the operands; none if the instruction did not change them.
    pub undo: Option<Instruction>,
    /// The instruction whose flags are needed.
    pub repeat: Instruction,
    /// Bit set of the guest registers that must be unchanged: see [`bit`].
    pub registers: u32,
}

/// Returns the bit of a register in a set: general registers are bits 0 to 15, vector registers bits 16 to 31. 0 for other registers.
fn bit(register: Register) -> u32 {
    if register.is_gpr() {
        1 << register.full_register().number()
    } else if register.is_vector_register() {
        1 << (16 + register.number() % 16)
    } else {
        0
    }
}

/// Returns the bit set of the guest registers that an instruction may write.
pub fn written(i: &Instruction, info: &mut iced_x86::InstructionInfoFactory) -> u32 {
    use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
    info.info(i)
        .used_registers()
        .iter()
        .filter(|used| matches!(used.access(), Write | CondWrite | ReadWrite | ReadCondWrite))
        .fold(0, |set, used| set | bit(used.register()))
}

impl FlagsRematerialisation {
    /// Returns the rematerialisation of the flags of a guest instruction, which ran as `moved` with only host registers. None if it is
    /// impossible.
    pub fn new(p: &Passthrough, moved: &Instruction) -> Option<Self> {
        if p.memory.is_some() || p.flags_in || p.rax || p.cl || p.count.is_some() {
            return None;
        }
        let guest = &p.instruction;
        let register = |n| match guest.op_kind(n) {
            OpKind::Register => bit(guest.op_register(n)),
            _ => 0,
        };
        let (first, second) = (
            register(0),
            if guest.op_count() > 1 { register(1) } else { 0 },
        );
        let inverse = |code| {
            let mut undo = *moved;
            undo.set_code(code);
            Some(undo)
        };
        let undo = match guest.mnemonic() {
            // These instructions write no operand, or write the same value again when repeated.
            Mnemonic::Cmp
            | Mnemonic::Test
            | Mnemonic::And
            | Mnemonic::Or
            | Mnemonic::Comisd
            | Mnemonic::Comiss
            | Mnemonic::Ucomisd
            | Mnemonic::Ucomiss
            | Mnemonic::Vcomisd
            | Mnemonic::Vcomiss
            | Mnemonic::Vucomisd
            | Mnemonic::Vucomiss => None,
            // The register is zero, and becomes zero again.
            Mnemonic::Xor if first == second => None,
            Mnemonic::Xor | Mnemonic::Neg => Some(*moved),
            Mnemonic::Add if first != second => inverse(opposite(moved.code())?),
            Mnemonic::Sub if first != second => inverse(opposite(moved.code())?),
            _ => return None,
        };
        Some(Self {
            undo,
            repeat: *moved,
            registers: first | second,
        })
    }
}

/// Returns the SUB with the form of an ADD, and the ADD with the form of a SUB.
fn opposite(code: Code) -> Option<Code> {
    use Code::*;
    const PAIRS: [(Code, Code); 15] = [
        (Add_rm8_r8, Sub_rm8_r8),
        (Add_rm16_r16, Sub_rm16_r16),
        (Add_rm32_r32, Sub_rm32_r32),
        (Add_rm64_r64, Sub_rm64_r64),
        (Add_r8_rm8, Sub_r8_rm8),
        (Add_r16_rm16, Sub_r16_rm16),
        (Add_r32_rm32, Sub_r32_rm32),
        (Add_r64_rm64, Sub_r64_rm64),
        (Add_rm8_imm8, Sub_rm8_imm8),
        (Add_rm16_imm16, Sub_rm16_imm16),
        (Add_rm32_imm32, Sub_rm32_imm32),
        (Add_rm64_imm32, Sub_rm64_imm32),
        (Add_rm16_imm8, Sub_rm16_imm8),
        (Add_rm32_imm8, Sub_rm32_imm8),
        (Add_rm64_imm8, Sub_rm64_imm8),
    ];
    PAIRS.iter().find_map(|&(add, sub)| {
        if code == add {
            Some(sub)
        } else if code == sub {
            Some(add)
        } else {
            None
        }
    })
}

impl Emitter {
    /// Emits code that stores the flags to memory, unless they are there. Uses RAX.
    pub fn save_flags(&mut self) {
        if !self.flags_in_memory {
            self.load_flags();
            self.store_flags();
            self.flags_in_memory = true;
        }
    }

    /// Emits a store of the host's flags to memory. Uses RAX.
    pub fn store_flags(&mut self) {
        self.within(Part::Flags, |e| {
            e.a.plain(Code::Lahf);
            e.a.r(Code::Seto_rm8, Register::AL);
            let flags = field_of_cpu(field!(flags));
            e.a.mr(Code::Mov_rm16_r16, flags, Register::AX);
        });
    }

    /// Emits the instructions that compute the flags again, in the host's flags.
    pub fn rematerialise_flags(&mut self, rematerialisation: &FlagsRematerialisation) {
        self.within(Part::Flags, |e| {
            if let Some(undo) = &rematerialisation.undo {
                e.a.put(undo);
            }
            e.a.put(&rematerialisation.repeat);
        });
    }

    /// Returns whether the flags can be rematerialised, which ends where an instruction writes a register of the rematerialisation.
    pub fn has_rematerialisation(&self) -> bool {
        self.rematerialisation.is_some()
    }

    /// Prepares for an instruction that writes these guest registers, and also flags if `flags`. Stores flags that could not be
    /// rematerialised afterwards.
    pub fn before_writes(&mut self, operation: usize, written: u32, flags: bool) {
        if !flags
            && self.flags_needed[operation]
            && self
                .rematerialisation
                .is_some_and(|r| r.registers & written != 0)
        {
            self.save_flags();
            self.rematerialisation = None;
        }
    }

    /// Drops a rematerialisation after an instruction that wrote these guest registers, and also flags if `flags`.
    pub fn after_writes(&mut self, written: u32, flags: bool) {
        if !flags
            && self
                .rematerialisation
                .is_some_and(|r| r.registers & written != 0)
        {
            // `before_writes` has not stored the flags, so they are not needed any more.
            self.rematerialisation = None;
            self.flags_in_memory = true;
            self.flags_in_host = false;
        }
    }

    /// Emits code that brings the guest's flags into the host's flags. Uses RAX.
    pub fn load_flags(&mut self) {
        if !self.flags_in_host {
            match self.rematerialisation {
                Some(rematerialisation) => self.rematerialise_flags(&rematerialisation),
                None => {
                    debug_assert!(self.flags_in_memory);
                    self.restore_flags();
                }
            }
            self.flags_in_host = true;
        }
    }

    /// Emits a load of the host's flags from memory, the reverse of [`Emitter::store_flags`]. Uses RAX.
    pub fn restore_flags(&mut self) {
        self.within(Part::Flags, |e| {
            e.a.rm(Code::Movzx_r32_rm16, EAX, field_of_cpu(field!(flags)));
            // The addition overflows if AL is 1, which restores OF.
            e.a.ri(Code::Add_rm8_imm8, Register::AL, 0x7f);
            e.a.plain(Code::Sahf);
        });
    }

    /// Prepares for code that clobbers the host's flags: stores them, unless they can be rematerialised.
    pub fn clobber_flags(&mut self) {
        if self.rematerialisation.is_none() {
            self.save_flags();
        }
        self.flags_in_host = false;
    }
}

/// Returns, for each instruction of a block, whether the flags after it may be needed before a later instruction writes new flags. A later
/// instruction, or an exit from the code, may need them.
pub fn flags_needed_after(plans: &[Plan]) -> Vec<bool> {
    let mut needed = vec![true; plans.len()];
    let mut live = true;
    for (k, plan) in plans.iter().enumerate().rev() {
        needed[k] = live;
        live = match plan {
            Plan::Nop | Plan::Lea => live,
            Plan::Passthrough(p) => p.memory.is_some() || p.flags_in || (live && !p.flags_out),
            _ => true,
        };
    }
    needed
}
