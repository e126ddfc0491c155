//! Softmmu TLB of loads and stores, and L0 filter cache for data.

use nodescope_plugin_api::{L0Geometry, L0Update, Outcome, Permission, Privilege};

use super::lru_sets::{DIRECTORY_WAYS, Placement};
use super::way_directory::{WayDirectory, WayEntry, WritePermission};

/// Number of slots for pages, for each privilege.
const PAGES: usize = 2048;
/// Number of slots for lines, for each privilege. The slots of user and kernel for one set are neighbours, in one line of the host, unless
/// lines of the model are as small as an entry.
const LINES: usize = 128;
/// Number of slots for large pages, for each privilege: enough for a program that accesses a gigabyte at random.
const LARGE_PAGES: usize = 512;
/// First slot of large pages, behind the slots of pages.
const FIRST_LARGE: usize = 2 * PAGES;
/// First slot of lines.
const FIRST_LINE: usize = FIRST_LARGE + 2 * LARGE_PAGES;
/// Words of a bitmap with a bit for each slot of a page or large page.
const BITMAP_WORDS: usize = FIRST_LINE / 64;
/// Words of a bitmap with a bit for each word of the first bitmap.
const SUMMARY_WORDS: usize = BITMAP_WORDS.div_ceil(64);
/// Number of slots.
const SLOTS: usize = FIRST_LINE + 2 * LINES;

/// Entry for a page (or line) that loads and stores may access. An access of `n` bytes at `linear` hits if `linear - read <= unit - n`: one
/// subtraction finds both another page and an access that leaves the page.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct TlbEntry {
    /// First linear address of the page or line, if reads need no further check; else an address that no access of the slot has.
    pub read: u64,
    /// First linear address of the page or line, if writes need no further check; else an address that no access of the slot has.
    pub write: u64,
    /// Host address of the page or line.
    pub host: u64,
    /// Physical address of the page. In an entry of a line, it is the line's physical address only where whole sets are not kept
    /// ([`super::LruSets::enabled`]); otherwise it has no meaning.
    pub physical: u64,
}

const EMPTY: TlbEntry = TlbEntry {
    read: 0,
    write: 0,
    host: 0,
    physical: 0,
};

/// Translation of an address, on a page that loads and stores may access.
#[derive(Clone, Copy, Debug)]
pub struct PageMapping {
    /// Linear address of the access.
    pub linear: u64,
    /// Physical address of the access.
    pub physical: u64,
    /// Host address of the access.
    pub host: u64,
    /// True if writes to the page need no further check.
    pub writable: bool,
}

/// Table that loads and stores ask first: the softmmu TLB, and while a model is attached the L0 filter cache. The *current entries* are the
/// entries that an access asks: those of pages, or those of lines while a model is attached. Entries of pages are kept then, too: where a
/// line has no entry, its page usually has one.
#[repr(C)]
pub struct DataTlb {
    /// True if the current entries hold lines, which may be as large as pages.
    holds_lines: bool,
    /// log2 of the bytes of a unit: the page or line that a current entry holds.
    shift: u32,
    /// Bytes of a unit.
    unit: u64,
    /// Right shift of an address that makes an index in bytes, before `mask`.
    index_shift: u32,
    /// Mask of the index: slots in use, minus one, times the bytes from one slot to the next.
    mask: u64,
    /// Offset in bytes, from `entries`, of the first current entry of the current privilege.
    base: u64,
    /// Privilege whose entries are used: 0 for user, 1 for kernel.
    privilege: usize,
    /// Pages of user and kernel, large pages of user and kernel, lines of user and kernel.
    pub entries: [TlbEntry; SLOTS],
    /// Two bitmaps of the slots that may hold a page: pages that do not survive a change of address space, and global pages.
    occupied: [[u64; BITMAP_WORDS]; 2],
    /// A bit for each word of `occupied` that is not 0.
    occupied_words: [[u64; SUMMARY_WORDS]; 2],
    /// True if the model allows a single line: filling in a line then empties all other entries of lines.
    single_line: bool,
    /// Directory of the lines of each set, where whole sets are kept.
    pub directory: WayDirectory,
}

