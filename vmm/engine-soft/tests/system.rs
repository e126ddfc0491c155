//! Paging, exceptions, interrupts, privilege changes and self-modifying code on a bare machine with an operating system's
//! tables: every vector's handler halts, and the test looks at what was pushed.

mod machine;

use iced_x86::code_asm::*;
use machine::*;
use nodescope_engine::{Exit, Limit, Vcpu};
use nodescope_x86::state::seg;
use nodescope_x86::{DescriptorTable, Exception, Segment, Vector};

const TSS: u64 = 0x6000;
const GDT: u64 = 0x7000;
const IDT: u64 = 0x8000;
/// Handler of vector `n` at `HANDLERS + 16 * n`: HLT.
const HANDLERS: u64 = 0x9000;
/// RSP0 and IST1 of the TSS.
const KERNEL_STACK: u64 = 0xc000;
const EMERGENCY_STACK: u64 = 0xe000;
/// Page tables of the machine: the last level covers the first 2 MiB.
const LEAVES: u64 = 0x4000;

const KERNEL_CS: u64 = 0x08;
const KERNEL_SS: u64 = 0x10;
const USER_SS: u64 = 0x23;
const USER_CS: u64 = 0x2b;

const INTERRUPTS: u64 = 0x200;
const TRAP: u64 = 0x100;

/// What a handler finds on its stack.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    rip: u64,
    cs: u64,
    flags: u64,
    rsp: u64,
    ss: u64,
}

/// The machine with GDT, IDT and TSS.
struct System {
    m: Machine,
}

impl System {
    fn new(code: impl FnOnce(&mut CodeAssembler)) -> Self {
        Self::on(Machine::new(code))
    }

    fn on(mut m: Machine) -> Self {
        let put = |at: u64, value: u64| assert!(m.ram.write(at, &value.to_le_bytes()));
        for (n, descriptor) in [
            0,
            0x00af_9b00_0000_ffff_u64,
            0x00cf_9300_0000_ffff,
            0x00cf_fb00_0000_ffff,
            0x00cf_f300_0000_ffff,
            0x00af_fb00_0000_ffff,
            0x0000_8900_0000_0067 | TSS << 16,
            0,
        ]
        .into_iter()
        .enumerate()
        {
            put(GDT + 8 * n as u64, descriptor);
        }
        for n in 0..256 {
            put(HANDLERS + 16 * n, 0xf4);
            // Breakpoint, overflow and vector 0x80 may be raised by INT from user mode; the double fault has its own stack.
            let dpl = if matches!(n, 3 | 4 | 0x80) { 3 } else { 0 };
            let ist = u64::from(n == 8);
            let handler = HANDLERS + 16 * n;
            put(
                IDT + 16 * n,
                handler & 0xffff
                    | KERNEL_CS << 16
                    | ist << 32
                    | (0x8e | dpl << 5) << 40
                    | (handler >> 16) << 48,
            );
            put(IDT + 16 * n + 8, 0);
        }
        put(TSS + 4, KERNEL_STACK);
        put(TSS + 36, EMERGENCY_STACK);
        // No I/O permission bitmap: it would begin behind the limit.
        put(TSS + 0x60, 0x68 << 48);
        let s = &mut m.state;
        s.segments.gdt = DescriptorTable {
            base: GDT,
            limit: 63,
        };
        s.segments.idt = DescriptorTable {
            base: IDT,
            limit: 4095,
        };
        s.segments.tr = Segment {
            selector: 0x30,
            base: TSS,
            limit: 0x67,
            attributes: 0x8b,
            unusable: false,
        };
        s.segments.data[seg::CS].selector = KERNEL_CS as u16;
        s.segments.data[seg::SS].selector = KERNEL_SS as u16;
        s.control.efer |= 0x801;
        Self { m }
    }

    fn user(mut self) -> Self {
        let data = &mut self.m.state.segments.data;
        data[seg::CS].selector = USER_CS as u16;
        data[seg::CS].attributes = 0xa0fb;
        data[seg::SS].selector = USER_SS as u16;
        data[seg::SS].attributes = 0xc0f3;
        self
    }

    fn set(mut self, register: usize, value: u64) -> Self {
        self.m.state.general.gpr[register] = value;
        self
    }

    fn flags(mut self, flags: u64) -> Self {
        self.m.state.general.rflags = flags | 2;
        self
    }

