//! String instructions: MOVS, STOS, LODS, SCAS, CMPS, INS, OUTS, single and repeated (SDM vol. 1 §7.3.9, vol. 2B REP).
//!
//! RSI, RDI and RCX change with each element. A fault or an interrupt leaves them at the next element, and RIP at the instruction. A
//! handler does at most [`CHUNK`] elements; an unfinished instruction returns without advancing RIP and is not counted as retired. Copies
//! and fills work on ranges of memory in which the fast path would hit: pages, or lines while a model is attached. The model therefore sees
//! the references of single accesses.

use iced_x86::Mnemonic;
use nodescope_x86::bits::rflags;
use nodescope_x86::state::seg::ES;

use super::integer::host::{Binary, Sub};
use super::integer::operand::{Width, by_width};
use super::system::io_allowed;
use crate::cpu::{Cpu, Mode};
use crate::lower::{Lowering, segment};
use crate::op::{Done, Flow, Handler, Op, Trap, attr};

const RAX: u8 = 0;
const RCX: u8 = 8;
const RDX: u8 = 2 * 8;
const RSI: u8 = 6 * 8;
const RDI: u8 = 7 * 8;

/// Maximum number of elements of a repeated instruction that are processed before a check for interrupts.
const CHUNK: u64 = 4096;

/// Nominal throughput of fast-string copies and fills: 32 bytes a cycle (Intel Optimization Reference Manual, "REP
/// MOVSB/STOSB enhancement").
pub const FAST_STRING_BYTES_PER_CYCLE: u64 = 32;

/// Nominal cycles of an element of repeated LODS, SCAS and CMPS, which have no fast form.
const SLOW_STRING_CYCLES: u64 = 2;

/// Address size: the width in which RSI, RDI and RCX are read and written.
trait Addressing {
    /// Greatest offset of the address size.
    const MAX: u64;
    fn get(cpu: &Cpu, register: u8) -> u64;
    fn set(cpu: &mut Cpu, register: u8, value: u64);
}

impl<T: Width> Addressing for T {
    const MAX: u64 = T::ONES;
    #[inline(always)]
    fn get(cpu: &Cpu, register: u8) -> u64 {
        cpu.reg::<T>(register).to_u64()
    }
    #[inline(always)]
    fn set(cpu: &mut Cpu, register: u8, value: u64) {
        cpu.set_reg(register, T::from_u64(value));
    }
}

/// Returns the linear address of an offset in a segment.
#[inline(always)]
fn linear(cpu: &Cpu, segment: usize, offset: u64) -> u64 {
    let sum = cpu.segment_base[segment].wrapping_add(offset);
    if cpu.mode == Mode::Bits64 {
        sum
    } else {
        sum & 0xffff_ffff
    }
}

#[inline(always)]
fn source<A: Addressing>(cpu: &Cpu, op: &Op) -> u64 {
    linear(cpu, op.segment.into(), A::get(cpu, RSI))
}

#[inline(always)]
fn destination<A: Addressing>(cpu: &Cpu) -> u64 {
    linear(cpu, ES, A::get(cpu, RDI))
}

/// Advances a pointer by `elements`, backward if DF is set.
#[inline(always)]
fn advance<A: Addressing, T: Width>(cpu: &mut Cpu, register: u8, elements: u64) {
    let bytes = elements * T::BYTES as u64;
    let at = A::get(cpu, register);
    let to = if cpu.rflags & rflags::DF == 0 {
        at.wrapping_add(bytes)
    } else {
        at.wrapping_sub(bytes)
    };
    A::set(cpu, register, to);
}

#[inline(always)]
fn count_accesses(cpu: &mut Cpu, loads: u64, stores: u64) {
    if cpu.attached {
        cpu.count_accesses(loads, stores);
    }
}

/// Effect of a string instruction on its elements.
trait Action {
    /// Returns the cycles added for `elements` of a repeated instruction.
    fn cycles<T: Width>(elements: u64) -> u64;
    /// Processes one element; changes nothing where it fails.
    fn one<A: Addressing, T: Width>(cpu: &mut Cpu, op: &Op) -> Result<(), Trap>;
    /// Processes several elements at once, at most `limit`, as long as no access can fault or must be reported. Called with DF clear.
    /// Returns the number of elements.
    #[inline(always)]
    fn bulk<A: Addressing, T: Width>(_: &mut Cpu, _: &Op, _limit: u64) -> u64 {
        0
    }
    /// Returns whether the repetition ends after this element although the count is not zero.
    #[inline(always)]
    fn ends(_: &Cpu, _: &Op) -> bool {
        false
    }
}

