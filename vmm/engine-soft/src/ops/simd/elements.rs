//! Loads and stores of single elements under a mask, and gathers.
//!
//! Masked-off elements are not touched and cannot fault. MASKMOVQ and MASKMOVDQU are different: they check each group of 8 bytes as a
//! whole, so that masked-off bytes can fault. A gather that faults leaves the elements before the fault in its destination and their mask
//! bits clear, so that it continues where it stopped (SDM vol. 2C, VGATHERDPS).

use iced_x86::{Mnemonic, OpKind, Register};

use crate::cpu::{Cpu, Mode};
use crate::lower::{Lowering, segment};
use crate::op::{Done, Flow, Handler, Op, Trap, attr};

use super::{need, require, x87};

#[inline(always)]
fn vector(cpu: &Cpu, n: u8) -> [u8; 32] {
    cpu.vector.0[usize::from(n & 15)]
}

#[inline(always)]
fn element<const SIZE: usize>(register: &[u8; 32], n: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..SIZE].copy_from_slice(&register[SIZE * n..SIZE * n + SIZE]);
    u64::from_le_bytes(bytes)
}

/// Returns whether the mask's sign bit selects an element.
#[inline(always)]
fn selected<const SIZE: usize>(mask: &[u8; 32], n: usize) -> bool {
    mask[SIZE * n + SIZE - 1] & 0x80 != 0
}

#[inline(always)]
fn read<const SIZE: usize>(cpu: &mut Cpu, linear: u64) -> Result<u64, Trap> {
    Ok(if SIZE == 4 {
        cpu.load::<u32>(linear)?.into()
    } else {
        cpu.load::<u64>(linear)?
    })
}

/// Executes the loads VMASKMOVPS/PD and VPMASKMOVD/Q. `dst` and `src` (the mask) are vector register numbers; `aux` is the operand's length
/// in bytes.
fn masked_load<const SIZE: usize>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::AVX)?;
    let mask = vector(cpu, op.src);
    let linear = cpu.linear(op);
    let mut value = [0; 32];
    for n in 0..op.aux as usize / SIZE {
        if selected::<SIZE>(&mask, n) {
            let v = read::<SIZE>(cpu, linear.wrapping_add((SIZE * n) as u64))?;
            value[SIZE * n..SIZE * n + SIZE].copy_from_slice(&v.to_le_bytes()[..SIZE]);
        }
    }
    cpu.vector.0[usize::from(op.dst & 15)] = value;
    Ok(Flow::Next)
}

/// Executes the stores VMASKMOVPS/PD and VPMASKMOVD/Q. `dst` is the source of the data, `src` the mask.
fn masked_store<const SIZE: usize>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::AVX)?;
    let (mask, value) = (vector(cpu, op.src), vector(cpu, op.dst));
    let linear = cpu.linear(op);
    let count = op.aux as usize / SIZE;
    let place = |n: usize| linear.wrapping_add((SIZE * n) as u64);
    let chosen = (0..count).filter(|n| selected::<SIZE>(&mask, *n));
    // All faults come before any write: the access spans the first to the last selected byte.
    if let (Some(first), Some(last)) = (chosen.clone().next(), chosen.clone().next_back()) {
        let end = place(last).wrapping_add(SIZE as u64 - 1);
        cpu.probe_write(place(first), 1)?;
        if place(first) >> 12 != end >> 12 {
            cpu.probe_write(end, 1)?;
        }
    }
    for n in chosen {
        let v = element::<SIZE>(&value, n);
        if SIZE == 4 {
            cpu.store(place(n), v as u32)?;
        } else {
            cpu.store(place(n), v)?;
        }
    }
    Ok(Flow::Next)
}

/// Executes MASKMOVDQU and VMASKMOVDQU: stores those bytes of `dst` to `[rdi]` whose bytes in `src` have the sign bit set.
fn masked_bytes<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    let (value, mask) = (vector(cpu, op.dst), vector(cpu, op.src));
    store_bytes(cpu, op, &value[..16], &mask[..16])
}

fn store_bytes(cpu: &mut Cpu, op: &Op, value: &[u8], mask: &[u8]) -> Done {
    let linear = cpu.linear(op);
    // Processors check each half as a whole, the upper half first, whatever bytes are selected.
    for half in (0..value.len() / 8).rev() {
        cpu.probe_write(linear.wrapping_add(8 * half as u64), 8)?;
    }
    let chosen = (0..value.len()).filter(|n| mask[*n] & 0x80 != 0);
    for n in chosen {
        cpu.store(linear.wrapping_add(n as u64), value[n])?;
    }
    Ok(Flow::Next)
}

