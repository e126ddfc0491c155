//! End of every miss routine: the clock advances, and the line enters the L0 filter cache as the most recently used line of its set.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use nodescope_plugin_api::Counters;

use super::describe::ONE;
use super::{
    DIRECTORY, ENTRIES, ENTRY, LINE_SHIFT, LINES, MODIFIED_COUNT, MODIFIED_LINES, MissRoutine,
    OLDEST_STAMPS, SETS, STALL, STAMPS, WAY, WRITES,
};
use crate::cpi::Cpi;
use crate::cpu::Cpu;
use crate::native::Left;
use crate::native::assembler::{Assembler, CPU, LEFT, at_offset, cc, field_of_cpu, indexed_field};
use crate::native::registers::sized;
use crate::native::runtime::field;
use crate::native::way_lookup::DataAccess;
use crate::native::{Activity, Budget};
use crate::softmmu::{
    DataTlb, LruSets, ModifiedLines, TICK, TlbEntry, WayDirectory, WayEntry, WritePermission,
};

use Register::{EAX, ECX, R10, R10D, R11, R11D, RAX, RDX};

const CLOCK: usize = SETS + offset_of!(LruSets, clock);
const KEYS: usize = DIRECTORY + offset_of!(WayDirectory, keys);
const WAY_ENTRIES: usize = DIRECTORY + offset_of!(WayDirectory, entries);
const NO_TAGS: usize = DIRECTORY + offset_of!(WayDirectory, no_tags);

impl MissRoutine {
    /// Assembles the end of a miss routine. RAX becomes the host address of the operand. RAX becomes zero if the operand is read and then
    /// written, and the answer does not permit the write: then the write is still to be reported, and the read finds the line.
    pub fn fill(&self, a: &mut Assembler) {
        self.permit_writes(a);
        self.new_line(a);
        match self.work_per_cycle() {
            Some(shift) => {
                self.shorten_budget_by_stall(a, shift);
                self.add_stall(a);
            }
            None => {
                self.add_stall(a);
                self.shorten_budget(a);
            }
        }
        self.new_tlb_entry(a);
        self.first_way(a);
        // Compute the set's oldest stamp now: the next miss reads this stamp first and need not wait for it. The new line's stamp is the
        // youngest.
        self.oldest_stamp(a);
        a.rr(Code::Mov_r32_rm32, R11D, ECX);
        a.ri(Code::Shr_rm32_imm8, R11D, LINE_SHIFT - 3);
        a.mr(Code::Mov_rm64_r64, indexed_field(OLDEST_STAMPS, R11), RAX);
        a.m(
            Code::Inc_rm64,
            field_of_cpu(field!(activity) + offset_of!(Activity, served)),
        );
        a.load(RAX, field!(linear));
        a.ri(Code::And_rm32_imm8, EAX, WayDirectory::LINE as i32 - 1);
        a.rr(Code::Add_r64_rm64, RAX, RDX);
        if self.access == DataAccess::ReadWrite {
            a.rr(Code::Xor_r32_rm32, R10D, R10D);
            let denied = WritePermission::Denied as i32;
            a.ri(Code::Cmp_rm32_imm8, sized(WRITES, 4), denied);
            a.rr(Code::Cmove_r64_rm64, RAX, R10);
        }
    }

    /// Computes [`WRITES`], whose value is for a page that may be written. The page of an access that writes is known to be writable. A
    /// line that is written next becomes modified as [`DataTlb::promote`] does it; the list of these lines is empty. Uses RAX and R11.
    fn permit_writes(&self, a: &mut Assembler) {
        let writes = sized(WRITES, 4);
        match self.access {
            DataAccess::Read => {
                let page = R11;
                a.load(page, field!(page));
                let write = self.of_page(page, offset_of!(TlbEntry, write));
                a.rm(Code::Mov_r64_rm64, RAX, write);
                let read = self.of_page(page, offset_of!(TlbEntry, read));
                a.rm(Code::Cmp_r64_rm64, RAX, read);
                a.constant(RAX, WritePermission::Denied as u64);
                a.rr(Code::Cmovne_r32_rm32, writes, EAX);
            }
            DataAccess::Write => {}
            DataAccess::ReadWrite => {
                let known = a.label();
                let exclusive = WritePermission::Exclusive as i32;
                a.ri(Code::Cmp_rm32_imm8, writes, exclusive);
                a.jcc(cc::NE, known);
                self.line(a);
                a.store(MODIFIED_LINES + offset_of!(ModifiedLines, lines), RAX);
                a.mi(Code::Mov_rm64_imm32, field_of_cpu(MODIFIED_COUNT), 1);
                a.constant(WRITES, WritePermission::Allowed as u64);
                a.bind(known);
            }
        }
    }

