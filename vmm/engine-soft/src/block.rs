//! Decoded blocks.
//!
//! A block is straight-line code that lies in one page (an instruction that crosses into the next page is a block of its
//! own). It is keyed by physical address and mode, so it survives changes of address spaces and serves all vCPUs of a node;
//! each vCPU finds most blocks through a table of its own ([`crate::lookup`]).

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

/// Straight-line code.
pub struct Block {
    /// Its operations, which other nodes may use, too.
    pub decoded: Arc<Decoded>,
    /// Guest-physical address of the first byte.
    pub physical: u64,
    /// Guest-physical address of the second page's first byte, for an instruction that crosses.
    pub second_page: u64,
    /// Generation of the page(s) it was decoded from, and where the current one is found.
    generation: [u32; 2],
    current_generation: [*const AtomicU32; 2],
    /// Times that it was interpreted since it was last translated.
    warmth: Cell<u32>,
    /// `warmth` when cold blocks were last thrown away.
    seen_warmth: Cell<u32>,
    /// Mode that it was decoded in.
    mode: Mode,
    /// It cannot be translated.
    refused: Cell<bool>,
    /// Its numbers in the profile ([`crate::profile`]) as user and as kernel code, once it has them.
    pub numbers: [Cell<u32>; 2],
    /// Host code; most blocks have one.
    natives: RefCell<SmallVec<[HostCode; 1]>>,
}

/// Host code of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCode {
    /// Linear address that it was made for.
    pub ip: u64,
    pub code: CodeAddress,
    /// The page that it is shared with; None where the code is this node's own.
    pub page: Option<SharedPage>,
    /// Mode and privilege that it was made for.
    pub key: u8,
    /// Made for a window.
    pub attached: bool,
}

impl Block {
    /// Build a block; `counters` are the generation counters of the page(s) it lies in.
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
            warmth: Cell::new(0),
            seen_warmth: Cell::new(1),
            refused: Cell::new(false),
            numbers: [const { Cell::new(UNNUMBERED) }; 2],
            natives: RefCell::default(),
        }
    }

    /// Returns its operations.
    #[inline(always)]
    pub fn ops(&self) -> &[Op] {
        &self.decoded.ops
    }

    /// Returns its length in bytes.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.decoded.len
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
    pub fn native(&self, ip: u64, key: u8, attached: bool) -> Option<HostCode> {
        self.natives
            .borrow()
            .iter()
            .find(|n| (n.ip, n.key, n.attached) == (ip, key, attached))
            .copied()
    }

    /// Keep its host code for a linear address. Whether code for another one pays must show again: libraries lie somewhere else
    /// in each process, and much of what runs in a window runs a few times only.
    pub fn add_native(&self, native: HostCode) {
        self.natives.borrow_mut().push(native);
        self.warmth.set(0);
    }

    /// Whether it was interpreted again since this was last asked, or must stay: the node's own host code and the profile refer to it.
    /// Code that was written to never runs again.
    fn is_kept(&self) -> bool {
        let numbered = self.numbers.iter().any(|n| n.get() != UNNUMBERED);
        let own = self.natives.borrow().iter().any(|n| n.page.is_none());
        if numbered || own {
            return true;
        }
        let warmth = self.warmth.get();
        let ran = warmth > 1 && warmth != self.seen_warmth.replace(warmth);
        ran && self.is_current()
    }

    /// Whether the code is still what was decoded.
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

/// Blocks that a node decodes before those that did not run again are thrown away. Where other nodes share the pool, a block is soon found
/// again, and fewer are kept: some 8 MB. A lone node would decode it anew, and keeps as many as take some 60 MB.
const MAX_COLD: [usize; 2] = [1 << 17, 1 << 15];

/// All blocks of a node.
pub struct Blocks {
    /// By what [`Blocks::key`] makes of address and mode: those that lie in one page. They point into `blocks`.
    in_page: HashMap<u64, NonNull<Block>, BuildHasherDefault<AddressHasher>>,
    /// Those that cross, by the second page, too.
    across: HashMap<(u64, u64), NonNull<Block>, BuildHasherDefault<AddressHasher>>,
    /// Boxed, since vCPUs keep their addresses while the vector grows.
    #[expect(clippy::vec_box)]
    blocks: Vec<Box<Block>>,
    /// Blocks that were kept when some were last thrown away.
    kept: usize,
    /// See [`Blocks::set_room`].
    cold: [usize; 2],
}

impl Default for Blocks {
    fn default() -> Self {
        Self::with_room(MAX_COLD)
    }
}

impl Blocks {
    fn with_room(cold: [usize; 2]) -> Self {
        Self {
            in_page: HashMap::default(),
            across: HashMap::default(),
            blocks: Vec::new(),
            kept: 0,
            cold,
        }
    }

    /// Keeps at most so many blocks without host code, and at least one; before anything is decoded.
    pub fn set_room(&mut self, cold: usize) {
        *self = Self::with_room([cold.max(1); 2]);
    }

    /// The block at a physical address, if its code is still what was decoded.
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

    /// No physical address needs the upper bits.
    fn key(physical: u64, mode: Mode) -> u64 {
        physical << 2 | mode as u64
    }

    /// Whether there is room for another block; `shared`: other nodes share the pool.
    pub fn has_room(&self, shared: bool) -> bool {
        self.blocks.len() < self.kept + self.cold[usize::from(shared)]
    }

    /// Add a block.
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

    /// Forgets the blocks that did not run lately and have neither host code nor a number in the profile.
    pub fn forget_cold(&mut self) {
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

    /// Forget all blocks.
    pub fn clear(&mut self) {
        *self = Self::with_room(self.cold);
    }
}
