//! Delivery of exceptions and interrupts, segment loads and IRET (SDM vol. 3A chapters 5 and 6).

use nodescope_engine::EngineError;
use nodescope_plugin_api::Privilege;
use nodescope_x86::bits::{cr0, dr7, efer, rflags};
use nodescope_x86::state::seg;
use nodescope_x86::{Exception, MpState, Segment, Vector};

use crate::call_gate::null_stack_segment;
use crate::cpu::{Cpu, Mode};
use crate::op::{RIP, Trap};

/// Attribute bits of segment descriptors, in the format of [`crate::cpu::Cpu::segments`].
pub mod attributes {
    pub const PRESENT: u16 = 1 << 7;
    pub const LONG: u16 = 1 << 13;
    pub const BIG: u16 = 1 << 14;
    pub const GRANULAR: u16 = 1 << 15;
    pub const SYSTEM_NOT: u16 = 1 << 4;
}

/// Origin of an event to deliver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Exception,
    External,
    Software,
}

impl Cpu {
    /// Recomputes the mode, segment bases and other state that is derived from segments, control registers and EFER. Breakpoints and
    /// EFER.LMA are recomputed separately.
    pub fn refresh_mode(&mut self) {
        let cs = self.segments.data[seg::CS];
        let protected = self.control.cr0 & cr0::PE != 0;
        self.mode = if protected && self.long_mode() && cs.long() {
            Mode::Bits64
        } else if protected && cs.default_32() {
            Mode::Bits32
        } else {
            Mode::Bits16
        };
        for i in 0..6 {
            let flat = self.mode == Mode::Bits64 && i < seg::FS;
            self.segment_base[i] = if flat { 0 } else { self.segments.data[i].base };
        }
        let privilege = self.privilege();
        self.data_tlb.set_privilege(privilege);
        self.code_key = self.block_key();
        crate::ops::simd::recompute_simd_availability(self);
    }

    /// Changes the privilege level and the data TLB's privilege, without recomputing other state.
    pub fn set_cpl(&mut self, cpl: u8) {
        self.cpl = cpl;
        let privilege = if cpl == 3 {
            Privilege::User
        } else {
            Privilege::Kernel
        };
        self.data_tlb.set_privilege(privilege);
    }

