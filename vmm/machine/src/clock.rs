//! Conversion between a node's cycles and the cluster's picoseconds.

/// Picoseconds in a second.
pub const PS_PER_SECOND: u64 = 1_000_000_000_000;

/// The nominal clock of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeClock {
    /// Frequency in Hz; positive.
    pub hz: u64,
}

impl NodeClock {
    /// When a cycle begins, rounded down.
    pub fn ps(self, cycles: u64) -> u64 {
        (u128::from(cycles) * u128::from(PS_PER_SECOND) / u128::from(self.hz)) as u64
    }

    /// First cycle that begins at or after a time; saturates.
    pub fn cycles(self, ps: u64) -> u64 {
        let exact = (u128::from(ps) * u128::from(self.hz)).div_ceil(u128::from(PS_PER_SECOND));
        u64::try_from(exact).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_never_moves_back_by_conversion() {
        for hz in [1_000_000_000, 2_900_000_000, 3_330_000_000] {
            let clock = NodeClock { hz };
            for ps in [0, 1, 344, 345, 1_300_000, 7_777_777_777_777] {
                assert!(clock.ps(clock.cycles(ps)) + 1 >= ps, "{hz} {ps}");
            }
            for cycles in [0, 1, 2, 3770, 1 << 40] {
                assert_eq!(clock.cycles(clock.ps(cycles)), cycles, "{hz} {cycles}");
            }
        }
        assert_eq!(
            NodeClock { hz: 2_900_000_000 }.cycles(u64::MAX),
            53_495_557_813_757_700
        );
    }
}
