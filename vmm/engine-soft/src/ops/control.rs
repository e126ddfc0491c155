//! Near transfers of control: JMP, Jcc, CALL, RET, LOOP, JCXZ. Far transfers are among the system instructions.
//!
//! Branch targets are kept relative to the block's first instruction, since a block may be mapped at several addresses.

use iced_x86::{Code, Mnemonic, OpKind};
use nodescope_x86::Exception;
use nodescope_x86::bits::rflags::ZF;

use super::integer::condition::{by_condition, encoding, holds};
use super::integer::operand::{OperandKind, Source, Width, by_source, by_wide};
use super::integer::stack::{Stack, by_stack, push};
use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::memory::is_canonical;
use crate::op::{Done, Flow, Handler, Op, RIP, Trap};

/// Returns the target of a relative branch with operand size `T`: EIP is cut to 16 or 32 bits outside 64-bit mode.
#[inline(always)]
fn relative<T: Width>(cpu: &Cpu, op: &Op) -> u64 {
    cpu.gpr[RIP as usize].wrapping_add(op.imm) & T::ONES
}

/// Checks that an indirect target is canonical (the limit of CS outside 64-bit mode is not checked: flat segments).
#[inline(always)]
fn check<T: Width>(cpu: &mut Cpu, target: u64) -> Result<(), Trap> {
    if T::BITS == 64 && !is_canonical(target) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    Ok(())
}

fn jmp<T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    cpu.set_ip(relative::<T>(cpu, op));
    Ok(Flow::Branch)
}

fn jmp_indirect<S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let target = S::get::<T>(cpu, op)?.to_u64();
    check::<T>(cpu, target)?;
    cpu.set_ip(target);
    Ok(Flow::Branch)
}

#[inline(always)]
fn branch_if<T: Width>(cpu: &mut Cpu, op: &Op, taken: bool) -> Done {
    let next = u64::from(op.offset) + u64::from(op.len);
    let to = if taken { op.imm } else { next };
    cpu.set_ip(cpu.gpr[RIP as usize].wrapping_add(to) & T::ONES);
    Ok(Flow::Branch)
}

fn jcc<const CC: u8, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let taken = holds::<CC>(cpu.rflags);
    branch_if::<T>(cpu, op, taken)
}

/// Number of bytes in the count register of LOOP and JCXZ.
const COUNT_64: u32 = 8;
const COUNT_32: u32 = 4;

#[inline(always)]
fn count(cpu: &Cpu, bytes: u32) -> u64 {
    match bytes {
        COUNT_64 => cpu.reg::<u64>(8),
        COUNT_32 => cpu.reg::<u32>(8).into(),
        _ => cpu.reg::<u16>(8).into(),
    }
}

/// Executes JCXZ, JECXZ, JRCXZ; `op.aux` is the count register's width in bytes.
fn jcxz<T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let taken = count(cpu, op.aux) == 0;
    branch_if::<T>(cpu, op, taken)
}

/// Executes LOOP (`op.src` 0), LOOPE (1: branches only with ZF set) and LOOPNE (2: branches only with ZF clear). `op.aux` is the count
/// register's width in bytes.
fn loop_branch<T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let left = count(cpu, op.aux).wrapping_sub(1);
    let left = match op.aux {
        COUNT_64 => {
            cpu.set_reg(8, left);
            left
        }
        COUNT_32 => {
            cpu.set_reg(8, left as u32);
            left & 0xffff_ffff
        }
        _ => {
            cpu.set_reg(8, left as u16);
            left & 0xffff
        }
    };
    let zero = cpu.rflags & ZF != 0;
    let taken = left != 0
        && match op.src {
            0 => true,
            1 => zero,
            _ => !zero,
        };
    branch_if::<T>(cpu, op, taken)
}

fn call<M: Stack, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let target = relative::<T>(cpu, op);
    push::<M, T>(cpu, T::from_u64(cpu.next_ip(op)))?;
    cpu.set_ip(target);
    Ok(Flow::Branch)
}

fn call_indirect<M: Stack, S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let target = S::get::<T>(cpu, op)?.to_u64();
    check::<T>(cpu, target)?;
    push::<M, T>(cpu, T::from_u64(cpu.next_ip(op)))?;
    cpu.set_ip(target);
    Ok(Flow::Branch)
}