    /// Runs `f` at CPL 0. Accesses to descriptor tables, the TSS and the stack frame of a delivery have supervisor rights at any CPL (SDM
    /// vol. 3A §4.6.1).
    pub fn as_supervisor<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let cpl = self.cpl;
        self.set_cpl(0);
        let result = f(self);
        self.set_cpl(cpl);
        result
    }

    /// Delivers an external interrupt or NMI. Faults of the delivery are delivered in turn, as for [`Cpu::deliver_exception`].
    pub fn deliver_interrupt(&mut self, vector: u8) -> Result<(), EngineError> {
        self.deliver(vector, None, Source::External)
    }

    /// Delivers an exception. A fault during delivery is delivered in its place, or becomes a double fault. A fault during the delivery of
    /// a double fault shuts the vCPU down (SDM vol. 3A §6.15).
    pub fn deliver_exception(&mut self, exception: Exception) -> Result<(), EngineError> {
        match exception.vector {
            Vector::PageFault => self.control.cr2 = exception.address,
            Vector::InvalidOpcode if self.cpl == 3 => self.report_undefined(),
            _ => {}
        }
        let error = exception.vector.has_error_code().then_some(exception.error);
        self.deliver(exception.vector as u8, error, Source::Exception)
    }

    /// Delivers the interrupt of INT n, INT3 or INTO. The saved instruction pointer is the current `gpr[RIP]`. Faults of the delivery are
    /// faults of the instruction and are returned.
    pub fn software_interrupt(&mut self, vector: u8) -> Result<(), Trap> {
        self.try_deliver(vector, None, Source::Software)
    }

    /// Delivers the interrupt of INT1 like [`Cpu::software_interrupt`], but without a check of the gate's privilege level.
    pub fn debug_interrupt(&mut self) -> Result<(), Trap> {
        self.try_deliver(Vector::Debug as u8, None, Source::Exception)
    }

    fn deliver(
        &mut self,
        vector: u8,
        error: Option<u32>,
        source: Source,
    ) -> Result<(), EngineError> {
        let (mut vector, mut error, mut source) = (vector, error, source);
        loop {
            if self.try_deliver(vector, error, source).is_ok() {
                return Ok(());
            }
            let second = self.take_trap()?;
            if vector == Vector::DoubleFault as u8 && source == Source::Exception {
                self.events.mp = MpState::Shutdown;
                return Ok(());
            }
            let first_contributory = source == Source::Exception
                && (matches!(vector, 0 | 10 | 11 | 12 | 13) && second.vector.is_contributory()
                    || vector == 14
                        && (second.vector.is_contributory() || second.vector == Vector::PageFault));
            if second.vector == Vector::PageFault {
                self.control.cr2 = second.address;
            }
            (vector, error) = if first_contributory {
                (Vector::DoubleFault as u8, Some(0))
            } else {
                (
                    second.vector as u8,
                    second.vector.has_error_code().then_some(second.error),
                )
            };
            source = Source::Exception;
        }
    }

    /// Delivers an event through the IDT or the real-mode vector table. On a fault, the registers are unchanged, and only the memory of the
    /// new stack frame may have changed.
    fn try_deliver(&mut self, vector: u8, error: Option<u32>, source: Source) -> Result<(), Trap> {
        if self.control.cr0 & cr0::PE == 0 {
            return self.deliver_real(vector);
        }
        if !self.long_mode() {
            return Err(self.unsupported(format!(
                "delivery of vector {vector} in protected mode without long mode"
            )));
        }
        let idt_error = u32::from(vector) << 3 | 2 | u32::from(source == Source::External);
        let at = u64::from(vector) * 16;
        if at + 15 > u64::from(self.segments.idt.limit) {
            return Err(self.raise(Exception::gp(idt_error)));
        }
        let base = self.segments.idt.base.wrapping_add(at);
        let (low, high) = self.as_supervisor(|c| {
            Ok::<_, Trap>((c.load::<u64>(base)?, c.load::<u64>(base.wrapping_add(8))?))
        })?;
        let kind = low >> 40 & 0x1f;
        if kind != 0xe && kind != 0xf {
            return Err(self.raise(Exception::gp(idt_error)));
        }
        let dpl = (low >> 45 & 3) as u8;
        if source == Source::Software && dpl < self.cpl {
            return Err(self.raise(Exception::gp(idt_error)));
        }
        if low >> 47 & 1 == 0 {
            return Err(self.raise(Exception::with_error(Vector::SegmentNotPresent, idt_error)));
        }
        let target = (low & 0xffff) | (low >> 32 & 0xffff_0000) | high << 32;
        let selector = (low >> 16) as u16;
        let ist = low >> 32 & 7;
        let (code, _) = self
            .descriptor(selector)?
            .ok_or_else(|| self.raise(Exception::gp(0)))?;
        let segment = unpack(selector, code);
        let type_ = segment.attributes & 0xf;
        if segment.attributes & attributes::SYSTEM_NOT == 0
            || type_ & 8 == 0
            || segment.dpl() > self.cpl
        {
            return Err(self.raise(Exception::gp(u32::from(selector) & !3)));
        }
        if segment.attributes & attributes::PRESENT == 0 {
            return Err(self.raise(Exception::with_error(
                Vector::SegmentNotPresent,
                u32::from(selector) & !3,
            )));
        }
        if !segment.long() {
            return Err(self.raise(Exception::gp(u32::from(selector) & !3)));
        }
        let new_cpl = if type_ & 4 != 0 {
            self.cpl
        } else {
            segment.dpl()
        };
        let switches = new_cpl < self.cpl;
        let old_rsp = self.gpr[4];
        let stack = if ist != 0 {
            self.tss_u64(0x24 + 8 * (ist - 1))?
        } else if switches {
            self.tss_u64(4 + 8 * u64::from(new_cpl))?
        } else {
            old_rsp
        };
        let mut sp = stack & !15;
        let mut frame = [0_u64; 6];
        let mut n = 0;
        if let Some(error) = error {
            frame[0] = error.into();
            n = 1;
        }
        // RF is set in the saved flags of a fault, so that the instruction can restart in spite of a code breakpoint (SDM vol. 3B
        // §17.3.1.1).
        let fault = source == Source::Exception && !matches!(vector, 1 | 3 | 4 | 8 | 18);
        let flags = self.rflags | if fault { rflags::RF } else { 0 };
        frame[n] = self.gpr[RIP as usize];
        frame[n + 1] = self.segments.data[seg::CS].selector.into();
        frame[n + 2] = flags;
        frame[n + 3] = old_rsp;
        frame[n + 4] = self.segments.data[seg::SS].selector.into();
        n += 5;
        sp = sp.wrapping_sub(8 * n as u64);
        let cpl = self.cpl;
        self.set_cpl(new_cpl);
        let mut bytes = [0; 48];
        for (b, v) in bytes.chunks_exact_mut(8).zip(frame) {
            b.copy_from_slice(&v.to_le_bytes());
        }
        if let Err(trap) = self.write_bytes(sp, &bytes[..8 * n]) {
            self.set_cpl(cpl);
            return Err(trap);
        }
        if self.attached {
            self.count_accesses(0, 1);
        }
        self.gpr[4] = sp;
        if switches {
            self.segments.data[seg::SS] = null_stack_segment(new_cpl);
        }
        self.segments.data[seg::CS] = Segment {
            selector: selector & !3 | u16::from(new_cpl),
            ..segment
        };
        self.rflags &= !(rflags::TF | rflags::NT | rflags::RF | rflags::VM);
        if vector == Vector::Debug as u8 {
            // The handler may access the debug registers.
            self.debug.dr7 &= !dr7::GD;
        }
        if kind == 0xe {
            self.rflags &= !rflags::IF;
        }
        self.set_ip(target);
        self.refresh_mode();
        Ok(())
    }

    fn deliver_real(&mut self, vector: u8) -> Result<(), Trap> {
        let entry: u32 = self.load(self.segments.idt.base.wrapping_add(u64::from(vector) * 4))?;
        let base = self.segments.data[seg::SS].base;
        let values = [
            self.rflags as u16,
            self.segments.data[seg::CS].selector,
            self.gpr[RIP as usize] as u16,
        ];
        let mut sp = self.gpr[4] as u16;
        for v in values {
            sp = sp.wrapping_sub(2);
            self.store(base.wrapping_add(sp.into()), v)?;
        }
        self.set_reg::<u16>(32, sp);
        let cs = &mut self.segments.data[seg::CS];
        cs.selector = (entry >> 16) as u16;
        cs.base = u64::from(cs.selector) << 4;
        self.rflags &= !(rflags::IF | rflags::TF | rflags::AC);
        self.set_ip(u64::from(entry & 0xffff));
        self.refresh_mode();
        Ok(())
    }

    /// Reads eight bytes at an offset in the TSS.
    pub fn tss_u64(&mut self, offset: u64) -> Result<u64, Trap> {
        let tr = self.segments.tr;
        if offset + 7 > u64::from(tr.limit) {
            return Err(self.raise(Exception::with_error(
                Vector::InvalidTss,
                u32::from(tr.selector) & !3,
            )));
        }
        let at = tr.base.wrapping_add(offset);
        self.as_supervisor(|c| c.load::<u64>(at))
    }

    /// Reads a descriptor in the GDT or LDT, and returns it with its linear address. None if the selector is null or beyond the table.
    pub fn descriptor(&mut self, selector: u16) -> Result<Option<(u64, u64)>, Trap> {
        if selector & !3 == 0 {
            return Ok(None);
        }
        let (base, limit) = if selector & 4 != 0 {
            (self.segments.ldt.base, u64::from(self.segments.ldt.limit))
        } else {
            (self.segments.gdt.base, u64::from(self.segments.gdt.limit))
        };
        let index = u64::from(selector & !7);
        if index + 7 > limit || selector & 4 != 0 && self.segments.ldt.unusable {
            return Ok(None);
        }
        let at = base.wrapping_add(index);
        let value = self.as_supervisor(|c| c.load::<u64>(at))?;
        Ok(Some((value, at)))
    }

    /// Loads a data or stack segment register, as MOV, POP and LDS do (SDM vol. 2B, MOV).
    pub fn load_segment(&mut self, index: usize, selector: u16) -> Result<(), Trap> {
        if self.control.cr0 & cr0::PE == 0 {
            let s = &mut self.segments.data[index];
            s.selector = selector;
            s.base = u64::from(selector) << 4;
            self.refresh_mode();
            return Ok(());
        }
        let error = u32::from(selector) & !3;
        let rpl = (selector & 3) as u8;
        if selector & !3 == 0 {
            if index == seg::SS && !(self.mode == Mode::Bits64 && self.cpl != 3 && rpl == self.cpl)
            {
                return Err(self.raise(Exception::gp(0)));
            }
            // A null selector clears the bases of FS and GS, as on Intel processors.
            self.segments.data[index] = Segment {
                selector,
                unusable: true,
                attributes: u16::from(self.cpl) << 5,
                ..Default::default()
            };
            self.refresh_mode();
            return Ok(());
        }
        let Some((raw, at)) = self.descriptor(selector)? else {
            return Err(self.raise(Exception::gp(error)));
        };
        let mut s = unpack(selector, raw);
        let (type_, normal) = (
            s.attributes & 0xf,
            s.attributes & attributes::SYSTEM_NOT != 0,
        );
        let (is_code, writable_or_readable) = (type_ & 8 != 0, type_ & 2 != 0);
        let legal = if index == seg::SS {
            normal && !is_code && writable_or_readable && rpl == self.cpl && s.dpl() == self.cpl
        } else {
            normal
                && (!is_code || writable_or_readable)
                && (is_code && type_ & 4 != 0 || s.dpl() >= self.cpl.max(rpl))
        };
        if !legal {
            return Err(self.raise(Exception::gp(error)));
        }
        if s.attributes & attributes::PRESENT == 0 {
            let vector = if index == seg::SS {
                Vector::StackFault
            } else {
                Vector::SegmentNotPresent
            };
            return Err(self.raise(Exception::with_error(vector, error)));
        }
        self.set_accessed(&mut s, raw, at)?;
        self.segments.data[index] = s;
        self.refresh_mode();
        Ok(())
    }

    /// Sets the accessed bit in a segment and in its descriptor in memory, if it is clear.
    pub fn set_accessed(&mut self, s: &mut Segment, raw: u64, at: u64) -> Result<(), Trap> {
        if s.attributes & 1 == 0 {
            s.attributes |= 1;
            self.as_supervisor(|c| c.store::<u64>(at, raw | 1 << 40))?;
        }
        Ok(())
    }

    /// Returns the code segment of a far transfer to the same privilege level, or of a return to the same or an outer one.
    pub fn code_segment(&mut self, selector: u16, returning: bool) -> Result<Segment, Trap> {
        let error = u32::from(selector) & !3;
        let Some((raw, at)) = self.descriptor(selector)? else {
            return Err(self.raise(Exception::gp(error)));
        };
        let mut s = unpack(selector, raw);
        let rpl = (selector & 3) as u8;
        let type_ = s.attributes & 0xf;
        if s.attributes & attributes::SYSTEM_NOT == 0 || type_ & 8 == 0 {
            // Long mode has no task switches (SDM vol. 3A §7.7). Call gates were handled before.
            if s.attributes & attributes::SYSTEM_NOT == 0 && !returning && !self.long_mode() {
                return Err(self.unsupported(format!(
                    "far transfer through gate or task selector {selector:#x}"
                )));
            }
            return Err(self.raise(Exception::gp(error)));
        }
        let conforming = type_ & 4 != 0;
        let legal = if returning {
            rpl >= self.cpl
                && if conforming {
                    s.dpl() <= rpl
                } else {
                    s.dpl() == rpl
                }
        } else {
            if conforming {
                s.dpl() <= self.cpl
            } else {
                rpl <= self.cpl && s.dpl() == self.cpl
            }
        };
        if !legal || s.long() && s.default_32() {
            return Err(self.raise(Exception::gp(error)));
        }
        if s.attributes & attributes::PRESENT == 0 {
            return Err(self.raise(Exception::with_error(Vector::SegmentNotPresent, error)));
        }
        self.set_accessed(&mut s, raw, at)?;
        let cpl = if returning { rpl } else { self.cpl };
        s.selector = selector & !3 | u16::from(cpl);
        Ok(s)
    }

    /// Executes IRET of the given operand size in bytes (SDM vol. 2A, IRET).
    pub fn interrupt_return(&mut self, size: u64) -> Result<(), Trap> {
        if self.control.cr0 & cr0::PE == 0 {
            return self.interrupt_return_real(size);
        }
        if !self.long_mode() {
            return Err(self.unsupported("IRET in protected mode without long mode"));
        }
        // Long mode has no tasks to return to (SDM vol. 2A, IRET, operation in IA-32e mode).
        if self.rflags & rflags::NT != 0 {
            return Err(self.raise(Exception::gp(0)));
        }
        let stack_base = if self.mode == Mode::Bits64 {
            0
        } else {
            self.segments.data[seg::SS].base
        };
        let sp = self.gpr[4];
        let mut values = [0_u64; 5];
        let word = |c: &mut Cpu, i: u64| -> Result<u64, Trap> {
            let at = stack_base.wrapping_add(sp.wrapping_add(i * size));
            Ok(match size {
                2 => c.load::<u16>(at)?.into(),
                4 => c.load::<u32>(at)?.into(),
                _ => c.load::<u64>(at)?,
            })
        };
        for i in 0..3 {
            values[i as usize] = word(self, i)?;
        }
        let [ip, cs, flags, ..] = values;
        let cs = self.code_segment(cs as u16, true)?;
        let new_cpl = (cs.selector & 3) as u8;
        let pops_stack = self.mode == Mode::Bits64 || new_cpl != self.cpl;
        let mut new_sp = sp.wrapping_add(3 * size);
        let mut new_ss = None;
        if pops_stack {
            new_sp = word(self, 3)?;
            let selector = word(self, 4)? as u16;
            new_ss = Some(self.return_stack_segment(selector, new_cpl, cs.long())?);
        }
        if cs.long() && !crate::memory::is_canonical(ip) {
            return Err(self.raise(Exception::gp(0)));
        }
        let old_cpl = self.cpl;
        self.segments.data[seg::CS] = cs;
        if let Some(ss) = new_ss {
            self.segments.data[seg::SS] = ss;
        }
        self.gpr[4] = new_sp;
        self.set_cpl(new_cpl);
        let mut mask = rflags::STATUS
            | rflags::TF
            | rflags::DF
            | rflags::NT
            | rflags::RF
            | rflags::AC
            | rflags::ID;
        if old_cpl == 0 {
            mask |= rflags::IOPL | rflags::IF | rflags::VIF | rflags::VIP;
        } else if u64::from(old_cpl) <= self.rflags >> 12 & 3 {
            mask |= rflags::IF;
        }
        if size == 2 {
            mask &= 0xffff;
        }
        // RF only matters if code breakpoints are enabled.
        if !self.breakpoints.on_code() {
            mask &= !rflags::RF;
        }
        self.rflags = self.rflags & !(mask | rflags::RF) | flags & mask | rflags::FIXED;
        self.events.nmi_blocked = false;
        if new_cpl > old_cpl {
            self.drop_inner_segments();
        }
        self.set_ip(ip);
        self.refresh_mode();
        let ip = self.wrap_ip(ip);
        self.set_ip(ip);
        Ok(())
    }

    /// Clears data segment registers that the outer privilege level may not use (SDM vol. 2A, IRET and RET).
    pub fn drop_inner_segments(&mut self) {
        for i in [seg::ES, seg::FS, seg::GS, seg::DS] {
            let s = self.segments.data[i];
            let conforming = s.attributes & 0xc == 0xc;
            if !s.unusable && s.dpl() < self.cpl && !conforming {
                self.segments.data[i] = Segment {
                    unusable: true,
                    base: s.base,
                    ..Default::default()
                };
            }
        }
    }

    /// Returns the stack segment for a return to the same or an outer privilege level.
    pub fn return_stack_segment(
        &mut self,
        selector: u16,
        cpl: u8,
        long: bool,
    ) -> Result<Segment, Trap> {
        let error = u32::from(selector) & !3;
        if selector & !3 == 0 {
            if long && cpl != 3 && (selector & 3) as u8 == cpl {
                return Ok(Segment {
                    selector,
                    unusable: true,
                    attributes: u16::from(cpl) << 5,
                    ..Default::default()
                });
            }
            return Err(self.raise(Exception::gp(0)));
        }
        let Some((raw, at)) = self.descriptor(selector)? else {
            return Err(self.raise(Exception::gp(error)));
        };
        let mut s = unpack(selector, raw);
        let data = s.attributes & (attributes::SYSTEM_NOT | 8 | 2) == attributes::SYSTEM_NOT | 2;
        if !data || (selector & 3) as u8 != cpl || s.dpl() != cpl {
            return Err(self.raise(Exception::gp(error)));
        }
        if s.attributes & attributes::PRESENT == 0 {
            return Err(self.raise(Exception::with_error(Vector::StackFault, error)));
        }
        self.set_accessed(&mut s, raw, at)?;
        Ok(s)
    }

    fn interrupt_return_real(&mut self, size: u64) -> Result<(), Trap> {
        if size != 2 {
            return Err(self.unsupported("IRETD in real mode"));
        }
        let base = self.segments.data[seg::SS].base;
        let sp = self.gpr[4] as u16;
        let mut v = [0_u16; 3];
        for (i, v) in v.iter_mut().enumerate() {
            *v = self.load(base.wrapping_add(sp.wrapping_add(2 * i as u16).into()))?;
        }
        self.set_reg::<u16>(32, sp.wrapping_add(6));
        let cs = &mut self.segments.data[seg::CS];
        cs.selector = v[1];
        cs.base = u64::from(v[1]) << 4;
        self.rflags = self.rflags & !0xffff | u64::from(v[2]) | rflags::FIXED;
        self.set_ip(v[0].into());
        self.refresh_mode();
        Ok(())
    }

    /// Returns a flat code or data segment as SYSCALL and SYSRET load it (SDM vol. 2B, SYSCALL).
    pub fn flat_segment(selector: u16, code: bool, long: bool, dpl: u8) -> Segment {
        let kind = if code { 0xb } else { 3 };
        let size = if long {
            attributes::LONG
        } else {
            attributes::BIG
        };
        Segment {
            selector,
            base: 0,
            limit: u32::MAX,
            attributes: kind
                | attributes::SYSTEM_NOT
                | u16::from(dpl) << 5
                | attributes::PRESENT
                | size
                | attributes::GRANULAR,
            unusable: false,
        }
    }

    /// Recomputes EFER.LMA from CR0.PG and EFER.LME (SDM vol. 3A §9.8.5).
    pub fn update_long_mode(&mut self) {
        let active = self.control.cr0 & cr0::PG != 0 && self.control.efer & efer::LME != 0;
        self.control.efer = self.control.efer & !efer::LMA | if active { efer::LMA } else { 0 };
    }
}

/// Converts an eight-byte descriptor to a segment register's value (SDM vol. 3A §3.4.5).
pub fn unpack(selector: u16, raw: u64) -> Segment {
    let limit = (raw & 0xffff | raw >> 32 & 0xf_0000) as u32;
    let granular = raw >> 55 & 1 != 0;
    Segment {
        selector,
        base: raw >> 16 & 0xff_ffff | raw >> 32 & 0xff00_0000,
        limit: if granular { limit << 12 | 0xfff } else { limit },
        attributes: (raw >> 40 & 0xf0ff) as u16,
        unusable: false,
    }
}
