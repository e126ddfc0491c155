//! Attribution of what a window counts to basic blocks.
//!
//! Every block that runs in a window gets a number, which it keeps as long as the node exists. Each context has an array of
//! records, one for each number. The head of a block adds one to the record's executions; misses add their costs to the record of the
//! block whose head ran last. A change of the context is a change of one pointer ([`crate::native::Native`] holds it).
//!
//! What a block counts besides follows from its executions, since it is straight-line code. Executions that were cut short are taken
//! back and counted apart.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem::offset_of;

use memmap2::{MmapMut, MmapOptions, UncheckedAdvice};
use nodescope_plugin_api::{
    BlockCounts, BlockProfile, Charges, Context, FLOP_CLASSES, PartialCounts, ProfiledBlock,
    SOURCES, STALL_TERMS, Source, StallTerm,
};

use crate::block::Block;
use crate::cpu::Cpu;
use crate::op::{Op, RIP};

/// Counts of one block in one context, as machine code adds to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(128))]
pub struct Record {
    executions: u64,
    long_cycles: u64,
    /// Data accesses beyond those that the block's instructions have each time.
    more_loads: u64,
    more_stores: u64,
    charges: Charges,
}

const _: () = assert!(size_of::<Record>() == 128);

impl Record {
    /// Where the executions are.
    pub const EXECUTIONS: usize = offset_of!(Record, executions);

    /// Where further reads are counted.
    pub const MORE_LOADS: usize = offset_of!(Record, more_loads);
    /// Where further writes are counted.
    pub const MORE_STORES: usize = offset_of!(Record, more_stores);

    /// Where answers of a source are counted.
    pub const fn answers(source: Source) -> usize {
        offset_of!(Record, charges) + offset_of!(Charges, answers) + 8 * source as usize
    }

    /// Where cycles of a term are counted.
    pub const fn cycles(term: StallTerm) -> usize {
        offset_of!(Record, charges) + offset_of!(Charges, cycles) + 8 * term as usize
    }

    const fn is_empty(&self) -> bool {
        let Charges { answers, cycles } = &self.charges;
        let mut sum = self.executions | self.long_cycles | self.more_loads | self.more_stores;
        let mut n = 0;
        while n < SOURCES {
            sum |= answers[n];
            n += 1;
        }
        n = 0;
        while n < STALL_TERMS {
            sum |= cycles[n];
            n += 1;
        }
        sum == 0
    }
}

/// Blocks that are told apart; later ones are counted as the first, which is no code.
const MOST_BLOCKS: usize = 1 << 17;
/// Contexts that are told apart; later ones share the records of [`REST`].
const MOST_CONTEXTS: usize = 1 << 12;
/// Stands for all contexts beyond those.
const REST: Context = Context(u32::MAX);

/// Number of a block that has none yet.
pub const UNNUMBERED: u32 = u32::MAX;

/// Records of one context, in memory that the host provides where it is touched.
struct Records(MmapMut);

impl Records {
    fn new() -> std::io::Result<Self> {
        MmapOptions::new()
            .len(MOST_BLOCKS * size_of::<Record>())
            .no_reserve_swap()
            .map_anon()
            .map(Self)
    }

    fn pointer(&mut self) -> *mut Record {
        self.0.as_mut_ptr().cast()
    }

    fn get(&self, block: u32) -> Record {
        let at = block as usize * size_of::<Record>();
        debug_assert!(at < self.0.len());
        // SAFETY: within the mapping, which is aligned to a page; every bit pattern is a record. Translated code, the only other
        // writer, runs under the lock of the code that owns this.
        unsafe { self.0.as_ptr().add(at).cast::<Record>().read() }
    }

    /// Makes all records zero; they stay where they are.
    fn clear(&mut self) {
        // SAFETY: nothing refers to the bytes but raw pointers of vCPUs, none of which runs. Anonymous memory reads as zero
        // afterwards (madvise(2), MADV_DONTNEED).
        let done = unsafe { self.0.unchecked_advise(UncheckedAdvice::DontNeed) };
        if done.is_err() {
            self.0.fill(0);
        }
    }
}

/// What the windows of a node found out about its code.
#[derive(Default)]
pub struct Profile {
    blocks: Vec<ProfiledBlock>,
    records: BTreeMap<Context, Records>,
    partial: BTreeMap<(Context, u32), PartialCounts>,
    lost_blocks: u64,
}

