//! Multiplication and division (SDM vol. 2A, MUL, IMUL, DIV, IDIV).

use iced_x86::Mnemonic;
use nodescope_x86::{Exception, Vector};

use super::host::{imul, imul_wide, mul_wide};
use super::operand::{
    Dst, Imm, Mem, OperandKind, Source, Src, Width, by_source, by_wide, by_width,
};
use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op, Trap};

const RAX: u8 = 0;
const AH: u8 = 1;
const RDX: u8 = 2 * 8;

/// Writes a double-width result: AX, DX:AX, EDX:EAX or RDX:RAX.
#[inline(always)]
fn set_wide<T: Width>(cpu: &mut Cpu, low: T, high: T) {
    cpu.set_reg(RAX, low);
    cpu.set_reg(if T::BITS == 8 { AH } else { RDX }, high);
}

/// Executes MUL and IMUL with one operand.
fn widening<const SIGNED: bool, S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let b: T = S::get(cpu, op)?;
    let a: T = cpu.reg(RAX);
    let (low, high, flags) = if SIGNED {
        imul_wide(a, b)
    } else {
        mul_wide(a, b)
    };
    set_wide(cpu, low, high);
    cpu.set_status_flags(flags);
    Ok(Flow::Next)
}

/// Executes IMUL with two or three operands.
fn product<A: Source, B: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let b: T = B::get(cpu, op)?;
    let a: T = A::get(cpu, op)?;
    let (value, flags) = imul(a, b);
    cpu.set_reg(op.dst, value);
    cpu.set_status_flags(flags);
    Ok(Flow::Next)
}

#[cold]
fn divide_error(cpu: &mut Cpu) -> Trap {
    cpu.raise(Exception::new(Vector::DivideError))
}

/// Returns the high half and the low half of the dividend: AX, DX:AX, EDX:EAX or RDX:RAX.
#[inline(always)]
fn dividend<T: Width>(cpu: &Cpu) -> (u64, u64) {
    let high: T = cpu.reg(if T::BITS == 8 { AH } else { RDX });
    (high.to_u64(), cpu.reg::<T>(RAX).to_u64())
}

/// Executes DIV. All flags are undefined, and are left unchanged.
fn div<S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let divisor = S::get::<T>(cpu, op)?.to_u64();
    let (high, low) = dividend::<T>(cpu);
    // The quotient fits exactly where high < divisor; zero divisors fail the same test.
    if high >= divisor {
        return Err(divide_error(cpu));
    }
    let (quotient, rest) = if T::BITS < 64 || high == 0 {
        let n = if T::BITS < 64 {
            high << T::BITS | low
        } else {
            low
        };
        (n / divisor, n % divisor)
    } else {
        let (quotient, rest): (u64, u64);
        // SAFETY: high < divisor, so the division cannot fault.
        unsafe {
            std::arch::asm!(
                "div {d}",
                d = in(reg) divisor, inout("rax") low => quotient, inout("rdx") high => rest,
                options(pure, nomem, nostack),
            )
        };
        (quotient, rest)
    };
    set_wide(cpu, T::from_u64(quotient), T::from_u64(rest));
    Ok(Flow::Next)
}

/// Executes IDIV. All flags are undefined, and are left unchanged.
fn idiv<S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let divisor = S::get::<T>(cpu, op)?.sign_extend() as i64;
    let (high, low) = dividend::<T>(cpu);
    let (quotient, rest) = if T::BITS < 64 {
        // The two halves have at most 64 bits together.
        let shift = 64 - 2 * T::BITS;
        let n = ((high << T::BITS | low) << shift) as i64 >> shift;
        match (n.checked_div(divisor), n.checked_rem(divisor)) {
            (Some(q), Some(r)) if T::from_u64(q as u64).sign_extend() as i64 == q => (q, r),
            _ => return Err(divide_error(cpu)),
        }
    } else if high as i64 == (low as i64) >> 63 {
        let n = low as i64;
        match (n.checked_div(divisor), n.checked_rem(divisor)) {
            (Some(q), Some(r)) => (q, r),
            _ => return Err(divide_error(cpu)),
        }
    } else {
        let n = (u128::from(high) << 64 | u128::from(low)) as i128;
        let d = i128::from(divisor);
        match (n.checked_div(d).map(i64::try_from), n.checked_rem(d)) {
            (Some(Ok(q)), Some(r)) => (q, r as i64),
            _ => return Err(divide_error(cpu)),
        }
    };
    set_wide(cpu, T::from_u64(quotient as u64), T::from_u64(rest as u64));
    Ok(Flow::Next)
}

fn lower_imul(l: &mut Lowering<'_>) -> Option<Handler> {
    let width = l.width(0);
    match l.instruction.op_count() {
        1 => {
            let shape = l.take_src(0)?;
            by_source!(shape, S => by_width!(width, T => widening::<true, S, T>))
        }
        2 => {
            l.take_dst(0)?;
            let shape = l.take_src(1)?;
            by_source!(shape, S => by_wide!(width, T => product::<Dst, S, T>))
        }
        _ => {
            l.take_dst(0)?;
            let shape = l.take_src(1)?;
            l.op.imm = l.instruction.immediate(2);
            match shape {
                OperandKind::Register(_) => by_wide!(width, T => product::<Src, Imm, T>),
                OperandKind::Memory => by_wide!(width, T => product::<Mem, Imm, T>),
                OperandKind::Immediate => None,
            }
        }
    }
}

/// Lowers the instructions of this file.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    let mnemonic = l.instruction.mnemonic();
    match mnemonic {
        Mnemonic::Imul => lower_imul(l),
        Mnemonic::Mul | Mnemonic::Div | Mnemonic::Idiv => {
            let width = l.width(0);
            let shape = l.take_src(0)?;
            match mnemonic {
                Mnemonic::Mul => {
                    by_source!(shape, S => by_width!(width, T => widening::<false, S, T>))
                }
                Mnemonic::Div => by_source!(shape, S => by_width!(width, T => div::<S, T>)),
                _ => by_source!(shape, S => by_width!(width, T => idiv::<S, T>)),
            }
        }
        _ => None,
    }
}
