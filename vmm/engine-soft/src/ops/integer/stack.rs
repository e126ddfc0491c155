//! The stack: PUSH, POP, ENTER, LEAVE, PUSHA, POPA, and functions for CALL, RET, PUSHF and POPF.

use iced_x86::Mnemonic;
use nodescope_x86::state::seg::SS;

use super::operand::{Destination, Mem, Source, Width, by_source};
use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op, Trap};

const RSP: usize = 4;
const RBP: usize = 5;

/// Addressing of the stack: by all 64 bits of RSP, or by SP or ESP in the stack segment.
pub trait Stack {
    /// Returns the stack pointer plus this number of bytes, without changing the register.
    fn moved(cpu: &Cpu, by: i64) -> u64;
    /// Returns the linear address for a value of the stack pointer.
    fn linear(cpu: &Cpu, sp: u64) -> u64;
    /// Writes the stack pointer, with a value that [`Stack::moved`] or [`Stack::truncate`] returned.
    fn set(cpu: &mut Cpu, sp: u64);
    /// Writes a general register, such as RBP, in the stack's address size.
    fn set_register(cpu: &mut Cpu, number: usize, value: u64);
    /// Truncates a value to the stack's address size.
    fn truncate(cpu: &Cpu, value: u64) -> u64;
}

/// Stack of 64-bit mode.
pub struct Flat;
/// Stack outside 64-bit mode: relative to SS.base; SS.B selects SP or ESP.
pub struct Segmented;

impl Stack for Flat {
    #[inline(always)]
    fn moved(cpu: &Cpu, by: i64) -> u64 {
        cpu.gpr[RSP].wrapping_add(by as u64)
    }
    #[inline(always)]
    fn linear(_: &Cpu, sp: u64) -> u64 {
        sp
    }
    #[inline(always)]
    fn set(cpu: &mut Cpu, sp: u64) {
        cpu.gpr[RSP] = sp;
    }
    #[inline(always)]
    fn set_register(cpu: &mut Cpu, number: usize, value: u64) {
        cpu.gpr[number] = value;
    }
    #[inline(always)]
    fn truncate(_: &Cpu, value: u64) -> u64 {
        value
    }
}

impl Segmented {
    fn mask(cpu: &Cpu) -> u64 {
        if cpu.segments.data[SS].default_32() {
            0xffff_ffff
        } else {
            0xffff
        }
    }
}

impl Stack for Segmented {
    fn moved(cpu: &Cpu, by: i64) -> u64 {
        cpu.gpr[RSP].wrapping_add(by as u64) & Self::mask(cpu)
    }
    fn linear(cpu: &Cpu, sp: u64) -> u64 {
        cpu.segment_base[SS].wrapping_add(sp & Self::mask(cpu)) & 0xffff_ffff
    }
    fn set(cpu: &mut Cpu, sp: u64) {
        Self::set_register(cpu, RSP, sp);
    }
    fn set_register(cpu: &mut Cpu, number: usize, value: u64) {
        let mask = Self::mask(cpu);
        // ESP's upper half is unchanged where SP is the stack pointer. RSP's upper half does not exist here.
        cpu.gpr[number] = (cpu.gpr[number] & !mask | value & mask) & 0xffff_ffff;
    }
    fn truncate(cpu: &Cpu, value: u64) -> u64 {
        value & Self::mask(cpu)
    }
}

/// Pushes a value. The stack pointer changes after the value is written.
#[inline(always)]
pub fn push<M: Stack, T: Width>(cpu: &mut Cpu, value: T) -> Result<(), Trap> {
    let sp = M::moved(cpu, -(T::BYTES as i64));
    cpu.store(M::linear(cpu, sp), value)?;
    M::set(cpu, sp);
    Ok(())
}

/// Returns the value on top of the stack, and the new stack pointer, which the caller must set.
#[inline(always)]
pub fn pop<M: Stack, T: Width>(cpu: &mut Cpu) -> Result<(T, u64), Trap> {
    let value = cpu.load(M::linear(cpu, M::moved(cpu, 0)))?;
    Ok((value, M::moved(cpu, T::BYTES as i64)))
}

fn push_operand<M: Stack, S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let value: T = S::get(cpu, op)?;
    push::<M, T>(cpu, value)?;
    Ok(Flow::Next)
}

/// Executes POP of a register. After POP SP, ESP or RSP the register has the popped value.
fn pop_register<M: Stack, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let (value, sp) = pop::<M, T>(cpu)?;
    M::set(cpu, sp);
    cpu.set_reg(op.dst, value);
    Ok(Flow::Next)
}

/// Executes POP to memory. The destination's address is computed with the stack pointer already moved (SDM vol. 2B, POP).
fn pop_memory<M: Stack, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let (value, sp) = pop::<M, T>(cpu)?;
    let old = cpu.gpr[RSP];
    M::set(cpu, sp);
    if let Err(trap) = Mem::set::<T>(cpu, op, value) {
        cpu.gpr[RSP] = old;
        return Err(trap);
    }
    Ok(Flow::Next)
}

fn leave<M: Stack, T: Width>(cpu: &mut Cpu, _: &Op) -> Done {
    let frame = M::truncate(cpu, cpu.gpr[RBP]);
    let value: T = cpu.load(M::linear(cpu, frame))?;
    M::set(cpu, M::truncate(cpu, frame.wrapping_add(T::BYTES as u64)));
    cpu.set_reg(RBP as u8 * 8, value);
    Ok(Flow::Next)
}

