//! Time slices: how far a vCPU may run before it must return to the machine. The machine may extend a time slice without the vCPU's
//! return.

use nodescope_engine::Limit;

use crate::cpu::Cpu;

/// The running time slice.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeSlice {
    /// The vCPU's clock at the end of the time slice, in cycles.
    pub limit: u64,
    /// True if the platform may extend the time slice.
    pub extends: bool,
    /// The vCPU's clock from which on no more blocks may begin, in cycles: `limit`, or where an interrupt is due.
    pub until: u64,
    /// Time by which translated code has moved `until` since the run loop last took this value, in 1/65536 of a cycle.
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
    /// Returns whether the time slice is over when the clock shows `now`. At its limit, first asks the platform to extend the time slice.
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