/// Layout of the current entries of a [`DataTlb`], for generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbLayout {
    /// Bytes of a unit: the page or line that an entry holds.
    pub unit: u32,
    /// Right shift of the linear address, in bits.
    pub index_shift: u32,
    /// Mask of the shifted address.
    pub mask: u32,
    /// Offsets of user's and the kernel's first current entries from [`DataTlb::entries`], in bytes.
    pub first: [usize; 2],
    /// log2 of the number of way indices of each set (3 or 4); 0 where only the most recently used lines are kept.
    pub way_shift: u32,
}

/// log2 of the size of an entry.
const ENTRY_SHIFT: u32 = 5;
const _: () = assert!(size_of::<TlbEntry>() == 1 << ENTRY_SHIFT);

/// Returns the numbers of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        bit
    })
}

/// Index of pages that do not survive a change of address space, in [`DataTlb::occupied`].
const NON_GLOBAL: usize = 0;
/// Index of global pages, in [`DataTlb::occupied`].
const GLOBAL: usize = 1;

/// log2 of the size of a page.
pub const PAGE_SHIFT: u32 = 12;
/// log2 of the size of a large page.
pub const LARGE_SHIFT: u32 = 21;

impl Default for DataTlb {
    fn default() -> Self {
        let mut tlb = Self {
            holds_lines: false,
            shift: PAGE_SHIFT,
            unit: 1 << PAGE_SHIFT,
            index_shift: 0,
            mask: 0,
            base: 0,
            privilege: 1,
            entries: [EMPTY; SLOTS],
            occupied: [[0; BITMAP_WORDS]; 2],
            occupied_words: [[0; SUMMARY_WORDS]; 2],
            single_line: false,
            directory: WayDirectory::default(),
        };
        for slot in 0..SLOTS {
            tlb.entries[slot] = tlb.invalid_entry(slot);
        }
        tlb.configure(None);
        tlb
    }
}

impl DataTlb {
    /// Offsets of user's and the kernel's lines of 64 bytes from the first entry, in bytes.
    pub const LINES: [usize; 2] = [FIRST_LINE << ENTRY_SHIFT, (FIRST_LINE + 1) << ENTRY_SHIFT];

    /// Offset of the mask by which the address of a line of 64 bytes becomes the offset of its entry among those of
    /// [`DataTlb::LINES`].
    pub const MASK: usize = std::mem::offset_of!(Self, mask);

    /// Offsets of user's and the kernel's pages from the first entry, in bytes.
    pub const PAGES: [usize; 2] = [0, PAGES << ENTRY_SHIFT];
    /// Shift and mask: an address shifted right and masked by them is the offset of its page's entry among those of a privilege.
    pub const PAGE_INDEX: (u32, u32) = (
        PAGE_SHIFT - ENTRY_SHIFT,
        ((PAGES - 1) << ENTRY_SHIFT) as u32,
    );
    /// [`DataTlb::PAGE_INDEX`] for large pages: the offset is among the entries of large pages of a privilege.
    pub const LARGE_INDEX: (u32, u32) = (
        LARGE_SHIFT - ENTRY_SHIFT,
        ((LARGE_PAGES - 1) << ENTRY_SHIFT) as u32,
    );
    /// Offsets of user's and the kernel's large pages from the first entry, in bytes.
    pub const LARGE_PAGES: [usize; 2] = [
        FIRST_LARGE << ENTRY_SHIFT,
        (FIRST_LARGE + LARGE_PAGES) << ENTRY_SHIFT,
    ];
    /// Bytes of a page, and of a large page.
    pub const PAGE_SIZES: [u64; 2] = [1 << PAGE_SHIFT, 1 << LARGE_SHIFT];

    /// Returns the effect of [`DataTlb::set_privilege`] where the current entries hold pages: offsets of fields, and their values.
    pub const fn of_privilege_without_model(kernel: bool) -> [(usize, i32); 2] {
        let privilege = kernel as usize;
        [
            (std::mem::offset_of!(Self, privilege), privilege as i32),
            (
                std::mem::offset_of!(Self, base),
                Self::PAGES[privilege] as i32,
            ),
        ]
    }

