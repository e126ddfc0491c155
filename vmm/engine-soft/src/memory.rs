//! Loads and stores at guest-linear addresses.
//!
//! The fast path of a load or store looks up the [`crate::softmmu::DataTlb`]. One compare proves that the address is translated and the
//! access permitted. In a window the compare also proves that the line is the most recently used one of its first-level cache set, in a
//! state that allows the access. Without a model the entry that the fast path compares is for a page, with a model for a line; the look-up
//! is the same.
//!
//! If the fast path fails, the slow path tries the other lines of the set, the page's entry and a page walk. It accesses a device if there
//! is no RAM, and reports to the model.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use nodescope_plugin_api::{Access, Hits, L0Update, MemRef, Outcome, Side};
use nodescope_x86::{Exception, Vector};

use crate::cpu::Cpu;
use crate::debug::AccessKind;
use crate::mmu::{Intent, Page};
use crate::op::{Op, Trap, ZERO, attr};
use crate::site::Origin;
use crate::softmmu::{Baseline, Isa, LARGE_SHIFT, PAGE_SHIFT, PageMapping, Placement};

/// A value that can be read from and written to guest memory.
///
/// # Safety
/// Implementors must be plain data of at most 32 bytes, without padding or invalid bit patterns.
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

/// A translated piece of an access, in RAM.
struct Translated {
    linear: u64,
    physical: u64,
    host: *mut u8,
    len: usize,
    /// True if later writes to the page need no further check.
    writable: bool,
}

/// Target of a piece of an access, within one page and one line.
enum Target {
    /// RAM, at this host address.
    Host(*mut u8),
    /// A device, at this physical address.
    Device(u64),
}

impl Cpu {
    /// Loads a value from a linear address.
    #[inline(always)]
    pub fn load<T: Plain>(&mut self, linear: u64) -> Result<T, Trap> {
        let e = self.data_tlb.entry(linear);
        if let Some(offset) = self.data_tlb.hit(e.read, linear, size_of::<T>()) {
            // SAFETY: the entry proves that the page (or line) is mapped guest RAM at `host`, and that it contains the access. Any bit
            // pattern is a valid T.
            return Ok(unsafe { ((e.host + offset) as *const T).read_unaligned() });
        }
        self.load_slow(linear)
    }

    /// Stores a value at a linear address.
    #[inline(always)]
    pub fn store<T: Plain>(&mut self, linear: u64, value: T) -> Result<(), Trap> {
        let e = self.data_tlb.entry(linear);
        if let Some(offset) = self.data_tlb.hit(e.write, linear, size_of::<T>()) {
            // SAFETY: as in `load`. The write tag proves that the page is writable and dirty and has no decoded code.
            unsafe { ((e.host + offset) as *mut T).write_unaligned(value) };
            return Ok(());
        }
        self.store_slow(linear, value)
    }

    /// Loads an operand to which the same instruction will store. Faults like a write (SDM vol. 3A §4.7), before any effect.
    #[inline(always)]
    pub fn load_rmw<T: Plain>(&mut self, linear: u64) -> Result<T, Trap> {
        let e = self.data_tlb.entry(linear);
        if let Some(offset) = self.data_tlb.hit(e.write, linear, size_of::<T>())
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
        if let Some(host) = self.data_tlb.promote(linear, len, true) {
            // SAFETY: as in `load_slow`.
            return Ok(unsafe { host.cast::<T>().read_unaligned() });
        }
        if len <= self.data_tlb.room(linear) && self.look_up_page_for_both(linear, len).is_some() {
            return self.load(linear);
        }
        self.probe_write(linear, len)?;
        if let Some(page) = self.cached_page(linear, Intent::Write)
            && !page.host.is_null()
        {
            // The load must treat the page as writable, and must use the store's translation. The guest may have changed the translation
            // without an invalidation. The check for writing has used the new translation, but read entries may have the old one.
            let place = self.translated_in_page(&page, linear, len);
            self.enter_page(&place, &page);
            if self.attached {
                self.data_tlb.flush_if_moved(linear, place.host as u64);
            }
        }
        self.load(linear)
    }

