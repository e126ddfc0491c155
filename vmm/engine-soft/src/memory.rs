//! Loads and stores of guest-linear memory.
//!
//! A load or store first asks the [`crate::filter::DataFilter`]: one compare proves that the address is translated and permitted and, in
//! a window, that its line is the most recently used of its first-level cache set in a state that allows the access.
//! Without a model an entry stands for a page, with a model for a line; the look-up is the same.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use nodescope_plugin_api::{Access, Hits, L0Update, MemRef, Outcome, Side};
use nodescope_x86::{Exception, Vector};

use crate::cpu::Cpu;
use crate::debug::Watched;
use crate::filter::{Baseline, Isa, LARGE_SHIFT, Mapped, PAGE_SHIFT, Position};
use crate::mmu::{Intent, Page};
use crate::op::{Op, Trap, ZERO, attr};

/// Values that live in guest memory: any bit pattern is valid.
///
/// # Safety
/// Implementors are plain data without padding or invalid patterns, at most 32 bytes.
pub unsafe trait Plain: Copy {}
// SAFETY: integers and byte arrays accept any bit pattern.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for u128 {}
// SAFETY: as above.
unsafe impl Plain for [u8; 10] {}
// SAFETY: as above.
unsafe impl Plain for [u8; 32] {}

/// A piece of an access in RAM, translated.
struct Place {
    linear: u64,
    physical: u64,
    host: *mut u8,
    len: usize,
    /// Later writes to the page need no other look.
    writable: bool,
}

/// Where a piece of an access (within one page and one line) goes.
enum Target {
    Host(*mut u8),
    Device(u64),
}

impl Cpu {
    /// Load from a linear address.
    #[inline(always)]
    pub fn load<T: Plain>(&mut self, linear: u64) -> Result<T, Trap> {
        let e = self.filter.entry(linear);
        if let Some(offset) = self.filter.hit(e.read, linear, size_of::<T>()) {
            // SAFETY: the entry proves that the page (or line) is mapped guest RAM at `host` and the access stays within; any
            // bit pattern is a valid T.
            return Ok(unsafe { ((e.host + offset) as *const T).read_unaligned() });
        }
        self.load_slow(linear)
    }

    /// Store to a linear address.
    #[inline(always)]
    pub fn store<T: Plain>(&mut self, linear: u64, value: T) -> Result<(), Trap> {
        let e = self.filter.entry(linear);
        if let Some(offset) = self.filter.hit(e.write, linear, size_of::<T>()) {
            // SAFETY: as in `load`; the write tag proves that the page is writable, dirty and holds no decoded code.
            unsafe { ((e.host + offset) as *mut T).write_unaligned(value) };
            return Ok(());
        }
        self.store_slow(linear, value)
    }

    /// Load an operand that the same instruction will store to: faults as a write does (SDM vol. 3A §4.7), before any
    /// effect.
    #[inline(always)]
    pub fn load_rmw<T: Plain>(&mut self, linear: u64) -> Result<T, Trap> {
        let e = self.filter.entry(linear);
        if let Some(offset) = self.filter.hit(e.write, linear, size_of::<T>())
            && e.read == e.write
        {
            // SAFETY: as in `load`.
            return Ok(unsafe { ((e.host + offset) as *const T).read_unaligned() });
        }
        self.load_rmw_slow(linear)
    }

    #[cold]
    #[inline(never)]
    fn load_rmw_slow<T: Plain>(&mut self, linear: u64) -> Result<T, Trap> {
        let len = size_of::<T>();
        if let Some(host) = self.filter.promote(linear, len, true) {
            // SAFETY: as in `load_slow`.
            return Ok(unsafe { host.cast::<T>().read_unaligned() });
        }
        if len <= self.filter.room(linear) && self.known_for_both(linear, len).is_some() {
            return self.load(linear);
        }
        self.probe_write(linear, len)?;
        if let Some(page) = self.cached_page(linear, Intent::Write)
            && !page.host.is_null()
        {
            // The load must not take the page for one that cannot be written, and must go where the store will: the guest may have
            // changed the translation without saying so, which the check for writing has seen and what is known for reading has not.
            let place = self.place(&page, linear, len);
            self.enter_page(&place, &page);
            if self.attached {
                self.filter.expect(linear, place.host as u64);
            }
        }
        self.load(linear)
    }

