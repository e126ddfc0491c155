//! Address translation: page walks (SDM vol. 3A §4.5), and the page-walk cache behind the softmmu TLB.

use std::collections::HashSet;

use nodescope_plugin_api::Privilege;
use nodescope_x86::Exception;
use nodescope_x86::bits::{cr0, cr4, efer, page_fault, pte, rflags};
use nodescope_x86::cpuid::PHYSICAL_BITS;

use crate::cpu::Cpu;
use crate::op::Trap;

/// Kind of an access that is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Read of data.
    Read,
    /// Write of data.
    Write,
    /// Fetch of an instruction.
    Fetch,
}

/// Result of a page walk: one 4-KiB page, or in [`PageWalkCache`] also a 2-MiB part of a large page.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Linear address in units of 4 KiB, or of 2 MiB for a part of a large page; `u64::MAX` if the slot is empty.
    tag: u64,
    /// Guest-physical address of the page.
    pub physical: u64,
    /// Host address of the page; null if the page is not in RAM.
    pub host: *mut u8,
    /// Index in `Ram::regions` of the region that has the page.
    pub region: u32,
    /// True if CPL 3 may access the page.
    user: bool,
    /// True if the page tables permit writes. Without CR0.WP, the kernel may write in any case.
    writable: bool,
    /// True if the page tables permit instruction fetches.
    executable: bool,
    /// True if the translation survives a write of CR3.
    global: bool,
    /// True if the dirty bit of the page-table entry is set, so that a write needs no walk.
    dirty: bool,
    /// True if the page is in RAM and a part of a large page. The aligned 2 MiB around the page are contiguous on the host, since RAM
    /// regions consist of such pieces.
    large: bool,
    /// [`PageWalkCache::epoch`] at the time of the walk. The translation of a page that is not global is valid only in this epoch.
    epoch: u32,
}

const EMPTY: Page = Page {
    tag: u64::MAX,
    physical: 0,
    host: std::ptr::null_mut(),
    region: 0,
    user: false,
    writable: false,
    executable: false,
    global: false,
    dirty: false,
    large: false,
    epoch: 0,
};

/// Number of slots of the page-walk cache for 4-KiB pages.
const SLOTS: usize = 8192;
/// Number of slots of the page-walk cache for 2-MiB parts of large pages.
const LARGE_SLOTS: usize = 512;
/// log2 of the size in bytes of a large page's part.
const LARGE_SHIFT: u32 = 21;

/// Page-walk cache, a direct-mapped table by linear address.
pub struct PageWalkCache {
    pages: Box<[Page]>,
    /// Parts of 2 MiB of large pages, by linear address. Pages in such a part are not in `pages`.
    large_pages: Box<[Page]>,
    /// Number of times that translations of non-global pages were dropped.
    epoch: u32,
    /// Large pages of which parts may be cached here or in other tables, as log2 of the size and the linear address in units of that size.
    /// One INVLPG must drop the whole large page (SDM vol. 3A §4.10.4.1).
    large: HashSet<(u32, u64)>,
    /// The large page that was added to `large` last; (0, 0) if there is none.
    last_large: (u32, u64),
}

/// log2 of the sizes in bytes of large pages: 2 MiB and 1 GiB.
const LARGE: [u32; 2] = [21, 30];

// SAFETY: the host pointers point to guest RAM, which `Cpu::ram` keeps alive and which the node's threads use one at a time.
unsafe impl Send for PageWalkCache {}

impl Default for PageWalkCache {
    fn default() -> Self {
        Self {
            pages: vec![EMPTY; SLOTS].into(),
            large_pages: vec![EMPTY; LARGE_SLOTS].into(),
            epoch: 0,
            large: HashSet::new(),
            last_large: (0, 0),
        }
    }
}

impl PageWalkCache {
    /// Drops all entries.
    pub fn flush_all(&mut self) {
        self.pages.fill(EMPTY);
        self.large_pages.fill(EMPTY);
        self.large.clear();
        self.last_large = (0, 0);
    }