    /// Enters a page into the TLB, and the large page around it if there is one. In a window, the large page's entry may replace the small
    /// page's. Pages with data breakpoints are not entered.
    fn enter_page(&mut self, place: &Translated, page: &Page) {
        if self.breakpoints.watch(place.linear, PAGE_SHIFT) {
            return;
        }
        let at = PageMapping {
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
            self.data_tlb.enter_large_page(&large, page.global());
            if self.attached && large.writable == at.writable {
                // In a window, look-ups use the large page's entry if there is no entry of the small page.
                self.data_tlb.flush_small_page(place.linear);
                return;
            }
        }
        self.data_tlb.enter_page(&at, page.global());
    }

    /// Translates an access within a page of RAM to its host address.
    fn translated_in_page(&self, page: &Page, linear: u64, len: usize) -> Translated {
        let physical = page.physical | linear & 0xfff;
        let region = &self.ram.regions()[page.region as usize];
        let has_code = region.code.has_code((physical - region.start) as usize);
        Translated {
            linear,
            physical,
            // SAFETY: the offset is within the page.
            host: unsafe { page.host.add((linear & 0xfff) as usize) },
            len,
            writable: !has_code && page.write_ready(self, self.privilege()),
        }
    }

    #[cold]
    #[inline(never)]
    fn load_slow<T: Plain>(&mut self, linear: u64) -> Result<T, Trap> {
        let len = size_of::<T>();
        if let Some(host) = self.data_tlb.promote(linear, len, false) {
            // SAFETY: as in `load`. Entries of the way directory prove as much as entries of the TLB.
            return Ok(unsafe { host.cast::<T>().read_unaligned() });
        }
        if len <= self.data_tlb.room(linear)
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
        if let Some(host) = self.data_tlb.promote(linear, len, true) {
            // SAFETY: as in `store`. Entries of the way directory prove as much as entries of the TLB.
            unsafe { host.cast::<T>().write_unaligned(value) };
            return Ok(());
        }
        if len <= self.data_tlb.room(linear)
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

    /// Reads bytes at a linear address, in pieces within pages and lines.
    pub fn read_bytes(&mut self, linear: u64, buf: &mut [u8]) -> Result<(), Trap> {
        if let Some(split) = self.split(linear, buf.len(), false) {
            // SAFETY: the split access was made for these bytes.
            unsafe { split.read(buf) };
            return Ok(());
        }
        // All pages are translated before anything is read, since reading a device may have effects.
        self.check_span(linear, buf.len(), Intent::Read)?;
        let mut at = 0;
        for_each_piece(self.data_tlb.shift(), linear, buf.len(), |piece, len| {
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

    /// Writes bytes at a linear address, in pieces within pages and lines. If any page faults, nothing is written.
    pub fn write_bytes(&mut self, linear: u64, bytes: &[u8]) -> Result<(), Trap> {
        if let Some(split) = self.split(linear, bytes.len(), true) {
            // SAFETY: the split access was made for these bytes.
            unsafe { split.write(bytes) };
            return Ok(());
        }
        self.check_span(linear, bytes.len(), Intent::Write)?;
        let mut at = 0;
        for_each_piece(self.data_tlb.shift(), linear, bytes.len(), |piece, len| {
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

    /// Checks that `len` bytes can be written, without writing. Raises the `#PF` or `#GP` of a write.
    pub fn probe_write(&mut self, linear: u64, len: usize) -> Result<(), Trap> {
        self.translate_checked(linear, Intent::Write)?;
        self.check_span(linear, len, Intent::Write)
    }

    /// Returns a host address from which `len` contiguous bytes can be read: in guest RAM, or in the bounce buffer with a copy (`len` <=
    /// 512).
    #[inline]
    pub fn read_span(&mut self, linear: u64, len: usize) -> Result<*const u8, Trap> {
        let e = self.data_tlb.entry(linear);
        if let Some(offset) = self.data_tlb.hit_span(e.read, linear, len) {
            return Ok((e.host + offset) as *const u8);
        }
        self.read_span_slow(linear, len)
    }

    #[cold]
    #[inline(never)]
    fn read_span_slow(&mut self, linear: u64, len: usize) -> Result<*const u8, Trap> {
        if let Some(host) = self.data_tlb.promote(linear, len, false) {
            return Ok(host);
        }
        if len <= self.data_tlb.room(linear)
            && let Target::Host(host) = self.target(linear, len, Access::Read, false)?
        {
            return Ok(host);
        }
        let mut scratch = [0; 512];
        self.read_bytes(linear, &mut scratch[..len])?;
        self.scratch.0[..len].copy_from_slice(&scratch[..len]);
        Ok(self.scratch.0.as_ptr())
    }

    /// Returns a host address to which `len` contiguous bytes can be written: in guest RAM, or in the bounce buffer. [`Cpu::commit_span`]
    /// with the same arguments must follow to complete the write. Faults are raised here, before anything is written.
    #[inline]
    pub fn write_span(&mut self, linear: u64, len: usize) -> Result<*mut u8, Trap> {
        let e = self.data_tlb.entry(linear);
        if let Some(offset) = self.data_tlb.hit_span(e.write, linear, len) {
            return Ok((e.host + offset) as *mut u8);
        }
        self.write_span_slow(linear, len)
    }

    #[cold]
    #[inline(never)]
    fn write_span_slow(&mut self, linear: u64, len: usize) -> Result<*mut u8, Trap> {
        // As in translated code, there is no page walk if the TLB has a writable entry of the page.
        let known = if len > self.data_tlb.room(linear) {
            self.attached
                && (self.native.served(linear, len, true).is_some()
                    || self.split_is_known(linear, len, true))
        } else {
            self.look_up_page(linear, len, true).is_some()
        };
        if !known {
            self.probe_write(linear, len)?;
        }
        Ok(self.scratch.0.as_mut_ptr())
    }

    /// Returns the host address of guest memory at `linear`, and the number of bytes that the fast path may read there. The range ends with
    /// the page, or with the line while a model is attached. None if a load would take the slow path.
    #[inline]
    pub fn direct_read_range(&self, linear: u64) -> Option<(*const u8, usize)> {
        let e = self.data_tlb.entry(linear);
        let offset = self.data_tlb.hit(e.read, linear, 1)?;
        Some(((e.host + offset) as *const u8, self.data_tlb.room(linear)))
    }

    /// Returns the host address and length as [`Cpu::direct_read_range`] does, for writes.
    #[inline]
    pub fn direct_write_range(&self, linear: u64) -> Option<(*mut u8, usize)> {
        let e = self.data_tlb.entry(linear);
        let offset = self.data_tlb.hit(e.write, linear, 1)?;
        Some(((e.host + offset) as *mut u8, self.data_tlb.room(linear)))
    }

    /// Completes a write to `place`, which [`Cpu::write_span`] returned for the same bytes.
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
        if len <= self.data_tlb.room(linear)
            && let Target::Host(host) = self.target(linear, len, Access::Write, false)?
        {
            // SAFETY: `target` returns RAM that takes `len` bytes from here; the scratch buffer is not guest RAM.
            unsafe { std::ptr::copy_nonoverlapping(self.scratch.0.as_ptr(), host, len) };
            return Ok(());
        }
        let scratch = self.scratch;
        self.write_bytes(linear, &scratch.0[..len])
    }

    /// Translates all pages of a span if it extends over more than one. The access itself translates a single page.
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
            // The address lets `name_stack_fault` recognise the operand.
            return Err(self.raise(Exception {
                address: linear,
                ..Exception::gp(0)
            }));
        }
        self.translate(linear, intent)
    }

    /// Changes the fault of a non-canonical address to `#SS` if the address is relative to SS, or else to `#GP` (SDM vol. 1 §3.3.7.1).
    #[cold]
    pub fn name_stack_fault(&mut self, op: &Op) {
        let Some(e) = self.exception else { return };
        if e.vector != Vector::GeneralProtection || e.address == 0 {
            return;
        }
        // An instruction that pushes or pops may also have a memory operand, of eight bytes at most. A fault within this operand is not a
        // fault of the stack.
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

    /// Translates one piece of an access. If the piece is in RAM, enters its page into the TLB and reports the piece to an attached model.
    /// `extra` is true for the second and later pieces of an access, which are counted here.
    fn target(
        &mut self,
        linear: u64,
        len: usize,
        access: Access,
        extra: bool,
    ) -> Result<Target, Trap> {
        let write = access == Access::Write;
        let watched = if write {
            AccessKind::Write
        } else {
            AccessKind::Read
        };
        self.watch_access(linear, len, watched);
        if let Some(place) = self.look_up_page(linear, len, write) {
            if self.attached {
                self.count_piece(write, extra);
                self.reference_line(&place, access, self.origin(access));
            }
            return Ok(Target::Host(place.host));
        }
        let page =
            self.translate_checked(linear, if write { Intent::Write } else { Intent::Read })?;
        if page.host.is_null() {
            return Ok(Target::Device(page.physical | linear & 0xfff));
        }
        let place = self.translated_in_page(&page, linear, len);
        if write && !place.writable {
            let region = &self.ram.regions()[page.region as usize];
            let offset = (place.physical - region.start) as usize;
            if region.code.written(offset, len) {
                self.end_block();
                self.notice_rewrites();
            }
        }
        self.enter_page(&place, &page);
        if self.attached {
            self.count_piece(write, extra);
            self.reference_line(&place, access, self.origin(access));
        }
        Ok(Target::Host(place.host))
    }

    /// Returns the host address of an operand within one page (and line), for the slow path of translated code. The access is reported to
    /// the model and fills the TLB, like loads and stores of the interpreter. None if the interpreter must make the access: it lies in two
    /// pages or lines, needs a page walk, reaches a device or a watched page, or writes to a page with code. Then the model was not asked.
    /// `origins` are those of the read and of the write.
    #[inline(always)]
    pub fn resolve_operand(
        &mut self,
        isa: impl Isa,
        linear: u64,
        len: usize,
        read: bool,
        write: bool,
        origins: [Origin; 2],
    ) -> Option<*mut u8> {
        if len > self.data_tlb.room(linear) {
            return None;
        }
        let known = if read && write {
            self.look_up_page_for_both(linear, len)
        } else {
            self.look_up_page(linear, len, write)
        };
        if let Some(place) = known {
            if !self.attached {
                return Some(place.host);
            }
            // The prefetch loads the guest's data into the host's cache while the model works. SAFETY: a prefetch has no architectural
            // effect.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(place.host.cast()) };
            match (read, write) {
                (true, true) => {
                    self.reference_line(&place, Access::Read, origins[0]);
                    self.reference_line(&place, Access::Write, origins[1]);
                }
                // Translated code has already searched all ways for the line.
                (_, false) => self.report_miss(isa, &place, Access::Read, origins[0]),
                (_, true) => self.report_miss(isa, &place, Access::Write, origins[1]),
            }
            return Some(place.host);
        }
        self.resolve_by_page_walk_cache(linear, len, read, write, origins)
    }

    /// Returns the host address of an operand within one page, if the TLB's entry of the large page around it permits the access. The small
    /// page's entry is refilled from that entry. None otherwise; then nothing has changed. Must be called only while no model is attached.
    #[inline(always)]
    pub fn resolve_in_large_page(
        &mut self,
        linear: u64,
        len: usize,
        write: bool,
    ) -> Option<*mut u8> {
        if len > self.data_tlb.room(linear) {
            return None;
        }
        self.look_up_page(linear, len, write)
            .map(|place| place.host)
    }

    #[inline(never)]
    fn resolve_by_page_walk_cache(
        &mut self,
        linear: u64,
        len: usize,
        read: bool,
        write: bool,
        origins: [Origin; 2],
    ) -> Option<*mut u8> {
        let intent = if write { Intent::Write } else { Intent::Read };
        let page = self.cached_page(linear, intent)?;
        if page.host.is_null() || self.breakpoints.watch(linear, PAGE_SHIFT) {
            return None;
        }
        let place = self.translated_in_page(&page, linear, len);
        if write && !place.writable {
            // The page has code, so the slow path must handle the write.
            return None;
        }
        if self.attached && read && write {
            // As in `load_rmw_slow`, the load must use the store's translation.
            self.data_tlb.flush_if_moved(linear, place.host as u64);
        }
        if read {
            self.enter_and_reference(&place, &page, Access::Read, origins[0]);
        }
        if write {
            self.enter_and_reference(&place, &page, Access::Write, origins[1]);
        }
        Some(place.host)
    }

    /// Translates an access within one page and line, if the TLB's entry of the page or of the large page around it permits the access.
    /// Without a model, the small page's entry has missed already and is refilled from the large page's entry.
    #[inline(always)]
    fn look_up_page(&mut self, linear: u64, len: usize, write: bool) -> Option<Translated> {
        let page = if self.attached {
            self.data_tlb.find_page(linear, write)
        } else {
            self.data_tlb.refill_from_large_page(linear, write)
        }?;
        Some(Translated {
            linear,
            physical: page.physical,
            host: page.host as *mut u8,
            len,
            writable: page.writable,
        })
    }

    /// Looks up the page as [`Cpu::look_up_page`] does, for an operand that is read and then written. If an entry has a line of the page at
    /// another host address, the guest has changed the translation without an invalidation. Then the page is flushed.
    fn look_up_page_for_both(&mut self, linear: u64, len: usize) -> Option<Translated> {
        let place = self.look_up_page(linear, len, true)?;
        if self.attached {
            self.data_tlb.flush_if_moved(linear, place.host as u64);
            self.data_tlb.find_page(linear, true)?;
        }
        Some(place)
    }

    /// Enters a page into the TLB. If a model is attached, also reports the access to one line of the page.
    #[inline]
    fn enter_and_reference(
        &mut self,
        place: &Translated,
        page: &Page,
        access: Access,
        origin: Origin,
    ) {
        self.enter_page(place, page);
        if self.attached {
            self.reference_line(place, access, origin);
        }
    }

    /// Counts a piece of an access if it is the second or later one (`extra`): an instruction counts one access by itself.
    fn count_piece(&mut self, write: bool, extra: bool) {
        if extra {
            self.count_accesses(u64::from(!write), u64::from(write));
        }
    }

    /// Reports an access within one line to the attached model, unless the L0 filter cache permits the access.
    fn reference_line(&mut self, place: &Translated, access: Access, origin: Origin) {
        let write = access == Access::Write;
        // The L0 filter cache can permit the access here if code on the page or a split access caused the slow path.
        if !self
            .data_tlb
            .permits(place.linear, place.host as u64, write)
            && self
                .data_tlb
                .promote(place.linear, place.len, write)
                .is_none()
        {
            self.report_miss(Baseline, place, access, origin);
        }
    }

    /// Reports an access within one line that the L0 filter cache does not permit. Returns the operand's host address. None if no entry of
    /// the TLB for the page permits the access; then nothing has changed.
    #[inline(always)]
    pub fn report_miss_in_known_page(
        &mut self,
        isa: impl Isa,
        linear: u64,
        len: usize,
        access: Access,
        origin: Origin,
    ) -> Option<*mut u8> {
        let place = self.look_up_page(linear, len, access == Access::Write)?;
        self.report_miss(isa, &place, access, origin);
        Some(place.host)
    }

    /// Reports an access that the L0 filter cache does not permit to the attached model, and fills the line into the L0 filter cache.
    #[inline(always)]
    fn report_miss(&mut self, isa: impl Isa, place: &Translated, access: Access, origin: Origin) {
        let reference = MemRef {
            vcpu: self.id,
            privilege: self.privilege(),
            access,
            context: self.context,
            physical: place.physical,
            linear: place.linear,
            size: place.len as u32,
            now: self.now_at_block_start(),
            site: origin.site,
            non_temporal: origin.non_temporal,
            locked: origin.locked,
            large_page: self.page_sizes && self.is_in_large_page(place.linear),
        };
        let line = self.data_tlb.line(place.physical);
        let (outcome, placement) = self.report_reference(isa, &reference, line);
        self.fill_line(place, &outcome, placement);
    }

    /// Returns whether a page of more than 4 KiB maps an address, which an access has just translated.
    #[cold]
    #[inline(never)]
    pub fn is_in_large_page(&mut self, linear: u64) -> bool {
        let page = self.translate_at(linear, Intent::Read, self.privilege());
        page.is_ok_and(|page| page.large())
    }

    /// Fills the line of an access into the L0 filter cache, as the model has answered.
    #[inline(always)]
    fn fill_line(&mut self, place: &Translated, outcome: &Outcome, placement: Option<Placement>) {
        let line = self.data_tlb.line(place.physical);
        let host = place.host as u64;
        self.data_tlb
            .fill_line(place.linear, host, line, outcome, placement, place.writable);
        if self.breakpoints.watch(place.linear, PAGE_SHIFT) {
            self.data_tlb.flush_page(place.linear);
        }
    }

    /// Reports a reference to `line` to the attached model, with the effects of hits since the last report. Applies the model's updates to
    /// the L0 filter cache. Returns the model's answer, and the line's way if the L0 filter cache has whole sets.
    #[inline(always)]
    pub fn report_reference(
        &mut self,
        isa: impl Isa,
        reference: &MemRef,
        line: u64,
    ) -> (Outcome, Option<Placement>) {
        let mut platform = self.platform.expect("called only below run()");
        // SAFETY: as in `Cpu::platform`. Nothing else uses the platform until this function returns.
        let platform = unsafe { platform.as_mut() };
        let side = reference.access.side();
        let sets = match side {
            Side::Data => &self.data_tlb.directory.sets,
            Side::Instruction => &self.instruction_l0.sets,
        };
        let placement = sets.enabled().then(|| sets.placement(isa, line));
        let hits = Hits {
            oldest: placement.and_then(|placement| placement.oldest),
            modified: self.data_tlb.directory.modified.drain(),
        };
        let outcome = platform.reference(hits, reference, &mut self.updates);
        self.add_stall(outcome.stall());
        self.charge_stall(reference, line, outcome.stall());
        if !self.updates.is_empty() {
            self.apply_l0_updates();
        }
        (outcome, placement)
    }

    /// Finishes a miss that a miss routine has reported to the model, after an answer that the routine does not serve itself: the model
    /// keeps updates, does not permit reads, or has replaced another line than the oldest. `both` says that the operand is read, which was
    /// reported, and then written, with this origin. Returns the operand's host address.
    pub fn finish_direct_miss(
        &mut self,
        linear: u64,
        len: usize,
        write: bool,
        both: Option<Origin>,
        outcome: Outcome,
    ) -> *mut u8 {
        let place = self
            .look_up_page(linear, len, write)
            .expect("the miss routine has found the page");
        let line = self.data_tlb.line(place.physical);
        let placement = self.data_tlb.directory.sets.placement(Baseline, line);
        self.add_stall(outcome.stall());
        if outcome.has_updates() {
            let id = self.id;
            let mut updates = std::mem::take(&mut self.updates);
            self.platform().take_updates(id, &mut updates);
            self.updates = updates;
            self.apply_l0_updates();
        }
        self.fill_line(&place, &outcome, Some(placement));
        if let Some(origin) = both {
            self.reference_line(&place, Access::Write, origin);
        }
        place.host
    }

    /// Adds the stall of a model's answer, in cycles, to the clock and the counters.
    #[inline(always)]
    pub fn add_stall(&mut self, stall: u32) {
        let stall = u64::from(stall);
        self.stall += stall;
        self.model_stall += stall;
        self.counters[usize::from(self.cpl != 3)].stall_cycles += stall;
    }

    #[inline(never)]
    fn apply_l0_updates(&mut self) {
        let mut updates = std::mem::take(&mut self.updates);
        for update in updates.drain(..) {
            self.apply_l0_update(&update);
        }
        self.updates = updates;
    }

    /// Reports to the attached model the lines that writes have modified as hits of the L0 filter cache. Must be called before another vCPU
    /// runs.
    pub fn report_modified(&mut self) {
        if self.data_tlb.directory.modified.count != 0 {
            let id = self.id;
            let mut platform = self.platform.expect("called only below run()");
            // SAFETY: as in `Cpu::platform`. Nothing else uses the platform until this function returns.
            let platform = unsafe { platform.as_mut() };
            platform.modified(id, self.data_tlb.directory.modified.drain());
        }
    }

    /// Applies a model's update of a line's permission to the L0 filter cache.
    pub fn apply_l0_update(&mut self, update: &L0Update) {
        match update.side {
            Side::Data => self.data_tlb.update(update),
            Side::Instruction => self.instruction_l0.update(update),
        }
    }

    /// Returns the event counters of the current privilege.
    pub fn counters_mut(&mut self) -> &mut nodescope_plugin_api::Counters {
        &mut self.counters[usize::from(self.cpl != 3)]
    }

    /// Ends the current block after the running operation.
    #[inline]
    pub fn end_block(&mut self) {
        self.block_end = std::ptr::null();
    }
}

/// Returns whether bits 63:47 are all equal, as 4-level paging requires.
#[inline]
pub fn is_canonical(linear: u64) -> bool {
    ((linear as i64) << 16 >> 16) as u64 == linear
}

/// Cuts a span at the multiples of `1 << shift`, and calls `f` with the address and length of each piece.
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
