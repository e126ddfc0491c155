//! BMI1 and BMI2 (SDM vol. 1 §5.1.16) and CRC32. Flags that an instruction leaves undefined (AF and PF; SF after BEXTR) become the host's
//! if the host has the instruction. Otherwise they are unchanged.

use iced_x86::Mnemonic;
use nodescope_x86::bits::rflags::{CF, OF, SF, STATUS, ZF};

use super::host;
use super::operand::{Imm, Source, Src2, Width, by_source, by_width};
use crate::cpu::Cpu;
use crate::lower::{Lowering, register_offset};
use crate::op::{Done, Flow, Handler, Op};

/// Sets CF, ZF and SF by the result, and clears OF.
#[inline(always)]
fn set_flags<T: Width>(cpu: &mut Cpu, value: u64, carry: bool) {
    let mut flags = u64::from(carry);
    if value & T::ONES == 0 {
        flags |= ZF;
    }
    if value & T::SIGN != 0 {
        flags |= SF;
    }
    cpu.rflags = cpu.rflags & !(CF | ZF | SF | OF) | flags;
}

/// Replaces the guest's status flags by `flags`, which are the host's.
#[inline(always)]
fn keep_flags(cpu: &mut Cpu, flags: u64) {
    cpu.rflags = cpu.rflags & !STATUS | flags & STATUS;
}

fn andn<S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let b = S::get::<T>(cpu, op)?;
    let a = cpu.reg::<T>(op.src2);
    let value = !a.to_u64() & b.to_u64();
    cpu.set_reg(op.dst, T::from_u64(value));
    if is_x86_feature_detected!("bmi1") {
        keep_flags(cpu, host::andn_flags(a, b, cpu.rflags));
    } else {
        set_flags::<T>(cpu, value, false);
    }
    Ok(Flow::Next)
}

/// Executes BLSR (`WHAT` 0), BLSMSK (1), BLSI (2).
fn lowest<const WHAT: u8, S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let source = S::get::<T>(cpu, op)?;
    let a = source.to_u64();
    let value = match WHAT {
        0 => a & a.wrapping_sub(1),
        1 => a ^ a.wrapping_sub(1),
        _ => a & a.wrapping_neg(),
    };
    let carry = if WHAT == 2 { a != 0 } else { a == 0 };
    cpu.set_reg(op.dst, T::from_u64(value));
    if is_x86_feature_detected!("bmi1") {
        let flags = match WHAT {
            0 => host::blsr_flags(source, cpu.rflags),
            1 => host::blsmsk_flags(source, cpu.rflags),
            _ => host::blsi_flags(source, cpu.rflags),
        };
        keep_flags(cpu, flags);
    } else {
        set_flags::<T>(cpu, value, carry);
    }
    Ok(Flow::Next)
}

fn bextr<S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let source = S::get::<T>(cpu, op)?;
    let a = source.to_u64();
    let whole = cpu.reg::<T>(op.src2);
    let control = whole.to_u64() as u16;
    let (start, len) = (u32::from(control & 0xff), u32::from(control >> 8));
    let mut value = if start < T::BITS { a >> start } else { 0 };
    if len < 64 {
        value &= (1 << len) - 1;
    }
    cpu.set_reg(op.dst, T::from_u64(value));
    if is_x86_feature_detected!("bmi1") {
        keep_flags(cpu, host::bextr_flags(source, whole, cpu.rflags));
    } else {
        let flags = if value & T::ONES == 0 { ZF } else { 0 };
        cpu.rflags = cpu.rflags & !(CF | ZF | OF) | flags;
    }
    Ok(Flow::Next)
}

fn bzhi<S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let source = S::get::<T>(cpu, op)?;
    let a = source.to_u64();
    let whole = cpu.reg::<T>(op.src2);
    let index = whole.to_u64() as u32 & 0xff;
    let inside = index < T::BITS;
    let value = if inside { a & ((1 << index) - 1) } else { a };
    cpu.set_reg(op.dst, T::from_u64(value));
    if is_x86_feature_detected!("bmi2") {
        keep_flags(cpu, host::bzhi_flags(source, whole, cpu.rflags));
    } else {
        set_flags::<T>(cpu, value, !inside);
    }
    Ok(Flow::Next)
}

