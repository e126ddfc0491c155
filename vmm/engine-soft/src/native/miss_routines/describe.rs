//! Beginning of every miss routine: the line that is replaced, the page of the wanted line, and the description of the miss for the model.

use std::mem::offset_of;

use iced_x86::{Code, Register};
use nodescope_plugin_api::{Access, Privilege};
use nodescope_x86::Time;

use super::{
    FIRST_WAY, LINE_SHIFT, LINES, MODIFIED_COUNT, MissRoutine, OLDEST_STAMPS, PAGE, STAMPS, VICTIM,
    WAY, field,
};
use crate::cpu::Cpu;
use crate::native::Left;
use crate::native::access::{COUNT, LOCKED, NON_TEMPORAL};
use crate::native::assembler::{Assembler, LEFT, Label, at, cc, field_of_cpu, indexed_field};
use crate::native::registers::sized;
use crate::native::runtime::add_record_offset;
use crate::native::way_lookup::DataAccess;
use crate::profile::Record;
use crate::site::RunningSite;
use crate::softmmu::{DataTlb, NO_LINE, TICK, TlbEntry};

use Register::{AL, EAX, ECX, EDI, EDX, K1, K2, R8D, R11, R11D, RAX, RDI, RDX, YMM16};

/// Value of [`crate::cpi::Cpi::value`] at which an instruction takes one cycle.
pub const ONE: u32 = 1 << 16;

/// Labels that connect the in-line code of [`MissRoutine::find`] with its out-of-line code.
pub struct FindLabels {
    recompute: Label,
    oldest: Label,
    large: Label,
    mapped: Label,
}

/// Memory operand of a field of the miss.
macro_rules! of_miss {
    ($($f:tt)+) => { field_of_cpu(field!(direct.miss.$($f)+)) };
}

impl MissRoutine {
    /// Finds the way that the wanted line gets, the line that is replaced, and the page of the wanted line. Jumps to `slow` if there are
    /// none, or the set already has the line. RDX becomes the physical address of the access, RAX is used.
    pub fn find(&self, a: &mut Assembler) -> FindLabels {
        let [recompute, oldest, large, mapped] = [(); 4].map(|()| a.label());
        self.first_way(a);
        a.rr(Code::Mov_r32_rm32, R11D, ECX);
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
        a.rm(Code::Sub_r64_rm64, R11, self.of_page(PAGE, self.tag()));
        a.ri(Code::Cmp_rm64_imm32, R11, DataTlb::PAGE_SIZES[0] as i32);
        a.jcc(cc::AE, large);
        a.bind(mapped);
        a.mr(Code::Mov_rm64_r64, of_miss!(reference.linear), RAX);
        // The host loads the guest's data while the model works.
        let host = self.of_page(PAGE, offset_of!(TlbEntry, host));
        a.rm(Code::Mov_r64_rm64, RDI, host);
        a.rr(Code::Add_r64_rm64, RDI, R11);
        a.ri(Code::And_rm64_imm8, RDI, -(1 << LINE_SHIFT));
        let prefetch = match self.access {
            DataAccess::Read => Code::Prefetcht0_m8,
            _ => Code::Prefetchw_m8,
        };
        a.m(prefetch, at(RDI));
        a.store(field!(line_host), RDI);
        a.store(field!(page), PAGE);
        let physical = self.of_page(PAGE, offset_of!(TlbEntry, physical));
        a.rm(Code::Mov_r64_rm64, RDX, physical);
        a.rr(Code::Add_r64_rm64, RDX, R11);
        a.copy(RAX, RDX);
        a.ri(Code::And_rm64_imm8, RAX, -(1 << LINE_SHIFT));
        self.check_absent(a);
        FindLabels {
            recompute,
            oldest,
            large,
            mapped,
        }
    }

