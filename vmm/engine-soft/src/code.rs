//! Decoded and translated code of a node. All its vCPUs share one copy, since they run the same kernel and mostly the same programs. Only
//! one vCPU at a time uses the code.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodescope_memory::Ram;

use crate::block::Blocks;
use crate::block_costs::BlockCosts;
use crate::native::{SharedPages, TranslationCache};
use crate::pool::DecodedPool;
use crate::profile::Profile;

/// Guest RAM, with the decoded and translated code of it. Clones refer to the same code.
#[derive(Clone)]
pub struct SharedCode(Arc<Shared>);

struct Shared {
    /// Guest RAM, to whose code maps the blocks point.
    ram: Ram,
    code: Mutex<Code>,
}

/// Code of a node, protected by the lock of [`SharedCode`].
#[derive(Default)]
pub struct Code {
    /// Decoded basic blocks.
    pub blocks: Blocks,
    /// Decode pool, which other nodes may share. It also has native code for vector and x87 instructions.
    pub pool: Arc<DecodedPool>,
    /// Translation blocks that belong to this node alone.
    pub translation_cache: TranslationCache,
    /// Pages of the node with shared translation blocks.
    pub shared_pages: SharedPages,
    /// Counts of events in windows, by block.
    pub profile: Profile,
    /// Costs of the node's blocks; None where all instructions cost the same.
    pub block_costs: Option<BlockCosts>,
    /// Number of times that blocks were evicted. Pointers to blocks from before must not be used afterwards.
    evictions: u64,
}

// SAFETY: the raw pointers inside point to counters of guest RAM, which `Shared` keeps alive, and to blocks in the same value. Only one
// thread at a time uses the value.
unsafe impl Send for Code {}

impl SharedCode {
    /// Creates the code of a node with a decode pool of its own, without any blocks.
    pub fn new(ram: Ram) -> Self {
        Self::with_pool(ram, Arc::default())
    }

    /// Creates the code of a node that shares this decode pool with other nodes.
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

    /// Gives the node's blocks costs of their own. Must be called before a vCPU is made.
    pub fn cost_by_block(&self) -> std::io::Result<()> {
        let mut code = self.lock();
        let numbers = code.pool.cost_numbers.clone();
        code.block_costs = Some(BlockCosts::new(numbers)?);
        Ok(())
    }

    /// Returns the guest RAM.
    pub fn ram(&self) -> &Ram {
        &self.0.ram
    }

    /// Locks the code. The vCPUs of a node run one after the other.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Code> {
        // A panic ends the study, so a poisoned lock's code is not used to run guests.
        self.0.code.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for SharedCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedCode").finish_non_exhaustive()
    }
}

impl Code {
    /// Returns the number of times that blocks were evicted.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Returns whether other nodes share the decode pool. Entries of a node that is alone would never be looked up by another one.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.pool) > 1
    }

    /// Evicts unused blocks if there is no room for another block, or drops all code if the decode pool is full. Must not be called while
    /// translated code runs.
    pub fn make_room_for_a_block(&mut self) {
        if !self.pool.has_room() {
            self.clear();
        } else if !self.blocks.has_room(self.is_shared()) {
            self.evictions += 1;
            self.blocks.evict_unused();
        }
    }

    /// Drops all blocks and translation blocks. Must not be called while translated code runs. If the decode pool is full, this node
    /// continues with a new one, since other nodes may still run code of the old pool.
    pub fn clear(&mut self) {
        self.evictions += 1;
        self.translation_cache.clear();
        self.blocks.clear();
        if !self.pool.has_room() {
            self.pool = Arc::new(self.pool.another());
            self.shared_pages = SharedPages::default();
        }
    }
}
