//! Block table of a vCPU: a direct-mapped table from instruction pointer to decoded block, which answers nearly every look-up.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::block::{AddressHasher, Block, Blocks};
use crate::cpu::Mode;
use crate::mmu::Page;
use crate::op::Op;

/// Number of slots in the table.
const SLOTS: usize = 1 << 14;

/// Result of a look-up: a block, as the run loop uses it.
#[derive(Clone, Copy)]
pub struct Entry {
    /// First operation of the block.
    pub ops: *const Op,
    /// The block itself.
    pub block: *const Block,
    /// Number of operations.
    pub count: u32,
}

#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Slot {
    ip: u64,
    ops: *const Op,
    block: *const Block,
    count: u32,
    /// Epoch in which the block was found, above [`KEY_BITS`] low bits with mode and privilege.
    tag: u32,
}

/// Words of 64 bits in the bitmap of linear pages that have code.
const PAGE_WORDS: usize = 64;
/// Words of 64 bits in the bitmap of physical pages that have blocks.
const SOURCE_WORDS: usize = 512;

/// Number of a tag's low bits for the key. No key has all of them set.
const KEY_BITS: u32 = 3;

const EMPTY: Slot = Slot {
    ip: 0,
    ops: std::ptr::null(),
    block: std::ptr::null(),
    count: 0,
    tag: u32::MAX,
};

impl Slot {
    #[inline(always)]
    fn entry(&self) -> Entry {
        Entry {
            ops: self.ops,
            block: self.block,
            count: self.count,
        }
    }
}

/// Counts of changes to a [`BlockTable`]. A user of earlier answers compares them to detect that the answers are stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of times that translations, or code, of the lower and the upper half of the address space may have changed.
    pub changes: [u64; 2],
    /// Number of times that code was written to.
    pub rewrites: u64,
    /// Value of [`crate::code::Code::evictions`] at the last check.
    pub evictions: u64,
}

/// Block table: the blocks that a vCPU has found, by instruction pointer.
///
/// A slot with a current tag is valid without a further check. The tag becomes stale when a translation or code may have changed. A stale
/// slot is compared with the page's current translation, and its block with the code map, before its next use.
pub struct BlockTable {
    slots: Box<[Slot]>,
    /// Epoch of the lower and the upper half of the address space. It advances in steps of `1 << KEY_BITS` when translations or code of
    /// that half may have changed.
    epoch: [u32; 2],
    /// Bitmaps of the linear pages of each half for which slots were filled in this epoch, by the low bits of the page number.
    pages: [[u64; PAGE_WORDS]; 2],
    /// Bitmaps of the physical pages of these slots' blocks, by the low bits of the page number.
    sources: [[u64; SOURCE_WORDS]; 2],
    /// Translations of the pages of each half from which code was fetched in this epoch, by linear page and key. A page's translation does
    /// not change within an epoch. Therefore blocks of a page may be chained to each other, whichever vCPU chained them.
    page_translations: [HashMap<(u64, u8), Page, BuildHasherDefault<AddressHasher>>; 2],
    /// True if code in the upper half was fetched through a page that is not global, in this epoch.
    pub upper_not_global: bool,
    /// Counts that [`BlockTable::counts`] returns.
    counts: Counts,
}

impl Default for BlockTable {
    fn default() -> Self {
        Self {
            slots: vec![EMPTY; SLOTS].into(),
            epoch: [0; 2],
            pages: [[0; PAGE_WORDS]; 2],
            sources: [[0; SOURCE_WORDS]; 2],
            page_translations: Default::default(),
            upper_not_global: false,
            counts: Counts::default(),
        }
    }
}

impl BlockTable {
    #[inline(always)]
    fn slot_of(ip: u64) -> usize {
        (ip ^ ip >> 14) as usize & (SLOTS - 1)
    }

    #[inline(always)]
    fn tag(&self, ip: u64, key: u8) -> u32 {
        self.epoch[(ip >> 63) as usize] | u32::from(key)
    }

