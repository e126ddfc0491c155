//! Look-ups that missed are made good: the routine that translated code calls, and the function that it leads to. Every miss of a
//! model's first level comes this way.

use iced_x86::{Code, Register};

use super::Host;
use super::assembler::{Assembler, CPU, LEFT, cc, field_of_cpu};
use super::plan::Memory;
use super::registers::HOST;
use super::runtime::{MXCSR, MXCSR_CONTROL, field, gpr, vector, xmm, ymm};
use crate::cpu::Cpu;
use crate::filter::{Avx2, Baseline, Isa};

use Register::{R8, R9, R10, R11, RAX, RDI, RDX, RSI, RSP};

/// The routine: ECX is what [`describe`] makes of the access, whose address is in [`super::Native::linear`]; RAX is the host address
/// then, or zero. It saves only what a function may change, and leaves the vector registers live.
pub fn routine(a: &mut Assembler, host: Host) -> u64 {
    let Host { avx, bmi, .. } = host;
    let start = a.here();
    // By the calling convention a function keeps RBX, RBP and R12 to R15.
    let changed: Vec<(usize, Register)> = HOST
        .iter()
        .enumerate()
        .filter_map(|(n, host)| host.map(|host| (n, host)))
        .filter(|(_, host)| [RDX, RSI, RDI, R8, R9, R10, R11].contains(host))
        .collect();
    for (n, host) in &changed {
        a.store(gpr(*n), *host);
    }
    a.store(field!(left), LEFT);
    a.ri(Code::Sub_rm64_imm8, RSP, 8);
    let call = |a: &mut Assembler| {
        a.copy(RDI, CPU);
        a.rr(Code::Mov_r32_rm32, Register::ESI, Register::ECX);
        let function = if avx && bmi {
            self::access_avx2 as *const ()
        } else {
            self::access as *const ()
        };
        a.constant(RAX, function as u64);
        a.r(Code::Call_rm64, RAX);
    };
    let done = a.label();
    let (no_vectors, wide) = (a.label(), a.label());
    if avx {
        a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_live)), 0);
        a.jcc(cc::E, no_vectors);
        a.m(Code::Stmxcsr_m32, field_of_cpu(MXCSR));
        a.mi(Code::Test_rm32_imm32, field_of_cpu(MXCSR), MXCSR_CONTROL);
        let default_control = a.label();
        a.jcc(cc::E, default_control);
        a.m(Code::Ldmxcsr_m32, field_of_cpu(field!(default_mxcsr)));
        a.bind(default_control);
        a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_wide)), 0);
        a.jcc(cc::NE, wide);
        for n in 0..16 {
            a.mr(Code::Movups_xmmm128_xmm, vector(n), xmm(n));
        }
        call(a);
        for n in 0..16 {
            a.rm(Code::Movups_xmm_xmmm128, xmm(n), vector(n));
        }
        a.m(Code::Ldmxcsr_m32, field_of_cpu(MXCSR));
        a.jmp(done);
        a.bind(wide);
        for n in 0..16 {
            a.mr(Code::VEX_Vmovups_ymmm256_ymm, vector(n), ymm(n));
        }
        a.plain(Code::VEX_Vzeroupper);
        call(a);
        for n in 0..16 {
            a.rm(Code::VEX_Vmovups_ymm_ymmm256, ymm(n), vector(n));
        }
        a.m(Code::Ldmxcsr_m32, field_of_cpu(MXCSR));
        a.jmp(done);
        a.bind(no_vectors);
    }
    call(a);
    a.bind(done);
    a.ri(Code::Add_rm64_imm8, RSP, 8);
    a.load(LEFT, field!(left));
    for (n, host) in &changed {
        a.load(*host, gpr(*n));
    }
    a.plain(Code::Retnq);
    start
}

/// An access in one word, for [`access`]: size, read, write, operations of its block.
pub fn describe(memory: Memory, count: u32) -> u32 {
    memory.size | u32::from(memory.read) << 8 | u32::from(memory.write) << 9 | count << 16
}

/// Make good a look-up that missed, for the address in [`super::Native::linear`]: the host address of the operand, or null where
/// the interpreter must carry out the operation (nothing is done then).
///
/// # Safety
/// As for `interpret` in [`super::runtime`].
unsafe extern "sysv64" fn access(cpu: *mut Cpu, what: u32) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { access_on(Baseline, cpu, what) }
}

/// The same for hosts with AVX2.
///
/// # Safety
/// As for `interpret` in [`super::runtime`], and the host has AVX2, BMI1 and BMI2.
#[target_feature(enable = "avx2,bmi1,bmi2")]
unsafe extern "sysv64" fn access_avx2(cpu: *mut Cpu, what: u32) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { access_on(Avx2::assume(), cpu, what) }
}

/// # Safety
/// As for `interpret` in [`super::runtime`].
#[inline(always)]
unsafe fn access_on(isa: impl Isa, cpu: *mut Cpu, what: u32) -> *mut u8 {
    // SAFETY: as in `runtime::interpret`.
    let cpu = unsafe { &mut *cpu };
    cpu.native.activity.misses += 1;
    let count = i64::from(what >> 16);
    let head = cpu.native.left + count;
    cpu.retired = cpu.native.retired_at(head);
    let stall = cpu.stall;
    let place = cpu.quick_access(
        isa,
        cpu.native.linear,
        (what & 0xff) as usize,
        what & 1 << 8 != 0,
        what & 1 << 9 != 0,
    );
    if cpu.stall != stall {
        cpu.shorten_budget(count);
    }
    place.unwrap_or(std::ptr::null_mut())
}