    /// Loads the physical address of the wanted line into RAX.
    fn line(&self, a: &mut Assembler) {
        a.load(RAX, field!(direct.miss.reference.physical));
        a.ri(Code::And_rm64_imm8, RAX, -(1 << LINE_SHIFT));
    }

    /// Does the work of [`LruSets::fill_at`]. Uses RAX.
    fn new_line(&self, a: &mut Assembler) {
        self.line(a);
        a.mr(Code::Mov_rm64_r64, indexed_field(LINES, WAY), RAX);
        a.load(RAX, CLOCK);
        a.ri(Code::Add_rm64_imm32, RAX, TICK as i32);
        a.store(CLOCK, RAX);
        a.rr(Code::Add_r64_rm64, RAX, WAY);
        a.mr(Code::Mov_rm64_r64, indexed_field(STAMPS, WAY), RAX);
    }

    /// Does the work of [`Cpu::add_stall`]. [`STALL`] then has the new value of [`Cpu::stall`].
    fn add_stall(&self, a: &mut Assembler) {
        let counters = offset_of!(Cpu, counters)
            + size_of::<Counters>() * usize::from(self.kernel)
            + offset_of!(Counters, stall_cycles);
        for sum in [counters, offset_of!(Cpu, model_stall)] {
            a.mr(Code::Add_rm64_r64, field_of_cpu(sum), STALL);
        }
        let stall = offset_of!(Cpu, stall);
        a.rm(Code::Add_r64_rm64, STALL, field_of_cpu(stall));
        a.store(stall, STALL);
    }

    /// Returns log2 of the units of work in a cycle, if work is counted in cycles or, where blocks have costs of their own, in sixteenths.
    fn work_per_cycle(&self) -> Option<i32> {
        match self.parameters.by_block {
            true => Some((ONE / Cpi::SIXTEENTH.value()).trailing_zeros() as i32),
            false => (self.parameters.cpi == ONE).then_some(0),
        }
    }

    /// Does the work of [`Cpu::shorten_budget`] where a cycle is `1 << shift` units of work: takes the work of all stall cycles from the
    /// budget. A budget with another bound than cycles ends too soon then, and the run loop continues. Uses RAX.
    fn shorten_budget_by_stall(&self, a: &mut Assembler, shift: i32) {
        a.copy(RAX, STALL);
        if shift > 0 {
            a.ri(Code::Shl_rm64_imm8, RAX, shift);
        }
        a.mr(Code::Sub_rm64_r64, field_of_cpu(field!(total)), RAX);
        a.ri(Code::Shl_rm64_imm8, RAX, Left::BITS as i32);
        a.rr(Code::Sub_r64_rm64, LEFT, RAX);
    }

    /// Does the work of [`Cpu::shorten_budget`] for any number of cycles per instruction. The block's number of operations cancels out.
    /// Uses RAX, RDX, R10, R11 and [`STALL`].
    fn shorten_budget(&self, a: &mut Assembler) {
        let budget = |field: usize| field_of_cpu(field!(budget) + field);
        let (cycles, cpi, bound, spent) = (RDX, R10, R11, STALL);
        let (over, bounded, kept) = (a.label(), a.label(), a.label());
        a.rm(Code::Sub_r64_rm64, spent, budget(offset_of!(Budget, stall)));
        a.ri(Code::Shl_rm64_imm8, spent, 16);
        a.rm(
            Code::Mov_r64_rm64,
            cycles,
            budget(offset_of!(Budget, cycles)),
        );
        a.rr(Code::Sub_r64_rm64, cycles, spent);
        a.jcc(cc::LE, over);
        // As `Cpi::instructions`.
        let divisor = self.parameters.cpi.max(1);
        if divisor.is_power_of_two() {
            let shift = divisor.trailing_zeros() as i32;
            let rounded = at_offset(cycles, i64::from(divisor) - 1);
            a.rm(Code::Lea_r64_m, bound, rounded);
            a.ri(Code::Shr_rm64_imm8, bound, shift);
        } else {
            a.constant(cpi, divisor.into());
            let dividend = MemoryOperand::new(cycles, cpi, 1, -1, 1, false, Register::None);
            a.rm(Code::Lea_r64_m, cycles, dividend);
            let reciprocal = field_of_cpu(offset_of!(Cpu, cpi) + Cpi::RECIPROCAL);
            a.rrm(Code::VEX_Mulx_r64_r64_rm64, bound, RAX, reciprocal);
            a.rr(Code::Mov_r64_rm64, RAX, bound);
            a.rr(Code::Imul_r64_rm64, RAX, cpi);
            a.rr(Code::Sub_r64_rm64, cycles, RAX);
            a.rr(Code::Cmp_r64_rm64, cycles, cpi);
            a.ri(Code::Sbb_rm64_imm8, bound, -1);
        }
        let most = budget(offset_of!(Budget, instructions));
        a.rm(Code::Cmp_r64_rm64, bound, most);
        a.rm(Code::Cmovg_r64_rm64, bound, most);
        a.bind(bounded);
        // Subtract the instructions that retired from the budget's beginning up to the end of this block.
        a.rm(Code::Sub_r64_rm64, bound, field_of_cpu(field!(entered_at)));
        a.rm(
            Code::Add_r64_rm64,
            bound,
            budget(offset_of!(Budget, retired)),
        );
        a.rr(Code::Mov_r32_rm32, EAX, sized(LEFT, 4));
        a.ri(Code::And_rm32_imm32, EAX, Left::INSTRUCTIONS as i32);
        a.rr(Code::Sub_r64_rm64, bound, RAX);
        a.copy(RAX, LEFT);
        a.ri(Code::Sar_rm64_imm8, RAX, Left::BITS as i32);
        a.rr(Code::Sub_r64_rm64, RAX, bound);
        a.ri(Code::Add_rm64_imm8, RAX, 1);
        a.jcc(cc::LE, kept);
        a.mr(Code::Sub_rm64_r64, field_of_cpu(field!(total)), RAX);
        a.ri(Code::Shl_rm64_imm8, RAX, Left::BITS as i32);
        a.rr(Code::Sub_r64_rm64, LEFT, RAX);
        a.jmp(kept);
        a.bind(over);
        a.rr(Code::Xor_r32_rm32, sized(bound, 4), sized(bound, 4));
        a.jmp(bounded);
        a.bind(kept);
    }

