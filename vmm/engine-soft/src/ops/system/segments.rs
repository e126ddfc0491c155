//! Segment registers: selectors loaded and stored, far pointers, and the bases of FS and GS.

use iced_x86::{Mnemonic, OpKind, Register};
use nodescope_x86::Exception;
use nodescope_x86::bits::cr4;
use nodescope_x86::state::{InterruptShadow, seg};

use super::stack::{peek, push, stack};
use super::{attend, privileged};
use crate::cpu::Cpu;
use crate::lower::{Lowering, register_offset};
use crate::memory::is_canonical;
use crate::op::{Done, Flow, Handler, Op};

/// Lowers MOV, PUSH and POP of segment registers, LSS, SWAPGS, RDFSBASE and related instructions; None for instructions of other files.
pub(super) fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let i = l.instruction;
    let register = |n: u32| i.op_register(n);
    let handler: Handler = match i.mnemonic() {
        Swapgs => swapgs,
        Lss | Lfs | Lgs | Lds | Les => {
            let segment = match i.mnemonic() {
                Lss => Register::SS,
                Lfs => Register::FS,
                Lgs => Register::GS,
                Lds => Register::DS,
                _ => Register::ES,
            };
            l.op.src = segment.number() as u8;
            l.op.dst = register_offset(register(0));
            l.op.aux = register(0).size() as u32;
            load_far_pointer
        }
        Rdfsbase | Rdgsbase | Wrfsbase | Wrgsbase => {
            l.op.dst = register_offset(register(0));
            l.op.aux = register(0).size() as u32;
            match i.mnemonic() {
                Rdfsbase => read_base::<{ seg::FS }>,
                Rdgsbase => read_base::<{ seg::GS }>,
                Wrfsbase => write_base::<{ seg::FS }>,
                _ => write_base::<{ seg::GS }>,
            }
        }
        Mov if i.op_count() == 2
            && i.op0_kind() == OpKind::Register
            && i.op1_kind() == OpKind::Register =>
        {
            let (a, b) = (register(0), register(1));
            if a.is_segment_register() {
                (l.op.dst, l.op.src, l.op.aux) = (a.number() as u8, register_offset(b), 1);
                write_segment
            } else if b.is_segment_register() {
                (l.op.src, l.op.dst, l.op.aux) =
                    (b.number() as u8, register_offset(a), a.size() as u32);
                read_segment
            } else {
                return None;
            }
        }
        Mov if i.op_count() == 2
            && i.op0_kind() == OpKind::Register
            && register(0).is_segment_register() =>
        {
            l.op.dst = register(0).number() as u8;
            write_segment
        }
        Mov if i.op_count() == 2
            && i.op1_kind() == OpKind::Register
            && register(1).is_segment_register() =>
        {
            l.op.src = register(1).number() as u8;
            read_segment
        }
        Push if i.op0_kind() == OpKind::Register && register(0).is_segment_register() => {
            l.op.src = register(0).number() as u8;
            l.op.aux = i.stack_pointer_increment().unsigned_abs();
            push_segment
        }
        Pop if i.op0_kind() == OpKind::Register && register(0).is_segment_register() => {
            l.op.dst = register(0).number() as u8;
            l.op.aux = i.stack_pointer_increment().unsigned_abs();
            pop_segment
        }
        _ => return None,
    };
    Some(handler)
}

fn write_segment(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = if op.aux != 0 {
        cpu.reg::<u16>(op.src)
    } else {
        let at = cpu.linear(op);
        cpu.load::<u16>(at)?
    };
    if usize::from(op.dst) == seg::CS {
        return Err(cpu.raise(Exception::ud()));
    }
    cpu.load_segment(op.dst.into(), selector)?;
    if usize::from(op.dst) == seg::SS {
        cpu.events.shadow = InterruptShadow::MovSs;
    }
    attend(cpu, op)
}

fn read_segment(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = cpu.segments.data[usize::from(op.src)].selector;
    match op.aux {
        0 => {
            let at = cpu.linear(op);
            cpu.store::<u16>(at, selector)?;
        }
        2 => cpu.set_reg::<u16>(op.dst, selector),
        4 => cpu.set_reg::<u32>(op.dst, selector.into()),
        _ => cpu.set_reg::<u64>(op.dst, selector.into()),
    }
    Ok(Flow::Next)
}

/// Executes LSS, LFS, LGS, LDS, LES: the selector lies behind the offset.
fn load_far_pointer(cpu: &mut Cpu, op: &Op) -> Done {
    let (selector, offset) = super::far::far_pointer(cpu, op)?;
    cpu.load_segment(op.src.into(), selector)?;
    match op.aux {
        2 => cpu.set_reg(op.dst, offset as u16),
        4 => cpu.set_reg(op.dst, offset as u32),
        _ => cpu.set_reg(op.dst, offset),
    }
    attend(cpu, op)
}

fn push_segment(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = cpu.segments.data[usize::from(op.src)].selector;
    push(cpu, op.aux, selector.into())?;
    Ok(Flow::Next)
}

fn pop_segment(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = peek(cpu, op.aux, 0)? as u16;
    cpu.load_segment(op.dst.into(), selector)?;
    cpu.gpr[4] = stack(cpu, op.aux.into()).1;
    if usize::from(op.dst) == seg::SS {
        cpu.events.shadow = InterruptShadow::MovSs;
    }
    attend(cpu, op)
}

fn swapgs(cpu: &mut Cpu, _op: &Op) -> Done {
    privileged(cpu)?;
    let gs = &mut cpu.segments.data[seg::GS];
    std::mem::swap(&mut gs.base, &mut cpu.msrs.kernel_gs_base);
    cpu.segment_base[seg::GS] = cpu.segments.data[seg::GS].base;
    Ok(Flow::Next)
}

fn read_base<const S: usize>(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.control.cr4 & cr4::FSGSBASE == 0 {
        return Err(cpu.raise(Exception::ud()));
    }
    let base = cpu.segments.data[S].base;
    if op.aux == 4 {
        cpu.set_reg::<u32>(op.dst, base as u32)
    } else {
        cpu.set_reg::<u64>(op.dst, base)
    }
    Ok(Flow::Next)
}

fn write_base<const S: usize>(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.control.cr4 & cr4::FSGSBASE == 0 {
        return Err(cpu.raise(Exception::ud()));
    }
    let base = if op.aux == 4 {
        cpu.reg::<u32>(op.dst).into()
    } else {
        cpu.reg::<u64>(op.dst)
    };
    if !is_canonical(base) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.segments.data[S].base = base;
    cpu.segment_base[S] = base;
    if S == seg::FS {
        cpu.change_thread();
    }
    Ok(Flow::Next)
}
