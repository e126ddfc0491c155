//! XCHG, XADD, CMPXCHG, CMPXCHG8B, CMPXCHG16B.
//!
//! The vCPUs of a node run one at a time, so the locked forms need no host atomics.

use iced_x86::Mnemonic;
use nodescope_x86::Exception;
use nodescope_x86::bits::rflags::ZF;

use super::host::{Add, Binary, Sub};
use super::operand::{Destination, OperandKind, Width, by_destination, by_width};
use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op};

const RAX: u8 = 0;
const RCX: u8 = 8;
const RDX: u8 = 2 * 8;
const RBX: u8 = 3 * 8;

fn xchg<D: Destination, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let (a, at) = D::load::<T>(cpu, op)?;
    let b: T = cpu.reg(op.src);
    D::store(cpu, op, at, b)?;
    cpu.set_reg(op.src, a);
    Ok(Flow::Next)
}

fn xadd<D: Destination, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let (a, at) = D::load::<T>(cpu, op)?;
    let b: T = cpu.reg(op.src);
    let (sum, flags) = Add::apply(a, b, 0);
    if std::mem::size_of::<D::Location>() == 0 {
        // With a register as destination, the destination is written last: if both operands are the same register, the sum remains.
        cpu.set_reg(op.src, a);
        D::store(cpu, op, at, sum)?;
    } else {
        D::store(cpu, op, at, sum)?;
        cpu.set_reg(op.src, a);
    }
    cpu.set_status_flags(flags);
    Ok(Flow::Next)
}

/// Executes CMPXCHG. Memory is written whether or not the values are equal (SDM vol. 2A). With a register destination, only the register
/// that changes is written: a write would clear the upper half of a 32-bit operand's register.
fn cmpxchg<D: Destination, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let (old, at) = D::load::<T>(cpu, op)?;
    let accumulator: T = cpu.reg(RAX);
    let (_, flags) = Sub::apply(accumulator, old, 0);
    let equal = accumulator == old;
    if std::mem::size_of::<D::Location>() != 0 || equal {
        let new = if equal { cpu.reg(op.src) } else { old };
        D::store(cpu, op, at, new)?;
    }
    if !equal {
        cpu.set_reg(RAX, old);
    }
    cpu.set_status_flags(flags);
    Ok(Flow::Next)
}

#[inline(always)]
fn set_zero_flag(cpu: &mut Cpu, set: bool) {
    cpu.rflags = cpu.rflags & !ZF | if set { ZF } else { 0 };
}

fn cmpxchg8b(cpu: &mut Cpu, op: &Op) -> Done {
    let linear = cpu.linear(op);
    let old: u64 = cpu.load_rmw(linear)?;
    let pair = |cpu: &Cpu, high: u8, low: u8| {
        u64::from(cpu.reg::<u32>(high)) << 32 | u64::from(cpu.reg::<u32>(low))
    };
    let equal = old == pair(cpu, RDX, RAX);
    let new = if equal { pair(cpu, RCX, RBX) } else { old };
    cpu.store(linear, new)?;
    if !equal {
        cpu.set_reg(RAX, old as u32);
        cpu.set_reg(RDX, (old >> 32) as u32);
    }
    set_zero_flag(cpu, equal);
    Ok(Flow::Next)
}

fn cmpxchg16b(cpu: &mut Cpu, op: &Op) -> Done {
    let linear = cpu.linear(op);
    if linear & 15 != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let old: u128 = cpu.load_rmw(linear)?;
    let pair = |cpu: &Cpu, high: u8, low: u8| {
        u128::from(cpu.reg::<u64>(high)) << 64 | u128::from(cpu.reg::<u64>(low))
    };
    let equal = old == pair(cpu, RDX, RAX);
    let new = if equal { pair(cpu, RCX, RBX) } else { old };
    cpu.store(linear, new)?;
    if !equal {
        cpu.set_reg(RAX, old as u64);
        cpu.set_reg(RDX, (old >> 64) as u64);
    }
    set_zero_flag(cpu, equal);
    Ok(Flow::Next)
}

/// Lowers the instructions of this file.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    let mnemonic = l.instruction.mnemonic();
    match mnemonic {
        Mnemonic::Xchg | Mnemonic::Xadd | Mnemonic::Cmpxchg => {
            let width = l.width(0);
            // XCHG's memory operand may be reported first or second.
            let (d, s) = if l.operand_kind(1)? == OperandKind::Memory {
                (1, 0)
            } else {
                (0, 1)
            };
            let memory = l.take_dst(d)?;
            l.take_src(s)?;
            match mnemonic {
                Mnemonic::Xchg => by_destination!(memory, D => by_width!(width, T => xchg::<D, T>)),
                Mnemonic::Xadd => by_destination!(memory, D => by_width!(width, T => xadd::<D, T>)),
                _ => by_destination!(memory, D => by_width!(width, T => cmpxchg::<D, T>)),
            }
        }
        Mnemonic::Cmpxchg8b => Some(cmpxchg8b),
        Mnemonic::Cmpxchg16b => Some(cmpxchg16b),
        _ => None,
    }
}
