//! Hardware breakpoints (SDM vol. 3B §17.2 and §17.3).
//!
//! Code breakpoints are checked before each instruction. While any are enabled, instructions run one at a time. Data breakpoints do not
//! slow other accesses: their pages are kept out of the softmmu TLB, so every access to these pages takes the slow path and is checked
//! there.

use nodescope_x86::bits::{cr4, dr6, dr7, rflags};
use nodescope_x86::{Exception, InterruptShadow, Vector};

use crate::cpu::Cpu;
use crate::op::Trap;

/// Values of a breakpoint's R/W field in DR7: the kind of access that triggers it. The fourth value, 3, is for reads and writes of data.
const EXECUTION: u64 = 0;
const WRITE: u64 = 1;
const PORT: u64 = 2;

/// Enabled breakpoints. Bit `n` of each set is the breakpoint of DR`n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakpoints {
    code: u8,
    data: u8,
    ports: u8,
    /// First address of each breakpoint: linear for code and data, or a port number.
    first: [u64; 4],
    /// Length of each data or port breakpoint in bytes.
    len: [u8; 4],
    /// Breakpoints that accesses of the running instruction have triggered.
    triggered: u8,
    /// True if the running instruction has loaded RFLAGS for the kernel's entry.
    entered: bool,
}

/// Kind of access that data and port breakpoints are checked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Read of data.
    Read,
    /// Write of data.
    Write,
    /// Access to an I/O port.
    Port,
}

/// Returns the indices of the set bits, from 0 to 3.
fn numbers(set: u8) -> impl Iterator<Item = usize> {
    (0..4).filter(move |n| set >> n & 1 != 0)
}

impl Breakpoints {
    fn new(address: [u64; 4], control: u64, debugging_extensions: bool) -> Self {
        let mut b = Self::default();
        for (n, address) in address.into_iter().enumerate() {
            if control >> (2 * n) & 3 == 0 {
                continue;
            }
            // The encodings mean lengths of 1, 2, 8 and 4 bytes. Addresses are aligned to the length.
            let len = [1, 2, 8, 4][(control >> (18 + 4 * n) & 3) as usize];
            b.len[n] = len;
            b.first[n] = address & !u64::from(len - 1);
            match control >> (16 + 4 * n) & 3 {
                EXECUTION => {
                    b.code |= 1 << n;
                    b.first[n] = address;
                }
                PORT if debugging_extensions => b.ports |= 1 << n,
                // Without CR4.DE, this value is undefined.
                PORT => {}
                _ => b.data |= 1 << n,
            }
        }
        b
    }

    /// Returns whether any code breakpoint is enabled.
    pub fn on_code(&self) -> bool {
        self.code != 0
    }

    /// Returns the code breakpoints at a linear address, as a bit set.
    fn at(&self, linear: u64) -> u8 {
        let here = numbers(self.code).filter(|&n| self.first[n] == linear);
        here.fold(0, |all, n| all | 1 << n)
    }

    /// Returns whether a data breakpoint begins in the aligned memory block of `1 << shift` bytes at `linear`.
    #[inline(always)]
    pub fn watch(&self, linear: u64, shift: u32) -> bool {
        self.data != 0 && self.watch_slow(linear, shift)
    }

    #[cold]
    fn watch_slow(&self, linear: u64, shift: u32) -> bool {
        numbers(self.data).any(|n| self.first[n] >> shift == linear >> shift)
    }
}

impl Cpu {
    /// Recomputes the breakpoints from the debug registers. Must be called after every change of a debug register or of CR4.DE.
    pub fn refresh_breakpoints(&mut self) {
        let extensions = self.control.cr4 & cr4::DE != 0;
        let new = Breakpoints::new(self.debug.dr, self.debug.dr7, extensions);
        if (new.data | self.breakpoints.data) != 0 && new != self.breakpoints {
            // Pages with breakpoints must leave the TLB, and pages that no longer have any may enter it again.
            self.data_tlb.flush();
        }
        self.breakpoints = new;
    }

