//! Use of the host's MXCSR for the guest's MXCSR.
//!
//! A stub of an instruction that reads or sets MXCSR first compares the host's value with the guest's. If they are equal, the instruction
//! runs: control bits are the guest's, every exception is masked (the host's register never has other values), and the sticky flags that
//! the instruction raises are stored in the guest's MXCSR. If they differ, the stub does nothing, and [`settle`] loads the guest's value
//! into the host's register. Rust code between stubs may raise sticky flags on the host. They cost one more `settle`, and never reach the
//! guest. Control bits other than the default are removed at once, because Rust code would round by them.
//!
//! Unmasked exceptions: the instruction runs with all exceptions masked and flags clear, on copies. If it raised a flag that the guest has
//! unmasked, its results are discarded and `#XM` is raised. After `#XM`, sticky flags beside the flag that caused `#XM` may differ from
//! hardware: precision after an unmasked overflow or underflow (hardware checks the result with an unbounded exponent), and flags of later
//! steps of HADD, HSUB and DPP, which hardware does not reach.

use nodescope_x86::bits::cr4;
use nodescope_x86::{Exception, Vector};

use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op, Trap};

use super::execute::StubFn;
use super::{need, require, x87};

/// Value of the host's MXCSR with which Rust code runs: every exception masked, round to nearest, no flags.
pub const DEFAULT: u32 = 0x1f80;
/// Bits of MXCSR that may be set. The save areas show this value as MXCSR_MASK.
pub const MASK: u32 = 0xffff;
const FLAGS: u32 = 0x3f;
/// Control bits: rounding, flush to zero, denormals are zeros.
const CONTROL: u32 = 0xe040;
const FLUSH: u32 = 0x8000;
const UNDERFLOW: u32 = 0x10;
const UNDERFLOW_MASK: u32 = 0x0800;
/// Flags of exceptions that are found before the operation, which then does not take place: invalid, denormal, zero divide.
const EARLY: u32 = 0x07;

fn load_host(value: u32) {
    // SAFETY: callers pass values without reserved bits and with all exceptions masked; control bits other than the default
    // are put back before any Rust code does arithmetic.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &value, options(nostack, readonly, preserves_flags))
    };
}

/// Method by which a tiny result is recognised, even if the result is exact.
#[derive(Clone, Copy)]
pub enum Tiny {
    /// With flush to zero, a tiny result raises underflow.
    Flushed,
    /// VCVTPS2PH does not flush (SDM vol. 2C): the half-precision result in this register is subnormal.
    HalfInRegister(u8),
    /// As `HalfInRegister`, with the result in memory.
    HalfInMemory,
}

/// Returns whether any of eight half-precision numbers is subnormal. Unused numbers are zeros, which are not subnormal.
fn any_subnormal_half(bytes: &[u8]) -> bool {
    bytes[..16]
        .chunks(2)
        .any(|half| matches!(u16::from_le_bytes([half[0], half[1]]) & 0x7fff, 1..=0x3ff))
}

/// Carries out a stub that found the host's MXCSR different from the guest's.
///
/// # Safety
/// The stub may be called with `memory`, which has 16 bytes at least where `tiny` refers to it.
#[cold]
#[inline(never)]
pub unsafe fn settle(cpu: &mut Cpu, stub: StubFn, memory: *mut u8, tiny: Tiny) -> Result<(), Trap> {
    let guest = cpu.fx.mxcsr();
    let cpu_ptr: *mut Cpu = cpu;
    if guest & DEFAULT == DEFAULT {
        load_host(guest);
        // SAFETY: the contract of the stub is the caller's; the host's MXCSR equals the guest's now.
        let missed = unsafe { stub(cpu_ptr, memory) };
        if guest & CONTROL != 0 {
            load_host(DEFAULT);
        }
        debug_assert_eq!(missed, 0);
        return Ok(());
    }
    let before = (cpu.vector, cpu.gpr, cpu.rflags);
    let mmx = x87::snapshot(cpu);
    // Runs the stub with every exception masked and clear flags, and returns the flags that were raised.
    let attempt = |cpu: &mut Cpu, control: u32| {
        cpu.fx.set_mxcsr(control);
        load_host(control);
        let cpu_ptr: *mut Cpu = cpu;
        // SAFETY: as above.
        let missed = unsafe { stub(cpu_ptr, memory) };
        load_host(DEFAULT);
        debug_assert_eq!(missed, 0);
        cpu.fx.mxcsr() & FLAGS
    };
    let control = guest & CONTROL | DEFAULT;
    // An unmasked underflow is raised by every tiny result, a masked one only by inexact ones (SDM vol. 1 §4.9.1.5).
    let raised = if guest & UNDERFLOW_MASK != 0 {
        attempt(cpu, control)
    } else if !matches!(tiny, Tiny::Flushed) {
        let raised = attempt(cpu, control);
        let subnormal = match tiny {
            Tiny::HalfInRegister(n) => any_subnormal_half(&cpu.vector.0[usize::from(n)]),
            // SAFETY: the caller's promise.
            _ => any_subnormal_half(unsafe { std::slice::from_raw_parts(memory, 16) }),
        };
        raised | if subnormal { UNDERFLOW } else { 0 }
    } else {
        // With flush to zero, every tiny result raises underflow, but the result is lost: do this first, and then run again.
        let tiny = attempt(cpu, control | FLUSH) & UNDERFLOW;
        (cpu.vector, cpu.gpr, cpu.rflags) = before;
        x87::roll_back(cpu, mmx);
        x87::enter_again(cpu, mmx);
        // Flushing applies to masked underflow only (SDM vol. 1 §10.2.3.3).
        attempt(cpu, control & !FLUSH) | tiny
    };
    let unmasked = raised & !(guest >> 7);
    if unmasked == 0 {
        cpu.fx.set_mxcsr(guest | raised);
        return Ok(());
    }
    (cpu.vector, cpu.gpr, cpu.rflags) = before;
    x87::undo_mmx(cpu, mmx);
    let shown = if unmasked & EARLY != 0 {
        raised & EARLY
    } else {
        raised
    };
    cpu.fx.set_mxcsr(guest | shown);
    Err(cpu.raise(if cpu.control.cr4 & cr4::OSXMMEXCPT != 0 {
        Exception::new(Vector::Simd)
    } else {
        Exception::ud()
    }))
}

/// Lowers LDMXCSR, STMXCSR and their VEX forms.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use iced_x86::Mnemonic::*;
    Some(match l.instruction.mnemonic() {
        Ldmxcsr => load::<{ need::SSE }>,
        Vldmxcsr => load::<{ need::AVX }>,
        Stmxcsr => store::<{ need::SSE }>,
        Vstmxcsr => store::<{ need::AVX }>,
        _ => return None,
    })
}

fn load<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    let value: u32 = cpu.load(cpu.linear(op))?;
    if value & !MASK != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.fx.set_mxcsr(value);
    Ok(Flow::Next)
}

fn store<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    cpu.store(cpu.linear(op), cpu.fx.mxcsr())?;
    Ok(Flow::Next)
}
