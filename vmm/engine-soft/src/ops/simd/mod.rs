//! (being written)

use crate::lower::Lowering;
use crate::op::Handler;

pub fn lower(_l: &mut Lowering<'_>) -> Option<Handler> {
    None
}

/// Native code stubs.
#[derive(Default)]
pub struct Stubs;

/// Recompute whether vector instructions may execute.
pub fn recompute_simd_availability(_cpu: &mut crate::cpu::Cpu) {}
