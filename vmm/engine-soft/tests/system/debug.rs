//! Debug registers and breakpoints.

use iced_x86::code_asm::*;
use nodescope_engine::{Exit, Limit, Vcpu};
use nodescope_engine_soft::Translate;
use nodescope_oracle::bare;
use nodescope_plugin_api::L0Geometry;
use nodescope_x86::InterruptShadow;

use crate::machine::*;
use crate::*;

const DEBUGGING_EXTENSIONS: u64 = 8;
/// DR6 when no condition was met.
const QUIET: u64 = 0xffff_0ff0;
const RESUME: u64 = 1 << 16;

/// Returns the DR7 that enables breakpoint `n` (from 0) for accesses of `kind`; `len` is its length field.
fn enable(n: u32, kind: u64, len: u64) -> u64 {
    0x400 | 2 << (2 * n) | (len << 2 | kind) << (16 + 4 * n)
}

const EXECUTION: u64 = 0;
const WRITE: u64 = 1;
const PORT: u64 = 2;
const ACCESS: u64 = 3;
/// Values of the length field of DR7.
const BYTE: u64 = 0;
const WORD: u64 = 1;
const EIGHT: u64 = 2;
const FOUR: u64 = 3;

impl System {
    fn breakpoint(mut self, n: u32, at: u64, kind: u64, len: u64) -> Self {
        self.m.state.debug.dr[n as usize] = at;
        self.m.state.debug.dr7 |= enable(n, kind, len);
        self
    }

    /// Runs until a handler halts. Returns the handler's vector, the instruction pointer that it would return to, and DR6.
    fn trapped(&mut self) -> (u8, u64, u64) {
        let vector = self.handled();
        (vector, self.frame(false).1.rip, self.m.state.debug.dr6)
    }
}

#[test]
fn debug_registers_read_back_what_they_can_hold() {
    let mut s = System::new(|a| {
        a.mov(dr0, rax).unwrap();
        a.mov(dr6, rbx).unwrap();
        a.mov(dr7, rbp).unwrap();
        a.mov(rcx, dr0).unwrap();
        a.mov(rdx, dr6).unwrap();
        a.mov(rsi, dr7).unwrap();
        // DR4 and DR5 are older names of DR6 and DR7.
        a.mov(rdi, dr4).unwrap();
        a.mov(r8, dr5).unwrap();
        a.hlt().unwrap();
    })
    .set(RAX, 0x1234_5678_9abc_def0)
    .set(RBX, 0xffff_ffff & !QUIET)
    .set(RBP, 0xffff_ffff & !(1 << 13));
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.m.reg(RCX), 0x1234_5678_9abc_def0);
    assert_eq!(s.m.reg(RDX), QUIET | 0xe00f);
    assert_eq!(s.m.reg(RSI), 0xffff_07ff);
    assert_eq!((s.m.reg(RDI), s.m.reg(8)), (s.m.reg(RDX), s.m.reg(RSI)));
}

#[test]
fn debug_registers_that_are_not_there_fault() {
    type Code = fn(&mut CodeAssembler);
    let cases: [(Code, u64, u8); 5] = [
        (|a| a.mov(rax, dr4).unwrap(), DEBUGGING_EXTENSIONS, 6),
        (|a| a.mov(dr5, rax).unwrap(), DEBUGGING_EXTENSIONS, 6),
        (|a| a.mov(rax, dr8).unwrap(), 0, 6),
        // Upper halves of DR6 and DR7 are reserved.
        (|a| a.mov(dr6, rbx).unwrap(), 0, 13),
        (|a| a.mov(dr7, rbx).unwrap(), 0, 13),
    ];
    for (code, extensions, vector) in cases {
        let mut s = System::new(code).set(RBX, 1 << 32);
        s.m.state.control.cr4 |= extensions;
        assert_eq!(s.handled(), vector);
    }
    let mut s = System::new(|a| a.mov(rax, dr7).unwrap()).user();
    assert_eq!(s.handled(), 13);
}

#[test]
fn the_trap_behind_a_stepped_hlt_ends_its_wait() {
    let mut s = System::new(|a| a.hlt().unwrap()).flags(TRAP);
    // The handler runs up to its own HLT.
    assert_eq!(s.trapped(), (1, CODE + 1, QUIET | 1 << 14));
}