    /// Begin in this code, whose system calls lead to [`CODE`].
    fn begin_at_caller(&mut self, mut user: CodeAssembler) {
        let code = user.assemble(CODE + 0x100).unwrap();
        assert!(self.m.ram.write(CODE + 0x100, &code));
        self.m.state.general.rip = CODE + 0x100;
        self.m.state.msrs.star = 0x1b << 48 | KERNEL_CS << 32;
        self.m.state.msrs.lstar = CODE;
        self.m.state.msrs.sfmask = INTERRUPTS;
    }

    fn interrupt(mut self, vector: u8) -> Self {
        self.m.ports.interrupt = Some(vector);
        self
    }

    /// Replace a page's last-level entry.
    fn page(self, at: u64, entry: u64) -> Self {
        self.put(LEAVES + (at >> 12) * 8, entry);
        self
    }

    fn entry(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.m.peek(LEAVES + (at >> 12) * 8))
    }

    fn put(&self, at: u64, value: u64) {
        assert!(self.m.ram.write(at, &value.to_le_bytes()));
    }

    fn get(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.m.peek(at))
    }

    /// Run until HLT or the end.
    fn run(&mut self) -> Exit {
        self.m.vcpu.restore(&self.m.state);
        let limit = Limit::instructions(self.m.state.time.instructions + 10_000);
        let exit = self.m.vcpu.run(&mut self.m.ports, limit).unwrap();
        self.m.state = self.m.vcpu.save();
        exit
    }

    /// Run until a handler halts: its vector.
    fn handled(&mut self) -> u8 {
        assert_eq!(self.run(), Exit::Halted);
        let at = self.m.rip() - 1 - HANDLERS;
        assert!(
            at < 4096 && at.is_multiple_of(16),
            "halted at {:#x}",
            self.m.rip()
        );
        (at / 16) as u8
    }

    fn frame(&self, with_error: bool) -> (Option<u64>, Frame) {
        let mut at = self.m.reg(RSP);
        let mut pop = || {
            at += 8;
            self.get(at - 8)
        };
        let error = with_error.then(&mut pop);
        let frame = Frame {
            rip: pop(),
            cs: pop(),
            flags: pop(),
            rsp: pop(),
            ss: pop(),
        };
        (error, frame)
    }
}

