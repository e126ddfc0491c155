//! Control and debug registers, and the instructions that change a bit of such a register or drop cached translations.

use iced_x86::{Mnemonic, OpKind};
use nodescope_x86::Exception;
use nodescope_x86::bits::{cr0, cr4, dr6, dr7, efer};

use super::tables::selector_operand;
use super::{attend, privileged};
use crate::cpu::{Cpu, Mode};
use crate::lower::{Lowering, register_offset};
use crate::op::{Done, Flow, Handler, Op, Trap};

/// Lowers MOV to and from control and debug registers, CLTS, LMSW, INVLPG, cache flushes; None for instructions of other files.
pub(super) fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let i = l.instruction;
    let register = |n: u32| i.op_register(n);
    let handler: Handler = match i.mnemonic() {
        Clts => clts,
        Invlpg => invlpg,
        Wbinvd | Invd => cache_flush,
        Wbnoinvd => cache_flush,
        Lmsw => {
            if i.op0_kind() == OpKind::Register {
                l.op.src = register_offset(register(0));
                l.op.aux = 1;
            }
            lmsw
        }
        Mov if i.op_count() == 2
            && i.op0_kind() == OpKind::Register
            && i.op1_kind() == OpKind::Register =>
        {
            let (a, b) = (register(0), register(1));
            if a.is_cr() {
                (l.op.dst, l.op.src) = (a.number() as u8, register_offset(b));
                write_cr
            } else if b.is_cr() {
                (l.op.src, l.op.dst) = (b.number() as u8, register_offset(a));
                read_cr
            } else if a.is_dr() {
                (l.op.dst, l.op.src) = (a.number() as u8, register_offset(b));
                write_dr
            } else if b.is_dr() {
                (l.op.src, l.op.dst) = (b.number() as u8, register_offset(a));
                read_dr
            } else {
                return None;
            }
        }
        _ => return None,
    };
    Some(handler)
}

/// Returns a general register in the width of moves from and to control and debug registers: 64 bits in 64-bit mode, else 32.
fn native(cpu: &Cpu, register: u8) -> u64 {
    if cpu.mode == Mode::Bits64 {
        cpu.reg::<u64>(register)
    } else {
        cpu.reg::<u32>(register).into()
    }
}

/// Sets a general register, in the width of [`native`].
fn set_native(cpu: &mut Cpu, register: u8, value: u64) {
    if cpu.mode == Mode::Bits64 {
        cpu.set_reg::<u64>(register, value)
    } else {
        cpu.set_reg::<u32>(register, value as u32)
    }
}

fn read_cr(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let value = match op.src {
        0 => cpu.control.cr0,
        2 => cpu.control.cr2,
        3 => cpu.control.cr3,
        4 => cpu.control.cr4,
        8 => {
            let id = cpu.id;
            cpu.platform().task_priority(id).into()
        }
        _ => return Err(cpu.raise(Exception::ud())),
    };
    set_native(cpu, op.dst, value);
    Ok(Flow::Next)
}

fn write_cr(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let value = native(cpu, op.src);
    match op.dst {
        0 => write_cr0(cpu, value)?,
        2 => cpu.control.cr2 = value,
        3 => {
            // Bit 63 (no flush) needs PCID, which the template hides; reserved address bits fault.
            if cpu.long_mode() && value >> 52 != 0 {
                return Err(cpu.raise(Exception::gp(0)));
            }
            cpu.control.cr3 = value;
            cpu.forget_local_translations();
            if cpu.attached {
                cpu.change_context();
            }
        }
        4 => write_cr4(cpu, value)?,
        8 => {
            if value > 15 {
                return Err(cpu.raise(Exception::gp(0)));
            }
            cpu.touched_platform = true;
            let (id, now) = (cpu.id, cpu.now());
            cpu.platform().set_task_priority(id, now, value as u8);
        }
        _ => return Err(cpu.raise(Exception::ud())),
    }
    attend(cpu, op)
}

