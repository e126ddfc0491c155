//! Vector, x87, MMX and extended-state instructions.
//!
//! The host is x86-64, too, and does the arithmetic: results are exact, and the engine needs no floating-point code of its own. Reading
//! order: [`classify`] (chooses handlers), `emit` and `arena` (native stubs), `execute` (calls stubs), `moves` (frequent moves, without a
//! stub), `elements` (masked moves and gathers), `mxcsr`, `x87`, `xsave`, `flops`.
//!
//! Instruction sets that are not implemented: AVX-512, AMX, SHA, GFNI, VAES, AVX-VNNI, XOP, FMA4, SSE4a, 3DNow!. No CPUID template of the
//! portable engine announces them, so that their instructions raise `#UD` (`features.rs`).

mod arena;
mod classify;
mod elements;
mod emit;
mod execute;
mod flops;
mod moves;
mod mxcsr;
#[cfg(test)]
mod tests;
pub mod x87;
mod xsave;

use std::collections::HashMap;

use nodescope_x86::Exception;
use nodescope_x86::Vector;
use nodescope_x86::bits::{cr0, cr4, xcr0};
use thiserror::Error;

use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::op::{Done, Handler, Op, Trap};

use arena::{Arena, ArenaError};

/// Conditions of an instruction on the control registers; bits of [`SimdState::available`].
pub(crate) mod need {
    /// CR0.EM and CR0.TS must be clear, else `#NM`.
    pub const X87: u8 = 1 << 0;
    /// CR0.EM must be clear, else `#UD`; CR0.TS must be clear, else `#NM`.
    pub const MMX: u8 = 1 << 1;
    /// As for MMX; in addition CR4.OSFXSR must be set, else `#UD`.
    pub const SSE: u8 = 1 << 2;
    /// CR0.PE, CR4.OSXSAVE, XCR0.SSE and XCR0.AVX must be set, else `#UD`; CR0.TS must be clear, else `#NM`.
    pub const AVX: u8 = 1 << 3;
    /// CR4.OSXSAVE must be set, else `#UD`; CR0.TS must be clear, else `#NM`.
    pub const XSAVE: u8 = 1 << 4;
    /// CR0.MP and CR0.TS must not both be set, else `#NM`.
    pub const WAIT: u8 = 1 << 5;
}

/// Reason for which an instruction has no stub.
#[derive(Debug, Error)]
enum StubError {
    #[error(transparent)]
    Arena(#[from] ArenaError),
    #[error("cannot re-encode {instruction}: {source}")]
    Encode {
        instruction: String,
        source: iced_x86::IcedError,
    },
    #[error(
        "{instruction} needs {feature}, which this host's processor lacks; choose a CPUID template without it"
    )]
    Host {
        instruction: String,
        feature: &'static str,
    },
}

/// State that a vCPU's vector and x87 instructions share with the host's registers.
#[derive(Default)]
#[repr(C)]
pub struct SimdState {
    /// The host's MXCSR, which a stub stores here for a comparison.
    host_mxcsr: u32,
    /// Bits of [`need`] whose conditions hold. A clear bit may be out of date: the condition is checked again before an exception is
    /// raised.
    available: u8,
    /// State of the host's x87 unit.
    x87: x87::Resident,
}

/// Native code that carries out vector and x87 instructions. Operations of decoded blocks refer to this code.
pub struct Stubs {
    by_key: HashMap<Box<[u8]>, u64>,
    arena: Option<Arena>,
    messages: Vec<String>,
    /// Maximum size of the stubs in bytes.
    room: usize,
}

impl Default for Stubs {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
            arena: None,
            messages: Vec::new(),
            room: arena::CAPACITY,
        }
    }
}

/// Upper bound of the size of a stub in bytes. A stub takes about 80 bytes, or 300 where it moves many registers.
const LONGEST_STUB: usize = 512;

impl Stubs {
    /// Returns whether stubs of this many more instructions fit.
    pub fn has_room(&self, instructions: usize) -> bool {
        let used = self.arena.as_ref().map_or(0, Arena::used);
        used + instructions * LONGEST_STUB <= self.room
    }

    /// Sets the maximum size of the stubs in bytes, at least the size that one block may need. Must be called before anything is decoded.
    pub fn set_room(&mut self, bytes: usize) {
        self.room = bytes.clamp(crate::fetch::MAX_BLOCK * LONGEST_STUB, arena::CAPACITY);
    }

