//! Split accesses, which lie in two cache lines, in windows in which the L0 filter cache keeps whole sets. Both lines are looked up. Where
//! the lines are neighbours in host memory, too, the host carries out one access.
//!
//! The code follows the rule of [`Cpu::split_is_known`] and has the effects of [`Cpu::split`]. The interpreter carries out all other split
//! accesses. When the interpreter takes over, either both lines or none must have been asked for:
//!
//! - The first line may be the most recently used line of its set. A look-up of this line changes nothing, so that the second line may be
//!   looked up next.
//! - Otherwise the first line is looked up only if both lines lie in one page that the TLB has. Then the look-up of the second line cannot
//!   fail.

use iced_x86::{Code, Register};

use super::access::{Function, call_out};
use super::assembler::{Assembler, at, at_offset, cc, field_of_cpu, indexed_field};
use super::runtime::{add_record_offset, field};
use super::way_lookup::{DATA_TLB, DataAccess, WAY_SHIFTS, WayLookupRoutines, ways_index};
use super::{Host, Native, PACKED_BITS};
use crate::cpu::Cpu;
use crate::profile::Record;
use crate::softmmu::{Avx2, Baseline, DataTlb, Isa, TlbEntry, WayDirectory};
use crate::split::Split;

use std::mem::offset_of;

use Register::{EAX, EDX, ESI, RAX, RCX, RDX, RSI, RSP};

/// Addresses of the routines, by ways of a set (8, 16), privilege (user, kernel) and access (read, write).
#[derive(Clone, Copy, Debug, Default)]
pub struct SplitRoutines([[[u64; 2]; 2]; 2]);

impl SplitRoutines {
    /// Returns the address of the routine for an access. RAX and [`Native::linear`] are the address of the access, and ECX describes the
    /// access (see [`super::access::describe`]). The routine returns the host address, or zero, in RAX. It may change RCX and flags, and
    /// changes no other register.
    pub fn routine(&self, way_shift: u32, kernel: bool, write: bool) -> u64 {
        self.0[ways_index(way_shift)][usize::from(kernel)][usize::from(write)]
    }
}

const ENTRIES: usize = DATA_TLB + offset_of!(DataTlb, entries);
const LINE: i32 = WayDirectory::LINE as i32;

/// Assembles all routines for split accesses.
pub fn routines(a: &mut Assembler, host: Host, way_lookup: &WayLookupRoutines) -> SplitRoutines {
    let function: Function = if host.avx && host.bmi {
        split_avx2
    } else {
        split
    };
    let call = call_out(a, host, &[function]);
    let mut routines = SplitRoutines::default();
    for way_shift in WAY_SHIFTS {
        for kernel in [false, true] {
            for write in [false, true] {
                let access = if write {
                    DataAccess::Write
                } else {
                    DataAccess::Read
                };
                let line = way_lookup.data(way_shift, kernel, access);
                routines.0[ways_index(way_shift)][usize::from(kernel)][usize::from(write)] =
                    routine(a, kernel, write, line, call);
            }
        }
    }
    routines
}

