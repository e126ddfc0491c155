//! Changes of privilege: system calls, returns, and instructions that user mode may not execute.

use iced_x86::code_asm::*;
use nodescope_engine::{Exit, Limit, Vcpu};
use nodescope_x86::state::seg;

use crate::machine::*;
use crate::*;

#[test]
fn privileged_instructions_fault_in_user_mode() {
    type Code = fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>;
    let all: [Code; 7] = [
        |a| a.hlt(),
        |a| a.cli(),
        |a| a.mov(cr3, rax),
        |a| a.wrmsr(),
        |a| a.invlpg(byte_ptr(rax)),
        |a| a.out(0x80, al),
        |a| a.lidt(ptr(rbx)),
    ];
    for code in all {
        let mut s = System::new(|a| code(a).unwrap()).user().set(RBX, DATA);
        assert_eq!(s.handled(), 13);
        assert_eq!(s.frame(true).0, Some(0));
    }
}

#[test]
fn system_call_and_return() {
    let mut s = System::new(|a| {
        // Kernel at CODE, user at CODE + 0x100.
        let mut entry = a.create_label();
        a.jmp(entry).unwrap();
        a.set_label(&mut entry).unwrap();
        a.mov(rbx, rcx).unwrap();
        a.mov(rdx, r11).unwrap();
        a.sysretq().unwrap();
    })
    .user()
    .flags(INTERRUPTS | 0x401);
    assert!(s.m.ram.write(CODE + 0x100, &[0x0f, 0x05, 0x0f, 0x0b]));
    s.m.state.general.rip = CODE + 0x100;
    s.m.state.msrs.star = 0x1b << 48 | KERNEL_CS << 32;
    s.m.state.msrs.lstar = CODE;
    s.m.state.msrs.sfmask = INTERRUPTS | 0x400;
    s.m.vcpu.restore(&s.m.state);
    let limit = Limit::instructions(1);
    s.m.vcpu.run(&mut s.m.ports, limit).unwrap();
    let k = s.m.vcpu.save();
    assert_eq!(k.general.rip, CODE);
    assert_eq!(k.general.rflags & (INTERRUPTS | 0x401), 1);
    assert_eq!(u64::from(k.segments.data[seg::CS].selector), KERNEL_CS);
    assert_eq!(k.segments.data[seg::CS].dpl(), 0);
    s.m.state = k;
    // Back in user mode, UD2 traps from there.
    assert_eq!(s.handled(), 6);
    assert_eq!(s.m.reg(RBX), CODE + 0x102);
    assert_eq!(s.m.reg(RDX), INTERRUPTS | 0x403);
    let (_, frame) = s.frame(false);
    assert_eq!(
        (frame.rip, frame.cs, frame.ss),
        (CODE + 0x102, USER_CS, USER_SS)
    );
    assert_eq!(frame.flags & !(1 << 16), INTERRUPTS | 0x403);
}

/// SYSRET may set TF after many returns without TF.
#[test]
fn a_return_from_a_system_call_may_begin_single_steps() {
    let mut s = System::new(|a| {
        a.xor(edi, edi).unwrap();
        a.dec(rsi).unwrap();
        a.cmove(rdi, rbp).unwrap();
        a.or(r11, rdi).unwrap();
        a.sysretq().unwrap();
    })
    .user()
    .flags(INTERRUPTS)
    .set(RBP, TRAP)
    .set(RSI, 1000);
    let mut user = CodeAssembler::new(64).unwrap();
    let mut again = user.create_label();
    user.set_label(&mut again).unwrap();
    user.syscall().unwrap();
    user.nop().unwrap();
    user.jmp(again).unwrap();
    s.begin_at_caller(user);
    assert_eq!(s.handled(), 1);
    assert_eq!(s.m.reg(RSI), 0);
    // The instruction pointer is after the NOP.
    assert_eq!(s.frame(false).1.rip, CODE + 0x103);
}

/// After many changes of privilege by translated code, the interpreter's look-ups for the kernel still serve only the kernel.
#[test]
fn system_calls_give_the_caller_no_right() {
    let mut s = System::new(|a| {
        // The interpreter carries out BT of memory by a register.
        a.bt(qword_ptr(DATA), rax).unwrap();
        a.sysretq().unwrap();
    })
    .user()
    .flags(INTERRUPTS)
    .page(DATA, DATA | 3)
    .set(RSI, 1000);
    let mut user = CodeAssembler::new(64).unwrap();
    let mut again = user.create_label();
    user.set_label(&mut again).unwrap();
    user.syscall().unwrap();
    user.dec(rsi).unwrap();
    user.jne(again).unwrap();
    user.mov(rbx, qword_ptr(DATA)).unwrap();
    s.begin_at_caller(user);
    assert_eq!(s.handled(), 14);
    assert_eq!(s.m.reg(RSI), 0);
    let activity = s.m.vcpu.activity();
    assert!(
        activity.entries < 100,
        "they leave translated code: {activity:?}"
    );
    let (error, frame) = s.frame(true);
    // A page fault by user code, on a present page.
    assert_eq!((error, frame.cs), (Some(5), USER_CS));
}

