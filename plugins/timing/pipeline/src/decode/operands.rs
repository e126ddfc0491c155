//! Registers, flags and memory that an instruction uses.

use iced_x86::{
    CpuidFeature, Instruction, InstructionInfo, Mnemonic, OpAccess, OpKind, Register, RflagsBits,
    UsedRegister,
};

use crate::class::register;
use crate::micro::{Resource, resource};

/// Bytes of an access whose size the decoder does not know: saved states and descriptors.
const UNKNOWN_SIZE: u16 = 64;
/// Flags that instructions for control of the processor use. They are no operands of arithmetic.
const CARRY: u32 = RflagsBits::CF;
const STATUS: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;

/// The memory operand of an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Registers of the address.
    pub(super) address: Vec<Resource>,
    /// Bytes that are accessed.
    pub(super) size: u16,
    /// True if it is read.
    pub(super) load: bool,
    /// True if it is written.
    pub(super) store: bool,
    /// True if the address has an index register.
    pub(super) indexed: bool,
    /// True if the index is scaled, or the address has a base, an index and a displacement.
    pub(super) complex: bool,
}

/// What an instruction pushes and pops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stack {
    /// Bytes that it pushes: 0 for none.
    pub(super) push: u16,
    /// Bytes that it pops: 0 for none.
    pub(super) pop: u16,
}

/// Operands of an instruction as resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Operands {
    /// Values that it needs besides addresses and memory.
    pub(super) sources: Vec<Resource>,
    /// Values that it makes besides memory.
    pub(super) results: Vec<Resource>,
    /// Memory operand.
    pub(super) memory: Memory,
    /// Accesses to the stack.
    pub(super) stack: Stack,
    /// Bytes of the widest vector register; 0 if there is none.
    pub(super) vector_bytes: u16,
    /// True if data in memory belong to vector or x87 registers.
    pub(super) vector: bool,
}

impl Operands {
    /// Returns the operands of an instruction. `top` is the number of the register that is the top of the x87 stack before it.
    pub(super) fn of(instruction: &Instruction, info: &InstructionInfo, top: u8) -> Self {
        let mut operands = Self {
            memory: memory(instruction, info),
            stack: stack(instruction),
            vector_bytes: vector_bytes(instruction),
            vector: uses_vectors(instruction),
            ..Self::default()
        };
        for used in info.used_registers() {
            operands.add(instruction, info, *used, top);
        }
        operands.add_x87_push(instruction, top);
        operands.add_flags(instruction);
        operands
    }

    fn add(
        &mut self,
        instruction: &Instruction,
        info: &InstructionInfo,
        used: UsedRegister,
        top: u8,
    ) {
        let Some(number) = number(used.register(), top) else {
            return;
        };
        let explicit = explicit_access(instruction, info, number, top);
        // The stack engine keeps RSP: pushes and pops neither wait for each other's RSP nor make one.
        let moved = number == resource::GENERAL + 4 && instruction.stack_pointer_increment() != 0;
        // The result of LEA is the address, which is its operand.
        let accessed = self.memory.load || self.memory.store;
        let only_address = accessed && self.memory.address.contains(&number)
            || addresses_string(instruction, number);
        let (mut read, mut write) = (reads(used.access()), writes(used.access()));
        if moved {
            read = explicit.is_some_and(reads);
            write = explicit.is_some_and(writes);
        } else if used.access() == OpAccess::Read && only_address {
            read = explicit.is_some_and(reads);
        }
        // A write of 8 or 16 bits keeps the rest of the register.
        let narrow = used.register().is_gpr8() || used.register().is_gpr16();
        if read || write && narrow && instruction.code_size() != iced_x86::CodeSize::Code16 {
            insert(&mut self.sources, number);
        }
        if write {
            insert(&mut self.results, number);
        }
    }

    /// Adds the register that an instruction pushes on the x87 stack.
    fn add_x87_push(&mut self, instruction: &Instruction, top: u8) {
        let change = instruction.fpu_stack_increment_info().increment();
        if change < 0 && instruction.mnemonic() != Mnemonic::Fdecstp {
            insert(&mut self.results, resource::X87 + moved_top(top, change));
        }
    }

    fn add_flags(&mut self, instruction: &Instruction) {
        let (read, written) = (instruction.rflags_read(), instruction.rflags_modified());
        for (bits, flag) in [(CARRY, resource::CARRY), (STATUS, resource::FLAGS)] {
            if read & bits != 0 {
                insert(&mut self.sources, flag);
            }
            if written & bits != 0 {
                insert(&mut self.results, flag);
            }
        }
    }
}

fn insert(list: &mut Vec<Resource>, value: Resource) {
    if !list.contains(&value) {
        list.push(value);
    }
}