fn write_cr0(cpu: &mut Cpu, value: u64) -> Result<(), Trap> {
    let bad = value >> 32 != 0
        || value & cr0::PG != 0 && value & cr0::PE == 0
        || value & cr0::NW != 0 && value & cr0::CD == 0
        || value & cr0::PG != 0
            && cpu.control.efer & efer::LME != 0
            && cpu.control.cr4 & cr4::PAE == 0
        || value & cr0::PG == 0 && cpu.mode == Mode::Bits64;
    if bad {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let known = cr0::PE
        | cr0::MP
        | cr0::EM
        | cr0::TS
        | cr0::NE
        | cr0::WP
        | cr0::AM
        | cr0::NW
        | cr0::CD
        | cr0::PG;
    let changed = value ^ cpu.control.cr0;
    cpu.control.cr0 = value & known | cr0::ET;
    if value & cr0::PE == 0 {
        cpu.cpl = 0;
    }
    cpu.update_long_mode();
    if changed & (cr0::PG | cr0::WP | cr0::PE) != 0 {
        cpu.forget_translations();
    }
    cpu.refresh_mode();
    Ok(())
}

/// CR4 bits that a guest may set; setting any other raises `#GP(0)` as on a processor without the feature.
const CR4_KNOWN: u64 = cr4::VME
    | cr4::PVI
    | cr4::TSD
    | cr4::DE
    | cr4::PSE
    | cr4::PAE
    | cr4::MCE
    | cr4::PGE
    | cr4::OSFXSR
    | cr4::OSXMMEXCPT
    | cr4::FSGSBASE
    | cr4::OSXSAVE
    | cr4::SMEP;

fn write_cr4(cpu: &mut Cpu, value: u64) -> Result<(), Trap> {
    if value & !CR4_KNOWN != 0 || cpu.long_mode() && value & cr4::PAE == 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let changed = value ^ cpu.control.cr4;
    cpu.control.cr4 = value;
    if changed & (cr4::PGE | cr4::PAE | cr4::PSE | cr4::SMEP) != 0 {
        cpu.forget_translations();
    }
    if changed & cr4::DE != 0 {
        cpu.refresh_breakpoints();
    }
    cpu.refresh_mode();
    Ok(())
}

fn clts(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    cpu.control.cr0 &= !cr0::TS;
    cpu.refresh_mode();
    attend(cpu, op)
}

fn lmsw(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let value = u64::from(selector_operand(cpu, op)?);
    // PE can be set, not cleared (SDM vol. 2A, LMSW).
    let new = cpu.control.cr0 & !0xe | value & 0xf;
    write_cr0(cpu, new)?;
    attend(cpu, op)
}

fn invlpg(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let linear = cpu.linear(op);
    cpu.forget_page(linear);
    attend(cpu, op)
}

fn cache_flush(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    attend(cpu, op)
}

/// Returns the number of the debug register that MOV of DR`number` accesses. DR4 and DR5 are DR6 and DR7 as long as CR4.DE is clear. Raises
/// `#UD` for numbers above 7, and for DR4 and DR5 while CR4.DE is set; `#GP` outside CPL 0; `#DB` while DR7.GD is set (SDM vol. 2B, MOV).
fn debug_register(cpu: &mut Cpu, number: u8) -> Result<u8, Trap> {
    if number > 7 {
        return Err(cpu.raise(Exception::ud()));
    }
    privileged(cpu)?;
    let extensions = cpu.control.cr4 & cr4::DE != 0;
    if matches!(number, 4 | 5) && extensions {
        return Err(cpu.raise(Exception::ud()));
    }
    cpu.guard_debug_registers()?;
    Ok(if matches!(number, 4 | 5) {
        number + 2
    } else {
        number
    })
}

fn read_dr(cpu: &mut Cpu, op: &Op) -> Done {
    let value = match debug_register(cpu, op.src)? {
        6 => cpu.debug.dr6,
        7 => cpu.debug.dr7,
        n => cpu.debug.dr[usize::from(n)],
    };
    set_native(cpu, op.dst, value);
    Ok(Flow::Next)
}

fn write_dr(cpu: &mut Cpu, op: &Op) -> Done {
    let register = debug_register(cpu, op.dst)?;
    let value = native(cpu, op.src);
    if register >= 6 && value >> 32 != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    match register {
        6 => cpu.debug.dr6 = value & dr6::CHANGES | dr6::FIXED,
        7 => cpu.debug.dr7 = value & dr7::CHANGES | dr7::FIXED,
        n => cpu.debug.dr[usize::from(n)] = value,
    }
    cpu.refresh_breakpoints();
    attend(cpu, op)
}
