//! Attribution of a window's counts to basic blocks.
//!
//! Every block that runs in a window gets a number, which it keeps as long as the node exists. Models see the number as the site of
//! references, whether costs are attributed or not. Where they are, each vCPU has an array of records for each of its contexts, a record
//! for each number. The prologue of a translation block adds one to the record's executions; misses add their costs to the record of the
//! running block. A change of the context is a change of one pointer ([`crate::native::Native`] holds it).
//!
//! A block is straight-line code. Its loads, stores, fetches and FLOPs therefore follow from its executions, and are not counted as the
//! block runs. [`Cpu::settle_profile`] turns executions into counters when a window reads the counters. Executions that were cut short are
//! taken back and counted apart.
//!
//! Block 0 has the costs outside of blocks, such as the delivery of an interrupt.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem::offset_of;

use memmap2::{MmapMut, MmapOptions, UncheckedAdvice};
use nodescope_engine::CodeNumbers;
use nodescope_plugin_api::{
    BlockCounts, BlockProfile, Charges, Context, Counters, MemRef, PartialCounts, Privilege,
    ProfiledBlock, SOURCES, STALL_TERMS, StallTerm,
};

use crate::block::Block;
use crate::cpu::Cpu;
use crate::op::RIP;
use crate::site::RunningSite;

/// Counts of one block in one context, as machine code adds to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(128))]
pub struct Record {
    executions: u64,
    /// Executions whose counts are in the counters already.
    settled: u64,
    long_cycles: u64,
    /// Data loads beyond those that the block's instructions make in each execution.
    more_loads: u64,
    more_stores: u64,
    charges: Charges,
}

const _: () = assert!(size_of::<Record>() == 128);

impl Record {
    /// Offset of the executions, in bytes.
    pub const EXECUTIONS: usize = offset_of!(Record, executions);

    /// Offset in bytes of the count of data loads beyond those that the block's instructions make in each execution.
    pub const MORE_LOADS: usize = offset_of!(Record, more_loads);
    /// Offset in bytes of the count of data stores beyond those that the block's instructions make in each execution.
    pub const MORE_STORES: usize = offset_of!(Record, more_stores);

    /// Offset of the charges, in bytes.
    pub const CHARGES: usize = offset_of!(Record, charges);

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

/// Maximum number of blocks with a number, and with a record, of their own. The misses of later blocks are attributed to block 0, and their
/// instructions are counted one by one.
pub const MOST_BLOCKS: usize = 1 << 18;
/// Maximum memory of a node's records in bytes, if a guest touches all of them.
const MOST_BYTES: usize = 1 << 30;
/// Maximum number of contexts of all vCPUs with records of their own. Later contexts share the records that were made last.
const MOST_CONTEXTS: usize = 1 << 12;

/// Mark of a block that has no number yet.
pub const UNNUMBERED: u32 = u32::MAX;

/// Location of a block: physical addresses of its first byte and of its second page (0 if it has none), width of the code segment in bits,
/// and true for the kernel's privilege.
type BlockLocation = (u64, u64, u8, bool);

/// Owner of records: vCPU and context.
type RecordsOwner = (u16, Context);

/// Records of one context of a vCPU, in memory that the host provides where it is touched.
struct Records {
    memory: MmapMut,
    /// True if the context may have run since its vCPU began to attribute counts to code.
    ran: bool,
}

impl Records {
    fn new() -> std::io::Result<Self> {
        MmapOptions::new()
            .len(MOST_BLOCKS * size_of::<Record>())
            .no_reserve_swap()
            .map_anon()
            .map(|memory| Self { memory, ran: true })
    }

    fn pointer(&mut self) -> *mut Record {
        self.memory.as_mut_ptr().cast()
    }

    fn get(&self, block: u32) -> Record {
        let at = block as usize * size_of::<Record>();
        debug_assert!(at < self.memory.len());
        // SAFETY: within the mapping, which is aligned to a page; every bit pattern is a record. Translated code, the only other writer,
        // runs under the lock of the code that owns these records.
        unsafe { self.memory.as_ptr().add(at).cast::<Record>().read() }
    }