/// Returns the number of the register of the x87 stack that is the top after a change.
pub(super) fn moved_top(top: u8, change: i32) -> u8 {
    (i32::from(top) + change).rem_euclid(8) as u8
}

/// Returns the resource of a register; `None` for registers that no other instruction waits for.
pub(super) fn number(register: Register, top: u8) -> Option<Resource> {
    if register.is_gpr() {
        let full = register.full_register();
        return Some(resource::GENERAL + full.number() as u8);
    }
    if register.is_vector_register() {
        return Some(resource::VECTOR + register.number() as u8);
    }
    if register.is_k() {
        return Some(resource::MASK + register.number() as u8);
    }
    if register.is_st() {
        return Some(resource::X87 + ((top + register.number() as u8) & 7));
    }
    register
        .is_mm()
        .then(|| resource::X87 + register.number() as u8)
}

fn reads(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read
            | OpAccess::CondRead
            | OpAccess::ReadWrite
            | OpAccess::ReadCondWrite
            | OpAccess::CondWrite
    )
}

fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

/// Returns the access to a register as an operand that the instruction names; the stronger one if it names it twice.
fn explicit_access(
    instruction: &Instruction,
    info: &InstructionInfo,
    number_: Resource,
    top: u8,
) -> Option<OpAccess> {
    let accesses: Vec<OpAccess> = (0..instruction.op_count())
        .filter(|n| number(register(instruction, *n), top) == Some(number_))
        .map(|n| info.op_access(n))
        .collect();
    let any = |test: fn(OpAccess) -> bool| accesses.iter().any(|access| test(*access));
    match (any(reads), any(writes)) {
        (true, true) => Some(OpAccess::ReadWrite),
        (true, false) => Some(OpAccess::Read),
        (false, true) => Some(OpAccess::Write),
        (false, false) => None,
    }
}

/// Returns whether a register is an address that MASKMOVDQU uses without naming it.
fn addresses_string(instruction: &Instruction, number: Resource) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu | Mnemonic::Maskmovq
    ) && number == resource::GENERAL + 7
}

fn memory(instruction: &Instruction, info: &InstructionInfo) -> Memory {
    let Some(operand) =
        (0..instruction.op_count()).find(|n| instruction.op_kind(*n) == OpKind::Memory)
    else {
        return Memory::default();
    };
    let access = info.op_access(operand);
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let mut address = Vec::new();
    for register in [base, index] {
        if let Some(number) = number(register, 0) {
            insert(&mut address, number);
        }
    }
    let indexed = index != Register::None;
    let displaced = instruction.memory_displacement64() != 0;
    Memory {
        address,
        size: size(instruction),
        load: reads(access) && access != OpAccess::CondWrite,
        store: writes(access),
        indexed,
        complex: indexed
            && (instruction.memory_index_scale() > 1 || base != Register::None && displaced),
    }
}

fn size(instruction: &Instruction) -> u16 {
    match instruction.memory_size().size() {
        0 => UNKNOWN_SIZE,
        size => size as u16,
    }
}

fn stack(instruction: &Instruction) -> Stack {
    use iced_x86::FlowControl as F;
    let word = match instruction.code_size() {
        iced_x86::CodeSize::Code64 => 8,
        iced_x86::CodeSize::Code16 => 2,
        _ => 4,
    };
    let moved = instruction.stack_pointer_increment();
    let bytes = moved.unsigned_abs().min(8) as u16;
    match (instruction.mnemonic(), instruction.flow_control()) {
        (Mnemonic::Leave, _) => Stack { push: 0, pop: word },
        (Mnemonic::Enter, _) => Stack { push: word, pop: 0 },
        (Mnemonic::Ret, _) => Stack { push: 0, pop: word },
        (_, F::Next | F::Call | F::IndirectCall) if moved < 0 => Stack {
            push: bytes,
            pop: 0,
        },
        (_, F::Next) if moved > 0 => Stack {
            push: 0,
            pop: bytes,
        },
        _ => Stack::default(),
    }
}

fn vector_bytes(instruction: &Instruction) -> u16 {
    (0..instruction.op_count())
        .map(|n| register(instruction, n))
        .filter(|r| r.is_vector_register())
        .map(|r| r.size() as u16)
        .max()
        .unwrap_or(0)
}

/// Returns whether the data of an instruction are in vector or x87 registers.
fn uses_vectors(instruction: &Instruction) -> bool {
    let registers = (0..instruction.op_count()).map(|n| register(instruction, n));
    let vector = registers
        .into_iter()
        .any(|r| r.is_vector_register() || r.is_mm() || r.is_st() || r.is_k());
    let x87 = instruction.code().cpuid_features().iter().any(|f| {
        matches!(
            f,
            CpuidFeature::FPU | CpuidFeature::FPU287 | CpuidFeature::FPU387
        )
    });
    vector || x87 && !instruction.is_save_restore_instruction()
}
