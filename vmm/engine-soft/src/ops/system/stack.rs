//! The stack as segment pushes and far transfers use it: at the width of the stack segment, in any mode.

use nodescope_x86::state::seg;

use crate::cpu::{Cpu, Mode};
use crate::op::Trap;

/// Returns the linear address of the top of the stack (for a negative `delta`, of the new top) and the new stack pointer, after moving it
/// by `delta` bytes at the stack's width.
pub(super) fn stack(cpu: &Cpu, delta: i64) -> (u64, u64) {
    let ss = cpu.segments.data[seg::SS];
    let (mask, base) = match cpu.mode {
        Mode::Bits64 => (u64::MAX, 0),
        _ if ss.default_32() => (0xffff_ffff, ss.base),
        _ => (0xffff, ss.base),
    };
    let old = cpu.gpr[4];
    let new = old.wrapping_add(delta as u64) & mask;
    let at = if delta < 0 { new } else { old & mask };
    (base.wrapping_add(at), old & !mask | new)
}

pub(super) fn push(cpu: &mut Cpu, size: u32, value: u64) -> Result<(), Trap> {
    let (at, sp) = stack(cpu, -i64::from(size));
    match size {
        2 => cpu.store(at, value as u16)?,
        4 => cpu.store(at, value as u32)?,
        _ => cpu.store(at, value)?,
    }
    cpu.gpr[4] = sp;
    Ok(())
}

pub(super) fn peek(cpu: &mut Cpu, size: u32, index: u32) -> Result<u64, Trap> {
    let (at, _) = stack(cpu, i64::from(size * index));
    let at = at.wrapping_add(u64::from(size * index));
    Ok(match size {
        2 => cpu.load::<u16>(at)?.into(),
        4 => cpu.load::<u32>(at)?.into(),
        _ => cpu.load::<u64>(at)?,
    })
}
