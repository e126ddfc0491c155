//! The end of every miss routine: the clock advances, and the line enters the filter as the most recently used of its set.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use nodescope_plugin_api::Counters;

use super::{
    ENTRIES, ENTRY, LANE, LEAST, LINE, LINE_SHIFT, LINES, MissRoutine, SECOND_LEVEL, SETS, STALL,
    STAMPS, STATE,
};
use crate::cpi::Cpi;
use crate::cpu::Cpu;
use crate::filter::{DataFilter, Entry, Known, SecondLevel, Sets, TICK, Writes};
use crate::native::assembler::{Assembler, CPU, LEFT, at_offset, cc, field_of_cpu, indexed_field};
use crate::native::registers::sized;
use crate::native::runtime::field;
use crate::native::{Activity, Budget};

use Register::{EAX, ECX, R10, R11, R11D, RAX, RBX, RDX};

/// An instruction takes a cycle ([`Cpi::value`]).
const ONE: u32 = 1 << 16;

const CLOCK: usize = SETS + offset_of!(Sets, clock);
const KEYS: usize = SECOND_LEVEL + offset_of!(SecondLevel, keys);
const KNOWN: usize = SECOND_LEVEL + offset_of!(SecondLevel, known);
const FORGOTTEN: usize = SECOND_LEVEL + offset_of!(SecondLevel, forgotten);

