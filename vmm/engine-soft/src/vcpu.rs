//! The portable engine behind the seam.

use crate::cpu::Cpu;

/// A vCPU of the portable engine.
pub struct SoftVcpu {
    #[allow(dead_code)]
    cpu: Box<Cpu>,
}