    /// Checks an access for breakpoints. If one is triggered, a trap follows the instruction.
    #[inline(always)]
    pub fn watch_access(&mut self, linear: u64, len: usize, access: AccessKind) {
        let b = &self.breakpoints;
        if (b.data | b.ports) != 0 {
            self.watch_access_slow(linear, len, access);
        }
    }

    #[cold]
    fn watch_access_slow(&mut self, linear: u64, len: usize, access: AccessKind) {
        let b = &self.breakpoints;
        let set = if access == AccessKind::Port {
            b.ports
        } else {
            b.data
        };
        let triggered = numbers(set).filter(|&n| {
            let kind = self.debug.dr7 >> (16 + 4 * n) & 3;
            let waits = access != AccessKind::Read || kind != WRITE;
            let end = linear.wrapping_add(len as u64 - 1);
            let last = b.first[n] + u64::from(b.len[n] - 1);
            waits && linear <= last && b.first[n] <= end
        });
        let triggered = triggered.fold(0, |all, n| all | 1 << n);
        if triggered != 0 {
            self.breakpoints.triggered |= triggered;
            // The run loop must check after this instruction.
            self.touched_platform = true;
            self.end_block();
        }
    }

    /// Clears triggered breakpoints of accesses that were not an instruction's own.
    pub fn forget_breakpoints_met(&mut self) {
        self.breakpoints.triggered = 0;
        self.breakpoints.entered = false;
    }

    /// Lets the new TF decide whether a single-step trap follows the running instruction, which is INT n, INT1, INT3, INTO or SYSCALL.
    pub fn step_by_new_flags(&mut self) {
        self.breakpoints.entered = true;
    }

    /// Returns whether a single-step trap follows an instruction that began with TF set (SDM vol. 3B §17.3.1.4). Instructions that enter
    /// the kernel and clear TF are not stepped. A kernel would otherwise find the trap on its first instruction.
    fn steps(&self) -> bool {
        !self.breakpoints.entered || self.rflags & rflags::TF != 0
    }

    /// Drops the data breakpoints that MOV SS or POP SS triggered before the running instruction.
    pub fn drop_pending_breakpoints(&mut self) {
        self.events.pending_breakpoints = 0;
    }

    /// Returns the debug trap after an instruction, if breakpoints were triggered or `traced` is true: the instruction began with TF set.
    /// Sets the reasons in DR6.
    ///
    /// No trap follows MOV SS or POP SS (SDM vol. 3A §6.8.3). Data breakpoints that such an instruction triggered come up after the next
    /// instruction, even if the next instruction enters the kernel. TF is looked at again by the next instruction.
    pub fn trap_after(&mut self, traced: bool) -> Option<Exception> {
        let met = std::mem::take(&mut self.breakpoints.triggered);
        if self.events.shadow == InterruptShadow::MovSs {
            self.events.pending_breakpoints |= met;
            return None;
        }
        let pending = std::mem::take(&mut self.events.pending_breakpoints);
        let step = if traced && self.steps() { dr6::BS } else { 0 };
        let because = u64::from(met | pending) | step;
        (because != 0).then(|| {
            self.debug.dr6 |= because;
            Exception::new(Vector::Debug)
        })
    }

    /// Returns the debug fault before the instruction at the instruction pointer, if it has a code breakpoint and RF is clear.
    pub fn fault_before(&mut self) -> Option<Exception> {
        if self.rflags & rflags::RF != 0 {
            return None;
        }
        let ip = self.gpr[crate::op::RIP as usize];
        let triggered = self.breakpoints.at(self.code_linear(ip));
        (triggered != 0).then(|| {
            self.debug.dr6 |= u64::from(triggered);
            Exception::new(Vector::Debug)
        })
    }

    /// Raises `#DB` for an access to a debug register if DR7.GD is set.
    pub fn guard_debug_registers(&mut self) -> Result<(), Trap> {
        if self.debug.dr7 & dr7::GD == 0 {
            return Ok(());
        }
        self.debug.dr6 |= dr6::BD;
        Err(self.raise(Exception::new(Vector::Debug)))
    }
}
