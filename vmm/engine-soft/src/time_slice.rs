//! Time slices: how far a vCPU may run before it must return to the machine. The machine may extend a time slice without the vCPU's
//! return.

use nodescope_engine::Limit;

use crate::cpu::Cpu;

/// The running time slice.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeSlice {
    /// The vCPU's clock at its end.
    pub limit: u64,
    /// The platform may extend the slice.
    pub extends: bool,
    /// The vCPU's clock where no more blocks may begin: at `limit`, or where an interrupt is due.
    pub until: u64,
    /// By how much translated code has moved `until` since the run loop looked last, in 1/65536 of a cycle.
    pub extension: i64,
}

impl TimeSlice {
    /// Begins a time slice.
    pub fn new(limit: Limit) -> Self {
        Self {
            limit: limit.cycles,
            extends: limit.extends,
            ..Self::default()
        }
    }
}

impl Cpu {
    /// Returns whether the time slice is over when the clock shows `now`, and the platform does not extend the slice.
    pub fn is_time_slice_over(&mut self, now: u64) -> bool {
        while now >= self.time_slice.limit {
            if !self.time_slice.extends {
                return true;
            }
            let id = self.id;
            match self.platform().extend(id) {
                Some(limit) => self.time_slice.limit = limit,
                None => self.time_slice.extends = false,
            }
        }
        false
    }
}
