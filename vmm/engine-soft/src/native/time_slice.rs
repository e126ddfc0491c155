//! Extension of the time slice within translated code, after a block's prologue has found the budget spent. If the platform needs nothing
//! from the vCPU, the routine computes a new budget, and translated code continues without a return to the run loop.

use iced_x86::{Code, Register};
use nodescope_x86::bits::rflags;
use nodescope_x86::state::InterruptShadow;

use std::mem::offset_of;

use super::access::{changed_registers, load_vectors, store_vectors};
use super::assembler::{Assembler, CPU, LEFT, cc, field_of_cpu};
use super::runtime::{MXCSR, field, gpr, save_mxcsr, upper_half};
use super::{Budget, Host};
use crate::cpu::Cpu;
use crate::time_slice::TimeSlice;

use Register::{EAX, RAX, RDI, XMM0};

const EXTENDS: usize = offset_of!(Cpu, time_slice) + offset_of!(TimeSlice, extends);

/// Assembles the routine that a prologue jumps to where [`LEFT`] is spent. On entry the flags are in memory, [`super::Native::exit`] is
/// the exit that leads to the block itself, and RAX is the prologue's address. The routine jumps back to the prologue with a new budget,
/// or leaves translated code by the routine at `leave`.
///
/// The prologue enters the routine by `jmp`, so that the host's return predictor stays in step: to leave from a called routine would drop
/// a return address.
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
        a.constant(RAX, self::extend_time_slice as *const () as u64);
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
            load_vectors(a, is_wide);
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
        // The upper halves of all vector registers are zero, but were not stored: memory may have older values of them.
        a.bind(narrow);
        a.rr(Code::Xorps_xmm_xmmm128, XMM0, XMM0);
        for n in 0..16 {
            a.mr(Code::Movups_xmmm128_xmm, upper_half(n), XMM0);
        }
    }
    a.bind(refused);
    load_registers(a);
    // The vector registers are stored already.
    a.mi(Code::Mov_rm8_imm8, field_of_cpu(field!(vectors_live)), 0);
    a.jmp_to(leave);
    start
}

/// Extends the time slice, see [`Cpu::extend_time_slice`]. Returns nonzero where more blocks may begin.
///
/// # Safety
/// Only translated code calls this function, with the vCPU that runs the code.
unsafe extern "sysv64" fn extend_time_slice(cpu: *mut Cpu) -> u32 {
    // SAFETY: `enter` was given an exclusive reference, which nothing uses while translated code runs.
    let cpu = unsafe { &mut *cpu };
    cpu.extend_time_slice().into()
}

impl Cpu {
    /// Extends the time slice at the beginning of a block, where the run loop would find nothing else to do. Returns whether more blocks
    /// may begin.
    fn extend_time_slice(&mut self) -> bool {
        let ends_at_interrupt = self.native.ends_at_interrupt;
        let old = self.native.budget;
        if !old.deliver
            || self.touched_platform
            || self.events.nmi_pending
            || self.events.shadow != InterruptShadow::None
            || self.rflags & rflags::TF != 0
            || self.rflags & rflags::IF != 0 && !ends_at_interrupt
        {
            return false;
        }
        self.return_to_block_start(0);
        let (retired, work) = (self.retired, self.work);
        let instructions = old.instructions - retired.wrapping_sub(old.retired) as i64;
        let now = self.now_at_block_start();
        // If the time slice's limit is not reached, the budget was spent because an interrupt is due or the packed counters must be
        // emptied.
        if instructions <= 0 || now < self.time_slice.limit || self.is_time_slice_over(now) {
            return false;
        }
        let mut until = self.time_slice.limit;
        if ends_at_interrupt {
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
        self.time_slice.extension += ((until - self.time_slice.until) << 16) as i64;
        self.time_slice.until = until;
        let budget = Budget {
            cycles: self.budget_at_block_start(until),
            instructions,
            retired,
            work,
            stall: self.stall,
            ..old
        };
        let native = &mut self.native;
        native.budget = budget;
        let left = native.left_after_stall(retired, work, self.stall, self.cpi);
        native.begin(left, retired, work);
        left > 0
    }
}
