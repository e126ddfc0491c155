//! Way look-up: routines for look-ups that miss the most recently used line of a set. The routines try the other lines of the set before
//! any function is called, with the effect of [`DataTlb::promote`] and [`InstructionL0::promote`].
//!
//! A way's offset is in bytes, among words of eight bytes for each way, from the first way of the directory.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};

use super::Host;
use super::assembler::{Assembler, CPU, Label, cc, indexed_field};
use super::runtime::field;
use crate::cpu::Cpu;
use crate::softmmu::{
    DataTlb, InstructionL0, LruSets, ModifiedLines, TICK, TlbEntry, WayDirectory, WayEntry,
    WritePermission,
};

use Register::{EAX, ECX, ESI, K1, K2, RAX, RCX, RDX, RSI, YMM16};

/// Addresses of the routines.
#[derive(Clone, Copy, Debug, Default)]
pub struct WayLookupRoutines {
    /// Addresses for data, by ways of a set (8, 16), privilege (user, kernel) and access.
    data: [[[u64; 3]; 2]; 2],
    /// Addresses for instructions, by ways of a set (8, 16).
    instruction: [u64; 2],
}

impl WayLookupRoutines {
    /// Returns the routine for data. On entry, RAX and [`super::Native::linear`] are the address of an access, and RCX is the offset of the
    /// address's TLB entry. On return, RAX is the host address, or zero. The routine keeps all other registers except RCX, but not the
    /// flags.
    pub fn data(&self, way_shift: u32, kernel: bool, access: DataAccess) -> u64 {
        self.data[ways_index(way_shift)][usize::from(kernel)][access as usize]
    }

    /// Returns the routine for instructions. On entry, RAX is a line's physical address, and RCX is the offset of its set's first way. On
    /// return, ZF is set if the set has the line. The routine may change RCX and flags, and changes no other register.
    pub fn instruction(&self, way_shift: u32) -> u64 {
        self.instruction[ways_index(way_shift)]
    }
}

/// Use of an operand in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataAccess {
    /// The operand is only read.
    Read,
    /// The operand is only written.
    Write,
    /// The operand is read and then written.
    ReadWrite,
}

impl DataAccess {
    /// Every use.
    pub const ALL: [DataAccess; 3] = [DataAccess::Read, DataAccess::Write, DataAccess::ReadWrite];
}

/// Returns the index of routines for sets of 8 or 16 ways.
pub(super) fn ways_index(way_shift: u32) -> usize {
    usize::from(way_shift == 4)
}

/// log2 of the ways of a set, for each supported set size.
pub(super) const WAY_SHIFTS: [u32; 2] = [3, 4];

pub(super) const DATA_TLB: usize = offset_of!(Cpu, data_tlb);
const DIRECTORY: usize = DATA_TLB + offset_of!(DataTlb, directory);
const SETS: usize = DIRECTORY + offset_of!(WayDirectory, sets);
const KEYS: usize = DIRECTORY + offset_of!(WayDirectory, keys);
const WAY_ENTRIES: usize = DIRECTORY + offset_of!(WayDirectory, entries);
const MODIFIED_LINES: usize = DIRECTORY + offset_of!(WayDirectory, modified);
const INSTRUCTION_SETS: usize = offset_of!(Cpu, instruction_l0) + offset_of!(InstructionL0, sets);
const CLOCK: usize = offset_of!(LruSets, clock);
const STAMPS: usize = offset_of!(LruSets, stamps);
const LINES: usize = offset_of!(LruSets, lines);

/// log2 of the bytes from the entries of a set to the entries of the next set. A set has an entry for user and an entry for kernel.
const PAIR_SHIFT: u32 = size_of::<[TlbEntry; 2]>().trailing_zeros();
/// Bytes of a line. No other size is supported.
const LINE: i32 = 64;

/// Assembles all routines.
pub fn routines(a: &mut Assembler, host: Host) -> WayLookupRoutines {
    let mut routines = WayLookupRoutines::default();
    for shift in WAY_SHIFTS {
        for kernel in [false, true] {
            for access in DataAccess::ALL {
                routines.data[ways_index(shift)][usize::from(kernel)][access as usize] =
                    data(a, host, shift, kernel, access);
            }
        }
        routines.instruction[ways_index(shift)] = instruction(a, shift);
    }
    routines
}

