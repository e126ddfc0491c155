//! x87: the guest's state is in the host's x87 unit while the guest uses x87 or MMX instructions.
//!
//! Rust code for x86-64 never touches x87 or MMX registers, so the guest's state can remain in the host's unit between operations.
//! [`enter`] loads the state for the first x87 or MMX instruction. [`release`] stores it again when the vCPU stops running. The copy in
//! `cpu.fx` is current only after [`sync`] or [`release`].
//!
//! Exceptions (SDM vol. 1 §8.6): the host never executes a waiting instruction while an unmasked exception is pending. This file checks for
//! a pending exception first, and raises `#MF` in the guest instead.
//!
//! Pointers (SDM vol. 1 §8.1.8): FIP and FDP are the guest's linear instruction address and operand offset of the last
//! non-control instruction, FOP, FCS and FDS are zero, as on processors that deprecate them (CPUID.7.0:EBX\[13\]).
//! The real-mode layout of FSTENV and FSAVE is not made; 16- and 32-bit protected-mode layouts are.

use std::arch::asm;

use iced_x86::{Mnemonic, OpKind};
use nodescope_x86::bits::cr0;
use nodescope_x86::{Exception, FxImage, Vector};

use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::memory::is_canonical;
use crate::mmu::Intent;
use crate::op::{Done, Flow, Handler, Op, Trap};

use super::execute::stub;
use super::{classify, mxcsr, need, require};

/// State of the host's x87 unit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resident {
    /// True if the host's unit has the guest's state.
    live: bool,
    /// True if the control word unmasks an exception. Valid while `live`.
    unmasked: bool,
    /// True if an unmasked exception is pending. Valid while `live`.
    pending: bool,
}

const EXCEPTIONS: u16 = 0x3f;
/// Precision: the only exception that is raised after a result was stored.
const PRECISION: u16 = 0x20;
/// Bit of the status word that summarises unmasked exceptions: FSW.ES.
const SUMMARY: u16 = 0x80;

#[repr(C, align(16))]
struct Area([u8; 512]);

/// Returns whether an unmasked exception is pending.
fn pending(cpu: &Cpu) -> bool {
    if cpu.simd.x87.live {
        cpu.simd.x87.pending
    } else {
        cpu.fx.fsw() & !cpu.fx.fcw() & EXCEPTIONS != 0
    }
}

/// Raises `#MF` where an unmasked exception is pending: the first step of a waiting instruction.
#[inline]
pub fn check_pending(cpu: &mut Cpu) -> Result<(), Trap> {
    if cpu.simd.x87.live && !cpu.simd.x87.pending {
        return Ok(());
    }
    check_pending_slow(cpu)
}

#[cold]
fn check_pending_slow(cpu: &mut Cpu) -> Result<(), Trap> {
    if !pending(cpu) {
        return Ok(());
    }
    if cpu.control.cr0 & cr0::NE == 0 {
        return Err(cpu
            .unsupported("x87 exception with CR0.NE clear (reported through IRQ 13); set CR0.NE"));
    }
    Err(cpu.raise(Exception::new(Vector::X87)))
}

