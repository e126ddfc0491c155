//! A bare 64-bit machine for instruction tests: 16 MiB of RAM mapped at its own address, no devices.
#![allow(dead_code)]

use iced_x86::code_asm::CodeAssembler;
use nodescope_engine::Vcpu;
use nodescope_engine_soft::{SoftVcpu, StepOutcome, Translate};
use nodescope_memory::Ram;
use nodescope_oracle::bare::{self, Bare};
use nodescope_x86::state::seg;
use nodescope_x86::{Exception, FxImage, VcpuState};

/// Address of the code.
pub const CODE: u64 = 0x1_0000;
/// Address of 64 KiB for a test's data.
pub const DATA: u64 = 0x2_0000;
/// Top of the stack.
pub const STACK: u64 = 0x4_0000;
/// Address of a page that is not present.
pub const ABSENT: u64 = 0x5_0000;
/// Address of a page that cannot be written, not even by the kernel.
pub const READ_ONLY: u64 = 0x6_0000;

pub const RAX: usize = 0;
pub const RCX: usize = 1;
pub const RDX: usize = 2;
pub const RBX: usize = 3;
pub const RSP: usize = 4;
pub const RBP: usize = 5;
pub const RSI: usize = 6;
pub const RDI: usize = 7;

/// Machine of a vCPU, guest RAM and ports, which runs the code of a test.
pub struct Machine {
    pub vcpu: SoftVcpu,
    pub ram: Ram,
    pub ports: Bare,
    pub state: VcpuState,
}

impl Machine {
    /// Creates a machine with this code, in 64-bit mode at CPL 0.
    pub fn new(code: impl FnOnce(&mut CodeAssembler)) -> Self {
        let mut assembler = CodeAssembler::new(64).unwrap();
        code(&mut assembler);
        Self::with_bytes(&assembler.assemble(CODE).unwrap())
    }

    /// Creates a machine with these bytes of code, in 64-bit mode at CPL 0.
    pub fn with_bytes(code: &[u8]) -> Self {
        let ram = Ram::new(&[16 << 20]).unwrap();
        let put = |at: u64, value: u64| assert!(ram.write(at, &value.to_le_bytes()));
        put(0x1000, 0x2000 | 7);
        put(0x2000, 0x3000 | 7);
        put(0x3000, 0x4000 | 7);
        for page in 0..512_u64 {
            let at = page << 12;
            let flags = match at {
                ABSENT => 0,
                READ_ONLY => 5,
                _ => 7,
            };
            put(0x4000 + page * 8, at | flags);
        }
        for large in 1..8_u64 {
            put(0x3000 + large * 8, large << 21 | 0x87);
        }
        assert!(ram.write(CODE, code));
        let mut state = VcpuState::reset();
        state.fx = FxImage::default();
        state.control.cr0 = 0x8005_0033;
        state.control.cr3 = 0x1000;
        state.control.cr4 = 0x20;
        state.control.efer = 0xd00;
        state.general.rip = CODE;
        state.general.gpr = [0; 16];
        state.general.gpr[RSP] = STACK;
        for d in &mut state.segments.data {
            *d = bare::flat(0x10, 0xc093);
        }
        state.segments.data[seg::CS] = bare::flat(8, 0xa09b);
        let vcpu = bare::vcpu(&ram, Translate::After(0));
        Self {
            vcpu,
            ram,
            ports: Bare::default(),
            state,
        }
    }

    /// Changes to compatibility mode (32-bit code and stack).
    pub fn bits32(mut self) -> Self {
        self.state.segments.data[seg::CS].attributes = 0xc09b;
        self
    }

    pub fn set(mut self, register: usize, value: u64) -> Self {
        self.state.general.gpr[register] = value;
        self
    }

    pub fn flags(mut self, flags: u64) -> Self {
        self.state.general.rflags = flags | 2;
        self
    }

    pub fn poke(self, at: u64, bytes: &[u8]) -> Self {
        assert!(self.ram.write(at, bytes));
        self
    }

    pub fn peek<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        assert!(self.ram.read(at, &mut bytes));
        bytes
    }

    /// Executes `n` instructions, or chunks of repeated instructions, all of which must retire.
    pub fn steps(mut self, n: usize) -> Self {
        self.vcpu.restore(&self.state);
        for _ in 0..n {
            assert_eq!(
                self.vcpu.step_undelivered(&mut self.ports).unwrap(),
                StepOutcome::Retired
            );
        }
        self.state = self.vcpu.save();
        self
    }

    /// Executes one instruction, which must fault.
    pub fn fault(mut self) -> (Self, Exception) {
        self.vcpu.restore(&self.state);
        match self.vcpu.step_undelivered(&mut self.ports).unwrap() {
            StepOutcome::Exception(e) => {
                self.state = self.vcpu.save();
                (self, e)
            }
            other => panic!("expected a fault, got {other:?}"),
        }
    }

    pub fn reg(&self, register: usize) -> u64 {
        self.state.general.gpr[register]
    }

    pub fn rip(&self) -> u64 {
        self.state.general.rip
    }

    pub fn status(&self) -> u64 {
        self.state.general.rflags & 0x8d5
    }
}