struct Movs;
struct Stos;
struct Lods;
struct Scas;
struct Cmps;

/// Returns the number of elements of `T` that fit in `room` bytes of a range before the offset in `register` wraps.
#[inline(always)]
fn fit<A: Addressing, T: Width>(cpu: &Cpu, register: u8, room: usize) -> u64 {
    let size = T::BYTES as u64;
    (room as u64 / size).min((A::MAX - A::get(cpu, register)) / size)
}

impl Action for Movs {
    fn cycles<T: Width>(elements: u64) -> u64 {
        elements * T::BYTES as u64 / FAST_STRING_BYTES_PER_CYCLE
    }

    #[inline(always)]
    fn one<A: Addressing, T: Width>(cpu: &mut Cpu, op: &Op) -> Result<(), Trap> {
        let value: T = cpu.load(source::<A>(cpu, op))?;
        cpu.store(destination::<A>(cpu), value)?;
        count_accesses(cpu, 1, 1);
        advance::<A, T>(cpu, RSI, 1);
        advance::<A, T>(cpu, RDI, 1);
        Ok(())
    }

    #[inline(always)]
    fn bulk<A: Addressing, T: Width>(cpu: &mut Cpu, op: &Op, limit: u64) -> u64 {
        let Some((from, from_room)) = cpu.direct_read_range(source::<A>(cpu, op)) else {
            return 0;
        };
        let Some((to, to_room)) = cpu.direct_write_range(destination::<A>(cpu)) else {
            return 0;
        };
        let n = fit::<A, T>(cpu, RSI, from_room)
            .min(fit::<A, T>(cpu, RDI, to_room))
            .min(limit);
        let bytes = n as usize * T::BYTES;
        if (to as usize).wrapping_sub(from as usize) < bytes {
            // The destination overtakes the source: elements that were written are read again, in order.
            let (from, to) = (from.cast::<T>(), to.cast::<T>());
            for i in 0..n as usize {
                // SAFETY: the ranges are guest RAM of at least `bytes` bytes; any pattern is a valid T.
                unsafe { to.add(i).write_unaligned(from.add(i).read_unaligned()) };
            }
        } else {
            // SAFETY: as above; `copy` allows overlap. The destination does not overtake the source, so the result is that of the guest's
            // loop.
            unsafe { std::ptr::copy(from, to, bytes) };
        }
        count_accesses(cpu, n, n);
        advance::<A, T>(cpu, RSI, n);
        advance::<A, T>(cpu, RDI, n);
        n
    }
}

impl Action for Stos {
    fn cycles<T: Width>(elements: u64) -> u64 {
        elements * T::BYTES as u64 / FAST_STRING_BYTES_PER_CYCLE
    }

    #[inline(always)]
    fn one<A: Addressing, T: Width>(cpu: &mut Cpu, _: &Op) -> Result<(), Trap> {
        let value: T = cpu.reg(RAX);
        cpu.store(destination::<A>(cpu), value)?;
        count_accesses(cpu, 0, 1);
        advance::<A, T>(cpu, RDI, 1);
        Ok(())
    }

    #[inline(always)]
    fn bulk<A: Addressing, T: Width>(cpu: &mut Cpu, _: &Op, limit: u64) -> u64 {
        let Some((to, room)) = cpu.direct_write_range(destination::<A>(cpu)) else {
            return 0;
        };
        let n = fit::<A, T>(cpu, RDI, room).min(limit);
        let value: T = cpu.reg(RAX);
        let to = to.cast::<T>();
        for i in 0..n as usize {
            // SAFETY: the range is guest RAM of at least `n` elements.
            unsafe { to.add(i).write_unaligned(value) };
        }
        count_accesses(cpu, 0, n);
        advance::<A, T>(cpu, RDI, n);
        n
    }
}

impl Action for Lods {
    fn cycles<T: Width>(elements: u64) -> u64 {
        elements * SLOW_STRING_CYCLES
    }

