//! The translator: turns basic blocks of guest code into translation blocks. A translation block is host code that works on the guest's
//! registers.
//!
//! Reading order:
//!
//! - [`registers`]: where guest registers live. `translate`: a translation block. `prologue`: its entry.
//! - `plan`: how an instruction is carried out. `emit` and `flags`: templates with the fast path of accesses, and lazy flags.
//! - `out_of_line`: slow paths. `coalescing` and `fusion`: one look-up for several operands.
//! - `stack`, `string`, `system` and `transfer`: more templates. `jump_cache`: targets of branches.
//! - `runtime`: entering, leaving and calling out. `time_slice`: a new budget within translated code.
//! - `access`, `split`, `way_lookup` and `miss_routines`: look-ups that miss.
//! - `arena` and `assembler`: memory for code, and machine code. `code_map`: a map of the code for profilers.
//!
//! The interpreter is the reference. Translated code has the fast path of memory accesses, most operations on registers, and a few system
//! instructions. For everything else (a page walk, a fault, a device, most system instructions) the interpreter's function for the
//! operation runs on the interpreter's state. A translation block has the instructions of its basic block. Interpreter and translated code
//! check the budget only at the beginning of a block. So time slices, interrupts and statistics fall on the same instructions, and a study
//! observes no difference. After CLI, translated code may end its budget for an interrupt that must wait. The run loop then finds nothing
//! to do.
//!
//! Chaining: within a page, a block jumps directly to a block that already had code when the jump was emitted. To other blocks of the page
//! it jumps through a chain slot, which the run loop fills with the successor's address. For indirect branches and for branches across
//! pages it asks the [`jump_cache`], which is flushed whenever a page's translation may have changed. When code is written to, none of its
//! page's blocks is found any more. So the jumps from one of these blocks to another are never used again.
//!
//! The nodes of a cluster, if there are several, share most code that runs outside of windows ([`shared_code`]).

mod access;
mod arena;
mod assembler;
mod coalescing;
mod code_map;
mod emit;
mod flags;
mod fusion;
mod jump_cache;
mod miss_routines;
mod out_of_line;
mod plan;
mod prologue;
pub mod registers;
mod runtime;
mod shared_code;
mod split;
mod stack;
mod string;
mod system;
mod time_slice;
mod transfer;
mod translate;
mod way_lookup;

use std::sync::Arc;

use nodescope_plugin_api::{Context, FLOP_CLASSES};

use nodescope_x86::bits::rflags;

use crate::block::{Block, CodeSpan, HostCode};
use crate::block_costs::CostNumber;
use crate::cpi::Cpi;
use crate::cpu::{Cpu, Mode};
use crate::lookup::{Counts, Entry};
use crate::op::{Done, Flow, RIP};
use crate::ops::integer::host::{keeps_undefined_flags, scans_keep_flags};
use crate::pool::Decoded;
use crate::profile::Record;
use crate::site::RunningSite;
use crate::vcpu::Translate;

pub use arena::CodeAddress;
pub use code_map::write_code_map;
pub use shared_code::{SharedPage, SharedPages, SharedTranslationCache};

use arena::{Arena, ChainSlot};
use jump_cache::JumpCache;
use runtime::Routines;

/// Width in bits of each field of [`Native::packed`].
const PACKED_BITS: u32 = 21;
/// Mask of the fetches in [`Native::packed`].
const FETCHES: u64 = (1 << PACKED_BITS) - 1;
/// Maximum work, and so maximum number of instructions, before the packed counters are emptied.
const LONGEST: i64 = 1 << 17;

/// Reason for which translated code returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Exit {
    /// At a direct exit, whose number is in [`Native::exit`].
    Direct = 1,
    /// At an indirect branch; the instruction pointer is set.
    Indirect = 2,
    /// At the beginning of a block that must be interpreted. [`Native::exit`] is the number of an exit to this block.
    Interpret = 3,
    /// After an operation of the interpreter; [`Native::done`] is its result.
    Interpreted = 4,
    /// Never a reason to return: an operation of the interpreter ended the block, and translated code continues at [`Native::next`].
    Continue = 5,
}