impl Profile {
    /// The records of a context. None where the host has no memory for them.
    fn records(&mut self, context: Context) -> Option<*mut Record> {
        if let Some(records) = self.records.get_mut(&context) {
            return Some(records.pointer());
        }
        let full = self.records.len() >= MOST_CONTEXTS;
        let records = match self.records.entry(if full { REST } else { context }) {
            Entry::Occupied(records) => records.into_mut(),
            Entry::Vacant(place) => match Records::new() {
                Ok(records) => place.insert(records),
                Err(error) => {
                    // The first records are made before anything runs, which then is not attributed at all.
                    tracing::warn!(%error, "no memory to attribute costs to code by address space");
                    return self.records.values_mut().next().map(Records::pointer);
                }
            },
        };
        Some(records.pointer())
    }

    /// Records to begin with, before the context is known; null where the host has no memory for them.
    pub fn first_records(&mut self) -> *mut Record {
        self.records(Context::default())
            .unwrap_or(std::ptr::null_mut())
    }

    /// Numbers a block.
    fn number(&mut self, block: impl FnOnce() -> ProfiledBlock) -> u32 {
        if self.blocks.is_empty() {
            self.blocks.push(ProfiledBlock::default());
        }
        if self.blocks.len() >= MOST_BLOCKS {
            self.lost_blocks += 1;
            return 0;
        }
        self.blocks.push(block());
        self.blocks.len() as u32 - 1
    }

    /// Forgets all counts. Blocks keep their numbers.
    pub fn clear(&mut self) {
        for records in self.records.values_mut() {
            records.clear();
        }
        self.partial.clear();
    }

    /// Everything that was counted. Counts start again from zero.
    pub fn take(&mut self) -> BlockProfile {
        let mut counts = BTreeMap::new();
        for (&context, records) in &self.records {
            for block in 0..self.blocks.len() as u32 {
                let record = records.get(block);
                if !record.is_empty() {
                    let counted = BlockCounts {
                        executions: record.executions,
                        long_cycles: record.long_cycles,
                        more_loads: record.more_loads,
                        more_stores: record.more_stores,
                        charges: record.charges,
                        ..Default::default()
                    };
                    counts.insert((context, block), counted);
                }
            }
        }
        for (key, partial) in std::mem::take(&mut self.partial) {
            counts
                .entry(key)
                .or_insert_with(BlockCounts::default)
                .partial = partial;
        }
        self.clear();
        BlockProfile {
            blocks: self.blocks.clone(),
            counts: counts
                .into_iter()
                .map(|((context, block), counts)| (context, block, counts))
                .collect(),
            lost_blocks: self.lost_blocks,
        }
    }
}

impl Cpu {
    /// Whether costs are attributed to blocks.
    #[inline(always)]
    pub fn profiling(&self) -> bool {
        !self.native.records.is_null()
    }

    /// Use the records of the running context.
    pub fn select_records(&mut self) {
        let context = self.context;
        if self.profiling()
            && self.native.records_of != Some(context)
            && let Some(records) = self.code().profile.records(context)
        {
            self.native.records = records;
            self.native.records_of = Some(context);
        }
    }

    /// The running block changes the context: it is counted in the new one, as its instructions are.
    pub fn change_context(&mut self) {
        if !self.profiling() {
            return self.refresh_context();
        }
        let old = std::ptr::from_mut(self.record());
        self.refresh_context();
        // SAFETY: the records of both contexts stay where they are.
        unsafe { (*old).executions -= 1 };
        self.record().executions += 1;
    }

    /// The record of the block whose head ran last.
    #[inline(always)]
    fn record(&mut self) -> &mut Record {
        debug_assert!(self.profiling());
        // SAFETY: the records of a context stay where they are as long as the code does, which this vCPU keeps alive; the offset is
        // that of a numbered block. vCPUs of a node run one at a time.
        unsafe {
            &mut *self
                .native
                .records
                .byte_add(self.native.record_offset as usize)
        }
    }