/// Executes MASKMOVQ: does the same as MASKMOVDQU with MMX registers.
fn masked_mmx(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::MMX)?;
    x87::enter(cpu)?;
    x87::sync(cpu);
    // MMX register n is the significand of physical register n; the image is in stack order (SDM vol. 1 §9.2.1).
    let register = |cpu: &Cpu, n: u8| {
        let top = (cpu.fx.fsw() >> 11 & 7) as usize;
        let at = 32 + 16 * ((usize::from(n) + 8 - top) & 7);
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&cpu.fx.0[at..at + 8]);
        bytes
    };
    let (value, mask) = (register(cpu, op.dst), register(cpu, op.src));
    // The transition to MMX: top of stack 0, all registers valid.
    x87::forget(cpu);
    x87::top_to_zero(cpu);
    cpu.fx.0[4] = 0xff;
    store_bytes(cpu, op, &value, &mask)
}

/// Executes a gather of elements of `SIZE` bytes with indices of `INDEX` bytes. `dst`, `src` (the mask) and `src2` (the indices) are vector
/// register numbers; `aux` is the number of elements.
fn gather<const SIZE: usize, const INDEX: usize>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::AVX)?;
    let (dst, mask) = (usize::from(op.dst & 15), usize::from(op.src & 15));
    let index = vector(cpu, op.src2);
    let count = op.aux as usize;
    let wrap = op.attr & attr::ADDRESS_32 != 0;
    let mut loads = 0;
    for n in 0..count {
        if !selected::<SIZE>(&cpu.vector.0[mask], n) {
            cpu.vector.0[mask][SIZE * n..SIZE * n + SIZE].fill(0);
            continue;
        }
        let i = element::<INDEX>(&index, n);
        let i = if INDEX == 4 {
            i as u32 as i32 as u64
        } else {
            i
        };
        let mut offset = cpu.offset(op).wrapping_add(i << op.scale);
        if wrap {
            offset &= 0xffff_ffff;
        }
        let mut linear = cpu.segment_base[usize::from(op.segment)].wrapping_add(offset);
        if wrap && cpu.mode != Mode::Bits64 {
            linear &= 0xffff_ffff;
        }
        let v = read::<SIZE>(cpu, linear)?;
        loads += 1;
        cpu.vector.0[dst][SIZE * n..SIZE * n + SIZE].copy_from_slice(&v.to_le_bytes()[..SIZE]);
        cpu.vector.0[mask][SIZE * n..SIZE * n + SIZE].fill(0);
    }
    cpu.vector.0[mask] = [0; 32];
    cpu.vector.0[dst][SIZE * count..].fill(0);
    if cpu.attached {
        cpu.count_accesses(loads, 0);
    }
    Ok(Flow::Next)
}

/// Lowers masked moves and gathers.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let i = l.instruction;
    let number = |n: u32| i.op_register(n).number() as u8;
    l.op.aux = super::classify::memory_len(i) as u32;
    let handler: Handler = match i.mnemonic() {
        Vmaskmovps | Vpmaskmovd | Vmaskmovpd | Vpmaskmovq => {
            let single = matches!(i.mnemonic(), Vmaskmovps | Vpmaskmovd);
            let load = i.op_kind(0) == OpKind::Register;
            l.op.src = number(1);
            l.op.dst = number(if load { 0 } else { 2 });
            match (single, load) {
                (true, true) => masked_load::<4>,
                (false, true) => masked_load::<8>,
                (true, false) => masked_store::<4>,
                (false, false) => masked_store::<8>,
            }
        }
        Maskmovdqu | Vmaskmovdqu | Maskmovq => {
            // The address is DS:[rDI], not a memory operand of the usual kind.
            l.op.dst = number(1);
            l.op.src = number(2);
            l.op.base = 7;
            l.op.attr |= match i.op0_kind() {
                OpKind::MemorySegEDI => attr::ADDRESS_32,
                OpKind::MemorySegDI => attr::ADDRESS_16,
                _ => 0,
            };
            l.op.segment = segment(i.memory_segment(), l.mode);
            l.op.stores = 1;
            match i.mnemonic() {
                Maskmovdqu => masked_bytes::<{ need::SSE }>,
                Vmaskmovdqu => masked_bytes::<{ need::AVX }>,
                _ => masked_mmx,
            }
        }
        Vgatherdps | Vpgatherdd | Vgatherqps | Vpgatherqd | Vgatherdpd | Vpgatherdq
        | Vgatherqpd | Vpgatherqq => {
            let (d, x, m) = (i.op_register(0), i.memory_index(), i.op_register(2));
            l.op.dst = d.number() as u8;
            l.op.src = m.number() as u8;
            l.op.src2 = x.number() as u8;
            l.op.loads = 0;
            let (size, index, handler): (u32, u32, Handler) = match i.mnemonic() {
                Vgatherdps | Vpgatherdd => (4, 4, gather::<4, 4>),
                Vgatherqps | Vpgatherqd => (4, 8, gather::<4, 8>),
                Vgatherdpd | Vpgatherdq => (8, 4, gather::<8, 4>),
                _ => (8, 8, gather::<8, 8>),
            };
            let width = |r: Register| if r.is_ymm() { 32 } else { 16 };
            // As many elements as both the destination and the index vector hold.
            l.op.aux = (width(d) / size).min(width(x) / index);
            handler
        }
        _ => return None,
    };
    Some(handler)
}
