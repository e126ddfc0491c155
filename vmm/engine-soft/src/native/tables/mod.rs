//! Misses of the first-level data cache in machine code, by the tables that a model lends
//! ([`nodescope_plugin_api::exported`]): what [`Cpu::short_access`] and the model's own short ways do, and both for what is read and then
//! written, with the geometry of the caches as constants, in registers, and without putting the guest's away.
//!
//! A routine is reached from [`super::second_level`] when no line of the set is the one that is wanted. All that may be in the way is
//! looked at before anything is changed: else it says so, and the model is called.
//!
//! - [`near`]: the second level has the line.
//! - [`far`]: the third has it, or memory.
//! - [`enter`]: the clock advances, and the line enters the filter.
//! - [`modified`]: lines that were written since the model last heard of them.
//! - [`sets`]: searching and reordering a set.

mod enter;
mod far;
mod modified;
mod near;
mod sets;

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
use super::second_level::DataAccess;
use crate::cpu::Cpu;
use crate::filter::{DataFilter, Entry, Modified, NONE, SecondLevel, Sets, TICK};
use crate::profile::Record;
use sets::Cache;

use Register::{
    EAX, K1, K2, R8, R8D, R9, R10, R11, R11D, R12, R13, RAX, RBP, RBX, RCX, RDI, RDX, RSI, YMM16,
};

/// The tables.
const TABLES: Register = RDX;
/// Number of the line that is wanted.
const LINE: Register = RDI;
/// Offset of its set's first lane in the filter, and of its entry.
const FIRST_LANE: Register = RSI;
const ENTRY: Register = RCX;
/// Offset of the lane that it is going to have, from the first of all.
const LANE: Register = R8;
/// Physical address of the line that it has now, and where the first level's word of that is.
const OLDEST: Register = R9;
const PLACE: Register = RBP;
/// Offset of the entry of its page, or large page.
const PAGE: Register = R10;
/// The line's set in the second level.
const SECOND: Register = R10;
/// Its set in the third.
const THIRD: Register = RBX;
/// Cycles.
const STALL: Register = R12;
/// What the first level will hold the line in.
const STATE: Register = R9;

/// Registers that a miss routine saves and changes. The routine also changes RAX and RCX, and RSI and RDX, which its caller has saved.
/// Code that uses R13 saves that register itself.
const CHANGED: [Register; 8] = [RDI, R8, R9, R10, R11, R12, RBX, RBP];
/// Vector registers that it changes, where the host has no AVX-512: else it takes those from the sixteenth on, and masks, which no guest
/// has.
const VECTORS: usize = 5;

const FILTER: usize = offset_of!(Cpu, filter);
const ENTRIES: usize = FILTER + offset_of!(DataFilter, entries);
const SECOND_LEVEL: usize = FILTER + offset_of!(DataFilter, second);
const SETS: usize = SECOND_LEVEL + offset_of!(SecondLevel, sets);
const LINES: usize = SETS + offset_of!(Sets, lines);
const STAMPS: usize = SETS + offset_of!(Sets, stamps);
const LEAST: usize = SETS + offset_of!(Sets, least);
const MODIFIED: usize = SECOND_LEVEL + offset_of!(SecondLevel, modified);

/// log2 of the bytes of a line: no other is lent.
const LINE_SHIFT: i32 = SecondLevel::LINE.trailing_zeros() as i32;

/// A miss routine to be emitted: the parameters that its code depends on.
#[derive(Clone, Copy)]
struct MissRoutine<'a> {
    shape: &'a ExportedShape,
    /// log2 of the lanes of a set in the filter.
    lane_shift: u32,
    /// log2 of the sets of the first level.
    first_sets: u32,
    /// [`crate::cpi::Cpi::value`].
    cpi: u32,
    /// See [`Cache::avx512`].
    avx512: bool,
    /// Costs are attributed to blocks.
    profiling: bool,
    kernel: bool,
    access: DataAccess,
    /// Where nothing can be done.
    slow: Label,
}

/// Labels between the code in line of [`MissRoutine::begin`] and its out-of-line code.
struct Begun {
    again: Label,
    known: Label,
    modified: Label,
    reported: Label,
    large: Label,
    mapped: Label,
}

/// Labels between the code in line of [`MissRoutine::place`] and its out-of-line code.
struct Placed {
    elsewhere: Label,
    there: Label,
}

/// Bits of a word that stand for other caches inside.
enum Others {
    Constant(u32),
    InThird,
}

/// Addresses of miss routines, by privilege (user, kernel) and access.
pub type MissRoutines = [[Option<CodeAddress>; 3]; 2];

