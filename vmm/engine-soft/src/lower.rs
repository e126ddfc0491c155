//! Lowering of a decoded instruction to an operation. This module does the memory operand and the attributes; the `lower` function of an
//! instruction group does the rest.

use std::cell::RefCell;

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use crate::cpu::Mode;
use crate::op::{FLAT, Handler, Op, RIP, ZERO, attr};
use crate::ops;
use crate::ops::simd::Stubs;

/// An instruction that is lowered, as the instruction groups in `ops` receive it.
pub struct Lowering<'a> {
    /// The decoded instruction; its IP is the guest's instruction pointer.
    pub instruction: &'a Instruction,
    /// Mode in which the instruction was decoded.
    pub mode: Mode,
    /// Instruction pointer of the block's first instruction.
    pub block_ip: u64,
    /// The operation, in which memory operand, attributes, offset and length are set already.
    pub op: &'a mut Op,
    /// Native code for vector and x87 instructions.
    pub stubs: &'a mut Stubs,
    /// True if the instruction's group has counted its loads and stores.
    pub accesses_counted: bool,
}

/// Lowers one instruction. An unknown instruction becomes an operation that matters only if it is executed: it raises `#UD` in user mode,
/// and stops the study in the kernel.
pub fn lower(instruction: &Instruction, mode: Mode, block_ip: u64, stubs: &mut Stubs) -> Op {
    let mut op = Op {
        handler: ops::system::unknown,
        imm: 0,
        disp: 0,
        base: ZERO,
        index: ZERO,
        scale: 0,
        segment: FLAT,
        dst: 0,
        src: 0,
        src2: 0,
        attr: 0,
        offset: instruction.ip().wrapping_sub(block_ip) as u16,
        len: instruction.len() as u8,
        loads: 0,
        stores: 0,
        flop_class: 0,
        flops: 0,
        aux: 0,
    };
    if is_locked(instruction) {
        op.attr |= attr::LOCK;
    }
    if instruction.has_rep_prefix() {
        op.attr |= attr::REP;
    }
    if instruction.has_repne_prefix() {
        op.attr |= attr::REPNE;
    }
    if instruction.is_stack_instruction() {
        op.attr |= attr::STACK;
    }
    if is_non_temporal_store(instruction.mnemonic()) {
        op.attr |= attr::NON_TEMPORAL;
    }
    memory_operand(instruction, mode, block_ip, &mut op);
    let mut l = Lowering {
        instruction,
        mode,
        block_ip,
        op: &mut op,
        stubs,
        accesses_counted: false,
    };
    let handler: Option<Handler> = None
        .or_else(|| ops::integer::lower(&mut l))
        .or_else(|| ops::control::lower(&mut l))
        .or_else(|| ops::string::lower(&mut l))
        .or_else(|| ops::system::lower(&mut l))
        .or_else(|| ops::simd::lower(&mut l));
    let counted = l.accesses_counted || instruction.is_string_instruction();
    if let Some(handler) = handler {
        op.handler = handler;
    }
    if !counted {
        count_accesses(instruction, &mut op);
    }
    op
}

/// Returns whether an instruction is locked: it has the LOCK prefix, or is XCHG with memory (SDM vol. 3A §9.1.2.1).
pub fn is_locked(instruction: &Instruction) -> bool {
    let exchange = || {
        let memory = |n| instruction.op_kind(n) == OpKind::Memory;
        instruction.mnemonic() == Mnemonic::Xchg && (memory(0) || memory(1))
    };
    instruction.has_lock_prefix() || exchange()
}

/// Returns whether an instruction is a store with a non-temporal hint.
pub fn is_non_temporal_store(m: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        m,
        Movnti
            | Movntq
            | Movntps
            | Movntpd
            | Movntdq
            | Maskmovq
            | Maskmovdqu
            | Vmovntps
            | Vmovntpd
            | Vmovntdq
            | Vmaskmovdqu
    )
}