    /// Let the filter know a page, and the large one that it is a part of.
    fn enter_page(&mut self, place: &Place, page: &Page) {
        if self.breakpoints.watch(place.linear, PAGE_SHIFT) {
            return;
        }
        let at = Mapped {
            linear: place.linear,
            physical: place.physical,
            host: place.host as u64,
            writable: place.writable,
        };
        if page.large() && !self.breakpoints.watch(place.linear, LARGE_SHIFT) {
            let region = &self.ram.regions()[page.region as usize];
            let offset = (place.physical - region.start) as usize;
            let mut large = at;
            large.writable &= !region.code.large_page_has_code(offset);
            self.filter.enter_large(&large, page.global());
            if self.attached && large.writable == at.writable {
                // While entries stand for lines, it is asked where the page's is not there.
                self.filter.drop_part(place.linear);
                return;
            }
        }
        self.filter.enter_page(&at, page.global());
    }

    /// Where an access within a page of RAM goes.
    fn place(&self, page: &Page, linear: u64, len: usize) -> Place {
        let physical = page.physical | linear & 0xfff;
        let region = &self.ram.regions()[page.region as usize];
        let has_code = region.code.has_code((physical - region.start) as usize);
        Place {
            linear,
            physical,
            // SAFETY: the offset lies within the page.
            host: unsafe { page.host.add((linear & 0xfff) as usize) },
            len,
            writable: !has_code && page.write_ready(self, self.privilege()),
        }
    }

    #[cold]
    #[inline(never)]
    fn load_slow<T: Plain>(&mut self, linear: u64) -> Result<T, Trap> {
        let len = size_of::<T>();
        if let Some(host) = self.filter.promote(linear, len, false) {
            // SAFETY: as in `load`: lines of the second level are as good as entries.
            return Ok(unsafe { host.cast::<T>().read_unaligned() });
        }
        if len <= self.filter.room(linear)
            && let Target::Host(host) = self.target(linear, len, Access::Read, false)?
        {
            // SAFETY: `target` returns RAM that holds `len` bytes from here; any bit pattern is a valid T.
            return Ok(unsafe { host.cast::<T>().read_unaligned() });
        }
        let mut buf = [0_u8; 32];
        self.read_bytes(linear, &mut buf[..size_of::<T>()])?;
        // SAFETY: `buf` holds at least size_of::<T>() bytes and any pattern is a valid T.
        Ok(unsafe { buf.as_ptr().cast::<T>().read_unaligned() })
    }

    #[cold]
    #[inline(never)]
    fn store_slow<T: Plain>(&mut self, linear: u64, value: T) -> Result<(), Trap> {
        let len = size_of::<T>();
        if let Some(host) = self.filter.promote(linear, len, true) {
            // SAFETY: as in `store`: lines of the second level are as good as entries.
            unsafe { host.cast::<T>().write_unaligned(value) };
            return Ok(());
        }
        if len <= self.filter.room(linear)
            && let Target::Host(host) = self.target(linear, len, Access::Write, false)?
        {
            // SAFETY: `target` returns RAM that takes `len` bytes from here.
            unsafe { host.cast::<T>().write_unaligned(value) };
            return Ok(());
        }
        // SAFETY: T is plain data without padding (contract of `Plain`), so its bytes are initialised.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) };
        self.write_bytes(linear, bytes)
    }

    /// Read bytes at a linear address, split at pages and lines.
    pub fn read_bytes(&mut self, linear: u64, buf: &mut [u8]) -> Result<(), Trap> {
        if let Some(split) = self.split(linear, buf.len(), false) {
            // SAFETY: it is the answer for these bytes.
            unsafe { split.read(buf) };
            return Ok(());
        }
        // All pages are translated before anything is read: reading a device may have effects.
        self.check_span(linear, buf.len(), Intent::Read)?;
        let mut at = 0;
        for_each_piece(self.filter.shift(), linear, buf.len(), |piece, len| {
            match self.target(piece, len, Access::Read, at > 0)? {
                Target::Host(host) => {
                    // SAFETY: `target` returns RAM that holds `len` bytes from here.
                    unsafe { std::ptr::copy_nonoverlapping(host, buf[at..].as_mut_ptr(), len) };
                }
                Target::Device(physical) => {
                    let (id, now) = (self.id, self.now());
                    self.platform()
                        .mmio_read(id, now, physical, &mut buf[at..at + len]);
                    self.touched_platform = true;
                    self.end_block();
                }
            }
            at += len;
            Ok(())
        })
    }

