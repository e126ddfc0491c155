//! Random numbers; values at which arithmetic often fails are more frequent.

/// A small generator (SplitMix64). The same seed gives the same sequence, so that a case can be reproduced.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Makes a generator from a seed; neighbouring seeds give unrelated sequences.
    pub fn new(seed: u64) -> Self {
        let mut r = Self(seed);
        Self(r.next())
    }

    /// Returns 64 random bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number below `n`; `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Returns true with a probability of `thousandths` in 1000.
    pub fn chance(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }

    /// Returns a random element of a list, which must not be empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns an integer that is often a boundary value of 8, 16, 32 or 64 bits.
    pub fn integer(&mut self) -> u64 {
        match self.below(8) {
            0 | 1 => self.next(),
            2 => self.next() >> self.below(64),
            3 => ((self.next() as i64) >> self.below(64)) as u64,
            4 => 1_u64 << self.below(64),
            5 => self.below(256).wrapping_sub(128),
            _ => {
                const WIDTHS: [u32; 4] = [8, 16, 32, 64];
                let width = self.pick(&WIDTHS);
                let max = u64::MAX >> (64 - width);
                let edge = self.pick(&[0, 1, max, max >> 1, (max >> 1) + 1, max - 1, 2]);
                // Bits above the width must not matter.
                if width < 64 && self.chance(500) {
                    edge | self.next() << width
                } else {
                    edge
                }
            }
        }
    }

    /// Returns a binary floating-point number with these numbers of exponent and fraction bits, and the sign on top.
    fn float(&mut self, exponent_bits: u32, fraction_bits: u32) -> u64 {
        let bias = (1_u64 << (exponent_bits - 1)) - 1;
        let max = (1_u64 << exponent_bits) - 1;
        let mask = (1_u64 << fraction_bits) - 1;
        let sign = self.next() & 1;
        let (exponent, fraction) = match self.below(20) {
            0..=6 => (
                bias.wrapping_add(self.below(17)).wrapping_sub(8) & max,
                self.next(),
            ),
            // Small whole numbers.
            7..=9 => {
                let e = self.below(8);
                (
                    bias + e,
                    self.next() << (u64::from(fraction_bits).saturating_sub(e)),
                )
            }
            10 => (0, 0),
            11 => (0, self.next()),
            12 => (self.pick(&[0, 1]), self.pick(&[0, 1, mask])),
            13 => (max, 0),
            // Quiet NaNs, then signalling NaNs.
            14 => (max, self.next() | 1 << (fraction_bits - 1)),
            15 => (max, self.next() & mask >> 1 | 1),
            16 => (max - 1, self.pick(&[mask, 0, self.0])),
            // Numbers close to the bounds of integer types.
            17 => (
                (bias + self.pick(&[7, 8, 15, 16, 30, 31, 32, 62, 63, 64])) & max,
                self.pick(&[0, mask, self.0]),
            ),
            18 => (self.below(max + 1), self.next()),
            _ => (
                self.pick(&[bias, bias - 1, bias + 1]),
                self.pick(&[0, 1, mask]),
            ),
        };
        sign << (exponent_bits + fraction_bits) | exponent << fraction_bits | fraction & mask
    }

    /// Returns the bits of a random single-precision number.
    pub fn f32(&mut self) -> u32 {
        self.float(8, 23) as u32
    }

    /// Returns the bits of a random double-precision number.
    pub fn f64(&mut self) -> u64 {
        self.float(11, 52)
    }

    /// Returns the bytes of an x87 number, in some cases in an encoding that current processors do not support.
    pub fn f80(&mut self) -> [u8; 10] {
        let (exponent, fraction) = match self.below(24) {
            0..=6 => (16383 + self.below(33) as u16 - 16, self.next() | 1 << 63),
            7..=9 => {
                let e = self.below(12) as u16;
                (
                    16383 + e,
                    1 << 63 | self.next() << (63 - u32::from(e)) & !(1 << 63),
                )
            }
            // A value of double precision, then one of single precision.
            10 => (
                16383 + self.below(2046) as u16 - 1022,
                self.next() << 11 | 1 << 63,
            ),
            11 => (
                16383 + self.below(254) as u16 - 126,
                self.next() << 40 | 1 << 63,
            ),
            12 => (0, 0),
            13 => (0, self.next() >> 1),
            14 => (0x7fff, 1 << 63),
            15 => (0x7fff, self.next() | 3 << 62),
            16 => (0x7fff, (self.next() >> 2 | 1 << 63) | 1),
            17 => (0x7ffe, self.pick(&[u64::MAX, 1 << 63])),
            18 => (1, self.pick(&[u64::MAX, 1 << 63])),
            19 => (self.below(0x8000) as u16, self.next() | 1 << 63),
            20 => (
                16383 + self.pick(&[14, 15, 16, 30, 31, 32, 62, 63, 64]),
                self.pick(&[1 << 63, u64::MAX]),
            ),
            21 => (16383, self.pick(&[1 << 63, 1 << 63 | 1, u64::MAX])),
            // Pseudo-denormals, then unnormals, pseudo-infinities and pseudo-NaNs.
            22 => (0, self.next() | 1 << 63),
            _ => (self.pick(&[1, 16383, 0x7fff]), self.next() >> 1),
        };
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&fraction.to_le_bytes());
        let top = exponent & 0x7fff | (self.next() as u16 & 1) << 15;
        bytes[8..].copy_from_slice(&top.to_le_bytes());
        bytes
    }

    /// Fills bytes with random elements of one kind and size.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        match self.below(10) {
            0 => {
                let b = self.pick(&[0, 0xff, 0x80, 0x7f, 1]);
                bytes.fill(b);
            }
            1 => {
                // Only two different bytes, for comparisons and string instructions.
                let pair = [self.next() as u8, self.next() as u8];
                let bits = self.next();
                for (i, b) in bytes.iter_mut().enumerate() {
                    *b = pair[usize::from(bits >> (i % 64) & bits >> (i * 7 % 61) & 1 != 0)];
                }
            }
            2 => self.elements(bytes, 1, |r| r.integer()),
            3 => self.elements(bytes, 2, |r| r.integer()),
            4 => self.elements(bytes, 4, |r| r.integer()),
            5 => self.elements(bytes, 8, |r| r.integer()),
            6 => self.elements(bytes, 4, |r| r.f32().into()),
            7 => self.elements(bytes, 8, Self::f64),
            8 => {
                if bytes.len() >= 10 && self.chance(300) {
                    self.elements(bytes, 8, Self::next);
                    let x = self.f80();
                    bytes[..10].copy_from_slice(&x);
                } else {
                    self.elements(bytes, 2, |r| r.float(5, 10));
                }
            }
            _ => self.elements(bytes, 8, Self::next),
        }
    }

    fn elements(&mut self, bytes: &mut [u8], size: usize, mut f: impl FnMut(&mut Self) -> u64) {
        for chunk in bytes.chunks_mut(size) {
            let v = f(self).to_le_bytes();
            chunk.copy_from_slice(&v[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_cover_all_classes() {
        let mut r = Random::new(1);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            let class = match f32::from_bits(r.f32()).classify() {
                std::num::FpCategory::Nan => 0,
                std::num::FpCategory::Infinite => 1,
                std::num::FpCategory::Zero => 2,
                std::num::FpCategory::Subnormal => 3,
                std::num::FpCategory::Normal => 4,
            };
            seen[class] = true;
        }
        assert_eq!(seen, [true; 5]);
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let draw = |seed| {
            let mut r = Random::new(seed);
            (r.integer(), r.f80(), r.below(1000))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