    /// Makes all records zero. Their addresses do not change.
    fn clear(&mut self) {
        // SAFETY: nothing refers to the bytes but raw pointers of vCPUs, none of which runs. Anonymous memory reads as zero
        // afterwards (madvise(2), MADV_DONTNEED).
        let done = unsafe { self.memory.unchecked_advise(UncheckedAdvice::DontNeed) };
        if done.is_err() {
            self.memory.fill(0);
        }
    }
}

fn place(block: &ProfiledBlock) -> BlockLocation {
    let ProfiledBlock {
        physical,
        second_page,
        bits,
        kernel,
        ..
    } = *block;
    (physical, second_page, bits, kernel)
}

/// Counts of a node's code, from its windows.
#[derive(Default)]
pub struct Profile {
    blocks: Vec<ProfiledBlock>,
    /// Number of the last block of each location: a block that is decoded anew keeps its number.
    at: BTreeMap<BlockLocation, u32>,
    records: BTreeMap<RecordsOwner, Records>,
    /// Owner of the records that were made last.
    last: Option<RecordsOwner>,
    partial: BTreeMap<(RecordsOwner, u32), PartialCounts>,
    lost_blocks: u64,
    lost_contexts: u64,
    /// Limit in place of [`MOST_BLOCKS`], for tests.
    pub fewer_blocks: Option<usize>,
}

impl Profile {
    /// Returns whether this many contexts and blocks may have records.
    fn has_room(&self, contexts: usize, blocks: usize) -> bool {
        let most = self.fewer_blocks.unwrap_or(MOST_BLOCKS);
        contexts <= MOST_CONTEXTS
            && blocks <= most
            && contexts * blocks * size_of::<Record>() <= MOST_BYTES
    }

    /// Returns the records of a context of a vCPU. Beyond the limits, these are the records that were made last. Null where the host has no
    /// memory for any.
    pub fn records(&mut self, owner: RecordsOwner) -> *mut Record {
        let full = !self.records.contains_key(&owner)
            && !self.has_room(self.records.len() + 1, self.blocks.len());
        let owner = match self.last {
            Some(last) if full => {
                self.lost_contexts += 1;
                last
            }
            _ => owner,
        };
        let records = match self.records.entry(owner) {
            Entry::Occupied(records) => records.into_mut(),
            Entry::Vacant(place) => match Records::new() {
                Ok(records) => {
                    self.last = Some(owner);
                    place.insert(records)
                }
                Err(error) => {
                    // Each vCPU has records before it runs, or nothing is attributed at all.
                    tracing::warn!(%error, "no memory to attribute costs to code by address space");
                    let other = self.last.and_then(|last| self.records.get_mut(&last));
                    return other.map_or(std::ptr::null_mut(), Records::pointer);
                }
            },
        };
        records.ran = true;
        records.pointer()
    }

    /// Notes that no context of a vCPU has run yet. All records must be empty.
    pub fn begin_attribution(&mut self, vcpu: u16) {
        let own = (vcpu, Context(0))..=(vcpu, Context(u32::MAX));
        for (_, records) in self.records.range_mut(own) {
            records.ran = false;
        }
    }

    /// Returns the blocks and contexts that have numbers so far.
    pub fn numbers(&self) -> CodeNumbers {
        let others = self
            .records
            .keys()
            .filter(|owner| self.last != Some(**owner));
        CodeNumbers {
            blocks: self.blocks.clone(),
            contexts: others.copied().chain(self.last).collect(),
            lost_blocks: self.lost_blocks,
            lost_contexts: self.lost_contexts,
        }
    }

    /// Takes over the numbers of another node's code. Returns false, and does nothing, if there are more numbers than fit.
    pub fn restore_numbers(&mut self, numbers: CodeNumbers) -> bool {
        if !self.has_room(numbers.contexts.len(), numbers.blocks.len()) {
            return false;
        }
        let blocks = (0..).zip(&numbers.blocks).skip(1);
        self.at = blocks.map(|(number, of)| (place(of), number)).collect();
        self.blocks = numbers.blocks;
        for owner in numbers.contexts {
            self.records(owner);
        }
        self.lost_blocks = numbers.lost_blocks;
        self.lost_contexts = numbers.lost_contexts;
        true
    }

    /// Makes block 0, which exists even if no code ever runs.
    fn begin(&mut self) {
        if self.blocks.is_empty() {
            self.blocks.push(ProfiledBlock::default());
        }
    }