/// Assembles one routine. `line`: the routine that tries the other lines of a set; `call`: the routine that calls [`split`].
fn routine(a: &mut Assembler, kernel: bool, write: bool, line: u64, call: u64) -> u64 {
    let tag = if write {
        offset_of!(TlbEntry, write)
    } else {
        offset_of!(TlbEntry, read)
    };
    let privilege = usize::from(kernel);
    let lines = ENTRIES + DataTlb::LINES[privilege];
    let mask = field_of_cpu(DATA_TLB + DataTlb::MASK);
    let host_address = offset_of!(TlbEntry, host);
    let [
        first_other,
        second,
        second_other,
        both,
        not_neighbours,
        page_known,
        slow,
    ] = [(); 7].map(|()| a.label());

    let start = a.here();
    for register in [RDX, RSI, RCX] {
        a.r(Code::Push_r64, register);
    }
    a.copy(RSI, RAX);
    a.rm(Code::And_r64_rm64, RSI, mask);
    a.copy(RDX, RAX);
    a.rm(Code::Sub_r64_rm64, RDX, indexed_field(lines + tag, RSI));
    a.ri(Code::Cmp_rm64_imm8, RDX, LINE - 1);
    a.jcc(cc::A, first_other);
    a.rm(
        Code::Add_r64_rm64,
        RDX,
        indexed_field(lines + host_address, RSI),
    );
    // RDX is the host address of the first piece. RAX becomes the address of the second piece.
    a.bind(second);
    a.ri(Code::Or_rm64_imm8, RAX, LINE - 1);
    a.ri(Code::Add_rm64_imm8, RAX, 1);
    a.copy(RCX, RAX);
    a.rm(Code::And_r64_rm64, RCX, mask);
    a.rm(Code::Cmp_r64_rm64, RAX, indexed_field(lines + tag, RCX));
    a.jcc(cc::NE, second_other);
    a.rm(
        Code::Mov_r64_rm64,
        RAX,
        indexed_field(lines + host_address, RCX),
    );
    // RAX is the host address of the second piece.
    a.bind(both);
    a.copy(RSI, RDX);
    a.ri(Code::Or_rm64_imm8, RSI, LINE - 1);
    a.ri(Code::Add_rm64_imm8, RSI, 1);
    a.rr(Code::Cmp_r64_rm64, RSI, RAX);
    a.jcc(cc::NE, not_neighbours);
    // As `Cpu::count_split`.
    let unprofiled = a.label();
    a.load(RSI, field!(records));
    a.rr(Code::Test_rm64_r64, RSI, RSI);
    a.jcc(cc::E, unprofiled);
    add_record_offset(a, RSI, RCX);
    let more = if write {
        Record::MORE_STORES
    } else {
        Record::MORE_LOADS
    };
    a.m(Code::Inc_rm64, at_offset(RSI, more as i64));
    a.bind(unprofiled);
    let packed = field_of_cpu(field!(packed));
    if write {
        a.mi(Code::Add_rm64_imm32, packed, 1 << PACKED_BITS);
    } else {
        a.constant(RSI, 1 << (2 * PACKED_BITS));
        a.mr(Code::Add_rm64_r64, packed, RSI);
    }
    a.copy(RAX, RDX);
    let restore = |a: &mut Assembler| {
        for register in [RCX, RSI, RDX] {
            a.r(Code::Pop_r64, register);
        }
    };
    restore(a);
    a.plain(Code::Retnq);

    a.bind(second_other);
    // The piece has the operand's size, less the bytes from the operand's address to the end of the line.
    a.load(RSI, field!(linear));
    a.ri(Code::And_rm32_imm8, ESI, LINE - 1);
    a.ri(Code::Sub_rm32_imm8, ESI, LINE);
    a.rm(Code::Add_r32_rm32, ESI, at(RSP));
    a.mr(Code::Mov_rm32_r32, field_of_cpu(field!(described)), ESI);
    a.load(RSI, field!(linear));
    a.store(field!(linear), RAX);
    a.call_to(line);
    a.store(field!(linear), RSI);
    a.rr(Code::Test_rm64_r64, RAX, RAX);
    a.jcc(cc::NE, both);
    // The first line was looked up already.
    a.store(field!(split_hosts), RDX);
    a.jmp(slow);

    a.bind(first_other);
    a.rr(Code::Mov_r32_rm32, EDX, EAX);
    a.ri(Code::And_rm32_imm32, EDX, 0xfff);
    a.ri(Code::Cmp_rm32_imm32, EDX, 0x1000 - LINE);
    a.jcc(cc::AE, slow);
    // Sets ZF if the TLB has the page, or large page, and permits the access.
    let page_tag = |a: &mut Assembler, first: usize, (shift, mask): (u32, u32), size: u64| {
        a.copy(RDX, RAX);
        a.ri(Code::Shr_rm64_imm8, RDX, shift as i32);
        a.ri(Code::And_rm32_imm32, EDX, mask as i32);
        a.copy(RSI, RAX);
        a.ri(Code::And_rm64_imm32, RSI, -(size as i32));
        a.rm(
            Code::Cmp_r64_rm64,
            RSI,
            indexed_field(ENTRIES + first + tag, RDX),
        );
    };
    let [page, large] = DataTlb::PAGE_SIZES;
    let of_pages = DataTlb::PAGES[privilege];
    page_tag(a, of_pages, DataTlb::PAGE_INDEX, page);
    a.jcc(cc::E, page_known);
    let of_large = DataTlb::LARGE_PAGES[privilege];
    page_tag(a, of_large, DataTlb::LARGE_INDEX, large);
    a.jcc(cc::NE, slow);
    a.bind(page_known);
    // The piece has the bytes from the operand's address to the end of the line.
    a.rm(Code::Mov_r32_rm32, ESI, at(RSP));
    a.ri(Code::And_rm32_imm32, ESI, !0xff);
    a.ri(Code::Add_rm32_imm8, ESI, LINE);
    a.rr(Code::Mov_r32_rm32, EDX, EAX);
    a.ri(Code::And_rm32_imm8, EDX, LINE - 1);
    a.rr(Code::Sub_r32_rm32, ESI, EDX);
    a.mr(Code::Mov_rm32_r32, field_of_cpu(field!(described)), ESI);
    a.copy(RCX, RAX);
    a.rm(Code::And_r64_rm64, RCX, mask);
    a.call_to(line);
    a.rr(Code::Test_rm64_r64, RAX, RAX);
    a.jcc(cc::E, slow);
    a.copy(RDX, RAX);
    a.load(RAX, field!(linear));
    a.jmp(second);

    // Both lines were asked for, and are not neighbours in host memory.
    a.bind(not_neighbours);
    a.store(field!(split_hosts), RDX);
    a.store(field!(split_hosts) + 8, RAX);
    a.bind(slow);
    restore(a);
    a.jmp_to(call);
    start
}

