//! Locations of the guest's registers while translated code runs.
//!
//! Eleven of the sixteen general registers have a host register for as long as translated code runs. The other five stay in the vCPU,
//! where instructions use them in memory. RAX and RCX are scratch registers: RAX because LAHF and SETO, the cheapest instructions that
//! save flags, write it, and RCX because shifts count by it. A vector register of the guest is the host's register of that number.

use iced_x86::Register;

use Register::{
    AH, AL, AX, BH, CH, DH, EAX, R8, R8L, R9, R10, R11, R12, R13, RBP, RBX, RDI, RDX, RSI, SPL,
};

/// Host register of each guest register, by number; None for the registers that stay in memory. Compilers use R11 to R15 last.
pub const HOST: [Option<Register>; 16] = [
    Some(R11),
    Some(R12),
    Some(RDX),
    Some(RBX),
    Some(R13),
    Some(RBP),
    Some(RSI),
    Some(RDI),
    Some(R8),
    Some(R9),
    Some(R10),
    None,
    None,
    None,
    None,
    None,
];

/// Host register of the guest's stack pointer.
pub const STACK: Register = R13;
/// Host register of the guest's frame pointer.
pub const FRAME: Register = RBP;

/// Returns the part of `size` bytes (1, 2, 4 or 8) of a 64-bit register.
pub fn sized(full: Register, size: usize) -> Register {
    let n = full.number() as u32;
    match size {
        8 => full,
        4 => EAX + n,
        2 => AX + n,
        _ if n < 4 => AL + n,
        _ if n < 8 => SPL + (n - 4),
        _ => R8L + (n - 8),
    }
}

/// Returns whether the register is AH, CH, DH or BH.
pub fn is_high_byte(register: Register) -> bool {
    matches!(register, AH | CH | DH | BH)
}