    /// Makes the current entries hold pages (None) or lines of a model's first-level cache, and flushes everything.
    pub fn configure(&mut self, geometry: Option<L0Geometry>) {
        // Two slots at least, so that an empty slot can hold an address that belongs to the other slot; see `invalid_tag`.
        let (shift, slots) = geometry.map_or((PAGE_SHIFT, PAGES as u32), |g| {
            (u32::from(g.line_shift), 1 << g.data_slots.max(1))
        });
        assert!(
            geometry.is_none_or(|_| slots as usize <= LINES) && shift >= ENTRY_SHIFT,
            "L0 geometry has more slots or smaller lines than the engine keeps"
        );
        self.holds_lines = geometry.is_some();
        self.shift = shift;
        self.unit = 1 << shift;
        let stride_shift = ENTRY_SHIFT + u32::from(self.interleaves_privileges());
        self.index_shift = shift - stride_shift;
        self.mask = u64::from(slots - 1) << stride_shift;
        self.single_line = geometry.is_some_and(|g| g.data_slots == 0);
        let (slots, ways) = geometry.map_or((0, 1), |g| (g.data_slots, g.data_ways));
        // Before the sets change, since the sets determine which ways are in use.
        self.directory.clear_tags();
        self.directory.sets.configure(geometry, slots, ways);
        self.base = (self.first(self.privilege) << ENTRY_SHIFT) as u64;
        self.flush();
    }

    /// Returns whether the entries of user and kernel for one line are neighbours.
    #[inline(always)]
    fn interleaves_privileges(&self) -> bool {
        self.holds_lines && self.shift > ENTRY_SHIFT
    }

    /// Returns the slot of an address, relative to the first slot of its privilege.
    #[inline(always)]
    fn slot(&self, linear: u64) -> usize {
        (linear >> self.index_shift & self.mask) as usize >> ENTRY_SHIFT
    }

    /// Returns the first slot of a privilege's current entries.
    #[inline(always)]
    fn first(&self, privilege: usize) -> usize {
        if self.interleaves_privileges() {
            FIRST_LINE + privilege
        } else if self.holds_lines {
            FIRST_LINE + privilege * LINES
        } else {
            privilege * PAGES
        }
    }

    /// Returns the slot of the page of an address, for the current privilege.
    #[inline(always)]
    fn page_slot(&self, linear: u64) -> usize {
        (linear >> PAGE_SHIFT) as usize % PAGES + (self.privilege & 1) * PAGES
    }

    /// Returns the slot of the large page of an address, for the current privilege.
    #[inline(always)]
    fn large_slot(&self, linear: u64) -> usize {
        let slot = (linear >> LARGE_SHIFT) as usize % LARGE_PAGES;
        FIRST_LARGE + slot + (self.privilege & 1) * LARGE_PAGES
    }

    /// Returns the base address of an empty slot. The address is not canonical, and belongs to another slot, so that no access hits, not
    /// even an access at a non-canonical address.
    fn invalid_tag(&self, slot: usize) -> u64 {
        let (slot, shift) = if slot < FIRST_LARGE {
            (slot, PAGE_SHIFT)
        } else if slot < FIRST_LINE {
            (slot - FIRST_LARGE, LARGE_SHIFT)
        } else {
            (slot >> u32::from(self.interleaves_privileges()), self.shift)
        };
        1 << 63 | (slot as u64 ^ 1) << shift
    }

    fn invalid_entry(&self, slot: usize) -> TlbEntry {
        let invalid = self.invalid_tag(slot);
        TlbEntry {
            read: invalid,
            write: invalid,
            ..EMPTY
        }
    }

    /// Returns the offset of an access of `len` bytes from this base of an entry, if the access hits.
    #[inline(always)]
    pub fn hit(&self, base: u64, linear: u64, len: usize) -> Option<u64> {
        let offset = linear.wrapping_sub(base);
        (offset <= self.unit - len as u64).then_some(offset)
    }

