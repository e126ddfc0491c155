//! Pages or lines that loads and stores may touch.

use nodescope_plugin_api::{L0Geometry, L0Update, Outcome, Permission, Privilege};

use super::isa::Isa;
use super::second::{Known, SecondLevel, Writes};
use super::sets::{LANES, Oldest, Position};

/// Slots for pages, for each privilege.
const PAGES: usize = 2048;
/// Slots for lines, for each privilege. Those of user and kernel for one set are neighbours, in one line of the host, but for
/// lines of the model that are as small as an entry.
const LINES: usize = 128;
/// Slots for large pages, for each privilege: as much memory as a program may want to go through at random.
const LARGE_PAGES: usize = 512;
/// First slots of large pages, and of lines: those of pages come before.
const FIRST_LARGE: usize = 2 * PAGES;
const FIRST_LINE: usize = FIRST_LARGE + 2 * LARGE_PAGES;
/// Words of a bit for each page's slot.
const WORDS: usize = FIRST_LINE / 64;
/// Words of a bit for each of these.
const GROUPS: usize = WORDS.div_ceil(64);
/// All slots.
const SLOTS: usize = FIRST_LINE + 2 * LINES;

/// A page (or line) that loads and stores may touch. An access of `n` bytes at `linear` hits where
/// `linear - read <= unit - n`: one subtraction finds both the right page and an access that leaves it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Entry {
    /// First linear address of the page or line where reads may pass.
    pub read: u64,
    /// The same for writes.
    pub write: u64,
    /// Host address of the page or line.
    pub host: u64,
    /// Physical address of the page; of the line only where whole sets are not kept.
    pub physical: u64,
}

const EMPTY: Entry = Entry {
    read: 0,
    write: 0,
    host: 0,
    physical: 0,
};

/// An address of a page that loads and stores may touch.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    pub linear: u64,
    pub physical: u64,
    /// Where it is on the host.
    pub host: u64,
    /// Writes need no other look.
    pub writable: bool,
}

/// What loads and stores ask first: pages or, while a model is attached, lines. Pages are kept then, too: where a line is
/// missing, its page usually is not.
#[repr(C)]
pub struct DataFilter {
    /// Entries that are asked stand for lines, which may be as large as pages.
    of_lines: bool,
    /// log2 of what an entry that is asked stands for: page or line.
    shift: u32,
    /// The same in bytes.
    unit: u64,
    /// By so much an address is shifted: what is left of it is an index in bytes.
    index_shift: u32,
    /// Slots in use, minus one, times the bytes from one slot to the next.
    mask: u64,
    /// First byte of the current privilege's entries that are asked.
    base: u64,
    /// 0: user, 1: kernel.
    privilege: usize,
    /// Pages of user and kernel, lines of user and kernel.
    pub entries: [Entry; SLOTS],
    /// Pages that were entered, one bit for each: those that do not survive a change of address space, and global ones.
    entered: [[u64; WORDS]; 2],
    /// Words of these that have any, a bit for each.
    any_entered: [[u64; GROUPS]; 2],
    /// The model allows one entry only.
    single: bool,
    /// All lines of each set.
    pub second: SecondLevel,
}

/// Where entries of a [`DataFilter`] lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterLayout {
    /// Bytes that an entry stands for.
    pub unit: u32,
    /// Shift of the linear address.
    pub index_shift: u32,
    /// Mask of the shifted address.
    pub mask: u32,
    /// Offsets of user's and the kernel's entries.
    pub first: [usize; 2],
    /// log2 of the lanes of a set, 0 where only the most recently used lines are kept.
    pub lane_shift: u32,
}

/// log2 of the size of an entry.
const ENTRY_SHIFT: u32 = 5;
const _: () = assert!(size_of::<Entry>() == 1 << ENTRY_SHIFT);

/// Numbers of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        bit
    })
}

/// Kinds of pages.
const LOCAL: usize = 0;
const GLOBAL: usize = 1;

/// log2 of the size of a page, and of a large one.
pub const PAGE_SHIFT: u32 = 12;
pub const LARGE_SHIFT: u32 = 21;

