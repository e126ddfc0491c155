//! Descriptor tables: instructions that load and store GDTR, IDTR, LDTR and TR, and that check a descriptor (LAR, LSL, VERR, VERW).

use iced_x86::{Code, Mnemonic, OpKind};
use nodescope_x86::Exception;
use nodescope_x86::bits::{cr0, rflags};
use nodescope_x86::exception::Vector;

use super::{attend, privileged};
use crate::cpu::{Cpu, Mode};
use crate::deliver::unpack;
use crate::lower::{Lowering, register_offset};
use crate::memory::is_canonical;
use crate::op::{Done, Flow, Handler, Op, Trap};

/// Lowers LGDT, SGDT, LLDT, LTR and related instructions, SMSW, LAR, LSL, VERR, VERW, ARPL; None for instructions of other files.
pub(super) fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let i = l.instruction;
    let register = |n: u32| i.op_register(n);
    let handler: Handler = match i.mnemonic() {
        Lgdt | Lidt | Sgdt | Sidt => {
            l.op.aux = if l.mode == Mode::Bits64 {
                8
            } else if matches!(
                i.code(),
                Code::Lgdt_m1632 | Code::Lidt_m1632 | Code::Sgdt_m1632 | Code::Sidt_m1632
            ) {
                4
            } else {
                3
            };
            match i.mnemonic() {
                Lgdt => load_table::<false>,
                Lidt => load_table::<true>,
                Sgdt => store_table::<false>,
                _ => store_table::<true>,
            }
        }
        Lldt | Ltr | Verr | Verw => {
            if i.op0_kind() == OpKind::Register {
                l.op.src = register_offset(register(0));
                l.op.aux = 1;
            }
            match i.mnemonic() {
                Lldt => lldt,
                Ltr => ltr,
                Verr => verify::<false>,
                _ => verify::<true>,
            }
        }
        Sldt | Str | Smsw => {
            if i.op0_kind() == OpKind::Register {
                l.op.dst = register_offset(register(0));
                l.op.aux = register(0).size() as u32;
            }
            match i.mnemonic() {
                Sldt => store_system::<0>,
                Str => store_system::<1>,
                _ => store_system::<2>,
            }
        }
        Arpl => {
            if i.op0_kind() == OpKind::Register {
                l.op.dst = register_offset(register(0));
                l.op.aux = 1;
            }
            l.op.src = register_offset(register(1));
            arpl
        }
        Lar | Lsl => {
            l.op.dst = register_offset(register(0));
            l.op.src2 = register(0).size() as u8;
            if i.op1_kind() == OpKind::Register {
                l.op.src = register_offset(register(1));
                l.op.aux = 1;
            }
            if i.mnemonic() == Lar { lar } else { lsl }
        }
        _ => return None,
    };
    Some(handler)
}

fn load_table<const IDT: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let at = cpu.linear(op);
    let limit: u16 = cpu.load(at)?;
    let base = match op.aux {
        8 => cpu.load::<u64>(at.wrapping_add(2))?,
        4 => cpu.load::<u32>(at.wrapping_add(2))?.into(),
        _ => u64::from(cpu.load::<u32>(at.wrapping_add(2))? & 0xff_ffff),
    };
    if cpu.mode == Mode::Bits64 && !is_canonical(base) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let table = if IDT {
        &mut cpu.segments.idt
    } else {
        &mut cpu.segments.gdt
    };
    (table.base, table.limit) = (base, limit);
    attend(cpu, op)
}

fn store_table<const IDT: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    let at = cpu.linear(op);
    let table = if IDT {
        cpu.segments.idt
    } else {
        cpu.segments.gdt
    };
    let mut bytes = [0; 10];
    bytes[..2].copy_from_slice(&table.limit.to_le_bytes());
    bytes[2..].copy_from_slice(&table.base.to_le_bytes());
    let len = if op.aux == 8 { 10 } else { 6 };
    cpu.write_bytes(at, &bytes[..len])?;
    Ok(Flow::Next)
}

pub(super) fn selector_operand(cpu: &mut Cpu, op: &Op) -> Result<u16, Trap> {
    if op.aux != 0 {
        return Ok(cpu.reg(op.src));
    }
    let at = cpu.linear(op);
    cpu.load(at)
}

/// Returns the descriptor of a system segment (16 bytes in long mode), which must be present and of one of two types.
fn system_descriptor(
    cpu: &mut Cpu,
    selector: u16,
    kinds: [u16; 2],
) -> Result<nodescope_x86::Segment, Trap> {
    let error = u32::from(selector) & !3;
    if selector & 4 != 0 {
        return Err(cpu.raise(Exception::gp(error)));
    }
    let Some((raw, _)) = cpu.descriptor(selector)? else {
        return Err(cpu.raise(Exception::gp(error)));
    };
    let mut s = unpack(selector, raw);
    if s.attributes & 0x10 != 0 || !kinds.contains(&(s.attributes & 0xf)) {
        return Err(cpu.raise(Exception::gp(error)));
    }
    if s.attributes & 0x80 == 0 {
        return Err(cpu.raise(Exception::with_error(Vector::SegmentNotPresent, error)));
    }
    if cpu.long_mode() {
        s.base |= cpu.upper_descriptor(selector)? << 32;
        if !is_canonical(s.base) {
            return Err(cpu.raise(Exception::gp(error)));
        }
    }
    Ok(s)
}