/// The miss routines that a node has, each set with the parameters that its code depends on.
pub type MissRoutineCache = Vec<((ExportedShape, u32, u32, bool), MissRoutines)>;

impl Cpu {
    /// Prepares the vCPU's miss routines, if the model lends its tables. Asks the model once while the model is attached.
    #[cold]
    #[inline(never)]
    pub(super) fn prepare_miss_routines(&mut self) {
        self.native.miss_routines_requested = true;
        let host = self.native.host;
        let lane_shift = self.filter.second.sets.lane_shift();
        if !host.avx || !host.bmi || lane_shift == 0 {
            return;
        }
        let id = self.id;
        let Some(loan) = self.platform().tables(id) else {
            return;
        };
        if let Some(routines) = self.miss_routines(*loan.shape(), lane_shift) {
            self.native.tables = Some(loan.tables());
            self.native.miss_routines = routines;
        }
    }

    /// Finds or emits the miss routines for these parameters; returns None where there is no room for code, or a template is wrong.
    fn miss_routines(&mut self, shape: ExportedShape, lane_shift: u32) -> Option<MissRoutines> {
        let SetCount::Power(first_sets) = shape.levels[0].sets else {
            return None;
        };
        let cpi = self.cpi.value();
        let avx512 = self.native.host.avx512;
        let profiling = self.profiling();
        let cache = &mut self.code().translation_cache;
        let key = (shape, lane_shift, cpi, profiling);
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
                    lane_shift,
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

    /// Forgets the miss routines, whose code may be gone, and the model's tables.
    pub(crate) fn forget_miss_routines(&mut self) {
        self.native.miss_routines = MissRoutines::default();
        self.native.tables = None;
        self.native.miss_routines_requested = false;
    }
}

/// Assembles a jump to the miss routine of an access, if there is one. On entry the address is in [`super::Native::linear`], RCX is the
/// offset of the address's entry, and RSI, RDX and the return address are on the stack. The routine returns the host address, or zero, in
/// RAX. Uses RAX.
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

/// Put the vector registers away that are used, or take them back, if they are the guest's. Only where some upper half is in use are
/// whole registers touched: see `load_vectors` in [`super::runtime`].
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

/// A field of [`ExportedCaches`].
macro_rules! table {
    ($($f:tt)+) => { at_offset(TABLES, std::mem::offset_of!(nodescope_plugin_api::exported::ExportedCaches, $($f)+) as i64) };
}
use table;

impl MissRoutine<'_> {
    fn emit(&self, a: &mut Assembler) {
        for register in CHANGED {
            a.r(Code::Push_r64, register);
        }
        if !self.avx512 {
            vectors(a, false);
        }
        let begun = self.begin(a);
        let (far, entered, done) = (a.label(), a.label(), a.label());
        let placed = self.near(a, far);
        a.bind(entered);
        self.enter(a);
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
        // What happens less often.
        a.bind(far);
        self.far(a, entered);
        self.begin_out_of_line(a, begun);
        self.place_out_of_line(a, placed);
        a.bind(self.slow);
        a.rr(Code::Xor_r32_rm32, EAX, EAX);
        a.jmp(done);
    }

    /// The caches that are lent.
    fn data(&self) -> Cache {
        Cache {
            shape: self.shape.levels[0],
            number: 0,
            avx512: self.avx512,
        }
    }

    fn outer(&self, level: usize) -> Cache {
        Cache {
            shape: self.shape.levels[level],
            number: level + 1,
            avx512: self.avx512,
        }
    }

    /// The element of a pair that is for this access: what is read first misses as a read.
    fn of<T: Copy>(&self, pair: [T; 2]) -> T {
        pair[usize::from(self.access == DataAccess::Write)]
    }

    /// The line is going to be written.
    fn writes(&self) -> bool {
        self.access != DataAccess::Read
    }