/// Deposits (PDEP) or extracts (PEXT) bits under a mask, one mask bit at a time.
fn portable_bits(a: u64, mut mask: u64, deposit: bool) -> u64 {
    let mut value = 0;
    let mut at = 0;
    while mask != 0 {
        let bit = mask.trailing_zeros();
        value |= if deposit {
            (a >> at & 1) << bit
        } else {
            (a >> bit & 1) << at
        };
        at += 1;
        mask &= mask - 1;
    }
    value
}

/// Executes PDEP or PEXT. `HOST`: by the host's own instruction.
fn bits<const DEPOSIT: bool, const HOST: bool, S: Source, T: Width>(
    cpu: &mut Cpu,
    op: &Op,
) -> Done {
    let mask = S::get::<T>(cpu, op)?.to_u64();
    let a = cpu.reg::<T>(op.src2).to_u64();
    let value = if !HOST {
        portable_bits(a, mask, DEPOSIT)
    } else {
        // SAFETY: lowering chose HOST because the host has BMI2.
        unsafe {
            if DEPOSIT {
                std::arch::x86_64::_pdep_u64(a, mask)
            } else {
                std::arch::x86_64::_pext_u64(a, mask)
            }
        }
    };
    cpu.set_reg(op.dst, T::from_u64(value));
    Ok(Flow::Next)
}

/// Executes MULX. `src2` gets the low half, then `dst` gets the high half, which remains if both are the same register.
fn mulx<S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let b = S::get::<T>(cpu, op)?.to_u64();
    let product = u128::from(cpu.reg::<T>(2 * 8).to_u64()) * u128::from(b);
    cpu.set_reg(op.src2, T::from_u64(product as u64));
    cpu.set_reg(op.dst, T::from_u64((product >> T::BITS) as u64));
    Ok(Flow::Next)
}

/// Executes RORX (`WHAT` 0), SARX (1), SHLX (2), SHRX (3), which change no flags.
fn shift<const WHAT: u8, S: Source, C: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let a = S::get::<T>(cpu, op)?;
    let count = C::get::<u8>(cpu, op)? as u32 & (T::BITS - 1);
    let value = match WHAT {
        0 if T::BITS == 32 => (a.to_u64() as u32).rotate_right(count).into(),
        0 => a.to_u64().rotate_right(count),
        1 => (a.sign_extend() as i64 >> count) as u64,
        2 => a.to_u64() << count,
        _ => a.to_u64() >> count,
    };
    cpu.set_reg(op.dst, T::from_u64(value));
    Ok(Flow::Next)
}

/// Returns the CRC-32C after one more byte, computed bit by bit.
fn portable_crc(mut crc: u32, byte: u8) -> u32 {
    crc ^= u32::from(byte);
    for _ in 0..8 {
        crc = crc >> 1 ^ if crc & 1 != 0 { 0x82f6_3b78 } else { 0 };
    }
    crc
}

/// Executes CRC32. `HOST`: by the host's SSE4.2.
fn crc32<const HOST: bool, S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let data = S::get::<T>(cpu, op)?.to_u64();
    let mut crc: u32 = cpu.reg(op.dst);
    if HOST {
        use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};
        // SAFETY: lowering chose HOST because the host has SSE4.2.
        crc = unsafe {
            match T::BITS {
                8 => _mm_crc32_u8(crc, data as u8),
                16 => _mm_crc32_u16(crc, data as u16),
                32 => _mm_crc32_u32(crc, data as u32),
                _ => _mm_crc32_u64(crc.into(), data) as u32,
            }
        };
    } else {
        for byte in &data.to_le_bytes()[..T::BYTES] {
            crc = portable_crc(crc, *byte);
        }
    }
    // The upper half of a 64-bit destination is cleared too.
    cpu.set_reg(op.dst, crc);
    Ok(Flow::Next)
}

