//! Comparisons of all ways of a set at a time, in instructions that the host has.

use std::arch::x86_64::{
    __m256i, _mm256_blendv_epi8, _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_cmpgt_epi64,
    _mm256_loadu_si256, _mm256_movemask_pd, _mm256_permute4x64_epi64, _mm256_set1_epi64x,
};

/// Instructions of the host that code is compiled for. A value stands for a host that has them.
pub trait Isa: Copy {
    /// Bit for each word that equals `wanted`.
    fn equal<const N: usize>(self, words: &[u64; N], wanted: u64) -> u32;

    /// Place of the least word, the first one of several; all are less than 2^63.
    fn least<const N: usize>(self, words: &[u64; N]) -> usize;
}

/// What every host has.
#[derive(Clone, Copy, Debug)]
pub struct Baseline;

impl Isa for Baseline {
    #[inline(always)]
    fn equal<const N: usize>(self, words: &[u64; N], wanted: u64) -> u32 {
        (0..N).fold(0, |bits, n| bits | u32::from(words[n] == wanted) << n)
    }

    #[inline(always)]
    fn least<const N: usize>(self, words: &[u64; N]) -> usize {
        (1..N).fold(
            0,
            |least, n| if words[n] < words[least] { n } else { least },
        )
    }
}

/// AVX2. Only functions compiled for it, and what is inlined there, profit.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The proof that the host has AVX2.
    ///
    /// # Safety
    /// It does.
    #[inline(always)]
    pub unsafe fn assume() -> Avx2 {
        Avx2(())
    }

    /// The lesser of each two words.
    ///
    /// # Safety
    /// The host has AVX2.
    #[inline(always)]
    unsafe fn less(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(a, b)) }
    }

    /// Bits of the words that equal those of a vector.
    // Without closures: where one is not put in line it is compiled for every host, and AVX2 instructions become calls.
    #[inline(always)]
    fn bits<const N: usize>(words: &[u64; N], wanted: __m256i) -> u32 {
        let (fours, rest) = words.as_chunks::<4>();
        assert!(rest.is_empty(), "sets have eight or sixteen lanes");
        let mut bits = 0;
        for (n, four) in fours.iter().enumerate() {
            // SAFETY: a value of this type stands for a host with AVX2; the array has the 32 bytes that are read.
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
    fn least<const N: usize>(self, words: &[u64; N]) -> usize {
        let (fours, rest) = words.as_chunks::<4>();
        assert!(rest.is_empty(), "sets have eight or sixteen lanes");
        // SAFETY: as in `bits`.
        let least = unsafe {
            let mut least = _mm256_loadu_si256(fours[0].as_ptr().cast());
            for four in &fours[1..] {
                least = Self::less(least, _mm256_loadu_si256(four.as_ptr().cast()));
            }
            // With the other half, then with the other word of the half: all four are the least then.
            least = Self::less(least, _mm256_permute4x64_epi64::<0b01_00_11_10>(least));
            Self::less(least, _mm256_permute4x64_epi64::<0b10_11_00_01>(least))
        };
        let equal = Self::bits(words, least);
        // One is.
        (equal.trailing_zeros() as usize) % N
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_host_find_the_same_words() {
        if !is_x86_feature_detected!("avx2") {
            println!("skipped: the host has no AVX2");
            return;
        }
        // SAFETY: asked above.
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
                let least = *words.iter().min().unwrap();
                let expected = words.iter().position(|&w| w == least).unwrap();
                assert_eq!(Baseline.least(&words), expected);
                assert_eq!(avx2.least(&words), expected);
            }
            let (eights, _) = words.as_chunks::<8>();
            assert_eq!(avx2.least(&eights[0]), Baseline.least(&eights[0]));
        }
    }
}
