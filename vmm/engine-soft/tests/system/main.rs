//! Paging, exceptions, interrupts, privilege changes and self-modifying code, on a bare machine with the tables of an operating system.
//! The handler of each vector halts, and the test checks the pushed frame.

mod code;
mod debug;
mod doorbell;
mod exceptions;
mod host_traps;
#[path = "../machine/mod.rs"]
mod machine;
mod opcodes;
mod paging;
mod privilege;
mod tables;

use iced_x86::code_asm::*;
use machine::*;
use nodescope_engine::{Exit, Limit, Vcpu};
use nodescope_x86::state::seg;
use nodescope_x86::{DescriptorTable, Segment};

const TSS: u64 = 0x6000;
const GDT: u64 = 0x7000;
const IDT: u64 = 0x8000;
/// Address of the handlers. The handler of vector `n` is a HLT at `HANDLERS + 16 * n`.
const HANDLERS: u64 = 0x9000;
/// Top of the stack in RSP0 of the TSS. `EMERGENCY_STACK` is that in IST1.
const KERNEL_STACK: u64 = 0xc000;
const EMERGENCY_STACK: u64 = 0xe000;
/// The machine's last-level page table, which covers the first 2 MiB.
const LEAVES: u64 = 0x4000;

const KERNEL_CS: u64 = 0x08;
const KERNEL_SS: u64 = 0x10;
const USER_SS: u64 = 0x23;
const USER_CS: u64 = 0x2b;

const INTERRUPTS: u64 = 0x200;
const TRAP: u64 = 0x100;

/// The frame on a handler's stack.
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
        // There is no I/O permission bitmap: its address is beyond the limit.
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

    /// Prepares user code, whose system calls lead to [`CODE`].
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

    /// Replaces a page's last-level entry.
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

    /// Runs until HLT, or for 10,000 instructions.
    fn run(&mut self) -> Exit {
        self.m.vcpu.restore(&self.m.state);
        let limit = Limit::instructions(self.m.state.time.instructions + 10_000);
        let exit = self.m.vcpu.run(&mut self.m.ports, limit).unwrap();
        self.m.state = self.m.vcpu.save();
        exit
    }

    /// Runs until a handler halts; returns its vector.
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
