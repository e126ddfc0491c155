//! Routines for look-ups that miss the most recently used line of a set: the other lines of the set are tried before
//! anything is called. They do what [`DataFilter::promote`] and [`InstructionFilter::promote`] do.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};

use super::Host;
use super::assembler::{Assembler, CPU, Label, cc, indexed_field};
use super::runtime::field;
use crate::cpu::Cpu;
use crate::filter::{
    DataFilter, Entry, InstructionFilter, Known, Modified, SecondLevel, Sets, TICK, Writes,
};

use Register::{EAX, ECX, ESI, K1, K2, RAX, RCX, RDX, RSI, YMM16};

/// Addresses of the routines.
#[derive(Clone, Copy, Debug, Default)]
pub struct SecondLevelRoutines {
    /// By lanes of a set (8, 16), privilege (user, kernel) and access.
    data: [[[u64; 3]; 2]; 2],
    /// By lanes of a set.
    instruction: [u64; 2],
}

impl SecondLevelRoutines {
    /// RAX is the address of an access, as is [`super::Native::linear`], RCX is the offset of its entry: RAX is the host address then,
    /// or zero.
    /// Keeps all other registers but flags.
    pub fn data(&self, lane_shift: u32, kernel: bool, access: DataAccess) -> u64 {
        self.data[wide(lane_shift)][usize::from(kernel)][access as usize]
    }

    /// RAX is a physical line, RCX the offset of its set's first lane: ZF is set where the line is there. Keeps all other
    /// registers but flags.
    pub fn instruction(&self, lane_shift: u32) -> u64 {
        self.instruction[wide(lane_shift)]
    }
}

/// What an operand in memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataAccess {
    Read,
    Write,
    /// First the one, then the other.
    Both,
}

impl DataAccess {
    pub const ALL: [DataAccess; 3] = [DataAccess::Read, DataAccess::Write, DataAccess::Both];
}

/// Index of tables by the lanes of a set: 8 or 16.
pub(super) fn wide(lane_shift: u32) -> usize {
    usize::from(lane_shift == 4)
}

pub(super) const LANE_SHIFTS: [u32; 2] = [3, 4];

pub(super) const FILTER: usize = offset_of!(Cpu, filter);
const SECOND: usize = FILTER + offset_of!(DataFilter, second);
const SETS: usize = SECOND + offset_of!(SecondLevel, sets);
const KEYS: usize = SECOND + offset_of!(SecondLevel, keys);
const KNOWN: usize = SECOND + offset_of!(SecondLevel, known);
const MODIFIED: usize = SECOND + offset_of!(SecondLevel, modified);
const INSTRUCTION_SETS: usize = offset_of!(Cpu, fetch_filter) + offset_of!(InstructionFilter, sets);
const CLOCK: usize = offset_of!(Sets, clock);
const STAMPS: usize = offset_of!(Sets, stamps);
const LINES: usize = offset_of!(Sets, lines);

/// log2 of the bytes from a set's entry to the next one's, a pair for user and kernel; a lane's offset counts words of eight bytes.
const PAIR_SHIFT: u32 = size_of::<[Entry; 2]>().trailing_zeros();
/// Bytes of a line: no other size is kept.
const LINE: i32 = 64;

/// Assemble all of them.
pub fn routines(a: &mut Assembler, host: Host) -> SecondLevelRoutines {
    let mut routines = SecondLevelRoutines::default();
    for shift in LANE_SHIFTS {
        for kernel in [false, true] {
            for access in DataAccess::ALL {
                routines.data[wide(shift)][usize::from(kernel)][access as usize] =
                    data(a, host, shift, kernel, access);
            }
        }
        routines.instruction[wide(shift)] = instruction(a, shift);
    }
    routines
}

/// Find the lane whose word, by its number in the set, is what `key` holds, where `lane` is the offset of the set's first lane: goes on
/// with the lane's own offset there, or at the label that is the answer.
fn search(
    a: &mut Assembler,
    words: impl Fn(usize) -> MemoryOperand,
    key: Register,
    lane: Register,
    shift: u32,
) -> Label {
    let found = a.label();
    let ways = 1 << shift;
    let hits: Vec<_> = (0..ways).map(|_| a.label()).collect();
    for (way, hit) in hits.iter().enumerate() {
        a.mr(Code::Cmp_rm64_r64, words(way), key);
        a.jcc(cc::E, if way == 0 { found } else { *hit });
    }
    let absent = a.label();
    a.jmp(absent);
    for (way, hit) in hits.iter().enumerate().skip(1) {
        a.bind(*hit);
        a.ri(Code::Add_rm64_imm8, lane, 8 * way as i32);
        if way + 1 < ways {
            a.jmp(found);
        }
    }
    a.bind(found);
    absent
}

/// Stamp the lane whose offset `lane` is. Uses `scratch`.
fn stamp(a: &mut Assembler, sets: usize, lane: Register, scratch: Register) {
    a.load(scratch, sets + CLOCK);
    a.ri(Code::Add_rm64_imm32, scratch, TICK as i32);
    a.store(sets + CLOCK, scratch);
    a.rr(Code::Add_r64_rm64, scratch, lane);
    a.mr(
        Code::Mov_rm64_r64,
        indexed_field(sets + STAMPS, lane),
        scratch,
    );
}

