//! Basic blocks of decoded operations, which the interpreter executes and the translator translates.
//!
//! A basic block is straight-line code in one page. An instruction that crosses into the next page is a block of its own. The key of a
//! block is its physical address and mode. So a block survives changes of address spaces, and all vCPUs of a node use it. Each vCPU finds
//! most blocks through its own block table ([`crate::lookup`]).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;

use crate::block_costs::CostNumber;
use crate::cpu::Mode;
use crate::native::{CodeAddress, SharedPage};
use crate::op::Op;
use crate::pool::Decoded;
use crate::profile::UNNUMBERED;

/// A basic block: decoded straight-line code. Its host code is a translation block ([`crate::native`]).
pub struct Block {
    /// Decoded operations of the block, which other nodes may share.
    pub decoded: Arc<Decoded>,
    /// Guest-physical address of the block's first byte.
    pub physical: u64,
    /// Guest-physical address of the second page's first byte if the instruction crosses pages, or else 0.
    pub second_page: u64,
    /// Write generations of the block's page or pages at the time of decoding.
    generation: [u32; 2],
    /// Write generation counters of the block's page or pages.
    current_generation: [*const AtomicU32; 2],
    /// Number of times that the interpreter executed the block since host code was last added.
    executions: Cell<u32>,
    /// Value of `executions` at the last eviction of unused blocks.
    executions_at_eviction: Cell<u32>,
    /// Mode that the block was decoded in.
    mode: Mode,
    /// True if the block cannot be translated.
    refused: Cell<bool>,
    /// Numbers of the block in the profile ([`crate::profile`]), as user and as kernel code. `UNNUMBERED` until the profile assigns them.
    pub numbers: [Cell<u32>; 2],
    /// Number of the block's cost, where blocks have costs of their own.
    pub cost: CostNumber,
    /// Host code of the block for each linear address, key and kind of run (with or without a model). Most blocks have one.
    natives: RefCell<SmallVec<[HostCode; 1]>>,
}

/// Guest code of a block in physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeSpan {
    /// Guest-physical address of the first byte.
    pub physical: u64,
    /// Guest-physical address of the second page's first byte if the code crosses pages, or else 0.
    pub second_page: u64,
    /// Length in bytes.
    pub len: u32,
}

/// Host code of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCode {
    /// Linear address for which the code was translated.
    pub ip: u64,
    pub code: CodeAddress,
    /// The page of shared translation blocks that the code belongs to; None if the code is the node's own.
    pub page: Option<SharedPage>,
    /// Mode and privilege for which the code was translated.
    pub key: u8,
    /// True if the code was translated for a window.
    pub attached: bool,
}

impl Block {
    /// Creates a block. `counters` are the write generation counters of its page or pages.
    pub fn new(
        decoded: Arc<Decoded>,
        physical: u64,
        second_page: u64,
        mode: Mode,
        counters: [&AtomicU32; 2],
    ) -> Self {
        Self {
            decoded,
            physical,
            second_page,
            mode,
            generation: counters.map(|c| c.load(Ordering::Relaxed)),
            current_generation: counters.map(std::ptr::from_ref),
            executions: Cell::new(0),
            executions_at_eviction: Cell::new(1),
            refused: Cell::new(false),
            numbers: [const { Cell::new(UNNUMBERED) }; 2],
            cost: CostNumber::NOMINAL,
            natives: RefCell::default(),
        }
    }

    /// Returns the block's operations.
    #[inline(always)]
    pub fn ops(&self) -> &[Op] {
        &self.decoded.ops
    }

    /// Returns the block's length in bytes.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.decoded.len
    }

    /// Returns where the first `len` bytes of the block's code are.
    #[inline(always)]
    pub fn code_span(&self, len: u32) -> CodeSpan {
        CodeSpan {
            physical: self.physical,
            second_page: self.second_page,
            len,
        }
    }

    /// Counts an execution by the interpreter. Returns the count, or zero for a block that cannot be translated.
    pub fn count_execution(&self) -> u32 {
        if self.refused.get() {
            return 0;
        }
        let n = self.executions.get().saturating_add(1);
        self.executions.set(n);
        n
    }

    /// Marks the block as one that cannot be translated.
    pub fn never_translate(&self) {
        self.executions.set(0);
        self.refused.set(true);
    }

    /// Returns the block's host code for a linear address, key and kind of run; none if it has not been translated for them.
    pub fn native(&self, ip: u64, key: u8, attached: bool) -> Option<HostCode> {
        self.natives
            .borrow()
            .iter()
            .find(|n| (n.ip, n.key, n.attached) == (ip, key, attached))
            .copied()
    }

    /// Adds host code for a linear address. The execution count restarts, so that code for another address is only made if it pays.
    /// Libraries have different addresses in each process, and most code of a window runs a few times only.
    pub fn add_native(&self, native: HostCode) {
        self.natives.borrow_mut().push(native);
        self.executions.set(0);
    }

    /// Returns whether an eviction must keep the block. A block is kept if the node's own host code or the profile refers to it. A block is
    /// also kept if the interpreter ran it since the last eviction, more than once in all, and its code has not been written to.
    fn is_kept(&self) -> bool {
        let numbered = self.numbers.iter().any(|n| n.get() != UNNUMBERED);
        let own = self.natives.borrow().iter().any(|n| n.page.is_none());
        if numbered || own {
            return true;
        }
        let executions = self.executions.get();
        let ran = executions > 1 && executions != self.executions_at_eviction.replace(executions);
        ran && self.is_current()
    }

    /// Returns whether the block's pages have not been written to since it was decoded.
    #[inline]
    pub fn is_current(&self) -> bool {
        // SAFETY: the counters belong to the code maps of guest RAM, which the owner of the node's blocks ([`crate::code::SharedCode`])
        // keeps alive.
        unsafe {
            (*self.current_generation[0]).load(Ordering::Relaxed) == self.generation[0]
                && (*self.current_generation[1]).load(Ordering::Relaxed) == self.generation[1]
        }
    }
}