/// Loads the guest's state into the host's x87 unit, if it is not there yet, for a waiting instruction. Raises `#MF` if an exception is
/// pending.
#[inline(always)]
pub fn enter(cpu: &mut Cpu) -> Result<(), Trap> {
    check_pending(cpu)?;
    if !cpu.simd.x87.live {
        load(cpu);
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn load(cpu: &mut Cpu) {
    let mut area = Area([0; 512]);
    area.0[..160].copy_from_slice(cpu.fx.legacy());
    // FOP, FIP and FDP stay in `cpu.fx`; `mxcsr.rs` handles MXCSR.
    area.0[6..24].fill(0);
    area.0[24..28].copy_from_slice(&mxcsr::DEFAULT.to_le_bytes());
    area.0[28..32].fill(0);
    // SAFETY: the area is a valid, aligned FXSAVE image; XMM registers are declared as changed; compiled Rust code does not
    // use x87 registers on this architecture, and MXCSR gets the value that Rust code expects.
    unsafe {
        asm!("fxrstor64 [{}]", in(reg) &area,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack, readonly, preserves_flags));
    }
    cpu.simd.x87.live = true;
    refresh(cpu);
}

fn host_control() -> u16 {
    let mut word = 0_u16;
    // SAFETY: writes two bytes to `word`; a non-waiting instruction.
    unsafe { asm!("fnstcw [{}]", in(reg) &mut word, options(nostack, preserves_flags)) };
    word
}

fn host_status() -> u16 {
    let word: u16;
    // SAFETY: a non-waiting instruction that writes only AX.
    unsafe { asm!("fnstsw ax", out("ax") word, options(nomem, nostack, preserves_flags)) };
    word
}

/// Updates `cpu.simd.x87` after the control or status word was replaced.
fn refresh(cpu: &mut Cpu) {
    cpu.simd.x87.unmasked = !host_control() & EXCEPTIONS != 0;
    cpu.simd.x87.pending = host_status() & SUMMARY != 0;
}

/// Copies the state of the host's unit into `cpu.fx`, except the pointers, which are always current in `cpu.fx`. The host's unit keeps the
/// state.
pub fn sync(cpu: &mut Cpu) {
    if !cpu.simd.x87.live {
        return;
    }
    let mut area = Area([0; 512]);
    // SAFETY: the area is 512 bytes, aligned; a non-waiting instruction that changes no register.
    unsafe { asm!("fxsave64 [{}]", in(reg) &mut area, options(nostack, preserves_flags)) };
    cpu.fx.0[..5].copy_from_slice(&area.0[..5]);
    cpu.fx.0[32..160].copy_from_slice(&area.0[32..160]);
}

/// Empties the host's unit without saving its state: the state in `cpu.fx` becomes the guest's.
pub fn forget(cpu: &mut Cpu) {
    if cpu.simd.x87.live {
        // SAFETY: leaves the x87 unit empty and in its default mode, as the calling convention requires.
        unsafe { asm!("fninit", options(nomem, nostack, preserves_flags)) };
        cpu.simd.x87.live = false;
    }
}

/// Saves the guest's x87 state into `cpu.fx` and empties the host's x87 unit. Must be called before a thread stops running a vCPU, and
/// before the vCPU's state is read. Costs nothing if x87 was not used.
#[inline]
pub fn release(cpu: &mut Cpu) {
    if cpu.simd.x87.live {
        sync(cpu);
        forget(cpu);
    }
}

/// Returns the x87 state for [`roll_back`], in case an instruction that changes MMX registers must be undone. None if the host's unit does
/// not have the guest's state.
pub fn snapshot(cpu: &mut Cpu) -> Option<FxImage> {
    sync(cpu);
    cpu.simd.x87.live.then_some(cpu.fx)
}

/// Restores the state of a snapshot; does nothing for None.
pub fn roll_back(cpu: &mut Cpu, before: Option<FxImage>) {
    if let Some(before) = before {
        forget(cpu);
        cpu.fx = before;
    }
}

/// Undoes an instruction that may have made the transition to MMX. The result is undone, but the transition remains, as on processors.
pub fn undo_mmx(cpu: &mut Cpu, before: Option<FxImage>) {
    sync(cpu);
    let transition = cpu.fx.0[4] == 0xff && cpu.fx.fsw() & 0x3800 == 0;
    roll_back(cpu, before);
    if before.is_some() && transition {
        top_to_zero(cpu);
        cpu.fx.0[4] = 0xff;
    }
}

/// Loads the state into the host's unit again for another attempt, after [`roll_back`].
pub fn enter_again(cpu: &mut Cpu, before: Option<FxImage>) {
    if before.is_some() {
        load(cpu);
    }
}

fn word(cpu: &mut Cpu, at: usize, value: u64) {
    cpu.fx.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Records the address of the last non-control instruction (FIP).
#[inline(always)]
fn note_instruction(cpu: &mut Cpu, op: &Op) {
    let ip = cpu.ip(op);
    word(cpu, 8, ip);
}

#[inline(always)]
fn after(cpu: &mut Cpu) {
    if cpu.simd.x87.unmasked {
        cpu.simd.x87.pending = host_status() & SUMMARY != 0;
    }
}

fn call(cpu: &mut Cpu, op: &Op, memory: *mut u8) {
    // SAFETY: lowering gives the handlers that lead here only to operations with a stub, and they run from their blocks.
    let stub = unsafe { stub(op) };
    // SAFETY: the stub reads or writes at most `op.aux` bytes at `memory`, which comes from a span of that length, and the
    // flags and x87 registers of the guest, which are in place.
    unsafe { stub(cpu, memory) };
}

/// Executes an x87 instruction without a memory operand.
fn registers(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::X87)?;
    enter(cpu)?;
    note_instruction(cpu, op);
    call(cpu, op, std::ptr::null_mut());
    after(cpu);
    Ok(Flow::Next)
}

/// Executes an instruction with a memory operand that is read.
fn load_operand(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::X87)?;
    check_pending(cpu)?;
    let place = cpu.read_span(cpu.linear(op), op.aux as usize)?;
    enter(cpu)?;
    note_instruction(cpu, op);
    let offset = cpu.offset(op);
    word(cpu, 16, offset);
    call(cpu, op, place.cast_mut());
    after(cpu);
    Ok(Flow::Next)
}

