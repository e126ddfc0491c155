//! How far a vCPU may run before the machine has its turn, and how one such turn follows another without the vCPU's coming back.

use nodescope_engine::Limit;

use crate::cpu::Cpu;

/// The running turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    /// The vCPU's clock at its end.
    pub limit: u64,
    /// The platform may tell a later end.
    pub extends: bool,
    /// Where the blocks that run now have to end: there, or where an interrupt is due.
    pub until: u64,
    /// What translated code has put this off by, in 1/65536 of a cycle, since the run loop looked last.
    pub put_off: i64,
}

impl Turn {
    /// It begins.
    pub fn new(limit: Limit) -> Self {
        Self {
            limit: limit.cycles,
            extends: limit.extends,
            ..Self::default()
        }
    }
}

impl Cpu {
    /// Whether the turn is over where the clock shows `now`, and no other may follow it at once.
    pub fn is_turn_over(&mut self, now: u64) -> bool {
        while now >= self.turn.limit {
            if !self.turn.extends {
                return true;
            }
            let id = self.id;
            match self.platform().extend(id) {
                Some(limit) => self.turn.limit = limit,
                None => self.turn.extends = false,
            }
        }
        false
    }
}