impl Default for DataFilter {
    fn default() -> Self {
        let mut filter = Self {
            of_lines: false,
            shift: PAGE_SHIFT,
            unit: 1 << PAGE_SHIFT,
            index_shift: 0,
            mask: 0,
            base: 0,
            privilege: 1,
            entries: [EMPTY; SLOTS],
            entered: [[0; WORDS]; 2],
            any_entered: [[0; GROUPS]; 2],
            single: false,
            second: SecondLevel::default(),
        };
        for slot in 0..SLOTS {
            filter.entries[slot] = filter.empty(slot);
        }
        filter.shape(None);
        filter
    }
}

impl DataFilter {
    /// Offsets of user's and the kernel's lines of 64 bytes from the first entry, in bytes.
    pub const LINES: [usize; 2] = [FIRST_LINE << ENTRY_SHIFT, (FIRST_LINE + 1) << ENTRY_SHIFT];

    /// Offset of the mask by which the address of a line of 64 bytes becomes the offset of its entry among those of
    /// [`DataFilter::LINES`].
    pub const MASK: usize = std::mem::offset_of!(Self, mask);

    /// Offsets of user's and the kernel's pages from the first entry, in bytes.
    pub const PAGES: [usize; 2] = [0, PAGES << ENTRY_SHIFT];
    /// An address shifted right by so much, and masked, is the offset of its page's entry among those of a privilege.
    pub const PAGE_INDEX: (u32, u32) = (
        PAGE_SHIFT - ENTRY_SHIFT,
        ((PAGES - 1) << ENTRY_SHIFT) as u32,
    );
    /// The same of large pages: their offset is from the entries of pages of that privilege, after this is added.
    pub const LARGE_INDEX: (u32, u32) = (
        LARGE_SHIFT - ENTRY_SHIFT,
        ((LARGE_PAGES - 1) << ENTRY_SHIFT) as u32,
    );
    /// Offsets of user's and the kernel's large pages from the first entry, in bytes.
    pub const LARGE_PAGES: [usize; 2] = [
        FIRST_LARGE << ENTRY_SHIFT,
        (FIRST_LARGE + LARGE_PAGES) << ENTRY_SHIFT,
    ];
    /// Bytes of a page, and of a large one.
    pub const PAGE_SIZES: [u64; 2] = [1 << PAGE_SHIFT, 1 << LARGE_SHIFT];

    /// What [`DataFilter::set_privilege`] sets where entries stand for pages: offsets of fields, and their values.
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

    /// Entries stand for pages (None) or for lines of a model's first-level cache.
    pub fn shape(&mut self, geometry: Option<L0Geometry>) {
        // Two slots at least, so that an empty slot can hold an address that belongs to the other one; see `empty`.
        let (shift, slots) = geometry.map_or((PAGE_SHIFT, PAGES as u32), |g| {
            (u32::from(g.line_shift), 1 << g.data_slots.max(1))
        });
        assert!(
            geometry.is_none_or(|_| slots as usize <= LINES) && shift >= ENTRY_SHIFT,
            "filter geometry has more slots or smaller lines than the engine keeps"
        );
        self.of_lines = geometry.is_some();
        self.shift = shift;
        self.unit = 1 << shift;
        let stride_shift = ENTRY_SHIFT + u32::from(self.pairs());
        self.index_shift = shift - stride_shift;
        self.mask = u64::from(slots - 1) << stride_shift;
        self.single = geometry.is_some_and(|g| g.data_slots == 0);
        let (slots, ways) = geometry.map_or((0, 1), |g| (g.data_slots, g.data_ways));
        // While it is known which lanes are in use.
        self.second.forget_linear();
        self.second.sets.shape(geometry, slots, ways);
        self.base = (self.first(self.privilege) << ENTRY_SHIFT) as u64;
        self.flush();
    }

    /// Whether the entries of user and kernel for one line are neighbours.
    #[inline(always)]
    fn pairs(&self) -> bool {
        self.of_lines && self.shift > ENTRY_SHIFT
    }

    /// Slot of an address, less the first of its privilege.
    #[inline(always)]
    fn slot(&self, linear: u64) -> usize {
        (linear >> self.index_shift & self.mask) as usize >> ENTRY_SHIFT
    }

    /// A privilege's first entry of those that are asked.
    #[inline(always)]
    fn first(&self, privilege: usize) -> usize {
        if self.pairs() {
            FIRST_LINE + privilege
        } else if self.of_lines {
            FIRST_LINE + privilege * LINES
        } else {
            privilege * PAGES
        }
    }

