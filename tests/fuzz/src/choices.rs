//! Random decisions of a case, drawn from bytes that the seed and the case's number determine.

use arbitrary::Unstructured;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Number of random bytes of a case. After the last byte, each random number is the lowest possible, which decides the rest of the case.
const BYTES: usize = 1 << 12;

/// Boundary values that are likely to be handled wrongly, in addition to powers of two.
const EDGES: [u64; 12] = [
    0,
    1,
    2,
    3,
    7,
    100,
    1_000_000_000_000,
    i32::MAX as u64,
    u32::MAX as u64 - 1,
    u32::MAX as u64,
    i64::MAX as u64,
    u64::MAX,
];

/// Returns the random bytes of a case.
pub fn bytes(seed: u64, case: u64) -> Vec<u8> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(case);
    let mut bytes = vec![0; BYTES];
    random.fill_bytes(&mut bytes);
    bytes
}

/// Source of decisions that are drawn from bytes.
pub struct Choices<'a>(Unstructured<'a>);

impl<'a> Choices<'a> {
    /// Makes the choices of a case from the case's bytes.
    pub fn new(bytes: &'a [u8]) -> Choices<'a> {
        Choices(Unstructured::new(bytes))
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        match end {
            0 | 1 => 0,
            end => self.0.int_in_range(0..=end - 1).unwrap_or(0),
        }
    }

    /// Returns true with a probability of one in `times`.
    pub fn once_in(&mut self, times: u32) -> bool {
        self.0.ratio(1, times.max(1)).unwrap_or(false)
    }

    /// Returns a random element of a list; None if the list is empty.
    pub fn of<'b, T>(&mut self, list: &'b [T]) -> Option<&'b T> {
        let at = self.below(list.len());
        list.get(at)
    }

    /// Returns a random byte.
    pub fn byte(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns a number that code may handle wrongly: a boundary value, a power of two or one less, a neighbour of `near`, or any number.
    pub fn number(&mut self, near: u64) -> u64 {
        match self.below(6) {
            0 | 1 => self.of(&EDGES).copied().unwrap_or(0),
            2 => {
                let power = 1u64 << self.below(64);
                power.wrapping_sub(self.below(2) as u64)
            }
            3 => near.wrapping_add(1),
            4 => near.wrapping_sub(1),
            _ => self.0.arbitrary().unwrap_or(0) >> self.below(64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_the_same_each_time_and_others_differ() {
        assert_eq!(bytes(1, 2), bytes(1, 2));
        assert_ne!(bytes(1, 2), bytes(1, 3));
        assert_ne!(bytes(1, 2), bytes(2, 2));
        let case = bytes(1, 2);
        let numbers = |mut choices: Choices<'_>| [(); 50].map(|()| choices.number(5));
        assert_eq!(numbers(Choices::new(&case)), numbers(Choices::new(&case)));
        assert_eq!(Choices::new(&[]).below(9), 0);
    }
}
