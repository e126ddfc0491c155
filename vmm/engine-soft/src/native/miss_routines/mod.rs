//! Miss routines: machine code that serves misses of the first-level data cache by the cache state that a model exports
//! ([`nodescope_plugin_api::exported`]). A miss routine does the work of [`Cpu::fast_miss`] and of the model's fast miss path, for reads,
//! for writes, and for a read with a write behind it. The geometry of the caches is in constants. The guest's registers stay where they
//! are, except the few that the routine saves.
//!
//! The way look-up ([`super::way_lookup`]) jumps to a miss routine if no way of the set has the wanted line. The routine checks all
//! conditions before it changes anything for the miss. If a condition does not hold, the routine returns zero, and the model is called.
//!
//! - [`l2_hit`]: the second level has the line.
//! - [`l2_miss`]: the third level has the line, or memory supplies it.
//! - [`fill`]: the clock advances, and the line enters the L0 filter cache.
//! - [`modified_lines`]: lines that were written since the last report to the model.
//! - [`cache_sets`]: searching and reordering a set.

mod cache_sets;
mod fill;
mod l2_hit;
mod l2_miss;
mod modified_lines;

use std::mem::offset_of;
use std::ptr::NonNull;

use iced_x86::{Code, MemoryOperand, Register};
use nodescope_plugin_api::exported::{ExportedCaches, ExportedShape, SetCount};
use nodescope_plugin_api::{Source, StallTerm, Tally};

use super::CodeAddress;
use super::assembler::{Assembler, Label, at, at_offset, cc, field_of_cpu, indexed_field, word_of};
use super::code_map::{self, Part};
use super::registers::sized;
use super::runtime::{field, xmm, ymm};
use super::way_lookup::DataAccess;
use crate::cpu::Cpu;
use crate::profile::Record;
use crate::softmmu::{DataTlb, LruSets, ModifiedLines, NO_LINE, TICK, TlbEntry, WayDirectory};
use cache_sets::Cache;

use Register::{
    EAX, K1, K2, R8, R8D, R9, R10, R11, R11D, R12, R13, RAX, RBP, RBX, RCX, RDI, RDX, RSI, YMM16,
};

/// Address of [`ExportedCaches`].
const EXPORTED: Register = RDX;
/// Physical address of the wanted line divided by the bytes of a line.
const LINE: Register = RDI;
/// Offset of the first way of the wanted line's set in the way directory, in bytes among words of 8 bytes.
const FIRST_WAY: Register = RSI;
/// Offset of the pair of TLB entries of the wanted line's set, in bytes.
const ENTRY: Register = RCX;
/// Offset of the way that the wanted line gets, in bytes among words of 8 bytes, from the first way of the first set.
const WAY: Register = R8;
/// Physical address of the line that is replaced.
const VICTIM: Register = R9;
/// Address of the first level's word of the line that is replaced.
const VICTIM_WORD: Register = RBP;
/// Offset of the TLB entry of the wanted line's page or large page, in bytes, among the page entries of the privilege.
const PAGE: Register = R10;
/// Address of the wanted line's set in the second level.
const L2_SET: Register = R10;
/// Address of the wanted line's set in the third level.
const L3_SET: Register = RBX;
/// Stall cycles of the miss.
const STALL: Register = R12;
/// State of the wanted line in the first level.
const STATE: Register = R9;

/// Registers that a miss routine saves and changes. The routine also changes RAX, and RSI and RDX, which its caller has saved. Code that
/// uses R13 saves that register itself.
const CHANGED: [Register; 8] = [RDI, R8, R9, R10, R11, R12, RBX, RBP];
/// Number of vector registers that a miss routine saves and changes on a host without AVX-512. With AVX-512, a miss routine uses mask
/// registers and the vector registers from XMM16 on, which no guest has.
const VECTORS: usize = 5;