/// Executes RET. Releases `op.imm` bytes of the stack besides the return address.
fn ret<M: Stack, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let target: T = cpu.load(M::linear(cpu, M::moved(cpu, 0)))?;
    check::<T>(cpu, target.to_u64())?;
    let sp = M::moved(cpu, T::BYTES as i64 + op.imm as i64);
    M::set(cpu, sp);
    cpu.set_ip(target.to_u64());
    Ok(Flow::Branch)
}

/// Stores the target of a near branch in the operation. Returns the operand size in bytes; None for other operands.
fn take_target(l: &mut Lowering<'_>) -> Option<usize> {
    let width = match l.instruction.op_kind(0) {
        OpKind::NearBranch16 => 2,
        OpKind::NearBranch32 => 4,
        OpKind::NearBranch64 => 8,
        _ => return None,
    };
    l.op.imm = l.instruction.near_branch_target().wrapping_sub(l.block_ip);
    Some(width)
}

/// Lowers near transfers of control.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let mode = l.mode;
    match l.instruction.mnemonic() {
        Jmp | Call => {
            let call_it = l.instruction.mnemonic() == Call;
            if let Some(width) = take_target(l) {
                return if call_it {
                    by_stack!(mode, width, M, T => call::<M, T>)
                } else {
                    by_wide!(width, T => jmp::<T>)
                };
            }
            // Only the near indirect forms: far pointers in memory have sizes of their own.
            let width = match l.instruction.code() {
                Code::Jmp_rm16 | Code::Call_rm16 => 2,
                Code::Jmp_rm32 | Code::Call_rm32 => 4,
                Code::Jmp_rm64 | Code::Call_rm64 => 8,
                _ => return None,
            };
            let shape = l.take_src(0)?;
            if shape == OperandKind::Immediate {
                return None;
            }
            if call_it {
                by_source!(shape, S => by_stack!(mode, width, M, T => call_indirect::<M, S, T>))
            } else {
                by_source!(shape, S => by_wide!(width, T => jmp_indirect::<S, T>))
            }
        }
        Ret => {
            let width = match l.instruction.code() {
                Code::Retnw | Code::Retnw_imm16 => 2,
                Code::Retnd | Code::Retnd_imm16 => 4,
                Code::Retnq | Code::Retnq_imm16 => 8,
                _ => return None,
            };
            if l.instruction.op_count() == 1 {
                l.op.imm = l.instruction.immediate16().into();
            }
            by_stack!(mode, width, M, T => ret::<M, T>)
        }
        Jcxz | Jecxz | Jrcxz => {
            l.op.aux = match l.instruction.mnemonic() {
                Jrcxz => COUNT_64,
                Jecxz => COUNT_32,
                _ => 2,
            };
            let width = take_target(l)?;
            by_wide!(width, T => jcxz::<T>)
        }
        Loop | Loope | Loopne => {
            l.op.src = match l.instruction.mnemonic() {
                Loop => 0,
                Loope => 1,
                _ => 2,
            };
            l.op.aux = loop_count(l.instruction.code());
            let width = take_target(l)?;
            by_wide!(width, T => loop_branch::<T>)
        }
        _ => {
            let cc = encoding(l.instruction.condition_code())?;
            let width = take_target(l)?;
            by_condition!(cc, C => match width {
                2 => jcc::<C, u16> as Handler,
                4 => jcc::<C, u32>,
                _ => jcc::<C, u64>,
            })
        }
    }
}

/// Returns the width of LOOP's count register in bytes: the address size, which the opcode gives.
fn loop_count(code: Code) -> u32 {
    use Code::*;
    match code {
        Loop_rel8_16_CX | Loop_rel8_32_CX | Loope_rel8_16_CX | Loope_rel8_32_CX
        | Loopne_rel8_16_CX | Loopne_rel8_32_CX => 2,
        Loop_rel8_16_RCX | Loop_rel8_64_RCX | Loope_rel8_16_RCX | Loope_rel8_64_RCX
        | Loopne_rel8_16_RCX | Loopne_rel8_64_RCX => COUNT_64,
        _ => COUNT_32,
    }
}
