//! Watches, at times that each vCPU's clock decides, whether code runs whose cost is not known yet.

use crate::node::Node;

/// Cycles between two looks at a vCPU.
const PERIOD: u64 = 80_000;
/// Weight of a look at code of unknown cost, and the sum at which something must be done. Older looks lose an eighth of their weight with
/// each look, so that six looks in a row are needed.
const WEIGHT: u32 = 32;
const ALARM: u32 = 128;
/// Periods without a look behind an interval, for each of which the number doubles if code of unknown cost had asked for that interval: it may
/// have missed the code.
const REST: u64 = 8;
/// Maximum number of such doublings.
const MOST_DOUBLINGS: u32 = 6;

/// What was seen of one vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watch {
    /// Sum of the looks at code of unknown cost, by weight.
    sum: u32,
}

impl Watch {
    /// Adds a look. Returns whether something must be done, and then begins anew.
    fn look(&mut self, unknown: bool) -> bool {
        self.sum = self.sum - self.sum / 8 + if unknown { WEIGHT } else { 0 };
        let alarm = self.sum >= ALARM;
        if alarm {
            self.sum = 0;
        }
        alarm
    }
}

impl Node {
    /// Begins to watch all vCPUs, or stops.
    pub(crate) fn watch_code(&mut self, on: bool) {
        let periods = match self.counting.is_paused() {
            true => REST << self.counting.urgent_in_a_row.min(MOST_DOUBLINGS),
            false => 1,
        };
        let next = |cycles: u64| match on {
            true => cycles + PERIOD * periods,
            false => u64::MAX,
        };
        let clocks = self.vcpus.iter().map(|vcpu| vcpu.cycles());
        self.motherboard.watch_at = clocks.map(next).collect();
        self.counting.watches = vec![Watch::default(); self.vcpus.len()];
        self.motherboard.wants_interval = false;
    }

    /// Looks at the code of a vCPU, if a look is due. In a window, code that no recording has timed begins a recording. Between intervals
    /// of a sampled window, code whose cost is not known asks for an interval.
    pub(crate) fn look_at_code(&mut self, v: usize) {
        let now = self.vcpus[v].cycles();
        if now < self.motherboard.watch_at[v] {
            return;
        }
        self.motherboard.watch_at[v] = now + PERIOD;
        if self.halted[v] {
            return;
        }
        let Some(block) = self.vcpus[v].next_block(&mut *self.motherboard) else {
            return;
        };
        let unknown = match (&self.motherboard.core, self.counting.is_paused()) {
            (_, true) => !block.has_cost,
            (Some(core), false) => !core.model.has_timed(block.number),
            (None, false) => false,
        };
        if self.counting.watches[v].look(unknown) {
            match self.counting.is_paused() {
                true => self.motherboard.wants_interval = true,
                false => self.vcpus[v].record_soon(),
            }
        }
    }

    /// Returns whether code of unknown cost asks for an interval of a sampled window.
    pub fn wants_interval(&self) -> bool {
        self.motherboard.wants_interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_looks_in_a_row_or_most_of_many_raise_the_alarm() {
        let mut watch = Watch::default();
        let alarms: Vec<bool> = (0..6).map(|_| watch.look(true)).collect();
        assert_eq!(alarms, [false, false, false, false, false, true]);
        assert!((0..1000).all(|n| !watch.look(n % 3 == 0)));
        assert!((0..1000).any(|n| watch.look(n % 3 != 0)));
    }
}