    /// Returns the block at a linear address if it was found before in this epoch, or none. `key` distinguishes modes and privileges.
    #[inline(always)]
    pub fn find(&self, ip: u64, key: u8) -> Option<Entry> {
        // SAFETY: `slot_of` returns less than the number of slots.
        let slot = unsafe { self.slots.get_unchecked(Self::slot_of(ip)) };
        (slot.ip == ip && slot.tag == self.tag(ip, key)).then(|| slot.entry())
    }

    /// Returns the block at a physical address that the linear address `ip` now maps to, and adds it to the table. None if the node has no
    /// current block there.
    pub fn find_physical(
        &mut self,
        blocks: &Blocks,
        ip: u64,
        key: u8,
        physical: u64,
        second: u64,
        mode: Mode,
    ) -> Option<Entry> {
        let tag = self.tag(ip, key);
        let slot = &mut self.slots[Self::slot_of(ip)];
        if slot.ip == ip && slot.tag != EMPTY.tag && (slot.tag ^ tag) << (32 - KEY_BITS) == 0 {
            // SAFETY: blocks are freed only by evictions, each of which advances `Code::evictions`. `see_evictions` then empties the slots before
            // this vCPU's next look-up, so the slot's block still exists.
            let block = unsafe { &*slot.block };
            if block.physical == physical && block.second_page == second && block.is_current() {
                slot.tag = tag;
                let entry = slot.entry();
                self.note_pages(ip, block.len());
                self.note_sources(ip, block);
                return Some(entry);
            }
        }
        let block = blocks.find(physical, second, mode)?;
        Some(self.remember(ip, key, block))
    }

    /// Returns the page of a linear address, if code was fetched from it in this epoch.
    pub fn page(&self, linear: u64, key: u8) -> Option<&Page> {
        self.page_translations[(linear >> 63) as usize].get(&(linear >> 12, key))
    }

    /// Adds the page of a linear address from which code is fetched.
    pub fn add_page(&mut self, linear: u64, key: u8, page: Page) {
        self.note_pages(linear, 1);
        self.upper_not_global |= linear >> 63 != 0 && !page.global();
        self.page_translations[(linear >> 63) as usize].insert((linear >> 12, key), page);
    }

    /// Adds a block at a linear address.
    pub fn remember(&mut self, ip: u64, key: u8, block: &Block) -> Entry {
        let entry = Entry {
            ops: block.ops().as_ptr(),
            block,
            count: block.ops().len() as u32,
        };
        self.note_pages(ip, block.len());
        self.note_sources(ip, block);
        let tag = self.tag(ip, key);
        self.slots[Self::slot_of(ip)] = Slot {
            ip,
            ops: entry.ops,
            block: entry.block,
            count: entry.count,
            tag,
        };
        entry
    }

    /// Returns the counts of changes so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Makes entries of the physical page at `physical` stale, since its code was written to. Other entries of the same half become stale,
    /// too.
    pub fn forget_code(&mut self, physical: u64) {
        self.counts.rewrites += 1;
        let (word, bit) = Self::source_bit(physical);
        for half in 0..2 {
            if self.sources[half][word] & bit != 0 {
                self.bump(half);
            }
        }
    }

    /// Makes all entries stale, since code anywhere was written to.
    pub fn forget_all_code(&mut self) {
        self.counts.rewrites += 1;
        self.forget_translations();
    }

    /// Empties the table if blocks of the node were evicted since the last call. `evictions` is the number of evictions so far
    /// ([`crate::code::Code::evictions`]).
    #[inline]
    pub fn see_evictions(&mut self, evictions: u64) {
        if self.counts.evictions != evictions {
            self.counts.evictions = evictions;
            self.slots.fill(EMPTY);
        }
    }

    /// Makes entries of non-global pages stale, since their translations may have changed. Entries of global pages in the same half may
    /// become stale, too.
    pub fn forget_local_translations(&mut self) {
        self.bump(0);
        if self.upper_not_global {
            self.bump(1);
        }
    }

    /// Makes all entries stale, since all translations, or code anywhere, may have changed.
    pub fn forget_translations(&mut self) {
        self.bump(0);
        self.bump(1);
        // The next fetch through a page that is not global sets the mark again.
        self.upper_not_global = false;
    }

