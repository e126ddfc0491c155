//! Single bits and bit counts: BT, BTS, BTR, BTC, BSF, BSR, LZCNT, TZCNT, POPCNT.

use iced_x86::Mnemonic;
use nodescope_x86::bits::rflags::{CF, STATUS, ZF};

use super::host;
use super::operand::{
    Destination, Dst, Imm, Mem, OperandKind, Source, Src, Width, by_destination, by_source, by_wide,
};
use crate::cpu::{Cpu, Mode};
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op, attr};

/// Values of `WHAT`: the effect on the bit.
const TEST: u8 = 0;
const SET: u8 = 1;
const RESET: u8 = 2;
const COMPLEMENT: u8 = 3;

/// Returns the value with the bit changed as `WHAT` says, and the old bit, which becomes CF.
#[inline(always)]
fn change<const WHAT: u8>(value: u64, bit: u64) -> (u64, u64) {
    let mask = 1 << bit;
    let new = match WHAT {
        SET => value | mask,
        RESET => value & !mask,
        COMPLEMENT => value ^ mask,
        _ => value,
    };
    (new, value >> bit & 1)
}

/// Sets CF to the bit; ZF is unchanged, and so are the other flags, which are undefined.
#[inline(always)]
fn set_carry(cpu: &mut Cpu, carry: u64) {
    cpu.rflags = cpu.rflags & !CF | carry;
}

/// Executes a bit instruction whose bit lies within the operand: a register, or memory with an immediate index.
fn within<const WHAT: u8, D: Destination, B: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let bit = B::get::<T>(cpu, op)?.to_u64() & u64::from(T::BITS - 1);
    let (value, at) = D::load::<T>(cpu, op)?;
    let (new, carry) = change::<WHAT>(value.to_u64(), bit);
    D::store(cpu, op, at, T::from_u64(new))?;
    set_carry(cpu, carry);
    Ok(Flow::Next)
}

fn test<S: Source, B: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let bit = B::get::<T>(cpu, op)?.to_u64() & u64::from(T::BITS - 1);
    let value = S::get::<T>(cpu, op)?.to_u64();
    set_carry(cpu, value >> bit & 1);
    Ok(Flow::Next)
}

/// Executes a bit instruction on memory with a register index: the index is signed and reaches beyond the operand (SDM vol. 2A §3.1.1.9).
fn string<const WHAT: u8, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let index = cpu.reg::<T>(op.src).sign_extend() as i64;
    let skip = (index >> T::BITS.trailing_zeros()) * T::BYTES as i64;
    let mut offset = cpu.offset(op).wrapping_add(skip as u64);
    if op.attr & attr::ADDRESS_32 != 0 {
        offset &= 0xffff_ffff;
    } else if op.attr & attr::ADDRESS_16 != 0 {
        offset &= 0xffff;
    }
    let mut linear = cpu.segment_base[usize::from(op.segment)].wrapping_add(offset);
    if cpu.mode != Mode::Bits64 {
        linear &= 0xffff_ffff;
    }
    let bit = index as u64 & u64::from(T::BITS - 1);
    let carry = if WHAT == TEST {
        cpu.load::<T>(linear)?.to_u64() >> bit & 1
    } else {
        let value = cpu.load_rmw::<T>(linear)?.to_u64();
        let (new, carry) = change::<WHAT>(value, bit);
        cpu.store(linear, T::from_u64(new))?;
        carry
    };
    set_carry(cpu, carry);
    Ok(Flow::Next)
}