/// A page at [`DATA`] with these entry bits; the access raises this error code, or none.
fn page_fault(user: bool, entry: u64, control: impl Fn(&mut Machine), write: bool) -> Option<u32> {
    let code = |a: &mut CodeAssembler| {
        if write {
            a.mov(qword_ptr(rbx), rax).unwrap();
        } else {
            a.mov(rax, qword_ptr(rbx)).unwrap();
        }
    };
    let mut s = System::new(code).set(RBX, DATA + 8).page(DATA, entry);
    if user {
        s = s.user();
    } else {
        // The kernel's own page, so that SMEP and SMAP do not stop the fetch.
        s = s.page(CODE, CODE | 3);
    }
    control(&mut s.m);
    let mut m = s.m;
    m.vcpu.restore(&m.state);
    match m.vcpu.step_undelivered(&mut m.ports).unwrap() {
        nodescope_engine_soft::StepOutcome::Retired => None,
        nodescope_engine_soft::StepOutcome::Exception(Exception {
            vector: Vector::PageFault,
            error,
            address,
        }) => {
            assert_eq!(address, DATA + 8);
            Some(error)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn page_fault_error_codes() {
    const NX: u64 = 1 << 63;
    let plain = |_: &mut Machine| {};
    let no_wp = |m: &mut Machine| m.state.control.cr0 &= !(1 << 16);
    let smap = |m: &mut Machine| m.state.control.cr4 |= 1 << 21;
    let smap_ac = |m: &mut Machine| {
        m.state.control.cr4 |= 1 << 21;
        m.state.general.rflags |= 1 << 18;
    };
    // User or kernel, read or write, page: error code (SDM vol. 3A figure 4-12).
    for user in [false, true] {
        let u = if user { 4 } else { 0 };
        assert_eq!(page_fault(user, 0, plain, false), Some(u));
        assert_eq!(page_fault(user, 0, plain, true), Some(u | 2));
        assert_eq!(page_fault(user, DATA | 5, plain, true), Some(u | 3));
        assert_eq!(page_fault(user, DATA | 5, plain, false), None);
        assert_eq!(page_fault(user, DATA | NX | 7, plain, true), None);
        // A reserved bit of the entry.
        assert_eq!(
            page_fault(user, DATA | 1 << 50 | 7, plain, false),
            Some(u | 9)
        );
    }
    assert_eq!(page_fault(true, DATA | 3, plain, false), Some(5));
    assert_eq!(page_fault(true, DATA | 3, plain, true), Some(7));
    assert_eq!(page_fault(false, DATA | 1, no_wp, true), None);
    assert_eq!(page_fault(true, DATA | 5, no_wp, true), Some(7));
    assert_eq!(page_fault(false, DATA | 7, smap, false), Some(1));
    assert_eq!(page_fault(false, DATA | 7, smap, true), Some(3));
    assert_eq!(page_fault(false, DATA | 7, smap_ac, true), None);
    assert_eq!(page_fault(false, DATA | 3, smap, true), None);
}

#[test]
fn fetches_need_execute_permission() {
    let fault = |s: System| {
        let (_, e) = s.m.fault();
        assert_eq!((e.vector, e.address), (Vector::PageFault, CODE));
        e.error
    };
    let nop = |a: &mut CodeAssembler| a.nop().unwrap();
    assert_eq!(fault(System::new(nop).page(CODE, CODE | 1 << 63 | 7)), 0x11);
    assert_eq!(
        fault(System::new(nop).page(CODE, CODE | 1 << 63 | 7).user()),
        0x15
    );
    assert_eq!(fault(System::new(nop).page(CODE, CODE | 3).user()), 0x15);
    assert_eq!(fault(System::new(nop).page(CODE, 0)), 0x10);
    let mut smep = System::new(nop);
    smep.m.state.control.cr4 |= 1 << 20;
    assert_eq!(fault(smep), 0x11);
}

#[test]
fn accessed_and_dirty_bits_follow_the_accesses() {
    let mut s = System::new(|a| {
        a.mov(rax, qword_ptr(rbx)).unwrap();
        a.hlt().unwrap();
        a.mov(qword_ptr(rbx), rax).unwrap();
        a.hlt().unwrap();
    })
    .set(RBX, DATA);
    assert_eq!(s.entry(DATA) & 0x60, 0);
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.entry(DATA) & 0x60, 0x20);
    s.m.state.events = Default::default();
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.entry(DATA) & 0x60, 0x60);
    // Upper levels are marked as accessed.
    assert_eq!(s.get(0x1000) & 0x20, 0x20);
    assert_eq!(s.entry(DATA + 0x1000) & 0x60, 0);
}

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
    // A gate that user code may not call.
    let mut s = System::new(|a| a.int(0x81).unwrap()).user();
    assert_eq!(s.handled(), 13);
    let (error, frame) = s.frame(true);
    assert_eq!((error, frame.rip), (Some(0x81 << 3 | 2), CODE));
}

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

/// SYSRET may set TF, however often it has gone back without.
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
    // Behind the NOP.
    assert_eq!(s.frame(false).1.rip, CODE + 0x103);
}

