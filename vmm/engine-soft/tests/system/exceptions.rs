//! Exceptions and interrupts: the pushed frame, the place in the program, and the time of delivery.

use iced_x86::code_asm::*;
use nodescope_engine::{Exit, Limit, Vcpu};
use nodescope_x86::Vector;
use nodescope_x86::state::{InterruptShadow, seg};

use crate::machine::*;
use crate::*;

#[test]
fn page_fault_in_user_mode_arrives_on_the_kernels_stack() {
    let mut s = System::new(|a| {
        a.nop().unwrap();
        a.mov(qword_ptr(rbx), rax).unwrap();
    })
    .user()
    .set(RBX, ABSENT + 5)
    .flags(INTERRUPTS | 0x41);
    assert_eq!(s.handled(), 14);
    assert_eq!(s.m.state.control.cr2, ABSENT + 5);
    assert_eq!(s.m.reg(RSP), KERNEL_STACK - 48);
    let (error, frame) = s.frame(true);
    assert_eq!(error, Some(6));
    assert_eq!(
        frame,
        Frame {
            rip: CODE + 1,
            cs: USER_CS,
            // The resume flag is pushed with a fault.
            flags: INTERRUPTS | 0x43 | 1 << 16,
            rsp: STACK,
            ss: USER_SS,
        }
    );
    // An interrupt gate clears IF; the handler runs at CPL 0 with a null SS.
    assert_eq!(s.m.state.general.rflags & INTERRUPTS, 0);
    assert_eq!(
        u64::from(s.m.state.segments.data[seg::CS].selector),
        KERNEL_CS
    );
    assert_eq!(s.m.state.segments.data[seg::SS].selector & 0xfffc, 0);
}

#[test]
fn frames_in_kernel_mode_are_aligned() {
    let mut s = System::new(|a| {
        a.xor(ecx, ecx).unwrap();
        a.div(ecx).unwrap();
    })
    .set(RSP, STACK - 3);
    assert_eq!(s.handled(), 0);
    assert_eq!(s.m.reg(RSP), STACK - 16 - 40);
    let (_, frame) = s.frame(false);
    assert_eq!((frame.rip, frame.cs), (CODE + 2, KERNEL_CS));
    assert_eq!((frame.rsp, frame.ss), (STACK - 3, KERNEL_SS));
}

#[test]
fn software_interrupts_point_behind_themselves() {
    let mut s = System::new(|a| a.int3().unwrap()).user();
    assert_eq!(s.handled(), 3);
    assert_eq!(s.frame(false).1.rip, CODE + 1);
    let mut s = System::new(|a| a.int(0x80).unwrap()).user();
    assert_eq!(s.handled(), 0x80);
    assert_eq!(s.frame(false).1.rip, CODE + 2);
    // User code may not call this gate.
    let mut s = System::new(|a| a.int(0x81).unwrap()).user();
    assert_eq!(s.handled(), 13);
    let (error, frame) = s.frame(true);
    assert_eq!((error, frame.rip), (Some(0x81 << 3 | 2), CODE));
}

#[test]
fn interrupts_wait_for_the_instruction_after_sti() {
    let mut s = System::new(|a| {
        a.sti().unwrap();
        a.inc(eax).unwrap();
        a.inc(eax).unwrap();
        a.hlt().unwrap();
    })
    .interrupt(0x40);
    assert_eq!(s.handled(), 0x40);
    let (_, frame) = s.frame(false);
    assert_eq!(s.m.reg(RAX), 1);
    assert_eq!(frame.rip, CODE + 3);
    assert_eq!(frame.flags & INTERRUPTS, INTERRUPTS);
}