    /// Returns the number of a block: the number that a block of equal location and bytes has already, else a new number. Returns 0 beyond
    /// the limit.
    fn number(&mut self, block: ProfiledBlock) -> u32 {
        self.begin();
        let place = place(&block);
        let known = self.at.get(&place).copied();
        if let Some(known) = known
            && self.blocks[known as usize].bytes == block.bytes
        {
            return known;
        }
        if !self.has_room(self.records.len(), self.blocks.len() + 1) {
            self.lost_blocks += 1;
            return 0;
        }
        let number = self.blocks.len() as u32;
        self.blocks.push(block);
        self.at.insert(place, number);
        number
    }

    /// Adds up the counts of the blocks that a vCPU has executed since the last call, by context and by kernel or user. A line has
    /// `1 << shift` bytes.
    fn settle(&mut self, vcpu: u16, shift: u32, settled: &mut BTreeMap<(Context, bool), Counters>) {
        let own = (vcpu, Context(0))..=(vcpu, Context(u32::MAX));
        let ran = self
            .records
            .range_mut(own)
            .filter(|(_, records)| records.ran);
        for ((_, context), records) in ran {
            for (number, block) in self.blocks.iter().enumerate() {
                let record = records.get(number as u32);
                let times = record.executions - record.settled;
                if times == 0 {
                    continue;
                }
                // SAFETY: as in `Records::get`; the record is numbered.
                unsafe { (*records.pointer().add(number)).settled = record.executions };
                let sum = settled.entry((*context, block.kernel)).or_default();
                sum.fetches += times * lines_of(block, shift);
                sum.loads += times * u64::from(block.loads);
                sum.stores += times * u64::from(block.stores);
                for (sum, each) in sum.flops.iter_mut().zip(block.flops) {
                    *sum += times * u64::from(each);
                }
            }
        }
    }

    /// Forgets all counts. Blocks keep their numbers.
    pub fn clear(&mut self) {
        for records in self.records.values_mut().filter(|records| records.ran) {
            records.clear();
        }
        self.partial.clear();
    }

    /// Returns all counts with the blocks that they are of, block 0 always among them, and clears the counts. Blocks of earlier windows
    /// that did not run since keep their numbers here, and are not returned: a window costs what it contains.
    pub fn take(&mut self) -> BlockProfile {
        self.begin();
        let mut counts: BTreeMap<(Context, u32), BlockCounts> = BTreeMap::new();
        for (&(_, context), records) in self.records.iter().filter(|(_, of)| of.ran) {
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
                    counts.entry((context, block)).or_default().add(&counted);
                }
            }
        }
        for (((_, context), block), partial) in std::mem::take(&mut self.partial) {
            let counts = counts.entry((context, block)).or_default();
            counts.partial.add(&partial);
        }
        self.clear();
        let mut used: BTreeMap<u32, u32> = BTreeMap::from([(0, 0)]);
        used.extend(counts.keys().map(|&(_, block)| (block, 0)));
        let mut blocks = Vec::with_capacity(used.len());
        let numbers = used.keys().copied().collect();
        for (block, number) in &mut used {
            *number = blocks.len() as u32;
            blocks.push(self.blocks[*block as usize].clone());
        }
        BlockProfile {
            blocks,
            numbers,
            counts: counts
                .into_iter()
                .map(|((context, block), counts)| (context, used[&block], counts))
                .collect(),
            lost_blocks: self.lost_blocks,
            lost_contexts: self.lost_contexts,
        }
    }
}

impl Cpu {
    /// Returns whether costs are attributed to blocks.
    #[inline(always)]
    pub fn profiling(&self) -> bool {
        !self.native.records.is_null()
    }

    /// Returns whether the running block has a record of its own. All its other counts follow from the record's executions.
    #[inline(always)]
    pub fn numbered(&self) -> bool {
        self.profiling() && self.native.site.block() != 0
    }

    /// Selects the records of the running context.
    pub fn select_records(&mut self) {
        let context = self.context;
        if self.profiling() && self.native.records_of != Some(context) {
            let owner = (self.id, context);
            self.native.records = self.code().profile.records(owner);
            self.native.records_of = Some(context);
        }
    }

    /// Notes that no block runs: later references and costs are outside of blocks.
    #[inline(always)]
    pub fn leave_numbered(&mut self) {
        self.native.site = RunningSite::NONE;
    }