    #[inline(always)]
    fn one<A: Addressing, T: Width>(cpu: &mut Cpu, op: &Op) -> Result<(), Trap> {
        let value: T = cpu.load(source::<A>(cpu, op))?;
        count_accesses(cpu, 1, 0);
        cpu.set_reg(RAX, value);
        advance::<A, T>(cpu, RSI, 1);
        Ok(())
    }
}

/// Returns whether a comparison ends the repetition: REPE continues while ZF is set, REPNE while ZF is clear.
#[inline(always)]
fn comparison_ends(cpu: &Cpu, op: &Op) -> bool {
    let zero = cpu.rflags & rflags::ZF != 0;
    zero == (op.attr & attr::REPNE != 0)
}

impl Action for Scas {
    fn cycles<T: Width>(elements: u64) -> u64 {
        elements * SLOW_STRING_CYCLES
    }

    #[inline(always)]
    fn one<A: Addressing, T: Width>(cpu: &mut Cpu, _: &Op) -> Result<(), Trap> {
        let value: T = cpu.load(destination::<A>(cpu))?;
        count_accesses(cpu, 1, 0);
        let (_, flags) = Sub::apply(cpu.reg::<T>(RAX), value, 0);
        cpu.set_status_flags(flags);
        advance::<A, T>(cpu, RDI, 1);
        Ok(())
    }

    #[inline(always)]
    fn ends(cpu: &Cpu, op: &Op) -> bool {
        comparison_ends(cpu, op)
    }
}

impl Action for Cmps {
    fn cycles<T: Width>(elements: u64) -> u64 {
        elements * SLOW_STRING_CYCLES
    }

    #[inline(always)]
    fn one<A: Addressing, T: Width>(cpu: &mut Cpu, op: &Op) -> Result<(), Trap> {
        // If both operands would fault, hardware reports the second operand (seen on Cascade Lake).
        let b: T = cpu.load(destination::<A>(cpu))?;
        let a: T = cpu.load(source::<A>(cpu, op))?;
        count_accesses(cpu, 2, 0);
        let (_, flags) = Sub::apply(a, b, 0);
        cpu.set_status_flags(flags);
        advance::<A, T>(cpu, RSI, 1);
        advance::<A, T>(cpu, RDI, 1);
        Ok(())
    }

    #[inline(always)]
    fn ends(cpu: &Cpu, op: &Op) -> bool {
        comparison_ends(cpu, op)
    }
}

fn single<O: Action, A: Addressing, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    O::one::<A, T>(cpu, op)?;
    Ok(Flow::Next)
}

fn repeated<O: Action, A: Addressing, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let mut done = 0;
    let flags = cpu.rflags;
    let outcome = repeat::<O, A, T>(cpu, op, &mut done);
    cpu.stall += O::cycles::<T>(done);
    if outcome.is_err() {
        // A fault restores the flags that SCAS and CMPS found (SDM vol. 2B, REP), though registers have moved on.
        cpu.rflags = flags;
    }
    if outcome? {
        return Ok(Flow::Next);
    }
    unfinished(cpu, op);
    Ok(Flow::Branch)
}

/// Returns to the run loop before the instruction has retired; the instruction continues later.
fn unfinished(cpu: &mut Cpu, op: &Op) {
    cpu.set_ip(cpu.ip(op));
    // One instruction less than none.
    cpu.retire(u64::MAX);
}

/// Processes a chunk of a repeated instruction. Returns whether the instruction is finished. `done` counts elements, including those before
/// a fault.
#[inline(always)]
fn repeat<O: Action, A: Addressing, T: Width>(
    cpu: &mut Cpu,
    op: &Op,
    done: &mut u64,
) -> Result<bool, Trap> {
    let forward = cpu.rflags & rflags::DF == 0;
    let mut left = A::get(cpu, RCX);
    while left != 0 {
        if *done >= CHUNK || *done > 0 && cpu.touched_platform {
            return Ok(false);
        }
        // One element first: it brings the page (and the line) into the TLB.
        O::one::<A, T>(cpu, op)?;
        *done += 1;
        left -= 1;
        A::set(cpu, RCX, left);
        if O::ends(cpu, op) {
            return Ok(true);
        }
        if forward && left != 0 {
            let n = O::bulk::<A, T>(cpu, op, left.min(CHUNK.saturating_sub(*done)));
            *done += n;
            left -= n;
            A::set(cpu, RCX, left);
        }
    }
    Ok(true)
}

