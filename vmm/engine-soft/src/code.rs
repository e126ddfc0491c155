//! Decoded and translated code of a node: one copy for all vCPUs, since they run the same kernel and mostly the same programs. One vCPU at
//! a time uses the code.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodescope_memory::Ram;

use crate::block::Blocks;
use crate::native::{SharedPages, TranslationCache};
use crate::pool::DecodedPool;
use crate::profile::Profile;

/// Guest RAM and the code in it, as far as it has been decoded. Clones refer to one and the same code.
#[derive(Clone)]
pub struct SharedCode(Arc<Shared>);

struct Shared {
    /// Blocks point to its code maps.
    ram: Ram,
    code: Mutex<Code>,
}

/// Code of a node, behind the lock of [`SharedCode`].
#[derive(Default)]
pub struct Code {
    /// Decoded basic blocks.
    pub blocks: Blocks,
    /// Decoded operations, which other nodes may use, too, and native code that carries out vector and x87 instructions.
    pub pool: Arc<DecodedPool>,
    /// Translated blocks that are the node's own.
    pub translation_cache: TranslationCache,
    /// Pages of the node whose translated code is shared with other nodes.
    pub shared_pages: SharedPages,
    /// Counts of windows by block.
    pub profile: Profile,
    /// Number of times that blocks were thrown away. Pointers to earlier blocks must not be used afterwards.
    clears: u64,
}

// SAFETY: the raw pointers inside refer to counters of guest RAM, which `Shared` keeps alive, and to blocks of the same
// value; it is used by one thread at a time.
unsafe impl Send for Code {}

impl SharedCode {
    /// Makes the code of a node; nothing is decoded yet.
    pub fn new(ram: Ram) -> Self {
        Self::with_pool(ram, Arc::default())
    }

    /// Makes the code of a node that uses the decoded operations of the other nodes with this pool.
    pub fn with_pool(ram: Ram, pool: Arc<DecodedPool>) -> Self {
        let code = Code {
            pool,
            ..Code::default()
        };
        Self(Arc::new(Shared {
            ram,
            code: Mutex::new(code),
        }))
    }

    /// Returns the guest RAM.
    pub fn ram(&self) -> &Ram {
        &self.0.ram
    }

    /// Locks the code; vCPUs of a node run one after the other.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Code> {
        // A panic ends the study, so that nothing uses the code afterwards.
        self.0.code.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for SharedCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedCode").finish_non_exhaustive()
    }
}

impl Code {
    /// Returns how often blocks were thrown away.
    pub fn clears(&self) -> u64 {
        self.clears
    }

    /// Returns whether other nodes share the pool. A lone node would keep entries there that no other node looks up.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.pool) > 1
    }

    /// Makes room for another block: throws blocks away where there is none. Not while translated code runs.
    pub fn make_room_for_a_block(&mut self) {
        if !self.pool.has_room() {
            self.clear();
        } else if !self.blocks.has_room(self.is_shared()) {
            self.clears += 1;
            self.blocks.evict_unused();
        }
    }

    /// Throws away all blocks and translations. Not while translated code runs. Where the pool's native code takes up much room, this node
    /// continues with a pool of its own, since other nodes may still run code of the old pool.
    pub fn clear(&mut self) {
        self.clears += 1;
        self.translation_cache.clear();
        self.blocks.clear();
        if !self.pool.has_room() {
            self.pool = Arc::new(self.pool.another());
            self.shared_pages = SharedPages::default();
        }
    }
}
