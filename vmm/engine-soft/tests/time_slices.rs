//! Time slices that end within translated code: the guest's whole state is right, whether or not the machine could extend the slice.

#[path = "machine/mod.rs"]
mod machine;

use iced_x86::code_asm::*;
use machine::*;
use nodescope_engine::{Exit, Limit, Vcpu};
use nodescope_oracle::bare;
use nodescope_x86::VcpuState;

/// Runs a program for 1,000 cycles, in translated code or only by the interpreter. The machine never extends the time slice; `extends`: the
/// vCPU asks for an extension.
fn after_a_time_slice(code: fn(&mut CodeAssembler), extends: bool, translated: bool) -> VcpuState {
    let mut m = Machine::new(code);
    if !translated {
        m.vcpu = bare::vcpu(&m.ram, nodescope_engine_soft::Translate::Never);
    }
    m.state.control.cr4 |= 0x4_0600;
    m.state.control.xcr0 = 7;
    m.state.general.gpr = std::array::from_fn(|n| (n as u64) << 33);
    for (n, register) in m.state.vector.0.iter_mut().enumerate() {
        *register = std::array::from_fn(|k| (16 * n + k) as u8 & 0x3f);
    }
    m.vcpu.restore(&m.state);
    let limit = Limit {
        extends,
        ..Limit::cycles(1000)
    };
    assert_eq!(m.vcpu.run(&mut m.ports, limit).unwrap(), Exit::Limit);
    m.vcpu.save()
}

fn agrees(code: fn(&mut CodeAssembler)) -> VcpuState {
    let expected = after_a_time_slice(code, false, false);
    assert!(expected.time.cycles >= 1000);
    for extends in [false, true] {
        let state = after_a_time_slice(code, extends, true);
        assert_eq!(state, expected, "the time slice extends: {extends}");
    }
    expected
}

#[test]
fn general_registers_are_in_their_places() {
    agrees(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        for register in [rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r11, r12, r15] {
            a.add(register, 1).unwrap();
        }
        a.jmp(again).unwrap();
    });
}

#[test]
fn whole_vector_registers_are_in_their_places() {
    let state = agrees(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.vpaddd(ymm3, ymm3, ymm4).unwrap();
        a.vpaddd(ymm15, ymm4, ymm4).unwrap();
        a.jmp(again).unwrap();
    });
    assert_ne!(state.vector.0[15][16..], [0; 16]);
}

/// The vCPU's memory for vector registers still has old upper halves, since translated code stores only the lower halves. The old values
/// must not come back.
#[test]
fn upper_halves_that_were_cleared_stay_so() {
    let state = agrees(|a| {
        let [mut again, mut narrow] = [(); 2].map(|()| a.create_label());
        a.set_label(&mut again).unwrap();
        a.vpcmpeqd(ymm3, ymm3, ymm3).unwrap();
        // The interpreter carries out XGETBV, so that the registers are stored and loaded again.
        a.xgetbv().unwrap();
        a.vzeroupper().unwrap();
        a.mov(edx, 90).unwrap();
        a.set_label(&mut narrow).unwrap();
        a.paddd(xmm3, xmm4).unwrap();
        a.sub(edx, 1).unwrap();
        a.jne(narrow).unwrap();
        a.mov(ecx, 0).unwrap();
        a.jmp(again).unwrap();
    });
    assert_eq!(state.vector.0[3][16..], [0; 16]);
}