fn lldt(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let selector = selector_operand(cpu, op)?;
    if selector & !3 == 0 {
        cpu.segments.ldt = nodescope_x86::Segment {
            selector,
            unusable: true,
            ..Default::default()
        };
        return attend(cpu, op);
    }
    cpu.segments.ldt = system_descriptor(cpu, selector, [2, 2])?;
    attend(cpu, op)
}

fn ltr(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let selector = selector_operand(cpu, op)?;
    if selector & !3 == 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    // Long mode has no 16-bit TSS.
    let kinds = if cpu.long_mode() { [9, 9] } else { [9, 1] };
    let mut s = system_descriptor(cpu, selector, kinds)?;
    // Mark the task busy.
    if let Some((raw, at)) = cpu.descriptor(selector)? {
        cpu.as_supervisor(|c| c.store::<u64>(at, raw | 2 << 40))?;
    }
    s.attributes |= 2;
    cpu.segments.tr = s;
    attend(cpu, op)
}

fn store_system<const WHAT: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    let value = match WHAT {
        0 => u64::from(cpu.segments.ldt.selector),
        1 => u64::from(cpu.segments.tr.selector),
        _ => cpu.control.cr0,
    };
    match op.aux {
        0 => {
            let at = cpu.linear(op);
            cpu.store::<u16>(at, value as u16)?;
        }
        2 => cpu.set_reg::<u16>(op.dst, value as u16),
        4 => cpu.set_reg::<u32>(op.dst, value as u32),
        _ => cpu.set_reg::<u64>(op.dst, value),
    }
    Ok(Flow::Next)
}

/// Returns the descriptor that LAR, LSL, VERR and VERW may read, or None (SDM vol. 2A, LAR, table 3-52). Bits of `systems` are the types of
/// system descriptors that the instruction accepts.
fn visible(
    cpu: &mut Cpu,
    selector: u16,
    systems: u32,
) -> Result<Option<(u64, nodescope_x86::Segment)>, Trap> {
    let Some((raw, _)) = cpu.descriptor(selector)? else {
        return Ok(None);
    };
    let s = unpack(selector, raw);
    let kind = s.attributes & 0xf;
    let normal = s.attributes & 0x10 != 0;
    if !normal && systems >> kind & 1 == 0 {
        return Ok(None);
    }
    let conforming = normal && kind & 0xc == 0xc;
    let rpl = (selector & 3) as u8;
    if !conforming && s.dpl() < cpu.cpl.max(rpl) {
        return Ok(None);
    }
    Ok(Some((raw, s)))
}

fn set_zero_flag(cpu: &mut Cpu, set: bool) {
    cpu.rflags = cpu.rflags & !rflags::ZF | if set { rflags::ZF } else { 0 };
}

fn lar(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = selector_operand(cpu, op)?;
    // Long mode: LDT, available and busy 64-bit TSS, 64-bit call gate.
    let found = visible(cpu, selector, 1 << 2 | 1 << 9 | 1 << 11 | 1 << 12)?;
    set_zero_flag(cpu, found.is_some());
    if let Some((raw, _)) = found {
        let value = raw >> 32 & 0x00ff_ff00;
        match op.src2 {
            2 => cpu.set_reg::<u16>(op.dst, value as u16),
            4 => cpu.set_reg::<u32>(op.dst, value as u32),
            _ => cpu.set_reg::<u64>(op.dst, value),
        }
    }
    Ok(Flow::Next)
}

fn lsl(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = selector_operand(cpu, op)?;
    let found = visible(cpu, selector, 1 << 2 | 1 << 9 | 1 << 11)?;
    set_zero_flag(cpu, found.is_some());
    if let Some((_, s)) = found {
        match op.src2 {
            2 => cpu.set_reg::<u16>(op.dst, s.limit as u16),
            4 => cpu.set_reg::<u32>(op.dst, s.limit),
            _ => cpu.set_reg::<u64>(op.dst, s.limit.into()),
        }
    }
    Ok(Flow::Next)
}

fn verify<const WRITE: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = selector_operand(cpu, op)?;
    let found = visible(cpu, selector, 0)?;
    let ok = found.is_some_and(|(_, s)| {
        let code = s.attributes & 8 != 0;
        if WRITE {
            !code && s.attributes & 2 != 0
        } else {
            !code || s.attributes & 2 != 0
        }
    });
    set_zero_flag(cpu, ok);
    Ok(Flow::Next)
}

/// Executes ARPL: increases the destination selector's requested privilege level (RPL) to the source's, if it is less (SDM vol. 2A).
fn arpl(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.control.cr0 & cr0::PE == 0 {
        return Err(cpu.raise(Exception::ud()));
    }
    let wanted = cpu.reg::<u16>(op.src) & 3;
    let at = cpu.linear(op);
    let selector = match op.aux {
        0 => cpu.load_rmw::<u16>(at)?,
        _ => cpu.reg(op.dst),
    };
    let adjusts = selector & 3 < wanted;
    if adjusts {
        let selector = selector & !3 | wanted;
        match op.aux {
            0 => cpu.store(at, selector)?,
            _ => cpu.set_reg(op.dst, selector),
        }
    }
    set_zero_flag(cpu, adjusts);
    Ok(Flow::Next)
}