fn lower_bit<const WHAT: u8>(l: &mut Lowering<'_>) -> Option<Handler> {
    let width = l.width(0);
    let memory = l.take_dst(0)?;
    let shape = l.take_src(1)?;
    match (memory, shape) {
        (true, OperandKind::Register(_)) => by_wide!(width, T => string::<WHAT, T>),
        (false, _) if WHAT == TEST => {
            by_source!(shape, B => by_wide!(width, T => test::<Dst, B, T>))
        }
        (true, _) if WHAT == TEST => by_wide!(width, T => test::<Mem, Imm, T>),
        (false, OperandKind::Register(_)) => by_wide!(width, T => within::<WHAT, Dst, Src, T>),
        _ => by_destination!(memory, D => by_wide!(width, T => within::<WHAT, D, Imm, T>)),
    }
}

/// Executes BSF and BSR. A source of zero sets ZF and leaves the destination unchanged (SDM: undefined; hardware keeps all 64 bits of it).
fn scan<const REVERSE: bool, S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let source = S::get::<T>(cpu, op)?;
    let value = source.to_u64();
    // Flags other than ZF are undefined: they are the host's.
    let flags = if REVERSE {
        host::bsr_flags(source, cpu.rflags)
    } else {
        host::bsf_flags(source, cpu.rflags)
    };
    cpu.rflags = cpu.rflags & !STATUS | flags & STATUS;
    if value == 0 {
        return Ok(Flow::Next);
    }
    let index = if REVERSE {
        63 - value.leading_zeros()
    } else {
        value.trailing_zeros()
    };
    cpu.set_reg(op.dst, T::from_u64(index.into()));
    Ok(Flow::Next)
}

/// Executes LZCNT and TZCNT. CF is set if the source is zero, ZF if the count is zero.
fn count<const LEADING: bool, S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let source = S::get::<T>(cpu, op)?;
    let value = source.to_u64();
    let zeros = if LEADING {
        value.leading_zeros() - (64 - T::BITS)
    } else {
        value.trailing_zeros().min(T::BITS)
    };
    cpu.set_reg(op.dst, T::from_u64(zeros.into()));
    // Flags other than CF and ZF are undefined. They become the host's if the host has the instruction. The host's flags are cleared first,
    // since some hosts (AMD's) leave OF as it was.
    let flags = if LEADING && is_x86_feature_detected!("lzcnt") {
        host::lzcnt_flags(source, 0)
    } else if !LEADING && is_x86_feature_detected!("bmi1") {
        host::tzcnt_flags(source, 0)
    } else {
        let defined = if value == 0 { CF } else { 0 } | if zeros == 0 { ZF } else { 0 };
        cpu.rflags & !(CF | ZF) | defined
    };
    cpu.rflags = cpu.rflags & !STATUS | flags & STATUS;
    Ok(Flow::Next)
}

fn population<S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let value = S::get::<T>(cpu, op)?.to_u64();
    cpu.set_reg(op.dst, T::from_u64(value.count_ones().into()));
    cpu.rflags = cpu.rflags & !STATUS | if value == 0 { ZF } else { 0 };
    Ok(Flow::Next)
}

macro_rules! from_source {
    ($l:ident, $s:ident, $t:ident => $handler:expr) => {{
        let width = $l.width(0);
        $l.take_dst(0)?;
        let shape = $l.take_src(1)?;
        by_source!(shape, $s => by_wide!(width, $t => $handler))
    }};
}

/// Lowers the instructions of this file.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    match l.instruction.mnemonic() {
        Mnemonic::Bt => lower_bit::<TEST>(l),
        Mnemonic::Bts => lower_bit::<SET>(l),
        Mnemonic::Btr => lower_bit::<RESET>(l),
        Mnemonic::Btc => lower_bit::<COMPLEMENT>(l),
        Mnemonic::Bsf => from_source!(l, S, T => scan::<false, S, T>),
        Mnemonic::Bsr => from_source!(l, S, T => scan::<true, S, T>),
        Mnemonic::Tzcnt => from_source!(l, S, T => count::<false, S, T>),
        Mnemonic::Lzcnt => from_source!(l, S, T => count::<true, S, T>),
        Mnemonic::Popcnt => from_source!(l, S, T => population::<S, T>),
        _ => None,
    }
}
