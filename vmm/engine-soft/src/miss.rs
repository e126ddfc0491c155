//! What most misses of a model's first level come to: the page is known, the line takes the place of the oldest of its set, and the
//! model has a short way for that ([`nodescope_plugin_api::MemoryModel::miss`]).

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use nodescope_plugin_api::{Access, MemRef, Permission};

use crate::cpu::Cpu;
use crate::filter::{Isa, SecondLevel};

impl Cpu {
    /// [`Cpu::quick_access`] where it is no more than that; None, and nothing done that the other way would notice, elsewhere.
    #[inline(always)]
    pub fn short_access(
        &mut self,
        isa: impl Isa,
        linear: u64,
        len: usize,
        write: bool,
    ) -> Option<*mut u8> {
        const LINE: u64 = SecondLevel::LINE;
        if !self.filter.second.sets.kept() || (linear % LINE) as usize + len > LINE as usize {
            return None;
        }
        // A set is less than a page: which one does not wait for the page's address.
        let oldest = self.filter.second.sets.oldest(isa, linear)?;
        let page = self.filter.page(linear, write)?;
        let place = page.host as *mut u8;
        let (physical, writable) = (page.physical, page.writable);
        // The guest's data comes nearer while the model is asked.
        // SAFETY: a prefetch has no effect that a program could see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
        let line = physical & !(LINE - 1);
        if self.filter.second.sets.holds(isa, line) {
            // Another address of the same memory, or the other privilege.
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
        let modified = self.filter.second.modified.report();
        let outcome = platform.miss(modified, oldest.line, &reference)?;
        debug_assert!(outcome.permission() >= Permission::Read);
        debug_assert_eq!(outcome.replaced(), Some(oldest.line));
        self.wait(outcome.stall());
        self.charge_stall(outcome.stall());
        self.filter.succeed(
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

    /// The clock advances by what a model's answer says.
    #[inline(always)]
    pub fn wait(&mut self, stall: u32) {
        let stall = u64::from(stall);
        self.stall += stall;
        self.model_stall += stall;
        self.counters[usize::from(self.cpl != 3)].stall_cycles += stall;
    }
}