    /// Changes the context of the running block: the new context counts the block, as it counts the block's instructions.
    pub fn change_context(&mut self) {
        if !self.numbered() {
            return self.refresh_context();
        }
        let old = std::ptr::from_mut(self.record());
        self.refresh_context();
        // SAFETY: the records of both contexts stay where they are.
        unsafe { (*old).executions -= 1 };
        self.record().executions += 1;
    }

    /// Changes the context after the base of FS has changed: another thread runs.
    pub fn change_thread(&mut self) {
        if self.attached {
            self.change_context();
        }
    }

    /// Returns the record of the running block.
    #[inline(always)]
    fn record(&mut self) -> &mut Record {
        debug_assert!(self.profiling());
        // SAFETY: the records of a context stay where they are as long as the code does, which this vCPU keeps alive; the offset is
        // that of a numbered block. vCPUs of a node run one at a time.
        unsafe {
            &mut *self
                .native
                .records
                .byte_add(self.native.site.record_offset())
        }
    }

    /// Returns the machine code of a block; `None` if it cannot be read.
    pub fn bytes_of(&mut self, block: &Block) -> Option<Vec<u8>> {
        let mut bytes = vec![0; block.len() as usize];
        let in_first = bytes.len().min(4096 - (block.physical & 0xfff) as usize);
        let (first, second) = bytes.split_at_mut(in_first);
        self.copy_physical(block.physical, first)?;
        self.copy_physical(block.second_page, second)?;
        Some(bytes)
    }

    /// Returns the number of a block that begins at a linear address.
    pub fn number_of(&mut self, block: &Block, address: u64) -> u32 {
        let kernel = self.cpl != 3;
        let numbered = &block.numbers[usize::from(kernel)];
        if numbered.get() != UNNUMBERED {
            return numbered.get();
        }
        let bytes = self.bytes_of(block).unwrap_or_default();
        let profiled = ProfiledBlock {
            address,
            physical: block.physical,
            second_page: block.second_page,
            address_space: self.control.cr3,
            kernel,
            bits: self.mode.bits() as u8,
            bytes,
            instructions: block.ops().len() as u32,
            loads: block.decoded.loads,
            stores: block.decoded.stores,
            flops: block.decoded.flops.as_deref().copied().unwrap_or_default(),
        };
        let number = self.code().profile.number(profiled);
        numbered.set(number);
        number
    }

    /// Notes that the interpreter enters a block in a window: later references and costs are the block's.
    pub fn enter_numbered(&mut self, block: &Block) {
        let address = self.gpr[RIP as usize];
        self.native.site = RunningSite::of_block(self.number_of(block, address));
        if self.numbered() {
            self.record().executions += 1;
        }
    }

    /// Counts an execution of the running block that ended after `executed` of its operations. `fetched`: the number of the block's bytes
    /// whose lines were fetched.
    #[cold]
    #[inline(never)]
    pub fn cut_profiled(&mut self, block: &Block, executed: usize, fetched: u32) {
        self.record().executions -= 1;
        let number = self.native.site.block();
        let owner = (self.id, self.context);
        let fetches = lines_in(
            block.physical,
            block.second_page,
            fetched,
            self.instruction_l0.shift(),
        );
        let mut cut = PartialCounts {
            executions: 1,
            ..PartialCounts::default()
        };
        for op in &block.ops()[..executed.min(block.ops().len())] {
            cut.instructions += 1;
            cut.loads += u64::from(op.loads);
            cut.stores += u64::from(op.stores);
            cut.flops[usize::from(op.flop_class)] += u64::from(op.flops);
        }
        let counters = self.counters_mut();
        counters.fetches += fetches;
        counters.loads += cut.loads;
        counters.stores += cut.stores;
        for (sum, flops) in counters.flops.iter_mut().zip(cut.flops) {
            *sum += flops;
        }
        let partial = &mut self.code().profile.partial;
        partial.entry((owner, number)).or_default().add(&cut);
    }

    /// Reports to the platform the counters of the blocks that this vCPU has executed since the last such report.
    pub fn settle_profile(&mut self) {
        if !self.profiling() {
            return;
        }
        let (id, shift) = (self.id, self.instruction_l0.shift());
        let mut settled: BTreeMap<(Context, bool), Counters> = BTreeMap::new();
        self.code().profile.settle(id, shift, &mut settled);
        for ((context, kernel), counters) in settled {
            let privilege = if kernel {
                Privilege::Kernel
            } else {
                Privilege::User
            };
            self.platform().account(id, context, privilege, &counters);
        }
    }