    /// Looks up a span as [`DataTlb::hit`] does; a span may be longer than a unit (FRSTOR's 108 bytes, a line of 64).
    #[inline(always)]
    pub fn hit_span(&self, base: u64, linear: u64, len: usize) -> Option<u64> {
        let len = len.max(1);
        if len as u64 > self.unit {
            return None;
        }
        self.hit(base, linear, len)
    }

    /// Returns the layout for generated code: an entry's offset in bytes from `entries` is `(linear >> index_shift & mask)`, plus the
    /// privilege's offset.
    pub fn layout(&self) -> TlbLayout {
        TlbLayout {
            unit: self.unit as u32,
            index_shift: self.index_shift,
            mask: self.mask as u32,
            first: [0, 1].map(|privilege| self.first(privilege) << ENTRY_SHIFT),
            way_shift: self.directory.sets.way_shift(),
        }
    }

    /// Flushes all entries.
    pub fn flush(&mut self) {
        self.flush_pages(GLOBAL);
        self.flush_non_global();
    }

    fn flush_pages(&mut self, kind: usize) {
        for group in 0..SUMMARY_WORDS {
            for word in bits(std::mem::take(&mut self.occupied_words[kind][group])) {
                let word = 64 * group + word;
                for slot in bits(std::mem::take(&mut self.occupied[kind][word])) {
                    let slot = 64 * word + slot;
                    self.entries[slot] = self.invalid_entry(slot);
                }
            }
        }
    }

    fn flush_lines(&mut self) {
        if self.holds_lines {
            for slot in FIRST_LINE..SLOTS {
                self.entries[slot] = self.invalid_entry(slot);
            }
            self.directory.clear_tags();
        }
    }

    /// Flushes all lines, and all pages except global pages.
    pub fn flush_non_global(&mut self) {
        self.flush_pages(NON_GLOBAL);
        self.flush_lines();
    }

    /// Flushes the entries of one page: the page, its large page, and its lines.
    pub fn flush_page(&mut self, linear: u64) {
        let slot = (linear >> PAGE_SHIFT) as usize % PAGES;
        let large = FIRST_LARGE + (linear >> LARGE_SHIFT) as usize % LARGE_PAGES;
        for slot in [slot, slot + PAGES, large, large + LARGE_PAGES] {
            self.entries[slot] = self.invalid_entry(slot);
        }
        if self.holds_lines {
            for slot in FIRST_LINE..SLOTS {
                let entry = &self.entries[slot];
                if entry.read >> 12 == linear >> 12 || entry.write >> 12 == linear >> 12 {
                    self.entries[slot] = self.invalid_entry(slot);
                }
            }
            self.directory.clear_tags_of_page(linear);
        }
    }

    /// Revokes the permission to write from all entries, so that the next write to each page checks for code.
    pub fn revoke_writes(&mut self) {
        for word in 0..BITMAP_WORDS {
            for slot in bits(self.occupied[NON_GLOBAL][word] | self.occupied[GLOBAL][word]) {
                let slot = 64 * word + slot;
                self.entries[slot].write = self.invalid_tag(slot);
            }
        }
        for slot in FIRST_LINE..SLOTS {
            self.entries[slot].write = self.invalid_tag(slot);
        }
        for way in 0..DIRECTORY_WAYS {
            self.directory.set_writes(way, WritePermission::Denied);
        }
    }

    /// Switches between the entries of user and kernel.
    #[inline]
    pub fn set_privilege(&mut self, privilege: Privilege) {
        self.privilege = usize::from(privilege != Privilege::User);
        self.base = (self.first(self.privilege) << ENTRY_SHIFT) as u64;
    }

    /// Returns the current entry for an address.
    #[inline(always)]
    pub fn entry(&self, linear: u64) -> &TlbEntry {
        let at = (linear >> self.index_shift & self.mask) + self.base;
        // SAFETY: `base` is the first byte of one of the arrays and `mask` is less than its bytes and a multiple of an entry's.
        unsafe { &*self.entries.as_ptr().byte_add(at as usize) }
    }

    /// Returns log2 of the bytes of a unit: the page or line that a current entry holds.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Returns the number of bytes from an address to the end of its unit.
    #[inline(always)]
    pub fn room(&self, linear: u64) -> usize {
        (self.unit - (linear & (self.unit - 1))) as usize
    }