/// Executes an instruction with a memory operand that is written.
fn store_operand(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::X87)?;
    check_pending(cpu)?;
    let (linear, len) = (cpu.linear(op), op.aux as usize);
    if control(cpu) & EXCEPTIONS != EXCEPTIONS {
        return store_unmasked(cpu, op, linear, len);
    }
    let place = cpu.write_span(linear, len)?;
    enter(cpu)?;
    note_instruction(cpu, op);
    let offset = cpu.offset(op);
    word(cpu, 16, offset);
    call(cpu, op, place);
    cpu.commit_span(linear, len, place)?;
    Ok(Flow::Next)
}

/// Executes a store while some exception is unmasked. If the store raises an unmasked exception, nothing is stored and no page fault is
/// raised. Precision is different: it is raised after the store.
#[cold]
fn store_unmasked(cpu: &mut Cpu, op: &Op, linear: u64, len: usize) -> Done {
    enter(cpu)?;
    sync(cpu);
    let before = cpu.fx;
    note_instruction(cpu, op);
    let offset = cpu.offset(op);
    word(cpu, 16, offset);
    let mut value = [0_u8; 16];
    call(cpu, op, value.as_mut_ptr());
    after(cpu);
    if host_status() & !host_control() & EXCEPTIONS & !PRECISION == 0
        && let Err(trap) = cpu.write_bytes(linear, &value[..len])
    {
        forget(cpu);
        cpu.fx = before;
        return Err(trap);
    }
    Ok(Flow::Next)
}

/// Executes FLDCW.
fn load_control(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::X87)?;
    check_pending(cpu)?;
    let value: u16 = cpu.load(cpu.linear(op))?;
    enter(cpu)?;
    // SAFETY: no exception is pending, so this cannot fault; Rust code does not use the x87 unit.
    unsafe { asm!("fldcw [{}]", in(reg) &value, options(nostack, readonly, preserves_flags)) };
    refresh(cpu);
    Ok(Flow::Next)
}

fn control(cpu: &Cpu) -> u16 {
    if cpu.simd.x87.live {
        host_control()
    } else {
        cpu.fx.fcw()
    }
}

fn status(cpu: &Cpu) -> u16 {
    if cpu.simd.x87.live {
        host_status()
    } else {
        let (fsw, fcw) = (cpu.fx.fsw(), cpu.fx.fcw());
        // The summary and busy bits follow from flags and masks.
        if fsw & !fcw & EXCEPTIONS != 0 {
            fsw | 0x8080
        } else {
            fsw & !0x8080
        }
    }
}

/// Executes FNSTCW, FSTCW.
fn store_control<const WAIT: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::X87)?;
    if WAIT {
        check_pending(cpu)?;
    }
    let value = control(cpu);
    cpu.store(cpu.linear(op), value)?;
    Ok(Flow::Next)
}

/// Executes FNSTSW, FSTSW to memory.
fn store_status<const WAIT: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::X87)?;
    if WAIT {
        check_pending(cpu)?;
    }
    let value = status(cpu);
    cpu.store(cpu.linear(op), value)?;
    Ok(Flow::Next)
}

/// Executes FNSTSW AX, FSTSW AX.
fn status_to_ax<const WAIT: bool>(cpu: &mut Cpu, _op: &Op) -> Done {
    require(cpu, need::X87)?;
    if WAIT {
        check_pending(cpu)?;
    }
    let value = status(cpu);
    cpu.set_reg::<u16>(0, value);
    Ok(Flow::Next)
}