#[test]
fn guarded_debug_registers_trap_their_access() {
    let mut s = System::new(|a| a.mov(dr0, rax).unwrap()).set(RAX, 5);
    s.m.state.debug.dr7 |= 1 << 13;
    assert_eq!(s.trapped(), (1, CODE, QUIET | 1 << 13));
    // The handler may use debug registers.
    assert_eq!(s.m.state.debug.dr7, 0x400);
    assert_eq!(s.m.state.debug.dr[0], 0);
}

#[test]
fn a_breakpoint_is_met_by_the_accesses_that_it_waits_for() {
    type Code = fn(&mut CodeAssembler);
    let store: Code = |a| a.mov(qword_ptr(rbx), rax).unwrap();
    let load: Code = |a| a.mov(rax, qword_ptr(rbx)).unwrap();
    let add: Code = |a| a.add(qword_ptr(rbx), rax).unwrap();
    let vector: Code = |a| a.movups(xmmword_ptr(rbx), xmm1).unwrap();
    for (code, kind, len, at, met) in [
        (store, WRITE, EIGHT, DATA, true),
        (store, WRITE, BYTE, DATA + 7, true),
        (store, WRITE, BYTE, DATA + 8, false),
        (store, WRITE, BYTE, DATA - 1, false),
        (store, ACCESS, FOUR, DATA + 4, true),
        (load, ACCESS, WORD, DATA + 6, true),
        (load, WRITE, EIGHT, DATA, false),
        (add, WRITE, FOUR, DATA, true),
        (add, ACCESS, FOUR, DATA, true),
        (vector, WRITE, BYTE, DATA + 15, true),
        (vector, WRITE, BYTE, DATA + 16, false),
        // The breakpoint's address is aligned to its length.
        (store, WRITE, EIGHT, DATA + 13, false),
        (store, WRITE, EIGHT, DATA + 5, true),
    ] {
        for attached in [false, true] {
            let mut s = System::new(|a| {
                code(a);
                a.nop().unwrap();
                a.hlt().unwrap();
            })
            .set(RBX, DATA)
            .breakpoint(2, at, kind, len);
            s.m.state.control.cr4 |= 0x600;
            if attached {
                attach(&mut s);
            }
            if met {
                assert_eq!(s.trapped(), (1, CODE + 3, QUIET | 4));
            } else {
                assert_eq!(s.run(), Exit::Halted);
                assert_eq!(s.m.state.debug.dr6, QUIET);
            }
        }
    }
}

fn attach(s: &mut System) {
    s.m.vcpu.attach(Some(L0Geometry {
        line_shift: 6,
        data_slots: 6,
        instruction_slots: 6,
        data_ways: 1,
        instruction_ways: 1,
        page_sizes: false,
    }));
}

/// A loop of translated code writes upwards to the watched data, and traps at the write that meets the breakpoint.
#[test]
fn breakpoints_on_data_hold_in_translated_code() {
    for attached in [false, true] {
        let mut s = System::new(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(qword_ptr(rbx), rcx).unwrap();
            a.add(rbx, 8).unwrap();
            a.dec(rcx).unwrap();
            a.jne(again).unwrap();
            a.hlt().unwrap();
        })
        .set(RBX, DATA)
        .set(RCX, 4096)
        .breakpoint(0, DATA + 8 * 3000 + 4, WRITE, FOUR);
        if attached {
            attach(&mut s);
        }
        s.m.vcpu.restore(&s.m.state);
        let limit = Limit::instructions(s.m.state.time.instructions + 20_000);
        assert_eq!(s.m.vcpu.run(&mut s.m.ports, limit).unwrap(), Exit::Halted);
        s.m.state = s.m.vcpu.save();
        let (_, frame) = s.frame(false);
        assert_eq!(frame.rip, CODE + 3);
        assert_eq!(s.m.reg(RBX), DATA + 8 * 3000);
        assert_eq!(s.m.state.debug.dr6, QUIET | 1);
        assert!(s.m.vcpu.activity().entries > 0, "it was not translated");
    }
}

#[test]
fn a_repeated_instruction_traps_after_the_element() {
    let mut s = System::new(|a| {
        a.rep().stosb().unwrap();
        a.hlt().unwrap();
    })
    .set(RAX, 0x5a)
    .set(RCX, 64)
    .set(RDI, DATA)
    .breakpoint(1, DATA + 20, WRITE, BYTE);
    assert_eq!(s.trapped(), (1, CODE, QUIET | 2));
    assert_eq!((s.m.reg(RCX), s.m.reg(RDI)), (43, DATA + 21));
    // The repeated instruction continues after the trap.
    s.m.state.general.rip = CODE;
    s.m.state.debug.dr6 = QUIET;
    s.m.state.events = Default::default();
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!((s.m.reg(RCX), s.m.state.debug.dr6), (0, QUIET));
}

