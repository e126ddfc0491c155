//! Measures instructions per second of small integer loops: `cargo run --release -p nodescope-engine-soft --example integer_speed`.

#[path = "../tests/machine/mod.rs"]
mod machine;

use iced_x86::code_asm::*;
use machine::*;
use nodescope_engine::{Limit, Vcpu};

type Program = fn(&mut CodeAssembler);

/// Emits register arithmetic, nine instructions per iteration.
fn registers(a: &mut CodeAssembler) {
    let mut top = a.create_label();
    a.set_label(&mut top).unwrap();
    a.add(rax, rbx).unwrap();
    a.mov(rdx, rax).unwrap();
    a.shr(rdx, 7).unwrap();
    a.xor(rax, rdx).unwrap();
    a.lea(rsi, ptr(rax + rbx * 4 + 5)).unwrap();
    a.and(esi, 0xfff8).unwrap();
    a.inc(rbx).unwrap();
    a.cmp(rbx, -1).unwrap();
    a.jne(top).unwrap();
}

/// Emits loads and stores, eight instructions per iteration.
fn memory(a: &mut CodeAssembler) {
    let mut top = a.create_label();
    a.set_label(&mut top).unwrap();
    a.mov(rax, qword_ptr(rdi + rcx * 8)).unwrap();
    a.add(rax, rbx).unwrap();
    a.mov(qword_ptr(rdi + rcx * 8 + 64), rax).unwrap();
    a.add(dword_ptr(rdi + 16), 1).unwrap();
    a.inc(ecx).unwrap();
    a.and(ecx, 0xfff).unwrap();
    a.test(rdi, rdi).unwrap();
    a.jne(top).unwrap();
}

/// Emits calls, eight instructions per iteration.
fn calls(a: &mut CodeAssembler) {
    let mut top = a.create_label();
    let mut function = a.create_label();
    a.set_label(&mut top).unwrap();
    a.call(function).unwrap();
    a.test(rdi, rdi).unwrap();
    a.jne(top).unwrap();
    a.set_label(&mut function).unwrap();
    a.push(rbp).unwrap();
    a.mov(rbp, rsp).unwrap();
    a.movzx(eax, byte_ptr(rdi)).unwrap();
    a.pop(rbp).unwrap();
    a.ret().unwrap();
}

/// Emits loads whose address depends on the load before.
fn chase(a: &mut CodeAssembler) {
    let mut top = a.create_label();
    a.set_label(&mut top).unwrap();
    a.mov(rax, qword_ptr(rax)).unwrap();
    a.dec(rcx).unwrap();
    a.jne(top).unwrap();
}

/// Returns the CPU time of this process in seconds, so that other load on the machine does not count.
fn cpu_seconds() -> f64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a live local, which the call fills in.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

fn main() {
    let programs: [(&str, Program); 4] = [
        ("registers", registers),
        ("memory", memory),
        ("calls", calls),
        ("chase", chase),
    ];
    const N: u64 = 40_000_000;
    for (name, program) in programs {
        let mut best = 0_f64;
        for _ in 0..5 {
            let mut m = Machine::new(program)
                .set(RDI, DATA)
                .set(RAX, DATA)
                .poke(DATA, &DATA.to_le_bytes());
            m.vcpu.restore(&m.state);
            let start = cpu_seconds();
            m.vcpu
                .run(&mut m.ports, Limit::instructions(N))
                .expect("the loop runs");
            best = best.max(m.vcpu.instructions() as f64 / (cpu_seconds() - start) / 1e6);
        }
        println!("{name:10} {best:7.1} M instructions/s");
    }
}
