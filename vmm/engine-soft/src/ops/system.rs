//! System instructions.

use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::op::{Done, Handler, Op};

/// An instruction that no group knows.
pub fn unknown(cpu: &mut Cpu, _op: &Op) -> Done {
    Err(cpu.unsupported("unknown instruction"))
}

/// System instructions.
pub fn lower(_l: &mut Lowering<'_>) -> Option<Handler> {
    None
}
