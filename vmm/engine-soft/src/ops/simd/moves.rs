//! Handlers without a stub, for the moves that ordinary code executes most.
//!
//! Registers are written in the widths in which stubs read them back, so that the host forwards the store.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, _mm_cvtsi32_si128, _mm_cvtsi64_si128, _mm_loadu_si128, _mm_setzero_si128,
    _mm_storeu_si128,
};

use iced_x86::{EncodingKind, Mnemonic, OpKind};

use crate::cpu::Cpu;
use crate::lower::{Lowering, register_offset};
use crate::memory::Plain;
use crate::op::{Done, Flow, Handler, Op, thread};

use super::execute::misaligned;
use super::{need, require};

// SAFETY: sixteen bytes; any bit pattern is valid.
unsafe impl Plain for __m128i {}

const SSE: u8 = need::SSE;
const AVX: u8 = need::AVX;

#[inline(always)]
fn low(cpu: &Cpu, n: u8) -> __m128i {
    // SAFETY: the register is 32 bytes.
    unsafe { _mm_loadu_si128(cpu.vector.0[usize::from(n & 15)].as_ptr().cast()) }
}

/// Writes bits 127:0 of a register. With legacy SSE the upper half is unchanged; with VEX it is cleared.
#[inline(always)]
fn set_low<const NEED: u8>(cpu: &mut Cpu, n: u8, value: __m128i) {
    let at = cpu.vector.0[usize::from(n & 15)].as_mut_ptr();
    // SAFETY: the register is 32 bytes.
    unsafe {
        _mm_storeu_si128(at.cast(), value);
        if NEED == AVX {
            _mm_storeu_si128(at.add(16).cast(), _mm_setzero_si128());
        }
    }
}

/// Copies 32 bytes at once. Lowering has made sure that the host has AVX.
#[inline(always)]
unsafe fn copy_256(from: *const u8, to: *mut u8) {
    // SAFETY: the caller gives 32 bytes to read and 32 to write; VZEROUPPER leaves no upper half behind.
    unsafe {
        asm!("vmovups ymm0, [{}]", "vmovups [{}], ymm0", "vzeroupper", in(reg) from, in(reg) to,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack, preserves_flags));
    }
}

#[inline(always)]
fn upper_mut(cpu: &mut Cpu, n: u8) -> *mut u8 {
    cpu.vector.0[usize::from(n & 15)].as_mut_ptr()
}

// Whole registers. `dst`, `src`: vector numbers; `imm`: alignment minus one.

fn load_128<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    let linear = cpu.linear(op);
    if linear & op.imm != 0 {
        return Err(misaligned(cpu));
    }
    let value: __m128i = cpu.load(linear)?;
    set_low::<NEED>(cpu, op.dst, value);
    Ok(Flow::Next)
}

fn store_128<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    let linear = cpu.linear(op);
    if linear & op.imm != 0 {
        return Err(misaligned(cpu));
    }
    cpu.store(linear, low(cpu, op.src))?;
    Ok(Flow::Next)
}

fn copy_128<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    let value = low(cpu, op.src);
    set_low::<NEED>(cpu, op.dst, value);
    Ok(Flow::Next)
}

fn load_256(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, AVX)?;
    let linear = cpu.linear(op);
    if linear & op.imm != 0 {
        return Err(misaligned(cpu));
    }
    let from = cpu.read_span(linear, 32)?;
    // SAFETY: a span of 32 bytes; a register of 32 bytes.
    unsafe { copy_256(from, upper_mut(cpu, op.dst)) };
    Ok(Flow::Next)
}

fn store_256(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, AVX)?;
    let linear = cpu.linear(op);
    if linear & op.imm != 0 {
        return Err(misaligned(cpu));
    }
    let to = cpu.write_span(linear, 32)?;
    // SAFETY: as above.
    unsafe { copy_256(upper_mut(cpu, op.src), to) };
    cpu.commit_span(linear, 32, to)?;
    Ok(Flow::Next)
}

fn copy_256_registers(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, AVX)?;
    // SAFETY: both are registers of 32 bytes.
    unsafe { copy_256(upper_mut(cpu, op.src), upper_mut(cpu, op.dst)) };
    Ok(Flow::Next)
}

