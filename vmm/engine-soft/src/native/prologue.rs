//! The prologue of a translation block: it checks the budget and takes the block's instructions from it. In a window, it also fetches the
//! block's instruction lines and counts the block.
//!
//! A short block that ends in a conditional jump back to its own beginning may have two prologues. Then all its operations follow each of
//! them. Other blocks enter at the first prologue, with the flags in memory. The jump back enters at the second (the loop prologue). There
//! the flags can still be rematerialised from the registers of the last comparison ([`super::flags`]). So no iteration of the loop stores
//! the flags.

use std::mem::offset_of;

use iced_x86::{Code, Register};
use nodescope_plugin_api::Counters;

use super::assembler::{LEFT, Label, at_offset, cc, field_of_cpu};
use super::emit::Emitter;
use super::flags::FlagsRematerialisation;
use super::runtime::{Routines, field};
use super::{Left, TranslationBlock};
use crate::cpu::Cpu;
use crate::profile::Record;

use Register::{RAX, RCX};

/// An emitted prologue whose slow paths are still to be emitted.
pub struct Prologue {
    /// The prologue's address.
    start: u64,
    budget: Label,
    fetch: Label,
    fetched: Label,
    lines_missed: Vec<(u64, Label, Label)>,
    /// Instructions that make the flags; None if the flags are in memory.
    rematerialisation: Option<FlagsRematerialisation>,
}

/// The facts about a block that its prologue needs.
#[derive(Clone, Copy)]
pub struct PrologueInputs<'a> {
    pub translation: &'a TranslationBlock,
    /// Physical addresses of the block's instruction lines.
    pub lines: &'a [u64],
    pub routines: Routines,
}

impl Cpu {
    /// Emits a prologue. The guest's flags are in memory, or can be rematerialised.
    pub fn emit_prologue(&self, e: &mut Emitter, block: PrologueInputs<'_>) -> Prologue {
        let translation = block.translation;
        let mut prologue = Prologue {
            start: e.a.here(),
            budget: e.a.label(),
            fetch: e.a.label(),
            fetched: e.a.label(),
            lines_missed: Vec::new(),
            rematerialisation: if e.flags_in_memory {
                None
            } else {
                e.rematerialisation
            },
        };
        let count = i64::from(translation.count);
        e.a.rr(Code::Test_rm64_r64, LEFT, LEFT);
        e.a.jcc(cc::S, prologue.budget);
        match self.by_block {
            false => {
                let step = Left::step(count, count) as i32;
                e.a.ri(Code::Sub_rm64_imm32, LEFT, step);
            }
            true => {
                e.a.constant(RAX, Left::step(self.nominal_cost(count), count) as u64);
                e.a.rr(Code::Sub_r64_rm64, LEFT, RAX);
                e.a.load(RAX, std::mem::offset_of!(Cpu, block_costs));
                let correction = at_offset(RAX, translation.cost.offset());
                e.a.rm(Code::Sub_r64_rm64, LEFT, correction);
            }
        }
        if !self.attached {
            return prologue;
        }
        for line in block.lines {
            let slot = self.instruction_l0.slot_offset(*line) + offset_of!(Cpu, instruction_l0);
            if *line <= i32::MAX as u64 {
                e.a.mi(Code::Cmp_rm64_imm32, field_of_cpu(slot), *line as i32);
            } else {
                e.a.constant(RAX, *line);
                e.a.rm(Code::Cmp_r64_rm64, RAX, field_of_cpu(slot));
            }
            let (other, next) = (e.a.label(), e.a.label());
            e.a.jcc(cc::NE, other);
            e.a.bind(next);
            prologue.lines_missed.push((*line, other, next));
        }
        e.a.bind(prologue.fetched);
        if translation.recorded {
            let executions = translation.site.record_offset() + Record::EXECUTIONS;
            e.a.load(RAX, field!(records));
            e.a.m(Code::Inc_rm64, at_offset(RAX, executions as i64));
            return prologue;
        }
        let packed = translation.packed;
        match i32::try_from(packed) {
            Ok(packed) => {
                e.a.mi(Code::Add_rm64_imm32, field_of_cpu(field!(packed)), packed);
            }
            Err(_) => {
                e.a.constant(RAX, packed);
                e.a.mr(Code::Add_rm64_r64, field_of_cpu(field!(packed)), RAX);
            }
        }
        let counters = offset_of!(Cpu, counters) + translation.privilege * size_of::<Counters>();
        for (class, n) in translation.flops() {
            let flops = counters + offset_of!(Counters, flops) + 8 * class;
            e.a.mi(Code::Add_rm64_imm32, field_of_cpu(flops), n as i32);
        }
        prologue
    }

    /// Emits a prologue's slow paths, for a spent budget and for instruction lines that miss. `exit_number` is the number of the exit that
    /// leads to the block itself.
    pub fn emit_prologue_slow_paths(
        &self,
        e: &mut Emitter,
        prologue: &Prologue,
        block: PrologueInputs<'_>,
        exit_number: u32,
    ) {
        let store_flags = |e: &mut Emitter| {
            if let Some(rematerialisation) = &prologue.rematerialisation {
                e.rematerialise_flags(rematerialisation);
                e.store_flags();
            }
        };
        e.a.bind(prologue.budget);
        store_flags(e);
        e.a.mi(
            Code::Mov_rm32_imm32,
            field_of_cpu(field!(exit)),
            exit_number as i32,
        );
        e.a.constant(RAX, prologue.start);
        e.a.jmp_to(block.routines.budget_spent);
        for &(line, other, next) in &prologue.lines_missed {
            e.a.bind(other);
            let sets = &self.instruction_l0.sets;
            if sets.enabled() {
                let slot = self.instruction_l0.slot_offset(line) + offset_of!(Cpu, instruction_l0);
                e.a.constant(RAX, line);
                e.a.constant(RCX, 8 * sets.ways(sets.set(line)).start as u64);
                let way_lookup = &block.routines.way_lookup;
                e.a.call_to(way_lookup.instruction(sets.way_shift()));
                e.a.jcc(cc::NE, prologue.fetch);
                e.a.store(slot, RAX);
                e.a.jmp(next);
            } else {
                e.a.jmp(prologue.fetch);
            }
        }
        e.a.bind(prologue.fetch);
        if self.attached {
            store_flags(e);
            e.a.constant(RAX, std::ptr::from_ref(block.translation) as u64);
            e.a.call_to(block.routines.fetch);
            e.a.jmp(prologue.fetched);
        } else {
            e.a.bind(prologue.fetched);
        }
    }
}
