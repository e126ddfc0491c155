//! Instructions on interrupts: the mask flag, HLT, INT, IRET.
//!
//! `deliver.rs` has the delivery itself (gates, stacks, error codes).

use iced_x86::Mnemonic;
use nodescope_x86::Exception;
use nodescope_x86::bits::{cr0, rflags};
use nodescope_x86::state::InterruptShadow;

use super::{attend, privileged};
use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op, Trap};

/// Lowers HLT, CLI, STI, INT n, INT1, INT3, INTO, IRET; None for instructions of other files.
pub(super) fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let i = l.instruction;
    let handler: Handler = match i.mnemonic() {
        Hlt => hlt,
        Cli => cli,
        Sti => sti,
        Int3 => int3,
        Into => into,
        Int => {
            l.op.imm = u64::from(i.immediate8());
            int_n
        }
        Int1 => int1,
        Iret | Iretd | Iretq => {
            l.op.aux = match i.mnemonic() {
                Iret => 2,
                Iretd => 4,
                _ => 8,
            };
            iret
        }
        _ => return None,
    };
    Some(handler)
}

fn may_change_interrupts(cpu: &mut Cpu) -> Result<(), Trap> {
    let iopl = (cpu.rflags >> 12 & 3) as u8;
    if cpu.cpl <= iopl || cpu.control.cr0 & cr0::PE == 0 {
        Ok(())
    } else {
        Err(cpu.raise(Exception::gp(0)))
    }
}

fn cli(cpu: &mut Cpu, op: &Op) -> Done {
    may_change_interrupts(cpu)?;
    cpu.rflags &= !rflags::IF;
    attend(cpu, op)
}

fn sti(cpu: &mut Cpu, op: &Op) -> Done {
    may_change_interrupts(cpu)?;
    if cpu.rflags & rflags::IF == 0 {
        cpu.rflags |= rflags::IF;
        cpu.events.shadow = InterruptShadow::Sti;
    }
    attend(cpu, op)
}

fn hlt(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    attend(cpu, op)?;
    Ok(Flow::Halt)
}

fn software(cpu: &mut Cpu, op: &Op, vector: u8) -> Done {
    deliver_behind(cpu, op, |cpu| cpu.software_interrupt(vector))
}

/// Delivers an event whose handler returns to the next instruction.
fn deliver_behind(
    cpu: &mut Cpu,
    op: &Op,
    deliver: impl FnOnce(&mut Cpu) -> Result<(), Trap>,
) -> Done {
    cpu.step_by_new_flags();
    let start = cpu.gpr[crate::op::RIP as usize];
    let next = cpu.next_ip(op);
    cpu.set_ip(cpu.wrap_ip(next));
    if let Err(trap) = deliver(cpu) {
        // The fault belongs to the INT instruction itself.
        cpu.set_ip(start);
        return Err(trap);
    }
    Ok(Flow::Attend)
}

fn int3(cpu: &mut Cpu, op: &Op) -> Done {
    software(cpu, op, 3)
}

fn into(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.rflags & rflags::OF == 0 {
        return attend(cpu, op);
    }
    software(cpu, op, 4)
}

fn int_n(cpu: &mut Cpu, op: &Op) -> Done {
    software(cpu, op, op.imm as u8)
}

/// Executes INT1: `#DB` as a trap, whatever the gate's privilege (SDM vol. 2A, INT n). DR6 is unchanged. The trap takes the place of the
/// pending one of a MOV SS or POP SS before INT1.
fn int1(cpu: &mut Cpu, op: &Op) -> Done {
    cpu.drop_pending_breakpoints();
    deliver_behind(cpu, op, Cpu::debug_interrupt)
}

fn iret(cpu: &mut Cpu, op: &Op) -> Done {
    cpu.interrupt_return(op.aux.into())?;
    Ok(Flow::Attend)
}
