//! Memory-level parallelism: divides modelled stalls by the number of misses that overlap.

use serde::Serialize;
use thiserror::Error;

/// Error for a number that is not from 1 to [`Parallelism::MOST`].
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[error(
    "a memory parallelism of {0} is no number from 1 to 64; write 1 to add every stall, as the published formula does"
)]
pub struct ParallelismError(f64);

/// Average number of misses that a core has outstanding at a time; 1 if each miss waits for the miss before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Parallelism(f64);

impl Parallelism {
    /// No overlap: every stall counts, as in the published formula.
    pub const NONE: Self = Self(1.0);
    /// Highest accepted number: no core has more outstanding misses of its first level.
    pub const MOST: u32 = 64;

    /// Makes a parallelism of `misses` misses that are outstanding at a time on average.
    ///
    /// # Errors
    ///
    /// If the number is not from 1 to [`Parallelism::MOST`].
    pub fn new(misses: f64) -> Result<Self, ParallelismError> {
        if (1.0..=f64::from(Self::MOST)).contains(&misses) {
            Ok(Self(misses))
        } else {
            Err(ParallelismError(misses))
        }
    }

    /// Returns the average number of misses that are outstanding at a time.
    pub fn misses(self) -> f64 {
        self.0
    }

    /// Returns each of the stalls, in cycles, divided by the number of misses that are outstanding at a time, rounded down.
    pub fn divide(self, stalls: &[u64]) -> Vec<u64> {
        let divided = |stall: &u64| match self.0 {
            1.0 => *stall,
            misses => (*stall as f64 / misses) as u64,
        };
        stalls.iter().map(divided).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_are_divided() {
        let stalls = [0, 9, 1000, u64::MAX];
        assert_eq!(Parallelism::NONE.divide(&stalls), stalls);
        let four = Parallelism::new(4.0).unwrap();
        assert_eq!(four.divide(&stalls[..3]), [0, 2, 250]);
        for bad in [0.0, 0.99, -1.0, 65.0, f64::NAN, f64::INFINITY] {
            assert!(Parallelism::new(bad).is_err(), "{bad}");
        }
    }
}