/// log2 of the factor by which the translation threshold is lower for code that nodes share.
const SHARED_THRESHOLD_SHIFT: u32 = 4;
/// Bit that marks the numbers of exits of shared code.
const SHARED_EXIT: u32 = 1 << 31;

/// An exit of a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockExit {
    ip: u64,
    /// The chain slot that leads to the successor; None for an exit that is not chained.
    chain_slot: Option<ChainSlot>,
    /// The page of shared code that the exit belongs to; None for an exit of the node's own code.
    page: Option<SharedPage>,
}

/// A translation block: the host code of a basic block at one linear address. The fields that [`Cpu::fetch_translated`] reads share one
/// line of the host's caches: in a window with several nodes, most fetches find this value in the host's memory.
#[repr(C, align(64))]
pub struct TranslationBlock {
    ip: u64,
    /// The guest code of the block.
    code: CodeSpan,
    /// Fetches, stores and loads of the whole block, [`PACKED_BITS`] each. 0 outside windows, and where the block has a record.
    packed: u64,
    /// Index into [`Cpu::counters`].
    privilege: usize,
    /// Site of the block's first operation, if the code is made for a window.
    site: RunningSite,
    count: u32,
    /// Number of the block's cost.
    cost: CostNumber,
    mode: Mode,
    /// True if the block has a record of its own, where costs are attributed to blocks.
    recorded: bool,
    decoded: Arc<Decoded>,
    /// The basic block, if the code is made for a window; else null.
    block: *const Block,
    flops: [u32; FLOP_CLASSES],
}

const _: () = assert!(std::mem::offset_of!(TranslationBlock, mode) < 64);

impl TranslationBlock {
    fn flops(&self) -> impl Iterator<Item = (usize, u64)> {
        self.flops
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(class, n)| (class, u64::from(*n)))
    }
}

/// The translator's part of a vCPU. The fields that translated code uses come first.
#[repr(C)]
pub struct Native {
    /// Work left in the budget, and instructions retired since translated code was entered: see [`Left`].
    left: Left,
    /// Loads, stores and fetches that are not yet in the vCPU's counters, [`PACKED_BITS`] each.
    packed: u64,
    /// The records of the running context ([`crate::profile`]), where costs are attributed to blocks; else null.
    pub records: *mut Record,
    /// The instruction that runs in a window: while translated code runs, the operation whose look-up missed last.
    pub site: RunningSite,
    /// Description of the access whose look-up missed last, see [`access::describe`].
    described: u32,
    /// Number of the exit taken.
    exit: u32,
    default_mxcsr: u32,
    /// The guest's status flags, in the form of [`Native::pack_flags`].
    flags: u16,
    /// Nonzero if the guest's vector registers and MXCSR are in the host's registers.
    vectors_live: u8,
    /// Nonzero if the guest's vector registers are permitted to be in the host's registers.
    vectors_allowed: u8,
    /// Value of `vectors_live` before translated code called a function.
    vectors_were_live: u8,
    /// Nonzero if the upper half of some vector register may not be zero.
    vectors_wide: u8,
    /// Temporary copy of a host register, during a look-up for example.
    spill: u64,
    /// The address of an access whose look-up missed.
    linear: u64,
    /// Host address of the line that a miss routine serves.
    line_host: u64,
    /// Offset in bytes of the TLB entry of the page, or large page, of the line that a miss routine serves, from the first entry of pages
    /// of the privilege.
    page: u64,
    /// Host addresses of spans (`coalescing.rs`); 0 where each operand of the span is looked up individually.
    span_hosts: [u64; coalescing::SPAN_SLOTS],
    /// Miss routines ([`miss_routines`]), or zero.
    miss_routines: miss_routines::MissRoutines,
    /// State of the miss routines.
    direct: miss_routines::DirectState,
    /// Host addresses of the two pieces of a split access ([`split`]) that are not neighbours in host memory. The second is zero where only
    /// the first piece was looked up, and both are zero where none was.
    split_hosts: [u64; 2],
    /// The bytes of a split load whose two pieces are not neighbours in host memory.
    bounce: [u8; 32],
    /// Address at which translated code continues after [`Exit::Continue`], or after an extension of the time slice.
    next: u64,
    /// Targets of branches that are not chained.
    jump_cache: JumpCache,

