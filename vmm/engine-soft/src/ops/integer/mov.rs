//! Moves without arithmetic: MOV, MOVZX, MOVSX, LEA, MOVBE, MOVNTI, XLAT, and the sign extensions of the accumulator.

use iced_x86::{Code, Mnemonic};

use super::operand::{
    Destination, Dst, Imm, Mem, OperandKind, Source, Src, Width, by_destination, by_source,
    by_wide, by_width,
};
use crate::cpu::{Cpu, Mode};
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op, ZERO, attr, thread};

fn mov<D: Destination, S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let value: T = S::get(cpu, op)?;
    D::set(cpu, op, value)?;
    Ok(Flow::Next)
}

fn movzx<S: Source, From: Width, To: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let value: From = S::get(cpu, op)?;
    cpu.set_reg(op.dst, To::from_u64(value.to_u64()));
    Ok(Flow::Next)
}

fn movsx<S: Source, From: Width, To: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let value: From = S::get(cpu, op)?;
    cpu.set_reg(op.dst, To::from_u64(value.sign_extend()));
    Ok(Flow::Next)
}

fn lea<T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    cpu.set_reg(op.dst, T::from_u64(cpu.offset(op)));
    Ok(Flow::Next)
}

/// Reverses the bytes of a value.
#[inline(always)]
pub fn swap_bytes<T: Width>(value: T) -> T {
    T::from_u64(value.to_u64().swap_bytes() >> (64 - T::BITS))
}

fn movbe<D: Destination, S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let value: T = S::get(cpu, op)?;
    D::set(cpu, op, swap_bytes(value))?;
    Ok(Flow::Next)
}

/// Executes BSWAP. The result for a 16-bit register is undefined; hardware clears the register.
fn bswap<T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let value: T = cpu.reg(op.dst);
    let value = if T::BITS == 16 {
        T::from_u64(0)
    } else {
        swap_bytes(value)
    };
    cpu.set_reg(op.dst, value);
    Ok(Flow::Next)
}

/// Executes XLAT: AL = [base + AL].
fn xlat(cpu: &mut Cpu, op: &Op) -> Done {
    let mut offset = cpu.offset(op).wrapping_add(cpu.reg::<u8>(0).into());
    if op.attr & attr::ADDRESS_32 != 0 {
        offset &= 0xffff_ffff;
    } else if op.attr & attr::ADDRESS_16 != 0 {
        offset &= 0xffff;
    }
    let mut linear = cpu.segment_base[usize::from(op.segment)].wrapping_add(offset);
    if cpu.mode != Mode::Bits64 {
        linear &= 0xffff_ffff;
    }
    let value: u8 = cpu.load(linear)?;
    cpu.set_reg(0, value);
    Ok(Flow::Next)
}

/// Executes CBW, CWDE, CDQE.
fn extend_accumulator<From: Width, To: Width>(cpu: &mut Cpu, _: &Op) -> Done {
    let value: From = cpu.reg(0);
    cpu.set_reg(0, To::from_u64(value.sign_extend()));
    Ok(Flow::Next)
}

/// Executes CWD, CDQ, CQO: DX, EDX or RDX becomes the sign of the accumulator.
fn spread_sign<T: Width>(cpu: &mut Cpu, _: &Op) -> Done {
    let value: T = cpu.reg(0);
    let sign = (value.sign_extend() as i64 >> 63) as u64;
    cpu.set_reg(2 * 8, T::from_u64(sign));
    Ok(Flow::Next)
}

fn lower_mov(l: &mut Lowering<'_>) -> Option<Handler> {
    let width = l.width(0);
    let memory = l.take_dst(0)?;
    match (memory, l.take_src(1)?) {
        (false, OperandKind::Register(_)) => by_width!(width, T => mov::<Dst, Src, T>),
        (false, OperandKind::Immediate) => by_width!(width, T => mov::<Dst, Imm, T>),
        (false, OperandKind::Memory) => by_width!(width, T => mov::<Dst, Mem, T>),
        (true, OperandKind::Register(_)) => by_width!(width, T => mov::<Mem, Src, T>),
        (true, OperandKind::Immediate) => by_width!(width, T => mov::<Mem, Imm, T>),
        (true, OperandKind::Memory) => None,
    }
}

macro_rules! extension {
    ($l:ident, $handler:ident) => {{
        $l.take_dst(0)?;
        let shape = $l.take_src(1)?;
        let (to, from) = ($l.width(0), $l.width(1));
        by_source!(shape, S => match from {
            1 => by_wide!(to, T => $handler::<S, u8, T>),
            2 => by_wide!(to, T => $handler::<S, u16, T>),
            4 => by_wide!(to, T => $handler::<S, u32, T>),
            _ => None,
        })
    }};
}

/// Lowers the instructions of this file.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    match l.instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Movnti => lower_mov(l),
        Mnemonic::Movzx => extension!(l, movzx),
        Mnemonic::Movsx | Mnemonic::Movsxd => extension!(l, movsx),
        Mnemonic::Lea => {
            let width = l.width(0);
            l.take_dst(0)?;
            by_wide!(width, T => lea::<T>)
        }
        Mnemonic::Movbe => {
            let width = l.width(0);
            let memory = l.take_dst(0)?;
            let shape = l.take_src(1)?;
            by_destination!(memory, D => by_source!(shape, S => by_wide!(width, T => movbe::<D, S, T>)))
        }
        Mnemonic::Bswap => {
            let width = l.width(0);
            l.take_dst(0)?;
            by_wide!(width, T => bswap::<T>)
        }
        Mnemonic::Xlatb => {
            // The decoder reports AL as index register, but `xlat` adds AL itself.
            l.op.index = ZERO;
            Some(xlat)
        }
        _ => match l.instruction.code() {
            Code::Cbw => Some(thread(extend_accumulator::<u8, u16>)),
            Code::Cwde => Some(thread(extend_accumulator::<u16, u32>)),
            Code::Cdqe => Some(thread(extend_accumulator::<u32, u64>)),
            Code::Cwd => Some(thread(spread_sign::<u16>)),
            Code::Cdq => Some(thread(spread_sign::<u32>)),
            Code::Cqo => Some(thread(spread_sign::<u64>)),
            _ => None,
        },
    }
}
