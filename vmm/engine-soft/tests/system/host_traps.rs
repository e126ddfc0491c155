//! Debug traps around loads of SS, beside those of the host's processor, which runs the same code in a process under ptrace(2).

use std::mem::offset_of;
use std::ptr::null_mut;

use iced_x86::code_asm::*;
use nodescope_test_needs::{Need, skip};

use crate::machine::*;
use crate::*;

/// Bits of DR6 that are compared: B0 and BS.
const REASONS: u64 = 1 | 1 << 14;
/// DR7 that enables breakpoint 0 for accesses to two bytes.
const WATCH: u64 = 1 | 7 << 16;
const PAGE: usize = 4096;

/// A stop of the code: the exception's vector, the offset of the instruction pointer, and the reasons in DR6.
type Stop = (u8, u64, u64);

/// A program in 64-bit user mode. RBX has the address of a selector for SS, and DX the selector.
struct Case {
    code: fn(&mut CodeAssembler),
    /// True if a breakpoint watches the selector in memory.
    watched: bool,
    /// True if the program begins with TF set.
    stepped: bool,
}

impl Case {
    /// Returns the code, followed by HLT, which ends the program by `#GP`.
    fn bytes(&self) -> Vec<u8> {
        let mut a = CodeAssembler::new(64).unwrap();
        (self.code)(&mut a);
        a.hlt().unwrap();
        a.assemble(CODE).unwrap()
    }

    /// Returns the stops of the program on the engine.
    fn emulated(&self) -> Vec<Stop> {
        let mut s = System::on(Machine::with_bytes(&self.bytes()))
            .user()
            .set(RBX, DATA)
            .set(RDX, USER_SS)
            .flags(if self.stepped { TRAP } else { 0 });
        s.put(DATA, USER_SS);
        if self.watched {
            s.m.state.debug.dr[0] = DATA;
            s.m.state.debug.dr7 |= WATCH;
        }
        let mut stops = Vec::new();
        loop {
            let vector = s.handled();
            let (_, frame) = s.frame(vector == 13);
            stops.push((vector, frame.rip - CODE, s.m.state.debug.dr6 & REASONS));
            if vector == 13 {
                return stops;
            }
            s = s.user();
            let state = &mut s.m.state;
            state.general.rip = frame.rip + if vector == 6 { 2 } else { 0 };
            state.general.rflags = frame.flags;
            state.general.gpr[RSP] = frame.rsp;
            state.debug.dr6 &= !REASONS;
            state.events = Default::default();
        }
    }

    /// Returns the stops of the program on the host; None if the host does not let programs be traced.
    fn native(&self) -> Option<Vec<Stop>> {
        let code = self.bytes();
        // SAFETY: an anonymous mapping at an address of the kernel's choice.
        let page = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(null_mut(), 2 * PAGE, access, kind, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let (entry, data) = (page as u64, page as u64 + PAGE as u64);
        let selector: u16;
        // SAFETY: the instruction reads SS, and both copies lie in the mapping.
        unsafe {
            std::arch::asm!("mov {0:x}, ss", out(reg) selector);
            page.cast::<u8>().copy_from(code.as_ptr(), code.len());
            (data as *mut u16).write(selector);
        }
        // SAFETY: the child calls functions alone that are safe behind a fork of a process with threads (signal-safety(7)).
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                libc::raise(libc::SIGSTOP);
                libc::_exit(0);
            }
            child
        };
        let stops = Traced(child).run(self, entry, data, selector.into());
        // SAFETY: ends the child, which stops at its HLT at the latest, and the mapping, which nothing refers to.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, null_mut(), 0);
            libc::munmap(page, 2 * PAGE);
        }
        stops
    }
}

/// A process under ptrace(2).
struct Traced(libc::pid_t);

