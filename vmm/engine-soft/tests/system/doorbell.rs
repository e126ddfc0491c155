//! The doorbell: OUT to its port is the hypercall of the magic CPUID, for code that may use the port.

use iced_x86::code_asm::*;
use nodescope_engine::{Exit, Hypercall, HypercallAnswer};
use nodescope_engine_soft::Translate;
use nodescope_hypercall::{DOORBELL_PORT, LEAF};
use nodescope_oracle::bare::{self, Bare};
use nodescope_plugin_api::Privilege;

use crate::machine::*;
use crate::*;

const IOPL_3: u64 = 0x3000;
const PORT: u64 = DOORBELL_PORT as u64;

const ANSWER: HypercallAnswer = HypercallAnswer {
    eax: 0xffff_fff1,
    ebx: 0xffff_fff2,
    ecx: 0xffff_fff3,
    edx: 0xffff_fff4,
};

/// Returns a system with the registers of a call. Where a call uses 32 bits of a register, the upper half is set.
fn calling(code: impl FnOnce(&mut CodeAssembler)) -> System {
    let mut s = System::new(code);
    s.m.ports.answer = ANSWER;
    let registers = [
        (RAX, 0xaaaa_aaaa << 32 | u64::from(LEAF)),
        (RCX, 0xbbbb_bbbb << 32 | 9),
        (RDX, 0xcccc_cccc << 32 | 0xdddd_0000 | PORT),
        (RBX, u64::MAX),
        (RSI, 0x1111_2222_3333_4444),
        (RDI, 2),
        (8, u64::MAX),
        (9, 4),
        (10, 1 << 63),
    ];
    registers
        .into_iter()
        .fold(s, |s, (n, value)| s.set(n, value))
}

fn out(a: &mut CodeAssembler) {
    a.out(dx, eax).unwrap();
    a.hlt().unwrap();
}

/// Writes an I/O permission bitmap after the TSS. `bits` are the bits of the ports from the doorbell's on. All other bits are set.
fn with_bitmap(mut s: System, bits: u8) -> System {
    let at = TSS + 0x68;
    assert!(s.m.ram.write(at, &[0xff; 0xc0]));
    assert!(s.m.ram.write(at + PORT / 8, &[bits]));
    s.m.state.segments.tr.limit = 0x68 + 0xc0 - 1;
    s
}

/// Checks that the registers have the answer in CPUID's form.
fn is_answered(s: &System) {
    let registers = [RAX, RBX, RCX, RDX].map(|n| s.m.reg(n));
    assert_eq!(
        registers,
        [0xffff_fff1, 0xffff_fff2, 0xffff_fff3, 0xffff_fff4]
    );
    let untouched = [RSI, RDI, 8, 9, 10].map(|n| s.m.reg(n));
    assert_eq!(untouched, [0x1111_2222_3333_4444, 2, u64::MAX, 4, 1 << 63]);
    assert_eq!(s.m.ports.written, []);
}

/// Checks that a call raises `#GP` and changes nothing.
fn is_refused(mut s: System) {
    let before = s.m.state.general.gpr;
    assert_eq!(s.handled(), 13);
    let (error, frame) = s.frame(true);
    assert_eq!((error, frame.rip), (Some(0), CODE));
    let after = s.m.state.general.gpr;
    assert_eq!(after[..RSP], before[..RSP]);
    assert_eq!(after[RBP..], before[RBP..]);
    assert_eq!((&s.m.ports.calls, &s.m.ports.written), (&vec![], &vec![]));
}

#[test]
fn the_port_makes_the_call_that_cpuid_makes() {
    let mut calls: Vec<Hypercall> = Vec::new();
    let code: [fn(&mut CodeAssembler); 2] = [|a| a.out(dx, eax).unwrap(), |a| a.cpuid().unwrap()];
    for code in code {
        let mut s = calling(|a| {
            a.nop().unwrap();
            code(a);
            a.hlt().unwrap();
        });
        s = s.flags(0x8d5);
        assert_eq!(s.run(), Exit::Halted);
        is_answered(&s);
        assert_eq!(s.m.status(), 0x8d5);
        calls.append(&mut s.m.ports.calls);
    }
    let [by_port, by_cpuid] = calls[..] else {
        panic!("{calls:?}")
    };
    assert_eq!(by_port, by_cpuid);
    assert_eq!(
        (by_port.operation, by_port.args),
        (9, [0x1111_2222_3333_4444, 2, u64::MAX, 4, 1 << 63])
    );
    assert_eq!(by_port.cr3, 0x1000);
    assert_eq!(by_port.privilege, Privilege::Kernel);
}