const DATA_TLB: usize = offset_of!(Cpu, data_tlb);
const ENTRIES: usize = DATA_TLB + offset_of!(DataTlb, entries);
const DIRECTORY: usize = DATA_TLB + offset_of!(DataTlb, directory);
const SETS: usize = DIRECTORY + offset_of!(WayDirectory, sets);
const LINES: usize = SETS + offset_of!(LruSets, lines);
const STAMPS: usize = SETS + offset_of!(LruSets, stamps);
const OLDEST_STAMPS: usize = SETS + offset_of!(LruSets, oldest_stamps);
const MODIFIED_LINES: usize = DIRECTORY + offset_of!(WayDirectory, modified);

/// log2 of the bytes of a line: no other size is exported.
const LINE_SHIFT: i32 = WayDirectory::LINE.trailing_zeros() as i32;

/// A miss routine to be emitted: the parameters that its code depends on.
#[derive(Clone, Copy)]
struct MissRoutine<'a> {
    shape: &'a ExportedShape,
    /// log2 of the number of way slots of a set in the way directory.
    way_shift: u32,
    /// log2 of the number of sets of the first level.
    first_sets: u32,
    /// Cycles per instruction, as [`crate::cpi::Cpi::value`] gives them.
    cpi: u32,
    /// True for code with AVX-512, as in [`Cache::avx512`].
    avx512: bool,
    /// True if costs are attributed to blocks.
    profiling: bool,
    kernel: bool,
    access: DataAccess,
    /// Label of the code that returns zero, so that the model is called.
    slow: Label,
}

/// Labels that connect the in-line code of [`MissRoutine::start`] with its out-of-line code.
struct StartLabels {
    recompute: Label,
    oldest: Label,
    modified: Label,
    propagated: Label,
    large: Label,
    mapped: Label,
}

/// Labels that connect the in-line code of [`MissRoutine::find_victim_word`] with its out-of-line code.
struct VictimWordLabels {
    elsewhere: Label,
    there: Label,
}

/// Holder bits of other caches in a word: a constant, or for words of the third level [`ExportedCaches::l3_other_holders`].
enum OtherHolders {
    Constant(u32),
    InL3,
}

/// Addresses of miss routines, by privilege (user, kernel) and access; None where there is no routine.
pub type MissRoutines = [[Option<CodeAddress>; 3]; 2];

/// The miss routines that a node has, with the parameters that their code depends on: shape, way shift, CPI, and whether costs are
/// attributed.
pub type MissRoutineCache = Vec<((ExportedShape, u32, u32, bool), MissRoutines)>;

impl Cpu {
    /// Prepares the vCPU's miss routines, if the model exports its cache state. Asks the model once while the model is attached.
    #[cold]
    #[inline(never)]
    pub(super) fn prepare_miss_routines(&mut self) {
        self.native.miss_routines_requested = true;
        let host = self.native.host;
        let way_shift = self.data_tlb.directory.sets.way_shift();
        if !host.avx || !host.bmi || way_shift == 0 {
            return;
        }
        let id = self.id;
        let Some(export) = self.platform().exported_state(id) else {
            return;
        };
        if let Some(routines) = self.miss_routines(*export.shape(), way_shift) {
            self.native.exported = Some(export.caches());
            self.native.miss_routines = routines;
        }
    }

