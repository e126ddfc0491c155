//! Fast miss path, for most misses of a model's first level. The TLB has the page, the line replaces the oldest line of its set, and the
//! model's fast miss path serves the miss ([`nodescope_plugin_api::MemoryModel::miss`]).

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use nodescope_plugin_api::{Access, MemRef, Permission};

use crate::cpu::Cpu;
use crate::softmmu::{Isa, WayDirectory};

impl Cpu {
    /// Serves a miss by the fast miss path, with the result of [`Cpu::resolve_operand`]. None if the slow path must serve the miss; then
    /// nothing has changed that the slow path depends on.
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
        // A set index has only bits of the offset in the page, so the look-up of the set does not wait for the physical address.
        let oldest = self.data_tlb.directory.sets.oldest(isa, linear)?;
        let page = self.data_tlb.find_page(linear, write)?;
        let place = page.host as *mut u8;
        let (physical, writable) = (page.physical, page.writable);
        // The prefetch loads the guest's data into the host's cache while the model works. SAFETY: a prefetch has no architectural effect.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
        let line = physical & !(LINE - 1);
        if self.data_tlb.directory.sets.holds(isa, line) {
            // The line is cached under another linear address, or for the other privilege.
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
        // SAFETY: as in `Cpu::platform`. Nothing else uses the platform until this function returns.
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

    /// Adds the stall of a model's answer, in cycles, to the clock and the counters.
    #[inline(always)]
    pub fn add_stall(&mut self, stall: u32) {
        let stall = u64::from(stall);
        self.stall += stall;
        self.model_stall += stall;
        self.counters[usize::from(self.cpl != 3)].stall_cycles += stall;
    }
}
