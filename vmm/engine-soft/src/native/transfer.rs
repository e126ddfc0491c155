//! Templates of SYSCALL and SYSRET. After them, translated code of the other privilege continues without the run loop, under the conditions
//! of [`Cpu::continue_with_next_block`].

use iced_x86::{Code, Register};
use nodescope_x86::bits::{efer, rflags};
use nodescope_x86::state::{Events, Segment, seg};

use super::Budget;
use super::assembler::{Label, cc, field_of_cpu};
use super::emit::Emitter;
use super::jump_cache;
use super::registers::HOST;
use super::runtime::{field, gpr};
use crate::cpu::{Cpu, Mode};
use crate::softmmu::DataTlb;

use std::mem::offset_of;

use Register::{AX, CX, EAX, ECX, RAX, RCX};

const RFLAGS: usize = offset_of!(Cpu, rflags);
const EFER: usize = offset_of!(Cpu, control) + offset_of!(nodescope_x86::Control, efer);

/// Returns the offset of an MSR's value.
macro_rules! msr {
    ($f:ident) => {
        offset_of!(Cpu, msrs) + offset_of!(nodescope_x86::Msrs, $f)
    };
}

/// Flags that SYSRET takes from R11 (SDM vol. 2B).
const RETURNED: u64 = 0x3c_7fd7 & !rflags::RF;

/// The privilege after SYSCALL (kernel) or SYSRET (user).
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Kernel,
    User,
}

impl Emitter {
    /// Emits SYSCALL in user code; `next` is the address of the next instruction.
    pub fn system_call(&mut self, next: u64, operation: usize) {
        let interpret = self.begin_transfer(operation);
        // The interpreter handles a target that is not canonical.
        self.a.load(RCX, msr!(lstar));
        self.leave_unless_canonical(interpret);
        self.flags_without(rflags::RF);
        self.a.store(gpr(11), RCX);
        let rcx = HOST[1].expect("RCX has a host register");
        self.a.constant(rcx, next);
        self.a.load(RAX, msr!(sfmask));
        self.a.r(Code::Not_rm64, RAX);
        self.a.rr(Code::And_r64_rm64, RAX, RCX);
        self.set_flags();
        self.a.load(RCX, msr!(star));
        self.a.ri(Code::Shr_rm64_imm8, RCX, 32);
        self.a.ri(Code::And_rm32_imm8, ECX, !3);
        self.set_segments(8, To::Kernel);
        self.a.load(RCX, msr!(lstar));
        self.end_transfer(To::Kernel);
        self.resume_by_interpreter(operation);
    }

    /// Emits SYSRET to 64-bit code, in kernel code.
    pub fn system_return(&mut self, operation: usize) {
        let interpret = self.begin_transfer(operation);
        self.a
            .mi(Code::Cmp_rm8_imm8, field_of_cpu(offset_of!(Cpu, cpl)), 0);
        self.a.jcc(cc::NE, interpret);
        let rcx = HOST[1].expect("RCX has a host register");
        self.a.copy(RCX, rcx);
        self.leave_unless_canonical(interpret);
        self.a.load(RAX, gpr(11));
        // The run loop handles single steps.
        self.a.ri(Code::Test_EAX_imm32, EAX, rflags::TF as i32);
        self.a.jcc(cc::NE, interpret);
        self.a.ri(Code::And_rm64_imm32, RAX, RETURNED as i32);
        self.set_flags();
        self.a.load(RCX, msr!(star));
        self.a.ri(Code::Shr_rm64_imm8, RCX, 48);
        self.a.ri(Code::Add_rm32_imm8, ECX, 16);
        self.a.ri(Code::Or_rm32_imm8, ECX, 3);
        self.set_segments(-8, To::User);
        self.a.copy(RCX, rcx);
        self.end_transfer(To::User);
        self.resume_by_interpreter(operation);
    }

    /// Emits the checks of a transfer: the interpreter carries out the instruction where the run loop would have something to do. Brings
    /// the guest's flags to memory.
    fn begin_transfer(&mut self, operation: usize) -> Label {
        self.clobber_flags();
        self.save_flags();
        let interpret = self.interpreter_entry(operation);
        let trap = rflags::TF as i32;
        self.a
            .mi(Code::Test_rm32_imm32, field_of_cpu(EFER), efer::SCE as i32);
        self.a.jcc(cc::E, interpret);
        self.a.mi(Code::Test_rm32_imm32, field_of_cpu(RFLAGS), trap);
        self.a.jcc(cc::NE, interpret);
        let pending = offset_of!(Cpu, events) + offset_of!(Events, nmi_pending);
        self.a.mi(Code::Cmp_rm8_imm8, field_of_cpu(pending), 0);
        self.a.jcc(cc::NE, interpret);
        // The budget must end in time for the next interrupt.
        let deliver = field!(budget) + offset_of!(Budget, deliver);
        for flag in [deliver, field!(ends_at_interrupt)] {
            self.a.mi(Code::Cmp_rm8_imm8, field_of_cpu(flag), 0);
            self.a.jcc(cc::E, interpret);
        }
        interpret
    }