/// An NMI is raised between STI and the next instruction. It is taken after that instruction, and does not wait for the rest of the block.
#[test]
fn an_nmi_behind_sti_waits_for_one_instruction() {
    let mut s = System::new(|a| {
        a.inc(eax).unwrap();
        a.cli().unwrap();
        a.inc(eax).unwrap();
        a.hlt().unwrap();
    });
    s.m.state.events.shadow = InterruptShadow::Sti;
    s.m.state.events.nmi_pending = true;
    assert_eq!(s.handled(), Vector::Nmi as u8);
    let (_, frame) = s.frame(false);
    assert_eq!((s.m.reg(RAX), frame.rip), (1, CODE + 2));
}

/// A limit of instructions cuts a block in two. RDTSC after the cut must not see the cut.
#[test]
fn the_clock_is_that_of_the_instruction_wherever_a_run_ends() {
    for cut in 0..12 {
        let mut s = System::new(|a| {
            for _ in 0..10 {
                a.nop().unwrap();
            }
            a.rdtsc().unwrap();
            a.hlt().unwrap();
        });
        s.m.state.time.cycles = 1000;
        s.m.vcpu.restore(&s.m.state);
        let limit = Limit::instructions(s.m.state.time.instructions + cut);
        assert_eq!(s.m.vcpu.run(&mut s.m.ports, limit).unwrap(), Exit::Limit);
        s.m.state = s.m.vcpu.save();
        assert_eq!(s.run(), Exit::Halted);
        // A cycle for each NOP.
        assert_eq!(s.m.reg(RAX), 1010, "cut behind {cut} instructions");
    }
}

#[test]
fn interrupts_wait_while_they_are_disabled() {
    let mut s = System::new(|a| {
        a.inc(eax).unwrap();
        a.hlt().unwrap();
    })
    .interrupt(0x40);
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.m.rip(), CODE + 3);
    assert_eq!(s.m.ports.interrupt, Some(0x40));
}

#[test]
fn an_interrupt_ends_a_halt() {
    let mut s = System::new(|a| a.hlt().unwrap()).flags(INTERRUPTS);
    assert_eq!(s.run(), Exit::Halted);
    s.m.ports.interrupt = Some(0x41);
    assert_eq!(s.handled(), 0x41);
    assert_eq!(s.frame(false).1.rip, CODE + 1);
}

#[test]
fn an_interrupt_comes_between_the_turns_of_a_loop() {
    let mut s = System::new(|a| {
        let mut top = a.create_label();
        a.set_label(&mut top).unwrap();
        a.inc(rax).unwrap();
        a.jmp(top).unwrap();
    })
    .flags(INTERRUPTS)
    .interrupt(0x42);
    assert_eq!(s.handled(), 0x42);
    assert!([CODE, CODE + 3].contains(&s.frame(false).1.rip));
}

#[test]
fn a_fault_without_a_gate_is_a_double_fault() {
    let mut s = System::new(|a| a.mov(rax, qword_ptr(rbx)).unwrap()).set(RBX, ABSENT);
    // The gate of #PF is not present: #NP comes during the delivery of #PF.
    let gate = s.get(IDT + 16 * 14);
    s.put(IDT + 16 * 14, gate & !(1 << 47));
    assert_eq!(s.handled(), 8);
    assert_eq!(s.m.reg(RSP), EMERGENCY_STACK - 48);
    let (error, frame) = s.frame(true);
    assert_eq!((error, frame.rip, frame.rsp), (Some(0), CODE, STACK));
    assert_eq!(s.m.state.control.cr2, ABSENT);
}

#[test]
fn a_fault_of_the_stack_is_a_double_fault() {
    // The kernel's stack is not mapped: #PF comes during the delivery of #PF.
    let mut s = System::new(|a| a.push(rax).unwrap()).set(RSP, ABSENT + 0x100);
    assert_eq!(s.handled(), 8);
    assert_eq!(s.frame(true).1.rsp, ABSENT + 0x100);
}

#[test]
fn a_third_fault_shuts_the_processor_down() {
    let mut s = System::new(|a| a.ud2().unwrap());
    s.m.state.segments.idt.limit = 0;
    assert_eq!(s.run(), Exit::Shutdown);
}