#[test]
fn a_breakpoint_on_code_faults_before_the_instruction_once() {
    let mut s = System::new(|a| {
        a.inc(eax).unwrap();
        a.inc(eax).unwrap();
        a.inc(eax).unwrap();
        a.hlt().unwrap();
    })
    .user()
    .breakpoint(3, CODE + 2, EXECUTION, BYTE);
    // The handler returns with the resume flag set, as a debugger's handler does.
    let handler = [0x80, 0x4c, 0x24, 0x12, 0x01, 0x48, 0xcf];
    assert!(s.m.ram.write(HANDLERS + 16, &handler));
    assert_eq!(s.handled(), 13, "HLT in user mode");
    assert_eq!((s.m.reg(RAX), s.m.state.debug.dr6), (3, QUIET | 8));
    assert_eq!(s.m.state.general.rflags & RESUME, 0);

    let mut s = System::new(|a| a.inc(eax).unwrap()).breakpoint(0, CODE, EXECUTION, BYTE);
    assert_eq!(s.trapped(), (1, CODE, QUIET | 1));
    assert_eq!(s.m.reg(RAX), 0);
    // The handler decides whether to resume.
    assert_eq!(s.frame(false).1.flags & RESUME, 0);
}

#[test]
fn a_handler_with_a_breakpoint_of_its_own_does_not_stop_the_clock() {
    let mut s = System::new(|a| a.nop().unwrap()).breakpoint(0, HANDLERS + 16, EXECUTION, BYTE);
    // The handler has a stack of its own.
    let gate = s.get(IDT + 16);
    s.put(IDT + 16, gate | 1 << 32);
    s = s.breakpoint(1, CODE, EXECUTION, BYTE);
    s.m.vcpu.restore(&s.m.state);
    let end = s.m.vcpu.cycles() + 10_000;
    let exit = s.m.vcpu.run(&mut s.m.ports, Limit::cycles(end));
    assert_eq!(exit.unwrap(), Exit::Limit);
    assert!(s.m.vcpu.cycles() >= end);
}

#[test]
fn breakpoints_on_ports_need_the_debugging_extensions() {
    for (extensions, met) in [(DEBUGGING_EXTENSIONS, true), (0, false)] {
        let mut s = System::new(|a| {
            a.out(0x80, al).unwrap();
            a.hlt().unwrap();
        })
        .breakpoint(0, 0x80, PORT, BYTE);
        s.m.state.control.cr4 |= extensions;
        if met {
            assert_eq!(s.trapped(), (1, CODE + 2, QUIET | 1));
        } else {
            assert_eq!(s.run(), Exit::Halted);
        }
        assert_eq!(s.m.ports.written.len(), 1);
    }
}

/// A translation block ends at the end of its page, after an instruction that enables a breakpoint on the next block's first instruction.
#[test]
fn the_last_instruction_of_a_translated_block_enables_a_breakpoint_on_code() {
    const NEXT_PAGE: u64 = CODE + 0x1000;
    const ENABLED_AT: u64 = 100;
    let run = |translate: Translate| {
        let mut a = CodeAssembler::new(64).unwrap();
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.xor(eax, eax).unwrap();
        a.cmp(rcx, ENABLED_AT as i32).unwrap();
        a.cmove(rax, rdx).unwrap();
        a.mov(dr7, rax).unwrap();
        a.inc(rbx).unwrap();
        a.dec(rcx).unwrap();
        a.jne(again).unwrap();
        a.hlt().unwrap();
        // XOR, CMP, CMOVE and MOV DR7 have 2, 4, 4 and 3 bytes.
        let begin = NEXT_PAGE - 13;
        let mut s = System::new(|a| a.hlt().unwrap())
            .set(RCX, 1000)
            .set(RDX, enable(0, EXECUTION, BYTE));
        assert!(s.m.ram.write(begin, &a.assemble(begin).unwrap()));
        s.m.state.general.rip = begin;
        s.m.state.debug.dr[0] = NEXT_PAGE;
        s.m.vcpu = bare::vcpu(&s.m.ram, translate);
        assert_eq!(s.trapped(), (1, NEXT_PAGE, QUIET | 1));
        assert_eq!((s.m.reg(RCX), s.m.reg(RBX)), (ENABLED_AT, 900));
        (s.m.vcpu.activity().entries, s.m.state)
    };
    let (interpreted, translated) = (run(Translate::Never), run(Translate::After(0)));
    assert_eq!(interpreted.0, 0);
    assert!(translated.0 > 0, "it was not translated");
    assert!(interpreted.1 == translated.1, "the states differ");
}

