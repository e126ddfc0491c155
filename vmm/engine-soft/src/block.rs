//! Decoded blocks and where they are found.
//!
//! A block is straight-line code that lies in one page (an instruction that crosses into the next page is a block of its
//! own). It is keyed by physical address and mode, so it survives changes of address spaces; a direct-mapped table from
//! instruction pointer to block answers nearly every look-up.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};

use nodescope_plugin_api::FLOP_CLASSES;

use crate::cpu::Mode;
use crate::op::Op;

/// Straight-line code.
pub struct Block {
    /// Operations.
    pub ops: Box<[Op]>,
    /// Guest-physical address of the first byte.
    pub physical: u64,
    /// Guest-physical address of the second page's first byte, for an instruction that crosses.
    pub second_page: u64,
    /// Length in bytes.
    pub len: u32,
    /// Generation of the page(s) it was decoded from, and where the current one is found.
    generation: [u32; 2],
    cell: [*const AtomicU32; 2],
    /// Data reads of all operations.
    pub loads: u32,
    /// Data writes of all operations.
    pub stores: u32,
    /// Floating-point operations of all operations; None where there are none.
    pub flops: Option<Box<[u32; FLOP_CLASSES]>>,
    /// Times that it was interpreted since it was last translated.
    warmth: Cell<u32>,
    /// It cannot be translated.
    refused: Cell<bool>,
    /// Host code, by the linear address, mode and privilege, and attachment that it was made for.
    natives: RefCell<Vec<(u64, u8, bool, u64)>>,
}

impl Block {
    /// Build a block; `cells` are the generation counters of the page(s) it lies in.
    pub fn new(
        ops: Vec<Op>,
        physical: u64,
        second_page: u64,
        len: u32,
        cells: [&AtomicU32; 2],
    ) -> Self {
        let mut flops = [0_u32; FLOP_CLASSES];
        for op in &ops {
            flops[usize::from(op.flop_class)] += u32::from(op.flops);
        }
        Self {
            loads: ops.iter().map(|o| u32::from(o.loads)).sum(),
            stores: ops.iter().map(|o| u32::from(o.stores)).sum(),
            flops: flops.iter().any(|&n| n > 0).then(|| Box::new(flops)),
            ops: ops.into(),
            physical,
            second_page,
            len,
            generation: cells.map(|c| c.load(Ordering::Relaxed)),
            cell: cells.map(std::ptr::from_ref),
            warmth: Cell::new(0),
            refused: Cell::new(false),
            natives: RefCell::default(),
        }
    }

    /// Count one more time that it is interpreted.
    pub fn warm_up(&self) -> u32 {
        if self.refused.get() {
            return 0;
        }
        let n = self.warmth.get().saturating_add(1);
        self.warmth.set(n);
        n
    }

    /// It is interpreted for ever.
    pub fn never_translate(&self) {
        self.warmth.set(0);
        self.refused.set(true);
    }

    /// Its host code for a linear address, if there is any.
    pub fn native(&self, ip: u64, key: u8, attached: bool) -> Option<u64> {
        self.natives
            .borrow()
            .iter()
            .find(|n| (n.0, n.1, n.2) == (ip, key, attached))
            .map(|n| n.3)
    }

    /// Keep its host code for a linear address. Whether code for another one pays must show again: libraries lie somewhere else
    /// in each process, and much of what runs in a window runs a few times only.
    pub fn add_native(&self, ip: u64, key: u8, attached: bool, code: u64) {
        self.natives.borrow_mut().push((ip, key, attached, code));
        self.warmth.set(0);
    }

    /// Whether the code is still what was decoded.
    #[inline]
    pub fn is_current(&self) -> bool {
        // SAFETY: the cells belong to the code map of guest RAM, which the vCPU that owns this block keeps alive.
        unsafe {
            (*self.cell[0]).load(Ordering::Relaxed) == self.generation[0]
                && (*self.cell[1]).load(Ordering::Relaxed) == self.generation[1]
        }
    }
}

/// Entries of the table from instruction pointer to block.
const SLOTS: usize = 1 << 14;
/// Operations kept before everything is thrown away: bounds the cache to some 60 MB for each vCPU.
const MAX_OPS: usize = 1 << 20;

/// A block as the run loop wants it.
#[derive(Clone, Copy)]
pub struct Entry {
    /// First operation.
    pub ops: *const Op,
    /// The block.
    pub block: *const Block,
    /// Operations.
    pub count: u32,
}

#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Slot {
    ip: u64,
    ops: *const Op,
    block: *const Block,
    count: u32,
    /// Epoch under which the block was found, above [`KEY_BITS`] of mode and privilege.
    tag: u32,
}

/// Words of the set of pages that hold code.
const PAGE_WORDS: usize = 64;

/// Bits of a slot's tag that hold the key; no key has all of them set.
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

/// Hashes the few words of a key by multiplication: they are addresses, not chosen by an adversary of this process.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(b.into());
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }
}

/// What happened to a [`BlockCache`], for those who keep what they found in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that translations of the lower / upper half of the address space may have changed.
    pub changes: [u64; 2],
    /// Times that code was written to.
    pub rewrites: u64,
    /// Times that all blocks were thrown away.
    pub clears: u64,
}