    /// Slot of the page of an address, for the current privilege.
    #[inline(always)]
    fn page_slot(&self, linear: u64) -> usize {
        (linear >> PAGE_SHIFT) as usize % PAGES + (self.privilege & 1) * PAGES
    }

    /// The same of its large page.
    #[inline(always)]
    fn large_slot(&self, linear: u64) -> usize {
        let slot = (linear >> LARGE_SHIFT) as usize % LARGE_PAGES;
        FIRST_LARGE + slot + (self.privilege & 1) * LARGE_PAGES
    }

    /// The base address of an empty slot: it is not canonical, and it belongs to another slot, so that no address, not even
    /// one that is not canonical, hits.
    fn nowhere(&self, slot: usize) -> u64 {
        let (slot, shift) = if slot < FIRST_LARGE {
            (slot, PAGE_SHIFT)
        } else if slot < FIRST_LINE {
            (slot - FIRST_LARGE, LARGE_SHIFT)
        } else {
            (slot >> u32::from(self.pairs()), self.shift)
        };
        1 << 63 | (slot as u64 ^ 1) << shift
    }

    fn empty(&self, slot: usize) -> Entry {
        let nowhere = self.nowhere(slot);
        Entry {
            read: nowhere,
            write: nowhere,
            ..EMPTY
        }
    }

    /// Whether an access of `len` bytes hits an entry with this base; its offset.
    #[inline(always)]
    pub fn hit(&self, base: u64, linear: u64, len: usize) -> Option<u64> {
        let offset = linear.wrapping_sub(base);
        (offset <= self.unit - len as u64).then_some(offset)
    }

    /// The same for a span, which may be longer than what an entry stands for (FRSTOR's 108 bytes, a line of 64).
    #[inline(always)]
    pub fn hit_span(&self, base: u64, linear: u64, len: usize) -> Option<u64> {
        let len = len.max(1);
        if len as u64 > self.unit {
            return None;
        }
        self.hit(base, linear, len)
    }

    /// What generated code needs to find an entry: `(linear >> index_shift & mask)` is its offset in bytes from
    /// `entries`, to which the privilege's own is added.
    pub fn layout(&self) -> FilterLayout {
        FilterLayout {
            unit: self.unit as u32,
            index_shift: self.index_shift,
            mask: self.mask as u32,
            first: [0, 1].map(|privilege| self.first(privilege) << ENTRY_SHIFT),
            lane_shift: self.second.sets.lane_shift(),
        }
    }

    /// Drop everything.
    pub fn flush(&mut self) {
        self.flush_pages(GLOBAL);
        self.flush_local();
    }

    fn flush_pages(&mut self, kind: usize) {
        for group in 0..GROUPS {
            for word in bits(std::mem::take(&mut self.any_entered[kind][group])) {
                let word = 64 * group + word;
                for slot in bits(std::mem::take(&mut self.entered[kind][word])) {
                    let slot = 64 * word + slot;
                    self.entries[slot] = self.empty(slot);
                }
            }
        }
    }

    fn flush_lines(&mut self) {
        if self.of_lines {
            for slot in FIRST_LINE..SLOTS {
                self.entries[slot] = self.empty(slot);
            }
            self.second.forget_linear();
        }
    }

    /// Drop all but global pages, and all lines.
    pub fn flush_local(&mut self) {
        self.flush_pages(LOCAL);
        self.flush_lines();
    }

    /// Drop what belongs to one page.
    pub fn flush_page(&mut self, linear: u64) {
        let slot = (linear >> PAGE_SHIFT) as usize % PAGES;
        let large = FIRST_LARGE + (linear >> LARGE_SHIFT) as usize % LARGE_PAGES;
        for slot in [slot, slot + PAGES, large, large + LARGE_PAGES] {
            self.entries[slot] = self.empty(slot);
        }
        if self.of_lines {
            for slot in FIRST_LINE..SLOTS {
                let entry = &self.entries[slot];
                if entry.read >> 12 == linear >> 12 || entry.write >> 12 == linear >> 12 {
                    self.entries[slot] = self.empty(slot);
                }
            }
            self.second.forget_page(linear);
        }
    }