    /// Returns the first physical address of the unit of a physical address.
    pub fn line(&self, physical: u64) -> u64 {
        physical & !(self.unit - 1)
    }

    /// Returns the base of the unit of an address.
    #[inline(always)]
    fn tag(&self, linear: u64) -> u64 {
        linear & !(self.unit - 1)
    }

    /// Returns whether the current entry of an address leads to this host address, and permits an access.
    pub fn permits(&self, linear: u64, host: u64, write: bool) -> bool {
        let entry = self.entry(linear);
        let tag = self.tag(linear);
        let there = entry.host == host - (linear - tag);
        there && tag == if write { entry.write } else { entry.read }
    }

    /// Flushes the page of `linear` if an entry has the line (or page) of `linear`, but leads `linear` to another host address than `host`.
    pub fn flush_if_moved(&mut self, linear: u64, host: u64) {
        let tag = self.tag(linear);
        let here = host - (linear - tag);
        let entry = self.entry(linear);
        let mut elsewhere = entry.read == tag && entry.host != here;
        if self.directory.sets.enabled() {
            let wanted = WayDirectory::tag(tag, self.privilege);
            let ways = self.directory.sets.ways(self.directory.sets.set(linear));
            elsewhere |= ways.into_iter().any(|way| {
                let way_entry = &self.directory.entries[way];
                way_entry.tag == wanted && way_entry.host != here
            });
        }
        if elsewhere {
            self.flush_page(linear);
        }
    }

    /// Enters the page of an address.
    pub fn enter_page(&mut self, at: &PageMapping, global: bool) {
        self.enter_entry(self.page_slot(at.linear), PAGE_SHIFT, at, global);
    }

    /// Enters the large page of an address, which lies in one piece on the host. `at.writable` holds for the whole large page. While the
    /// current entries hold lines, a writable large page has no entries for its small pages, so that all look-ups find the same mapping.
    pub fn enter_large_page(&mut self, at: &PageMapping, global: bool) {
        let slot = self.large_slot(at.linear);
        let first = at.linear >> LARGE_SHIFT << LARGE_SHIFT;
        if self.holds_lines && at.writable && self.entries[slot].write != first {
            for part in (first..=first | ((1 << LARGE_SHIFT) - 1)).step_by(1 << PAGE_SHIFT) {
                self.flush_small_page(part);
            }
        }
        self.enter_entry(slot, LARGE_SHIFT, at, global);
    }

    /// Flushes the entry of a small page within a large page, for the current privilege.
    pub fn flush_small_page(&mut self, linear: u64) {
        let slot = self.page_slot(linear);
        if self.entries[slot].read == linear >> PAGE_SHIFT << PAGE_SHIFT {
            self.entries[slot] = self.invalid_entry(slot);
        }
    }

    #[inline(always)]
    fn enter_entry(&mut self, slot: usize, shift: u32, at: &PageMapping, global: bool) {
        let offset = at.linear & ((1 << shift) - 1);
        let tag = at.linear - offset;
        self.entries[slot] = TlbEntry {
            read: tag,
            write: if at.writable {
                tag
            } else {
                self.invalid_tag(slot)
            },
            host: at.host - offset,
            physical: at.physical - offset,
        };
        let bit = 1 << (slot % 64);
        let (kind, other) = if global {
            (GLOBAL, NON_GLOBAL)
        } else {
            (NON_GLOBAL, GLOBAL)
        };
        self.occupied[kind][slot / 64] |= bit;
        self.occupied_words[kind][slot / 64 / 64] |= 1 << (slot / 64 % 64);
        self.occupied[other][slot / 64] &= !bit;
    }

    /// Returns the translation of an address, if an entry of its page or large page permits the access.
    #[inline(always)]
    pub fn find_page(&self, linear: u64, write: bool) -> Option<PageMapping> {
        self.find_mapping(self.page_slot(linear), PAGE_SHIFT, linear, write)
            .or_else(|| self.find_mapping(self.large_slot(linear), LARGE_SHIFT, linear, write))
    }

