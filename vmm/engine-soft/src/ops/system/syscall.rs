//! SYSCALL and SYSRET.

use nodescope_x86::Exception;
use nodescope_x86::bits::{efer, rflags};
use nodescope_x86::state::seg;

use super::privileged;
use crate::cpu::{Cpu, Mode};
use crate::memory::is_canonical;
use crate::op::{Done, Flow, Op};

/// SYSCALL in long mode (SDM vol. 2B).
pub(super) fn syscall(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.control.efer & efer::SCE == 0 || !cpu.long_mode() || cpu.mode != Mode::Bits64 {
        return Err(cpu.raise(Exception::ud()));
    }
    cpu.gpr[1] = cpu.next_ip(op);
    cpu.gpr[11] = cpu.rflags & !rflags::RF;
    let selector = (cpu.msrs.star >> 32) as u16 & !3;
    cpu.segments.data[seg::CS] = Cpu::flat_segment(selector, true, true, 0);
    cpu.segments.data[seg::SS] = Cpu::flat_segment(selector.wrapping_add(8), false, false, 0);
    cpu.rflags = cpu.rflags & !cpu.msrs.sfmask & !rflags::RF | rflags::FIXED;
    cpu.cpl = 0;
    let target = cpu.msrs.lstar;
    cpu.set_ip(target);
    cpu.refresh_mode();
    Ok(Flow::Attend)
}

pub(super) fn sysret(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.control.efer & efer::SCE == 0 || cpu.mode != Mode::Bits64 {
        return Err(cpu.raise(Exception::ud()));
    }
    privileged(cpu)?;
    let to_64 = op.aux != 0;
    let target = if to_64 {
        cpu.gpr[1]
    } else {
        cpu.gpr[1] & 0xffff_ffff
    };
    if !is_canonical(target) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let base = (cpu.msrs.star >> 48) as u16;
    let cs = if to_64 { base.wrapping_add(16) } else { base } | 3;
    cpu.segments.data[seg::CS] = Cpu::flat_segment(cs, true, to_64, 3);
    cpu.segments.data[seg::SS] = Cpu::flat_segment(base.wrapping_add(8) | 3, false, false, 3);
    cpu.rflags = cpu.gpr[11] & 0x3c_7fd7 & !rflags::RF | rflags::FIXED;
    cpu.cpl = 3;
    cpu.set_ip(target);
    cpu.refresh_mode();
    Ok(Flow::Attend)
}