    /// The number of a block that begins at a linear address.
    pub fn number_of(&mut self, block: &Block, address: u64) -> u32 {
        let number = block.number.get();
        if number != UNNUMBERED {
            return number;
        }
        let mut bytes = vec![0; block.len as usize];
        let in_first = bytes.len().min(4096 - (block.physical & 0xfff) as usize);
        let (first, second) = bytes.split_at_mut(in_first);
        let read = self
            .copy_physical(block.physical, first)
            .and_then(|()| self.copy_physical(block.second_page, second));
        if read.is_none() {
            bytes.clear();
        }
        let profiled = ProfiledBlock {
            address,
            physical: block.physical,
            second_page: block.second_page,
            address_space: self.control.cr3,
            kernel: self.cpl != 3,
            bits: self.mode.bits() as u8,
            bytes,
            instructions: block.ops.len() as u32,
            loads: block.loads,
            stores: block.stores,
            flops: block.flops.as_deref().copied().unwrap_or_default(),
        };
        let number = self.code().profile.number(|| profiled);
        block.number.set(number);
        number
    }

    /// The interpreter enters a block.
    pub fn enter_profiled(&mut self, block: &Block) {
        let address = self.gpr[RIP as usize];
        self.native.record_offset = record_offset(self.number_of(block, address));
        self.record().executions += 1;
    }

    /// The block that was entered last ended behind this many of its operations.
    #[cold]
    #[inline(never)]
    pub fn cut_profiled(&mut self, executed: &[Op]) {
        self.record().executions -= 1;
        let number = self.native.record_offset as u32 / size_of::<Record>() as u32;
        let key = (self.context, number);
        let partial = self.code().profile.partial.entry(key).or_default();
        partial.executions += 1;
        for op in executed {
            partial.instructions += 1;
            partial.loads += u64::from(op.loads);
            partial.stores += u64::from(op.stores);
            partial.flops[usize::from(op.flop_class) % FLOP_CLASSES] += u64::from(op.flops);
        }
    }

    /// Data accesses beyond those that instructions have each time: strings, gathers, second lines, what delivery pushes.
    #[inline(always)]
    pub fn count_accesses(&mut self, loads: u64, stores: u64) {
        let counters = self.counters_mut();
        counters.loads += loads;
        counters.stores += stores;
        if self.profiling() {
            let record = self.record();
            record.more_loads += loads;
            record.more_stores += stores;
        }
    }

    /// Long instructions of the running block took so many cycles more than the nominal CPI.
    #[inline(always)]
    pub fn charge_long(&mut self, cycles: u64) {
        if cycles != 0 && self.profiling() {
            self.record().long_cycles += cycles;
        }
    }

    /// A model has answered with a stall.
    #[inline(always)]
    pub fn charge_stall(&mut self, stall: u32) {
        if self.profiling() {
            let mut charges = self.platform().take_charges();
            let rest = u64::from(stall).saturating_sub(charges.total());
            charges.stall(StallTerm::Unattributed, rest);
            self.record().charges.add(&charges);
        }
    }
}

/// Offset of the record of a block.
pub fn record_offset(number: u32) -> u64 {
    u64::from(number) * size_of::<Record>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_context_start_at_zero_and_again_after_they_are_taken() {
        let mut profile = Profile::default();
        let one = profile.number(|| ProfiledBlock {
            instructions: 3,
            ..Default::default()
        });
        assert_eq!(one, 1);
        let records = profile.records(Context(7)).unwrap();
        // SAFETY: the block is numbered, and nothing else uses the records.
        unsafe { (*records.add(1)).executions = 5 };
        let taken = profile.take();
        assert_eq!(taken.blocks.len(), 2);
        let [(context, block, counts)] = taken.counts[..] else {
            panic!("{taken:?}");
        };
        assert_eq!((context, block, counts.executions), (Context(7), 1, 5));
        assert!(profile.take().counts.is_empty());
        assert_eq!(profile.records(Context(7)).unwrap(), records);
    }

    #[test]
    fn contexts_beyond_the_limit_share_records() {
        let mut profile = Profile::default();
        for context in 0..MOST_CONTEXTS as u32 {
            profile.records(Context(context)).unwrap();
        }
        let rest = profile.records(Context(1 << 20)).unwrap();
        assert_eq!(profile.records(Context(1 << 21)).unwrap(), rest);
        assert_ne!(profile.records(Context(0)).unwrap(), rest);
    }
}
