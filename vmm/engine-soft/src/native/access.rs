//! The slow path of look-ups: the routine that translated code calls after a miss, and the functions that the routine calls. Without a
//! model they serve misses of the softmmu TLB. With a model they serve misses of the L0 filter cache that no miss routine serves, except
//! those of split accesses ([`super::split`]). Accesses that need a page walk are left to the interpreter.

use iced_x86::{Code, MemoryOperand, Register};

use super::Host;
use super::assembler::{Assembler, CPU, LEFT, cc, field_of_cpu};
use super::fusion::MAX_DISTANCE;
use super::out_of_line::SlowPath;
use super::registers::HOST;
use super::runtime::{MXCSR, field, gpr, save_mxcsr, vector, xmm, ymm};
use crate::cpu::Cpu;
use crate::site::Origin;
use crate::softmmu::{Avx2, Baseline, Isa};

use Register::{R8, R9, R10, R11, RAX, RDI, RDX, RSI, RSP};

/// Assembles the slow-path routine. ECX describes the access (see [`describe`]), whose linear address is in [`super::Native::linear`]. The
/// routine returns the host address, or zero, in RAX. It saves only registers that a function may change, and preserves the guest's vector
/// registers.
pub fn routine(a: &mut Assembler, host: Host) -> u64 {
    let Host { avx, bmi, .. } = host;
    if avx && bmi {
        call_out(a, host, &[large_page, access_avx2])
    } else {
        call_out(a, host, &[access])
    }
}

/// A function that a slow-path routine calls, with the vCPU and the description of the access ([`describe`]). Returns the operand's host
/// address; null if the function did not serve the access.
pub type Function = unsafe extern "sysv64" fn(*mut Cpu, u32) -> *mut u8;

/// Assembles a routine that calls the functions in order, until one of them returns an address other than null. Returns the routine's
/// address.
pub fn call_out(a: &mut Assembler, host: Host, functions: &[Function]) -> u64 {
    let start = a.here();
    for (n, host) in changed_registers() {
        a.store(gpr(n), host);
    }
    a.store(field!(left), LEFT);
    a.ri(Code::Sub_rm64_imm8, RSP, 8);
    let described = MemoryOperand::with_base(RSP);
    a.mr(Code::Mov_rm32_r32, described, Register::ECX);
    let call = |a: &mut Assembler| {
        let answered = a.label();
        for (n, function) in functions.iter().enumerate() {
            a.copy(RDI, CPU);
            a.rm(Code::Mov_r32_rm32, Register::ESI, described);
            a.constant(RAX, *function as *const () as u64);
            a.r(Code::Call_rm64, RAX);
            if n + 1 < functions.len() {
                a.rr(Code::Test_rm64_r64, RAX, RAX);
                a.jcc(cc::NE, answered);
            }
        }
        a.bind(answered);
    };
    let done = a.label();
    if host.avx {
        // MXCSR is set to the host's value before any function is called, since compiled code assumes this value and models may compute
        // with floating-point numbers.
        let no_vectors = a.label();
        a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_live)), 0);
        a.jcc(cc::E, no_vectors);
        let wide = a.label();
        a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_wide)), 0);
        a.jcc(cc::NE, wide);
        let with_vectors = |a: &mut Assembler, wide: bool| {
            store_vectors(a, wide);
            save_mxcsr(a);
            call(a);
            a.m(Code::Ldmxcsr_m32, field_of_cpu(MXCSR));
            load_vectors(a, wide);
            a.jmp(done);
        };
        with_vectors(a, false);
        a.bind(wide);
        with_vectors(a, true);
        a.bind(no_vectors);
    }
    call(a);
    a.bind(done);
    a.ri(Code::Add_rm64_imm8, RSP, 8);
    a.load(LEFT, field!(left));
    for (n, host) in changed_registers() {
        a.load(host, gpr(n));
    }
    a.plain(Code::Retnq);
    start
}

/// Returns the guest registers, by index, whose host registers a called function may change. By the calling convention a function preserves
/// RBX, RBP and R12 to R15.
pub fn changed_registers() -> impl Iterator<Item = (usize, Register)> {
    HOST.iter()
        .enumerate()
        .filter_map(|(n, host)| host.map(|host| (n, host)))
        .filter(|(_, host)| [RDX, RSI, RDI, R8, R9, R10, R11].contains(host))
}

/// Assembles stores of the guest's vector registers. `wide` says that some of their upper halves may not be zero.
pub fn store_vectors(a: &mut Assembler, wide: bool) {
    for n in 0..16 {
        if wide {
            a.mr(Code::VEX_Vmovups_ymmm256_ymm, vector(n), ymm(n));
        } else {
            a.mr(Code::Movups_xmmm128_xmm, vector(n), xmm(n));
        }
    }
    if wide {
        a.plain(Code::VEX_Vzeroupper);
    }
}

/// Assembles loads of the guest's vector registers, the reverse of [`store_vectors`].
pub fn load_vectors(a: &mut Assembler, wide: bool) {
    for n in 0..16 {
        if wide {
            a.rm(Code::VEX_Vmovups_ymm_ymmm256, ymm(n), vector(n));
        } else {
            a.rm(Code::Movups_xmm_xmmm128, xmm(n), vector(n));
        }
    }
}