    /// Forbid writes everywhere: pages that became code must be seen.
    pub fn drop_writes(&mut self) {
        for word in 0..WORDS {
            for slot in bits(self.entered[LOCAL][word] | self.entered[GLOBAL][word]) {
                let slot = 64 * word + slot;
                self.entries[slot].write = self.nowhere(slot);
            }
        }
        for slot in FIRST_LINE..SLOTS {
            self.entries[slot].write = self.nowhere(slot);
        }
        for lane in 0..LANES {
            self.second.set_writes(lane, Writes::Forbidden);
        }
    }

    /// Switch between the arrays of user and kernel.
    #[inline]
    pub fn set_privilege(&mut self, privilege: Privilege) {
        self.privilege = usize::from(privilege != Privilege::User);
        self.base = (self.first(self.privilege) << ENTRY_SHIFT) as u64;
    }

    /// The entry that an address asks.
    #[inline(always)]
    pub fn entry(&self, linear: u64) -> &Entry {
        let at = (linear >> self.index_shift & self.mask) + self.base;
        // SAFETY: `base` is the first byte of one of the four arrays and `mask` less than its bytes and a multiple of an entry's.
        unsafe { &*self.entries.as_ptr().byte_add(at as usize) }
    }

    /// log2 of the bytes that an entry stands for.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Bytes from an address to the end of what its entry stands for.
    #[inline(always)]
    pub fn room(&self, linear: u64) -> usize {
        (self.unit - (linear & (self.unit - 1))) as usize
    }

    /// The line of a physical address.
    pub fn line(&self, physical: u64) -> u64 {
        physical & !(self.unit - 1)
    }

    /// The base of an entry for an address.
    #[inline(always)]
    fn tag(&self, linear: u64) -> u64 {
        linear & !(self.unit - 1)
    }

    /// Whether the entry of an address holds what is at this host address, and permits an access.
    pub fn permits(&self, linear: u64, host: u64, write: bool) -> bool {
        let entry = self.entry(linear);
        let tag = self.tag(linear);
        let there = entry.host == host - (linear - tag);
        there && tag == if write { entry.write } else { entry.read }
    }

    /// Forget the page of an address if a line of it is known elsewhere than here on the host.
    pub fn expect(&mut self, linear: u64, host: u64) {
        let tag = self.tag(linear);
        let here = host - (linear - tag);
        let entry = self.entry(linear);
        let mut elsewhere = entry.read == tag && entry.host != here;
        if self.second.sets.kept() {
            let wanted = SecondLevel::tag(tag, self.privilege);
            let lanes = self.second.sets.lanes(self.second.sets.set(linear));
            elsewhere |= lanes.into_iter().any(|lane| {
                let known = &self.second.known[lane];
                known.tag == wanted && known.host != here
            });
        }
        if elsewhere {
            self.flush_page(linear);
        }
    }

    /// Enter the page of an address.
    pub fn enter_page(&mut self, at: &Mapped, global: bool) {
        self.enter_unit(self.page_slot(at.linear), PAGE_SHIFT, at, global);
    }

    /// Enter the large page of an address, all of which lies in one piece on the host; `at.writable` is said of all of it. While entries
    /// stand for lines, parts of a large page that may be written are not known beside it, so that all who ask find the same.
    pub fn enter_large(&mut self, at: &Mapped, global: bool) {
        let slot = self.large_slot(at.linear);
        let first = at.linear >> LARGE_SHIFT << LARGE_SHIFT;
        if self.of_lines && at.writable && self.entries[slot].write != first {
            for part in (first..=first | ((1 << LARGE_SHIFT) - 1)).step_by(1 << PAGE_SHIFT) {
                self.drop_part(part);
            }
        }
        self.enter_unit(slot, LARGE_SHIFT, at, global);
    }

    /// Forget a page of the current privilege that is a part of a large one.
    pub fn drop_part(&mut self, linear: u64) {
        let slot = self.page_slot(linear);
        if self.entries[slot].read == linear >> PAGE_SHIFT << PAGE_SHIFT {
            self.entries[slot] = self.empty(slot);
        }
    }

