//! Operand steering: changes a random case so that its instruction is worth comparing. Memory operands are in the window or just outside,
//! branches reach code, and not all divisions overflow.

use iced_x86::{
    Code, ConstantOffsets, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register,
};

use super::{Case, clip, in_void, registers};
use crate::layout::{CODE, CODE_LEN, GS_BASE, PAGE, WINDOW, WINDOW_LEN, WRITABLE_LEN};
use crate::random::Random;

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;
const RSP: usize = 4;
const RBP: usize = 5;
const RSI: usize = 6;
const RDI: usize = 7;

/// Length in bytes of the direct jump behind the instruction.
const JUMP: u64 = 5;

/// Permission of steering to change the instruction's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Immediates and displacements may change.
    Mutable,
    /// No byte of the instruction may change, only registers and memory.
    Fixed,
}

struct Steering<'a> {
    case: &'a mut Case,
    r: &'a mut Random,
    encoding: Encoding,
    offsets: ConstantOffsets,
    /// Bit set of general registers whose values must not change any more.
    pinned: u16,
}

/// Steers the operands of a case; None if that is not possible.
pub fn steer(case: &mut Case, r: &mut Random, encoding: Encoding) -> Option<()> {
    let offsets = match encoding {
        Encoding::Mutable => offsets(case),
        Encoding::Fixed => ConstantOffsets::default(),
    };
    let mut a = Steering {
        case,
        r,
        encoding,
        offsets,
        pinned: 0,
    };
    a.steer_immediate();
    a.steer_stack();
    a.steer_implicit_operands();
    a.steer_explicit_operand()?;
    a.steer_branch()?;
    a.steer_arithmetic();
    a.fill_state_images()
}

fn offsets(case: &Case) -> ConstantOffsets {
    let mut d = Decoder::with_ip(64, &case.bytes, case.state.rip, DecoderOptions::NONE);
    let i = d.decode();
    d.get_constant_offsets(&i)
}

/// Returns whether an access to an address does the same on both sides: in the reserved range, but not close to the code pages, or at a
/// non-canonical address. In the reserved range only the window has memory.
pub fn is_same_on_both_sides(address: u64) -> bool {
    let canonical = ((address as i64) << 16 >> 16) as u64 == address;
    let far = address.wrapping_add(0x8000_0000_0000_u64.wrapping_sub(0x1_0000)) & !0xffff;
    in_void(address) && !(CODE - 0x1000..CODE + 0x1_0000).contains(&address)
        || !canonical && far != 0
}

/// Returns whether a case is safe to run, by checks that need more than the operands' addresses.
pub fn is_safe(case: &Case, window: &[u8]) -> bool {
    let i = &case.instruction;
    let s = &case.state;
    let word = |address: u64, len: usize| -> Option<u64> {
        let mut b = [0; 8];
        b[..len].copy_from_slice(&case.peek(window, address, len)?);
        Some(u64::from_le_bytes(b))
    };
    match i.mnemonic() {
        // POPF must not set the trap flag, which would stop the harness.
        Mnemonic::Popf | Mnemonic::Popfq => {
            word(s.gpr[RSP], 2).is_none_or(|flags| flags & 0x100 == 0)
        }
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
            if i.op0_kind() == OpKind::Memory && i.op1_kind() == OpKind::Register =>
        {
            let Some(base) = address_of(case) else {
                return false;
            };
            let bit = s.gpr[i.op1_register().full_register().number()];
            let step = match i.op1_register().size() {
                2 => i64::from(bit as i16) >> 4 << 1,
                4 => i64::from(bit as i32) >> 5 << 2,
                _ => bit as i64 >> 6 << 3,
            };
            // The sum wraps at the address size, before the segment base is added.
            let sum = base.wrapping_add(step as u64);
            is_same_on_both_sides(sum)
                && (address_bits(i) == 64 || sum < 1 << 32 && i.segment_prefix() == Register::None)
        }
        // The host may have state components that the guest lacks. No processor has components above these bits.
        Mnemonic::Xrstor | Mnemonic::Xrstor64 => address_of(case)
            .and_then(|at| word(at.wrapping_add(512), 8))
            .is_none_or(|present| present & 0x7_fff8 == 0),
        Mnemonic::Ret => is_branch_safe(case, word(s.gpr[RSP], 8)),
        Mnemonic::Jmp | Mnemonic::Call if i.op0_kind() == OpKind::Register => {
            is_branch_safe(case, Some(s.gpr[i.op0_register().number()]))
        }
        Mnemonic::Jmp | Mnemonic::Call if i.op0_kind() == OpKind::Memory => {
            is_branch_safe(case, address_of(case).and_then(|a| word(a, 8)))
        }
        _ => true,
    }
}