    /// The context that `records` belong to; None while `records` must be looked up.
    pub records_of: Option<Context>,
    /// True if the translator may be used.
    enabled: bool,
    /// Number of times that a block is interpreted before it is translated.
    translation_threshold: u32,
    /// The work left when translated code was entered, less the work that stalls have taken from the budget since.
    total: i64,
    /// The values of [`Cpu::retired`] and [`Cpu::work`] when translated code was entered.
    entered_at: u64,
    entered_work: u64,
    /// The value of [`Cpu::retired`] up to which instructions are in the counters.
    settled: u64,
    privilege: usize,
    /// True if the model was asked for the function that [`Native::miss_routines`] need.
    miss_routines_requested: bool,
    /// The run loop's budget: see [`Native::left_after_stall`].
    budget: Budget,
    /// True if the budget ends in time for the next interrupt.
    ends_at_interrupt: bool,
    /// True if `ends_at_interrupt` was set while translated code ran: the run loop must check the machine where the budget ends.
    must_attend: bool,
    done: Done,
    /// The split access whose lines the model was already asked for. The interpreter's operation need not ask again.
    served: Option<split::Served>,
    /// After [`Exit::Interpreted`]: the block's length, and the number of its instructions that retired.
    partial: Option<(i64, u64)>,
    /// The exit that led to the current block, where the exit can be chained to that block.
    unchained_exit: Option<u32>,
    /// The instruction pointer at which translated code last returned, except after an operation of the interpreter. Most often a branch to
    /// it has missed the jump cache.
    missed_ip: Option<u64>,
    /// True if the next block must be interpreted: it needs vector registers, which may not be in the host's registers now.
    interpret_next: bool,
    /// The block table's counts at the last check that the jump cache is up to date.
    seen: Counts,
    host: Host,
    /// Counts of what translated code did so far.
    activity: Activity,
}

/// The translation blocks of a node's vCPUs, or of all nodes.
pub struct TranslationCache {
    arena: Option<Arena>,
    routines: Routines,
    /// The routine that enters translated code: `extern "sysv64" fn(cpu, code) -> exit`.
    enter: Option<CodeAddress>,
    /// The translation blocks, boxed: code contains their addresses, which must not change while the vector grows.
    #[expect(clippy::vec_box)]
    blocks: Vec<Box<TranslationBlock>>,
    exits: Vec<BlockExit>,
    /// The page of the block that is being translated for all nodes; None during other translations.
    page: Option<SharedPage>,
    /// True if the memory for code or for chain slots is used up. A node must throw away all its code; shared code is kept, and no more is
    /// added.
    full: bool,
    /// The L0 filter cache's geometry in the window that code was last made for, and whether that code attributes costs to blocks.
    pub window: Option<(nodescope_plugin_api::L0Geometry, bool)>,
    /// Size of the memory for in-line code, in bytes. A node throws away all its code when this memory is full.
    room: usize,
    /// Miss routines, by the parameters that their code depends on.
    miss_routines: miss_routines::MissRoutineCache,
}

impl Default for TranslationCache {
    fn default() -> Self {
        Self::with_room(arena::IN_LINE)
    }
}

impl TranslationCache {
    /// Returns an empty cache with so many bytes for in-line code.
    fn with_room(room: usize) -> Self {
        Self {
            arena: None,
            routines: Routines::default(),
            enter: None,
            blocks: Vec::new(),
            exits: Vec::new(),
            page: None,
            full: false,
            window: None,
            room,
            miss_routines: miss_routines::MissRoutineCache::default(),
        }
    }