    /// Emits a jump to `interpret` where RCX is not canonical. Uses RAX and flags.
    pub fn leave_unless_canonical(&mut self, interpret: Label) {
        self.a.copy(RAX, RCX);
        self.a.ri(Code::Shl_rm64_imm8, RAX, 16);
        self.a.ri(Code::Sar_rm64_imm8, RAX, 16);
        self.a.rr(Code::Cmp_r64_rm64, RAX, RCX);
        self.a.jcc(cc::NE, interpret);
    }

    /// Emits a load of RFLAGS from RAX. Uses RAX and RCX.
    fn set_flags(&mut self) {
        self.a.ri(Code::Or_rm64_imm8, RAX, rflags::FIXED as i32);
        self.a.store(RFLAGS, RAX);
        // Pack the status flags as `Native::pack_flags` does.
        self.a.rr(Code::Mov_r32_rm32, ECX, EAX);
        self.a.ri(Code::Shr_rm32_imm8, EAX, 11);
        self.a.ri(Code::And_rm32_imm8, EAX, 1);
        self.a.ri(Code::And_rm32_imm32, ECX, 0xd5);
        self.a.ri(Code::Shl_rm32_imm8, ECX, 8);
        self.a.rr(Code::Or_r32_rm32, EAX, ECX);
        self.a
            .mr(Code::Mov_rm16_r16, field_of_cpu(field!(flags)), AX);
    }

    /// Emits a load of CS with the selector in CX, and of SS with that selector plus `stack`. Uses RCX.
    fn set_segments(&mut self, stack: i32, to: To) {
        let dpl = if to == To::User { 3 } else { 0 };
        for (segment, code) in [(seg::CS, true), (seg::SS, false)] {
            let flat = Cpu::flat_segment(0, code, code, dpl);
            let at = |field: usize| {
                let data = offset_of!(Cpu, segments) + offset_of!(nodescope_x86::Segments, data);
                field_of_cpu(data + segment * size_of::<Segment>() + field)
            };
            if !code {
                self.a.ri(Code::Add_rm32_imm8, ECX, stack);
            }
            self.a
                .mr(Code::Mov_rm16_r16, at(offset_of!(Segment, selector)), CX);
            self.a.mi(
                Code::Mov_rm64_imm32,
                at(offset_of!(Segment, base)),
                flat.base as i32,
            );
            self.a.mi(
                Code::Mov_rm32_imm32,
                at(offset_of!(Segment, limit)),
                flat.limit as i32,
            );
            let attributes = at(offset_of!(Segment, attributes));
            self.a
                .mi(Code::Mov_rm16_imm16, attributes, flat.attributes.into());
            self.a
                .mi(Code::Mov_rm8_imm8, at(offset_of!(Segment, unusable)), 0);
        }
    }

    /// Emits the change of privilege, with the effects of `Cpu::refresh_mode`, and a jump to the code for the address in RCX. The mode and
    /// the segment bases do not change.
    fn end_transfer(&mut self, to: To) {
        let (kernel, cpl) = (to == To::Kernel, if to == To::Kernel { 0 } else { 3 });
        let key = Cpu::key_of(Mode::Bits64, cpl);
        self.a.mi(
            Code::Mov_rm8_imm8,
            field_of_cpu(offset_of!(Cpu, cpl)),
            cpl.into(),
        );
        let code_key = offset_of!(Cpu, code_key);
        self.a
            .mi(Code::Mov_rm8_imm8, field_of_cpu(code_key), key.into());
        let privilege = i32::from(kernel);
        self.a.mi(
            Code::Mov_rm64_imm32,
            field_of_cpu(field!(privilege)),
            privilege,
        );
        let data_tlb = offset_of!(Cpu, data_tlb);
        for (field, value) in DataTlb::of_privilege_without_model(kernel) {
            self.a
                .mi(Code::Mov_rm64_imm32, field_of_cpu(data_tlb + field), value);
        }
        let table = usize::from(!kernel);
        jump_cache::emit_l1_lookup(&mut self.a, table);
        self.a.jmp_to(self.routines.leave_indirect[table]);
    }
}
