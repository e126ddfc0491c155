//! Basic blocks of decoded operations, which the interpreter executes and the translator translates.
//!
//! A basic block is straight-line code in one page. An instruction that crosses into the next page is a block of its own. The key of a
//! block is its physical address and mode. So a block survives changes of address spaces, and all vCPUs of a node use it. Each vCPU finds
//! most blocks through a table of its own ([`crate::lookup`]).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;

use crate::cpu::Mode;
use crate::native::{CodeAddress, SharedPage};
use crate::op::Op;
use crate::pool::Decoded;
use crate::profile::UNNUMBERED;

/// A basic block: decoded straight-line code. Its host code is a translation block ([`crate::native`]).
pub struct Block {
    /// The block's operations. Other nodes may share them.
    pub decoded: Arc<Decoded>,
    /// Guest-physical address of the first byte.
    pub physical: u64,
    /// Guest-physical address of the second page's first byte, for an instruction that crosses.
    pub second_page: u64,
    /// Generations of the block's page or pages at the time of decoding.
    generation: [u32; 2],
    /// The generation counters of these pages.
    current_generation: [*const AtomicU32; 2],
    /// Times that the block was interpreted since its last translation.
    executions: Cell<u32>,
    /// `executions` at the last eviction of unused blocks.
    executions_at_eviction: Cell<u32>,
    /// Mode that the block was decoded in.
    mode: Mode,
    /// The block cannot be translated.
    refused: Cell<bool>,
    /// The block's numbers in the profile ([`crate::profile`]), as user and as kernel code, once the block has numbers.
    pub numbers: [Cell<u32>; 2],
    /// The block's host code for each linear address, key and state of the model. Most blocks have one.
    natives: RefCell<SmallVec<[HostCode; 1]>>,
}

/// Host code of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCode {
    /// Linear address that the code was made for.
    pub ip: u64,
    pub code: CodeAddress,
    /// The page of shared code that the code belongs to; None where the code is this node's own.
    pub page: Option<SharedPage>,
    /// Mode and privilege that the code was made for.
    pub key: u8,
    /// The code was made for a window.
    pub attached: bool,
}

impl Block {
    /// Creates a block; `counters` are the generation counters of the page(s) it lies in.
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

    /// Counts an execution by the interpreter; returns the count, or zero for a block that cannot be translated.
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

    /// Returns the block's host code for a linear address, if there is any.
    pub fn native(&self, ip: u64, key: u8, attached: bool) -> Option<HostCode> {
        self.natives
            .borrow()
            .iter()
            .find(|n| (n.ip, n.key, n.attached) == (ip, key, attached))
            .copied()
    }

    /// Adds host code for a linear address. The count of executions starts again, since code for another address may not pay: libraries
    /// lie at another address in each process, and most code of a window runs a few times only.
    pub fn add_native(&self, native: HostCode) {
        self.natives.borrow_mut().push(native);
        self.executions.set(0);
    }

    /// Returns whether the block must stay at an eviction. A block stays if the interpreter ran it since the last eviction, or if the
    /// node's own host code or the profile refers to it. A block whose code was written to never runs again.
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

    /// Returns whether the code is unchanged since it was decoded.
    #[inline]
    pub fn is_current(&self) -> bool {
        // SAFETY: the counters belong to the code map of guest RAM, which the vCPU that owns this block keeps alive.
        unsafe {
            (*self.current_generation[0]).load(Ordering::Relaxed) == self.generation[0]
                && (*self.current_generation[1]).load(Ordering::Relaxed) == self.generation[1]
        }
    }
}

/// Hashes the few words of a key by multiplication: they are addresses, not chosen by an adversary of this process.
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

/// Blocks that a node decodes between two evictions of unused blocks: with a decode pool of its own, and where nodes share the pool. A node
/// with its own pool would decode an evicted block anew, and keeps some 60 MB of blocks. Nodes that share the pool soon find an evicted
/// block again, and keep some 8 MB.
const MAX_UNTRANSLATED: [usize; 2] = [1 << 17, 1 << 15];

/// Basic blocks of a node, decoded or translated.
pub struct Blocks {
    /// Blocks in one page, by [`Blocks::key`]. The pointers lead into `blocks`.
    in_page: HashMap<u64, NonNull<Block>, BuildHasherDefault<AddressHasher>>,
    /// Blocks that cross into a second page, by key and second page.
    across: HashMap<(u64, u64), NonNull<Block>, BuildHasherDefault<AddressHasher>>,
    /// Boxed, since vCPUs keep their addresses while the vector grows.
    #[expect(clippy::vec_box)]
    blocks: Vec<Box<Block>>,
    /// Blocks that survived the last eviction.
    kept: usize,
    /// Limits set by [`Blocks::set_room`].
    max_untranslated: [usize; 2],
}

impl Default for Blocks {
    fn default() -> Self {
        Self::with_room(MAX_UNTRANSLATED)
    }
}

impl Blocks {
    fn with_room(max_untranslated: [usize; 2]) -> Self {
        Self {
            in_page: HashMap::default(),
            across: HashMap::default(),
            blocks: Vec::new(),
            kept: 0,
            max_untranslated,
        }
    }

    /// Sets how many blocks may be decoded between two evictions, at least one. Called before anything is decoded.
    pub fn set_room(&mut self, blocks: usize) {
        *self = Self::with_room([blocks.max(1); 2]);
    }

    /// Returns the block at a physical address, if its code is unchanged since it was decoded.
    pub fn find(&self, physical: u64, second: u64, mode: Mode) -> Option<&Block> {
        let key = Self::key(physical, mode);
        let block = match second {
            0 => self.in_page.get(&key),
            _ => self.across.get(&(key, second)),
        }?;
        // SAFETY: blocks are boxed, and live as long as the maps hold them; the result borrows `self`.
        let block = unsafe { block.as_ref() };
        block.is_current().then_some(block)
    }

    /// Returns the key of an address and a mode. No physical address needs the two uppermost bits.
    fn key(physical: u64, mode: Mode) -> u64 {
        physical << 2 | mode as u64
    }

    /// Returns whether there is room for another block; `shared`: other nodes share the pool.
    pub fn has_room(&self, shared: bool) -> bool {
        self.blocks.len() < self.kept + self.max_untranslated[usize::from(shared)]
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

    /// Evicts the blocks that did not run lately and have neither host code nor a number in the profile.
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
        *self = Self::with_room(self.max_untranslated);
    }
}