    /// Returns the number of translation blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Adds an exit; returns its number.
    fn push_exit(&mut self, ip: u64, chain_slot: Option<ChainSlot>) -> u32 {
        let shared = if self.page.is_some() { SHARED_EXIT } else { 0 };
        let page = self.page;
        self.exits.push(BlockExit {
            ip,
            chain_slot,
            page,
        });
        (self.exits.len() as u32 - 1) | shared
    }

    /// Reduces the size of the memory for in-line code to so many bytes. Must be called before anything is translated.
    pub fn set_room(&mut self, bytes: usize) {
        self.room = self.room.min(bytes);
    }

    /// Chains an exit to the code of a block, if the exit has a chain slot and leads to `ip`.
    fn chain(&mut self, n: u32, ip: u64, code: CodeAddress) {
        let block_exit = self.exits[n as usize];
        if let Some(chain_slot) = block_exit.chain_slot
            && block_exit.ip == ip
        {
            let arena = self.arena.as_mut().expect("code lies in an arena");
            arena.set_chain_slot(chain_slot, code);
        }
    }

    /// Throws away all code.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.exits.clear();
        self.miss_routines.clear();
        self.full = false;
        if let Some(arena) = &mut self.arena {
            arena.clear();
        }
    }
}

/// Counts of a vCPU's entries of translated code, and of the calls out of that code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Times that translated code was entered.
    pub entries: u64,
    /// Look-ups that missed and called a function.
    pub misses: u64,
    /// Look-ups that missed and that a miss routine served.
    pub served: u64,
    /// Operations that the interpreter carried out for translated code.
    pub interpreted: u64,
    /// Number of times that this vCPU evicted all of the node's translated code for lack of room.
    pub evictions: u64,
}

/// Features of the host's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host {
    avx: bool,
    bmi: bool,
    /// True if the host has AVX-512 F, VL, BW and DQ.
    avx512: bool,
    /// Result of [`keeps_undefined_flags`].
    keeps_flags: bool,
    /// Result of [`scans_keep_flags`].
    scans_keep_flags: bool,
}

impl Host {
    fn detect() -> Self {
        Self {
            avx: is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c"),
            bmi: is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("movbe")
                && is_x86_feature_detected!("adx"),
            avx512: is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq"),
            keeps_flags: keeps_undefined_flags(),
            scans_keep_flags: scans_keep_flags(),
        }
    }
}

/// The work left in a budget and the instructions that have retired since translated code was entered, in one word. A block's prologue takes
/// its work from the one and adds its instructions to the other by one subtraction ([`Left::step`]).
///
/// The upper bits are the work less one, so that the word is negative where nothing is left. No more instructions retire than fit the lower
/// bits, since [`LONGEST`] bounds the work and no instruction is less than a unit of work.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
struct Left(i64);

impl Left {
    /// Number of bits of the instructions.
    const BITS: u32 = 18;
    const INSTRUCTIONS: i64 = (1 << Self::BITS) - 1;

    fn new(work: i64) -> Self {
        Self((work - 1) << Self::BITS)
    }

    /// Returns what the prologue of a block subtracts.
    const fn step(work: i64, instructions: i64) -> i64 {
        (work << Self::BITS) - instructions
    }

    fn work(self) -> i64 {
        (self.0 >> Self::BITS) + 1
    }

    fn retired(self) -> u64 {
        (self.0 & Self::INSTRUCTIONS) as u64
    }

    fn take(&mut self, work: i64) {
        self.0 -= work << Self::BITS;
    }
}

/// Returns what a prologue subtracts for work beyond the nominal cost of a block.
pub const fn correction_of_work(work: i64) -> i64 {
    Left::step(work, 0)
}

/// Returns the work that [`correction_of_work`] was given.
pub const fn work_of_correction(correction: i64) -> i64 {
    correction >> Left::BITS
}

// The instructions of the last block come on top.
const _: () = assert!(LONGEST + (crate::fetch::MAX_BLOCK as i64) < 1 << Left::BITS);

