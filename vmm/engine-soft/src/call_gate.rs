//! Call gates in long mode (SDM vol. 3A §5.8.3.1): far JMP and CALL to the target in a descriptor.

use nodescope_x86::state::seg;
use nodescope_x86::{Exception, Segment, Vector};

use crate::cpu::Cpu;
use crate::deliver::{attributes, unpack};
use crate::memory::is_canonical;
use crate::op::{RIP, Trap};

/// Type of a call-gate descriptor.
const CALL_GATE: u16 = 0xc;

impl Cpu {
    /// Returns the code segment's selector and the address in a call gate. None if the selector is not that of a call gate, or outside long
    /// mode. [`Cpu::code_segment`] then handles the selector.
    pub fn call_gate(&mut self, selector: u16) -> Result<Option<(u16, u64)>, Trap> {
        if !self.long_mode() {
            return Ok(None);
        }
        let Some((low, _)) = self.descriptor(selector)? else {
            return Ok(None);
        };
        let gate = unpack(selector, low);
        if gate.attributes & attributes::SYSTEM_NOT != 0 || gate.attributes & 0xf != CALL_GATE {
            return Ok(None);
        }
        let fault = Exception::gp(u32::from(selector) & !3);
        let rpl = (selector & 3) as u8;
        if gate.dpl() < self.cpl.max(rpl) {
            return Err(self.raise(fault));
        }
        let high = self.upper_descriptor(selector)?;
        if gate.attributes & attributes::PRESENT == 0 {
            let vector = Vector::SegmentNotPresent;
            return Err(self.raise(Exception::with_error(vector, fault.error)));
        }
        let target = low & 0xffff | low >> 32 & 0xffff_0000 | high << 32;
        Ok(Some(((low >> 16) as u16, target)))
    }

    /// Returns the upper eight bytes of a long-mode system descriptor. Raises `#GP` if they are outside the table or if their type field is
    /// not zero.
    pub fn upper_descriptor(&mut self, selector: u16) -> Result<u64, Trap> {
        let fault = Exception::gp(u32::from(selector) & !3);
        // No selector can name the upper half of the last descriptor in a table of 64 KiB.
        let high = match selector.checked_add(8) {
            Some(upper) => self.descriptor(upper)?,
            None => None,
        };
        let Some((high, _)) = high else {
            return Err(self.raise(fault));
        };
        if high >> 40 & 0x1f != 0 {
            return Err(self.raise(fault));
        }
        Ok(high)
    }

    /// Returns the 64-bit code segment of a call gate. The RPL of its selector is the new privilege level.
    pub fn gate_segment(&mut self, selector: u16, is_call: bool) -> Result<Segment, Trap> {
        let error = u32::from(selector) & !3;
        let Some((raw, at)) = self.descriptor(selector)? else {
            return Err(self.raise(Exception::gp(error)));
        };
        let mut s = unpack(selector, raw);
        let is_code = s.attributes & attributes::SYSTEM_NOT != 0 && s.attributes & 8 != 0;
        let conforming = s.attributes & 4 != 0;
        let permitted = s.dpl() <= self.cpl && (is_call || conforming || s.dpl() == self.cpl);
        if !is_code || !permitted || !s.long() || s.default_32() {
            return Err(self.raise(Exception::gp(error)));
        }
        if s.attributes & attributes::PRESENT == 0 {
            return Err(self.raise(Exception::with_error(Vector::SegmentNotPresent, error)));
        }
        self.set_accessed(&mut s, raw, at)?;
        let cpl = if conforming { self.cpl } else { s.dpl() };
        s.selector = selector & !3 | u16::from(cpl);
        Ok(s)
    }

    /// Calls the target of a gate. `next` is the return address. On a fault, the registers are unchanged. Only the memory of the new stack
    /// frame and the code descriptor's accessed bit may have changed.
    pub fn call_through_gate(&mut self, gate: (u16, u64), next: u64) -> Result<(), Trap> {
        let (selector, target) = gate;
        let cs = self.gate_segment(selector, true)?;
        if !is_canonical(target) {
            return Err(self.raise(Exception::gp(0)));
        }
        let new_cpl = (cs.selector & 3) as u8;
        let switches = new_cpl < self.cpl;
        let old_sp = self.gpr[4];
        let stack = if switches {
            self.tss_u64(4 + 8 * u64::from(new_cpl))?
        } else {
            old_sp
        };
        let segments = &self.segments.data;
        let frame = [
            next,
            segments[seg::CS].selector.into(),
            old_sp,
            segments[seg::SS].selector.into(),
        ];
        let len = if switches { 32 } else { 16 };
        let mut bytes = [0; 32];
        for (b, v) in bytes.chunks_exact_mut(8).zip(frame) {
            b.copy_from_slice(&v.to_le_bytes());
        }
        let sp = stack.wrapping_sub(len as u64);
        let cpl = self.cpl;
        self.set_cpl(new_cpl);
        if let Err(trap) = self.write_bytes(sp, &bytes[..len]) {
            self.set_cpl(cpl);
            return Err(trap);
        }
        self.gpr[4] = sp;
        if switches {
            self.segments.data[seg::SS] = null_stack_segment(new_cpl);
        }
        self.segments.data[seg::CS] = cs;
        self.gpr[RIP as usize] = target;
        self.refresh_mode();
        Ok(())
    }
}

/// Returns the null SS that long mode loads on a change to an inner privilege level.
pub fn null_stack_segment(cpl: u8) -> Segment {
    Segment {
        selector: cpl.into(),
        attributes: u16::from(cpl) << 5,
        unusable: true,
        ..Default::default()
    }
}
