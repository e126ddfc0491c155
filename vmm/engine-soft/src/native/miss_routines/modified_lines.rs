//! Lines that were written while the model had them as clean and held by only this cache. Their state in the exported caches is updated
//! before the next reference.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};

use super::{LINE, LINE_SHIFT, MODIFIED_LINES, MODIFIED_STATE, MissRoutine, STATES};
use crate::native::assembler::{Assembler, CPU, Label, at, cc, field_of_cpu, word_of};
use crate::softmmu::ModifiedLines;

use Register::{EAX, R11, R12, R13, RAX, RBX};

impl MissRoutine<'_> {
    /// Records the line of a read with a write behind it as modified. The line's state is updated with the next reference, as if the L0
    /// filter cache had permitted the write. The list has space, since all earlier lines were propagated before.
    pub fn record_modified(&self, a: &mut Assembler) {
        a.copy(RAX, LINE);
        a.ri(Code::Shl_rm64_imm8, RAX, LINE_SHIFT);
        a.store(MODIFIED_LINES + offset_of!(ModifiedLines, lines), RAX);
        let count = field_of_cpu(MODIFIED_LINES + offset_of!(ModifiedLines, count));
        a.mi(Code::Mov_rm64_imm32, count, 1);
    }

    /// Marks the modified lines, whose number is in RAX, as modified in the exported levels, from the first level outward. For each line,
    /// stops at a level that has the line as modified already, or that lacks the line. Continues at `propagated`.
    pub fn propagate_modified(&self, a: &mut Assembler, propagated: Label) {
        let (next, one, line) = (a.label(), a.label(), R11);
        let (word, way) = (R12, R13);
        a.r(Code::Push_r64, way);
        a.copy(RBX, RAX);
        a.bind(one);
        let lines = MODIFIED_LINES + offset_of!(ModifiedLines, lines);
        // RBX counts down to 1.
        let modified = MemoryOperand::new(CPU, RBX, 8, lines as i64 - 8, 1, false, Register::None);
        a.rm(Code::Mov_r64_rm64, line, modified);
        a.ri(Code::Shr_rm64_imm8, line, LINE_SHIFT);
        for cache in [self.data(), self.outer(1), self.outer(2)] {
            let (search, found) = (a.label(), a.label());
            cache.set(a, line, word);
            cache.tag(a, line);
            // Outside the first level the line is usually the most recently used line of its set.
            cache.is_tag(a, at(word), way, search);
            a.bind(found);
            a.rm(Code::Mov_r32_rm32, EAX, at(word));
            a.ri(Code::And_rm32_imm8, EAX, STATES);
            a.ri(Code::Cmp_rm32_imm8, EAX, MODIFIED_STATE);
            a.jcc(cc::E, next);
            a.mi(Code::And_rm32_imm8, at(word), !STATES);
            a.mi(Code::Or_rm32_imm8, at(word), MODIFIED_STATE);
            let level_done = a.label();
            a.jmp(level_done);
            a.bind(search);
            cache.look_for(a);
            cache.find(a, word, way, next);
            a.rm(Code::Lea_r64_m, word, word_of(word, way));
            a.jmp(found);
            a.bind(level_done);
        }
        a.bind(next);
        a.ri(Code::Sub_rm64_imm8, RBX, 1);
        a.jcc(cc::NE, one);
        a.r(Code::Pop_r64, way);
        a.store(MODIFIED_LINES + offset_of!(ModifiedLines, count), RBX);
        a.jmp(propagated);
    }
}