impl MissRoutine<'_> {
    /// RAX becomes the host address of the operand.
    pub fn enter(&self, a: &mut Assembler) {
        self.new_line(a);
        if self.cpi == ONE {
            self.shorten_budget_by_stall(a);
            self.wait(a);
        } else {
            self.wait(a);
            self.shorten_budget(a);
        }
        self.new_entry(a);
        // What is asked next is worked out now: whoever asks has to wait for it. The lane's own stamp is the greatest.
        self.least(a);
        a.rr(Code::Mov_r32_rm32, R11D, ECX);
        a.ri(Code::Shr_rm32_imm8, R11D, LINE_SHIFT - 3);
        a.mr(Code::Mov_rm64_r64, indexed_field(LEAST, R11), RAX);
        a.m(
            Code::Inc_rm64,
            field_of_cpu(field!(activity) + offset_of!(Activity, served)),
        );
        a.load(RAX, field!(linear));
        a.ri(Code::And_rm32_imm8, EAX, SecondLevel::LINE as i32 - 1);
        a.rr(Code::Add_r64_rm64, RAX, RBX);
    }

    /// As [`Sets::succeed`], but for the least stamp.
    fn new_line(&self, a: &mut Assembler) {
        a.copy(RAX, LINE);
        a.ri(Code::Shl_rm64_imm8, RAX, LINE_SHIFT);
        a.mr(Code::Mov_rm64_r64, indexed_field(LINES, LANE), RAX);
        a.load(RAX, CLOCK);
        a.ri(Code::Add_rm64_imm32, RAX, TICK as i32);
        a.store(CLOCK, RAX);
        a.rr(Code::Add_r64_rm64, RAX, LANE);
        a.mr(Code::Mov_rm64_r64, indexed_field(STAMPS, LANE), RAX);
    }

    /// As [`Cpu::wait`]. [`STALL`] becomes all that the clock has advanced by beside instructions.
    fn wait(&self, a: &mut Assembler) {
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

    /// As [`Cpu::shorten_budget`] where an instruction takes a cycle: each cycle costs one. Where the budget was bounded otherwise, it
    /// ends too soon, and the run loop goes on.
    fn shorten_budget_by_stall(&self, a: &mut Assembler) {
        a.rr(Code::Sub_r64_rm64, LEFT, STALL);
        a.mr(Code::Sub_rm64_r64, field_of_cpu(field!(total)), STALL);
    }

    /// As [`Cpu::shorten_budget`], whose number of operations cancels out. Uses RAX, RDX, R10, R11 and [`STALL`].
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
        let divisor = self.cpi.max(1);
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
        // Less what has retired since, at the head of the block.
        a.rm(Code::Sub_r64_rm64, bound, field_of_cpu(field!(entered_at)));
        a.rm(Code::Sub_r64_rm64, bound, field_of_cpu(field!(total)));
        a.rm(
            Code::Add_r64_rm64,
            bound,
            budget(offset_of!(Budget, retired)),
        );
        a.rr(Code::Add_r64_rm64, bound, LEFT);
        a.copy(RAX, LEFT);
        a.rr(Code::Sub_r64_rm64, RAX, bound);
        a.jcc(cc::LE, kept);
        a.mr(Code::Sub_rm64_r64, field_of_cpu(field!(total)), RAX);
        a.copy(LEFT, bound);
        a.jmp(kept);
        a.bind(over);
        a.rr(Code::Xor_r32_rm32, sized(bound, 4), sized(bound, 4));
        a.jmp(bounded);
        a.bind(kept);
    }

    /// As [`DataFilter`] enters a line that is new in its set. RBX becomes the host address of the line. Uses RAX, RDX, R10 and R11.
    fn new_entry(&self, a: &mut Assembler) {
        let half = |kernel: bool| ENTRIES + DataFilter::LINES[usize::from(kernel)];
        let (own, other) = (half(self.kernel), half(!self.kernel));
        let (host, page, tag, writes) = (RBX, R11, R10, RDX);
        a.load(page, field!(page));
        a.load(tag, field!(linear));
        a.ri(Code::And_rm64_imm8, tag, -(SecondLevel::LINE as i32));
        a.load(host, field!(line_host));
        // As `Writes::of`.
        if self.writes() {
            a.rr(Code::Xor_r32_rm32, sized(writes, 4), sized(writes, 4));
        } else {
            const _: () = assert!(Writes::Exclusive as i32 == super::EXCLUSIVE_STATE);
            const _: () = assert!(Writes::Forbidden as i32 == super::SHARED_STATE);
            a.rm(
                Code::Mov_r64_rm64,
                RAX,
                self.of_page(page, offset_of!(Entry, write)),
            );
            a.rm(
                Code::Cmp_r64_rm64,
                RAX,
                self.of_page(page, offset_of!(Entry, read)),
            );
            a.constant(writes, Writes::Forbidden as u64);
            a.rr(Code::Cmove_r64_rm64, writes, STATE);
        }
        let entry = |half: usize, field: usize| indexed_field(half + field, ENTRY);
        a.mr(Code::Mov_rm64_r64, entry(own, offset_of!(Entry, read)), tag);
        a.copy(RAX, writes);
        a.ri(Code::Shl_rm32_imm8, EAX, LINE_SHIFT);
        a.rr(Code::Xor_r64_rm64, RAX, tag);
        a.mr(
            Code::Mov_rm64_r64,
            entry(own, offset_of!(Entry, write)),
            RAX,
        );
        a.mr(
            Code::Mov_rm64_r64,
            entry(own, offset_of!(Entry, host)),
            host,
        );
        // A lane's offset counts words of eight bytes.
        let known = |field: usize| {
            let at = (KNOWN + field) as i64;
            MemoryOperand::new(CPU, LANE, 4, at, 1, false, Register::None)
        };
        const _: () = assert!(size_of::<Known>() == 32);
        a.mr(Code::Mov_rm64_r64, known(offset_of!(Known, read)), tag);
        a.mr(Code::Mov_rm64_r64, known(offset_of!(Known, write)), RAX);
        a.mr(Code::Mov_rm64_r64, known(offset_of!(Known, host)), host);
        a.copy(RAX, tag);
        a.rr(Code::Mov_r32_rm32, R11D, sized(LANE, 4));
        a.ri(Code::Shr_rm32_imm8, R11D, 1);
        a.ri(Code::Shr_rm64_imm8, RAX, LINE_SHIFT);
        a.mr(Code::Mov_rm32_r32, indexed_field(KEYS, R11), EAX);
        if self.kernel {
            a.rm(Code::Lea_r64_m, RAX, at_offset(tag, 1));
            a.mr(Code::Mov_rm64_r64, known(offset_of!(Known, tag)), RAX);
        } else {
            a.mr(Code::Mov_rm64_r64, known(offset_of!(Known, tag)), tag);
        }
        a.mi(Code::Mov_rm8_imm8, field_of_cpu(FORGOTTEN), 0);
        // An address that belongs to another slot.
        a.ri(Code::Xor_rm64_imm8, tag, SecondLevel::LINE as i32);
        for field in [offset_of!(Entry, read), offset_of!(Entry, write)] {
            a.mr(Code::Mov_rm64_r64, entry(other, field), tag);
        }
    }
}