    /// Returns whether a linear address may be in a large page of which parts are cached.
    pub fn in_large_page(&self, linear: u64) -> bool {
        LARGE
            .iter()
            .any(|&shift| self.large.contains(&(shift, linear >> shift)))
    }

    fn note_large_page(&mut self, page: (u32, u64)) {
        if self.last_large != page {
            self.last_large = page;
            self.large.insert(page);
        }
    }

    /// Drops all pages that are not global.
    pub fn flush_non_global(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.flush_all();
        }
    }

    /// Drops the translation of the 4-KiB page at a linear address. Parts of large pages are not dropped.
    pub fn flush_page(&mut self, linear: u64) {
        let slot = &mut self.pages[(linear >> 12) as usize % SLOTS];
        if slot.tag == linear >> 12 {
            slot.tag = u64::MAX;
        }
    }

    /// Returns the page of a linear address, if the cache has it.
    #[inline]
    fn find(&self, linear: u64) -> Option<Page> {
        let page = &self.pages[(linear >> 12) as usize % SLOTS];
        if page.tag == linear >> 12 && self.is_current(page) {
            return Some(*page);
        }
        let large = &self.large_pages[(linear >> LARGE_SHIFT) as usize % LARGE_SLOTS];
        if large.tag == linear >> LARGE_SHIFT && self.is_current(large) {
            let offset = linear & ((1 << LARGE_SHIFT) - 1) & !0xfff;
            return Some(Page {
                tag: linear >> 12,
                physical: large.physical + offset,
                host: large.host.wrapping_add(offset as usize),
                ..*large
            });
        }
        None
    }

    #[inline]
    fn is_current(&self, page: &Page) -> bool {
        page.global || page.epoch == self.epoch
    }

    fn insert(&mut self, linear: u64, page: Page) {
        if page.large {
            // The guest may have replaced a small page with the large page without an invalidation.
            self.flush_page(linear);
            let offset = linear & ((1 << LARGE_SHIFT) - 1) & !0xfff;
            self.large_pages[(linear >> LARGE_SHIFT) as usize % LARGE_SLOTS] = Page {
                tag: linear >> LARGE_SHIFT,
                physical: page.physical - offset,
                host: page.host.wrapping_sub(offset as usize),
                ..page
            };
        } else {
            self.pages[(linear >> 12) as usize % SLOTS] = page;
        }
    }
}

impl Cpu {
    /// Translates a linear address at the current privilege. Sets accessed and dirty bits, and raises `#PF`.
    pub fn translate(&mut self, linear: u64, intent: Intent) -> Result<Page, Trap> {
        self.translate_at(linear, intent, self.privilege())
    }

    /// Returns the current privilege.
    #[inline]
    pub fn privilege(&self) -> Privilege {
        if self.cpl == 3 {
            Privilege::User
        } else {
            Privilege::Kernel
        }
    }

    /// Returns the cached translation of a linear address, if it permits an access at the current privilege. None if a walk or a fault
    /// would be needed. Changes nothing.
    #[inline]
    pub fn cached_page(&self, linear: u64, intent: Intent) -> Option<Page> {
        self.cached_at(linear, intent, self.cpl == 3)
    }

    #[inline]
    fn cached_at(&self, linear: u64, intent: Intent, user: bool) -> Option<Page> {
        self.page_walks.find(linear).filter(|page| {
            allowed(self, page, intent, user) && (intent != Intent::Write || page.dirty)
        })
    }

    /// Translates a linear address at a given privilege. Sets accessed and dirty bits, and raises `#PF`.
    pub fn translate_at(
        &mut self,
        linear: u64,
        intent: Intent,
        privilege: Privilege,
    ) -> Result<Page, Trap> {
        let user = privilege == Privilege::User;
        if let Some(page) = self.cached_at(linear, intent, user) {
            return Ok(page);
        }
        let page = self.walk(linear, intent, user)?;
        self.page_walks.insert(linear, page);
        Ok(page)
    }