/// The run loop's budget, from the beginning of a block on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Cycles that the vCPU may take from the budget's beginning on, in units of 1/65536 cycle.
    pub cycles: i64,
    /// Maximum number of instructions from the budget's beginning on, whatever cycles they take.
    pub instructions: i64,
    /// [`Cpu::retired`] at the beginning of the budget.
    pub retired: u64,
    /// [`Cpu::work`] at the beginning of the budget.
    pub work: u64,
    /// [`Cpu::stall`] at the beginning of the budget.
    pub stall: u64,
    /// True if interrupts are delivered when they are due.
    pub deliver: bool,
}

impl Native {
    /// Creates the translator's part of a vCPU.
    pub fn new(translate: Translate) -> Self {
        Self {
            left: Left::default(),
            packed: 0,
            records: std::ptr::null_mut(),
            site: RunningSite::NONE,
            described: 0,
            records_of: None,
            exit: 0,
            default_mxcsr: 0x1f80,
            flags: 0,
            vectors_live: 0,
            vectors_allowed: 0,
            vectors_were_live: 0,
            vectors_wide: 0,
            spill: 0,
            linear: 0,
            line_host: 0,
            page: 0,
            span_hosts: [0; coalescing::SPAN_SLOTS],
            miss_routines: miss_routines::MissRoutines::default(),
            direct: miss_routines::DirectState::default(),
            split_hosts: [0; 2],
            bounce: [0; 32],
            next: 0,
            jump_cache: JumpCache::default(),
            enabled: translate != Translate::Never,
            translation_threshold: match translate {
                Translate::Never => u32::MAX,
                Translate::After(n) => n,
            },
            total: 0,
            entered_at: 0,
            entered_work: 0,
            settled: 0,
            privilege: 0,
            miss_routines_requested: false,
            budget: Budget::default(),
            ends_at_interrupt: false,
            must_attend: false,
            done: Ok(Flow::Next),
            served: None,
            partial: None,
            unchained_exit: None,
            missed_ip: None,
            interpret_next: false,
            seen: Counts::default(),
            host: Host::detect(),
            activity: Activity::default(),
        }
    }

    /// Makes the translator behave as on a host without AVX-512.
    pub fn without_avx512(&mut self) {
        self.host.avx512 = false;
    }

    /// Returns counts of what translated code has done so far.
    pub fn activity(&self) -> Activity {
        self.activity
    }

    /// Returns [`Cpu::retired`] behind the blocks that were begun.
    fn retired(&self) -> u64 {
        self.entered_at.wrapping_add(self.left.retired())
    }

    /// Returns [`Cpu::work`] behind the blocks that were begun.
    fn work(&self) -> u64 {
        self.entered_work
            .wrapping_add((self.total - self.left.work()) as u64)
    }

    /// Begins a budget of so much work, where this is [`Cpu::retired`] and [`Cpu::work`].
    fn begin(&mut self, work_left: i64, retired: u64, work: u64) {
        let limited = work_left.min(LONGEST);
        self.total = limited;
        self.left = Left::new(limited);
        self.entered_at = retired;
        self.entered_work = work;
    }

    /// Reduces the work left to `left`, if more is left.
    fn reduce_to(&mut self, left: i64) {
        let excess = self.left.work() - left;
        if excess > 0 {
            self.total -= excess;
            self.left.take(excess);
        }
    }

    /// Returns the work left after a stall, as the run loop would compute it. So many instructions have retired, and so much work is done.
    fn left_after_stall(&self, retired: u64, work: u64, stall: u64, cpi: Cpi) -> i64 {
        let stalled = (stall - self.budget.stall) as i64;
        let cycles = self.budget.cycles - (stalled << 16);
        let [by_cycles, by_instructions] = if cycles <= 0 {
            [0; 2]
        } else {
            [cpi.instructions(cycles), self.budget.instructions]
        };
        let done = work.wrapping_sub(self.budget.work) as i64;
        let executed = retired.wrapping_sub(self.budget.retired) as i64;
        (by_cycles - done).min(by_instructions - executed)
    }

    /// Empties the jump cache.
    pub fn flush_jump_cache(&mut self) {
        self.jump_cache.flush();
        self.unchained_exit = None;
    }

