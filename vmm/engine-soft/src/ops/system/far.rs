//! Far jumps, calls and returns: transfers that load CS too. Outside long mode, gates and tasks end the study in `code_segment`.

use iced_x86::{Code, Mnemonic, OpKind};
use nodescope_x86::Exception;
use nodescope_x86::bits::cr0;
use nodescope_x86::state::seg;

use super::stack::{peek, push, stack};
use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::memory::is_canonical;
use crate::op::{Done, Flow, Handler, Op, Trap};

/// Lowers far JMP, CALL and RET; None for instructions of other files.
pub(super) fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let i = l.instruction;
    let handler: Handler = match i.mnemonic() {
        Retf => {
            l.op.imm = if i.op_count() > 0 {
                u64::from(i.immediate16())
            } else {
                0
            };
            l.op.aux = match i.code() {
                Code::Retfw | Code::Retfw_imm16 => 2,
                Code::Retfd | Code::Retfd_imm16 => 4,
                _ => 8,
            };
            return_far
        }
        Jmp | Call if i.is_jmp_far() || i.is_call_far() => {
            let far = if i.op0_kind() == OpKind::FarBranch16 {
                u32::from(i.far_branch16())
            } else {
                i.far_branch32()
            };
            l.op.imm = u64::from(far) | u64::from(i.far_branch_selector()) << 32;
            // Call: operand size for the pushes.
            l.op.aux = if i.op0_kind() == OpKind::FarBranch16 {
                2
            } else {
                4
            };
            if i.is_jmp_far() {
                jump_far_immediate
            } else {
                call_far_immediate
            }
        }
        Jmp | Call if i.is_jmp_far_indirect() || i.is_call_far_indirect() => {
            l.op.aux = match i.code() {
                Code::Jmp_m1616 | Code::Call_m1616 => 2,
                Code::Jmp_m1632 | Code::Call_m1632 => 4,
                _ => 8,
            };
            if i.is_jmp_far_indirect() {
                jump_far_memory
            } else {
                call_far_memory
            }
        }
        _ => return None,
    };
    Some(handler)
}

fn return_far(cpu: &mut Cpu, op: &Op) -> Done {
    let size = op.aux;
    let ip = peek(cpu, size, 0)?;
    let selector = peek(cpu, size, 1)? as u16;
    if cpu.control.cr0 & cr0::PE == 0 {
        real_code_segment(cpu, selector);
        let sp = stack(cpu, i64::from(2 * size) + op.imm as i64).1;
        cpu.gpr[4] = sp;
        cpu.set_ip(ip & 0xffff);
        cpu.refresh_mode();
        return Ok(Flow::Attend);
    }
    let cs = cpu.code_segment(selector, true)?;
    let new_cpl = (cs.selector & 3) as u8;
    if cs.long() && !is_canonical(ip) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let sp = stack(cpu, i64::from(2 * size) + op.imm as i64).1;
    if new_cpl == cpu.cpl {
        cpu.gpr[4] = sp;
    } else {
        let (at, _) = stack(cpu, 0);
        let at = at.wrapping_add(u64::from(2 * size) + op.imm);
        let (new_sp, ss) = match size {
            2 => (
                cpu.load::<u16>(at)?.into(),
                cpu.load::<u16>(at.wrapping_add(2))?,
            ),
            4 => (
                cpu.load::<u32>(at)?.into(),
                cpu.load::<u16>(at.wrapping_add(4))?,
            ),
            _ => (cpu.load::<u64>(at)?, cpu.load::<u16>(at.wrapping_add(8))?),
        };
        let ss = cpu.return_stack_segment(ss, new_cpl, cs.long())?;
        cpu.segments.data[seg::SS] = ss;
        cpu.gpr[4] = new_sp.wrapping_add(op.imm);
        cpu.cpl = new_cpl;
        cpu.drop_inner_segments();
    }
    cpu.segments.data[seg::CS] = cs;
    cpu.refresh_mode();
    let ip = cpu.wrap_ip(ip);
    cpu.set_ip(ip);
    Ok(Flow::Attend)
}

fn real_code_segment(cpu: &mut Cpu, selector: u16) {
    let cs = &mut cpu.segments.data[seg::CS];
    cs.selector = selector;
    cs.base = u64::from(selector) << 4;
}

fn jump_far(cpu: &mut Cpu, selector: u16, ip: u64) -> Done {
    if cpu.control.cr0 & cr0::PE == 0 {
        real_code_segment(cpu, selector);
        cpu.set_ip(ip);
        cpu.refresh_mode();
        return Ok(Flow::Attend);
    }
    let (cs, ip) = match cpu.call_gate(selector)? {
        Some((selector, ip)) => (cpu.gate_segment(selector, false)?, ip),
        None => (cpu.code_segment(selector, false)?, ip),
    };
    if cs.long() && cpu.long_mode() && !is_canonical(ip) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.segments.data[seg::CS] = cs;
    cpu.refresh_mode();
    let ip = cpu.wrap_ip(ip);
    cpu.set_ip(ip);
    Ok(Flow::Attend)
}

fn jump_far_immediate(cpu: &mut Cpu, op: &Op) -> Done {
    jump_far(cpu, (op.imm >> 32) as u16, op.imm & 0xffff_ffff)
}

/// Returns the selector and the offset of a far pointer in memory. The selector lies behind the offset, which has `op.aux` bytes.
pub(super) fn far_pointer(cpu: &mut Cpu, op: &Op) -> Result<(u16, u64), Trap> {
    let at = cpu.linear(op);
    let ip = match op.aux {
        2 => cpu.load::<u16>(at)?.into(),
        4 => cpu.load::<u32>(at)?.into(),
        _ => cpu.load::<u64>(at)?,
    };
    Ok((cpu.load::<u16>(at.wrapping_add(op.aux.into()))?, ip))
}

fn jump_far_memory(cpu: &mut Cpu, op: &Op) -> Done {
    let (selector, ip) = far_pointer(cpu, op)?;
    jump_far(cpu, selector, ip)
}

fn call_far(cpu: &mut Cpu, op: &Op, selector: u16, ip: u64) -> Done {
    if cpu.control.cr0 & cr0::PE != 0
        && let Some(gate) = cpu.call_gate(selector)?
    {
        cpu.call_through_gate(gate, cpu.next_ip(op))?;
        return Ok(Flow::Attend);
    }
    let old = cpu.segments.data[seg::CS].selector;
    let cs = if cpu.control.cr0 & cr0::PE == 0 {
        None
    } else {
        Some(cpu.code_segment(selector, false)?)
    };
    if cs.is_some_and(|cs| cs.long() && cpu.long_mode()) && !is_canonical(ip) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let (sp, next) = (cpu.gpr[4], cpu.next_ip(op));
    push(cpu, op.aux, old.into())?;
    if let Err(trap) = push(cpu, op.aux, next) {
        cpu.gpr[4] = sp;
        return Err(trap);
    }
    match cs {
        None => real_code_segment(cpu, selector),
        Some(cs) => cpu.segments.data[seg::CS] = cs,
    }
    cpu.refresh_mode();
    let ip = cpu.wrap_ip(ip);
    cpu.set_ip(ip);
    Ok(Flow::Attend)
}

fn call_far_immediate(cpu: &mut Cpu, op: &Op) -> Done {
    call_far(cpu, op, (op.imm >> 32) as u16, op.imm & 0xffff_ffff)
}

fn call_far_memory(cpu: &mut Cpu, op: &Op) -> Done {
    let (selector, ip) = far_pointer(cpu, op)?;
    call_far(cpu, op, selector, ip)
}