    fn walk(&mut self, linear: u64, intent: Intent, user: bool) -> Result<Page, Trap> {
        if self.control.cr0 & cr0::PG == 0 {
            let physical = linear & 0xffff_ffff & !0xfff;
            return Ok(self.page(Page {
                tag: linear >> 12,
                physical,
                user: true,
                writable: true,
                executable: true,
                dirty: true,
                ..EMPTY
            }));
        }
        if self.control.efer & efer::LMA == 0 || self.control.cr4 & cr4::LA57 != 0 {
            return Err(self
                .unsupported("paging outside 4-level long mode (32-bit, PAE or 5-level paging)"));
        }
        let nxe = self.control.efer & efer::NXE != 0;
        let code = (if intent == Intent::Write {
            page_fault::WRITE
        } else {
            0
        }) | (if user { page_fault::USER } else { 0 })
            | (if intent == Intent::Fetch && (nxe || self.control.cr4 & cr4::SMEP != 0) {
                page_fault::FETCH
            } else {
                0
            });
        let mut table = self.control.cr3 & pte::ADDRESS;
        let (mut writable, mut user_page, mut executable) = (true, true, true);
        let mut level = 3_u32;
        loop {
            let shift = 12 + 9 * level;
            let at = table + (linear >> shift & 511) * 8;
            let Some(entry) = self.read_physical_u64(at) else {
                return Err(self.unsupported(format!("page table entry at {at:#x} outside RAM")));
            };
            if entry & pte::PRESENT == 0 {
                return Err(self.raise(Exception::page_fault(linear, code)));
            }
            let leaf = level == 0 || (level <= 2 && entry & pte::LARGE != 0);
            // Reserved bits (SDM vol. 3A §4.7): NX without EFER.NXE, the size bit at level 4, low address bits of large pages, and address
            // bits beyond the physical address width.
            let mut reserved = 0;
            if !nxe {
                reserved |= pte::NO_EXECUTE;
            }
            if level == 3 {
                reserved |= pte::LARGE;
            }
            if leaf && level > 0 {
                reserved |= ((1 << shift) - 1) & !0x1fff;
            }
            reserved |= pte::ADDRESS & !((1 << PHYSICAL_BITS) - 1);
            if entry & reserved != 0 {
                return Err(self.raise(Exception::page_fault(
                    linear,
                    code | page_fault::PRESENT | page_fault::RESERVED,
                )));
            }
            writable &= entry & pte::WRITABLE != 0;
            user_page &= entry & pte::USER != 0;
            executable &= entry & pte::NO_EXECUTE == 0;
            if !leaf {
                if entry & pte::ACCESSED == 0 {
                    self.write_physical_u64(at, entry | pte::ACCESSED);
                }
                table = entry & pte::ADDRESS;
                level -= 1;
                continue;
            }
            let mut page = Page {
                tag: linear >> 12,
                user: user_page,
                writable,
                executable,
                global: entry & pte::GLOBAL != 0 && self.control.cr4 & cr4::PGE != 0,
                dirty: entry & pte::DIRTY != 0,
                ..EMPTY
            };
            if !allowed(self, &page, intent, user) {
                return Err(self.raise(Exception::page_fault(linear, code | page_fault::PRESENT)));
            }
            let set = pte::ACCESSED
                | if intent == Intent::Write {
                    pte::DIRTY
                } else {
                    0
                };
            if entry & set != set {
                self.write_physical_u64(at, entry | set);
                page.dirty |= intent == Intent::Write;
            }
            if level > 0 {
                self.page_walks.note_large_page((shift, linear >> shift));
            }
            let offset = linear & ((1 << shift) - 1) & !0xfff;
            page.physical = (entry & pte::ADDRESS & !((1 << shift) - 1)) | offset;
            page.large = level > 0;
            return Ok(self.page(page));
        }
    }

