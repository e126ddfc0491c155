//! The state that an instruction in user mode can see and change.

use nodescope_x86::{Exception, FxImage, Vector256};

/// User-visible registers. The XMM area of `fx` is not used.
#[derive(Clone, Debug)]
pub struct State {
    /// General registers in the order RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15.
    pub gpr: [u64; 16],
    /// Instruction pointer, RIP.
    pub rip: u64,
    /// Flags register, RFLAGS.
    pub rflags: u64,
    /// State of x87 and MXCSR.
    pub fx: FxImage,
    /// Vector registers YMM0 to YMM15.
    pub vector: Vector256,
}

/// The outcome of an instruction.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exception that the instruction raised; `None` where the instruction retired.
    pub exception: Option<Exception>,
    /// State after the instruction; after an exception, the state that the exception handler would see.
    pub state: State,
}
