//! From a decoded instruction to an operation: the memory operand and attributes here, the rest in the group's own `lower`.

use iced_x86::{Instruction, OpKind, Register};

use crate::cpu::Mode;
use crate::op::{FLAT, Handler, Op, RIP, ZERO, attr};
use crate::ops;
use crate::ops::simd::Stubs;

/// Instruction that is lowered, as the groups of `ops` see it.
pub struct Lowering<'a> {
    /// The instruction; its IP is the guest's own.
    pub instruction: &'a Instruction,
    /// Mode in which the instruction was decoded.
    pub mode: Mode,
    /// The address of the block's first instruction.
    pub block_ip: u64,
    /// The operation; memory operand, attributes, offset and length are filled in.
    pub op: &'a mut Op,
    /// Native code for vector and x87 instructions.
    pub stubs: &'a mut Stubs,
}

/// Lowers one instruction. Unknown instructions become an operation that stops the study when (and only when) it is executed.
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
    if instruction.has_lock_prefix() {
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
    memory_operand(instruction, mode, block_ip, &mut op);
    let mut l = Lowering {
        instruction,
        mode,
        block_ip,
        op: &mut op,
        stubs,
    };
    let handler: Option<Handler> = None
        .or_else(|| ops::integer::lower(&mut l))
        .or_else(|| ops::control::lower(&mut l))
        .or_else(|| ops::string::lower(&mut l))
        .or_else(|| ops::system::lower(&mut l))
        .or_else(|| ops::simd::lower(&mut l));
    if let Some(handler) = handler {
        op.handler = handler;
    }
    op
}

/// Describes the memory operand, where there is one, in the operation.
fn memory_operand(i: &Instruction, mode: Mode, block_ip: u64, op: &mut Op) {
    let has = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    if !has {
        return;
    }
    let (base, index) = (i.memory_base(), i.memory_index());
    op.disp = i.memory_displacement64() as i64;
    if base == Register::RIP || base == Register::EIP {
        op.base = RIP;
        // iced reports the absolute target; the block may be mapped elsewhere too.
        op.disp = i.ip_rel_memory_address().wrapping_sub(block_ip) as i64;
        if base == Register::EIP {
            op.attr |= attr::ADDRESS_32;
        }
    } else if base != Register::None {
        op.base = base.number() as u8;
        address_size(base, op);
    }
    if index != Register::None {
        // The group lowers vector indices (gathers).
        if index.is_gpr() {
            op.index = index.number() as u8;
            address_size(index, op);
        }
        op.scale = i.memory_index_scale().trailing_zeros() as u8;
    }
    if base == Register::None && index == Register::None {
        // Without registers, only the displacement shows the address size.
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
    // Prefixes other than FS and GS do not count in 64-bit mode.
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

/// Returns the index into `Cpu::segment_base`; in 64-bit mode only FS and GS have a base (SDM vol. 1 §3.4.2.1).
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

/// Returns the byte offset of a general register into the register file, as [`Op::dst`] and [`Op::src`] hold it.
pub fn register_offset(register: Register) -> u8 {
    let number = register.full_register().number() as u8 * 8;
    match register {
        Register::AH | Register::CH | Register::DH | Register::BH => number + 1,
        _ => number,
    }
}
