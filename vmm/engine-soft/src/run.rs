//! The run loop.

use nodescope_engine::Platform;

use crate::cpu::Cpu;

impl Cpu {
    /// The vCPU's clock in cycles.
    pub fn now(&self) -> u64 {
        self.time.cycles
    }

    /// The machine around the running vCPU.
    pub fn platform(&mut self) -> &mut dyn Platform {
        let mut p = self.platform.expect("called only below run()");
        // SAFETY: `run` stores a pointer to the exclusive reference it was given and clears it before it returns; the
        // lifetime of the result is bound to `self`, which `run` holds.
        unsafe { p.as_mut() }
    }
}