    /// Returns empty stubs with the same maximum size.
    pub fn another(&self) -> Self {
        Self {
            room: self.room,
            ..Self::default()
        }
    }

    /// Returns the address of an instruction's stub, which is made at the first request.
    fn get(&mut self, instruction: &iced_x86::Instruction, mxcsr: bool) -> Result<u64, StubError> {
        let failed = |source| StubError::Encode {
            instruction: format!("{:?}", instruction.code()),
            source,
        };
        let plan = emit::plan(instruction, mxcsr).map_err(failed)?;
        if let Some(at) = self.by_key.get(&plan.key) {
            return Ok(*at);
        }
        let arena = match &mut self.arena {
            Some(arena) => arena,
            none => none.insert(Arena::new()?),
        };
        let code = plan.assemble(arena.next()).map_err(failed)?;
        debug_assert!(code.len() <= LONGEST_STUB, "{:?}", instruction.code());
        let at = arena.push(&code)?;
        self.by_key.insert(plan.key, at);
        Ok(at)
    }

    /// Stores a message for an operation that stops the study when it is executed; returns the message's index.
    fn message(&mut self, text: String) -> u32 {
        let at = self.messages.iter().position(|m| *m == text);
        at.unwrap_or_else(|| {
            self.messages.push(text);
            self.messages.len() - 1
        }) as u32
    }
}

/// Computes what instructions CR0, CR4 and XCR0 permit. Must be called after every change of one of these registers.
pub fn recompute_simd_availability(cpu: &mut Cpu) {
    let (c0, c4, x) = (cpu.control.cr0, cpu.control.cr4, cpu.control.xcr0);
    let emulated = c0 & cr0::EM != 0;
    let switched = c0 & cr0::TS != 0;
    let vector = xcr0::SSE | xcr0::AVX;
    let mut bits = 0;
    let mut set = |bit, holds| {
        if holds {
            bits |= bit
        }
    };
    set(need::X87, !emulated && !switched);
    set(need::MMX, !emulated && !switched);
    set(need::SSE, !emulated && !switched && c4 & cr4::OSFXSR != 0);
    set(
        need::AVX,
        !switched && c4 & cr4::OSXSAVE != 0 && x & vector == vector && c0 & cr0::PE != 0,
    );
    set(need::XSAVE, !switched && c4 & cr4::OSXSAVE != 0);
    set(need::WAIT, !(switched && c0 & cr0::MP != 0));
    cpu.simd.available = bits;
}

/// Returns whether SSE and AVX instructions may be used. False may also mean that the conditions hold, but were not checked again.
pub(crate) fn vectors_available(cpu: &Cpu) -> bool {
    cpu.simd.available & (need::SSE | need::AVX) == need::SSE | need::AVX
}

/// Checks the conditions of an instruction ([`need`]), and raises `#UD` or `#NM` if one of them does not hold.
#[inline(always)]
fn require(cpu: &mut Cpu, need: u8) -> Result<(), Trap> {
    if cpu.simd.available & need == need {
        return Ok(());
    }
    unavailable(cpu, need)
}

#[cold]
#[inline(never)]
fn unavailable(cpu: &mut Cpu, need: u8) -> Result<(), Trap> {
    recompute_simd_availability(cpu);
    let missing = need & !cpu.simd.available;
    if missing == 0 {
        return Ok(());
    }
    // `#UD` has priority over `#NM` (SDM vol. 2A §2.4, exception classes): check again as if CR0.TS were clear.
    let invalid = {
        let c0 = cpu.control.cr0;
        cpu.control.cr0 &= !cr0::TS;
        recompute_simd_availability(cpu);
        let still = need & !cpu.simd.available;
        cpu.control.cr0 = c0;
        recompute_simd_availability(cpu);
        still & !(need::X87 | need::WAIT) != 0
    };
    Err(cpu.raise(if invalid {
        Exception::ud()
    } else {
        Exception::new(Vector::DeviceNotAvailable)
    }))
}

/// Stops the study at an operation whose stub could not be made.
fn refused(cpu: &mut Cpu, op: &Op) -> Done {
    let text = cpu.code().pool.stubs().messages[op.aux as usize].clone();
    Err(cpu.unsupported(text))
}

/// Lowers a vector, x87, MMX or extended-state instruction; None for other instructions.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    if !classify::is_ours(l.instruction) {
        return None;
    }
    flops::count(l.instruction, l.op);
    l.accesses_counted = true;
    classify::lower(l)
}