/// Number of the bit that is set for a store with a non-temporal hint, in a description of an access.
pub const NON_TEMPORAL: u32 = 10;
/// Number of the bit that is set for a locked instruction, in a description of an access.
pub const LOCKED: u32 = 11;
/// Number of the first bit of the distance between two operations, in a description of an access.
const DISTANCE: u32 = 12;
/// Number of the first bit of the block's number of operations, in a description of an access.
pub const COUNT: u32 = 17;

const _: () = assert!(MAX_DISTANCE <= 1 << (COUNT - DISTANCE));

/// Returns the description of an access for [`access`], in one word: size in bytes (bits 7:0), read (bit 8), write (bit 9), non-temporal
/// hint (bit 10), locked (bit 11), distance of the writing operation from the reading one (bits 16:12), and the number of operations in the
/// block (bits 31:17).
pub fn describe(slow_path: &SlowPath, count: u32) -> u32 {
    let memory = slow_path.memory;
    let [first, last] = slow_path.operations;
    memory.size
        | u32::from(memory.read) << 8
        | u32::from(memory.write) << 9
        | u32::from(memory.non_temporal) << NON_TEMPORAL
        | u32::from(memory.locked) << LOCKED
        | ((last - first) as u32) << DISTANCE
        | count << COUNT
}

impl Cpu {
    /// Sets the count of retired instructions to its value at the beginning of the access's block. Returns the number of operations in the
    /// block.
    #[inline(always)]
    pub(super) fn arrive_at_block_start(&mut self, what: u32) -> i64 {
        let count = i64::from(what >> COUNT);
        self.return_to_block_start(count);
        count
    }

    /// Returns the origins of the read and of the write of an access in translated code, whose site is in [`super::Native::site`].
    pub(super) fn origins(&self, what: u32) -> [Origin; 2] {
        let running = self.native.site;
        let first = running.operation();
        let distance = what >> DISTANCE & ((1 << (COUNT - DISTANCE)) - 1);
        let locked = what & 1 << LOCKED != 0;
        [
            Origin {
                site: running.site(first),
                non_temporal: false,
                locked,
            },
            Origin {
                site: running.site(first + distance),
                non_temporal: what & 1 << NON_TEMPORAL != 0,
                locked,
            },
        ]
    }
}

/// Serves a look-up that missed, for the address in [`super::Native::linear`]. Returns the host address of the operand. Returns null if the
/// interpreter must execute the operation; then nothing has changed.
///
/// # Safety
/// As for `interpret` in [`super::runtime`].
unsafe extern "sysv64" fn access(cpu: *mut Cpu, what: u32) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { access_on(Baseline, cpu, what) }
}

/// Serves a look-up as [`access`] does, on hosts with AVX2.
///
/// # Safety
/// As for `interpret` in [`super::runtime`], and the host has AVX2, BMI1 and BMI2.
#[target_feature(enable = "avx2,bmi1,bmi2")]
unsafe extern "sysv64" fn access_avx2(cpu: *mut Cpu, what: u32) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { access_on(Avx2::assume(), cpu, what) }
}

/// Serves the most common misses without a model as [`access`] does: those of loads and of stores that an entry of a large page serves.
/// Returns null for other misses; then nothing has changed that matters to [`access`].
///
/// # Safety
/// As for `interpret` in [`super::runtime`], and the host has AVX2, BMI1 and BMI2.
#[target_feature(enable = "avx2,bmi1,bmi2")]
unsafe extern "sysv64" fn large_page(cpu: *mut Cpu, what: u32) -> *mut u8 {
    // SAFETY: as in `runtime::interpret`.
    let cpu = unsafe { &mut *cpu };
    let (read, write) = (what & 1 << 8 != 0, what & 1 << 9 != 0);
    if read == write || cpu.attached {
        return std::ptr::null_mut();
    }
    let (linear, len) = (cpu.native.linear, (what & 0xff) as usize);
    let place = cpu.resolve_in_large_page(linear, len, write);
    cpu.native.activity.misses += u64::from(place.is_some());
    place.unwrap_or(std::ptr::null_mut())
}

/// # Safety
/// As for `interpret` in [`super::runtime`].
#[inline(always)]
unsafe fn access_on(isa: impl Isa, cpu: *mut Cpu, what: u32) -> *mut u8 {
    // SAFETY: as in `runtime::interpret`.
    let cpu = unsafe { &mut *cpu };
    cpu.native.activity.misses += 1;
    if cpu.attached && !cpu.native.miss_routines_requested {
        cpu.prepare_miss_routines();
    }
    let count = cpu.arrive_at_block_start(what);
    let stall = cpu.stall;
    let place = cpu.resolve_operand(
        isa,
        cpu.native.linear,
        (what & 0xff) as usize,
        what & 1 << 8 != 0,
        what & 1 << 9 != 0,
        cpu.origins(what),
    );
    if cpu.stall != stall {
        cpu.shorten_budget(count);
    }
    place.unwrap_or(std::ptr::null_mut())
}