/// Executes INS (`INPUT`) and OUTS: one element a call, since every element reaches the platform.
fn port<const INPUT: bool, A: Addressing, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let repeat = op.attr & (attr::REP | attr::REPNE) != 0;
    let left = A::get(cpu, RCX);
    if repeat && left == 0 {
        return Ok(Flow::Next);
    }
    let port: u16 = cpu.reg(RDX);
    io_allowed(cpu, port, T::BYTES as u32)?;
    let (id, now) = (cpu.id, cpu.now());
    if INPUT {
        let to = destination::<A>(cpu);
        cpu.probe_write(to, T::BYTES)?;
        let mut data = [0; 8];
        cpu.platform()
            .port_read(id, now, port, &mut data[..T::BYTES]);
        cpu.store(to, T::from_u64(u64::from_le_bytes(data)))?;
        count_accesses(cpu, 0, 1);
        advance::<A, T>(cpu, RDI, 1);
    } else {
        let value: T = cpu.load(source::<A>(cpu, op))?;
        let data = value.to_u64().to_le_bytes();
        cpu.platform().port_write(id, now, port, &data[..T::BYTES]);
        count_accesses(cpu, 1, 0);
        advance::<A, T>(cpu, RSI, 1);
    }
    if repeat {
        A::set(cpu, RCX, left - 1);
        if left > 1 {
            unfinished(cpu, op);
            return Ok(Flow::Attend);
        }
    }
    cpu.set_ip(cpu.next_ip(op));
    Ok(Flow::Attend)
}

/// Chooses the handler for an address size of 8, 4 or else 2 bytes.
macro_rules! by_address {
    ($bytes:expr, $a:ident => $handler:expr) => {
        match $bytes {
            8 => {
                type $a = u64;
                $handler
            }
            4 => {
                type $a = u32;
                $handler
            }
            _ => {
                type $a = u16;
                $handler
            }
        }
    };
}

fn lower_action<O: Action>(l: &mut Lowering<'_>, width: usize) -> Option<Handler> {
    let address = take_memory(l)?;
    if l.op.attr & (attr::REP | attr::REPNE) != 0 {
        by_address!(address, A => by_width!(width, T => repeated::<O, A, T>))
    } else {
        by_address!(address, A => by_width!(width, T => single::<O, A, T>))
    }
}

/// Stores the source's segment in the operation. Returns the address size in bytes; None without a memory operand.
fn take_memory(l: &mut Lowering<'_>) -> Option<usize> {
    use iced_x86::OpKind::*;
    l.op.segment = segment(l.instruction.memory_segment(), l.mode);
    (0..l.instruction.op_count()).find_map(|n| match l.instruction.op_kind(n) {
        MemorySegRSI | MemorySegRDI | MemoryESRDI => Some(8),
        MemorySegESI | MemorySegEDI | MemoryESEDI => Some(4),
        MemorySegSI | MemorySegDI | MemoryESDI => Some(2),
        _ => None,
    })
}

/// Lowers string instructions.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    if !l.instruction.is_string_instruction() {
        return None;
    }
    let mnemonic = l.instruction.mnemonic();
    let width = match mnemonic {
        Movsb | Stosb | Lodsb | Scasb | Cmpsb | Insb | Outsb => 1,
        Movsw | Stosw | Lodsw | Scasw | Cmpsw | Insw | Outsw => 2,
        Movsd | Stosd | Lodsd | Scasd | Cmpsd | Insd | Outsd => 4,
        Movsq | Stosq | Lodsq | Scasq | Cmpsq => 8,
        _ => return None,
    };
    match mnemonic {
        Movsb | Movsw | Movsd | Movsq => lower_action::<Movs>(l, width),
        Stosb | Stosw | Stosd | Stosq => lower_action::<Stos>(l, width),
        Lodsb | Lodsw | Lodsd | Lodsq => lower_action::<Lods>(l, width),
        Scasb | Scasw | Scasd | Scasq => lower_action::<Scas>(l, width),
        Cmpsb | Cmpsw | Cmpsd | Cmpsq => lower_action::<Cmps>(l, width),
        Insb | Insw | Insd => {
            let address = take_memory(l)?;
            by_address!(address, A => by_width!(width, T => port::<true, A, T>))
        }
        _ => {
            let address = take_memory(l)?;
            by_address!(address, A => by_width!(width, T => port::<false, A, T>))
        }
    }
}