    /// Empties the tables of the jump cache that have entries of one half of the address space.
    fn flush_half(&mut self, half: usize) {
        self.jump_cache.flush_half(half);
        self.unchained_exit = None;
    }
}

impl Cpu {
    /// Returns whether the guest's vector registers may be in the host's registers: the host has AVX, and the guest may use SSE and AVX and
    /// masks all SIMD floating-point exceptions.
    fn vectors_allowed(&self) -> bool {
        self.native.host.avx
            && crate::ops::simd::vectors_available(self)
            && self.fx.mxcsr() & 0x1f80 == 0x1f80
    }

    /// Brings the jump cache up to date with changes of the block table.
    fn catch_up(&mut self) {
        let seen = self.blocks.counts();
        if seen == self.native.seen {
            return;
        }
        if seen.evictions != self.native.seen.evictions {
            self.native.flush_jump_cache();
            self.forget_miss_routines();
        } else {
            if seen.rewrites != self.native.seen.rewrites {
                self.native.unchained_exit = None;
            }
            for half in 0..2 {
                if seen.changes[half] != self.native.seen.changes[half] {
                    self.native.flush_half(half);
                }
            }
        }
        self.native.seen = seen;
    }

    /// Returns the host code for the instruction pointer, if the jump cache has it and the run loop need not look at the basic block first.
    /// Returns None if translated code has just returned at an exit that may be chained to this block, or for this block to be interpreted.
    /// Also returns None unless `whole` is positive: the number of instructions for which blocks may begin, whatever the length of the last
    /// block.
    #[inline]
    pub fn known_code(&mut self, whole: i64) -> Option<CodeAddress> {
        let native = &self.native;
        let asks_more = native.unchained_exit.is_some() || native.interpret_next || !native.enabled;
        if asks_more || whole <= 0 || self.mode != Mode::Bits64 {
            return None;
        }
        self.catch_up();
        let ip = self.gpr[RIP as usize];
        self.native.jump_cache.find(usize::from(self.cpl == 3), ip)
    }

    /// Returns the host code of a block that is about to run, if there is any. Translates the block when its count of executions exceeds
    /// the threshold.
    #[inline]
    pub fn translated(&mut self, entry: Entry) -> Option<CodeAddress> {
        if !self.native.enabled || self.mode != Mode::Bits64 {
            return None;
        }
        self.catch_up();
        let ip = self.gpr[RIP as usize];
        let table = usize::from(self.cpl == 3);
        let known = self.native.jump_cache.find(table, ip);
        let unchained_exit = self.native.unchained_exit.take();
        if known.is_some() && unchained_exit.is_none() {
            return known;
        }
        // SAFETY: the entry was just found: its block is alive.
        let block = unsafe { &*entry.block };
        let code = match block.native(ip, self.code_key, self.attached) {
            Some(native) => native.code,
            None => match self.find_or_translate(block, ip) {
                Some(code) => code,
                None => return known,
            },
        };
        if known.is_none() {
            let branched = self.native.missed_ip == Some(ip);
            self.native.jump_cache.add(table, ip, code, branched);
        }
        if let Some(n) = unchained_exit
            && block.second_page == 0
            && let Some(native) = block.native(ip, self.code_key, self.attached)
        {
            self.chain(n, native);
        }
        Some(code)
    }

    /// Chains an exit to code of the same page.
    fn chain(&mut self, n: u32, native: HostCode) {
        let code = self.code();
        match n & SHARED_EXIT {
            0 => code.translation_cache.chain(n, native.ip, native.code),
            _ => code.pool.translation_cache.chain(n, native),
        }
    }

    /// Returns an exit by its number.
    fn block_exit(&mut self, n: u32) -> BlockExit {
        let code = self.code();
        match n & SHARED_EXIT {
            0 => code.translation_cache.exits[n as usize],
            _ => code.pool.translation_cache.exit(n & !SHARED_EXIT),
        }
    }