/// Makes a handler for operands of 64 bits (`$wide`) or 32 bits.
macro_rules! by_vex_width {
    ($wide:expr, $t:ident => $handler:expr) => {
        Some(if $wide {
            type $t = u64;
            crate::op::thread($handler)
        } else {
            type $t = u32;
            crate::op::thread($handler)
        })
    };
}

/// Lowers the instructions of this file.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    let mnemonic = l.instruction.mnemonic();
    if mnemonic == Mnemonic::Crc32 {
        l.take_dst(0)?;
        let shape = l.take_src(1)?;
        let width = l.width(1);
        return if is_x86_feature_detected!("sse4.2") {
            by_source!(shape, S => by_width!(width, T => crc32::<true, S, T>))
        } else {
            by_source!(shape, S => by_width!(width, T => crc32::<false, S, T>))
        };
    }
    // Operand number of the register or memory source, and of the second source register if there is one.
    let (source, second) = match mnemonic {
        Mnemonic::Blsr | Mnemonic::Blsmsk | Mnemonic::Blsi | Mnemonic::Rorx => (1, None),
        Mnemonic::Bextr | Mnemonic::Bzhi | Mnemonic::Sarx | Mnemonic::Shlx | Mnemonic::Shrx => {
            (1, Some(2))
        }
        Mnemonic::Andn | Mnemonic::Pdep | Mnemonic::Pext | Mnemonic::Mulx => (2, Some(1)),
        _ => return None,
    };
    let wide = l.width(0) == 8;
    l.take_dst(0)?;
    let shape = l.take_src(source)?;
    if let Some(n) = second {
        l.op.src2 = register_offset(l.instruction.op_register(n));
    }
    let host = is_x86_feature_detected!("bmi2");
    match mnemonic {
        Mnemonic::Andn => by_source!(shape, S => by_vex_width!(wide, T => andn::<S, T>)),
        Mnemonic::Blsr => by_source!(shape, S => by_vex_width!(wide, T => lowest::<0, S, T>)),
        Mnemonic::Blsmsk => by_source!(shape, S => by_vex_width!(wide, T => lowest::<1, S, T>)),
        Mnemonic::Blsi => by_source!(shape, S => by_vex_width!(wide, T => lowest::<2, S, T>)),
        Mnemonic::Bextr => by_source!(shape, S => by_vex_width!(wide, T => bextr::<S, T>)),
        Mnemonic::Bzhi => by_source!(shape, S => by_vex_width!(wide, T => bzhi::<S, T>)),
        Mnemonic::Mulx => by_source!(shape, S => by_vex_width!(wide, T => mulx::<S, T>)),
        Mnemonic::Pdep if host => {
            by_source!(shape, S => by_vex_width!(wide, T => bits::<true, true, S, T>))
        }
        Mnemonic::Pdep => {
            by_source!(shape, S => by_vex_width!(wide, T => bits::<true, false, S, T>))
        }
        Mnemonic::Pext if host => {
            by_source!(shape, S => by_vex_width!(wide, T => bits::<false, true, S, T>))
        }
        Mnemonic::Pext => {
            by_source!(shape, S => by_vex_width!(wide, T => bits::<false, false, S, T>))
        }
        Mnemonic::Rorx => {
            l.op.imm = l.instruction.immediate(2);
            by_source!(shape, S => by_vex_width!(wide, T => shift::<0, S, Imm, T>))
        }
        Mnemonic::Sarx => by_source!(shape, S => by_vex_width!(wide, T => shift::<1, S, Src2, T>)),
        Mnemonic::Shlx => by_source!(shape, S => by_vex_width!(wide, T => shift::<2, S, Src2, T>)),
        Mnemonic::Shrx => by_source!(shape, S => by_vex_width!(wide, T => shift::<3, S, Src2, T>)),
        _ => None,
    }
}
