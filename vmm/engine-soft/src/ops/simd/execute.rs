//! Operations that call a stub.
//!
//! `imm` is the stub's address, `aux` the length of the memory operand, `dst` its alignment minus one, `src2` what the
//! instruction needs ([`super::need`]).

use nodescope_x86::Exception;

use crate::cpu::Cpu;
use crate::op::{Done, Flow, Op, Trap};

use super::mxcsr::Tiny;
use super::{mxcsr, require, x87};

/// Signature of a stub: arguments are the vCPU and the memory operand, which is null where there is none. A stub that uses MXCSR returns
/// nonzero if it did nothing, since the host's MXCSR was not the guest's. The result of other stubs has no meaning.
pub type StubFn = unsafe extern "sysv64" fn(*mut Cpu, *mut u8) -> u32;

/// Returns the stub of an operation.
///
/// # Safety
/// [`super::classify::with_stub`] lowered the operation, and the operation's block is still alive: stubs are thrown away with all blocks
/// that call them.
#[inline(always)]
pub unsafe fn stub(op: &Op) -> StubFn {
    // SAFETY: by the caller's promise, `op.imm` is the address of a stub.
    unsafe { std::mem::transmute::<usize, StubFn>(op.imm as usize) }
}

/// Calls the stub with the address of the memory operand, or of a buffer for it.
#[inline(always)]
fn call<const MXCSR: bool>(cpu: &mut Cpu, op: &Op, memory: *mut u8) -> Result<(), Trap> {
    // SAFETY: lowering gives the handlers that lead here only to operations with a stub, and they run from their blocks.
    let stub = unsafe { stub(op) };
    // SAFETY: the stub reads and writes the register files of this vCPU and `op.aux` bytes at `memory`, which the caller
    // got from a span of that length; it changes no register that the calling convention preserves.
    let missed = unsafe { stub(cpu, memory) };
    if MXCSR && missed != 0 {
        // SAFETY: as before.
        return unsafe { mxcsr::settle(cpu, stub, memory, Tiny::Flushed) };
    }
    Ok(())
}

/// Executes VCVTPS2PH to a register, whose number is in `src`.
pub fn half_registers(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, op.src2)?;
    call_half(cpu, op, std::ptr::null_mut(), Tiny::HalfInRegister(op.src))?;
    Ok(Flow::Next)
}

/// Executes VCVTPS2PH to memory.
pub fn half_store(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, op.src2)?;
    let linear = address(cpu, op)?;
    // As in `store`, the result goes to a buffer first.
    let mut value = [0_u8; 16];
    call_half(cpu, op, value.as_mut_ptr(), Tiny::HalfInMemory)?;
    cpu.write_bytes(linear, &value[..(op.aux as usize).min(16)])?;
    Ok(Flow::Next)
}

fn call_half(cpu: &mut Cpu, op: &Op, memory: *mut u8, tiny: Tiny) -> Result<(), Trap> {
    // SAFETY: as in `call`.
    let stub = unsafe { stub(op) };
    // SAFETY: as in `call`; the memory operand has at most 16 bytes.
    let missed = unsafe { stub(cpu, memory) };
    if missed != 0 {
        // SAFETY: as before; a result in memory goes to a buffer of 16 bytes.
        return unsafe { mxcsr::settle(cpu, stub, memory, tiny) };
    }
    Ok(())
}

/// Returns the linear address of the memory operand, or raises `#GP` if the address is misaligned.
#[inline(always)]
fn address(cpu: &mut Cpu, op: &Op) -> Result<u64, Trap> {
    let linear = cpu.linear(op);
    if linear & u64::from(op.dst) != 0 {
        return Err(misaligned(cpu));
    }
    Ok(linear)
}

#[cold]
#[inline(never)]
pub fn misaligned(cpu: &mut Cpu) -> Trap {
    cpu.raise(Exception::gp(0))
}

/// Raises `#UD`.
#[cold]
#[inline(never)]
pub fn invalid(cpu: &mut Cpu) -> Trap {
    cpu.raise(Exception::ud())
}

/// Executes a stub without a memory operand.
pub fn registers<const MXCSR: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, op.src2)?;
    call::<MXCSR>(cpu, op, std::ptr::null_mut())?;
    Ok(Flow::Next)
}

/// Executes a stub with a memory operand that is read.
pub fn load<const MXCSR: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, op.src2)?;
    let linear = address(cpu, op)?;
    let place = cpu.read_span(linear, op.aux as usize)?;
    call::<MXCSR>(cpu, op, place.cast_mut())?;
    Ok(Flow::Next)
}

/// Executes a stub with a memory operand that is written.
pub fn store<const MXCSR: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, op.src2)?;
    let linear = address(cpu, op)?;
    let len = op.aux as usize;
    if MXCSR {
        // An exception of the instruction comes before a page fault, and prevents the write.
        let mut value = [0_u8; 32];
        call::<MXCSR>(cpu, op, value.as_mut_ptr())?;
        cpu.write_bytes(linear, &value[..len.min(32)])?;
    } else {
        let place = cpu.write_span(linear, len)?;
        call::<MXCSR>(cpu, op, place)?;
        cpu.commit_span(linear, len, place)?;
    }
    Ok(Flow::Next)
}

/// Executes a stub without a memory operand, in which MMX registers take part (and vector registers may).
pub fn mmx_registers<const MXCSR: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, op.src2)?;
    x87::enter(cpu)?;
    call::<MXCSR>(cpu, op, std::ptr::null_mut())?;
    Ok(Flow::Next)
}

/// Executes a stub with MMX registers and a memory operand that is read.
pub fn mmx_load<const MXCSR: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, op.src2)?;
    x87::check_pending(cpu)?;
    let linear = address(cpu, op)?;
    let place = cpu.read_span(linear, op.aux as usize)?;
    x87::enter(cpu)?;
    call::<MXCSR>(cpu, op, place.cast_mut())?;
    Ok(Flow::Next)
}

/// Executes a stub with MMX registers and a memory operand that is written.
pub fn mmx_store(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, op.src2)?;
    x87::check_pending(cpu)?;
    let linear = address(cpu, op)?;
    let len = op.aux as usize;
    let place = match cpu.write_span(linear, len) {
        Ok(place) => place,
        Err(trap) => {
            // Processors have reset the top of the stack before they report the fault.
            x87::release(cpu);
            x87::top_to_zero(cpu);
            return Err(trap);
        }
    };
    x87::enter(cpu)?;
    call::<false>(cpu, op, place)?;
    cpu.commit_span(linear, len, place)?;
    Ok(Flow::Next)
}