// Low elements.

fn load_32<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    let value: u32 = cpu.load(cpu.linear(op))?;
    // SAFETY: SSE2 is part of x86-64.
    let value = unsafe { _mm_cvtsi32_si128(value as i32) };
    set_low::<NEED>(cpu, op.dst, value);
    Ok(Flow::Next)
}

fn load_64<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    let value: u64 = cpu.load(cpu.linear(op))?;
    // SAFETY: SSE2 is part of x86-64.
    let value = unsafe { _mm_cvtsi64_si128(value as i64) };
    set_low::<NEED>(cpu, op.dst, value);
    Ok(Flow::Next)
}

#[inline(always)]
fn quad(cpu: &Cpu, n: u8, half: usize) -> u64 {
    // SAFETY: `half` is 0 or 1, within the register.
    unsafe {
        cpu.vector.0[usize::from(n & 15)]
            .as_ptr()
            .cast::<u64>()
            .add(half)
            .read_unaligned()
    }
}

fn store_32<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    cpu.store(cpu.linear(op), quad(cpu, op.src, 0) as u32)?;
    Ok(Flow::Next)
}

fn store_64<const NEED: u8, const HALF: usize>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    cpu.store(cpu.linear(op), quad(cpu, op.src, HALF))?;
    Ok(Flow::Next)
}

fn from_gpr_32<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    // SAFETY: SSE2 is part of x86-64.
    let value = unsafe { _mm_cvtsi32_si128(cpu.reg::<u32>(op.src) as i32) };
    set_low::<NEED>(cpu, op.dst, value);
    Ok(Flow::Next)
}

fn from_gpr_64<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    // SAFETY: SSE2 is part of x86-64.
    let value = unsafe { _mm_cvtsi64_si128(cpu.reg::<u64>(op.src) as i64) };
    set_low::<NEED>(cpu, op.dst, value);
    Ok(Flow::Next)
}

fn to_gpr_32<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    let value = quad(cpu, op.src, 0) as u32;
    cpu.set_reg::<u32>(op.dst, value);
    Ok(Flow::Next)
}

fn to_gpr_64<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    let value = quad(cpu, op.src, 0);
    cpu.set_reg::<u64>(op.dst, value);
    Ok(Flow::Next)
}

/// Executes MOVQ between vector registers.
fn low_quad<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    // SAFETY: SSE2 is part of x86-64.
    let value = unsafe { _mm_cvtsi64_si128(quad(cpu, op.src, 0) as i64) };
    set_low::<NEED>(cpu, op.dst, value);
    Ok(Flow::Next)
}

/// Executes XOR of a register with itself.
fn zero<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    // SAFETY: SSE2 is part of x86-64.
    let value = unsafe { _mm_setzero_si128() };
    set_low::<NEED>(cpu, op.dst, value);
    Ok(Flow::Next)
}

fn zero_upper(cpu: &mut Cpu, _op: &Op) -> Done {
    require(cpu, AVX)?;
    for r in &mut cpu.vector.0 {
        r[16..].fill(0);
    }
    Ok(Flow::Next)
}

fn zero_all(cpu: &mut Cpu, _op: &Op) -> Done {
    require(cpu, AVX)?;
    for r in &mut cpu.vector.0 {
        r.fill(0);
    }
    Ok(Flow::Next)
}

