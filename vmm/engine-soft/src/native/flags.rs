//! The guest's status flags. They are in the host's as long as nothing destroys them; what does (look-ups above all) is preceded
//! by LAHF and SETO into [`super::Native::flags`], where they are at every point at which translated code may leave; or only at
//! such points, out of line, where they need not be kept: comparisons, additions and logic can be carried out again as long as their
//! operands are there.

use iced_x86::{Code, Instruction, Mnemonic, OpAccess, OpKind, Register};

use super::assembler::field_of_cpu;
use super::code_map::Part;
use super::emit::Emitter;
use super::plan::{Passthrough, Plan};
use super::runtime::field;

use Register::EAX;

/// Host instructions that give the flags of a guest instruction again and change no register.
#[derive(Clone, Copy, Debug)]
pub struct FlagsRematerialisation {
    /// An instruction that takes back the result of the second, where that is needed.
    pub undo: Option<Instruction>,
    /// The instruction.
    pub repeat: Instruction,
    /// Guest registers that must be as they were: see [`bit`].
    pub registers: u32,
}

/// A guest register's bit in a set: general ones, then vector ones.
fn bit(register: Register) -> u32 {
    if register.is_gpr() {
        1 << register.full_register().number()
    } else if register.is_vector_register() {
        1 << (16 + register.number() % 16)
    } else {
        0
    }
}

/// The guest registers that an instruction writes.
pub fn written(i: &Instruction, info: &mut iced_x86::InstructionInfoFactory) -> u32 {
    use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
    info.info(i)
        .used_registers()
        .iter()
        .filter(|used| matches!(used.access(), Write | CondWrite | ReadWrite | ReadCondWrite))
        .fold(0, |set, used| set | bit(used.register()))
}

impl FlagsRematerialisation {
    /// For an instruction of the guest that ran as `moved`, on host registers alone.
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
            // These change nothing, or the same once more.
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
            // Zero is left, and zeroed again.
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

/// SUB for ADD and the other way.
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
    /// Put the flags where they are safe. Uses RAX.
    pub fn save_flags(&mut self) {
        if !self.flags_in_memory {
            self.load_flags();
            self.store_flags();
            self.flags_in_memory = true;
        }
    }

    /// Store the host's. Uses RAX.
    pub fn store_flags(&mut self) {
        self.within(Part::Flags, |e| {
            e.a.plain(Code::Lahf);
            e.a.r(Code::Seto_rm8, Register::AL);
            let flags = field_of_cpu(field!(flags));
            e.a.mr(Code::Mov_rm16_r16, flags, Register::AX);
        });
    }

    /// Make them again in the host's.
    pub fn rematerialise_flags(&mut self, rematerialisation: &FlagsRematerialisation) {
        self.within(Part::Flags, |e| {
            if let Some(undo) = &rematerialisation.undo {
                e.a.put(undo);
            }
            e.a.put(&rematerialisation.repeat);
        });
    }

    /// Whether what an instruction writes matters to the flags.
    pub fn has_rematerialisation(&self) -> bool {
        self.rematerialisation.is_some()
    }

    /// An instruction that writes these guest registers comes next; `flags`: and flags.
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

    /// It has been emitted.
    pub fn after_writes(&mut self, written: u32, flags: bool) {
        if !flags
            && self
                .rematerialisation
                .is_some_and(|r| r.registers & written != 0)
        {
            // Nobody asks for them.
            self.rematerialisation = None;
            self.flags_in_memory = true;
            self.flags_in_host = false;
        }
    }

    /// Bring the flags into the host's. Uses RAX.
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

    /// The reverse of [`Emitter::store_flags`].
    pub fn restore_flags(&mut self) {
        self.within(Part::Flags, |e| {
            e.a.rm(Code::Movzx_r32_rm16, EAX, field_of_cpu(field!(flags)));
            // Overflows where AL is 1.
            e.a.ri(Code::Add_rm8_imm8, Register::AL, 0x7f);
            e.a.plain(Code::Sahf);
        });
    }

    /// Something is about to destroy the host's flags.
    pub fn clobber_flags(&mut self) {
        if self.rematerialisation.is_none() {
            self.save_flags();
        }
        self.flags_in_host = false;
    }
}

/// For each instruction of a block, whether the flags behind it may be asked for: by an instruction, or where code is left,
/// before others take their place.
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
