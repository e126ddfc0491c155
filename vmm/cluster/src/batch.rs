//! Rules for the ends of the quanta in a batch.

/// Quanta that follow each other without a check of the nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuantumBatch {
    /// End of the first quantum, picoseconds.
    pub first_end_ps: u64,
    /// Length of each further quantum once a node has a network interface that is up, picoseconds. If all nodes sleep, the length counts
    /// from the time at which the first node wakes up.
    pub lookahead_ps: u64,
    /// Length of each further quantum as long as no node has a network interface that is up, picoseconds.
    pub disconnected_lookahead_ps: u64,
    /// Virtual time after which no quantum of the batch ends, picoseconds.
    pub end_limit_ps: u64,
    /// Virtual time from which on no further quantum begins, picoseconds: the first quantum that ends at this time or later is the last
    /// one.
    pub start_limit_ps: u64,
    /// Number of quanta that may still run, the present one included.
    pub quanta_left: u64,
}

impl QuantumBatch {
    /// Returns the end of the quantum that follows a quantum which ended at `now_ps`, or `None` where the batch ends. `all` summarises all
    /// nodes.
    pub(crate) fn next_end(&mut self, now_ps: u64, all: BarrierSummary) -> Option<u64> {
        self.quanta_left -= 1;
        let ends = self.quanta_left == 0
            || now_ps >= self.start_limit_ps
            || all.next_activity_ps == u64::MAX;
        if ends || !all.quiescent {
            return None;
        }
        let lookahead_ps = if all.connected {
            self.lookahead_ps
        } else {
            self.disconnected_lookahead_ps
        };
        Some((all.next_activity_ps.max(now_ps) + lookahead_ps).min(self.end_limit_ps))
    }
}

/// State of some nodes at the barrier, as far as the length of the next quantum depends on it.
#[derive(Clone, Copy, Debug)]
pub struct BarrierSummary {
    /// True if all of these nodes run on, and nobody waits for their output.
    pub quiescent: bool,
    /// Time at which the first of these nodes, or the network, has something to do, picoseconds; the time may lie in the past.
    pub next_activity_ps: u64,
    /// True if any of these nodes has a network interface that is up.
    pub connected: bool,
}

impl BarrierSummary {
    /// Summary of a node at the default end of a quantum ([`crate::barrier::Arrival::Awake`]).
    pub const DEFAULT: Self = Self {
        quiescent: true,
        next_activity_ps: 0,
        connected: true,
    };

    /// Returns the summary of the nodes of both summaries.
    pub fn merge(self, other: Self) -> Self {
        Self {
            quiescent: self.quiescent && other.quiescent,
            next_activity_ps: self.next_activity_ps.min(other.next_activity_ps),
            connected: self.connected || other.connected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(mut batch: QuantumBatch, all: impl Fn(u64) -> BarrierSummary) -> Vec<u64> {
        let mut ends = vec![batch.first_end_ps];
        while let Some(next) = batch.next_end(ends[ends.len() - 1], all(ends[ends.len() - 1])) {
            ends.push(next);
        }
        ends
    }

    fn active_at(next_activity_ps: u64) -> BarrierSummary {
        BarrierSummary {
            next_activity_ps,
            ..BarrierSummary::DEFAULT
        }
    }

    #[test]
    fn quanta_follow_each_other_until_a_node_must_be_looked_at() {
        let batch = QuantumBatch {
            first_end_ps: 10,
            lookahead_ps: 10,
            disconnected_lookahead_ps: 70,
            end_limit_ps: 1000,
            start_limit_ps: 1000,
            quanta_left: 4,
        };
        assert_eq!(ends(batch, |_| BarrierSummary::DEFAULT), [10, 20, 30, 40]);
        let due = QuantumBatch {
            start_limit_ps: 25,
            ..batch
        };
        assert_eq!(
            ends(due, |_| BarrierSummary::DEFAULT),
            [10, 20, 30],
            "the first quantum that ends at 25 or later is the last one"
        );
        let short = QuantumBatch {
            end_limit_ps: 25,
            start_limit_ps: 25,
            ..batch
        };
        assert_eq!(
            ends(short, |_| BarrierSummary::DEFAULT),
            [10, 20, 25],
            "no quantum ends after the limit"
        );
        assert_eq!(
            ends(batch, |now| active_at(if now == 20 { 500 } else { 0 })),
            [10, 20, 510, 520],
            "a time in which all nodes sleep is skipped"
        );
        assert_eq!(
            ends(batch, |_| active_at(u64::MAX)),
            [10],
            "no node will ever have anything to do"
        );
        let connected = |now| BarrierSummary {
            connected: now > 80,
            ..BarrierSummary::DEFAULT
        };
        assert_eq!(
            ends(batch, connected),
            [10, 80, 150, 160],
            "nodes without a connection have longer quanta"
        );
        let output = BarrierSummary {
            quiescent: false,
            ..BarrierSummary::DEFAULT
        };
        assert_eq!({ batch }.next_end(10, output), None, "there is output");
    }
}