    /// Write bytes at a linear address, split at pages and lines; nothing is written where any page faults.
    pub fn write_bytes(&mut self, linear: u64, bytes: &[u8]) -> Result<(), Trap> {
        if let Some(split) = self.split(linear, bytes.len(), true) {
            // SAFETY: it is the answer for these bytes.
            unsafe { split.write(bytes) };
            return Ok(());
        }
        self.check_span(linear, bytes.len(), Intent::Write)?;
        let mut at = 0;
        for_each_piece(self.filter.shift(), linear, bytes.len(), |piece, len| {
            match self.target(piece, len, Access::Write, at > 0)? {
                Target::Host(host) => {
                    // SAFETY: as in `read_bytes`.
                    unsafe { std::ptr::copy_nonoverlapping(bytes[at..].as_ptr(), host, len) };
                }
                Target::Device(physical) => {
                    let (id, now) = (self.id, self.now());
                    self.platform()
                        .mmio_write(id, now, physical, &bytes[at..at + len]);
                    self.touched_platform = true;
                    self.end_block();
                }
            }
            at += len;
            Ok(())
        })
    }

    /// Check that a span can be written, without writing: `#PF` as a write.
    pub fn probe_write(&mut self, linear: u64, len: usize) -> Result<(), Trap> {
        self.translate_checked(linear, Intent::Write)?;
        self.check_span(linear, len, Intent::Write)
    }

    /// A contiguous host view of `len` bytes to read from: guest RAM itself, or the bounce buffer (`len` <= 512).
    #[inline]
    pub fn read_span(&mut self, linear: u64, len: usize) -> Result<*const u8, Trap> {
        let e = self.filter.entry(linear);
        if let Some(offset) = self.filter.hit_span(e.read, linear, len) {
            return Ok((e.host + offset) as *const u8);
        }
        self.read_span_slow(linear, len)
    }

    #[cold]
    #[inline(never)]
    fn read_span_slow(&mut self, linear: u64, len: usize) -> Result<*const u8, Trap> {
        if let Some(host) = self.filter.promote(linear, len, false) {
            return Ok(host);
        }
        if len <= self.filter.room(linear)
            && let Target::Host(host) = self.target(linear, len, Access::Read, false)?
        {
            return Ok(host);
        }
        let mut scratch = [0; 512];
        self.read_bytes(linear, &mut scratch[..len])?;
        self.scratch.0[..len].copy_from_slice(&scratch[..len]);
        Ok(self.scratch.0.as_ptr())
    }

    /// A contiguous host place to write `len` bytes to, which reach the guest by [`Cpu::commit_span`] with the same
    /// arguments. Faults are raised here, before anything is written.
    #[inline]
    pub fn write_span(&mut self, linear: u64, len: usize) -> Result<*mut u8, Trap> {
        let e = self.filter.entry(linear);
        if let Some(offset) = self.filter.hit_span(e.write, linear, len) {
            return Ok((e.host + offset) as *mut u8);
        }
        self.write_span_slow(linear, len)
    }

    #[cold]
    #[inline(never)]
    fn write_span_slow(&mut self, linear: u64, len: usize) -> Result<*mut u8, Trap> {
        // As in translated code, the page tables are not asked where the filter knows the page to be writable.
        let known = if len > self.filter.room(linear) {
            self.attached
                && (self.native.served(linear, len, true).is_some()
                    || self.split_is_known(linear, len, true))
        } else {
            self.known_page(linear, len, true).is_some()
        };
        if !known {
            self.probe_write(linear, len)?;
        }
        Ok(self.scratch.0.as_mut_ptr())
    }

    /// Where guest memory from `linear` on can be read without another look, and for how many bytes (to the end of the page,
    /// or of the line while a model is attached); None where a load would take the slow way.
    #[inline]
    pub fn read_window(&self, linear: u64) -> Option<(*const u8, usize)> {
        let e = self.filter.entry(linear);
        let offset = self.filter.hit(e.read, linear, 1)?;
        Some(((e.host + offset) as *const u8, self.filter.room(linear)))
    }