    /// Finds or emits the miss routines for these parameters. Returns None where the exported state does not suit, the translation cache is
    /// full, or a template is wrong.
    fn miss_routines(&mut self, shape: ExportedShape, way_shift: u32) -> Option<MissRoutines> {
        let SetCount::Power(first_sets) = shape.levels[0].sets else {
            return None;
        };
        let cpi = self.cpi.value();
        let avx512 = self.native.host.avx512;
        let profiling = self.profiling();
        let cache = &mut self.code().translation_cache;
        let key = (shape, way_shift, cpi, profiling);
        if let Some((_, routines)) = cache.miss_routines.iter().find(|(made, _)| *made == key) {
            return Some(*routines);
        }
        let arena = cache.arena.as_mut()?;
        let mut routines = MissRoutines::default();
        for kernel in [false, true] {
            for access in DataAccess::ALL {
                let mut a = Assembler::new(arena.next(), arena.next_out_of_line());
                let slow = a.label();
                let routine = MissRoutine {
                    shape: &shape,
                    way_shift,
                    first_sets,
                    cpi,
                    avx512,
                    profiling,
                    kernel,
                    access,
                    slow,
                };
                a.part(Part::Model);
                routine.emit(&mut a);
                code_map::note(a.pieces());
                let (code, out_of_line) = match a.finish() {
                    Ok(code) => code,
                    Err(error) => {
                        // Results are the same; only the speed differs.
                        tracing::error!(%error, "misses are served by the model, since their routines cannot be assembled");
                        debug_assert!(false, "{error}");
                        return None;
                    }
                };
                let pushed = arena.push(&code, &out_of_line)?;
                routines[usize::from(kernel)][access as usize] = Some(pushed.start());
            }
        }
        cache.miss_routines.push((key, routines));
        Some(routines)
    }

    /// Forgets the miss routines, whose code may be gone, and the model's exported state.
    pub(crate) fn forget_miss_routines(&mut self) {
        self.native.miss_routines = MissRoutines::default();
        self.native.exported = None;
        self.native.miss_routines_requested = false;
    }
}

/// Assembles a jump to the miss routine of an access; without such a routine, execution continues behind this code. On entry the address is
/// in [`super::Native::linear`], RCX is the offset of the address's TLB entry, and RSI, RDX and the return address are on the stack. The
/// routine returns the host address, or zero, in RAX. Uses RAX.
pub fn jump_to_miss_routine(a: &mut Assembler, kernel: bool, access: DataAccess) {
    let privilege = size_of::<[Option<CodeAddress>; 3]>() * usize::from(kernel);
    let routines = field!(miss_routines) + privilege + 8 * access as usize;
    let none = a.label();
    a.load(RAX, routines);
    a.rr(Code::Test_rm64_r64, RAX, RAX);
    a.jcc(cc::E, none);
    a.r(Code::Jmp_rm64, RAX);
    a.bind(none);
}

/// Saves the vector registers that a routine uses, or restores them (`back`). Does nothing unless they have the guest's values. Upper
/// halves are saved only where some upper half is in use: see `load_vectors` in [`super::runtime`].
fn vectors(a: &mut Assembler, back: bool) {
    let (wide, done) = (a.label(), a.label());
    a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_live)), 0);
    a.jcc(cc::E, done);
    a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_wide)), 0);
    a.jcc(cc::NE, wide);
    let spilled = |n| field_of_cpu(field!(spilled) + 32 * n);
    for n in 0..VECTORS {
        if back {
            a.rm(Code::VEX_Vmovups_xmm_xmmm128, xmm(n), spilled(n));
        } else {
            a.mr(Code::VEX_Vmovups_xmmm128_xmm, spilled(n), xmm(n));
        }
    }
    a.jmp(done);
    a.bind(wide);
    for n in 0..VECTORS {
        if back {
            a.rm(Code::VEX_Vmovups_ymm_ymmm256, ymm(n), spilled(n));
        } else {
            a.mr(Code::VEX_Vmovups_ymmm256_ymm, spilled(n), ymm(n));
        }
    }
    a.bind(done);
}

/// Memory operand of a field of [`ExportedCaches`].
macro_rules! exported {
    ($($f:tt)+) => { at_offset(EXPORTED, std::mem::offset_of!(nodescope_plugin_api::exported::ExportedCaches, $($f)+) as i64) };
}
use exported;