#[test]
fn return_from_interrupt_to_user_mode() {
    let mut s = System::new(|a| {
        a.push(USER_SS as i32).unwrap();
        a.push((DATA + 0x100) as i32).unwrap();
        a.push((INTERRUPTS | 0x8d7) as i32).unwrap();
        a.push(USER_CS as i32).unwrap();
        a.push((CODE + 0x100) as i32).unwrap();
        a.iretq().unwrap();
    });
    assert!(s.m.ram.write(CODE + 0x100, &[0x0f, 0x0b]));
    assert_eq!(s.handled(), 6);
    let (_, frame) = s.frame(false);
    assert_eq!(
        frame,
        Frame {
            rip: CODE + 0x100,
            cs: USER_CS,
            flags: INTERRUPTS | 0x8d7 | 1 << 16,
            rsp: DATA + 0x100,
            ss: USER_SS,
        }
    );
}

#[test]
fn swapgs_and_the_gs_base_registers() {
    let mut s = System::new(|a| {
        a.swapgs().unwrap();
        a.mov(rax, qword_ptr(0).gs()).unwrap();
        a.mov(ecx, 0xc000_0102_u32).unwrap();
        a.rdmsr().unwrap();
        a.hlt().unwrap();
    });
    s.m.state.segments.data[seg::GS].base = 0x1234_5000;
    s.m.state.msrs.kernel_gs_base = DATA;
    s.put(DATA, 0x55);
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.m.reg(RAX), 0x1234_5000);
    assert_eq!(s.m.state.segments.data[seg::GS].base, DATA);
}

#[test]
fn fast_system_calls_and_returns() {
    let mut s = System::new(|a| {
        // Kernel at CODE, user at CODE + 0x100.
        a.mov(rbx, rsp).unwrap();
        a.mov(rcx, DATA).unwrap();
        a.mov(rdx, CODE + 0x102).unwrap();
        a.sysexitq().unwrap();
    })
    .user()
    .flags(INTERRUPTS | 1);
    let mut user = CodeAssembler::new(64).unwrap();
    user.sysenter().unwrap();
    user.ud2().unwrap();
    s.begin_at_caller(user);
    // Without a code segment.
    assert_eq!(s.handled(), 13);
    assert_eq!(s.frame(true).0, Some(0));
    // The selectors of the return have fixed distances from the selector of the call. The selector of 64-bit code is 32 higher.
    s.put(GDT + 0x28, 0x00af_9b00_0000_ffff);
    s.put(GDT + 0x30, 0x00cf_9300_0000_ffff);
    s.put(GDT + 0x38, 0);
    let mut s = System { m: s.m }.user().set(RSP, STACK);
    s.m.state.general.rip = CODE + 0x100;
    s.m.state.events = Default::default();
    s.m.state.msrs.sysenter_cs = KERNEL_CS;
    s.m.state.msrs.sysenter_esp = KERNEL_STACK - 64;
    s.m.state.msrs.sysenter_eip = CODE;
    s.m.vcpu.restore(&s.m.state);
    s.m.vcpu
        .run(
            &mut s.m.ports,
            Limit::instructions(s.m.state.time.instructions + 1),
        )
        .unwrap();
    let k = s.m.vcpu.save();
    assert_eq!(
        (k.general.rip, k.general.gpr[RSP]),
        (CODE, KERNEL_STACK - 64)
    );
    assert_eq!(k.general.rflags, 3);
    let selectors = |s: &nodescope_x86::VcpuState| {
        [seg::CS, seg::SS].map(|n| u64::from(s.segments.data[n].selector))
    };
    assert_eq!(selectors(&k), [KERNEL_CS, KERNEL_CS + 8]);
    assert_eq!(k.segments.data[seg::CS].dpl(), 0);
    s.m.state = k;
    // Back in user mode, UD2 traps from there.
    assert_eq!(s.handled(), 6);
    assert_eq!(s.m.reg(RBX), KERNEL_STACK - 64);
    let (_, frame) = s.frame(false);
    assert_eq!((frame.rip, frame.rsp), (CODE + 0x102, DATA));
    assert_eq!(
        (frame.cs, frame.ss),
        ((KERNEL_CS + 32) | 3, (KERNEL_CS + 40) | 3)
    );
}