    /// What every miss needs: the tables, the line, the lane, and the line that is there. Lines that were modified before are told.
    fn begin(&self, a: &mut Assembler) -> Begun {
        let tag = self.tag();
        a.load(TABLES, field!(tables));
        // The set's first lane, from the entry's offset: a pair of entries for a set.
        a.copy(FIRST_LANE, ENTRY);
        if self.lane_shift + 3 > LINE_SHIFT as u32 {
            let by = self.lane_shift + 3 - LINE_SHIFT as u32;
            a.ri(Code::Shl_rm64_imm8, FIRST_LANE, by as i32);
        }
        // Which line goes.
        let [again, known, modified, reported, large, mapped] = [(); 6].map(|()| a.label());
        a.rr(Code::Mov_r32_rm32, R11D, Register::ECX);
        a.ri(Code::Shr_rm32_imm8, R11D, LINE_SHIFT - 3);
        a.rm(Code::Mov_r64_rm64, RAX, indexed_field(LEAST, R11));
        a.rr(Code::Mov_r32_rm32, R8D, EAX);
        a.ri(Code::And_rm32_imm32, R8D, TICK as i32 - 1);
        a.mr(Code::Cmp_rm64_r64, indexed_field(STAMPS, LANE), RAX);
        a.jcc(cc::NE, again);
        a.bind(known);
        a.rm(Code::Mov_r64_rm64, OLDEST, indexed_field(LINES, LANE));
        a.ri(Code::Cmp_rm64_imm8, OLDEST, NONE as i64 as i32);
        a.jcc(cc::E, self.slow);
        // Where the wanted line is.
        self.page(a, DataFilter::PAGE_INDEX);
        a.copy(R11, RAX);
        a.rm(Code::Sub_r64_rm64, R11, self.of_page(PAGE, tag));
        a.ri(Code::Cmp_rm64_imm32, R11, DataFilter::PAGE_SIZES[0] as i32);
        a.jcc(cc::AE, large);
        a.bind(mapped);
        // The line's offset in it. The guest's data comes nearer meanwhile.
        a.ri(Code::And_rm32_imm8, R11D, -(1 << LINE_SHIFT));
        let host = self.of_page(PAGE, offset_of!(Entry, host));
        a.rm(Code::Mov_r64_rm64, RAX, host);
        a.rr(Code::Add_r64_rm64, RAX, R11);
        let prefetch = match self.access {
            DataAccess::Read => Code::Prefetcht0_m8,
            _ => Code::Prefetchw_m8,
        };
        a.m(prefetch, at(RAX));
        a.store(field!(line_host), RAX);
        a.store(field!(page), PAGE);
        let physical = self.of_page(PAGE, offset_of!(Entry, physical));
        a.rm(Code::Mov_r64_rm64, RAX, physical);
        a.rr(Code::Add_r64_rm64, RAX, R11);
        a.copy(LINE, RAX);
        a.ri(Code::Shr_rm64_imm8, LINE, LINE_SHIFT);
        self.check_absent(a);
        a.rm(Code::Cmp_r64_rm64, LINE, table!(limit));
        a.jcc(cc::AE, self.slow);
        a.rm(
            Code::Mov_r32_rm32,
            EAX,
            field_of_cpu(offset_of!(Cpu, context)),
        );
        a.rm(Code::Cmp_r32_rm32, EAX, table!(context));
        a.jcc(cc::NE, self.slow);
        a.load(RAX, MODIFIED + offset_of!(Modified, count));
        a.rr(Code::Test_rm64_r64, RAX, RAX);
        a.jcc(cc::NE, modified);
        a.bind(reported);
        Begun {
            again,
            known,
            modified,
            reported,
            large,
            mapped,
        }
    }