    #[inline(always)]
    fn enter_unit(&mut self, slot: usize, shift: u32, at: &Mapped, global: bool) {
        let offset = at.linear & ((1 << shift) - 1);
        let tag = at.linear - offset;
        self.entries[slot] = Entry {
            read: tag,
            write: if at.writable { tag } else { self.nowhere(slot) },
            host: at.host - offset,
            physical: at.physical - offset,
        };
        let bit = 1 << (slot % 64);
        let (kind, other) = if global {
            (GLOBAL, LOCAL)
        } else {
            (LOCAL, GLOBAL)
        };
        self.entered[kind][slot / 64] |= bit;
        self.any_entered[kind][slot / 64 / 64] |= 1 << (slot / 64 % 64);
        self.entered[other][slot / 64] &= !bit;
    }

    /// The page of an address, or the large one, if it was entered and permits the access.
    #[inline(always)]
    pub fn page(&self, linear: u64, write: bool) -> Option<Mapped> {
        self.mapped(self.page_slot(linear), PAGE_SHIFT, linear, write)
            .or_else(|| self.mapped(self.large_slot(linear), LARGE_SHIFT, linear, write))
    }

    /// The same where entries of pages are what is asked first, and the page's did not permit the access: it is entered.
    #[inline(always)]
    pub fn page_of_large(&mut self, linear: u64, write: bool) -> Option<Mapped> {
        let slot = self.large_slot(linear);
        let at = self.mapped(slot, LARGE_SHIFT, linear, write)?;
        let global = self.entered[GLOBAL][slot / 64] & 1 << (slot % 64) != 0;
        self.enter_page(&at, global);
        Some(at)
    }

    #[inline(always)]
    fn mapped(&self, slot: usize, shift: u32, linear: u64, write: bool) -> Option<Mapped> {
        let entry = &self.entries[slot];
        let offset = linear & ((1 << shift) - 1);
        let tag = if write { entry.write } else { entry.read };
        (tag == linear - offset).then(|| Mapped {
            linear,
            physical: entry.physical + offset,
            host: entry.host + offset,
            writable: entry.write == entry.read,
        })
    }

    /// A model has answered a reference: enter the line of an address, with what the model permits. `writable`: the page
    /// allows it, too; `position`: where the line is to lie, if whole sets are kept.
    #[inline(always)]
    pub fn enter_line(
        &mut self,
        linear: u64,
        host: u64,
        line: u64,
        outcome: &Outcome,
        position: Option<Position>,
        writable: bool,
    ) {
        if let Some(position) = position
            && outcome.permission() >= Permission::Read
            && let Some(lane) = self.second.sets.replace(line, outcome.replaced(), position)
        {
            self.enter_new(linear, host, outcome.permission(), lane, writable);
        } else {
            self.enter_any(linear, host, line, outcome, position, writable);
        }
    }