/// Executes ENTER: `op.imm` bytes of locals, `op.aux` nesting level (0 to 31).
fn enter<M: Stack, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let size = T::BYTES as i64;
    let mut sp = M::moved(cpu, -size);
    let frame = sp;
    cpu.store(M::linear(cpu, sp), cpu.reg::<T>(RBP as u8 * 8))?;
    let down = |cpu: &Cpu, from: u64, by: i64| M::truncate(cpu, from.wrapping_sub(by as u64));
    if op.aux > 0 {
        let mut outer = cpu.gpr[RBP];
        for _ in 1..op.aux {
            outer = down(cpu, outer, size);
            let value: T = cpu.load(M::linear(cpu, outer))?;
            sp = down(cpu, sp, size);
            cpu.store(M::linear(cpu, sp), value)?;
        }
        sp = down(cpu, sp, size);
        cpu.store(M::linear(cpu, sp), T::from_u64(frame))?;
    }
    sp = down(cpu, sp, op.imm as i64);
    // A write at the final stack pointer must be possible (SDM vol. 2A, ENTER).
    let top = M::linear(cpu, sp);
    cpu.probe_write(top, T::BYTES)?;
    M::set(cpu, sp);
    if T::BITS == 16 {
        cpu.set_reg(RBP as u8 * 8, frame as u16);
    } else {
        M::set_register(cpu, RBP, frame);
    }
    Ok(Flow::Next)
}

/// Executes PUSHA and PUSHAD: AX, CX, DX, BX, old SP, BP, SI, DI.
fn push_all<T: Width>(cpu: &mut Cpu, _: &Op) -> Done {
    let last = Segmented::moved(cpu, -(8 * T::BYTES as i64));
    let at = Segmented::linear(cpu, last);
    cpu.probe_write(at, T::BYTES)?;
    for n in 0..8_u8 {
        let sp = Segmented::moved(cpu, -((i64::from(n) + 1) * T::BYTES as i64));
        cpu.store(Segmented::linear(cpu, sp), cpu.reg::<T>(n * 8))?;
    }
    Segmented::set(cpu, last);
    Ok(Flow::Next)
}

/// Executes POPA and POPAD; the stack pointer's slot is skipped.
fn pop_all<T: Width>(cpu: &mut Cpu, _: &Op) -> Done {
    let mut values = [T::from_u64(0); 8];
    for n in 0..8 {
        let sp = Segmented::moved(cpu, n as i64 * T::BYTES as i64);
        values[7 - n] = cpu.load(Segmented::linear(cpu, sp))?;
    }
    let sp = Segmented::moved(cpu, 8 * T::BYTES as i64);
    for (n, value) in values.into_iter().enumerate() {
        if n != RSP {
            cpu.set_reg(n as u8 * 8, value);
        }
    }
    Segmented::set(cpu, sp);
    Ok(Flow::Next)
}

/// Chooses the handler for the mode's stack and the operand's width in bytes (2, 4 or 8).
macro_rules! by_stack {
    ($mode:expr, $width:expr, $m:ident, $t:ident => $handler:expr) => {
        if $mode == crate::cpu::Mode::Bits64 {
            type $m = crate::ops::integer::stack::Flat;
            crate::ops::integer::operand::by_wide!($width, $t => $handler)
        } else {
            type $m = crate::ops::integer::stack::Segmented;
            crate::ops::integer::operand::by_wide!($width, $t => $handler)
        }
    };
}
pub(crate) use by_stack;

/// Lowers the instructions of this file.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    let mode = l.mode;
    let width = l.instruction.stack_pointer_increment().unsigned_abs();
    match l.instruction.mnemonic() {
        Mnemonic::Push => {
            let shape = l.take_src(0)?;
            by_source!(shape, S => by_stack!(mode, width, M, T => push_operand::<M, S, T>))
        }
        Mnemonic::Pop => {
            if l.take_dst(0)? {
                by_stack!(mode, width, M, T => pop_memory::<M, T>)
            } else {
                by_stack!(mode, width, M, T => pop_register::<M, T>)
            }
        }
        Mnemonic::Leave => {
            // The decoder reports no stack pointer increment for LEAVE.
            let width = match l.instruction.code() {
                iced_x86::Code::Leavew => 2,
                iced_x86::Code::Leaved => 4,
                _ => 8,
            };
            by_stack!(mode, width, M, T => leave::<M, T>)
        }
        Mnemonic::Enter => {
            let width = match l.instruction.code() {
                iced_x86::Code::Enterw_imm16_imm8 => 2,
                iced_x86::Code::Enterd_imm16_imm8 => 4,
                _ => 8,
            };
            l.op.imm = l.instruction.immediate16().into();
            l.op.aux = u32::from(l.instruction.immediate8_2nd()) & 31;
            by_stack!(mode, width, M, T => enter::<M, T>)
        }
        Mnemonic::Pusha => Some(push_all::<u16>),
        Mnemonic::Pushad => Some(push_all::<u32>),
        Mnemonic::Popa => Some(pop_all::<u16>),
        Mnemonic::Popad => Some(pop_all::<u32>),
        _ => None,
    }
}