    /// Go on where the line, whose address is in RAX, is not there under another linear address.
    fn check_absent(&self, a: &mut Assembler) {
        if self.avx512 {
            // Half as wide as can be: for the widest, hosts lower their frequency.
            a.rr(Code::EVEX_Vpbroadcastq_ymm_k1z_r64, YMM16, RAX);
            for four in 0..1 << (self.lane_shift - 2) {
                let to = if four == 0 { K1 } else { K2 };
                let lines = indexed_field(LINES + 32 * four, FIRST_LANE);
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
        for pair in 0..1 << (self.lane_shift - 1) {
            let lines = indexed_field(LINES + 16 * pair, FIRST_LANE);
            let to = if pair == 0 { xmm(1) } else { xmm(2) };
            a.rrm(Code::VEX_Vpcmpeqq_xmm_xmm_xmmm128, to, xmm(0), lines);
            if pair > 0 {
                a.rrr(Code::VEX_Vpor_xmm_xmm_xmmm128, xmm(1), xmm(1), xmm(2));
            }
        }
        a.rr(Code::VEX_Vptest_xmm_xmmm128, xmm(1), xmm(1));
        a.jcc(cc::NE, self.slow);
    }

    fn begin_out_of_line(&self, a: &mut Assembler, begun: Begun) {
        a.bind(begun.again);
        self.least(a);
        a.rr(Code::Mov_r32_rm32, R8D, EAX);
        a.ri(Code::And_rm32_imm32, R8D, TICK as i32 - 1);
        a.jmp(begun.known);
        a.bind(begun.modified);
        self.report_modified(a, begun.reported);
        a.bind(begun.large);
        self.page(a, DataFilter::LARGE_INDEX);
        let privilege = usize::from(self.kernel);
        let first = DataFilter::LARGE_PAGES[privilege] - DataFilter::PAGES[privilege];
        a.ri(Code::Add_rm32_imm32, sized(PAGE, 4), first as i32);
        a.copy(R11, RAX);
        a.rm(Code::Sub_r64_rm64, R11, self.of_page(PAGE, self.tag()));
        a.ri(Code::Cmp_rm64_imm32, R11, DataFilter::PAGE_SIZES[1] as i32);
        a.jcc(cc::B, begun.mapped);
        a.jmp(self.slow);
    }

    /// [`PAGE`] becomes the offset of an entry among those of pages or large pages of a privilege, RAX the address.
    fn page(&self, a: &mut Assembler, (shift, mask): (u32, u32)) {
        a.load(RAX, field!(linear));
        a.copy(PAGE, RAX);
        a.ri(Code::Shr_rm64_imm8, PAGE, shift as i32);
        a.ri(Code::And_rm32_imm32, sized(PAGE, 4), mask as i32);
    }

    /// The field of an entry that must be the address for this access.
    fn tag(&self) -> usize {
        if self.writes() {
            offset_of!(Entry, write)
        } else {
            offset_of!(Entry, read)
        }
    }

    /// A field of the page's entry.
    fn of_page(&self, page: Register, field: usize) -> MemoryOperand {
        indexed_field(
            ENTRIES + DataFilter::PAGES[usize::from(self.kernel)] + field,
            page,
        )
    }

    /// RAX becomes the least stamp of the set. One by one: stamps were written so, and the host waits for those that it reads as parts of
    /// vectors soon afterwards.
    fn least(&self, a: &mut Assembler) {
        let stamp = |lane: usize| indexed_field(STAMPS + 8 * lane, FIRST_LANE);
        a.rm(Code::Mov_r64_rm64, RAX, stamp(0));
        for lane in 1..1 << self.lane_shift {
            a.rm(Code::Cmp_r64_rm64, RAX, stamp(lane));
            a.rm(Code::Cmova_r64_rm64, RAX, stamp(lane));
        }
    }

    /// [`PLACE`] becomes the address of the first level's word of the line that goes: it is as many words from the set's first as the lane
    /// is from the first lane, and is brought there where it is not. The order of the words means nothing. Uses RAX and R11.
    fn place(&self, a: &mut Assembler) -> Placed {
        let data = self.data();
        let lanes = 1 << self.lane_shift;
        let place = sized(PLACE, 4);
        a.rr(Code::Mov_r32_rm32, place, R8D);
        a.ri(Code::Shr_rm32_imm8, place, 1);
        if data.shape.stride != lanes {
            a.ri(Code::And_rm32_imm8, place, 4 * lanes as i32 - 4);
            a.rr(Code::Mov_r32_rm32, EAX, Register::ECX);
            let bytes = 4 * data.shape.stride;
            // From the bytes of a pair of entries to those of a set.
            a.ri(
                Code::Shr_rm32_imm8,
                EAX,
                LINE_SHIFT - bytes.trailing_zeros() as i32,
            );
            a.rr(Code::Add_r64_rm64, PLACE, RAX);
        }
        a.rm(Code::Add_r64_rm64, PLACE, data.words());
        a.copy(RAX, OLDEST);
        a.ri(
            Code::Shr_rm64_imm8,
            RAX,
            LINE_SHIFT + self.first_sets as i32,
        );
        a.ri(Code::Add_rm32_imm8, EAX, 1);
        a.ri(Code::Shl_rm32_imm8, EAX, data.shape.tag_shift as i32);
        let (elsewhere, there) = (a.label(), a.label());
        data.is_tag(a, at(PLACE), R11, elsewhere);
        a.bind(there);
        Placed { elsewhere, there }
    }

    /// Bring the word there, with its tag in EAX.
    fn place_out_of_line(&self, a: &mut Assembler, placed: Placed) {
        let data = self.data();
        let (set, way, absent) = (R11, R13, a.label());
        a.bind(placed.elsewhere);
        a.r(Code::Push_r64, way);
        data.look_for(a);
        a.copy(set, OLDEST);
        a.ri(Code::Shr_rm64_imm8, set, LINE_SHIFT);
        data.set(a, set, set);
        data.find(a, set, way, absent);
        let word = word_of(set, way);
        a.rm(Code::Lea_r64_m, set, word);
        a.rm(Code::Mov_r32_rm32, sized(way, 4), at(PLACE));
        a.rm(Code::Mov_r32_rm32, EAX, at(set));
        a.mr(Code::Mov_rm32_r32, at(set), sized(way, 4));
        a.mr(Code::Mov_rm32_r32, at(PLACE), EAX);
        a.r(Code::Pop_r64, way);
        a.jmp(placed.there);
        a.bind(absent);
        a.r(Code::Pop_r64, way);
        a.jmp(self.slow);
    }

    /// The wanted line gets the place of the one that goes, in [`STATE`]. Uses RAX.
    fn take_place(&self, a: &mut Assembler) {
        self.data().tag(a, LINE);
        a.rr(Code::Or_r32_rm32, EAX, sized(STATE, 4));
        a.mr(Code::Mov_rm32_r32, at(PLACE), EAX);
    }

    /// Go on where a word, which is also in EAX, permits the access, a write from this state on, and no other cache inside may have the
    /// line. What is read first, and so held alone, may be written. Uses RAX.
    fn permit(&self, a: &mut Assembler, word: MemoryOperand, writes: i32, others: Others) {
        let alone = a.label();
        a.ri(Code::And_rm32_imm8, EAX, STATES);
        let least = match self.access {
            DataAccess::Write => writes,
            _ => EXCLUSIVE_STATE,
        };
        a.ri(Code::Cmp_rm32_imm8, EAX, least);
        // Who else has a line that is shared does not matter to who reads it.
        a.jcc(cc::B, if self.writes() { self.slow } else { alone });
        a.rm(Code::Mov_r32_rm32, EAX, word);
        match others {
            Others::Constant(bits) => a.ri(Code::Test_rm32_imm32, EAX, bits as i32),
            Others::InThird => a.mr(Code::Test_rm32_r32, table!(third_others), EAX),
        }
        a.jcc(cc::NE, self.slow);
        a.bind(alone);
    }

    /// [`STATE`] becomes what a cache inside may hold a line in that has this word and permits the access. Uses RAX.
    fn state_inside(&self, a: &mut Assembler, word: Register) {
        if self.access == DataAccess::Write {
            a.constant(STATE, MODIFIED_STATE as u64);
            return;
        }
        a.rr(Code::Mov_r32_rm32, EAX, sized(word, 4));
        a.ri(Code::And_rm32_imm8, EAX, STATES);
        a.ri(Code::Cmp_rm32_imm8, EAX, EXCLUSIVE_STATE);
        // Minus one below, else zero.
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

    /// Count that a line leaves a level modified, if this word of it says so. RAX are the tallies. Uses R11.
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

    /// `record` becomes the address of the record that costs are charged to.
    fn record(&self, a: &mut Assembler, record: Register) {
        a.load(record, field!(records));
        a.rm(
            Code::Add_r64_rm64,
            record,
            field_of_cpu(field!(record_offset)),
        );
    }

    /// Charge a path to the level with this index, 3 for memory, without the memory's own cycles. Uses RAX.
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

    /// Charge a modified line that leaves the level with this index. Uses R11.
    fn charge_write_back(&self, a: &mut Assembler, level: usize) {
        let cycles = self.shape.events.write_back_stall[level];
        if self.profiling && cycles != 0 {
            self.record(a, R11);
            self.charge_level(a, R11, level as u8 + 1, cycles);
        }
    }

    /// RAX become the tallies.
    fn tallies(&self, a: &mut Assembler) {
        let at = offset_of!(ExportedCaches, tallies) + 8 * usize::from(self.kernel);
        a.rm(Code::Mov_r64_rm64, RAX, at_offset(TABLES, at as i64));
    }
}

/// Bits of a state.
const STATES: i32 = (1 << nodescope_plugin_api::exported::STATE_BITS) - 1;
const SHARED_STATE: i32 = nodescope_plugin_api::exported::WordState::Shared as i32;
const EXCLUSIVE_STATE: i32 = nodescope_plugin_api::exported::WordState::Exclusive as i32;
const MODIFIED_STATE: i32 = nodescope_plugin_api::exported::WordState::Modified as i32;

/// One more event of a kind; RAX are the tallies.
fn count(a: &mut Assembler, event: u32) {
    let at = size_of::<Tally>() * event as usize + offset_of!(Tally, count);
    a.m(Code::Inc_rm64, at_offset(RAX, at as i64));
}

/// The tables that a model has lent to this vCPU.
pub type Lent = Option<NonNull<ExportedCaches>>;