#[test]
fn single_steps_trap_after_each_instruction() {
    let mut s = System::new(|a| {
        a.inc(eax).unwrap();
        a.inc(eax).unwrap();
        a.hlt().unwrap();
    })
    .flags(TRAP);
    assert_eq!(s.handled(), 1);
    assert_eq!(s.m.reg(RAX), 1);
    assert_eq!(s.m.state.debug.dr6 >> 14 & 1, 1);
    assert_eq!(s.m.state.general.rflags & TRAP, 0);
    let (_, frame) = s.frame(false);
    assert_eq!((frame.rip, frame.flags & TRAP), (CODE + 2, TRAP));
}

/// INT1, unlike INT 1, ignores the gate's privilege, and is a trap.
#[test]
fn the_one_byte_debug_instruction_traps_from_user_mode() {
    let mut s = System::new(|a| a.int1().unwrap()).user();
    assert_eq!(s.handled(), 1);
    let (_, frame) = s.frame(false);
    assert_eq!((frame.rip, frame.cs), (CODE + 1, USER_CS));
    assert_eq!(s.m.state.debug.dr6, 0xffff_0ff0);
    let mut s = System::new(|a| a.int(1).unwrap()).user();
    assert_eq!(s.handled(), 13);
    assert_eq!(s.frame(true).0, Some(1 << 3 | 2));
}

/// Long mode has no nested tasks: IRET with NT set raises `#GP`, in 32-bit code, too.
#[test]
fn returns_from_interrupts_of_nested_tasks_fault() {
    for bits in [64, 32] {
        let mut s = System::new(|a| a.iretd().unwrap()).user().flags(1 << 14);
        if bits == 32 {
            s.m.state.segments.data[seg::CS].attributes = 0xc0fb;
        }
        assert_eq!(s.handled(), 13);
        assert_eq!(s.frame(true).0, Some(0));
    }
}

#[test]
fn a_repeated_store_stops_at_the_fault_and_goes_on_after_it() {
    let mut s = System::new(|a| {
        a.rep().stosb().unwrap();
        a.hlt().unwrap();
    })
    .set(RAX, 0x5a)
    .set(RCX, 32)
    .set(RDI, ABSENT - 16);
    assert_eq!(s.handled(), 14);
    assert_eq!((s.m.reg(RCX), s.m.reg(RDI)), (16, ABSENT));
    assert_eq!(s.m.state.control.cr2, ABSENT);
    let (error, frame) = s.frame(true);
    assert_eq!((error, frame.rip), (Some(2), CODE));
    let mut s = s.page(ABSENT, ABSENT | 7);
    s.m.state.general.rip = CODE;
    s.m.state.events = Default::default();
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.m.reg(RCX), 0);
    assert_eq!(s.m.peek::<33>(ABSENT - 16), {
        let mut all = [0x5a; 33];
        all[32] = 0;
        all
    });
}

/// The handler of `#UD`, which has a stack of its own, begins with an invalid opcode.
#[test]
fn time_passes_where_no_instruction_ever_retires() {
    let s = System::new(|a| a.ud2().unwrap());
    let handler = HANDLERS + 16 * 6;
    s.put(handler, 0x0b0f);
    let gate = IDT + 16 * 6;
    let low = handler & 0xffff | KERNEL_CS << 16 | 1 << 32 | 0x8e << 40;
    s.put(gate, low | (handler >> 16) << 48);
    let mut m = s.m;
    m.vcpu.restore(&m.state);
    let (cycles, instructions) = (m.vcpu.cycles(), m.vcpu.instructions());
    let end = m.vcpu.run(&mut m.ports, Limit::cycles(cycles + 10_000));
    assert_eq!(end.unwrap(), Exit::Limit);
    assert_eq!(m.vcpu.instructions(), instructions);
    assert!(m.vcpu.cycles() >= cycles + 10_000);
    assert_eq!(m.vcpu.save().general.rip, handler);
}