/// Assembles a search for the way whose word is `key`. `words` gives a way's word by its number in the set. On entry, `way` is the offset
/// of the set's first way. The code continues with the found way's offset in `way`, or jumps to the returned label.
fn search(
    a: &mut Assembler,
    words: impl Fn(usize) -> MemoryOperand,
    key: Register,
    way: Register,
    shift: u32,
) -> Label {
    let found = a.label();
    let ways = 1 << shift;
    let hits: Vec<_> = (0..ways).map(|_| a.label()).collect();
    for (in_set, hit) in hits.iter().enumerate() {
        a.mr(Code::Cmp_rm64_r64, words(in_set), key);
        a.jcc(cc::E, if in_set == 0 { found } else { *hit });
    }
    let absent = a.label();
    a.jmp(absent);
    for (in_set, hit) in hits.iter().enumerate().skip(1) {
        a.bind(*hit);
        a.ri(Code::Add_rm64_imm8, way, 8 * in_set as i32);
        if in_set + 1 < ways {
            a.jmp(found);
        }
    }
    a.bind(found);
    absent
}

/// Assembles a new stamp for the way at the offset `way`. Uses `scratch`.
fn stamp(a: &mut Assembler, sets: usize, way: Register, scratch: Register) {
    a.load(scratch, sets + CLOCK);
    a.ri(Code::Add_rm64_imm32, scratch, TICK as i32);
    a.store(sets + CLOCK, scratch);
    a.rr(Code::Add_r64_rm64, scratch, way);
    a.mr(
        Code::Mov_rm64_r64,
        indexed_field(sets + STAMPS, way),
        scratch,
    );
}

/// Assembles a comparison of a set's keys with the line number in RAX. RSI becomes the offset of the way with this key. The code jumps to
/// `absent` if no way has the key. RCX is the offset of the set's entries. All keys are compared at a time, since a branch on the way could
/// hardly be predicted. The vector and mask registers are free, since guests have no AVX-512.
fn compare_keys(a: &mut Assembler, shift: u32, absent: Label) {
    const _: () = assert!(PAIR_SHIFT == 6);
    let keys = |vector: usize| indexed_field(KEYS + 32 * vector, RSI);
    a.rr(Code::Mov_r32_rm32, ESI, ECX);
    if shift == 3 {
        a.ri(Code::Shr_rm32_imm8, ESI, 1);
    }
    a.rr(Code::EVEX_Vpbroadcastd_ymm_k1z_r32, YMM16, EAX);
    let compare = Code::EVEX_Vpcmpeqd_kr_k1_ymm_ymmm256b32;
    a.rrm(compare, K1, YMM16, keys(0));
    if shift == 3 {
        a.rr(Code::VEX_Kmovb_r32_kr, EAX, K1);
    } else {
        a.rrm(compare, K2, YMM16, keys(1));
        a.rrr(Code::VEX_Kunpckbw_kr_kr_kr, K1, K2, K1);
        a.rr(Code::VEX_Kmovw_r32_kr, EAX, K1);
    }
    a.rr(Code::Tzcnt_r32_rm32, EAX, EAX);
    // CF is set where no bit is set.
    a.jcc(cc::B, absent);
    let first = if shift == 3 {
        RCX
    } else {
        a.rr(Code::Add_r64_rm64, RSI, RCX);
        RSI
    };
    let way = MemoryOperand::new(first, RAX, 8, 0, 0, false, Register::None);
    a.rm(Code::Lea_r64_m, RSI, way);
}

