//! Instructions that 64-bit mode does not have: decimal adjustment, BOUND, SALC. Linux runs 32-bit programs, and every program may jump to
//! 32-bit code.

use iced_x86::{Code, Mnemonic};
use nodescope_x86::bits::rflags::{AF, CF, PF, SF, ZF};
use nodescope_x86::{Exception, Vector};

use crate::cpu::Cpu;
use crate::lower::{Lowering, register_offset};
use crate::op::{Done, Flow, Handler, Op};

/// Byte offsets into [`Cpu::gpr`].
const AL: u8 = 0;
const AX: u8 = 0;

/// Sets SF, ZF and PF by a result of one byte. `others` gives the other status flags, some of which the architecture leaves undefined.
fn set_flags(cpu: &mut Cpu, result: u8, others: u64) {
    let mut flags = others;
    if result & 0x80 != 0 {
        flags |= SF;
    }
    if result == 0 {
        flags |= ZF;
    }
    if result.count_ones().is_multiple_of(2) {
        flags |= PF;
    }
    cpu.set_status_flags(flags);
}

/// Executes AAA and AAS (SDM vol. 2A).
fn adjust_ascii<const SUBTRACT: bool>(cpu: &mut Cpu, _: &Op) -> Done {
    let ax = cpu.reg::<u16>(AX);
    let adjusts = ax & 0xf > 9 || cpu.rflags & AF != 0;
    let new = match (adjusts, SUBTRACT) {
        (false, _) => ax,
        (true, false) => ax.wrapping_add(0x106),
        (true, true) => ax.wrapping_sub(6).wrapping_sub(0x100),
    } & 0xff0f;
    cpu.set_reg(AX, new);
    set_flags(cpu, new as u8, if adjusts { AF | CF } else { 0 });
    Ok(Flow::Next)
}

/// Executes DAA and DAS (SDM vol. 2A).
fn adjust_decimal<const SUBTRACT: bool>(cpu: &mut Cpu, _: &Op) -> Done {
    let old = cpu.reg::<u8>(AL);
    let carry = cpu.rflags & CF != 0;
    let by = |al: u8, n: u8| {
        if SUBTRACT {
            al.overflowing_sub(n)
        } else {
            al.overflowing_add(n)
        }
    };
    let (mut al, mut flags) = (old, 0);
    if old & 0xf > 9 || cpu.rflags & AF != 0 {
        let (new, carries) = by(al, 6);
        al = new;
        flags = AF
            | if SUBTRACT && (carry || carries) {
                CF
            } else {
                0
            };
    }
    if old > 0x99 || carry {
        al = by(al, 0x60).0;
        flags |= CF;
    }
    cpu.set_reg(AL, al);
    set_flags(cpu, al, flags);
    Ok(Flow::Next)
}

/// Executes AAM; the base is `op.imm`.
fn aam(cpu: &mut Cpu, op: &Op) -> Done {
    let base = op.imm as u8;
    if base == 0 {
        return Err(cpu.raise(Exception::new(Vector::DivideError)));
    }
    let al = cpu.reg::<u8>(AL);
    cpu.set_reg(AX, u16::from(al / base) << 8 | u16::from(al % base));
    set_flags(cpu, al % base, 0);
    Ok(Flow::Next)
}

/// Executes AAD; the base is `op.imm`.
fn aad(cpu: &mut Cpu, op: &Op) -> Done {
    let [al, ah] = cpu.reg::<u16>(AX).to_le_bytes();
    let al = al.wrapping_add(ah.wrapping_mul(op.imm as u8));
    cpu.set_reg(AX, u16::from(al));
    set_flags(cpu, al, 0);
    Ok(Flow::Next)
}

/// Executes SALC: each bit of AL becomes CF (SDM vol. 2A, opcode map).
fn salc(cpu: &mut Cpu, _: &Op) -> Done {
    let al = if cpu.rflags & CF != 0 { 0xff } else { 0 };
    cpu.set_reg::<u8>(AL, al);
    Ok(Flow::Next)
}

/// Executes BOUND: raises `#BR` if the index, a signed number of `op.aux` bytes, is not within the two bounds in memory.
fn bound(cpu: &mut Cpu, op: &Op) -> Done {
    let at = cpu.linear(op);
    let second = at.wrapping_add(op.aux.into());
    let (index, lower, upper) = if op.aux == 2 {
        let (lower, upper) = (cpu.load::<u16>(at)?, cpu.load::<u16>(second)?);
        let signed = |n: u16| i32::from(n as i16);
        (signed(cpu.reg(op.dst)), signed(lower), signed(upper))
    } else {
        let (lower, upper) = (cpu.load::<u32>(at)?, cpu.load::<u32>(second)?);
        (cpu.reg::<u32>(op.dst) as i32, lower as i32, upper as i32)
    };
    if index < lower || index > upper {
        return Err(cpu.raise(Exception::new(Vector::BoundRange)));
    }
    Ok(Flow::Next)
}

/// Lowers the instructions of this file.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let i = l.instruction;
    let handler: Handler = match i.mnemonic() {
        Aaa => adjust_ascii::<false>,
        Aas => adjust_ascii::<true>,
        Daa => adjust_decimal::<false>,
        Das => adjust_decimal::<true>,
        Aam | Aad => {
            l.op.imm = i.immediate8().into();
            if i.mnemonic() == Aam { aam } else { aad }
        }
        Salc => salc,
        Bound => {
            l.op.dst = register_offset(i.op_register(0));
            l.op.aux = if i.code() == Code::Bound_r16_m1616 {
                2
            } else {
                4
            };
            bound
        }
        _ => return None,
    };
    Some(handler)
}
