//! Sites: which instruction makes a reference, as a model sees it ([`nodescope_plugin_api::MemRef::site`]).
//!
//! The interpreter knows its running operation. Translated code stores a constant, [`RunningSite`], out of line: after a look-up that
//! missed the most recently used line of a set, and before the other lines are tried.

use nodescope_plugin_api::{Access, Site};

use crate::cpu::Cpu;
use crate::fetch::MAX_BLOCK;
use crate::op::attr;
use crate::profile::{MOST_BLOCKS, Record};
use crate::run::executed;

/// Instruction that runs, in one word. It has, from the lowest bit on, the block's number, the operation's number within the block, and a
/// bit that is set if any block of a window runs. Block 0 is a block without a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct RunningSite(u32);

impl RunningSite {
    /// Number of bits of the block's number.
    pub const BLOCK_BITS: u32 = 18;
    /// Number of bits of the operation's number, which follow.
    const OPERATION_BITS: u32 = 6;
    const IN_BLOCK: u32 = 1 << (Self::BLOCK_BITS + Self::OPERATION_BITS);

    /// Outside of blocks.
    pub const NONE: RunningSite = RunningSite(0);

    /// Returns the site of the first operation of a block.
    pub fn of_block(number: u32) -> Self {
        debug_assert!(number >> Self::BLOCK_BITS == 0);
        Self(Self::IN_BLOCK | number)
    }

    /// Returns the constant that translated code stores for an operation of the block: the number of the block and of the operation.
    pub fn constant(self, operation: usize) -> i32 {
        debug_assert!(operation >> Self::OPERATION_BITS == 0);
        let operation = if self.block() == 0 { 0 } else { operation };
        (self.block() | (operation as u32) << Self::BLOCK_BITS) as i32
    }

    /// Returns whether a block of a window runs.
    pub fn in_block(self) -> bool {
        self.0 & Self::IN_BLOCK != 0
    }

    /// Returns the number of the block; 0 outside of numbered blocks.
    #[inline(always)]
    pub fn block(self) -> u32 {
        self.0 & ((1 << Self::BLOCK_BITS) - 1)
    }

    /// Returns the number of the operation.
    #[inline(always)]
    pub fn operation(self) -> u32 {
        self.0 >> Self::BLOCK_BITS & ((1 << Self::OPERATION_BITS) - 1)
    }

    /// Returns the site of an operation of the block, as models see it.
    pub fn site(self, operation: u32) -> Site {
        let block = self.block();
        let operation = if block == 0 { 0 } else { operation };
        Site { block, operation }
    }

    /// Returns the offset of the block's record, in bytes.
    #[inline(always)]
    pub fn record_offset(self) -> usize {
        self.block() as usize * size_of::<Record>()
    }
}

const _: () = assert!(MOST_BLOCKS <= 1 << RunningSite::BLOCK_BITS);
const _: () = assert!(MAX_BLOCK <= 1 << RunningSite::OPERATION_BITS);

/// Properties of a reference that depend on the instruction alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    /// Value of [`nodescope_plugin_api::MemRef::site`].
    pub site: Site,
    /// Value of [`nodescope_plugin_api::MemRef::non_temporal`].
    pub non_temporal: bool,
    /// Value of [`nodescope_plugin_api::MemRef::locked`].
    pub locked: bool,
}

impl Cpu {
    /// Returns the origin of a data reference that the interpreter makes.
    pub fn origin(&self, access: Access) -> Origin {
        let running = self.native.site;
        if !running.in_block() {
            return Origin::default();
        }
        let operation = executed(self.block_start, self.current) as u32;
        // SAFETY: while a block of a window runs in the interpreter, `current` is one of its operations.
        let op = unsafe { &*self.current };
        Origin {
            site: running.site(operation),
            non_temporal: access == Access::Write && op.attr & attr::NON_TEMPORAL != 0,
            locked: op.attr & attr::LOCK != 0,
        }
    }
}