    /// Makes the entries of one linear page stale, since its translation may have changed. Other entries of the same half become stale,
    /// too.
    pub fn forget_page(&mut self, linear: u64) {
        let (half, word, bit) = Self::page_bit(linear);
        if self.pages[half][word] & bit != 0 {
            self.bump(half);
        }
    }

    /// Returns half, word and bit of a linear page in `pages`.
    fn page_bit(linear: u64) -> (usize, usize, u64) {
        let page = (linear >> 12) as usize;
        let half = (linear >> 63) as usize;
        (half, page / 64 % PAGE_WORDS, 1 << (page % 64))
    }

    /// Records the linear pages of a block for which a slot was filled.
    fn note_pages(&mut self, ip: u64, len: u32) {
        for at in [ip, ip.wrapping_add(u64::from(len) - 1)] {
            let (half, word, bit) = Self::page_bit(at);
            self.pages[half][word] |= bit;
        }
    }

    /// Records the pages of code that is used without a block of the node.
    pub fn note_code(&mut self, ip: u64, physical: u64) {
        self.note_pages(ip, 1);
        self.note_source((ip >> 63) as usize, physical);
    }

    /// Returns word and bit of a physical page in `sources`.
    fn source_bit(physical: u64) -> (usize, u64) {
        let page = (physical >> 12) as usize;
        (page / 64 % SOURCE_WORDS, 1 << (page % 64))
    }

    /// Records the physical pages of a block for which a slot was filled.
    fn note_sources(&mut self, ip: u64, block: &Block) {
        let half = (ip >> 63) as usize;
        let second = (block.second_page != 0).then_some(block.second_page);
        for physical in [Some(block.physical), second].into_iter().flatten() {
            self.note_source(half, physical);
        }
    }

    fn note_source(&mut self, half: usize, physical: u64) {
        let (word, bit) = Self::source_bit(physical);
        self.sources[half][word] |= bit;
    }

    fn bump(&mut self, half: usize) {
        self.counts.changes[half] += 1;
        self.pages[half].fill(0);
        self.sources[half].fill(0);
        self.page_translations[half].clear();
        self.upper_not_global &= half != 1;
        self.epoch[half] = self.epoch[half].wrapping_add(1 << KEY_BITS);
        if self.epoch[half] == 0 {
            self.slots.fill(EMPTY);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use crate::pool::Decoded;

    use super::*;

    #[test]
    fn blocks_of_a_page_that_was_written_to_are_found_no_more() {
        let cell = AtomicU32::new(0);
        let decoded = Arc::new(Decoded::new(Vec::new(), 1));
        let block =
            |physical| Block::new(decoded.clone(), physical, 0, Mode::Bits64, [&cell, &cell]);
        let (user, kernel) = (block(0x1_2000), block(0x34_5000));
        let (low, high) = (0x40_0000, 0xffff_ffff_8100_0000);
        let mut table = BlockTable::default();
        table.remember(low, 0, &user);
        table.remember(high, 0, &kernel);
        let found = |table: &BlockTable| [low, high].map(|ip| table.find(ip, 0).is_some());
        table.forget_code(0x5_6000);
        assert_eq!(found(&table), [true, true], "no block lies there");
        table.forget_code(0x1_2fff);
        assert_eq!(found(&table), [false, true]);
        table.forget_code(0x34_5000);
        assert_eq!(found(&table), [false, false]);
        // A block that is found again after a change of translations is recorded again.
        table.remember(low, 0, &user);
        table.forget_translations();
        let blocks = Blocks::default();
        let again = table.find_physical(&blocks, low, 0, user.physical, 0, Mode::Bits64);
        assert!(again.is_some());
        table.forget_code(0x1_2000);
        assert_eq!(found(&table), [false, false]);
        table.remember(low, 0, &user);
        table.forget_all_code();
        assert_eq!(found(&table), [false, false]);
        assert_eq!(table.counts().rewrites, 5);
    }
}