    /// Jumps to `slow` if the set already has the line (physical address in RAX), for another linear address or the other privilege.
    fn check_absent(&self, a: &mut Assembler) {
        let ways = 1 << self.parameters.way_shift;
        if !self.host.avx512 {
            for way in 0..ways {
                let line = indexed_field(LINES + 8 * way, FIRST_WAY);
                a.mr(Code::Cmp_rm64_r64, line, RAX);
                a.jcc(cc::E, self.slow);
            }
            return;
        }
        // No guest has these vector and mask registers. Vectors of 32 bytes: for wider ones, hosts lower their frequency.
        a.rr(Code::EVEX_Vpbroadcastq_ymm_k1z_r64, YMM16, RAX);
        for four in 0..ways / 4 {
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
    }

    /// Assembles the out-of-line code of [`MissRoutine::find`].
    pub fn find_out_of_line(&self, a: &mut Assembler, labels: FindLabels) {
        a.bind(labels.recompute);
        self.oldest_stamp(a);
        a.rr(Code::Mov_r32_rm32, R8D, EAX);
        a.ri(Code::And_rm32_imm32, R8D, TICK as i32 - 1);
        a.jmp(labels.oldest);
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

    /// Describes the miss, whose physical address is in RDX. A read with a write behind it misses as a read. Each field is stored in its
    /// own size, so that the host forwards it to the model's loads. Uses RAX, RDX, RDI and R11.
    pub fn describe(&self, a: &mut Assembler) {
        a.mr(Code::Mov_rm64_r64, of_miss!(reference.physical), RDX);
        a.mr(Code::Mov_rm64_r64, of_miss!(oldest), VICTIM);
        let privilege = if self.kernel {
            Privilege::Kernel
        } else {
            Privilege::User
        };
        let access = match self.access {
            DataAccess::Write => Access::Write,
            _ => Access::Read,
        };
        a.mi(
            Code::Mov_rm8_imm8,
            of_miss!(reference.privilege),
            privilege as i32,
        );
        a.mi(
            Code::Mov_rm8_imm8,
            of_miss!(reference.access),
            access as i32,
        );
        let context = field_of_cpu(offset_of!(Cpu, context));
        a.rm(Code::Mov_r32_rm32, EAX, context);
        a.mr(Code::Mov_rm32_r32, of_miss!(reference.context), EAX);
        a.rm(Code::Mov_r32_rm32, EDI, field_of_cpu(field!(described)));
        a.rr(Code::Movzx_r32_rm8, EAX, sized(RDI, 1));
        a.mr(Code::Mov_rm32_r32, of_miss!(reference.size), EAX);
        // Only a write can be non-temporal, and only a read with a write behind it locked.
        let non_temporal = (access == Access::Write).then_some(NON_TEMPORAL);
        let locked = (self.access == DataAccess::ReadWrite).then_some(LOCKED);
        for (field, bit) in [
            (of_miss!(reference.non_temporal), non_temporal),
            (of_miss!(reference.locked), locked),
        ] {
            if let Some(bit) = bit {
                a.rr(Code::Mov_r32_rm32, EAX, EDI);
                a.ri(Code::Shr_rm32_imm8, EAX, bit as i32);
                a.ri(Code::And_rm32_imm8, EAX, 1);
                a.mr(Code::Mov_rm8_r8, field, AL);
            } else {
                a.mi(Code::Mov_rm8_imm8, field, 0);
            }
        }
        self.now(a);
        self.site(a);
        a.load(RAX, MODIFIED_COUNT);
        a.mr(Code::Mov_rm64_r64, of_miss!(modified_count), RAX);
        if self.parameters.profiling {
            a.load(RAX, field!(records));
            add_record_offset(a, RAX, RDX);
            a.ri(Code::Add_rm64_imm32, RAX, Record::CHARGES as i32);
            a.mr(Code::Mov_rm64_r64, of_miss!(charges), RAX);
        }
    }

    /// Computes the clock as [`Cpu::now_at_block_start`] does. EDI describes the access. Uses RAX, RDX and RDI.
    fn now(&self, a: &mut Assembler) {
        let time = |field: usize| field_of_cpu(offset_of!(Cpu, time) + field);
        let work = RAX;
        if self.parameters.by_block {
            // As `Native::work`.
            a.copy(RDX, LEFT);
            a.ri(Code::Sar_rm64_imm8, RDX, Left::BITS as i32);
            a.load(work, field!(total));
            a.rr(Code::Sub_r64_rm64, work, RDX);
            a.ri(Code::Sub_rm64_imm8, work, 1);
            a.rm(Code::Add_r64_rm64, work, field_of_cpu(field!(entered_work)));
        } else {
            // The instructions that retired before the block.
            a.load(work, field!(entered_at));
            a.rr(Code::Mov_r32_rm32, EDX, sized(LEFT, 4));
            a.ri(Code::And_rm32_imm32, EDX, Left::INSTRUCTIONS as i32);
            a.rr(Code::Add_r64_rm64, work, RDX);
            a.ri(Code::Shr_rm32_imm8, EDI, COUNT as i32);
            a.rr(Code::Sub_r64_rm64, work, RDI);
        }
        // With one cycle for each unit of work, the fraction of a cycle never becomes a cycle.
        if self.parameters.cpi != ONE {
            a.constant(RDX, self.parameters.cpi.into());
            a.rr(Code::Imul_r64_rm64, work, RDX);
            let fraction = time(offset_of!(Time, cycle_fraction));
            a.rm(Code::Mov_r32_rm32, EDX, fraction);
            a.rr(Code::Add_r64_rm64, work, RDX);
            a.ri(Code::Shr_rm64_imm8, work, 16);
        }
        let stall = field_of_cpu(offset_of!(Cpu, stall));
        a.rm(Code::Add_r64_rm64, RAX, stall);
        a.rm(Code::Add_r64_rm64, RAX, time(offset_of!(Time, cycles)));
        a.mr(Code::Mov_rm64_r64, of_miss!(reference.now), RAX);
    }

    /// Stores the site of the operation, as [`RunningSite::site`] gives it. Uses RAX and RDX.
    fn site(&self, a: &mut Assembler) {
        a.rm(Code::Mov_r32_rm32, EAX, field_of_cpu(field!(site)));
        a.rr(Code::Mov_r32_rm32, EDX, EAX);
        a.ri(
            Code::And_rm32_imm32,
            EAX,
            (1 << RunningSite::BLOCK_BITS) - 1,
        );
        a.ri(Code::Shr_rm32_imm8, EDX, RunningSite::BLOCK_BITS as i32);
        a.mr(Code::Mov_rm32_r32, of_miss!(reference.site.block), EAX);
        a.mr(Code::Mov_rm32_r32, of_miss!(reference.site.operation), EDX);
    }
}

const _: () = {
    use nodescope_plugin_api::Context;
    assert!(size_of::<Context>() == 4 && size_of::<Privilege>() == 1 && size_of::<Access>() == 1);
};