/// RSI becomes the offset of the lane whose line has the number in RAX, by its key; `absent` where there is none. RCX is the offset of the
/// set's entries. All lanes are compared at a time, since which one it is can hardly be foretold, in registers that no guest has: there
/// is no AVX-512 for guests.
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
    // Set where there is none.
    a.jcc(cc::B, absent);
    let first = if shift == 3 {
        RCX
    } else {
        a.rr(Code::Add_r64_rm64, RSI, RCX);
        RSI
    };
    let lane = MemoryOperand::new(first, RAX, 8, 0, 0, false, Register::None);
    a.rm(Code::Lea_r64_m, RSI, lane);
}

fn data(a: &mut Assembler, host: Host, shift: u32, kernel: bool, access: DataAccess) -> u64 {
    let half = |kernel: bool| {
        FILTER + offset_of!(DataFilter, entries) + DataFilter::LINES[usize::from(kernel)]
    };
    let (own, other) = (half(kernel), half(!kernel));
    // The lane's offset counts words of eight bytes.
    const _: () = assert!(size_of::<Known>() == 32 && size_of::<Entry>() == 32);
    let known = |field: usize| {
        let at = (KNOWN + field) as i64;
        MemoryOperand::new(CPU, RSI, 4, at, 1, false, Register::None)
    };

    let start = a.here();
    a.r(Code::Push_r64, RDX);
    a.r(Code::Push_r64, RSI);
    a.copy(RDX, RAX);
    a.ri(Code::And_rm64_imm8, RDX, -LINE);
    let tags = |way: usize| known(offset_of!(Known, tag) + size_of::<Known>() * way);
    let first_lane = |a: &mut Assembler| {
        // From the entry's offset.
        a.copy(RSI, RCX);
        if shift + 3 > PAIR_SHIFT {
            a.ri(Code::Shl_rm64_imm8, RSI, (shift + 3 - PAIR_SHIFT) as i32);
        }
    };
    let [found, another] = [(); 2].map(|()| a.label());
    let absent = if host.avx512 {
        let absent = a.label();
        a.ri(Code::Shr_rm64_imm8, RAX, LINE.trailing_zeros() as i32);
        compare_keys(a, shift, absent);
        if kernel {
            a.ri(Code::Add_rm64_imm8, RDX, 1);
        }
        // It is nearly always the one.
        a.mr(Code::Cmp_rm64_r64, tags(0), RDX);
        a.jcc(cc::NE, another);
        absent
    } else {
        first_lane(a);
        if kernel {
            a.ri(Code::Add_rm64_imm8, RDX, 1);
        }
        search(a, tags, RDX, RSI, shift)
    };
    a.bind(found);
    if kernel {
        a.ri(Code::Sub_rm64_imm8, RDX, 1);
    }
    let [asked, allowed, refused] = [(); 3].map(|()| a.label());
    if access != DataAccess::Read {
        a.mr(Code::Cmp_rm64_r64, known(offset_of!(Known, write)), RDX);
        a.jcc(cc::NE, asked);
        a.bind(allowed);
    }
    stamp(a, SETS, RSI, RAX);
    // The line becomes its set's entry.
    let entry = |offset: usize| indexed_field(own + offset, RCX);
    a.mr(Code::Mov_rm64_r64, entry(offset_of!(Entry, read)), RDX);
    // One by one: the host does not pass on what was stored in other pieces.
    for (from, to) in [
        (offset_of!(Known, write), offset_of!(Entry, write)),
        (offset_of!(Known, host), offset_of!(Entry, host)),
    ] {
        a.rm(Code::Mov_r64_rm64, RAX, known(from));
        a.mr(Code::Mov_rm64_r64, entry(to), RAX);
    }
    // An address that belongs to another slot: the other privilege has no line of this set.
    a.ri(Code::Xor_rm64_imm8, RDX, LINE);
    for tag in [offset_of!(Entry, read), offset_of!(Entry, write)] {
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
        a.bind(asked);
        let exclusive = RDX;
        a.ri(
            Code::Xor_rm64_imm32,
            exclusive,
            LINE * Writes::Exclusive as i32,
        );
        a.mr(
            Code::Cmp_rm64_r64,
            known(offset_of!(Known, write)),
            exclusive,
        );
        a.jcc(cc::NE, refused);
        a.load(RAX, MODIFIED + offset_of!(Modified, count));
        a.ri(Code::Cmp_rm64_imm8, RAX, Modified::ROOM as i32);
        a.jcc(cc::AE, refused);
        a.rm(Code::Mov_r64_rm64, RDX, indexed_field(SETS + LINES, RSI));
        let line = MODIFIED + offset_of!(Modified, lines);
        let line = MemoryOperand::new(CPU, RAX, 8, line as i64, 1, false, Register::None);
        a.mr(Code::Mov_rm64_r64, line, RDX);
        a.ri(Code::Add_rm64_imm8, RAX, 1);
        a.store(MODIFIED + offset_of!(Modified, count), RAX);
        a.rm(Code::Mov_r64_rm64, RDX, known(offset_of!(Known, read)));
        a.mr(Code::Mov_rm64_r64, known(offset_of!(Known, write)), RDX);
        a.jmp(allowed);
    }
    a.bind(another);
    if host.avx512 {
        // A line whose key is the same, or was there before.
        first_lane(a);
        let none = search(a, tags, RDX, RSI, shift);
        a.jmp(found);
        a.bind(none);
    }
    a.bind(absent);
    super::tables::jump_to_miss_routine(a, kernel, access);
    a.bind(refused);
    a.rr(Code::Xor_r32_rm32, EAX, EAX);
    out(a);
    start
}

fn instruction(a: &mut Assembler, shift: u32) -> u64 {
    let start = a.here();
    let lines = |way: usize| indexed_field(INSTRUCTION_SETS + LINES + 8 * way, RCX);
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