    /// Finds or makes the host code of a block for which this node has found none. Another node may have shared code for the page. A block
    /// is translated when its count of executions exceeds the threshold.
    fn find_or_translate(&mut self, block: &Block, ip: u64) -> Option<CodeAddress> {
        let n = block.count_execution();
        if self.shares_code() {
            // All nodes run shared code, so their executions count together, and translation pays earlier.
            let threshold = self.native.translation_threshold >> SHARED_THRESHOLD_SHIFT;
            let pays = n > 0 && block.decoded.count_execution() > threshold;
            if (pays || n.is_power_of_two())
                && let Some(page) = self.shared_page_of(block, ip)
            {
                if let Some(code) = self.shared_code(block, ip, page) {
                    return Some(code);
                }
                if pays && let Some(code) = self.translate_shared(block, ip, page) {
                    return Some(code);
                }
            }
        }
        if n <= self.native.translation_threshold {
            return None;
        }
        self.translate_block(block, ip)
    }

    /// Runs translated code. Blocks may begin for `left` units of work.
    ///
    /// # Safety
    /// [`Cpu::known_code`] or [`Cpu::translated`] has just returned this code, for this vCPU's state.
    pub unsafe fn run_translated(&mut self, code: CodeAddress, left: i64, budget: Budget) -> Done {
        self.native.budget = budget;
        self.native.begin(left, self.retired, self.work);
        self.native.settled = self.retired;
        self.native.privilege = usize::from(self.cpl != 3);
        self.native.flags = Native::pack_flags(self.rflags);
        self.native.vectors_allowed = self.vectors_allowed().into();
        self.native.packed = 0;
        self.native.activity.entries += 1;
        self.native.ends_at_interrupt = self.rflags & rflags::IF != 0;
        self.native.must_attend = false;
        let code_of_node = self.code();
        let enter = code_of_node.translation_cache.enter;
        let enter = enter.or(code_of_node.shared_pages.enter);
        let enter = enter.expect("code has routines").get() as usize;
        // SAFETY: the routine was assembled with this signature, and is kept as long as the arena.
        let enter: unsafe extern "sysv64" fn(*mut Cpu, CodeAddress) -> u32 =
            unsafe { std::mem::transmute(enter) };
        // SAFETY: by the caller's promise, `code` is the beginning of a translation block for this vCPU's mode, privilege and instruction
        // pointer. The block uses only this vCPU's state, and guest RAM that the TLB's entries prove mapped.
        let exit = unsafe { enter(self, code) };
        let done = if exit == Exit::Interpreted as u32 {
            let (count, executed) = self.native.partial.take().expect("set with this exit");
            self.return_to_block_start(count);
            self.retire(executed);
            self.native.done
        } else {
            self.set_status_flags(Native::unpack_flags(self.native.flags));
            self.return_to_block_start(0);
            if exit != Exit::Indirect as u32 {
                let n = self.native.exit;
                let block_exit = self.block_exit(n);
                self.gpr[RIP as usize] = block_exit.ip;
                self.native.unchained_exit = block_exit.chain_slot.map(|_| n);
            }
            self.native.missed_ip = Some(self.gpr[RIP as usize]);
            if exit == Exit::Interpret as u32 {
                self.native.interpret_next = true;
            }
            Ok(Flow::Branch)
        };
        if self.attached {
            self.settle_packed(0);
            self.leave_numbered();
        }
        match done {
            Ok(Flow::Next | Flow::Branch) if self.native.must_attend => Ok(Flow::Attend),
            done => done,
        }
    }

    /// Throws away all blocks if the memory for code is used up, and forgets the blocks that another vCPU has thrown away.
    pub fn make_room(&mut self) {
        let (table, code) = self.blocks_and_code();
        let full = code.translation_cache.full;
        if full {
            code.clear();
        }
        table.see_evictions(code.evictions());
        self.native.activity.evictions += u64::from(full);
    }

    /// Returns whether the next block must be interpreted although it has code, and resets that state.
    #[inline]
    pub fn take_interpret_next(&mut self) -> bool {
        std::mem::take(&mut self.native.interpret_next)
    }
}
