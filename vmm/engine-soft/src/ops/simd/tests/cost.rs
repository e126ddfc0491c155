//! Prints the cost of operations: `cargo test --release -p nodescope-engine-soft -- --ignored --nocapture cost`.

use std::hint::black_box;
use std::time::Instant;

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{IP, execute, lower, vcpu};
use crate::cpu::Cpu;
use crate::op::Op;

fn one(f: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Vec<u8> {
    let mut a = CodeAssembler::new(64).expect("an assembler");
    f(&mut a).expect("an instruction");
    a.assemble(IP).expect("an instruction")
}

fn measure(cpu: &mut Cpu, name: &str, bytes: &[u8]) {
    const ROUNDS: u32 = 2_000_000;
    let op: Op = lower(cpu, bytes);
    cpu.gpr[3] = super::DATA;
    // Take the best of three measurements of the same operation.
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            let _ = black_box(execute(cpu, black_box(&op)));
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS));
    }
    println!("{name:32} {best:6.2} ns");
}

#[test]
#[ignore = "a measurement"]
fn cost_of_operations() {
    let mut vcpu = vcpu();
    let cpu = &mut vcpu.cpu;
    let m128 = || xmmword_ptr(rbx);
    let m256 = || ymmword_ptr(rbx);
    cpu.ram.write(super::DATA, &1.0_f64.to_le_bytes());
    let warm = one(|a| a.movaps(xmm1, xmm2));
    for (name, bytes) in [
        ("(warm-up)", warm),
        ("movaps xmm, xmm", one(|a| a.movaps(xmm1, xmm2))),
        ("movups xmm, m128", one(|a| a.movups(xmm1, m128()))),
        ("movups m128, xmm", one(|a| a.movups(m128(), xmm1))),
        ("movsd xmm, m64", one(|a| a.movsd_2(xmm1, qword_ptr(rbx)))),
        ("vmovups ymm, m256", one(|a| a.vmovups(ymm1, m256()))),
        ("vmovups m256, ymm", one(|a| a.vmovups(m256(), ymm1))),
        ("pxor xmm, xmm (zeroing)", one(|a| a.pxor(xmm1, xmm1))),
        ("pxor xmm, xmm", one(|a| a.pxor(xmm1, xmm2))),
        ("pshufb xmm, m128", one(|a| a.pshufb(xmm1, m128()))),
        ("addsd xmm, xmm", one(|a| a.addsd(xmm1, xmm2))),
        ("addsd xmm, xmm (other)", one(|a| a.addsd(xmm3, xmm2))),
        ("mulsd xmm, m64", one(|a| a.mulsd(xmm1, qword_ptr(rbx)))),
        ("ucomisd xmm, xmm", one(|a| a.ucomisd(xmm1, xmm2))),
        ("cvtsi2sd xmm, r64", one(|a| a.cvtsi2sd(xmm1, rax))),
        ("cvttsd2si r64, xmm", one(|a| a.cvttsd2si(rax, xmm1))),
        ("vaddpd ymm, ymm, ymm", one(|a| a.vaddpd(ymm1, ymm2, ymm3))),
        (
            "vfmadd231pd ymm, ymm, m256",
            one(|a| a.vfmadd231pd(ymm1, ymm2, m256())),
        ),
        ("vpaddd ymm, ymm, ymm", one(|a| a.vpaddd(ymm1, ymm2, ymm3))),
        ("ptest xmm, xmm", one(|a| a.ptest(xmm1, xmm2))),
        ("pmovmskb r32, xmm", one(|a| a.pmovmskb(eax, xmm1))),
        ("fst m64", one(|a| a.fst(qword_ptr(rbx)))),
        ("fmul m64", one(|a| a.fmul(qword_ptr(rbx)))),
        ("fadd st, st(1)", one(|a| a.fadd_2(st0, st1))),
        ("fxsave64", one(|a| a.fxsave64(byte_ptr(rbx)))),
        ("xsave64", one(|a| a.xsave64(byte_ptr(rbx)))),
        ("xrstor64", one(|a| a.xrstor64(byte_ptr(rbx)))),
    ] {
        for r in &mut cpu.vector.0 {
            *r = [0; 32];
        }
        cpu.gpr[0] = 7;
        cpu.gpr[2] = 0;
        if name.starts_with('f') {
            // Two valid registers: an empty one costs an assist of the host's microcode.
            for setup in [one(|a| a.fninit()), one(|a| a.fld1()), one(|a| a.fld1())] {
                let op = lower(cpu, &setup);
                assert!(execute(cpu, &op).is_ok());
            }
        }
        measure(cpu, name, &bytes);
    }
    let start = Instant::now();
    for n in 0..2000_u32 {
        let bytes = one(|a| {
            a.vshufps(
                get_xmm(iced_x86::Register::XMM0 + n % 16).expect("a register"),
                get_xmm(iced_x86::Register::XMM0 + n / 16 % 8).expect("a register"),
                xmm2,
                n as i32 / 256,
            )
        });
        black_box(lower(cpu, &bytes));
    }
    println!(
        "assembling, decoding and lowering with a new stub {:.2} us",
        start.elapsed().as_secs_f64() * 1e6 / 2000.0
    );
}
