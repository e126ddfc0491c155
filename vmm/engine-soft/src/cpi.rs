//! Cycles per instruction, and division of cycles by it.

/// Cycles per instruction in units of 1/65536, with the reciprocal for fast divisions.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Cpi {
    value: u32,
    /// floor((2^64 - 1) / value). A 64-bit division takes a host up to ninety cycles, and each stall needs one.
    reciprocal: u64,
}

impl Cpi {
    /// Offset of `value` in bytes, for translated code.
    pub const VALUE: usize = std::mem::offset_of!(Self, value);
    /// Offset of `reciprocal` in bytes, for translated code.
    pub const RECIPROCAL: usize = std::mem::offset_of!(Self, reciprocal);

    /// A sixteenth of a cycle.
    pub const SIXTEENTH: Cpi = Cpi::new(1 << 12);

    /// Creates a CPI from a value in units of 1/65536. If the value is 0, divisions use 1/65536.
    pub const fn new(value: u32) -> Self {
        let divisor = if value == 0 { 1 } else { value };
        Self {
            value,
            reciprocal: u64::MAX / divisor as u64,
        }
    }

    /// Returns the cycles per instruction in units of 1/65536.
    #[inline(always)]
    pub fn value(self) -> u32 {
        self.value
    }

    /// Returns the cycles per instruction in units of 1/65536, at least 1.
    #[inline(always)]
    pub fn divisor(self) -> i64 {
        i64::from(self.value).max(1)
    }

    /// Returns the number of instructions that begin within `cycles` (in units of 1/65536, more than zero). The quotient is rounded up.
    #[inline(always)]
    pub fn instructions(self, cycles: i64) -> i64 {
        debug_assert!(cycles > 0);
        let divisor = self.divisor() as u64;
        let dividend = cycles as u64 + divisor - 1;
        // The reciprocal is below 2^64 / divisor by at most 1, so the estimate is the quotient or one less.
        let estimate = ((u128::from(dividend) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = dividend - estimate * divisor;
        (estimate + u64::from(rest >= divisor)) as i64
    }
}

impl Default for Cpi {
    /// Returns one cycle.
    fn default() -> Self {
        Self::new(1 << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_the_quotient_rounded_up() {
        let values = (0..200)
            .chain([
                65_535,
                65_536,
                65_537,
                131_072,
                99_991,
                u32::MAX - 1,
                u32::MAX,
            ])
            .map(Cpi::new);
        for cpi in values {
            let divisor = cpi.divisor();
            let multiples = [1, 2, 3, 1000, (1 << 56) / divisor].map(|n| n * divisor);
            for near in multiples.into_iter().chain([2, 12_345, 1 << 40, 1 << 56]) {
                for cycles in near - 1..=near + 1 {
                    if cycles > 0 {
                        let expected = (cycles + divisor - 1) / divisor;
                        assert_eq!(cpi.instructions(cycles), expected, "{cycles} / {divisor}");
                    }
                }
            }
        }
    }
}