/// Returns a system with a far pointer in memory at RBX, and a call or jump by it.
fn far(call: bool, selector: u64, target: u64) -> System {
    let s = System::new(|a| {
        if call {
            a.call(fword_ptr(rbx)).unwrap();
        } else {
            a.jmp(fword_ptr(rbx)).unwrap();
        }
    })
    .set(RBX, DATA);
    s.put(DATA, target & 0xffff_ffff | selector << 32);
    s
}

#[test]
fn far_transfers_lead_to_code_only() {
    for call in [false, true] {
        // The TSS, a data segment, a null selector, a selector beyond the table, and a selector of an absent LDT.
        for (selector, error) in [(0x33, 0x30), (0x23, 0x20), (3, 0), (0x103, 0x100), (0x7, 4)] {
            let mut s = far(call, selector, CODE).user();
            assert_eq!(s.handled(), 13, "{selector:#x}");
            let (code, frame) = s.frame(true);
            assert_eq!((code, frame.rip), (Some(error), CODE));
        }
        // 32-bit code of the same privilege.
        reaches_32_bit_code(call);
    }
}

fn reaches_32_bit_code(call: bool) {
    let mut s = far(call, 0x1b, CODE + 0x100).user();
    s.put(CODE + 0x100, 0x0b0f);
    assert_eq!(s.handled(), 6);
    let (_, frame) = s.frame(false);
    assert_eq!((frame.rip, frame.cs), (CODE + 0x100, 0x1b));
    assert_eq!(frame.rsp, if call { STACK - 8 } else { STACK });
}

#[test]
fn call_gates_lead_to_inner_privileges() {
    let gate = |dpl: u64, kind: u64| {
        let target = CODE + 0x100;
        let low = target & 0xffff | KERNEL_CS << 16 | (0x80 | dpl << 5 | kind) << 40;
        low | (target >> 16) << 48
    };
    let system = |call, gate| {
        let mut s = far(call, 0x43, 0).user();
        s.m.state.segments.gdt.limit = 0x4f;
        s.put(GDT + 0x40, gate);
        s.put(GDT + 0x48, 0);
        s.put(CODE + 0x100, 0x0b0f);
        s
    };
    let mut s = system(true, gate(3, 0xc));
    assert_eq!(s.handled(), 6);
    let (_, frame) = s.frame(false);
    assert_eq!((frame.rip, frame.cs), (CODE + 0x100, KERNEL_CS));
    assert_eq!(frame.rsp, KERNEL_STACK - 32);
    let pushed = [0, 8, 16, 24].map(|n| s.get(frame.rsp + n));
    assert_eq!(pushed, [CODE + 2, USER_CS, STACK, USER_SS]);
    // A jump to another privilege, a gate for only the kernel, a gate that is not present, and a gate of a type that long mode lacks.
    for (mut s, vector, error) in [
        (system(false, gate(3, 0xc)), 13, KERNEL_CS),
        (system(true, gate(0, 0xc)), 13, 0x40),
        (system(true, gate(3, 0xc) & !(1 << 47)), 11, 0x40),
        (system(true, gate(3, 4)), 13, 0x40),
        (system(true, gate(3, 5)), 13, 0x40),
    ] {
        assert_eq!(s.handled(), vector);
        assert_eq!(s.frame(true).0, Some(error));
    }
    // Each half must lie within the table, and the upper half must have type zero.
    let mut s = system(true, gate(3, 0xc));
    s.m.state.segments.gdt.limit = 0x47;
    assert_eq!(s.handled(), 13);
    let mut s = system(true, gate(3, 0xc));
    s.put(GDT + 0x48, 1 << 40);
    assert_eq!(s.handled(), 13);
    // The last descriptor of the largest local table has no upper half: selectors do not wrap around to the first descriptor.
    const LOCAL_TABLE: u64 = 0x10_0000;
    for limit in [0xffff, 0x1_ffff] {
        let mut s = far(true, 0xffff, 0).user();
        s.m.state.segments.ldt = Segment {
            selector: 0x40,
            base: LOCAL_TABLE,
            limit,
            attributes: 0x82,
            unusable: false,
        };
        s.put(LOCAL_TABLE, 0);
        s.put(LOCAL_TABLE + 0xfff8, gate(3, 0xc));
        s.put(CODE + 0x100, 0x0b0f);
        assert_eq!(s.handled(), 13);
        assert_eq!(s.frame(true).0, Some(0xfffc));
    }
}