impl Traced {
    fn run(&self, case: &Case, entry: u64, data: u64, selector: u64) -> Option<Vec<Stop>> {
        if self.wait() != libc::SIGSTOP {
            return None;
        }
        let mut registers = self.registers();
        registers.rip = entry;
        registers.rbx = data;
        registers.rdx = selector;
        // The process is not in a system call any more.
        registers.orig_rax = u64::MAX;
        if case.stepped {
            registers.eflags |= TRAP;
        }
        self.set_registers(&registers);
        if case.watched && !(self.set_debug(0, data) && self.set_debug(7, WATCH)) {
            return None;
        }
        let mut stops = Vec::new();
        loop {
            // SAFETY: the request takes no addresses.
            unsafe { libc::ptrace(libc::PTRACE_CONT, self.0, 0, 0) };
            let signal = self.wait();
            let mut registers = self.registers();
            let reasons = self.debug(6) & REASONS;
            let vector = match signal {
                libc::SIGTRAP if reasons == 0 => 3,
                libc::SIGTRAP => 1,
                libc::SIGILL => 6,
                libc::SIGSEGV => 13,
                other => panic!("signal {other} behind {stops:?}"),
            };
            stops.push((vector, registers.rip.wrapping_sub(entry), reasons));
            if vector == 13 || stops.len() > 10 {
                return Some(stops);
            }
            self.set_debug(6, 0);
            if vector == 6 {
                registers.rip += 2;
                self.set_registers(&registers);
            }
        }
    }

    /// Returns the signal at which the process has stopped; 0 if the process has ended.
    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: `status` may be written.
        unsafe { libc::waitpid(self.0, &mut status, 0) };
        if libc::WIFSTOPPED(status) {
            libc::WSTOPSIG(status)
        } else {
            0
        }
    }

    fn registers(&self) -> libc::user_regs_struct {
        // SAFETY: all-zero bytes are valid registers, and the kernel writes to them alone.
        unsafe {
            let mut registers = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETREGS, self.0, 0, &raw mut registers);
            registers
        }
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) {
        // SAFETY: the kernel reads the registers alone.
        unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.0, 0, &raw const *registers) };
    }

    fn debug(&self, number: usize) -> u64 {
        // SAFETY: the request takes an offset, no address.
        unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, self.0, Self::offset(number), 0) as u64 }
    }

    /// Sets a debug register, and returns whether the host has let it be set.
    fn set_debug(&self, number: usize, value: u64) -> bool {
        // SAFETY: the request takes an offset and a value, no address.
        unsafe { libc::ptrace(libc::PTRACE_POKEUSER, self.0, Self::offset(number), value) == 0 }
    }

    fn offset(number: usize) -> usize {
        offset_of!(libc::user, u_debugreg) + 8 * number
    }
}

#[test]
fn traps_around_loads_of_ss_are_those_of_the_host() {
    let case = |code, watched, stepped| Case {
        code,
        watched,
        stepped,
    };
    let plain = case(
        |a| {
            a.movzx(eax, word_ptr(rbx)).unwrap();
            a.nop().unwrap();
        },
        true,
        true,
    );
    let expected = [(1, 3, REASONS), (1, 4, 1 << 14), (13, 4, 0)];
    if plain.native().as_deref() != Some(&expected) {
        skip(
            Need::Cpu,
            "this host does not let a process set breakpoints and single steps",
        );
        return;
    }
    assert_eq!(plain.emulated(), expected);
    // Two loads in a row are left out: whether the second blocks is the processor's choice (SDM vol. 3A section 6.8.3). AMD's does.
    let cases = [
        case(
            |a| {
                a.mov(ss, word_ptr(rbx)).unwrap();
                a.nop().unwrap();
                a.nop().unwrap();
            },
            true,
            false,
        ),
        case(
            |a| {
                a.mov(ss, word_ptr(rbx)).unwrap();
                a.ud2().unwrap();
                a.nop().unwrap();
            },
            true,
            false,
        ),
        case(
            |a| {
                a.mov(ss, edx).unwrap();
                a.nop().unwrap();
                a.nop().unwrap();
            },
            false,
            true,
        ),
        case(
            |a| {
                a.mov(ss, edx).unwrap();
                a.ud2().unwrap();
                a.nop().unwrap();
            },
            false,
            true,
        ),
        case(
            |a| {
                a.mov(ss, edx).unwrap();
                a.int3().unwrap();
                a.nop().unwrap();
            },
            false,
            true,
        ),
        case(
            |a| {
                a.nop().unwrap();
                a.int3().unwrap();
                a.nop().unwrap();
            },
            false,
            true,
        ),
    ];
    for (number, case) in cases.iter().enumerate() {
        assert_eq!(Some(case.emulated()), case.native(), "case {number}");
    }
}
