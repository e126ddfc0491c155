//! Virtual time in cycles of a node's nominal clock, and its conversions. No code here reads a host clock.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

/// Frequency of a clock in hertz; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hertz(NonZeroU64);

impl Hertz {
    /// Returns a frequency, or `None` for zero.
    pub const fn new(hertz: u64) -> Option<Self> {
        match NonZeroU64::new(hertz) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// Returns the frequency in hertz.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns the number of this clock's cycles in `ns` nanoseconds, rounded up and saturating.
    pub fn cycles_from_ns(self, ns: u64) -> u64 {
        scale_up(ns, self.get() as u128, 1_000_000_000)
    }

    /// Returns the duration of `cycles` in nanoseconds, rounded down and saturating.
    pub fn ns_from_cycles(self, cycles: u64) -> u64 {
        saturate(cycles as u128 * 1_000_000_000 / self.get() as u128)
    }

    /// Returns the number of this clock's cycles that moving `bytes` takes, rounded up and saturating. A rate of None is infinite, so the
    /// result is 0.
    pub fn cycles_for_bytes(self, bytes: u64, bytes_per_second: Option<NonZeroU64>) -> u64 {
        match bytes_per_second {
            Some(rate) => scale_up(bytes, self.get() as u128, rate.get() as u128),
            None => 0,
        }
    }
}

/// Returns `value * num / den`, rounded up and saturating.
pub(crate) fn scale_up(value: u64, num: u128, den: u128) -> u64 {
    match (value as u128).checked_mul(num) {
        Some(product) => saturate(product.div_ceil(den)),
        None => u64::MAX,
    }
}

pub(crate) fn saturate(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_round_up_and_saturate() {
        let clock = Hertz::new(2_900_000_000).unwrap();
        assert_eq!(clock.cycles_from_ns(1), 3);
        assert_eq!(clock.cycles_from_ns(10), 29);
        assert_eq!(clock.cycles_from_ns(u64::MAX), u64::MAX);
        assert_eq!(clock.ns_from_cycles(29), 10);
        assert_eq!(
            clock.cycles_for_bytes(1000, NonZeroU64::new(1_000_000_000)),
            2900
        );
        assert_eq!(clock.cycles_for_bytes(1000, None), 0);
        assert_eq!(Hertz::new(0), None);
    }
}
