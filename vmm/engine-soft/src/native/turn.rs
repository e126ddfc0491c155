//! Turns that follow each other within translated code: where the budget is spent at the head of a block, and the platform has
//! nothing to do with the vCPU, a new one is worked out there, and neither the guest's registers nor the run loop are left.

use iced_x86::{Code, Register};
use nodescope_x86::bits::rflags;
use nodescope_x86::state::InterruptShadow;

use std::mem::offset_of;

use super::access::{changed_registers, store_vectors, take_vectors};
use super::assembler::{Assembler, CPU, LEFT, cc, field_of_cpu};
use super::runtime::{MXCSR, field, gpr, save_mxcsr, upper_half};
use super::{Budget, Host, LONGEST};
use crate::cpu::Cpu;
use crate::turn::Turn;

use Register::{EAX, RAX, RDI, XMM0};

const EXTENDS: usize = offset_of!(Cpu, turn) + offset_of!(Turn, extends);

/// The routine that a block's head jumps to where [`LEFT`] is spent, with the flags in memory, the exit that leads to the block itself in
/// [`super::Native::exit`], and its own address in RAX: it goes back with more, or leaves, by the routine at `leave`.
///
/// It is not called, since the host foretells where functions return to by the calls that there were, and leaving would be one too many.
pub fn routine(a: &mut Assembler, host: Host, leave: u64) -> u64 {
    let start = a.here();
    let [refused, scalar, narrow, wide, done] = [(); 5].map(|()| a.label());
    a.mi(Code::Cmp_rm8_imm8, field_of_cpu(EXTENDS), 0);
    a.jcc_to(cc::E, leave);
    a.store(field!(next), RAX);
    for (n, host) in changed_registers() {
        a.store(gpr(n), host);
    }
    a.store(field!(left), LEFT);
    let call = |a: &mut Assembler| {
        a.copy(RDI, CPU);
        a.constant(RAX, self::run_on as *const () as u64);
        a.r(Code::Call_rm64, RAX);
        a.rr(Code::Test_rm32_r32, EAX, EAX);
    };
    let load_registers = |a: &mut Assembler| {
        a.load(LEFT, field!(left));
        for (n, host) in changed_registers() {
            a.load(host, gpr(n));
        }
    };
    a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_live)), 0);
    a.jcc(cc::E, scalar);
    if host.avx {
        a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_wide)), 0);
        a.jcc(cc::NE, wide);
        for is_wide in [false, true] {
            if is_wide {
                a.bind(wide);
            }
            store_vectors(a, is_wide);
            save_mxcsr(a);
            call(a);
            a.jcc(cc::E, if is_wide { refused } else { narrow });
            a.m(Code::Ldmxcsr_m32, field_of_cpu(MXCSR));
            take_vectors(a, is_wide);
            a.jmp(done);
        }
    }
    a.bind(scalar);
    call(a);
    a.jcc(cc::E, refused);
    a.bind(done);
    load_registers(a);
    a.m(Code::Jmp_rm64, field_of_cpu(field!(next)));
    if host.avx {
        // The upper halves are zero by now, whatever they were when they were last put away.
        a.bind(narrow);
        a.rr(Code::Xorps_xmm_xmmm128, XMM0, XMM0);
        for n in 0..16 {
            a.mr(Code::Movups_xmmm128_xmm, upper_half(n), XMM0);
        }
    }
    a.bind(refused);
    load_registers(a);
    // They are put away already.
    a.mi(Code::Mov_rm8_imm8, field_of_cpu(field!(vectors_live)), 0);
    a.jmp_to(leave);
    start
}

/// Nonzero where blocks may be begun again.
///
/// # Safety
/// Called by translated code alone, with the vCPU it runs on.
unsafe extern "sysv64" fn run_on(cpu: *mut Cpu) -> u32 {
    // SAFETY: `enter` was given an exclusive reference, which nothing uses while translated code runs.
    let cpu = unsafe { &mut *cpu };
    cpu.run_on().into()
}

impl Cpu {
    /// Begin another turn at the head of a block, where the run loop would find nothing else to do.
    fn run_on(&mut self) -> bool {
        let heeds = self.native.heeds_interrupts;
        let old = self.native.budget;
        if !old.deliver
            || self.touched_platform
            || self.events.nmi_pending
            || self.events.shadow != InterruptShadow::None
            || self.rflags & rflags::TF != 0
            || self.rflags & rflags::IF != 0 && !heeds
        {
            return false;
        }
        let retired = self.native.retired_at(self.native.left);
        self.retired = retired;
        let instructions = old.instructions - retired.wrapping_sub(old.retired) as i64;
        let now = self.now_at_block_start();
        // Otherwise an interrupt is due, or the packed counters must be emptied.
        if instructions <= 0 || now < self.turn.limit || self.is_turn_over(now) {
            return false;
        }
        let mut until = self.turn.limit;
        if heeds {
            let id = self.id;
            let next = self.platform().next_event(id);
            if next <= now || self.platform().interrupt_pending(id, now) {
                return false;
            }
            until = until.min(next);
        }
        if self.attached {
            self.settle_packed(0);
        }
        self.turn.put_off += ((until - self.turn.until) << 16) as i64;
        self.turn.until = until;
        let budget = Budget {
            cycles: self.budget_at_block_start(until),
            instructions,
            retired,
            stall: self.stall,
            ..old
        };
        let native = &mut self.native;
        native.budget = budget;
        let left = native.left_after_stall(retired, self.stall, self.cpi);
        let limited = left.min(LONGEST);
        native.total = limited;
        native.left = limited;
        native.entered_at = retired;
        left > 0
    }
}
