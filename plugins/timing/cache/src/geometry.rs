//! Layout of the sets and lines of one cache.

/// Position and layout of one cache within [`crate::tags::Tags`]. A line's set is the line's number modulo the number of sets; its tag is
/// the quotient plus one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// Factor of the division by `sets`; 0 if `sets` is a power of two.
    factor: u64,
    /// Index of the cache's first word.
    pub(crate) base: usize,
    pub(crate) sets: u32,
    /// Number of lines in a set.
    pub(crate) ways: u32,
    /// Number of words from one set to the next: the ways, and padding that stays empty.
    pub(crate) stride: u32,
    /// Shift of the division by `sets`: of the quotient if `factor` is 0, else of the product.
    shift: u8,
    /// Number of the tag's lowest bit in an entry.
    pub(crate) tag_shift: u8,
}

/// Result of computing where a line belongs in one cache: the line's set, and the tag to compare with. Two words, so that functions pass
/// it in registers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LineLookup {
    /// Index of the word of way 0.
    pub(crate) start: usize,
    /// The tag, shifted to its position in an entry.
    pub(crate) key: u64,
}

impl Geometry {
    /// Number of state bits, the lowest of an entry. Holder bits are between the state and the tag.
    pub(crate) const STATE_BITS: u32 = 3;

    /// Makes the layout of a cache whose words begin at or after the index `from`. `holders` is the number of holder bits.
    pub(crate) fn new(from: usize, sets: u32, ways: u32, holders: u32) -> Geometry {
        // A set of up to 16 words of 32 bits must lie in one host cache line; a larger set must be a whole number of vectors.
        let stride = if ways <= Self::HOST_LINE as u32 {
            ways.next_power_of_two().max(4)
        } else {
            ways.next_multiple_of(4)
        };
        let Reciprocal { factor, shift } = if sets.is_power_of_two() {
            Reciprocal {
                factor: 0,
                shift: sets.trailing_zeros() as u8,
            }
        } else {
            Reciprocal::new(sets.into())
        };
        Geometry {
            factor,
            shift,
            base: from.next_multiple_of(Self::HOST_LINE),
            ways,
            stride,
            sets,
            tag_shift: (Self::STATE_BITS + holders) as u8,
        }
    }

    /// Number of 32-bit words in a host cache line.
    const HOST_LINE: usize = 16;

    /// Returns the mask of the tag's bits in an entry.
    #[inline(always)]
    pub(crate) fn tag_mask(&self) -> u64 {
        u64::MAX << self.tag_shift
    }

    /// Returns the index after the cache's last word.
    pub(crate) fn end(&self) -> usize {
        self.base + self.sets as usize * self.stride as usize
    }

    /// Returns the first line number whose tag does not fit into words of `bits` bits.
    pub(crate) fn line_limit(&self, bits: u32) -> u64 {
        ((1 << (bits - u32::from(self.tag_shift))) - 1_u64).saturating_mul(self.sets.into())
    }

    /// Returns the quotient of a line's number and the number of sets, and the remainder, which is the set.
    #[inline(always)]
    fn divide(&self, line: u64) -> (u64, u32) {
        if self.factor == 0 {
            (line >> self.shift, line as u32 & (self.sets - 1))
        } else {
            let by = Reciprocal {
                factor: self.factor,
                shift: self.shift,
            };
            let quotient = by.quotient(line);
            (quotient, (line - quotient * u64::from(self.sets)) as u32)
        }
    }

    /// Returns the number of the set of a line.
    #[inline(always)]
    pub(crate) fn set(&self, line: u64) -> u32 {
        self.divide(line).1
    }

    /// Returns the set and the tag of a line.
    #[inline(always)]
    pub(crate) fn lookup(&self, line: u64) -> LineLookup {
        let (quotient, set) = self.divide(line);
        LineLookup {
            start: self.base + set as usize * self.stride as usize,
            key: (quotient + 1) << self.tag_shift,
        }
    }

    /// Returns the mask of all holder bits, shifted to bit 0.
    #[inline(always)]
    pub(crate) fn holders_mask(&self) -> u64 {
        (1 << (u32::from(self.tag_shift) - Self::STATE_BITS)) - 1
    }

    /// Returns the holder bits of an entry, shifted to bit 0. A set bit says that a cache inside may hold the line.
    #[inline(always)]
    pub(crate) fn holders(&self, entry: u64) -> u64 {
        entry >> Self::STATE_BITS & self.holders_mask()
    }

    /// Returns the line number of an entry that is not empty.
    #[inline(always)]
    pub(crate) fn line(&self, set: u32, entry: u64) -> u64 {
        ((entry >> self.tag_shift) - 1) * u64::from(self.sets) + u64::from(set)
    }
}

/// Division by multiplication with the reciprocal, since a 64-bit division takes up to ninety cycles on a host.
///
/// For n < 2^47 and 1 <= d <= 2^32, with c = ceil(log2 d), k = 63 + max(0, c - 16) and m = ceil(2^k / d): the
/// error m * d - 2^k is less than d, and n * d <= 2^47 * 2^c <= 2^k, so floor(n * m / 2^k) = floor(n / d).
#[derive(Clone, Copy, Debug)]
struct Reciprocal {
    factor: u64,
    /// Shift of the product beyond 63 bits: k - 63.
    shift: u8,
}

impl Reciprocal {
    fn new(divisor: u64) -> Reciprocal {
        let log = divisor.next_power_of_two().trailing_zeros();
        let shift = log.saturating_sub(16);
        Reciprocal {
            factor: (1_u128 << (63 + shift)).div_ceil(divisor.into()) as u64,
            shift: shift as u8,
        }
    }

    #[inline(always)]
    fn quotient(self, dividend: u64) -> u64 {
        let product = u128::from(dividend << 1) * u128::from(self.factor);
        (product >> 64) as u64 >> self.shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_exact() {
        let last = (1_u64 << 47) - 1;
        let mut divisors: Vec<u64> = (1..3000).collect();
        for log in 11..=32 {
            divisors.extend((1_u64 << log) - 3..=((1 << log) + 3).min(1 << 32));
        }
        divisors.push(12 << 10);
        for divisor in divisors {
            let by = Reciprocal::new(divisor);
            let top = last / divisor * divisor;
            let mut dividends = vec![0, 1, last, last - 1, top, top - 1];
            for seed in 1..40_u64 {
                let near = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (17 + seed % 40);
                let multiple = near / divisor * divisor;
                dividends.extend([near, multiple, multiple.saturating_sub(1)]);
            }
            for dividend in dividends {
                assert_eq!(
                    by.quotient(dividend),
                    dividend / divisor,
                    "{dividend} / {divisor}"
                );
            }
        }
    }

    #[test]
    fn lines_come_back_from_their_entries() {
        for (sets, holders) in [(1, 0), (64, 0), (12 << 10, 13), (7, 2), (1 << 14, 2)] {
            let geometry = Geometry::new(5, sets, 11, holders);
            assert_eq!((geometry.base, geometry.stride), (16, 16));
            for line in [0, 1, 63, 64, 12_345_678, (1 << 47) - 1] {
                let lookup = geometry.lookup(line);
                let set = geometry.set(line);
                assert_eq!(u64::from(set), line % u64::from(sets));
                assert_eq!(geometry.line(set, lookup.key | 3), line);
                let fits = lookup.key < 1 << 32;
                assert_eq!(
                    line < geometry.line_limit(32),
                    fits,
                    "{line} in {sets} sets"
                );
                assert!(line < geometry.line_limit(64));
            }
        }
    }
}