/// A window has equal counts for a program with a breakpoint and for the program without it.
#[test]
fn a_breakpoint_that_is_not_met_changes_no_count() {
    let run = |watched: bool| {
        let mut s = System::new(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.add(qword_ptr(rbx + 64), rax).unwrap();
            a.dec(rcx).unwrap();
            a.jne(again).unwrap();
            a.hlt().unwrap();
        })
        .set(RBX, DATA)
        .set(RCX, 200);
        if watched {
            s = s.breakpoint(0, DATA + 8, WRITE, EIGHT);
        }
        attach(&mut s);
        assert_eq!(s.run(), Exit::Halted);
        s.m.vcpu.flush_counters(&mut s.m.ports);
        (s.m.state.general, s.m.state.time, s.m.ports.accounts)
    };
    assert_eq!(run(false), run(true));
}

/// Loads SS from memory that breakpoint 0 watches. The load is 2 bytes long.
fn load_stack_segment(a: &mut CodeAssembler) {
    a.mov(ss, word_ptr(rbx)).unwrap();
}

/// Returns a machine that loads SS from watched memory, and then executes `next` at `CODE + 2`.
fn behind_a_watched_stack_segment(next: impl FnOnce(&mut CodeAssembler)) -> System {
    let s = System::new(|a| {
        load_stack_segment(a);
        next(a);
    })
    .set(RBX, DATA)
    .breakpoint(0, DATA, ACCESS, WORD);
    s.put(DATA, KERNEL_SS);
    s
}

/// What Linux's selftest `mov_ss_trap` found on processors, and SDM vol. 3A section 6.8.3.
#[test]
fn the_trap_of_a_loaded_stack_segment_follows_the_next_instruction() {
    type Code = fn(&mut CodeAssembler);
    let loads: [Code; 2] = [load_stack_segment, |a| {
        // The stack is the watched memory. POP SS does not exist in 64-bit code, so the code is 32-bit.
        a.db(&[0x17]).unwrap();
    }];
    for (n, load) in loads.into_iter().enumerate() {
        let mut s = System::new(|a| {
            load(a);
            a.nop().unwrap();
            a.nop().unwrap();
            a.hlt().unwrap();
        })
        .set(RBX, DATA)
        .breakpoint(0, DATA, ACCESS, WORD);
        s.put(DATA, KERNEL_SS);
        let mut length = 2;
        if n == 1 {
            s.m.state.segments.data[seg::CS].attributes = 0xc09b;
            s.m.state.segments.data[seg::SS].attributes = 0xc093;
            s = s.set(RSP, DATA);
            length = 1;
        }
        assert_eq!(s.trapped(), (1, CODE + length + 1, QUIET | 1), "load {n}");
        assert_eq!(s.m.state.events.pending_breakpoints, 0);
    }
}

#[test]
fn an_entry_into_the_kernel_takes_the_pending_trap_along() {
    // The handler of vector 3 is entered, and the trap comes at its first instruction.
    let mut s = behind_a_watched_stack_segment(|a| a.int3().unwrap());
    assert_eq!(s.trapped(), (1, HANDLERS + 16 * 3, QUIET | 1));
    let (_, frame) = s.frame(false);
    assert_eq!(frame.cs, KERNEL_CS);

    // SYSCALL, interpreted.
    let mut s = behind_a_watched_stack_segment(|a| a.syscall().unwrap());
    s.m.state.msrs.star = 0x1b << 48 | KERNEL_CS << 32;
    s.m.state.msrs.lstar = CODE + 0x200;
    s.m.state.control.efer |= 1;
    assert_eq!(s.trapped(), (1, CODE + 0x200, QUIET | 1));
}

#[test]
fn a_fault_or_int1_behind_a_loaded_stack_segment_drops_its_trap() {
    let mut s = behind_a_watched_stack_segment(|a| a.ud2().unwrap());
    assert_eq!(s.trapped(), (6, CODE + 2, QUIET));
    assert_eq!(s.m.state.events.pending_breakpoints, 0);
    let mut s = behind_a_watched_stack_segment(|a| a.int1().unwrap());
    assert_eq!(s.trapped(), (1, CODE + 3, QUIET));
}

