//! Decoded blocks and where they are found.
//!
//! A block is straight-line code that lies in one page (an instruction that crosses into the next page is a block of its
//! own). It is keyed by physical address and mode, so it survives changes of address spaces; a direct-mapped table from
//! instruction pointer to block answers nearly every look-up.

use std::collections::HashMap;
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
        }
    }

    /// Whether the code is still what was decoded.
    #[inline(always)]
    pub fn is_current(&self) -> bool {
        // SAFETY: the cells belong to the code map of guest RAM, which the vCPU that owns this block keeps alive.
        unsafe {
            (*self.cell[0]).load(Ordering::Relaxed) == self.generation[0]
                && (*self.cell[1]).load(Ordering::Relaxed) == self.generation[1]
        }
    }
}

/// Entries of the table from instruction pointer to block.
const SLOTS: usize = 1 << 13;
/// Operations kept before everything is thrown away: bounds the cache to some 60 MB for each vCPU.
const MAX_OPS: usize = 1 << 20;

#[derive(Clone, Copy)]
struct Slot {
    ip: u64,
    tag: u64,
    block: *const Block,
}

const EMPTY: Slot = Slot {
    ip: 0,
    tag: u64::MAX,
    block: std::ptr::null(),
};

/// All blocks of a vCPU.
pub struct BlockCache {
    slots: Box<[Slot]>,
    by_physical: HashMap<(u64, u64, Mode), usize>,
    blocks: Vec<Box<Block>>,
    ops: usize,
    /// Advances when translations of the lower / upper half of the address space may have changed.
    epoch: [u32; 2],
    /// Code in the upper half was fetched through a page that is not global.
    pub upper_not_global: bool,
}

// SAFETY: the raw pointers refer to blocks owned by the same cache and to counters kept alive by the vCPU's RAM handle; a
// vCPU is used by one thread at a time.
unsafe impl Send for BlockCache {}

impl Default for BlockCache {
    fn default() -> Self {
        Self {
            slots: vec![EMPTY; SLOTS].into(),
            by_physical: HashMap::new(),
            blocks: Vec::new(),
            ops: 0,
            epoch: [0; 2],
            upper_not_global: false,
        }
    }
}

impl BlockCache {
    #[inline(always)]
    fn slot_of(ip: u64) -> usize {
        (ip ^ ip >> 13) as usize & (SLOTS - 1)
    }

    #[inline(always)]
    fn tag(&self, ip: u64, key: u8) -> u64 {
        u64::from(self.epoch[(ip >> 63) as usize]) << 8 | u64::from(key)
    }

    /// The block at an instruction pointer, if it was found there before under the same translation. `key` distinguishes
    /// modes and privileges.
    #[inline(always)]
    pub fn find(&self, ip: u64, key: u8) -> Option<&Block> {
        let slot = &self.slots[Self::slot_of(ip)];
        if slot.ip == ip && slot.tag == self.tag(ip, key) {
            // SAFETY: slots only point to blocks in `blocks`, which are freed only together with all slots.
            let block = unsafe { &*slot.block };
            if block.is_current() {
                return Some(block);
            }
        }
        None
    }

    /// The block at a physical address, for an instruction pointer that now maps there.
    pub fn find_physical(
        &mut self,
        ip: u64,
        key: u8,
        physical: u64,
        second: u64,
        mode: Mode,
    ) -> Option<&Block> {
        let &index = self.by_physical.get(&(physical, second, mode))?;
        if !self.blocks[index].is_current() {
            return None;
        }
        self.remember(ip, key, index);
        Some(&self.blocks[index])
    }

    fn remember(&mut self, ip: u64, key: u8, index: usize) {
        let tag = self.tag(ip, key);
        self.slots[Self::slot_of(ip)] = Slot {
            ip,
            tag,
            block: &raw const *self.blocks[index],
        };
    }

    /// Add a block.
    pub fn insert(&mut self, ip: u64, key: u8, mode: Mode, block: Block) -> &Block {
        if self.ops + block.ops.len() > MAX_OPS {
            self.clear();
        }
        self.ops += block.ops.len();
        let index = self.blocks.len();
        self.by_physical
            .insert((block.physical, block.second_page, mode), index);
        self.blocks.push(Box::new(block));
        self.remember(ip, key, index);
        &self.blocks[index]
    }

    /// Forget all blocks.
    pub fn clear(&mut self) {
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

    /// All translations may have changed.
    pub fn forget_translations(&mut self) {
        self.bump(0);
        self.bump(1);
        // Whatever is not global will be found again, and noted again.
        self.upper_not_global = false;
    }

    /// The translation of one page may have changed.
    pub fn forget_page(&mut self, linear: u64) {
        self.bump((linear >> 63) as usize);
    }

    fn bump(&mut self, half: usize) {
        self.epoch[half] = self.epoch[half].wrapping_add(1);
        if self.epoch[half] == 0 {
            self.slots.fill(EMPTY);
        }
    }
}
