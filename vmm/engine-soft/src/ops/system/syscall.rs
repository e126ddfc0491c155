//! SYSCALL and SYSRET, SYSENTER and SYSEXIT.

use nodescope_x86::Exception;
use nodescope_x86::bits::{cr0, efer, rflags};
use nodescope_x86::state::seg;

use super::privileged;
use crate::cpu::{Cpu, Mode};
use crate::memory::is_canonical;
use crate::op::{Done, Flow, Op};

/// Executes SYSCALL in long mode (SDM vol. 2B).
pub(super) fn syscall(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.control.efer & efer::SCE == 0 || !cpu.long_mode() || cpu.mode != Mode::Bits64 {
        return Err(cpu.raise(Exception::ud()));
    }
    cpu.step_by_new_flags();
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

/// Executes SYSENTER (SDM vol. 2B).
pub(super) fn sysenter(cpu: &mut Cpu, _op: &Op) -> Done {
    let selector = cpu.msrs.sysenter_cs as u16 & !3;
    if cpu.control.cr0 & cr0::PE == 0 || selector == 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let long = cpu.long_mode();
    let mask = if long { u64::MAX } else { 0xffff_ffff };
    cpu.segments.data[seg::CS] = Cpu::flat_segment(selector, true, long, 0);
    cpu.segments.data[seg::SS] = Cpu::flat_segment(selector.wrapping_add(8), false, false, 0);
    cpu.rflags &= !(rflags::VM | rflags::IF | rflags::RF);
    cpu.cpl = 0;
    cpu.gpr[4] = cpu.msrs.sysenter_esp & mask;
    cpu.set_ip(cpu.msrs.sysenter_eip & mask);
    cpu.refresh_mode();
    Ok(Flow::Attend)
}

/// Executes SYSEXIT; `op.aux`: to 64-bit code.
pub(super) fn sysexit(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let base = cpu.msrs.sysenter_cs as u16 & !3;
    let to_64 = op.aux != 0;
    let (ip, sp) = (cpu.gpr[2], cpu.gpr[1]);
    let canonical = !to_64 || is_canonical(ip) && is_canonical(sp);
    if cpu.control.cr0 & cr0::PE == 0 || base == 0 || !canonical {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let mask = if to_64 { u64::MAX } else { 0xffff_ffff };
    let cs = base.wrapping_add(if to_64 { 32 } else { 16 }) | 3;
    cpu.segments.data[seg::CS] = Cpu::flat_segment(cs, true, to_64, 3);
    cpu.segments.data[seg::SS] = Cpu::flat_segment(cs.wrapping_add(8), false, false, 3);
    cpu.cpl = 3;
    cpu.gpr[4] = sp & mask;
    cpu.set_ip(ip & mask);
    cpu.refresh_mode();
    Ok(Flow::Attend)
}
