//! Costs of basic blocks, by which clocks advance.
//!
//! Where a node has such costs, work is counted in sixteenths of a cycle. A block takes its nominal cost, by the study's cycles per
//! instruction, and a correction. The whole cost counts at the block's beginning, so that an instruction of a block that reads the clock
//! gets the time at the block's end. A block of which only the first instructions run takes the nominal cost of these.
//!
//! Corrections belong to code by its bytes and its offset within the page: such blocks have one number in all nodes that share a decode
//! pool, so that these nodes can share translation blocks. Without the offset, short blocks that programs have many times would share one
//! cost. Each node has two tables of corrections. While no model is attached, costs contain the waiting for caches and memory. In a window
//! with a core they do not, since the models charge each answer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{MmapMut, MmapOptions, UncheckedAdvice};

use crate::block::Block;
use crate::cpu::Cpu;
use crate::lookup;
use crate::native::{correction_of_work, work_of_correction};

/// Maximum number of blocks with a cost of their own. Later ones keep their nominal cost.
const MOST_COSTS: usize = 1 << 22;
/// Maximum cost of a block, in sixteenths of a cycle.
const MOST_WORK: u64 = 1 << 24;

/// What a block's prologue subtracts from the budget beyond the nominal cost, as [`correction_of_work`] makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Correction(pub i64);

/// Number of a block's cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostNumber(u32);

impl CostNumber {
    /// The number of blocks that always have their nominal cost.
    pub const NOMINAL: Self = Self(0);

    /// Returns the offset of the block's correction in the table, in bytes.
    pub fn offset(self) -> i64 {
        i64::from(self.0) * size_of::<Correction>() as i64
    }
}

/// The numbers of code by its bytes and its offset within the page.
#[derive(Default)]
pub struct CostNumbers(Mutex<HashMap<[u64; 2], u32>>);

impl CostNumbers {
    /// Returns the number of code at a physical address, in a code segment of so many bits.
    fn of(&self, bytes: &[u8], physical: u64, bits: u8) -> CostNumber {
        let half = |seed: u8| {
            let mut hasher = DefaultHasher::new();
            (seed, bits, physical & 0xfff, bytes).hash(&mut hasher);
            hasher.finish()
        };
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = numbers.len() + 1;
        CostNumber(match numbers.entry([half(0), half(1)]) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(place) if next < MOST_COSTS => *place.insert(next as u32),
            Entry::Vacant(_) => 0,
        })
    }
}

/// The costs of a node's blocks.
pub struct BlockCosts {
    detached: Table,
    attached: Table,
    numbers: Arc<CostNumbers>,
}

/// The corrections of all blocks, by number.
struct Table(MmapMut);

impl Table {
    fn new() -> std::io::Result<Self> {
        let table = MmapOptions::new()
            .len(MOST_COSTS * size_of::<Correction>())
            .no_reserve_swap()
            .map_anon()?;
        Ok(Self(table))
    }

    /// Sets the cost of code to so much work, of which `nominal` is the nominal cost.
    fn set(&mut self, number: CostNumber, work: u64, nominal: i64) {
        if number == CostNumber::NOMINAL {
            return;
        }
        let work = work.min(MOST_WORK) as i64;
        // A correction of zero means that the cost is not known.
        let more = match work - nominal {
            0 => 1,
            more => more,
        };
        let correction = Correction(correction_of_work(more));
        let at = number.offset() as usize;
        self.0[at..at + 8].copy_from_slice(&correction.0.to_le_bytes());
    }

    fn clear(&mut self) {
        // SAFETY: nothing refers to the bytes but raw pointers of vCPUs, none of which runs. Anonymous memory reads as zero afterwards
        // (madvise(2), MADV_DONTNEED).
        let done = unsafe { self.0.unchecked_advise(UncheckedAdvice::DontNeed) };
        if done.is_err() {
            self.0.fill(0);
        }
    }
}

impl BlockCosts {
    /// Makes tables in which all blocks have their nominal costs.
    pub fn new(numbers: Arc<CostNumbers>) -> std::io::Result<Self> {
        Ok(Self {
            detached: Table::new()?,
            attached: Table::new()?,
            numbers,
        })
    }

    /// Returns the first correction of the table for the time without a model, and of that for the time with a model. The addresses do not
    /// change.
    pub fn pointers(&self) -> [*const Correction; 2] {
        [&self.detached, &self.attached].map(|table| table.0.as_ptr().cast())
    }

    /// Returns the number of code at a physical address, in a code segment of so many bits.
    pub fn number(&self, bytes: &[u8], physical: u64, bits: u8) -> CostNumber {
        self.numbers.of(bytes, physical, bits)
    }

    /// Sets the cost of code, for the time without a model, to so much work, of which `nominal` is the nominal cost.
    pub fn set_detached(&mut self, number: CostNumber, work: u64, nominal: i64) {
        self.detached.set(number, work, nominal);
    }

    /// Sets the cost of code, for the time with a model, to so much work, of which `nominal` is the nominal cost.
    pub fn set_attached(&mut self, number: CostNumber, work: u64, nominal: i64) {
        self.attached.set(number, work, nominal);
    }

    /// Gives all blocks their nominal costs.
    pub fn clear(&mut self) {
        self.detached.clear();
        self.attached.clear();
    }
}

impl Cpu {
    /// Returns the nominal cost of instructions in sixteenths of a cycle. No instruction costs less than one.
    pub fn nominal_cost(&self, instructions: i64) -> i64 {
        let sixteenths = (instructions * i64::from(self.nominal_cpi.value())) >> 12;
        sixteenths.max(instructions)
    }

    /// Returns the cost of the first `count` instructions of a block in sixteenths of a cycle.
    pub fn cost_of(&self, entry: lookup::Entry, count: usize) -> u64 {
        let nominal = self.nominal_cost(count as i64);
        if count < entry.count as usize {
            return nominal as u64;
        }
        // SAFETY: the block has just been looked up, and nothing ran since.
        let correction = self.correction_of(unsafe { &*entry.block });
        (nominal + work_of_correction(correction.0)) as u64
    }

    /// Returns the correction of a block's cost. The node must have costs of blocks.
    fn correction_of(&self, block: &Block) -> Correction {
        // SAFETY: the table has an element for each number.
        unsafe {
            self.block_costs
                .byte_offset(block.cost.offset() as isize)
                .read()
        }
    }

    /// Returns whether a block's cost was set.
    pub fn has_cost(&self, block: &Block) -> bool {
        !self.block_costs.is_null() && self.correction_of(block) != Correction::default()
    }
}
