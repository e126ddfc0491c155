//! Shifts and rotates (SDM vol. 2B, SAL/SAR/SHL/SHR, RCL/RCR/ROL/ROR, SHLD, SHRD).

use iced_x86::{Mnemonic, Register};
use nodescope_x86::bits::rflags::STATUS;

use super::host::{DoubleShift, Rcl, Rcr, Rol, Ror, Sar, Shift, Shl, Shld, Shr, Shrd};
use super::operand::{
    Destination, Imm, OperandKind, Source, Src, Src2, Width, by_destination, by_wide, by_width,
};
use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op};

/// Masks a count to 5 bits, or to 6 bits for 64-bit operands.
#[inline(always)]
fn mask<T: Width>(count: u8) -> u8 {
    count & if T::BITS == 64 { 63 } else { 31 }
}

/// Executes a shift or rotation. A count of zero leaves the flags unchanged, but the destination is written.
fn shift<O: Shift, D: Destination, C: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let count = mask::<T>(C::get(cpu, op)?);
    let (a, at) = D::load::<T>(cpu, op)?;
    let (value, flags) = O::apply(a, count, cpu.rflags);
    D::store(cpu, op, at, value)?;
    if count != 0 {
        cpu.rflags = cpu.rflags & !O::MASK | flags & O::MASK;
    }
    Ok(Flow::Next)
}

fn double_shift<O: DoubleShift, D: Destination, C: Source, T: Width>(
    cpu: &mut Cpu,
    op: &Op,
) -> Done {
    let count = mask::<T>(C::get(cpu, op)?);
    let b: T = cpu.reg(op.src);
    let (a, at) = D::load(cpu, op)?;
    let (value, flags) = O::apply(a, b, count, cpu.rflags);
    D::store(cpu, op, at, value)?;
    if count != 0 {
        cpu.rflags = cpu.rflags & !STATUS | flags & STATUS;
    }
    Ok(Flow::Next)
}

fn lower_shift<O: Shift>(l: &mut Lowering<'_>) -> Option<Handler> {
    let width = l.width(0);
    let memory = l.take_dst(0)?;
    match l.take_src(1)? {
        OperandKind::Register(_) => {
            by_destination!(memory, D => by_width!(width, T => shift::<O, D, Src, T>))
        }
        OperandKind::Immediate => {
            by_destination!(memory, D => by_width!(width, T => shift::<O, D, Imm, T>))
        }
        OperandKind::Memory => None,
    }
}

fn lower_double<O: DoubleShift>(l: &mut Lowering<'_>) -> Option<Handler> {
    let width = l.width(0);
    let memory = l.take_dst(0)?;
    l.take_src(1)?;
    match l.operand_kind(2)? {
        OperandKind::Register(_) => {
            debug_assert_eq!(l.instruction.op_register(2), Register::CL);
            l.op.src2 = 8;
            by_destination!(memory, D => by_wide!(width, T => double_shift::<O, D, Src2, T>))
        }
        OperandKind::Immediate => {
            l.op.imm = l.instruction.immediate(2);
            by_destination!(memory, D => by_wide!(width, T => double_shift::<O, D, Imm, T>))
        }
        OperandKind::Memory => None,
    }
}

/// Lowers the instructions of this file.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    match l.instruction.mnemonic() {
        Mnemonic::Shl | Mnemonic::Sal => lower_shift::<Shl>(l),
        Mnemonic::Shr => lower_shift::<Shr>(l),
        Mnemonic::Sar => lower_shift::<Sar>(l),
        Mnemonic::Rol => lower_shift::<Rol>(l),
        Mnemonic::Ror => lower_shift::<Ror>(l),
        Mnemonic::Rcl => lower_shift::<Rcl>(l),
        Mnemonic::Rcr => lower_shift::<Rcr>(l),
        Mnemonic::Shld => lower_double::<Shld>(l),
        Mnemonic::Shrd => lower_double::<Shrd>(l),
        _ => None,
    }
}