/// The interpreter remembers for the kernel what the kernel may read, however often translated code has gone there and back.
#[test]
fn system_calls_give_the_caller_no_right() {
    let mut s = System::new(|a| {
        // BT of memory by a register is the interpreter's.
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
    // Present, by a user.
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

/// Where a run is cut, the block goes on as another one; RDTSC behind the cut does not see that.
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
    // The gate of #PF is not present: #NP while delivering #PF.
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
    // The kernel's stack pointer leads nowhere: #PF while delivering #PF.
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

#[test]
fn code_that_changes_the_next_instruction_runs_the_new_one() {
    let mut s = System::new(|a| {
        a.nop().unwrap();
        a.mov(byte_ptr(CODE + 0x0a), 7).unwrap();
        a.mov(eax, 1).unwrap();
        a.hlt().unwrap();
    });
    // NOP, C6 04 25 disp32 imm8, then B8 imm32: its immediate is at offset 10.
    assert_eq!(s.m.peek::<1>(CODE + 9), [0xb8]);
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.m.reg(RAX), 7);
}

#[test]
fn code_changed_on_another_page_and_through_another_address_is_decoded_again() {
    let function = CODE + 0x2000;
    let alias = DATA + 0x8000;
    let mut s = System::new(|a| {
        a.call(function).unwrap();
        a.mov(ebx, eax).unwrap();
        a.mov(byte_ptr(function + 1), 2).unwrap();
        a.call(function).unwrap();
        a.mov(ecx, eax).unwrap();
        a.mov(byte_ptr(alias + 1), 3).unwrap();
        a.call(function).unwrap();
        a.hlt().unwrap();
    })
    .page(alias, function | 7);
    // mov eax, 1; ret
    assert!(s.m.ram.write(function, &[0xb8, 1, 0, 0, 0, 0xc3]));
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!((s.m.reg(RBX), s.m.reg(RCX), s.m.reg(RAX)), (1, 2, 3));
}

#[test]
fn code_written_by_a_device_is_decoded_again() {
    let mut s = System::new(|a| {
        a.mov(eax, 1).unwrap();
        a.hlt().unwrap();
    });
    for value in [1, 9, 200] {
        s.m.state.general.rip = CODE;
        s.m.state.events = Default::default();
        assert!(s.m.ram.write(CODE + 1, &[value]));
        assert_eq!(s.run(), Exit::Halted);
        assert_eq!(s.m.reg(RAX), u64::from(value));
    }
}

#[test]
fn an_instruction_across_pages_faults_on_the_second_and_runs_once_it_is_there() {
    let place = CODE + 0x1ffd;
    let code = [0xb8, 1, 2, 3, 4, 0xf4];
    let mut s = System::new(|a| a.nop().unwrap()).page(CODE + 0x2000, 0);
    assert!(s.m.ram.write(place, &code));
    s.m.state.general.rip = place;
    assert_eq!(s.handled(), 14);
    assert_eq!(s.m.state.control.cr2, CODE + 0x2000);
    let (error, frame) = s.frame(true);
    assert_eq!((error, frame.rip), (Some(0x10), place));
    // The handler maps the page: nothing was cached of its absence.
    let mut s = s.page(CODE + 0x2000, (CODE + 0x2000) | 7);
    s.m.state.general.rip = place;
    s.m.state.events = Default::default();
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.m.reg(RAX), 0x0403_0201);
    // A change of the part on the second page is seen too.
    assert!(s.m.ram.write(CODE + 0x2001, &[5]));
    s.m.state.general.rip = place;
    s.m.state.events = Default::default();
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.m.reg(RAX), 0x0503_0201);
}

#[test]
fn translations_are_renewed_by_invlpg_and_by_loading_cr3() {
    let other = DATA + 0x4000;
    for whole in [false, true] {
        let mut s = System::new(|a| {
            a.mov(rcx, qword_ptr(DATA)).unwrap();
            // Let the page lead elsewhere.
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.mov(rdx, other | 7).unwrap();
            a.mov(qword_ptr(rbx), rdx).unwrap();
            if whole {
                a.mov(rax, cr3).unwrap();
                a.mov(cr3, rax).unwrap();
            } else {
                a.invlpg(byte_ptr(DATA)).unwrap();
            }
            a.mov(rdx, qword_ptr(DATA)).unwrap();
            a.hlt().unwrap();
        })
        .set(RBX, LEAVES + (DATA >> 12) * 8);
        s.put(DATA, 11);
        s.put(other, 22);
        assert_eq!(s.run(), Exit::Halted);
        assert_eq!((s.m.reg(RCX), s.m.reg(RDX)), (11, 22));
    }
}

#[test]
fn invlpg_renews_all_of_a_large_page() {
    const LARGE: u64 = 2 << 20;
    // The table whose entries are large pages from the second on.
    const TABLE: u64 = 0x3000;
    let (page, other) = (2 * LARGE, 3 * LARGE);
    let mut s = System::new(|a| {
        a.mov(rcx, qword_ptr(page + 0x5000)).unwrap();
        a.mov(rdx, other | 0x87).unwrap();
        a.mov(qword_ptr(rbx), rdx).unwrap();
        // Another 4 KiB of the page.
        a.invlpg(byte_ptr(page + 0x1f_3000)).unwrap();
        a.mov(rdx, qword_ptr(page + 0x5000)).unwrap();
        a.hlt().unwrap();
    })
    .set(RBX, TABLE + page / LARGE * 8);
    s.put(page + 0x5000, 11);
    s.put(other + 0x5000, 22);
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!((s.m.reg(RCX), s.m.reg(RDX)), (11, 22));
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

/// An invalid opcode as the first instruction of its own handler, which has a stack of its own.
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