    /// Returns the translation of an address from the entry of its large page, and enters the small page. Called where the current entries
    /// hold pages, and the small page's entry did not permit the access.
    #[inline(always)]
    pub fn refill_from_large_page(&mut self, linear: u64, write: bool) -> Option<PageMapping> {
        let slot = self.large_slot(linear);
        let at = self.find_mapping(slot, LARGE_SHIFT, linear, write)?;
        let global = self.occupied[GLOBAL][slot / 64] & 1 << (slot % 64) != 0;
        self.enter_page(&at, global);
        Some(at)
    }

    #[inline(always)]
    fn find_mapping(
        &self,
        slot: usize,
        shift: u32,
        linear: u64,
        write: bool,
    ) -> Option<PageMapping> {
        let entry = &self.entries[slot];
        let offset = linear & ((1 << shift) - 1);
        let tag = if write { entry.write } else { entry.read };
        (tag == linear - offset).then(|| PageMapping {
            linear,
            physical: entry.physical + offset,
            host: entry.host + offset,
            writable: entry.write == entry.read,
        })
    }

    /// Fills in the line of an address after a model has answered a reference, with the permission of that answer. `writable`: the page is
    /// writable; `placement`: the line's way, if whole sets are kept.
    #[inline(always)]
    pub fn fill_line(
        &mut self,
        linear: u64,
        host: u64,
        line: u64,
        outcome: &Outcome,
        placement: Option<Placement>,
        writable: bool,
    ) {
        if let Some(placement) = placement
            && outcome.permission() >= Permission::Read
            && let Some(way) = self
                .directory
                .sets
                .fill_at(line, outcome.replaced(), placement)
        {
            self.fill_new_line(linear, host, outcome.permission(), way, writable);
        } else {
            self.fill_any_line(linear, host, line, outcome, placement, writable);
        }
    }

    /// Enters a new line in a way, where no other line of the set has changed: the result of most misses.
    #[inline(always)]
    fn fill_new_line(
        &mut self,
        linear: u64,
        host: u64,
        held: Permission,
        way: usize,
        writable: bool,
    ) {
        let privilege = self.privilege & 1;
        let tag = linear & !(WayDirectory::LINE - 1);
        let host = host - (linear - tag);
        let writes = WritePermission::of(held, writable);
        // Slot of the user's entry; the kernel's entry is its neighbour.
        let pair = FIRST_LINE + self.slot(linear) % (2 * LINES);
        let entry = &mut self.entries[pair + privilege];
        entry.read = tag;
        entry.write = writes.address(tag);
        entry.host = host;
        // This address belongs to another slot.
        let elsewhere = tag ^ WayDirectory::LINE;
        let other = &mut self.entries[pair + (privilege ^ 1)];
        other.read = elsewhere;
        other.write = elsewhere;
        self.directory
            .set_entry(way, WayEntry::new(tag, privilege, host, writes));
    }

    #[inline(never)]
    fn fill_any_line(
        &mut self,
        linear: u64,
        host: u64,
        line: u64,
        outcome: &Outcome,
        placement: Option<Placement>,
        writable: bool,
    ) {
        let privilege = self.privilege;
        let slot = self.slot(linear) + self.first(privilege);
        let other = self.slot(linear) + self.first(privilege ^ 1);
        let tag = self.tag(linear);
        let invalid = self.invalid_tag(slot);
        let writes = WritePermission::of(outcome.permission(), writable);
        let readable = outcome.permission() >= Permission::Read;
        let host = host - (linear - tag);
        self.entries[other] = self.invalid_entry(other);
        if self.single_line {
            // The other slot: in the next pair, or the next slot.
            let step = 1 << u32::from(self.interleaves_privileges());
            for sibling in [slot ^ step, other ^ step] {
                self.entries[sibling] = self.invalid_entry(sibling);
            }
        }
        self.entries[slot] = TlbEntry {
            read: if readable { tag } else { invalid },
            write: if writes == WritePermission::Allowed {
                tag
            } else {
                invalid
            },
            host,
            physical: line,
        };
        let Some(placement) = placement else { return };
        if !readable {
            for gone in outcome.replaced().into_iter().chain([line]) {
                self.directory.remove(gone);
            }
        } else {
            let way = self
                .directory
                .sets
                .fill(line, outcome.replaced(), placement);
            self.directory
                .set_entry(way, WayEntry::new(tag, privilege, host, writes));
        }
    }