    /// Fills in the region and the host address of a page, if it is in RAM.
    fn page(&self, mut page: Page) -> Page {
        page.epoch = self.page_walks.epoch;
        for (i, r) in self.ram.regions().iter().enumerate() {
            let offset = page.physical.wrapping_sub(r.start);
            if offset < r.len {
                page.region = i as u32;
                // SAFETY: `offset` is within the region's mapping.
                page.host = unsafe { r.host.add(offset as usize) };
                return page;
            }
        }
        // The page is not in RAM: it belongs to a device.
        page.large = false;
        page
    }

    /// Reads eight aligned bytes at a physical address; none if the address is not in RAM.
    pub fn read_physical_u64(&self, at: u64) -> Option<u64> {
        let r = self.ram.region(at)?;
        // SAFETY: the eight bytes are aligned and within the region, which the host has mapped.
        Some(unsafe { r.host.add((at - r.start) as usize).cast::<u64>().read() })
    }

    /// Writes eight aligned bytes at a physical address, if it is in RAM.
    pub fn write_physical_u64(&mut self, at: u64, value: u64) {
        if let Some(r) = self.ram.region(at) {
            let offset = (at - r.start) as usize;
            let code = r.code.written(offset, 8);
            // SAFETY: as in `read_physical_u64`.
            unsafe { r.host.add(offset).cast::<u64>().write(value) };
            if code {
                self.notice_rewrites();
            }
        }
    }
}

/// Returns whether the access rights of a page permit an access (SDM vol. 3A §4.6).
fn allowed(cpu: &Cpu, page: &Page, intent: Intent, user: bool) -> bool {
    if user && !page.user {
        return false;
    }
    match intent {
        Intent::Fetch => {
            page.executable && (user || !page.user || cpu.control.cr4 & cr4::SMEP == 0)
        }
        Intent::Read => user || smap_permits(cpu, page),
        Intent::Write => {
            (page.writable || !user && cpu.control.cr0 & cr0::WP == 0)
                && (user || smap_permits(cpu, page))
        }
    }
}

fn smap_permits(cpu: &Cpu, page: &Page) -> bool {
    cpu.control.cr4 & cr4::SMAP == 0 || !page.user || cpu.rflags & rflags::AC != 0
}

impl Page {
    /// Returns whether the translation also permits writes at this privilege without a further check.
    pub fn write_ready(&self, cpu: &Cpu, privilege: Privilege) -> bool {
        self.dirty && allowed(cpu, self, Intent::Write, privilege == Privilege::User)
    }

    /// Returns whether the translation survives a write of CR3.
    pub fn global(&self) -> bool {
        self.global
    }

    /// Returns whether the page is in RAM and a part of a large page. Then the aligned 2 MiB around the page are contiguous on the host.
    pub fn large(&self) -> bool {
        self.large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a large page replaces a cached small page at the same address. The guest made the change without an invalidation.
    /// Another small page, which the large page covers as well, remains cached.
    #[test]
    fn a_large_page_takes_the_place_of_a_small_one_of_the_same_address() {
        let mut page_walks = PageWalkCache::default();
        let (linear, other) = (0x40_5000_u64, 0x40_6000_u64);
        let page = |linear: u64, physical, large| Page {
            tag: linear >> 12,
            physical,
            large,
            ..EMPTY
        };
        page_walks.insert(linear, page(linear, 0x1000, false));
        page_walks.insert(other, page(other, 0x2000, false));
        page_walks.insert(linear, page(linear, 0x80_5000, true));
        let found = page_walks.find(linear).unwrap();
        assert_eq!((found.tag, found.physical), (linear >> 12, 0x80_5000));
        let part = page_walks.find(0x40_7000).unwrap();
        assert_eq!((part.tag, part.physical), (0x407, 0x80_7000));
        assert_eq!(
            page_walks.find(other).unwrap().physical,
            0x2000,
            "what was walked as a small page stays one until the guest says otherwise"
        );
    }
}