    /// Enters the line into [`DataTlb`] as a new line of its set. RDX becomes the host address of the line. Uses RAX, R10 and R11.
    fn new_tlb_entry(&self, a: &mut Assembler) {
        let half = |kernel: bool| ENTRIES + DataTlb::LINES[usize::from(kernel)];
        let (own, other) = (half(self.kernel), half(!self.kernel));
        let (host, tag) = (RDX, R10);
        a.load(tag, field!(linear));
        a.ri(Code::And_rm64_imm8, tag, -(WayDirectory::LINE as i32));
        a.load(host, field!(line_host));
        let entry = |half: usize, field: usize| indexed_field(half + field, ENTRY);
        a.mr(
            Code::Mov_rm64_r64,
            entry(own, offset_of!(TlbEntry, read)),
            tag,
        );
        a.copy(RAX, WRITES);
        a.ri(Code::Shl_rm32_imm8, EAX, LINE_SHIFT);
        a.rr(Code::Xor_r64_rm64, RAX, tag);
        a.mr(
            Code::Mov_rm64_r64,
            entry(own, offset_of!(TlbEntry, write)),
            RAX,
        );
        a.mr(
            Code::Mov_rm64_r64,
            entry(own, offset_of!(TlbEntry, host)),
            host,
        );
        // WAY is a byte offset among words of 8 bytes; an entry is four times as large.
        let way_entry = |field: usize| {
            let at = (WAY_ENTRIES + field) as i64;
            MemoryOperand::new(CPU, WAY, 4, at, 1, false, Register::None)
        };
        const _: () = assert!(size_of::<WayEntry>() == 32);
        a.mr(
            Code::Mov_rm64_r64,
            way_entry(offset_of!(WayEntry, read)),
            tag,
        );
        a.mr(
            Code::Mov_rm64_r64,
            way_entry(offset_of!(WayEntry, write)),
            RAX,
        );
        a.mr(
            Code::Mov_rm64_r64,
            way_entry(offset_of!(WayEntry, host)),
            host,
        );
        a.copy(RAX, tag);
        a.rr(Code::Mov_r32_rm32, R11D, sized(WAY, 4));
        a.ri(Code::Shr_rm32_imm8, R11D, 1);
        a.ri(Code::Shr_rm64_imm8, RAX, LINE_SHIFT);
        a.mr(Code::Mov_rm32_r32, indexed_field(KEYS, R11), EAX);
        if self.kernel {
            a.rm(Code::Lea_r64_m, RAX, at_offset(tag, 1));
            a.mr(
                Code::Mov_rm64_r64,
                way_entry(offset_of!(WayEntry, tag)),
                RAX,
            );
        } else {
            a.mr(
                Code::Mov_rm64_r64,
                way_entry(offset_of!(WayEntry, tag)),
                tag,
            );
        }
        a.mi(Code::Mov_rm8_imm8, field_of_cpu(NO_TAGS), 0);
        // Invalidate the entry of the other privilege: its tags become an address that belongs to another slot.
        a.ri(Code::Xor_rm64_imm8, tag, WayDirectory::LINE as i32);
        for field in [offset_of!(TlbEntry, read), offset_of!(TlbEntry, write)] {
            a.mr(Code::Mov_rm64_r64, entry(other, field), tag);
        }
    }
}