    /// The same for writes.
    #[inline]
    pub fn write_window(&self, linear: u64) -> Option<(*mut u8, usize)> {
        let e = self.filter.entry(linear);
        let offset = self.filter.hit(e.write, linear, 1)?;
        Some(((e.host + offset) as *mut u8, self.filter.room(linear)))
    }

    /// Make a write to `place` (from [`Cpu::write_span`] of the same span) take effect.
    #[inline]
    pub fn commit_span(&mut self, linear: u64, len: usize, place: *mut u8) -> Result<(), Trap> {
        if std::ptr::eq(place, self.scratch.0.as_ptr()) {
            return self.commit_scratch(linear, len);
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn commit_scratch(&mut self, linear: u64, len: usize) -> Result<(), Trap> {
        if len <= self.filter.room(linear)
            && let Target::Host(host) = self.target(linear, len, Access::Write, false)?
        {
            // SAFETY: `target` returns RAM that takes `len` bytes from here; the scratch buffer is not guest RAM.
            unsafe { std::ptr::copy_nonoverlapping(self.scratch.0.as_ptr(), host, len) };
            return Ok(());
        }
        let scratch = self.scratch;
        self.write_bytes(linear, &scratch.0[..len])
    }

    /// Translate the second and later pages of a span: the first is translated by the access itself.
    fn check_span(&mut self, linear: u64, len: usize, intent: Intent) -> Result<(), Trap> {
        if len == 0 {
            return Ok(());
        }
        let last = linear.wrapping_add(len as u64 - 1);
        if last >> 12 != linear >> 12 {
            let mut page = linear;
            while page >> 12 != last >> 12 {
                self.translate_checked(page, intent)?;
                page = (page & !0xfff).wrapping_add(4096);
            }
            self.translate_checked(last & !0xfff, intent)?;
        }
        Ok(())
    }

    fn translate_checked(&mut self, linear: u64, intent: Intent) -> Result<Page, Trap> {
        if self.long_mode() && !is_canonical(linear) {
            // The address tells `name_stack_fault` which operand it was.
            return Err(self.raise(Exception {
                address: linear,
                ..Exception::gp(0)
            }));
        }
        self.translate(linear, intent)
    }

    /// A non-canonical address raises `#SS` where it is relative to SS, `#GP` elsewhere (SDM vol. 1 §3.3.7.1).
    #[cold]
    pub fn name_stack_fault(&mut self, op: &Op) {
        let Some(e) = self.exception else { return };
        if e.vector != Vector::GeneralProtection || e.address == 0 {
            return;
        }
        // An instruction that pushes or pops besides its operand, which reaches over eight bytes at most.
        let operand = op.base != ZERO || op.index != ZERO || op.disp != 0;
        let beside =
            op.attr & attr::STACK != 0 && !(operand && e.address.wrapping_sub(self.linear(op)) < 8);
        let stack = beside || op.attr & attr::STACK_OPERAND != 0;
        let vector = if stack {
            Vector::StackFault
        } else {
            Vector::GeneralProtection
        };
        self.exception = Some(Exception::with_error(vector, 0));
    }

    /// Translate one piece, report it to an attached model, refill the filter.
    fn target(
        &mut self,
        linear: u64,
        len: usize,
        access: Access,
        extra: bool,
    ) -> Result<Target, Trap> {
        let write = access == Access::Write;
        let watched = if write { Watched::Write } else { Watched::Read };
        self.watch_access(linear, len, watched);
        if let Some(place) = self.known_page(linear, len, write) {
            if self.attached {
                self.touch_line(&place, access, extra);
            }
            return Ok(Target::Host(place.host));
        }
        let page =
            self.translate_checked(linear, if write { Intent::Write } else { Intent::Read })?;
        if page.host.is_null() {
            return Ok(Target::Device(page.physical | linear & 0xfff));
        }
        let place = self.place(&page, linear, len);
        if write && !place.writable {
            let region = &self.ram.regions()[page.region as usize];
            let offset = (place.physical - region.start) as usize;
            if region.code.written(offset, len) {
                self.end_block();
                self.notice_rewrites();
            }
        }
        self.touch(&place, &page, access, extra);
        Ok(Target::Host(place.host))
    }

    /// The host address of an operand that lies within one page (and line), reported and entered in the filter as loads
    /// and stores of the interpreter do; None, and nothing done, where that takes more than a cached translation.
    #[inline(always)]
    pub fn quick_access(
        &mut self,
        isa: impl Isa,
        linear: u64,
        len: usize,
        read: bool,
        write: bool,
    ) -> Option<*mut u8> {
        if len > self.filter.room(linear) {
            return None;
        }
        let known = if read && write {
            self.known_for_both(linear, len)
        } else {
            self.known_page(linear, len, write)
        };
        if let Some(place) = known {
            if !self.attached {
                return Some(place.host);
            }
            // The guest's data comes nearer while the model is asked.
            // SAFETY: a prefetch has no effect that a program could see.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(place.host.cast()) };
            match (read, write) {
                (true, true) => {
                    self.touch_line(&place, Access::Read, false);
                    self.touch_line(&place, Access::Write, false);
                }
                // Translated code has asked all of the filter for the line.
                (_, false) => self.refer(isa, &place, Access::Read),
                (_, true) => self.refer(isa, &place, Access::Write),
            }
            return Some(place.host);
        }
        self.access_of_unknown_page(linear, len, read, write)
    }

    /// [`Cpu::quick_access`] where no model is attached and the filter knows the large page of an operand; None, and nothing done, elsewhere.
    #[inline(always)]
    pub fn place_in_large_page(&mut self, linear: u64, len: usize, write: bool) -> Option<*mut u8> {
        if len > self.filter.room(linear) {
            return None;
        }
        self.known_page(linear, len, write).map(|place| place.host)
    }

    #[inline(never)]
    fn access_of_unknown_page(
        &mut self,
        linear: u64,
        len: usize,
        read: bool,
        write: bool,
    ) -> Option<*mut u8> {
        let intent = if write { Intent::Write } else { Intent::Read };
        let page = self.cached_page(linear, intent)?;
        if page.host.is_null() || self.breakpoints.watch(linear, PAGE_SHIFT) {
            return None;
        }
        let place = self.place(&page, linear, len);
        if write && !place.writable {
            // There is code.
            return None;
        }
        if self.attached && read && write {
            // As in `load_rmw_slow`.
            self.filter.expect(linear, place.host as u64);
        }
        if read {
            self.touch(&place, &page, Access::Read, false);
        }
        if write {
            self.touch(&place, &page, Access::Write, false);
        }
        Some(place.host)
    }

    /// Where an access within one page and line goes, if the filter knows the page or the large one that it is a part of. Without a model
    /// the page itself was asked before, and is entered.
    #[inline(always)]
    fn known_page(&mut self, linear: u64, len: usize, write: bool) -> Option<Place> {
        let page = if self.attached {
            self.filter.page(linear, write)
        } else {
            self.filter.page_of_large(linear, write)
        }?;
        Some(Place {
            linear,
            physical: page.physical,
            host: page.host as *mut u8,
            len,
            writable: page.writable,
        })
    }

    /// The same for an operand that is read and then written, unless a line of the page is known elsewhere on the host: then the guest has
    /// changed the translation without saying so, and the page is forgotten.
    fn known_for_both(&mut self, linear: u64, len: usize) -> Option<Place> {
        let place = self.known_page(linear, len, true)?;
        if self.attached {
            self.filter.expect(linear, place.host as u64);
            self.filter.page(linear, true)?;
        }
        Some(place)
    }

    /// Take notice of a page, and of an access within one line of it.
    #[inline]
    fn touch(&mut self, place: &Place, page: &Page, access: Access, extra: bool) {
        self.enter_page(place, page);
        if self.attached {
            self.touch_line(place, access, extra);
        }
    }

    /// Report an access within one line to the attached model, unless the filter permits it after all.
    fn touch_line(&mut self, place: &Place, access: Access, extra: bool) {
        let write = access == Access::Write;
        if extra {
            // The instruction's own count is one; each further line it touches is counted here.
            self.count_accesses(u64::from(!write), u64::from(write));
        }
        // Where the filter permits the access, only code on the page or a split brought it here.
        if !self.filter.permits(place.linear, place.host as u64, write)
            && self
                .filter
                .promote(place.linear, place.len, write)
                .is_none()
        {
            self.refer(Baseline, place, access);
        }
    }

    /// Report an access within one line that the filter does not permit. Returns the host address; None, and nothing done, where
    /// the filter does not know the page.
    #[inline(always)]
    pub fn refer_known(
        &mut self,
        isa: impl Isa,
        linear: u64,
        len: usize,
        access: Access,
    ) -> Option<*mut u8> {
        let place = self.known_page(linear, len, access == Access::Write)?;
        self.refer(isa, &place, access);
        Some(place.host)
    }

    /// Report an access that the filter does not permit.
    #[inline(always)]
    fn refer(&mut self, isa: impl Isa, place: &Place, access: Access) {
        let reference = MemRef {
            vcpu: self.id,
            privilege: self.privilege(),
            access,
            context: self.context,
            physical: place.physical,
            linear: place.linear,
            size: place.len as u32,
            now: self.now_at_block_start(),
        };
        let line = self.filter.line(place.physical);
        let (outcome, position) = self.report(isa, &reference, line);
        let host = place.host as u64;
        self.filter
            .enter_line(place.linear, host, line, &outcome, position, place.writable);
        if self.breakpoints.watch(place.linear, PAGE_SHIFT) {
            self.filter.flush_page(place.linear);
        }
    }

    /// Report a reference to `line` to the attached model, with what hits came to that it has not seen, and apply what it
    /// changes. Its answer, and where the filter is to keep the line, if it keeps whole sets.
    #[inline(always)]
    pub fn report(
        &mut self,
        isa: impl Isa,
        reference: &MemRef,
        line: u64,
    ) -> (Outcome, Option<Position>) {
        let mut platform = self.platform.expect("called only below run()");
        // SAFETY: as in `Cpu::platform`; nothing else uses the platform until this function returns.
        let platform = unsafe { platform.as_mut() };
        let side = reference.access.side();
        let sets = match side {
            Side::Data => &self.filter.second.sets,
            Side::Instruction => &self.fetch_filter.sets,
        };
        let position = sets.kept().then(|| sets.position(isa, line));
        let hits = Hits {
            oldest: position.and_then(|position| position.oldest),
            modified: self.filter.second.modified.report(),
        };
        let outcome = platform.reference(hits, reference, &mut self.updates);
        self.wait(outcome.stall());
        self.charge_stall(outcome.stall());
        if !self.updates.is_empty() {
            self.apply_filter_updates();
        }
        (outcome, position)
    }

    #[inline(never)]
    fn apply_filter_updates(&mut self) {
        let mut updates = std::mem::take(&mut self.updates);
        for update in updates.drain(..) {
            self.apply_filter_update(&update);
        }
        self.updates = updates;
    }

    /// Tell the attached model of lines that became modified, before another vCPU runs.
    pub fn report_modified(&mut self) {
        if self.filter.second.modified.count != 0 {
            let id = self.id;
            let mut platform = self.platform.expect("called only below run()");
            // SAFETY: as in `Cpu::platform`; nothing else uses the platform until this function returns.
            let platform = unsafe { platform.as_mut() };
            platform.modified(id, self.filter.second.modified.report());
        }
    }

    /// Lower the filter's permission for a line.
    pub fn apply_filter_update(&mut self, update: &L0Update) {
        match update.side {
            Side::Data => self.filter.update(update),
            Side::Instruction => self.fetch_filter.update(update),
        }
    }

    /// Counters of the current privilege.
    pub fn counters_mut(&mut self) -> &mut nodescope_plugin_api::Counters {
        &mut self.counters[usize::from(self.cpl != 3)]
    }

    /// End the current block after the running instruction.
    #[inline]
    pub fn end_block(&mut self) {
        self.block_end = std::ptr::null();
    }
}

/// Whether bits 63:47 are all equal (4-level paging).
#[inline]
pub fn is_canonical(linear: u64) -> bool {
    ((linear as i64) << 16 >> 16) as u64 == linear
}

/// Call `f` for each piece of a span that lies within one unit of `1 << shift` bytes.
fn for_each_piece(
    shift: u32,
    linear: u64,
    len: usize,
    mut f: impl FnMut(u64, usize) -> Result<(), Trap>,
) -> Result<(), Trap> {
    let mut at = 0;
    while at < len {
        let start = linear.wrapping_add(at as u64);
        let room = (1_u64 << shift) - (start & ((1 << shift) - 1));
        let piece = (room as usize).min(len - at);
        f(start, piece)?;
        at += piece;
    }
    Ok(())
}