/// Lowers an instruction that this file handles; None for others. On entry `dst` is the alignment of the memory operand minus one.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let i = l.instruction;
    let vex = i.encoding() == EncodingKind::VEX;
    let kind = |n: u32| i.op_count() > n && i.op_kind(n) == OpKind::Memory;
    let reg = |n: u32| {
        if i.op_count() > n && i.op_kind(n) == OpKind::Register {
            i.op_register(n)
        } else {
            iced_x86::Register::None
        }
    };
    let aligned = u64::from(l.op.dst);
    let vector = |r: iced_x86::Register| r.number() as u8;
    let pick = |sse: Handler, avx: Handler| Some(if vex { avx } else { sse });
    match i.mnemonic() {
        Movaps | Movapd | Movdqa | Movups | Movupd | Movdqu | Lddqu | Movntdqa | Movntps
        | Movntpd | Movntdq | Vmovaps | Vmovapd | Vmovdqa | Vmovups | Vmovupd | Vmovdqu
        | Vlddqu | Vmovntdqa | Vmovntps | Vmovntpd | Vmovntdq => {
            l.op.imm = aligned;
            if kind(1) {
                l.op.dst = vector(reg(0));
                if reg(0).is_ymm() {
                    Some(thread(load_256))
                } else {
                    pick(thread(load_128::<SSE>), thread(load_128::<AVX>))
                }
            } else if kind(0) {
                l.op.src = vector(reg(1));
                if reg(1).is_ymm() {
                    Some(thread(store_256))
                } else {
                    pick(thread(store_128::<SSE>), thread(store_128::<AVX>))
                }
            } else {
                l.op.dst = vector(reg(0));
                l.op.src = vector(reg(1));
                if reg(0).is_ymm() {
                    Some(thread(copy_256_registers))
                } else {
                    pick(thread(copy_128::<SSE>), thread(copy_128::<AVX>))
                }
            }
        }
        Movss | Vmovss if kind(1) => {
            l.op.dst = vector(reg(0));
            pick(thread(load_32::<SSE>), thread(load_32::<AVX>))
        }
        Movss | Vmovss if kind(0) => {
            l.op.src = vector(reg(1));
            pick(thread(store_32::<SSE>), thread(store_32::<AVX>))
        }
        Movsd | Vmovsd if kind(1) => {
            l.op.dst = vector(reg(0));
            pick(thread(load_64::<SSE>), thread(load_64::<AVX>))
        }
        Movsd | Vmovsd | Movlps | Movlpd | Vmovlps | Vmovlpd if kind(0) => {
            l.op.src = vector(reg(1));
            pick(thread(store_64::<SSE, 0>), thread(store_64::<AVX, 0>))
        }
        Movhps | Movhpd | Vmovhps | Vmovhpd if kind(0) => {
            l.op.src = vector(reg(1));
            pick(thread(store_64::<SSE, 1>), thread(store_64::<AVX, 1>))
        }
        Movd | Vmovd | Movq | Vmovq => {
            let wide = matches!(i.mnemonic(), Movq | Vmovq);
            let (to, from) = (reg(0), reg(1));
            if kind(1) {
                l.op.dst = vector(to);
                if wide {
                    pick(thread(load_64::<SSE>), thread(load_64::<AVX>))
                } else {
                    pick(thread(load_32::<SSE>), thread(load_32::<AVX>))
                }
            } else if kind(0) {
                l.op.src = vector(from);
                if wide {
                    pick(thread(store_64::<SSE, 0>), thread(store_64::<AVX, 0>))
                } else {
                    pick(thread(store_32::<SSE>), thread(store_32::<AVX>))
                }
            } else if from.is_gpr() {
                l.op.dst = vector(to);
                l.op.src = register_offset(from);
                if wide {
                    pick(thread(from_gpr_64::<SSE>), thread(from_gpr_64::<AVX>))
                } else {
                    pick(thread(from_gpr_32::<SSE>), thread(from_gpr_32::<AVX>))
                }
            } else if to.is_gpr() {
                l.op.dst = register_offset(to);
                l.op.src = vector(from);
                if wide {
                    pick(thread(to_gpr_64::<SSE>), thread(to_gpr_64::<AVX>))
                } else {
                    pick(thread(to_gpr_32::<SSE>), thread(to_gpr_32::<AVX>))
                }
            } else {
                l.op.dst = vector(to);
                l.op.src = vector(from);
                pick(thread(low_quad::<SSE>), thread(low_quad::<AVX>))
            }
        }
        Pxor | Xorps | Xorpd if reg(0) == reg(1) => {
            l.op.dst = vector(reg(0));
            Some(thread(zero::<SSE>))
        }
        // The 256-bit forms clear what the 128-bit forms clear.
        Vpxor | Vxorps | Vxorpd if reg(1) == reg(2) && reg(1) != iced_x86::Register::None => {
            l.op.dst = vector(reg(0));
            Some(thread(zero::<AVX>))
        }
        Vzeroupper => Some(thread(zero_upper)),
        Vzeroall => Some(thread(zero_all)),
        _ => None,
    }
}