    /// Counts data accesses beyond those that instructions have each time: those of strings and gathers, further lines of an access, and
    /// pushes by the delivery of an interrupt.
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

    /// Charges the running block's long instructions with `cycles` beyond the nominal CPI.
    #[inline(always)]
    pub fn charge_long(&mut self, cycles: u64) {
        if cycles != 0 && self.profiling() {
            self.record().long_cycles += cycles;
        }
    }

    /// Charges the stall of a model's answer to a reference to `line` to the running block.
    #[inline(always)]
    pub fn charge_stall(&mut self, reference: &MemRef, line: u64, stall: u32) {
        if self.profiling() {
            let mut charges = self.platform().take_charges();
            // Of an answer, a model of the core lets the clock count another part than the charges say.
            let exposed = self.recorder.has_core && charges.answers.iter().any(|n| *n > 0);
            if !exposed {
                let rest = u64::from(stall).saturating_sub(charges.total());
                charges.stall(StallTerm::Unattributed, rest);
            }
            self.record().charges.add(&charges);
            if self.recorder.active {
                self.record_answer(reference, line, &charges);
            }
        }
    }
}

/// Returns the number of lines that a block fetches.
fn lines_of(block: &ProfiledBlock, shift: u32) -> u64 {
    lines_in(
        block.physical,
        block.second_page,
        block.bytes.len() as u32,
        shift,
    )
}

/// Returns the number of lines of `1 << shift` bytes in which `bytes` bytes from `physical` on lie. Bytes beyond the page's end are in the
/// page at `second_page`. No bytes count as one byte.
fn lines_in(physical: u64, second_page: u64, bytes: u32, shift: u32) -> u64 {
    let lines = |from: u64, bytes: u64| match bytes {
        0 => 0,
        _ => ((from + bytes - 1) >> shift) - (from >> shift) + 1,
    };
    let bytes = u64::from(bytes.max(1));
    let first = bytes.min(4096 - (physical & 0xfff));
    lines(physical, first) + lines(second_page, bytes - first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_context_start_at_zero_and_again_after_they_are_taken() {
        let mut profile = Profile::default();
        let block = ProfiledBlock {
            instructions: 3,
            bytes: vec![1, 2],
            ..Default::default()
        };
        let one = profile.number(block.clone());
        assert_eq!(one, 1);
        // Decoded anew, and rewritten.
        assert_eq!(profile.number(block.clone()), 1);
        let rewritten = ProfiledBlock {
            bytes: vec![1, 3],
            ..block
        };
        assert_eq!(profile.number(rewritten), 2);
        let records = profile.records((0, Context(7)));
        // SAFETY: the block is numbered, and nothing else uses the records.
        unsafe { (*records.add(1)).executions = 5 };
        let taken = profile.take();
        // Block 2 did not run.
        assert_eq!(taken.blocks.len(), 2);
        let [(context, block, counts)] = taken.counts[..] else {
            panic!("{taken:?}");
        };
        assert_eq!((context, block, counts.executions), (Context(7), 1, 5));
        assert!(profile.take().counts.is_empty());
        assert_eq!(profile.records((0, Context(7))), records);
    }

    #[test]
    fn contexts_beyond_the_limit_share_records() {
        let mut profile = Profile::default();
        for context in 0..MOST_CONTEXTS as u32 {
            profile.records((0, Context(context)));
        }
        let last = profile.records((0, Context(MOST_CONTEXTS as u32 - 1)));
        assert_eq!(profile.records((0, Context(1 << 20))), last);
        assert_eq!(profile.records((1, Context(3))), last);
        assert_ne!(profile.records((0, Context(0))), last);
    }

    #[test]
    fn lines_are_counted_in_both_pages() {
        assert_eq!(lines_in(0x1000, 0, 64, 6), 1);
        assert_eq!(lines_in(0x1001, 0, 64, 6), 2);
        assert_eq!(lines_in(0x1ffe, 0x7000, 7, 6), 2);
        assert_eq!(lines_in(0x1000, 0, 0, 6), 1);
    }
}