/// Executes FNCLEX, FCLEX.
fn clear_exceptions<const WAIT: bool>(cpu: &mut Cpu, _op: &Op) -> Done {
    require(cpu, need::X87)?;
    if WAIT {
        check_pending(cpu)?;
    }
    if cpu.simd.x87.live {
        // SAFETY: a non-waiting instruction that clears exception flags.
        unsafe { asm!("fnclex", options(nomem, nostack, preserves_flags)) };
        cpu.simd.x87.pending = false;
    } else {
        let value = cpu.fx.fsw() & 0x7f00;
        cpu.fx.0[2..4].copy_from_slice(&value.to_le_bytes());
    }
    Ok(Flow::Next)
}

/// Sets the header to the state after FNINIT (SDM vol. 3A table 9-1): control word 37FH, everything else clear. The registers keep their
/// values. The image has them in stack order, so they move as register 0 becomes the top of the stack.
fn init_header(cpu: &mut Cpu) {
    rotate_to_zero(cpu);
    cpu.fx.0[..24].fill(0);
    cpu.fx.0[..2].copy_from_slice(&0x37f_u16.to_le_bytes());
}

/// Reorders the image's registers for a top of stack of 0.
pub fn rotate_to_zero(cpu: &mut Cpu) {
    let top = usize::from(cpu.fx.fsw() >> 11 & 7);
    cpu.fx.0[32..160].rotate_right(16 * top);
}

/// Makes register 0 the top of the stack in the image, as the transition to MMX does.
pub fn top_to_zero(cpu: &mut Cpu) {
    rotate_to_zero(cpu);
    cpu.fx.0[3] &= !0x38;
}

/// Executes FNINIT, FINIT.
fn initialise<const WAIT: bool>(cpu: &mut Cpu, _op: &Op) -> Done {
    require(cpu, need::X87)?;
    if WAIT {
        check_pending(cpu)?;
    }
    release(cpu);
    init_header(cpu);
    Ok(Flow::Next)
}

/// Executes FWAIT.
fn wait(cpu: &mut Cpu, _op: &Op) -> Done {
    require(cpu, need::WAIT)?;
    check_pending(cpu)?;
    Ok(Flow::Next)
}

/// Executes FNENI, FNDISI, FNSETPM, which had an effect only on the 8087 and 80287.
fn nothing(cpu: &mut Cpu, _op: &Op) -> Done {
    require(cpu, need::X87)?;
    Ok(Flow::Next)
}

/// Executes EMMS.
fn empty(cpu: &mut Cpu, _op: &Op) -> Done {
    require(cpu, need::MMX)?;
    enter(cpu)?;
    // SAFETY: no exception is pending; marks the x87 registers empty.
    unsafe { asm!("emms", options(nomem, nostack, preserves_flags)) };
    Ok(Flow::Next)
}

/// Returns the offsets of FIP, FCS (and FOP), FDP and FDS in an environment, and the size of each in bytes. `len` is the length of the
/// operand: 14 or 94 bytes for the 16-bit layout, else the 32-bit layout (SDM vol. 1 figures 8-9 to 8-12).
fn pointers(len: usize) -> ([usize; 4], usize) {
    if matches!(len, 14 | 94) {
        ([6, 8, 10, 12], 2)
    } else {
        ([12, 16, 20, 24], 4)
    }
}

/// Checks for protected mode, and else stops the study. In real mode, pointers in an environment are linear addresses (SDM vol. 1 figures
/// 8-11 and 8-12), which the engine does not implement.
fn require_protected(cpu: &mut Cpu) -> Result<(), Trap> {
    if cpu.control.cr0 & cr0::PE == 0 {
        return Err(cpu.unsupported("an x87 environment in real mode"));
    }
    Ok(())
}

/// Raises a page fault if one byte of an operand may not be accessed, unless its address is not canonical. Processors check this byte
/// before the others.
pub fn check_byte(cpu: &mut Cpu, linear: u64, intent: Intent) -> Result<(), Trap> {
    if is_canonical(linear) {
        cpu.translate(linear, intent)?;
    }
    Ok(())
}

/// Checks the last byte of an operand that crosses pages, before all other bytes.
fn last_first(cpu: &mut Cpu, linear: u64, len: usize, intent: Intent) -> Result<(), Trap> {
    let last = linear.wrapping_add(len as u64 - 1);
    if last >> 12 != linear >> 12 {
        check_byte(cpu, last, intent)?;
    }
    Ok(())
}