fn data(a: &mut Assembler, host: Host, shift: u32, kernel: bool, access: DataAccess) -> u64 {
    let half = |kernel: bool| {
        DATA_TLB + offset_of!(DataTlb, entries) + DataTlb::LINES[usize::from(kernel)]
    };
    let (own, other) = (half(kernel), half(!kernel));
    const _: () = assert!(size_of::<WayEntry>() == 32 && size_of::<TlbEntry>() == 32);
    let way_entry = |field: usize| {
        let at = (WAY_ENTRIES + field) as i64;
        MemoryOperand::new(CPU, RSI, 4, at, 1, false, Register::None)
    };

    let start = a.here();
    a.r(Code::Push_r64, RDX);
    a.r(Code::Push_r64, RSI);
    a.copy(RDX, RAX);
    a.ri(Code::And_rm64_imm8, RDX, -LINE);
    let tags =
        |in_set: usize| way_entry(offset_of!(WayEntry, tag) + size_of::<WayEntry>() * in_set);
    let first_way = |a: &mut Assembler| {
        // From the offset of the set's entries.
        a.copy(RSI, RCX);
        if shift + 3 > PAIR_SHIFT {
            a.ri(Code::Shl_rm64_imm8, RSI, (shift + 3 - PAIR_SHIFT) as i32);
        }
    };
    let [found, other_way] = [(); 2].map(|()| a.label());
    let absent = if host.avx512 {
        let absent = a.label();
        a.ri(Code::Shr_rm64_imm8, RAX, LINE.trailing_zeros() as i32);
        compare_keys(a, shift, absent);
        if kernel {
            a.ri(Code::Add_rm64_imm8, RDX, 1);
        }
        // The key has only the lowest bits; the tag nearly always matches, too.
        a.mr(Code::Cmp_rm64_r64, tags(0), RDX);
        a.jcc(cc::NE, other_way);
        absent
    } else {
        first_way(a);
        if kernel {
            a.ri(Code::Add_rm64_imm8, RDX, 1);
        }
        search(a, tags, RDX, RSI, shift)
    };
    a.bind(found);
    if kernel {
        a.ri(Code::Sub_rm64_imm8, RDX, 1);
    }
    let [check_exclusive, write_allowed, write_denied] = [(); 3].map(|()| a.label());
    if access != DataAccess::Read {
        a.mr(
            Code::Cmp_rm64_r64,
            way_entry(offset_of!(WayEntry, write)),
            RDX,
        );
        a.jcc(cc::NE, check_exclusive);
        a.bind(write_allowed);
    }
    stamp(a, SETS, RSI, RAX);
    // The line becomes the TLB entry of its set.
    let entry = |offset: usize| indexed_field(own + offset, RCX);
    a.mr(Code::Mov_rm64_r64, entry(offset_of!(TlbEntry, read)), RDX);
    // Word by word: the host forwards no store to a load of another size.
    for (from, to) in [
        (offset_of!(WayEntry, write), offset_of!(TlbEntry, write)),
        (offset_of!(WayEntry, host), offset_of!(TlbEntry, host)),
    ] {
        a.rm(Code::Mov_r64_rm64, RAX, way_entry(from));
        a.mr(Code::Mov_rm64_r64, entry(to), RAX);
    }
    // An address that belongs to another slot: the other privilege has no line of this set.
    a.ri(Code::Xor_rm64_imm8, RDX, LINE);
    for tag in [offset_of!(TlbEntry, read), offset_of!(TlbEntry, write)] {
        a.mr(Code::Mov_rm64_r64, indexed_field(other + tag, RCX), RDX);
    }
    a.load(RDX, field!(linear));
    a.ri(Code::And_rm32_imm8, Register::EDX, LINE - 1);
    a.rr(Code::Add_r64_rm64, RAX, RDX);
    let out = |a: &mut Assembler| {
        a.r(Code::Pop_r64, RSI);
        a.r(Code::Pop_r64, RDX);
        a.plain(Code::Retnq);
    };
    out(a);
    if access != DataAccess::Read {
        a.bind(check_exclusive);
        let exclusive = RDX;
        a.ri(
            Code::Xor_rm64_imm32,
            exclusive,
            LINE * WritePermission::Exclusive as i32,
        );
        a.mr(
            Code::Cmp_rm64_r64,
            way_entry(offset_of!(WayEntry, write)),
            exclusive,
        );
        a.jcc(cc::NE, write_denied);
        a.load(RAX, MODIFIED_LINES + offset_of!(ModifiedLines, count));
        a.ri(Code::Cmp_rm64_imm8, RAX, ModifiedLines::CAPACITY as i32);
        a.jcc(cc::AE, write_denied);
        a.rm(Code::Mov_r64_rm64, RDX, indexed_field(SETS + LINES, RSI));
        let line = MODIFIED_LINES + offset_of!(ModifiedLines, lines);
        let line = MemoryOperand::new(CPU, RAX, 8, line as i64, 1, false, Register::None);
        a.mr(Code::Mov_rm64_r64, line, RDX);
        a.ri(Code::Add_rm64_imm8, RAX, 1);
        a.store(MODIFIED_LINES + offset_of!(ModifiedLines, count), RAX);
        a.rm(
            Code::Mov_r64_rm64,
            RDX,
            way_entry(offset_of!(WayEntry, read)),
        );
        a.mr(
            Code::Mov_rm64_r64,
            way_entry(offset_of!(WayEntry, write)),
            RDX,
        );
        a.jmp(write_allowed);
    }
    a.bind(other_way);
    if host.avx512 {
        // The key is equal, but the tag is not: another line has this key, or the way had another line before. Compare the tags of all
        // ways.
        first_way(a);
        let none = search(a, tags, RDX, RSI, shift);
        a.jmp(found);
        a.bind(none);
    }
    a.bind(absent);
    super::miss_routines::jump_to_miss_routine(a, kernel, access);
    a.bind(write_denied);
    a.rr(Code::Xor_r32_rm32, EAX, EAX);
    out(a);
    start
}

fn instruction(a: &mut Assembler, shift: u32) -> u64 {
    let start = a.here();
    let lines = |in_set: usize| indexed_field(INSTRUCTION_SETS + LINES + 8 * in_set, RCX);
    let absent = search(a, lines, RAX, RCX, shift);
    a.r(Code::Push_r64, RDX);
    stamp(a, INSTRUCTION_SETS, RCX, RDX);
    a.r(Code::Pop_r64, RDX);
    a.rr(Code::Cmp_r64_rm64, RAX, RAX);
    // The last comparison cleared ZF where no line was equal.
    a.bind(absent);
    a.plain(Code::Retnq);
    start
}