    /// Returns the host address of an access of `len` bytes, if the most recently used line of its set contains the whole access and
    /// permits it.
    #[inline(always)]
    pub fn find_most_recent(&self, linear: u64, len: usize, write: bool) -> Option<*mut u8> {
        let entry = self.entry(linear);
        let tag = if write { entry.write } else { entry.read };
        let offset = self.hit(tag, linear, len)?;
        Some((entry.host + offset) as *mut u8)
    }

    /// Returns the way of the line of an address; None if whole sets are not kept, or no way has the line and permits the access.
    #[inline]
    pub fn find_way(&self, linear: u64, write: bool) -> Option<usize> {
        if !self.directory.sets.enabled() {
            return None;
        }
        let wanted = WayDirectory::tag(self.tag(linear), self.privilege);
        let ways = self.directory.sets.ways(self.directory.sets.set(linear));
        let way = ways.start
            + self.directory.entries[ways]
                .iter()
                .position(|way_entry| way_entry.tag == wanted)?;
        let permitted = match self.directory.entries[way].writes() {
            WritePermission::Allowed => true,
            WritePermission::Exclusive => !write || self.directory.modified.has_room(),
            WritePermission::Denied => !write,
        };
        permitted.then_some(way)
    }

    /// Serves an access of `len` bytes from another line than the most recently used line of the set, and makes that line the most recently
    /// used. Returns the host address; None if no line serves the access. Translated code does the same in `native/way_lookup.rs`.
    #[inline]
    pub fn promote(&mut self, linear: u64, len: usize, write: bool) -> Option<*mut u8> {
        if !self.directory.sets.enabled() || len == 0 || len > self.room(linear) {
            return None;
        }
        let (slot, privilege) = (self.slot(linear), self.privilege);
        let tag = self.tag(linear);
        let way = self.find_way(linear, write)?;
        let way_entry = self.directory.entries[way];
        let (host, mut writes) = (way_entry.host, way_entry.writes());
        if write && writes != WritePermission::Allowed {
            let noted = self.directory.modified.push(self.directory.sets.lines[way]);
            debug_assert!(noted, "there was room");
            writes = WritePermission::Allowed;
            self.directory.set_writes(way, writes);
        }
        self.directory.sets.promote(way);
        let entry = &mut self.entries[slot + self.first(privilege)];
        entry.read = tag;
        entry.write = writes.address(tag);
        entry.host = host;
        // This address belongs to another slot.
        let elsewhere = tag ^ self.unit;
        let other = slot + self.first(privilege ^ 1);
        let other = &mut self.entries[other];
        other.read = elsewhere;
        other.write = elsewhere;
        Some((host + (linear - tag)) as *mut u8)
    }

    /// Lowers the permission for a line, as a model demands.
    pub fn update(&mut self, update: &L0Update) {
        let whole_sets = self.directory.sets.enabled();
        let way = match whole_sets {
            true => self.directory.sets.find(update.line),
            false => None,
        };
        for privilege in [0, 1] {
            let slot = self.slot(update.line) + self.first(privilege);
            let empty = self.invalid_entry(slot);
            let e = &mut self.entries[slot];
            // Where whole sets are kept, entries are copies of the directory's entries, which have no physical address.
            let there = match way {
                Some(way) => e.host == self.directory.entries[way].host,
                None => !whole_sets && e.physical == update.line,
            };
            if there {
                match update.permission {
                    Permission::None => *e = empty,
                    Permission::Read => e.write = empty.write,
                    Permission::Exclusive | Permission::ReadWrite => {}
                }
            }
        }
        let Some(way) = way else { return };
        match update.permission {
            Permission::None => self.directory.remove(update.line),
            Permission::Read => self.directory.set_writes(way, WritePermission::Denied),
            Permission::Exclusive | Permission::ReadWrite => {}
        }
    }
}