/// Hash of keys of a few words by multiplication. The keys are addresses, and no adversary chooses them.
#[derive(Default)]
pub struct AddressHasher(u64);

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

/// Most blocks that a node adds between two evictions of unused blocks, for a node with its own decode pool and for nodes that share a
/// pool. A node with its own pool would decode evicted blocks again, so some 60 MB of blocks are kept. Nodes that share the pool find the
/// operations of evicted blocks there, so some 8 MB suffice.
const MAX_NEW_BLOCKS: [usize; 2] = [1 << 17, 1 << 15];

/// Basic blocks of a node, decoded or translated.
pub struct Blocks {
    /// Blocks that lie in one page, by [`Blocks::key`]. The pointers are to blocks in `blocks`.
    in_page: HashMap<u64, NonNull<Block>, BuildHasherDefault<AddressHasher>>,
    /// Blocks that cross into a second page, by key and second page's address.
    across: HashMap<(u64, u64), NonNull<Block>, BuildHasherDefault<AddressHasher>>,
    /// All blocks. They are boxed, since vCPUs store pointers to them while the vector grows.
    #[expect(clippy::vec_box)]
    blocks: Vec<Box<Block>>,
    /// Number of blocks that the last eviction kept.
    kept: usize,
    /// Most blocks that may be added between two evictions, without and with a shared pool.
    max_new_blocks: [usize; 2],
}

impl Default for Blocks {
    fn default() -> Self {
        Self::with_room(MAX_NEW_BLOCKS)
    }
}

impl Blocks {
    fn with_room(max_new_blocks: [usize; 2]) -> Self {
        Self {
            in_page: HashMap::default(),
            across: HashMap::default(),
            blocks: Vec::new(),
            kept: 0,
            max_new_blocks,
        }
    }

    /// Sets the number of blocks that may be added between two evictions, at least one. Must be called before any block is inserted.
    pub fn set_room(&mut self, blocks: usize) {
        *self = Self::with_room([blocks.max(1); 2]);
    }

    /// Returns the block at a physical address, with `second` as its second page or 0. None if there is none, or if its pages were written
    /// to since it was decoded.
    pub fn find(&self, physical: u64, second: u64, mode: Mode) -> Option<&Block> {
        let key = Self::key(physical, mode);
        let block = match second {
            0 => self.in_page.get(&key),
            _ => self.across.get(&(key, second)),
        }?;
        // SAFETY: blocks are boxed, and remain in `blocks` as long as the maps point to them. The result borrows `self`.
        let block = unsafe { block.as_ref() };
        block.is_current().then_some(block)
    }

    /// Returns the key for an address and a mode. Physical addresses do not use the two uppermost bits.
    fn key(physical: u64, mode: Mode) -> u64 {
        physical << 2 | mode as u64
    }

    /// Returns whether another block may be added without an eviction. `shared` says whether other nodes share the decode pool.
    pub fn has_room(&self, shared: bool) -> bool {
        self.blocks.len() < self.kept + self.max_new_blocks[usize::from(shared)]
    }

    /// Adds a block.
    pub fn insert(&mut self, block: Block) -> &Block {
        let key = Self::key(block.physical, block.mode);
        let block = Box::new(block);
        let at = NonNull::from(&*block);
        match block.second_page {
            0 => self.in_page.insert(key, at),
            second => self.across.insert((key, second), at),
        };
        self.blocks.push(block);
        &self.blocks[self.blocks.len() - 1]
    }

    /// Evicts all blocks but those that the node's own host code or the profile refers to, and those in use. A block is in use if the
    /// interpreter ran it since the last eviction, more than once in all, and its code has not been written to.
    pub fn evict_unused(&mut self) {
        self.blocks.retain(|block| block.is_kept());
        self.in_page.clear();
        self.across.clear();
        let current = self.blocks.iter().filter(|block| block.is_current());
        for block in current {
            let key = Self::key(block.physical, block.mode);
            let at = NonNull::from(&**block);
            match block.second_page {
                0 => self.in_page.insert(key, at),
                second => self.across.insert((key, second), at),
            };
        }
        self.kept = self.blocks.len();
    }

    /// Evicts all blocks.
    pub fn clear(&mut self) {
        *self = Self::with_room(self.max_new_blocks);
    }
}