/// Returns whether a branch target is in the reserved range and outside the instruction. A target of None is safe: reading it faults.
fn is_branch_safe(case: &Case, target: Option<u64>) -> bool {
    target.is_none_or(|t| in_void(t) && is_outside_instruction(case, t))
}

/// Returns whether a branch target is outside the instruction and outside the jump behind it. The beginning of this jump is permitted.
fn is_outside_instruction(case: &Case, target: u64) -> bool {
    let start = case.state.rip;
    let next = start + case.bytes.len() as u64;
    target == next || !(start..next + JUMP).contains(&target)
}

fn address_of(case: &Case) -> Option<u64> {
    let i = &case.instruction;
    let operand = (0..i.op_count()).find(|&o| i.op_kind(o) == OpKind::Memory)?;
    i.virtual_address(operand, 0, |r, e, s| {
        Some(super::register(&case.state, r, e, s))
    })
}

fn address_bits(i: &Instruction) -> u32 {
    let (base, index) = (i.memory_base(), i.memory_index());
    let absolute = base == Register::None && index == Register::None && i.memory_displ_size() == 4;
    if base.size() == 4 || index.is_gpr() && index.size() == 4 || absolute {
        32
    } else {
        64
    }
}

impl Steering<'_> {
    fn i(&self) -> Instruction {
        self.case.instruction
    }

    fn set(&mut self, register: usize, value: u64) {
        self.case.state.gpr[register] = value;
        self.pinned |= 1 << register;
    }

    fn is_fixed(&self) -> bool {
        self.encoding == Encoding::Fixed
    }

    fn is_free(&self, register: usize) -> bool {
        self.pinned & 1 << register == 0
    }

    fn redecode(&mut self) -> Option<()> {
        let code = self.case.instruction.code();
        let i = Decoder::with_ip(
            64,
            &self.case.bytes,
            self.case.state.rip,
            DecoderOptions::NONE,
        )
        .decode();
        self.case.instruction = i;
        (i.code() == code).then_some(())
    }

    fn patch(&mut self, address: u64, bytes: &[u8]) {
        self.case.patches.extend(clip(address, bytes));
    }

    /// Adds a patch that fills `len` bytes of memory with random contents. Bytes outside the writable pages are left out.
    fn fill_memory(&mut self, address: u64, len: usize) {
        let mut bytes = vec![0; len];
        self.r.fill(&mut bytes);
        if len == 10 {
            bytes.copy_from_slice(&self.r.f80());
        }
        if self.case.id.group == crate::catalogue::Group::X87 && self.r.chance(700) {
            match len {
                4 if self.r.chance(600) => bytes.copy_from_slice(&self.r.f32().to_le_bytes()),
                8 if self.r.chance(600) => bytes.copy_from_slice(&self.r.f64().to_le_bytes()),
                10 if self.i().mnemonic() == Mnemonic::Fbld => {
                    for b in &mut bytes[..9] {
                        *b = (self.r.below(10) | self.r.below(10) << 4) as u8;
                    }
                    bytes[9] &= 0x80;
                }
                _ => {}
            }
        }
        self.patch(address, &bytes);
    }

    /// Returns a random address for an operand of `size` bytes, mostly in the writable pages.
    fn random_address(&mut self, size: usize) -> u64 {
        let size = size.max(1) as u64;
        let end = WINDOW + WRITABLE_LEN as u64;
        let all = WINDOW + WINDOW_LEN as u64;
        let reach = self.r.below(size.clamp(2, 64) - 1) + 1;
        match self.r.below(1000) {
            0..=599 => {
                let align = self.r.pick(&[64, 64, 16, size.next_power_of_two().min(64)]);
                let room = (WRITABLE_LEN as u64 - size.min(1024)) / align;
                WINDOW + self.r.below(room) * align
            }
            600..=849 => WINDOW + self.r.below(WRITABLE_LEN as u64 - size.min(1024)),
            // Across the first two pages, across the start of the read-only page, in the read-only page, across the end, behind it, across
            // the start, and non-canonical.
            850..=909 => WINDOW + PAGE - reach,
            910..=934 => end - reach,
            935..=949 => end + self.r.below(PAGE - 64),
            950..=969 => all - reach,
            970..=984 => all + self.r.below(PAGE / 2),
            985..=994 => WINDOW - reach,
            _ => 0x8000_0000_0000 + (self.r.next() >> 18) + 0x10_0000,
        }
    }

    /// Replaces a random immediate by an edge value, in some cases.
    fn steer_immediate(&mut self) {
        let (at, size) = (
            self.offsets.immediate_offset(),
            self.offsets.immediate_size(),
        );
        if size > 0 && self.r.chance(400) && !self.is_near_branch() {
            let value = self.r.integer().to_le_bytes();
            let old = self.case.bytes.clone();
            self.case.bytes[at..at + size].copy_from_slice(&value[..size]);
            if self.redecode().is_none() {
                self.case.bytes = old;
                let _ = self.redecode();
            }
        }
    }

    fn is_near_branch(&self) -> bool {
        self.i().op0_kind() == OpKind::NearBranch64
    }

    /// Sets the stack pointer to an address in the window or at its ends; for LEAVE, RBP instead.
    fn steer_stack(&mut self) {
        let mut sp = match self.r.below(100) {
            0..=79 => WINDOW + 512 + self.r.below(WRITABLE_LEN as u64 / 8 - 128) * 8,
            80..=89 => WINDOW + 512 + self.r.below(WRITABLE_LEN as u64 - 1024),
            90..=93 => WINDOW + PAGE + self.r.below(17) - 8,
            94..=95 => WINDOW + self.r.below(17),
            96..=97 => WINDOW + WRITABLE_LEN as u64 + self.r.below(17) - 8,
            _ => WINDOW + WINDOW_LEN as u64 - self.r.below(17),
        };
        let uses = self.i().is_stack_instruction()
            || matches!(
                self.i().mnemonic(),
                Mnemonic::Ret | Mnemonic::Call | Mnemonic::Enter | Mnemonic::Leave
            );
        if uses && self.i().mnemonic() == Mnemonic::Leave {
            sp = self.r.integer();
            let bp = self.random_address(8);
            self.set(RBP, bp);
            self.fill_memory(bp, 8);
        }
        self.case.state.gpr[RSP] = sp;
        if uses {
            self.pinned |= 1 << RSP;
            self.fill_memory(sp, 16);
        }
        match self.i().mnemonic() {
            Mnemonic::Enter => {
                let bp = WINDOW + 512 + self.r.below(WRITABLE_LEN as u64 - 1024);
                self.set(RBP, bp);
                // Mostly few nesting levels.
                let at = self.case.bytes.len() - 1;
                if !self.is_fixed() && self.r.chance(800) {
                    self.case.bytes[at] &= 0xe3;
                    // The allocation is small, so that the stack stays in the window.
                    self.case.bytes[at - 1] &= 0x1f;
                }
                let _ = self.redecode();
            }
            Mnemonic::Popf | Mnemonic::Popfq => {
                let flags = self.r.next() & !0x100;
                self.patch(sp, &flags.to_le_bytes());
            }
            _ => {}
        }
    }

    /// Steers the operands that the encoding does not contain, of string instructions and XLATB.
    fn steer_implicit_operands(&mut self) {
        let i = self.i();
        let mut count = None;
        for o in 0..i.op_count() {
            let (register, narrow) = match i.op_kind(o) {
                OpKind::MemorySegRSI => (RSI, false),
                OpKind::MemorySegESI => (RSI, true),
                OpKind::MemoryESRDI => (RDI, false),
                OpKind::MemoryESEDI => (RDI, true),
                OpKind::MemorySegRDI => (RDI, false),
                OpKind::MemorySegEDI => (RDI, true),
                _ => continue,
            };
            let size = i.memory_size().size().max(1);
            let mut address = self.random_address(size);
            if narrow && address > u64::from(u32::MAX) {
                address = WINDOW + 64;
            }
            if register == RSI
                || matches!(i.op_kind(o), OpKind::MemorySegRDI | OpKind::MemorySegEDI)
            {
                address = address.wrapping_sub(self.segment_base());
            }
            let mut value = address;
            if narrow {
                value = address & 0xffff_ffff | self.r.next() << 32;
            }
            self.set(register, value);
            let at = address & if narrow { 0xffff_ffff } else { u64::MAX };
            let at = at.wrapping_add(if register == RSI {
                self.segment_base()
            } else {
                0
            });
            let span = 16 * size;
            let at = if self.case.state.rflags & 1 << 10 != 0 {
                at.wrapping_sub(span as u64 - size as u64)
            } else {
                at
            };
            self.fill_memory(at, span);
            count = Some(narrow);
        }
        if let Some(narrow) = count
            && (i.has_rep_prefix() || i.has_repne_prefix())
        {
            let n = match self.r.below(10) {
                0 => 0,
                1 => 1,
                2..=7 => self.r.below(20),
                8 => self.r.below(80),
                _ => self.r.below(600),
            };
            let n = if narrow { n | self.r.next() << 32 } else { n };
            self.set(RCX, n);
            // Contents with which a repeated comparison continues for several elements.
            if self.r.chance(500) && i.op_count() == 2 {
                let accumulator = self.case.state.gpr[RAX].to_le_bytes();
                let size = i.memory_size().size();
                let scas = matches!(
                    i.mnemonic(),
                    Mnemonic::Scasb | Mnemonic::Scasw | Mnemonic::Scasd | Mnemonic::Scasq
                );
                for p in &mut self.case.patches {
                    for chunk in p.bytes.chunks_mut(size) {
                        let n = chunk.len();
                        chunk.copy_from_slice(if scas {
                            &accumulator[..n]
                        } else {
                            &[0x5a; 8][..n]
                        });
                    }
                }
            }
        }
        if i.mnemonic() == Mnemonic::Xlatb {
            let address = self.random_address(1);
            let narrow = i.op0_kind() == OpKind::Memory && i.memory_base() == Register::EBX;
            let al = self.case.state.gpr[RAX] & 0xff;
            let base = address.wrapping_sub(al).wrapping_sub(self.segment_base());
            let base = if narrow { base & 0xffff_ffff } else { base };
            self.set(RBX, base);
            self.pinned |= 1 << RAX;
        }
    }

    fn segment_base(&self) -> u64 {
        if self.i().segment_prefix() == Register::GS {
            GS_BASE
        } else {
            0
        }
    }

    /// Steers the memory operand in ModRM.
    fn steer_explicit_operand(&mut self) -> Option<()> {
        let i = self.i();
        if i.mnemonic() == Mnemonic::Xlatb
            || !(0..i.op_count()).any(|o| i.op_kind(o) == OpKind::Memory)
            || i.mnemonic() == Mnemonic::Lea
        {
            return Some(());
        }
        let size = match i.mnemonic() {
            Mnemonic::Fxsave | Mnemonic::Fxsave64 | Mnemonic::Fxrstor | Mnemonic::Fxrstor64 => 512,
            Mnemonic::Xsave | Mnemonic::Xsave64 | Mnemonic::Xrstor | Mnemonic::Xrstor64 => 832,
            _ => i.memory_size().size(),
        };
        let mut target = self.random_address(size);
        if i.has_lock_prefix() || i.mnemonic() == Mnemonic::Xchg {
            // A locked access that is split between two cache lines may be forbidden on the host.
            let last = target.wrapping_add(size as u64 - 1);
            if last >> 6 != target >> 6 {
                target &= !(size as u64 - 1);
            }
        }
        if i.is_vsib() {
            return self.steer_gather(target);
        }
        let target = self.steer_address(target)?;
        if !matches!(size, 512 | 832) {
            self.fill_memory(target, size.max(1));
        }
        if let Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc = i.mnemonic()
            && i.op1_kind() == OpKind::Register
        {
            let register = i.op1_register().full_register().number();
            if self.is_free(register) && i.op1_register().size() > 2 {
                let bits = self.r.below(1 << 15).wrapping_sub(1 << 14);
                let bits = if i.op1_register().size() == 4 {
                    bits & 0xffff_ffff | self.r.next() << 32
                } else {
                    bits
                };
                self.set(register, bits);
            }
        }
        Some(())
    }

    /// Changes displacement or registers so that the memory operand is at `target`, or close to it. Returns the operand's actual address;
    /// None if the operand cannot be changed so.
    fn steer_address(&mut self, target: u64) -> Option<u64> {
        let i = self.i();
        let bits = address_bits(&i);
        let mask = if bits == 32 { 0xffff_ffff } else { u64::MAX };
        let offset = target.wrapping_sub(self.segment_base());
        if bits == 32 && offset > mask {
            return None;
        }
        let (base, index) = (i.memory_base(), i.memory_index());
        let scale = u64::from(i.memory_index_scale());
        let displacement = i.memory_displacement64();
        let constant = base.is_ip() || base == Register::None && index == Register::None;
        if constant && self.is_fixed() {
            return address_of(self.case);
        }
        if base.is_ip() {
            // The decoder returns the sum of the displacement and the next instruction's address.
            let next = self.case.state.rip + self.case.bytes.len() as u64;
            self.set_displacement(offset.wrapping_sub(next))?;
            return Some(target);
        }
        if base == Register::None && index == Register::None {
            self.set_displacement(offset)?;
            return Some(target);
        }
        let displacement = if bits == 32 {
            displacement as u32 as i32 as i64 as u64
        } else {
            displacement
        };
        if base == Register::None {
            let register = index.full_register().number();
            if self.is_fixed() {
                // As close as the scale permits. Before this step only the stack pointer can be pinned, and it cannot be an index.
                let value = (offset.wrapping_sub(displacement) & mask) / scale;
                let value = if bits == 32 {
                    value | self.r.next() << 32
                } else {
                    value
                };
                self.set(register, value);
                return address_of(self.case);
            }
            if self.is_free(register) {
                let value = self.r.below(0x1_0000);
                let value = if bits == 32 {
                    value | self.r.next() << 32
                } else {
                    value
                };
                self.set(register, value);
            }
            let part = (self.case.state.gpr[register] & mask).wrapping_mul(scale);
            self.set_displacement(offset.wrapping_sub(part) & mask)?;
            return Some(target);
        }
        let register = base.full_register().number();
        if index.is_gpr() && index.full_register() == base.full_register() {
            // Solves x * (1 + scale) = wanted, modulo the address size. The factor is odd, so that an inverse exists, or two.
            let factor = 1 + scale;
            let mut wanted = offset.wrapping_sub(displacement);
            let value = if factor == 2 {
                wanted &= !1;
                (wanted & mask) / 2
            } else {
                let mut inverse = factor;
                for _ in 0..6 {
                    inverse =
                        inverse.wrapping_mul(2_u64.wrapping_sub(factor.wrapping_mul(inverse)));
                }
                wanted.wrapping_mul(inverse)
            };
            self.set_base(register, value, bits)?;
            let offset = displacement.wrapping_add(wanted) & mask;
            return Some(offset.wrapping_add(self.segment_base()));
        }
        let part = if index.is_gpr() {
            let n = index.full_register().number();
            self.pinned |= 1 << n;
            self.case.state.gpr[n].wrapping_mul(scale)
        } else {
            0
        };
        let value = offset.wrapping_sub(displacement).wrapping_sub(part);
        self.set_base(register, value, bits)?;
        Some(target)
    }

    fn set_base(&mut self, register: usize, value: u64, bits: u32) -> Option<()> {
        let value = if bits == 32 {
            value & 0xffff_ffff | self.r.next() << 32
        } else {
            value
        };
        // If the register is also the stack pointer of the instruction, the operand's address replaces the stack's.
        self.set(register, value);
        Some(())
    }

    /// Replaces the displacement; None if the value does not fit.
    fn set_displacement(&mut self, value: u64) -> Option<()> {
        let (at, size) = (
            self.offsets.displacement_offset(),
            self.offsets.displacement_size(),
        );
        match size {
            8 => {}
            4 => {
                let fits = value as i32 as i64 as u64 == value
                    || address_bits(&self.i()) == 32 && value <= 0xffff_ffff;
                if !fits {
                    return None;
                }
            }
            _ => return None,
        }
        self.case.bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        self.redecode()
    }

    /// Steers a gather: base and displacement give `target`, or an address in the window if `target` is not canonical, and the indices are
    /// small.
    fn steer_gather(&mut self, target: u64) -> Option<()> {
        let i = self.i();
        let element = if i.is_vsib64() { 8 } else { 4 };
        let target = if ((target as i64) << 16 >> 16) as u64 != target {
            WINDOW + 256
        } else {
            target
        };
        if i.memory_base() == Register::None {
            if !self.is_fixed() {
                self.set_displacement(target)?;
            }
        } else {
            let bits = if i.memory_base().size() == 4 { 32 } else { 64 };
            let displacement = i.memory_displacement64();
            let displacement = if bits == 32 {
                displacement as u32 as i32 as i64 as u64
            } else {
                displacement
            };
            let value = target
                .wrapping_sub(self.segment_base())
                .wrapping_sub(displacement);
            self.set_base(i.memory_base().full_register().number(), value, bits)?;
        }
        let near = self.r.pick(&[16, 64, 256, 512]);
        let index = i.memory_index().number();
        for e in 0..32 / element {
            let value = self.r.below(2 * near).wrapping_sub(near) as i64;
            self.case.state.vector.0[index][e * element..][..element]
                .copy_from_slice(&value.to_le_bytes()[..element]);
        }
        Some(())
    }

    /// Steers most branches to targets in the code pages.
    fn steer_branch(&mut self) -> Option<()> {
        let i = self.i();
        let start = self.case.state.rip;
        let next = start + self.case.bytes.len() as u64;
        let mut destination = match self.r.below(20) {
            0 => next,
            1 => CODE + CODE_LEN as u64 + self.r.below(PAGE),
            2 => CODE - 1 - self.r.below(PAGE),
            _ => CODE + self.r.below(CODE_LEN as u64),
        };
        if !is_outside_instruction(self.case, destination) {
            destination = next;
        }
        if self.is_near_branch() {
            let (at, size) = (
                self.offsets.immediate_offset(),
                self.offsets.immediate_size(),
            );
            let displacement = if size == 1 {
                self.r.next() as i8 as i64 as u64
            } else {
                destination.wrapping_sub(next)
            };
            if !self.is_fixed() {
                self.case.bytes[at..at + size].copy_from_slice(&displacement.to_le_bytes()[..size]);
                self.redecode()?;
            }
            if !is_outside_instruction(self.case, self.i().near_branch_target()) {
                return None;
            }
            if self.is_free(RCX) && self.r.chance(500) {
                let edge = self.r.pick(&[0, 1, 2, 1 << 32, 1 << 32 | 1]);
                self.case.state.gpr[RCX] = edge;
            }
            return Some(());
        }
        match i.mnemonic() {
            Mnemonic::Ret => {
                let sp = self.case.state.gpr[RSP];
                self.patch(sp, &destination.to_le_bytes());
            }
            Mnemonic::Jmp | Mnemonic::Call if i.op0_kind() == OpKind::Register => {
                let register = i.op0_register().number();
                self.case.state.gpr[register] = destination;
            }
            Mnemonic::Jmp | Mnemonic::Call if i.op0_kind() == OpKind::Memory => {
                if let Some(at) = address_of(self.case) {
                    self.patch(at, &destination.to_le_bytes());
                }
            }
            _ => {}
        }
        Some(())
    }

    /// Chooses values that make the less likely outcome of an instruction more likely, such as a division without overflow.
    fn steer_arithmetic(&mut self) {
        let i = self.i();
        let bytes = match i.op0_kind() {
            OpKind::Register => i.op0_register().size(),
            OpKind::Memory => i.memory_size().size(),
            _ => 0,
        };
        match i.mnemonic() {
            Mnemonic::Div | Mnemonic::Idiv if self.r.chance(700) => {
                let accumulator = self.case.state.gpr[RAX];
                let signed = i.mnemonic() == Mnemonic::Idiv;
                if bytes == 1 && self.is_free(RAX) {
                    let value = if signed {
                        accumulator as i8 as i16 as u16
                    } else {
                        accumulator as u8 as u16
                    };
                    self.case.state.gpr[RAX] = accumulator & !0xffff | u64::from(value);
                } else if self.is_free(RDX) && bytes > 1 {
                    let top = accumulator >> (8 * bytes - 1) & 1 != 0;
                    let fill = if signed && top { u64::MAX } else { 0 };
                    let fill = if self.r.chance(300) {
                        fill.wrapping_add(self.r.below(4))
                    } else {
                        fill
                    };
                    self.case.state.gpr[RDX] = fill;
                }
            }
            Mnemonic::Cmpxchg if self.r.chance(500) => {
                let value = self.case.state.gpr[RAX].to_le_bytes();
                self.make_operand_equal(&value[..bytes]);
            }
            Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b if self.r.chance(500) => {
                let half = if i.mnemonic() == Mnemonic::Cmpxchg8b {
                    4
                } else {
                    8
                };
                let mut value = self.case.state.gpr[RAX].to_le_bytes()[..half].to_vec();
                value.extend(&self.case.state.gpr[RDX].to_le_bytes()[..half]);
                self.make_operand_equal(&value);
            }
            // A count above the width leaves the result of a 16-bit double shift undefined.
            Mnemonic::Shld | Mnemonic::Shrd if bytes == 2 => {
                if i.op2_kind() == OpKind::Immediate8 {
                    // In a variant the bit is already clear.
                    let at = self.case.bytes.len() - 1;
                    self.case.bytes[at] &= 0xef;
                    let _ = self.redecode();
                } else {
                    self.case.state.gpr[RCX] &= !0x10;
                }
            }
            Mnemonic::Pcmpestri
            | Mnemonic::Pcmpestri64
            | Mnemonic::Pcmpestrm
            | Mnemonic::Pcmpestrm64
            | Mnemonic::Vpcmpestri
            | Mnemonic::Vpcmpestri64
            | Mnemonic::Vpcmpestrm
            | Mnemonic::Vpcmpestrm64 => {
                for register in [RAX, RDX] {
                    if self.is_free(register) && self.r.chance(700) {
                        self.case.state.gpr[register] = self.r.below(41).wrapping_sub(20);
                    }
                }
            }
            _ => {}
        }
    }

    /// Patches the first operand with `bytes`, if it is in memory.
    fn make_operand_equal(&mut self, bytes: &[u8]) {
        let i = self.i();
        if i.op0_kind() == OpKind::Memory
            && let Some(at) = address_of(self.case)
        {
            self.patch(at, bytes);
        }
    }

    /// Fills memory with the image that FXRSTOR, XRSTOR or LDMXCSR will read, and with the old contents that XSAVE will overwrite.
    fn fill_state_images(&mut self) -> Option<()> {
        let i = self.i();
        let Some(at) = address_of(self.case) else {
            return Some(());
        };
        match i.code() {
            Code::Ldmxcsr_m32 | Code::VEX_Vldmxcsr_m32 => {
                let mut value = registers::mxcsr(self.r);
                if self.r.chance(50) {
                    value |= 1 << self.r.below(32);
                }
                self.patch(at, &value.to_le_bytes());
            }
            Code::Fxrstor_m512byte
            | Code::Fxrstor64_m512byte
            | Code::Xrstor_mem
            | Code::Xrstor64_mem
            | Code::Xsave_mem
            | Code::Xsave64_mem => {
                let mut image = vec![0; 832];
                self.r.fill(&mut image[160..]);
                registers::floating_point(&mut image, self.r);
                if self.r.chance(50) {
                    image[24 + self.r.below(4) as usize] ^= self.r.next() as u8;
                }
                let header = matches!(
                    i.code(),
                    Code::Xrstor_mem | Code::Xrstor64_mem | Code::Xsave_mem | Code::Xsave64_mem
                );
                if header {
                    image[512..576].fill(0);
                    image[512] = self.r.below(8) as u8;
                    if self.r.chance(50) {
                        // No processor has these components: the header is invalid.
                        image[512 + self.r.pick(&[7, 8, 20, 23])] = 0x40;
                    }
                    // The requested components are limited to those of the guest; the host has more.
                    if !(self.is_free(RAX) && self.is_free(RDX)) {
                        return None;
                    }
                    self.case.state.gpr[RAX] = self.r.below(8) | self.r.next() << 32;
                    self.case.state.gpr[RDX] = self.r.next() << 32;
                }
                let len = if header { 832 } else { 512 };
                self.patch(at, &image[..len]);
            }
            _ => {}
        }
        Some(())
    }
}