/// All blocks of a vCPU.
///
/// A slot whose tag holds is valid without another look: the tag goes stale when a translation or any code may have
/// changed, and then the slot is compared with the page's translation again, and the block with the code map.
pub struct BlockCache {
    slots: Box<[Slot]>,
    by_physical: HashMap<(u64, u64, Mode), usize, BuildHasherDefault<AddressHasher>>,
    /// Boxed, since slots point to them while the vector grows.
    #[expect(clippy::vec_box)]
    blocks: Vec<Box<Block>>,
    ops: usize,
    /// Advances (in steps of `1 << KEY_BITS`) when translations of the lower / upper half of the address space, or code
    /// there, may have changed.
    epoch: [u32; 2],
    /// Linear pages of each half that slots were filled for under its epoch, by the low bits of the page number.
    pages: [[u64; PAGE_WORDS]; 2],
    /// Code in the upper half was fetched, under its epoch, through a page that is not global.
    pub upper_not_global: bool,
    /// See [`BlockCache::counts`].
    counts: Counts,
}

// SAFETY: the raw pointers refer to blocks owned by the same cache and to counters kept alive by the vCPU's RAM handle; a
// vCPU is used by one thread at a time.
unsafe impl Send for BlockCache {}

impl Default for BlockCache {
    fn default() -> Self {
        Self {
            slots: vec![EMPTY; SLOTS].into(),
            by_physical: HashMap::default(),
            blocks: Vec::new(),
            ops: 0,
            epoch: [0; 2],
            pages: [[0; PAGE_WORDS]; 2],
            upper_not_global: false,
            counts: Counts::default(),
        }
    }
}

impl BlockCache {
    #[inline(always)]
    fn slot_of(ip: u64) -> usize {
        (ip ^ ip >> 14) as usize & (SLOTS - 1)
    }

    #[inline(always)]
    fn tag(&self, ip: u64, key: u8) -> u32 {
        self.epoch[(ip >> 63) as usize] | u32::from(key)
    }

    /// The block at an instruction pointer, if it was found there before under the same translation. `key` distinguishes
    /// modes and privileges.
    #[inline(always)]
    pub fn find(&self, ip: u64, key: u8) -> Option<Entry> {
        // SAFETY: `slot_of` is less than the number of slots.
        let slot = unsafe { self.slots.get_unchecked(Self::slot_of(ip)) };
        (slot.ip == ip && slot.tag == self.tag(ip, key)).then(|| slot.entry())
    }

    /// The block at a physical address, for an instruction pointer that now maps there.
    pub fn find_physical(
        &mut self,
        ip: u64,
        key: u8,
        physical: u64,
        second: u64,
        mode: Mode,
    ) -> Option<Entry> {
        let tag = self.tag(ip, key);
        let slot = &mut self.slots[Self::slot_of(ip)];
        if slot.ip == ip && slot.tag != EMPTY.tag && (slot.tag ^ tag) << (32 - KEY_BITS) == 0 {
            // SAFETY: slots only point to blocks in `blocks`, which are freed only together with all slots.
            let block = unsafe { &*slot.block };
            if block.physical == physical && block.second_page == second && block.is_current() {
                slot.tag = tag;
                let entry = slot.entry();
                self.note_pages(ip, block.len);
                return Some(entry);
            }
        }
        let &index = self.by_physical.get(&(physical, second, mode))?;
        if !self.blocks[index].is_current() {
            return None;
        }
        Some(self.remember(ip, key, index))
    }

    fn remember(&mut self, ip: u64, key: u8, index: usize) -> Entry {
        let block = &*self.blocks[index];
        let entry = Entry {
            ops: block.ops.as_ptr(),
            block,
            count: block.ops.len() as u32,
        };
        let len = block.len;
        self.note_pages(ip, len);
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

    /// Add a block.
    pub fn insert(&mut self, ip: u64, key: u8, mode: Mode, block: Block) -> Entry {
        if self.ops + block.ops.len() > MAX_OPS {
            self.clear();
        }
        self.ops += block.ops.len();
        let index = self.blocks.len();
        self.by_physical
            .insert((block.physical, block.second_page, mode), index);
        self.blocks.push(Box::new(block));
        self.remember(ip, key, index)
    }

    /// What has happened to the cache so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Code was written to.
    pub fn forget_code(&mut self) {
        self.counts.rewrites += 1;
        self.forget_translations();
    }

    /// Forget all blocks.
    pub fn clear(&mut self) {
        self.counts.clears += 1;
        self.slots.fill(EMPTY);
        self.by_physical.clear();
        self.blocks.clear();
        self.ops = 0;
    }

    /// Translations of non-global pages may have changed.
    pub fn forget_local_translations(&mut self) {
        self.bump(0);
        if self.upper_not_global {
            self.bump(1);
        }
    }

    /// All translations, or code anywhere, may have changed.
    pub fn forget_translations(&mut self) {
        self.bump(0);
        self.bump(1);
        // Whatever is not global will be found again, and noted again.
        self.upper_not_global = false;
    }

    /// The translation of one page may have changed.
    pub fn forget_page(&mut self, linear: u64) {
        let (half, word, bit) = Self::page_bit(linear);
        if self.pages[half][word] & bit != 0 {
            self.bump(half);
        }
    }

    /// Where a page is kept in `pages`.
    fn page_bit(linear: u64) -> (usize, usize, u64) {
        let page = (linear >> 12) as usize;
        let half = (linear >> 63) as usize;
        (half, page / 64 % PAGE_WORDS, 1 << (page % 64))
    }

    /// A slot was filled for this instruction pointer: note the page(s) that the block lies in.
    fn note_pages(&mut self, ip: u64, len: u32) {
        for at in [ip, ip.wrapping_add(u64::from(len) - 1)] {
            let (half, word, bit) = Self::page_bit(at);
            self.pages[half][word] |= bit;
        }
    }

    fn bump(&mut self, half: usize) {
        self.counts.changes[half] += 1;
        self.pages[half].fill(0);
        self.upper_not_global &= half != 1;
        self.epoch[half] = self.epoch[half].wrapping_add(1 << KEY_BITS);
        if self.epoch[half] == 0 {
            self.slots.fill(EMPTY);
        }
    }
}