#[test]
fn user_mode_needs_the_privilege_level() {
    for level in 0..3 {
        is_refused(calling(out).user().flags(level << 12));
    }
    // HLT faults afterwards.
    let mut s = calling(out).user().flags(IOPL_3);
    assert_eq!(s.handled(), 13);
    assert_eq!(s.frame(true).1.rip, CODE + 1);
    is_answered(&s);
    let call = s.m.ports.calls[0];
    assert_eq!(
        (s.m.ports.calls.len(), call.privilege),
        (1, Privilege::User)
    );
}

#[test]
fn user_mode_needs_each_bit_of_the_bitmap() {
    let mut s = with_bitmap(calling(out).user(), 0xf0);
    assert_eq!(s.handled(), 13);
    assert_eq!(s.frame(true).1.rip, CODE + 1);
    is_answered(&s);
    assert_eq!(s.m.ports.calls.len(), 1);
    for bit in 0..4 {
        is_refused(with_bitmap(calling(out).user(), 0xf0 | 1 << bit));
    }
    // A bitmap that ends before the port's bits, and one whose second byte lies beyond the limit (SDM vol. 1 §19.5.2).
    for end in [PORT / 8, PORT / 8 + 1] {
        let mut s = with_bitmap(calling(out).user(), 0);
        s.m.state.segments.tr.limit = 0x68 + end as u32 - 1;
        is_refused(s);
    }
}

#[test]
fn any_other_output_goes_to_the_port() {
    type Case = (fn(&mut CodeAssembler), u64, u64, (u16, Vec<u8>));
    let leaf = LEAF.to_le_bytes();
    let port = DOORBELL_PORT;
    let cases: [Case; 8] = [
        (
            |a| a.out(dx, eax).unwrap(),
            u64::from(LEAF) + 1,
            PORT,
            (port, (LEAF + 1).to_le_bytes().into()),
        ),
        (|a| a.out(dx, eax).unwrap(), 0, PORT, (port, vec![0; 4])),
        (
            |a| a.out(dx, ax).unwrap(),
            LEAF.into(),
            PORT,
            (port, leaf[..2].into()),
        ),
        (
            |a| a.out(dx, al).unwrap(),
            LEAF.into(),
            PORT,
            (port, leaf[..1].into()),
        ),
        (
            |a| a.out(dx, eax).unwrap(),
            LEAF.into(),
            PORT + 1,
            (port + 1, leaf.into()),
        ),
        (
            |a| a.out(dx, eax).unwrap(),
            LEAF.into(),
            PORT - 4,
            (port - 4, leaf.into()),
        ),
        (
            |a| a.out(0xe0, eax).unwrap(),
            LEAF.into(),
            PORT,
            (0xe0, leaf.into()),
        ),
        // OUTS writes an element of a string, which is never a call.
        (
            |a| a.outsd().unwrap(),
            LEAF.into(),
            PORT,
            (port, leaf.into()),
        ),
    ];
    for (number, (code, value, port, written)) in cases.into_iter().enumerate() {
        let mut s = calling(|a| {
            code(a);
            a.hlt().unwrap();
        })
        .set(RAX, value)
        .set(RDX, port)
        .set(RSI, DATA);
        s.put(DATA, LEAF.into());
        assert_eq!(s.run(), Exit::Halted, "case {number}");
        assert_eq!(s.m.ports.calls, [], "case {number}");
        assert_eq!(s.m.ports.written, [written], "case {number}");
        assert_eq!((s.m.reg(RAX), s.m.reg(RDX)), (value, port), "case {number}");
    }
}

/// The doorbell behaves alike in translated code and in the interpreter: calls, clocks and final states are equal.
#[test]
fn translated_code_rings_alike() {
    let run = |translate| {
        let mut s = calling(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(eax, LEAF).unwrap();
            a.mov(ecx, 3).unwrap();
            a.mov(edx, u32::from(DOORBELL_PORT)).unwrap();
            a.out(dx, eax).unwrap();
            a.add(rsi, rcx).unwrap();
            a.dec(rbp).unwrap();
            a.jne(again).unwrap();
            a.hlt().unwrap();
        })
        .set(RBP, 300);
        s.m.vcpu = bare::vcpu(&s.m.ram, translate);
        assert_eq!(s.run(), Exit::Halted);
        let Bare { calls, written, .. } = s.m.ports;
        assert_eq!((calls.len(), written), (300, vec![]));
        (calls, s.m.state, s.m.vcpu.activity().entries)
    };
    let (calls, state, _) = run(Translate::Never);
    let (others, other, entries) = run(Translate::After(0));
    assert!(entries > 0, "nothing was translated");
    assert_eq!(calls, others);
    assert_eq!(state, other);
    assert_eq!(
        calls[299].args[0],
        0x1111_2222_3333_4444 + 299 * u64::from(ANSWER.ecx)
    );
}
