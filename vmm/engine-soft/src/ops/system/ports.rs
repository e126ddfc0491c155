//! IN and OUT, and the permission to use a port.

use iced_x86::{Mnemonic, OpKind};
use nodescope_x86::Exception;
use nodescope_x86::bits::cr0;

use super::{attend, cpuid};
use crate::cpu::Cpu;
use crate::debug::AccessKind;
use crate::lower::Lowering;
use crate::op::{Done, Handler, Op, Trap};

/// Lowers IN and OUT; None for instructions of other files.
pub(super) fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let i = l.instruction;
    let register = |n: u32| i.op_register(n);
    let handler: Handler = match i.mnemonic() {
        In | Out => {
            let data = if i.mnemonic() == In {
                register(0)
            } else {
                register(1)
            };
            let port = if i.mnemonic() == In {
                i.op1_kind()
            } else {
                i.op0_kind()
            };
            l.op.aux = data.size() as u32;
            if port == OpKind::Register {
                l.op.src2 = 1;
            } else {
                l.op.imm = u64::from(i.immediate8());
            }
            if i.mnemonic() == In { input } else { output }
        }
        _ => return None,
    };
    Some(handler)
}

/// Raises `#GP` if a port may not be used. Otherwise records a match with a breakpoint on the port, if there is one.
pub fn io_allowed(cpu: &mut Cpu, port: u16, size: u32) -> Result<(), Trap> {
    check_port(cpu, port, size)?;
    cpu.watch_access(port.into(), size as usize, AccessKind::Port);
    Ok(())
}

fn check_port(cpu: &mut Cpu, port: u16, size: u32) -> Result<(), Trap> {
    let iopl = (cpu.rflags >> 12 & 3) as u8;
    if cpu.control.cr0 & cr0::PE == 0 || cpu.cpl <= iopl {
        return Ok(());
    }
    // The TSS's I/O permission bitmap (SDM vol. 1 §19.5.2).
    let tr = cpu.segments.tr;
    let fault = Exception::gp(0);
    if tr.limit < 0x67 {
        return Err(cpu.raise(fault));
    }
    let map = cpu.as_supervisor(|c| c.load::<u16>(tr.base.wrapping_add(0x66)))?;
    let at = u64::from(map) + u64::from(port / 8);
    if at + 1 > u64::from(tr.limit) {
        return Err(cpu.raise(fault));
    }
    let bits = cpu.as_supervisor(|c| c.load::<u16>(tr.base.wrapping_add(at)))?;
    if bits >> (port % 8) & ((1 << size) - 1) != 0 {
        return Err(cpu.raise(fault));
    }
    Ok(())
}

fn port(cpu: &Cpu, op: &Op) -> u16 {
    if op.src2 != 0 {
        cpu.gpr[2] as u16
    } else {
        op.imm as u16
    }
}

fn input(cpu: &mut Cpu, op: &Op) -> Done {
    let port = port(cpu, op);
    io_allowed(cpu, port, op.aux)?;
    let mut data = [0; 4];
    let (id, now) = (cpu.id, cpu.now());
    cpu.platform()
        .port_read(id, now, port, &mut data[..op.aux as usize]);
    cpu.touched_platform = true;
    let value = u32::from_le_bytes(data);
    match op.aux {
        1 => cpu.set_reg::<u8>(0, value as u8),
        2 => cpu.set_reg::<u16>(0, value as u16),
        _ => cpu.set_reg::<u32>(0, value),
    }
    attend(cpu, op)
}

fn output(cpu: &mut Cpu, op: &Op) -> Done {
    let port = port(cpu, op);
    io_allowed(cpu, port, op.aux)?;
    if cpuid::rings(cpu, port, op.aux) {
        cpuid::hypercall(cpu);
        return attend(cpu, op);
    }
    let data = (cpu.gpr[0] as u32).to_le_bytes();
    let (id, now) = (cpu.id, cpu.now());
    cpu.platform()
        .port_write(id, now, port, &data[..op.aux as usize]);
    cpu.touched_platform = true;
    attend(cpu, op)
}