#[test]
fn neither_single_steps_nor_code_breakpoints_nor_interrupts_come_behind_a_loaded_stack_segment() {
    type Code = fn(&mut CodeAssembler);
    let code: Code = |a| {
        a.mov(ss, word_ptr(rbx)).unwrap();
        a.nop().unwrap();
        a.nop().unwrap();
        a.hlt().unwrap();
    };
    let new = |flags: u64| {
        let s = System::new(code).set(RBX, DATA).flags(flags);
        s.put(DATA, KERNEL_SS);
        s
    };
    assert_eq!(new(TRAP).trapped(), (1, CODE + 3, QUIET | 1 << 14));
    let mut s = new(0).breakpoint(1, CODE + 2, EXECUTION, BYTE);
    s = s.breakpoint(2, CODE + 3, EXECUTION, BYTE);
    assert_eq!(s.trapped(), (1, CODE + 3, QUIET | 4));
    let mut s = behind_a_watched_stack_segment(|a| a.nop().unwrap()).flags(INTERRUPTS);
    s = s.interrupt(0x40);
    s.m.state.events.shadow = InterruptShadow::MovSs;
    // Behind a first load, the watched load does not block. Its trap precedes the interrupt, which would otherwise come here.
    assert_eq!(s.trapped(), (1, CODE + 2, QUIET | 1));
    let mut s = behind_a_watched_stack_segment(|a| a.nop().unwrap()).flags(INTERRUPTS);
    s = s.interrupt(0x40);
    s.m.state.events.shadow = InterruptShadow::Sti;
    // The interrupt waits behind STI and the load.
    assert_eq!(s.trapped(), (1, CODE + 3, QUIET | 1));
}

/// Only the first of several loads in a row blocks.
#[test]
fn a_second_load_of_the_stack_segment_does_not_block() {
    let mut s = behind_a_watched_stack_segment(|a| {
        load_stack_segment(a);
        load_stack_segment(a);
        a.hlt().unwrap();
    });
    assert_eq!(s.trapped(), (1, CODE + 4, QUIET | 1));
}

/// LSS loads the stack pointer with the segment, so that nothing has to wait.
#[test]
fn the_trap_of_lss_follows_at_once() {
    let mut s = System::new(|a| {
        a.lss(rax, fword_ptr(rbx)).unwrap();
        a.nop().unwrap();
        a.hlt().unwrap();
    })
    .set(RBX, DATA)
    .breakpoint(0, DATA, ACCESS, FOUR);
    s.put(DATA, KERNEL_SS << 32);
    s.put(DATA + 8, KERNEL_SS);
    let (vector, at, met) = s.trapped();
    assert_eq!((vector, met), (1, QUIET | 1));
    assert_eq!(s.m.peek::<1>(at), [0x90], "the NOP");
}

/// A state between the load and the next instruction has all that is pending.
#[test]
fn a_pending_trap_survives_save_and_restore() {
    let mut s = behind_a_watched_stack_segment(|a| {
        a.nop().unwrap();
        a.hlt().unwrap();
    });
    s.m.vcpu.restore(&s.m.state);
    let limit = Limit::instructions(s.m.state.time.instructions + 1);
    s.m.vcpu.run(&mut s.m.ports, limit).unwrap();
    let saved = s.m.vcpu.save();
    let wanted = (InterruptShadow::MovSs, 1);
    assert_eq!(
        (saved.events.shadow, saved.events.pending_breakpoints),
        wanted
    );
    s.m.state = saved;
    s.m.vcpu = bare::vcpu(&s.m.ram, Translate::Never);
    assert_eq!(s.trapped(), (1, CODE + 3, QUIET | 1));
}

/// INT n and SYSCALL clear TF, so that the kernel's first instruction finds no trap.
#[test]
fn an_entry_into_the_kernel_is_not_stepped() {
    let mut s = System::new(|a| a.int3().unwrap()).flags(TRAP);
    assert_eq!(s.trapped(), (3, CODE + 1, QUIET));
    let mut s = System::new(|a| a.syscall().unwrap()).flags(TRAP);
    s.m.state.msrs.star = 0x1b << 48 | KERNEL_CS << 32;
    s.m.state.msrs.lstar = HANDLERS;
    s.m.state.msrs.sfmask = TRAP;
    assert_eq!(s.handled(), 0);
    assert_eq!(s.m.state.debug.dr6, QUIET);
    // A kernel that keeps TF is stepped.
    let mut s = System::new(|a| a.syscall().unwrap()).flags(TRAP);
    s.m.state.msrs.star = 0x1b << 48 | KERNEL_CS << 32;
    s.m.state.msrs.lstar = CODE + 0x200;
    assert_eq!(s.trapped(), (1, CODE + 0x200, QUIET | 1 << 14));
}
