//! Values that come neither from registers nor from memory: virtual time, random numbers, counters.
//!
//! All are functions of the study, so a run repeats: time is the node's virtual clock, and the random generator is seeded
//! (`ops/random.rs`).

use nodescope_x86::Exception;
use nodescope_x86::bits::{cr4, rflags};

use crate::cpu::Cpu;
use crate::op::{Done, Flow, Op};

pub(super) fn rdtsc<const AUX: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.cpl != 0 && cpu.control.cr4 & cr4::TSD != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let tsc = cpu.now().wrapping_add(cpu.time.tsc_offset);
    cpu.gpr[0] = tsc & 0xffff_ffff;
    cpu.gpr[2] = tsc >> 32;
    if AUX {
        cpu.gpr[1] = cpu.msrs.tsc_aux & 0xffff_ffff;
    }
    let ip = cpu.next_ip(op);
    cpu.set_ip(ip);
    Ok(Flow::Branch)
}

pub(super) fn rdpmc(cpu: &mut Cpu, _op: &Op) -> Done {
    Err(cpu.raise(Exception::gp(0)))
}

pub(super) fn random(cpu: &mut Cpu, op: &Op) -> Done {
    cpu.time.random_draws += 1;
    let value = cpu.random.value(cpu.time.random_draws);
    match op.aux {
        2 => cpu.set_reg(op.dst, value as u16),
        4 => cpu.set_reg(op.dst, value as u32),
        _ => cpu.set_reg(op.dst, value),
    }
    cpu.set_status_flags(rflags::CF);
    Ok(Flow::Next)
}
