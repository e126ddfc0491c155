//! Instructions on flags: CLC, STC, CMC, CLD, STD, LAHF, SAHF, PUSHF, POPF. (CLI and STI are among the system instructions.)

use iced_x86::Mnemonic;
use nodescope_x86::bits::{cr4, rflags};

use super::operand::{Width, by_wide};
use super::stack::{Flat, Segmented, Stack, pop, push};
use crate::cpu::{Cpu, Mode};
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op};

fn clear<const FLAG: u64>(cpu: &mut Cpu, _: &Op) -> Done {
    cpu.rflags &= !FLAG;
    Ok(Flow::Next)
}

fn set<const FLAG: u64>(cpu: &mut Cpu, _: &Op) -> Done {
    cpu.rflags |= FLAG;
    Ok(Flow::Next)
}

fn cmc(cpu: &mut Cpu, _: &Op) -> Done {
    cpu.rflags ^= rflags::CF;
    Ok(Flow::Next)
}

/// Flags that LAHF and SAHF move.
const LOW: u64 = rflags::STATUS & 0xff;
const AH: u8 = 1;

fn lahf(cpu: &mut Cpu, _: &Op) -> Done {
    cpu.set_reg(AH, (cpu.rflags & LOW | rflags::FIXED) as u8);
    Ok(Flow::Next)
}

fn sahf(cpu: &mut Cpu, _: &Op) -> Done {
    cpu.rflags = cpu.rflags & !LOW | u64::from(cpu.reg::<u8>(AH)) & LOW;
    Ok(Flow::Next)
}

fn pushf<M: Stack, T: Width>(cpu: &mut Cpu, _: &Op) -> Done {
    // VM and RF read as zero (SDM vol. 2B, PUSHF).
    push::<M, T>(cpu, T::from_u64(cpu.rflags & !(rflags::VM | rflags::RF)))?;
    Ok(Flow::Next)
}

/// Executes POPF (SDM vol. 2B, POPF, table for protected and 64-bit mode): VM, VIF and VIP are kept; RF is cleared, except by the 16-bit
/// form.
fn popf<M: Stack, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    use rflags::*;
    if cpu.rflags & VM != 0 {
        return Err(cpu.unsupported("POPF in virtual-8086 mode"));
    }
    let (value, sp) = pop::<M, T>(cpu)?;
    let mut change = STATUS | TF | DF | NT | AC | ID;
    let iopl = (cpu.rflags & IOPL) >> 12;
    let cpl = if cpu.control.cr0 & nodescope_x86::bits::cr0::PE == 0 {
        0
    } else {
        cpu.cpl
    };
    if cpl == 0 {
        change |= IOPL;
    }
    if u64::from(cpl) <= iopl {
        change |= IF;
    }
    if T::BITS == 16 {
        change &= 0xffff;
    } else {
        cpu.rflags &= !RF;
    }
    M::set(cpu, sp);
    let old = cpu.rflags;
    cpu.rflags = old & !change | value.to_u64() & change;
    let changed = old ^ cpu.rflags;
    if changed & AC != 0 && cpu.control.cr4 & cr4::SMAP != 0 {
        // Whether the supervisor may access user pages depends on AC.
        cpu.data_tlb.flush();
    }
    if changed & (IF | TF) != 0 {
        cpu.set_ip(cpu.next_ip(op));
        return Ok(Flow::Attend);
    }
    Ok(Flow::Next)
}

/// Lowers the instructions of this file.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    match l.instruction.mnemonic() {
        Clc => Some(clear::<{ rflags::CF }>),
        Stc => Some(set::<{ rflags::CF }>),
        Cmc => Some(cmc),
        Cld => Some(clear::<{ rflags::DF }>),
        Std => Some(set::<{ rflags::DF }>),
        Lahf => Some(lahf),
        Sahf => Some(sahf),
        Pushf | Pushfd | Pushfq => {
            let width = l.instruction.stack_pointer_increment().unsigned_abs();
            if l.mode == Mode::Bits64 {
                by_wide!(width, T => pushf::<Flat, T>)
            } else {
                by_wide!(width, T => pushf::<Segmented, T>)
            }
        }
        Popf | Popfd | Popfq => {
            let width = l.instruction.stack_pointer_increment().unsigned_abs();
            if l.mode == Mode::Bits64 {
                by_wide!(width, T => popf::<Flat, T>)
            } else {
                by_wide!(width, T => popf::<Segmented, T>)
            }
        }
        _ => None,
    }
}