impl MissRoutine<'_> {
    fn emit(&self, a: &mut Assembler) {
        for register in CHANGED {
            a.r(Code::Push_r64, register);
        }
        if !self.avx512 {
            vectors(a, false);
        }
        let labels = self.start(a);
        let (l2_miss, fill, done) = (a.label(), a.label(), a.label());
        let victim_labels = self.l2_hit(a, l2_miss);
        a.bind(fill);
        self.fill(a);
        a.bind(done);
        if !self.avx512 {
            vectors(a, true);
        }
        for register in CHANGED.into_iter().rev() {
            a.r(Code::Pop_r64, register);
        }
        a.r(Code::Pop_r64, RSI);
        a.r(Code::Pop_r64, RDX);
        a.plain(Code::Retnq);
        // Out of line: rarer cases.
        a.bind(l2_miss);
        self.l2_miss(a, fill);
        self.start_out_of_line(a, labels);
        self.find_victim_word_out_of_line(a, victim_labels);
        a.bind(self.slow);
        a.rr(Code::Xor_r32_rm32, EAX, EAX);
        a.jmp(done);
    }

    /// Returns the exported first level for data.
    fn data(&self) -> Cache {
        Cache {
            shape: self.shape.levels[0],
            number: 0,
            avx512: self.avx512,
        }
    }

    /// Returns the exported second level (`level` 1) or third level (`level` 2).
    fn outer(&self, level: usize) -> Cache {
        Cache {
            shape: self.shape.levels[level],
            number: level + 1,
            avx512: self.avx512,
        }
    }

    /// Returns the element of a pair for this access. A read with a write behind it misses as a read.
    fn of<T: Copy>(&self, pair: [T; 2]) -> T {
        pair[usize::from(self.access == DataAccess::Write)]
    }

    /// Returns whether the line is going to be written.
    fn writes(&self) -> bool {
        self.access != DataAccess::Read
    }

    /// Assembles the beginning of every miss: finds the exported caches, the wanted line, the way that this line gets, and the line that is
    /// replaced. Lines that were modified before are propagated first.
    fn start(&self, a: &mut Assembler) -> StartLabels {
        let tag = self.tag();
        a.load(EXPORTED, field!(exported));
        // The set's first way, from the offset of the set's pair of entries.
        a.copy(FIRST_WAY, ENTRY);
        if self.way_shift + 3 > LINE_SHIFT as u32 {
            let by = self.way_shift + 3 - LINE_SHIFT as u32;
            a.ri(Code::Shl_rm64_imm8, FIRST_WAY, by as i32);
        }
        // The line that is replaced.
        let [recompute, oldest, modified, propagated, large, mapped] = [(); 6].map(|()| a.label());
        a.rr(Code::Mov_r32_rm32, R11D, Register::ECX);
        a.ri(Code::Shr_rm32_imm8, R11D, LINE_SHIFT - 3);
        a.rm(Code::Mov_r64_rm64, RAX, indexed_field(OLDEST_STAMPS, R11));
        a.rr(Code::Mov_r32_rm32, R8D, EAX);
        a.ri(Code::And_rm32_imm32, R8D, TICK as i32 - 1);
        a.mr(Code::Cmp_rm64_r64, indexed_field(STAMPS, WAY), RAX);
        a.jcc(cc::NE, recompute);
        a.bind(oldest);
        a.rm(Code::Mov_r64_rm64, VICTIM, indexed_field(LINES, WAY));
        a.ri(Code::Cmp_rm64_imm8, VICTIM, NO_LINE as i64 as i32);
        a.jcc(cc::E, self.slow);
        // The page of the wanted line.
        self.page(a, DataTlb::PAGE_INDEX);
        a.copy(R11, RAX);
        a.rm(Code::Sub_r64_rm64, R11, self.of_page(PAGE, tag));
        a.ri(Code::Cmp_rm64_imm32, R11, DataTlb::PAGE_SIZES[0] as i32);
        a.jcc(cc::AE, large);
        a.bind(mapped);
        // Compute the line's host address from its offset in the page. The host loads the guest's data while the routine works.
        a.ri(Code::And_rm32_imm8, R11D, -(1 << LINE_SHIFT));
        let host = self.of_page(PAGE, offset_of!(TlbEntry, host));
        a.rm(Code::Mov_r64_rm64, RAX, host);
        a.rr(Code::Add_r64_rm64, RAX, R11);
        let prefetch = match self.access {
            DataAccess::Read => Code::Prefetcht0_m8,
            _ => Code::Prefetchw_m8,
        };
        a.m(prefetch, at(RAX));
        a.store(field!(line_host), RAX);
        a.store(field!(page), PAGE);
        let physical = self.of_page(PAGE, offset_of!(TlbEntry, physical));
        a.rm(Code::Mov_r64_rm64, RAX, physical);
        a.rr(Code::Add_r64_rm64, RAX, R11);
        a.copy(LINE, RAX);
        a.ri(Code::Shr_rm64_imm8, LINE, LINE_SHIFT);
        self.check_absent(a);
        a.rm(Code::Cmp_r64_rm64, LINE, exported!(line_limit));
        a.jcc(cc::AE, self.slow);
        a.rm(
            Code::Mov_r32_rm32,
            EAX,
            field_of_cpu(offset_of!(Cpu, context)),
        );
        a.rm(Code::Cmp_r32_rm32, EAX, exported!(context));
        a.jcc(cc::NE, self.slow);
        a.load(RAX, MODIFIED_LINES + offset_of!(ModifiedLines, count));
        a.rr(Code::Test_rm64_r64, RAX, RAX);
        a.jcc(cc::NE, modified);
        a.bind(propagated);
        StartLabels {
            recompute,
            oldest,
            modified,
            propagated,
            large,
            mapped,
        }
    }

    /// Jumps to `slow` if the set already has the line (physical address in RAX), for another linear address or the other privilege.
    fn check_absent(&self, a: &mut Assembler) {
        if self.avx512 {
            // Vectors of 32 bytes: for wider ones, hosts lower their frequency.
            a.rr(Code::EVEX_Vpbroadcastq_ymm_k1z_r64, YMM16, RAX);
            for four in 0..1 << (self.way_shift - 2) {
                let to = if four == 0 { K1 } else { K2 };
                let lines = indexed_field(LINES + 32 * four, FIRST_WAY);
                let equal = Code::EVEX_Vpcmpeqq_kr_k1_ymm_ymmm256b64;
                a.rrm(equal, to, YMM16, lines);
                if four > 0 {
                    a.rrr(Code::VEX_Korb_kr_kr_kr, K1, K1, K2);
                }
            }
            a.rr(Code::VEX_Kortestb_kr_kr, K1, K1);
            a.jcc(cc::NE, self.slow);
            return;
        }
        a.rr(Code::VEX_Vmovq_xmm_rm64, xmm(0), RAX);
        a.rr(Code::VEX_Vpbroadcastq_xmm_xmmm64, xmm(0), xmm(0));
        for pair in 0..1 << (self.way_shift - 1) {
            let lines = indexed_field(LINES + 16 * pair, FIRST_WAY);
            let to = if pair == 0 { xmm(1) } else { xmm(2) };
            a.rrm(Code::VEX_Vpcmpeqq_xmm_xmm_xmmm128, to, xmm(0), lines);
            if pair > 0 {
                a.rrr(Code::VEX_Vpor_xmm_xmm_xmmm128, xmm(1), xmm(1), xmm(2));
            }
        }
        a.rr(Code::VEX_Vptest_xmm_xmmm128, xmm(1), xmm(1));
        a.jcc(cc::NE, self.slow);
    }

    fn start_out_of_line(&self, a: &mut Assembler, labels: StartLabels) {
        a.bind(labels.recompute);
        self.oldest_stamp(a);
        a.rr(Code::Mov_r32_rm32, R8D, EAX);
        a.ri(Code::And_rm32_imm32, R8D, TICK as i32 - 1);
        a.jmp(labels.oldest);
        a.bind(labels.modified);
        self.propagate_modified(a, labels.propagated);
        a.bind(labels.large);
        self.page(a, DataTlb::LARGE_INDEX);
        let privilege = usize::from(self.kernel);
        let first = DataTlb::LARGE_PAGES[privilege] - DataTlb::PAGES[privilege];
        a.ri(Code::Add_rm32_imm32, sized(PAGE, 4), first as i32);
        a.copy(R11, RAX);
        a.rm(Code::Sub_r64_rm64, R11, self.of_page(PAGE, self.tag()));
        a.ri(Code::Cmp_rm64_imm32, R11, DataTlb::PAGE_SIZES[1] as i32);
        a.jcc(cc::B, labels.mapped);
        a.jmp(self.slow);
    }

    /// Computes [`PAGE`], the offset of an entry among the entries of pages or large pages of a privilege. RAX becomes the linear address
    /// of the access.
    fn page(&self, a: &mut Assembler, (shift, mask): (u32, u32)) {
        a.load(RAX, field!(linear));
        a.copy(PAGE, RAX);
        a.ri(Code::Shr_rm64_imm8, PAGE, shift as i32);
        a.ri(Code::And_rm32_imm32, sized(PAGE, 4), mask as i32);
    }

    /// Returns the offset of the [`TlbEntry`] field that must equal the page's address for this access.
    fn tag(&self) -> usize {
        if self.writes() {
            offset_of!(TlbEntry, write)
        } else {
            offset_of!(TlbEntry, read)
        }
    }

    /// Returns the memory operand of a field of the page's entry.
    fn of_page(&self, page: Register, field: usize) -> MemoryOperand {
        indexed_field(
            ENTRIES + DataTlb::PAGES[usize::from(self.kernel)] + field,
            page,
        )
    }

    /// Computes in RAX the oldest stamp of the set. Stamps are loaded one by one, as they were stored: a load of a vector soon after would
    /// wait, since the host does not forward such stores.
    fn oldest_stamp(&self, a: &mut Assembler) {
        let stamp = |in_set: usize| indexed_field(STAMPS + 8 * in_set, FIRST_WAY);
        a.rm(Code::Mov_r64_rm64, RAX, stamp(0));
        for in_set in 1..1 << self.way_shift {
            a.rm(Code::Cmp_r64_rm64, RAX, stamp(in_set));
            a.rm(Code::Cmova_r64_rm64, RAX, stamp(in_set));
        }
    }

    /// Computes [`VICTIM_WORD`], the address of the first level's word of the line that is replaced. In the first level, this word should
    /// have the position that the way has in the way directory's set. If the word is elsewhere in its set, it is exchanged with the word at
    /// that position: the order of the words has no meaning. Uses RAX and R11.
    fn find_victim_word(&self, a: &mut Assembler) -> VictimWordLabels {
        let data = self.data();
        let ways = 1 << self.way_shift;
        let word = sized(VICTIM_WORD, 4);
        a.rr(Code::Mov_r32_rm32, word, R8D);
        a.ri(Code::Shr_rm32_imm8, word, 1);
        if data.shape.stride != ways {
            a.ri(Code::And_rm32_imm8, word, 4 * ways as i32 - 4);
            a.rr(Code::Mov_r32_rm32, EAX, Register::ECX);
            let bytes = 4 * data.shape.stride;
            // From the bytes of a pair of entries to those of a set.
            a.ri(
                Code::Shr_rm32_imm8,
                EAX,
                LINE_SHIFT - bytes.trailing_zeros() as i32,
            );
            a.rr(Code::Add_r64_rm64, VICTIM_WORD, RAX);
        }
        a.rm(Code::Add_r64_rm64, VICTIM_WORD, data.words());
        a.copy(RAX, VICTIM);
        a.ri(
            Code::Shr_rm64_imm8,
            RAX,
            LINE_SHIFT + self.first_sets as i32,
        );
        a.ri(Code::Add_rm32_imm8, EAX, 1);
        a.ri(Code::Shl_rm32_imm8, EAX, data.shape.tag_shift as i32);
        let (elsewhere, there) = (a.label(), a.label());
        data.is_tag(a, at(VICTIM_WORD), R11, elsewhere);
        a.bind(there);
        VictimWordLabels { elsewhere, there }
    }

    /// Assembles the out-of-line code of [`MissRoutine::find_victim_word`]: exchanges the victim's word, whose tag is in EAX, with the word
    /// at [`VICTIM_WORD`]. Jumps to `slow` if the set has no such word.
    fn find_victim_word_out_of_line(&self, a: &mut Assembler, victim_labels: VictimWordLabels) {
        let data = self.data();
        let (set, way, absent) = (R11, R13, a.label());
        a.bind(victim_labels.elsewhere);
        a.r(Code::Push_r64, way);
        data.look_for(a);
        a.copy(set, VICTIM);
        a.ri(Code::Shr_rm64_imm8, set, LINE_SHIFT);
        data.set(a, set, set);
        data.find(a, set, way, absent);
        let word = word_of(set, way);
        a.rm(Code::Lea_r64_m, set, word);
        a.rm(Code::Mov_r32_rm32, sized(way, 4), at(VICTIM_WORD));
        a.rm(Code::Mov_r32_rm32, EAX, at(set));
        a.mr(Code::Mov_rm32_r32, at(set), sized(way, 4));
        a.mr(Code::Mov_rm32_r32, at(VICTIM_WORD), EAX);
        a.r(Code::Pop_r64, way);
        a.jmp(victim_labels.there);
        a.bind(absent);
        a.r(Code::Pop_r64, way);
        a.jmp(self.slow);
    }

    /// Replaces the victim's word by a word of the wanted line in [`STATE`]. Uses RAX.
    fn replace_victim_word(&self, a: &mut Assembler) {
        self.data().tag(a, LINE);
        a.rr(Code::Or_r32_rm32, EAX, sized(STATE, 4));
        a.mr(Code::Mov_rm32_r32, at(VICTIM_WORD), EAX);
    }

    /// Jumps to `slow` unless a word, which is also in EAX, permits the access and no other cache inside may have the line. A write needs
    /// at least the state `writes`. A read with a write behind it needs a line that no other cache holds. A read of a shared line is always
    /// permitted. Uses RAX.
    fn check_permission(
        &self,
        a: &mut Assembler,
        word: MemoryOperand,
        writes: i32,
        others: OtherHolders,
    ) {
        let alone = a.label();
        a.ri(Code::And_rm32_imm8, EAX, STATES);
        let least = match self.access {
            DataAccess::Write => writes,
            _ => EXCLUSIVE_STATE,
        };
        a.ri(Code::Cmp_rm32_imm8, EAX, least);
        // A read of a shared line does not depend on other holders.
        a.jcc(cc::B, if self.writes() { self.slow } else { alone });
        a.rm(Code::Mov_r32_rm32, EAX, word);
        match others {
            OtherHolders::Constant(bits) => a.ri(Code::Test_rm32_imm32, EAX, bits as i32),
            OtherHolders::InL3 => a.mr(Code::Test_rm32_r32, exported!(l3_other_holders), EAX),
        }
        a.jcc(cc::NE, self.slow);
        a.bind(alone);
    }

    /// Computes [`STATE`], the state in which a cache inside may hold the line of this word. The word permits the access. Uses RAX.
    fn state_inside(&self, a: &mut Assembler, word: Register) {
        if self.access == DataAccess::Write {
            a.constant(STATE, MODIFIED_STATE as u64);
            return;
        }
        a.rr(Code::Mov_r32_rm32, EAX, sized(word, 4));
        a.ri(Code::And_rm32_imm8, EAX, STATES);
        a.ri(Code::Cmp_rm32_imm8, EAX, EXCLUSIVE_STATE);
        // EAX becomes -1 if the state is below exclusive, else 0.
        a.rr(Code::Sbb_r32_rm32, EAX, EAX);
        const _: () = assert!(EXCLUSIVE_STATE - SHARED_STATE == 2);
        let state = MemoryOperand::new(
            Register::None,
            RAX,
            2,
            EXCLUSIVE_STATE.into(),
            4,
            false,
            Register::None,
        );
        a.rm(Code::Lea_r32_m, sized(STATE, 4), state);
    }

    /// Counts the write-back of a line that leaves a level, if its word is modified, and adds its cycles to [`STALL`]. RAX is the address
    /// of the tallies. Uses R11.
    fn count_if_modified(&self, a: &mut Assembler, word: MemoryOperand, level: usize) {
        let events = &self.shape.events;
        let clean = a.label();
        a.rm(Code::Mov_r32_rm32, R11D, word);
        a.ri(Code::And_rm32_imm8, R11D, STATES);
        a.ri(Code::Cmp_rm32_imm8, R11D, MODIFIED_STATE);
        a.jcc(cc::NE, clean);
        count(a, events.write_back[level]);
        a.ri(
            Code::Add_rm64_imm32,
            STALL,
            events.write_back_stall[level] as i32,
        );
        self.charge_write_back(a, level);
        a.bind(clean);
    }

    /// Loads into `record` the address of the record that costs are charged to.
    fn record(&self, a: &mut Assembler, record: Register) {
        a.load(record, field!(records));
        a.rm(
            Code::Add_r64_rm64,
            record,
            field_of_cpu(field!(record_offset)),
        );
    }

    /// Charges to the current record the cycles of a miss's `path`: 1 for the L2 hit path, 2 for the L3 hit path, 3 for the memory path
    /// without the memory's cycles. Does nothing unless costs are attributed. Uses RAX.
    fn charge(&self, a: &mut Assembler, path: usize) {
        if !self.profiling {
            return;
        }
        self.record(a, RAX);
        if let Some(source) = Source::of_level(path + 1)
            && path < 3
        {
            let answers = Record::answers(source);
            a.m(Code::Inc_rm64, at_offset(RAX, answers as i64));
        }
        let levels = self.of(self.shape.events.stall_by_level[path - 1]);
        for (level, cycles) in (1..).zip(levels) {
            self.charge_level(a, RAX, level, cycles);
        }
    }

    fn charge_level(&self, a: &mut Assembler, record: Register, level: u8, cycles: u32) {
        if cycles != 0 {
            let sum = Record::cycles(StallTerm::of_level(level));
            let sum = at_offset(record, sum as i64);
            a.mi(Code::Add_rm64_imm32, sum, cycles as i32);
        }
    }

    /// Charges the cycles of the write-back of a modified line that leaves the cache level with the index `level`, counted from 0. Uses
    /// R11.
    fn charge_write_back(&self, a: &mut Assembler, level: usize) {
        let cycles = self.shape.events.write_back_stall[level];
        if self.profiling && cycles != 0 {
            self.record(a, R11);
            self.charge_level(a, R11, level as u8 + 1, cycles);
        }
    }

    /// Loads the address of the tallies into RAX.
    fn tallies(&self, a: &mut Assembler) {
        let at = offset_of!(ExportedCaches, tallies) + 8 * usize::from(self.kernel);
        a.rm(Code::Mov_r64_rm64, RAX, at_offset(EXPORTED, at as i64));
    }
}

/// Mask of the state in a word.
const STATES: i32 = (1 << nodescope_plugin_api::exported::STATE_BITS) - 1;
const SHARED_STATE: i32 = nodescope_plugin_api::exported::WordState::Shared as i32;
const EXCLUSIVE_STATE: i32 = nodescope_plugin_api::exported::WordState::Exclusive as i32;
const MODIFIED_STATE: i32 = nodescope_plugin_api::exported::WordState::Modified as i32;

/// Counts one event, whose index is `event`. RAX is the address of the tallies.
fn count(a: &mut Assembler, event: u32) {
    let at = size_of::<Tally>() * event as usize + offset_of!(Tally, count);
    a.m(Code::Inc_rm64, at_offset(RAX, at as i64));
}

/// Cache state that a model has exported to this vCPU; None while there is none.
pub type ExportedPointer = Option<NonNull<ExportedCaches>>;