/// Looks up a split access, which `what` describes (see [`super::access::describe`]), for the address in [`Native::linear`]. Returns a host
/// address at which the whole operand can be read or written; null where the interpreter must carry out the operation.
///
/// # Safety
/// As for `interpret` in [`super::runtime`].
unsafe extern "sysv64" fn split(cpu: *mut Cpu, what: u32) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { split_on(Baseline, cpu, what) }
}

/// [`split`] for hosts with AVX2.
///
/// # Safety
/// As for `interpret` in [`super::runtime`], and the host has AVX2, BMI1 and BMI2.
#[target_feature(enable = "avx2,bmi1,bmi2")]
unsafe extern "sysv64" fn split_avx2(cpu: *mut Cpu, what: u32) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { split_on(Avx2::assume(), cpu, what) }
}

/// # Safety
/// As for `interpret` in [`super::runtime`].
#[inline(always)]
unsafe fn split_on(isa: impl Isa, cpu: *mut Cpu, what: u32) -> *mut u8 {
    // SAFETY: as in `runtime::interpret`.
    let cpu = unsafe { &mut *cpu };
    let (linear, len) = (cpu.native.linear, (what & 0xff) as usize);
    let write = what & 1 << 9 != 0;
    let split = match std::mem::take(&mut cpu.native.split_hosts) {
        [first, 0] => {
            cpu.native.activity.misses += 1;
            if !cpu.native.miss_routines_requested {
                cpu.prepare_miss_routines();
            }
            let count = cpu.arrive_at_block_start(what);
            let stall = cpu.stall;
            let origin = cpu.origins(what)[usize::from(write)];
            let split = match first {
                0 => cpu.split_on(isa, linear, len, write, origin),
                _ => cpu.second_piece(isa, first as *mut u8, linear, len, write, origin),
            };
            if cpu.stall != stall {
                cpu.shorten_budget(count);
            }
            split
        }
        hosts => {
            cpu.count_split(write);
            let first = cpu.data_tlb.room(linear);
            Some(Split::new(hosts.map(|host| host as *mut u8), first))
        }
    };
    let Some(split) = split else {
        return std::ptr::null_mut();
    };
    if let Some(host) = split.in_one_piece() {
        return host;
    }
    if write {
        cpu.native.served = Some(Served {
            linear,
            len,
            write,
            split,
        });
        return std::ptr::null_mut();
    }
    let native = &mut cpu.native;
    // SAFETY: `split` describes `len` bytes. It comes from `split_on`, or from the routine that set `split_hosts`.
    unsafe { split.read(&mut native.bounce[..len]) };
    native.bounce.as_mut_ptr()
}

/// A split access whose lines were asked for, and that the interpreter must carry out.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    linear: u64,
    len: usize,
    write: bool,
    split: Split,
}

impl Native {
    /// Returns the pieces of a split access in host memory, if translated code has asked for its lines.
    pub fn served(&self, linear: u64, len: usize, write: bool) -> Option<Split> {
        let served = self.served?;
        let same = (served.linear, served.len, served.write) == (linear, len, write);
        same.then_some(served.split)
    }
}