/// Counts the data reads and writes of an instruction, one for each operand in memory. String instructions count what they do when they run.
fn count_accesses(instruction: &Instruction, op: &mut Op) {
    thread_local! {
        static INFO: RefCell<InstructionInfoFactory> = RefCell::new(InstructionInfoFactory::new());
    }
    INFO.with_borrow_mut(|info| {
        for m in info.info(instruction).used_memory() {
            use OpAccess::*;
            let access = m.access();
            op.loads += u8::from(matches!(
                access,
                Read | CondRead | ReadWrite | ReadCondWrite
            ));
            op.stores += u8::from(matches!(
                access,
                Write | CondWrite | ReadWrite | ReadCondWrite
            ));
        }
    });
}

/// Sets the fields of the memory operand, if the instruction has one.
fn memory_operand(i: &Instruction, mode: Mode, block_ip: u64, op: &mut Op) {
    let has = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    if !has {
        return;
    }
    let (base, index) = (i.memory_base(), i.memory_index());
    op.disp = i.memory_displacement64() as i64;
    if base == Register::RIP || base == Register::EIP {
        op.base = RIP;
        // iced-x86 gives the absolute target. The displacement is made relative to the block, since it may also be mapped at other
        // addresses.
        op.disp = i.ip_rel_memory_address().wrapping_sub(block_ip) as i64;
        if base == Register::EIP {
            op.attr |= attr::ADDRESS_32;
        }
    } else if base != Register::None {
        op.base = base.number() as u8;
        address_size(base, op);
    }
    if index != Register::None {
        // The instruction groups lower vector indices (gathers).
        if index.is_gpr() {
            op.index = index.number() as u8;
            address_size(index, op);
        }
        op.scale = i.memory_index_scale().trailing_zeros() as u8;
    }
    if base == Register::None && index == Register::None {
        // Without registers, only the displacement size shows the address size.
        match (mode, i.memory_displ_size()) {
            (Mode::Bits64, 4) => {
                op.attr |= if op.disp < 0 || op.disp > i64::from(i32::MAX) {
                    attr::ADDRESS_32
                } else {
                    0
                }
            }
            (Mode::Bits64, _) => {}
            (_, 2) => op.attr |= attr::ADDRESS_16,
            _ => op.attr |= attr::ADDRESS_32,
        }
        if mode == Mode::Bits64 && i.memory_displ_size() == 8 {
            op.attr &= !attr::ADDRESS_32;
        }
    }
    op.segment = segment(i.memory_segment(), mode);
    // In 64-bit mode, segment prefixes other than FS and GS have no effect.
    let stack = matches!(
        base,
        Register::RSP | Register::RBP | Register::ESP | Register::EBP
    );
    if mode == Mode::Bits64 && stack && op.segment == FLAT {
        op.attr |= attr::STACK_OPERAND;
    }
}

fn address_size(register: Register, op: &mut Op) {
    match register.size() {
        4 => op.attr |= attr::ADDRESS_32,
        2 => op.attr |= attr::ADDRESS_16,
        _ => {}
    }
}

/// Returns the segment's index into `Cpu::segment_base`. In 64-bit mode only FS and GS have a base (SDM vol. 1 §3.4.2.1).
pub fn segment(register: Register, mode: Mode) -> u8 {
    match register {
        Register::FS => 4,
        Register::GS => 5,
        _ if mode == Mode::Bits64 => FLAT,
        Register::ES => 0,
        Register::CS => 1,
        Register::SS => 2,
        _ => 3,
    }
}

/// Returns the byte offset of a general register in the register file, for [`Op::dst`] and [`Op::src`].
pub fn register_offset(register: Register) -> u8 {
    let number = register.full_register().number() as u8 * 8;
    match register {
        Register::AH | Register::CH | Register::DH | Register::BH => number + 1,
        _ => number,
    }
}
