//! Comparisons of all ways of a set at a time, by instructions that the host has.

use std::arch::x86_64::*;

/// Instruction set of the host that code is compiled for. A value proves that the host has the instructions.
pub trait Isa: Copy {
    /// Returns a mask in which bit n is set if word n equals `wanted`.
    fn equal<const N: usize>(self, words: &[u64; N], wanted: u64) -> u32;

    /// Returns the least word. All words must be less than 2^63.
    fn least<const N: usize>(self, words: &[u64; N]) -> u64;
}

/// Instruction set that every host has.
#[derive(Clone, Copy, Debug)]
pub struct Baseline;

impl Isa for Baseline {
    #[inline(always)]
    fn equal<const N: usize>(self, words: &[u64; N], wanted: u64) -> u32 {
        (0..N).fold(0, |bits, n| bits | u32::from(words[n] == wanted) << n)
    }

    #[inline(always)]
    fn least<const N: usize>(self, words: &[u64; N]) -> u64 {
        words
            .iter()
            .fold(u64::MAX >> 1, |least, &word| least.min(word))
    }
}

/// AVX2. Only functions that are compiled for AVX2 profit, with the functions inlined there.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// Returns the proof that the host has AVX2.
    ///
    /// # Safety
    /// The host has AVX2.
    #[inline(always)]
    pub unsafe fn assume() -> Avx2 {
        Avx2(())
    }

    /// Compares the 64-bit words at equal positions as signed numbers, and returns a vector of the lesser ones.
    ///
    /// # Safety
    /// The host has AVX2.
    #[inline(always)]
    unsafe fn less(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(a, b)) }
    }

    /// Does the same as [`Avx2::less`], for vectors of two words.
    ///
    /// # Safety
    /// The host has AVX.
    #[inline(always)]
    unsafe fn less_of_two(a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: the caller's promise.
        unsafe { _mm_blendv_epi8(a, b, _mm_cmpgt_epi64(a, b)) }
    }

    /// Returns a mask in which bit n is set if word n equals the value that all words of `wanted` have.
    // Without closures: a closure that is not inlined is compiled for every host, and AVX2 instructions become calls.
    #[inline(always)]
    fn bits<const N: usize>(words: &[u64; N], wanted: __m256i) -> u32 {
        let (fours, rest) = words.as_chunks::<4>();
        assert!(rest.is_empty(), "sets have eight or sixteen ways");
        let mut bits = 0;
        for (n, four) in fours.iter().enumerate() {
            // SAFETY: a value of this type exists only on a host with AVX2; the array has the 32 bytes that are read.
            let ones = unsafe {
                let four = _mm256_loadu_si256(four.as_ptr().cast());
                _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(four, wanted)))
            };
            bits |= (ones as u32) << (4 * n);
        }
        bits
    }
}

impl Isa for Avx2 {
    #[inline(always)]
    fn equal<const N: usize>(self, words: &[u64; N], wanted: u64) -> u32 {
        // SAFETY: as in `bits`.
        Self::bits(words, unsafe { _mm256_set1_epi64x(wanted as i64) })
    }

    #[inline(always)]
    fn least<const N: usize>(self, words: &[u64; N]) -> u64 {
        let (fours, rest) = words.as_chunks::<4>();
        assert!(rest.is_empty(), "sets have eight or sixteen ways");
        // SAFETY: a value of this type exists only on a host with AVX2; each four words have the 32 bytes that are read.
        unsafe {
            let mut least = _mm256_set1_epi64x(i64::MAX);
            for four in fours {
                let words = _mm256_loadu_si256(four.as_ptr().cast());
                least = Self::less(least, words);
            }
            // With the other half, then with the other word of the half.
            let high = _mm256_extracti128_si256::<1>(least);
            let least = Self::less_of_two(_mm256_castsi256_si128(least), high);
            let least = Self::less_of_two(least, _mm_unpackhi_epi64(least, least));
            _mm_cvtsi128_si64(least) as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_host_find_the_same_words() {
        if !is_x86_feature_detected!("avx2") {
            nodescope_test_needs::skip(nodescope_test_needs::Need::Cpu, "the host has no AVX2");
            return;
        }
        // SAFETY: checked above.
        let avx2 = unsafe { Avx2::assume() };
        let words: [u64; 16] =
            std::array::from_fn(|n| [3, 7, u64::MAX >> 1, 0, 7][n % 5] + (n as u64 & 1));
        let (eights, _) = words.as_chunks::<8>();
        for wanted in [0, 3, 4, 7, 8, 9, (u64::MAX >> 1) + 1, u64::MAX] {
            let expected = words
                .iter()
                .rev()
                .fold(0, |bits, &w| bits << 1 | u32::from(w == wanted));
            assert_eq!(Baseline.equal(&words, wanted), expected);
            assert_eq!(avx2.equal(&words, wanted), expected);
            assert_eq!(avx2.equal(&eights[1], wanted), expected >> 8);
        }
        for rotation in 0..16 {
            let mut words = words.map(|word| word.min(u64::MAX >> 2) + 1000);
            words.rotate_left(rotation);
            for last in [5, u64::MAX >> 1] {
                words[15] = last;
                let least = words.iter().copied().min();
                assert_eq!(Some(Baseline.least(&words)), least);
                assert_eq!(Some(avx2.least(&words)), least);
                let (eights, _) = words.as_chunks::<8>();
                let least = Baseline.least(&eights[0]);
                assert_eq!(avx2.least(&eights[0]), least);
            }
        }
    }
}
