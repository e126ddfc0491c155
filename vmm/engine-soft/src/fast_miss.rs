//! Fast miss path, for most misses of a model's first level: the TLB has the page, the line replaces the oldest line of its set, and the
//! model's fast miss path serves the miss ([`nodescope_plugin_api::MemoryModel::miss`]).

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use nodescope_plugin_api::{Access, MemRef, Permission};

use crate::cpu::Cpu;
use crate::softmmu::{Isa, WayDirectory};

impl Cpu {
    /// Serves a miss as [`Cpu::resolve_operand`] does, by the fast miss path. Returns None where the slow path must serve the miss. Then
    /// nothing was done that makes a difference to the slow path.
    #[inline(always)]
    pub fn fast_miss(
        &mut self,
        isa: impl Isa,
        linear: u64,
        len: usize,
        write: bool,
    ) -> Option<*mut u8> {
        const LINE: u64 = WayDirectory::LINE;
        if !self.data_tlb.directory.sets.enabled() || (linear % LINE) as usize + len > LINE as usize
        {
            return None;
        }
        // A set is less than a page, so that finding it need not wait for the page's physical address.
        let oldest = self.data_tlb.directory.sets.oldest(isa, linear)?;
        let page = self.data_tlb.find_page(linear, write)?;
        let place = page.host as *mut u8;
        let (physical, writable) = (page.physical, page.writable);
        // The host loads the guest's data while the model works.
        // SAFETY: a prefetch has no effect that a program could see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
        let line = physical & !(LINE - 1);
        if self.data_tlb.directory.sets.holds(isa, line) {
            // The line is known at another linear address, or to the other privilege.
            return None;
        }
        let reference = MemRef {
            vcpu: self.id,
            privilege: self.privilege(),
            access: if write { Access::Write } else { Access::Read },
            context: self.context,
            physical,
            linear,
            size: len as u32,
            now: self.now_at_block_start(),
        };
        let mut platform = self.platform.expect("called only below run()");
        // SAFETY: as in `Cpu::platform`; nothing else uses the platform until this function returns.
        let platform = unsafe { platform.as_mut() };
        let modified = self.data_tlb.directory.modified.drain();
        let outcome = platform.miss(modified, oldest.line, &reference)?;
        debug_assert!(outcome.permission() >= Permission::Read);
        debug_assert_eq!(outcome.replaced(), Some(oldest.line));
        self.add_stall(outcome.stall());
        self.charge_stall(outcome.stall());
        self.data_tlb.replace_oldest_line(
            isa,
            linear,
            place as u64,
            line,
            outcome.permission(),
            &oldest,
            writable,
        );
        Some(place)
    }

    /// Advances the clock by the stall of a model's answer.
    #[inline(always)]
    pub fn add_stall(&mut self, stall: u32) {
        let stall = u64::from(stall);
        self.stall += stall;
        self.model_stall += stall;
        self.counters[usize::from(self.cpl != 3)].stall_cycles += stall;
    }
}
