//! Conversion between the cycles of a node and the picoseconds of virtual time.

/// Picoseconds in a second.
pub const PS_PER_SECOND: u64 = 1_000_000_000_000;
/// Picoseconds in a microsecond; also the picoseconds of one cycle at 1 MHz.
const PS_PER_MICROSECOND: u64 = 1_000_000;

/// Nominal clock of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeClock {
    /// Frequency in Hz, positive.
    pub hz: u64,
}

impl NodeClock {
    /// Returns the time in picoseconds at which a cycle begins, rounded down.
    #[inline]
    pub fn ps(self, cycles: u64) -> u64 {
        // Fast path without a division of 128 bits, which takes 0.1 us: nodes convert times at each barrier, every few microseconds.
        if let Some(mhz) = self.mhz()
            && let Some(product) = cycles.checked_mul(PS_PER_MICROSECOND)
        {
            return product / mhz;
        }
        (u128::from(cycles) * u128::from(PS_PER_SECOND) / u128::from(self.hz)) as u64
    }

    /// Returns the first cycle that begins at or after a time in picoseconds, at most `u64::MAX`.
    #[inline]
    pub fn cycles(self, ps: u64) -> u64 {
        if let Some(mhz) = self.mhz()
            && let Some(product) = ps.checked_mul(mhz)
        {
            return product.div_ceil(PS_PER_MICROSECOND);
        }
        let exact = (u128::from(ps) * u128::from(self.hz)).div_ceil(u128::from(PS_PER_SECOND));
        u64::try_from(exact).unwrap_or(u64::MAX)
    }

    /// Returns the frequency in MHz; `None` if it is not a whole number of MHz.
    #[inline]
    fn mhz(self) -> Option<u64> {
        let mhz = self.hz / 1_000_000;
        (mhz * 1_000_000 == self.hz).then_some(mhz)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_never_moves_back_by_conversion() {
        // The last frequency is not a whole number of MHz. A count of 1 << 50 cycles overflows the fast path.
        for hz in [1_000_000_000, 2_900_000_000, 3_330_000_000, 2_893_123_457] {
            let clock = NodeClock { hz };
            for ps in [0, 1, 344, 345, 1_300_000, 7_777_777_777_777] {
                assert!(clock.ps(clock.cycles(ps)) + 1 >= ps, "{hz} {ps}");
            }
            for cycles in [0, 1, 2, 3770, 1 << 40] {
                assert_eq!(clock.cycles(clock.ps(cycles)), cycles, "{hz} {cycles}");
            }
            for n in [0_u64, 1, 999, 3770, 123_456_789, 1 << 44, 1 << 50] {
                let (n, hz, second) = (u128::from(n), u128::from(hz), u128::from(PS_PER_SECOND));
                assert_eq!(u128::from(clock.ps(n as u64)), n * second / hz, "{hz} {n}");
                let cycles = (n * hz).div_ceil(second);
                assert_eq!(u128::from(clock.cycles(n as u64)), cycles, "{hz} {n}");
            }
        }
        assert_eq!(
            NodeClock { hz: 2_900_000_000 }.cycles(u64::MAX),
            53_495_557_813_757_700
        );
    }
}