    /// A model has let a line take the place of the oldest of its set, and permits so much.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub fn succeed(
        &mut self,
        isa: impl Isa,
        linear: u64,
        host: u64,
        line: u64,
        held: Permission,
        oldest: &Oldest,
        writable: bool,
    ) {
        let lane = self.second.sets.succeed(isa, oldest, line);
        self.enter_new(linear, host, held, lane, writable);
    }

    /// What most misses come to: the line is the only one that is new in its set.
    #[inline(always)]
    fn enter_new(&mut self, linear: u64, host: u64, held: Permission, lane: usize, writable: bool) {
        let privilege = self.privilege & 1;
        let tag = linear & !(SecondLevel::LINE - 1);
        let host = host - (linear - tag);
        let writes = Writes::of(held, writable);
        // Of the user's entry; the kernel's is beside it.
        let pair = FIRST_LINE + self.slot(linear) % (2 * LINES);
        let entry = &mut self.entries[pair + privilege];
        entry.read = tag;
        entry.write = writes.address(tag);
        entry.host = host;
        // This address belongs to another slot.
        let elsewhere = tag ^ SecondLevel::LINE;
        let other = &mut self.entries[pair + (privilege ^ 1)];
        other.read = elsewhere;
        other.write = elsewhere;
        self.second
            .enter(lane, Known::new(tag, privilege, host, writes));
    }

    #[inline(never)]
    fn enter_any(
        &mut self,
        linear: u64,
        host: u64,
        line: u64,
        outcome: &Outcome,
        position: Option<Position>,
        writable: bool,
    ) {
        let privilege = self.privilege;
        let slot = self.slot(linear) + self.first(privilege);
        let other = self.slot(linear) + self.first(privilege ^ 1);
        let tag = self.tag(linear);
        let nowhere = self.nowhere(slot);
        let writes = Writes::of(outcome.permission(), writable);
        let readable = outcome.permission() >= Permission::Read;
        let host = host - (linear - tag);
        self.entries[other] = self.empty(other);
        if self.single {
            // The other slot: of the next pair, or the next one.
            let step = 1 << u32::from(self.pairs());
            for sibling in [slot ^ step, other ^ step] {
                self.entries[sibling] = self.empty(sibling);
            }
        }
        self.entries[slot] = Entry {
            read: if readable { tag } else { nowhere },
            write: if writes == Writes::Pass { tag } else { nowhere },
            host,
            physical: line,
        };
        let Some(position) = position else { return };
        if !readable {
            for gone in outcome.replaced().into_iter().chain([line]) {
                self.second.remove(gone);
            }
        } else {
            let lane = self.second.sets.enter(line, outcome.replaced(), position);
            self.second
                .enter(lane, Known::new(tag, privilege, host, writes));
        }
    }

    /// The host address of an access of `len` bytes within the most recently used line of its set, if that permits the access.
    #[inline(always)]
    pub fn hits(&self, linear: u64, len: usize, write: bool) -> Option<*mut u8> {
        let entry = self.entry(linear);
        let tag = if write { entry.write } else { entry.read };
        let offset = self.hit(tag, linear, len)?;
        Some((entry.host + offset) as *mut u8)
    }

    /// The lane of the line of an address, if whole sets are kept and that line permits the access.
    #[inline]
    pub fn lane(&self, linear: u64, write: bool) -> Option<usize> {
        if !self.second.sets.kept() {
            return None;
        }
        let wanted = SecondLevel::tag(self.tag(linear), self.privilege);
        let lanes = self.second.sets.lanes(self.second.sets.set(linear));
        let lane = lanes.start
            + self.second.known[lanes]
                .iter()
                .position(|known| known.tag == wanted)?;
        let permitted = match self.second.known[lane].writes() {
            Writes::Pass => true,
            Writes::Exclusive => !write || self.second.modified.has_room(),
            Writes::Forbidden => !write,
        };
        permitted.then_some(lane)
    }

    /// Serve an access of `len` bytes that missed its set's most recent line by another line of the set, which becomes the
    /// most recent. As translated code does in [`crate::native`]. The host address.
    #[inline]
    pub fn promote(&mut self, linear: u64, len: usize, write: bool) -> Option<*mut u8> {
        if !self.second.sets.kept() || len == 0 || len > self.room(linear) {
            return None;
        }
        let (slot, privilege) = (self.slot(linear), self.privilege);
        let tag = self.tag(linear);
        let lane = self.lane(linear, write)?;
        let known = self.second.known[lane];
        let (host, mut writes) = (known.host, known.writes());
        if write && writes != Writes::Pass {
            let noted = self.second.modified.note(self.second.sets.lines[lane]);
            debug_assert!(noted, "there was room");
            writes = Writes::Pass;
            self.second.set_writes(lane, writes);
        }
        self.second.sets.promote(lane);
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

    /// Lower what is permitted for a line.
    pub fn update(&mut self, update: &L0Update) {
        let kept = self.second.sets.kept();
        let lane = match kept {
            true => self.second.sets.find(update.line),
            false => None,
        };
        for privilege in [0, 1] {
            let slot = self.slot(update.line) + self.first(privilege);
            let empty = self.empty(slot);
            let e = &mut self.entries[slot];
            // Entries of sets that are kept are made of lanes, and those have no physical address at hand.
            let there = match lane {
                Some(lane) => e.host == self.second.known[lane].host,
                None => !kept && e.physical == update.line,
            };
            if there {
                match update.permission {
                    Permission::None => *e = empty,
                    Permission::Read => e.write = empty.write,
                    Permission::Exclusive | Permission::ReadWrite => {}
                }
            }
        }
        let Some(lane) = lane else { return };
        match update.permission {
            Permission::None => self.second.remove(update.line),
            Permission::Read => self.second.set_writes(lane, Writes::Forbidden),
            Permission::Exclusive | Permission::ReadWrite => {}
        }
    }
}
