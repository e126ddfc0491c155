//! The state that an instruction in user mode can see and change.

use nodescope_x86::{Exception, FxImage, Vector256};

/// User-visible registers. The XMM area of `fx` is not used.
#[derive(Clone, Debug)]
pub struct State {
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8–R15.
    pub gpr: [u64; 16],
    /// Instruction pointer, RIP.
    pub rip: u64,
    /// Flags register, RFLAGS.
    pub rflags: u64,
    /// x87 and MXCSR.
    pub fx: FxImage,
    /// Vector registers YMM0–YMM15.
    pub vector: Vector256,
}

/// The outcome of an instruction.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exception that the instruction raised; None where it retired.
    pub exception: Option<Exception>,
    /// State after the instruction, or at the exception.
    pub state: State,
}