/// Executes FNSTENV, FNSAVE and their waiting forms.
fn store_environment<const WAIT: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::X87)?;
    if WAIT {
        check_pending(cpu)?;
    }
    require_protected(cpu)?;
    let (linear, len) = (cpu.linear(op), op.aux as usize);
    cpu.probe_write(linear, 1)?;
    last_first(cpu, linear, len, Intent::Write)?;
    let place = cpu.write_span(linear, len)?;
    if !cpu.simd.x87.live {
        load(cpu);
    }
    let mut area = [0_u8; 108];
    call(cpu, op, area.as_mut_ptr());
    // The host's pointers are addresses of stubs: replace them by the guest's.
    let ([ip, cs, dp, ds], size) = pointers(len);
    let part = |at: usize| {
        [
            cpu.fx.0[at],
            cpu.fx.0[at + 1],
            cpu.fx.0[at + 2],
            cpu.fx.0[at + 3],
        ]
    };
    area[ip..ip + size].copy_from_slice(&part(8)[..size]);
    area[cs..cs + size].fill(0);
    area[dp..dp + size].copy_from_slice(&part(16)[..size]);
    area[ds..ds + size].fill(0);
    if size == 4 {
        // The processor sets the upper half of the last word.
        area[ds + 2..ds + 4].fill(0xff);
    }
    // SAFETY: the span holds `len` bytes, at most 108.
    unsafe { std::ptr::copy_nonoverlapping(area.as_ptr(), place, len) };
    if len >= 94 {
        // FNSAVE initialises like FNINIT, which clears the pointers.
        cpu.fx.0[6..24].fill(0);
    }
    refresh(cpu);
    cpu.commit_span(linear, len, place)?;
    Ok(Flow::Next)
}

/// Executes FLDENV, FRSTOR.
fn load_environment(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::X87)?;
    check_pending(cpu)?;
    require_protected(cpu)?;
    let (linear, len) = (cpu.linear(op), op.aux as usize);
    last_first(cpu, linear, len, Intent::Read)?;
    let place = cpu.read_span(linear, len)?;
    let mut area = [0_u8; 108];
    // SAFETY: the span holds `len` bytes, at most 108.
    unsafe { std::ptr::copy_nonoverlapping(place, area.as_mut_ptr(), len) };
    enter(cpu)?;
    call(cpu, op, area.as_mut_ptr());
    let ([ip, _, dp, _], size) = pointers(len);
    cpu.fx.0[6..24].fill(0);
    cpu.fx.0[8..8 + size].copy_from_slice(&area[ip..ip + size]);
    cpu.fx.0[16..16 + size].copy_from_slice(&area[dp..dp + size]);
    refresh(cpu);
    Ok(Flow::Next)
}

/// Lowers x87 instructions.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let i = l.instruction;
    let memory = i.op_count() > 0 && i.op0_kind() == OpKind::Memory;
    let direct: Option<Handler> = match i.mnemonic() {
        Wait => Some(wait),
        Emms => Some(empty),
        Fneni | Feni | Fndisi | Fdisi | Fnsetpm | Fsetpm => Some(nothing),
        Fninit => Some(initialise::<false>),
        Finit => Some(initialise::<true>),
        Fnclex => Some(clear_exceptions::<false>),
        Fclex => Some(clear_exceptions::<true>),
        Fldcw => Some(load_control),
        Fnstcw => Some(store_control::<false>),
        Fstcw => Some(store_control::<true>),
        Fnstsw if memory => Some(store_status::<false>),
        Fstsw if memory => Some(store_status::<true>),
        Fnstsw => Some(status_to_ax::<false>),
        Fstsw => Some(status_to_ax::<true>),
        _ => None,
    };
    match i.mnemonic() {
        Fnstcw | Fstcw | Fnstsw | Fstsw | Fnstenv | Fstenv | Fnsave | Fsave if memory => {
            l.op.stores = 1
        }
        _ if memory => classify::count_access(l),
        _ => {}
    }
    if direct.is_some() {
        return direct;
    }
    if !classify::is_x87(i) {
        return None;
    }
    let handler: Handler = match i.mnemonic() {
        Fnstenv | Fnsave => store_environment::<false>,
        Fstenv | Fsave => store_environment::<true>,
        Fldenv | Frstor => load_environment,
        _ if !memory => registers,
        _ if l.op.stores != 0 => store_operand,
        _ => load_operand,
    };
    Some(classify::with_stub(l, false, handler))
}
