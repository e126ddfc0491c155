//! Words that store entries of cache sets, and the operations on a set of words.
//!
//! Simulating a large cache costs mostly the host's own cache misses. An entry is therefore one 32-bit word, so that a set of 16 ways is
//! one host cache line. If a line number does not fit, all entries are widened to 64 bits.

/// Word with one entry: state in the lowest bits, then holder bits, then the tag, which is never 0. An empty way is 0.
pub(crate) trait Word: Copy + Eq + Send + 'static {
    /// Number of bits of the word.
    const BITS: u32;

    /// Returns a word with the low bits of a value.
    fn truncate(value: u64) -> Self;

    /// Returns the word as a number.
    fn value(self) -> u64;

    /// Returns the first way whose word equals `key` in the bits of `mask`; `None` if no word does.
    fn find<V: Variant>(variant: V, set: &[Self], mask: Self, key: Self) -> Option<usize>;

    /// Moves the words before `way` back by one way, over the word of `way`, and puts `word` in way 0.
    fn promote<V: Variant>(variant: V, set: &mut [Self], way: usize, word: Self);

    /// Moves the words after `way` forward by one way, over the word of `way`, and leaves the last way empty.
    fn remove(set: &mut [Self], way: usize);
}

impl Word for u64 {
    const BITS: u32 = 64;

    #[inline(always)]
    fn truncate(value: u64) -> u64 {
        value
    }

    #[inline(always)]
    fn value(self) -> u64 {
        self
    }

    #[inline]
    fn find<V: Variant>(_variant: V, set: &[u64], mask: u64, key: u64) -> Option<usize> {
        find_one_by_one(set, |word| word & mask == key)
    }

    #[inline]
    fn promote<V: Variant>(_variant: V, set: &mut [u64], way: usize, word: u64) {
        promote_one_by_one(&mut set[..=way], word);
    }

    #[inline]
    fn remove(set: &mut [u64], way: usize) {
        remove_one_by_one(&mut set[way..], 0);
    }
}

impl Word for u32 {
    const BITS: u32 = 32;

    #[inline(always)]
    fn truncate(value: u64) -> u32 {
        value as u32
    }

    #[inline(always)]
    fn value(self) -> u64 {
        self.into()
    }

    #[inline(always)]
    fn find<V: Variant>(variant: V, set: &[u32], mask: u32, key: u32) -> Option<usize> {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(v3) = variant.v3() {
                if let Ok(set) = <&[u32; 8]>::try_from(set) {
                    return first(avx2::equal8(v3, set, mask, key));
                }
                if let Ok(set) = <&[u32; 16]>::try_from(set) {
                    return first(avx2::equal16(v3, set, mask, key));
                }
                if let Ok(set) = <&[u32; 20]>::try_from(set) {
                    return first(avx2::equal20(v3, set, mask, key));
                }
            }
            sse2::find(set, mask, key)
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = variant;
            find_one_by_one(set, |word| word & mask == key)
        }
    }

    #[inline(always)]
    fn promote<V: Variant>(variant: V, set: &mut [u32], way: usize, word: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(v3) = variant.v3() {
                if let Ok(set) = <&mut [u32; 8]>::try_from(&mut *set) {
                    return avx2::promote8(v3, set, way, word);
                }
                if let Ok(set) = <&mut [u32; 16]>::try_from(&mut *set) {
                    return avx2::promote16(v3, set, way, word);
                }
                if way == 19
                    && let Ok(set) = <&mut [u32; 20]>::try_from(&mut *set)
                {
                    return avx2::push_front20(v3, set, word);
                }
            }
            sse2::promote(set, way, word);
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = variant;
            promote_one_by_one(&mut set[..=way], word);
        }
    }

    #[inline(always)]
    fn remove(set: &mut [u32], way: usize) {
        #[cfg(target_arch = "x86_64")]
        sse2::remove(set, way);
        #[cfg(not(target_arch = "x86_64"))]
        remove_one_by_one(&mut set[way..], 0);
    }
}

/// Variant for which the rules are compiled: the structure of the caches, and the instruction set of the host. A value proves that the host
/// has the instructions.
pub(crate) trait Variant: Copy {
    /// True if all levels are inclusive, replace by LRU and take the lines of writes, no cache has a prefetcher, and no first-level cache
    /// has several vCPUs. Checks of these properties then cost nothing.
    const USUAL: bool = false;

    /// Returns the proof that the host has AVX2, BMI1 and BMI2, if `Self` is that proof.
    fn v3(self) -> Option<V3>;
}

/// Instruction set that every host has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Baseline;

impl Variant for Baseline {
    #[inline(always)]
    fn v3(self) -> Option<V3> {
        None
    }
}

/// Proof that the host has AVX2, BMI1 and BMI2. Only functions that are compiled for these instructions, and functions inlined into
/// these, use them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct V3(());

impl V3 {
    /// Returns the proof on a host that has the instructions; None on other hosts.
    pub(crate) fn detect() -> Option<V3> {
        #[cfg(target_arch = "x86_64")]
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2");
        #[cfg(not(target_arch = "x86_64"))]
        let has = false;
        has.then_some(V3(()))
    }
}

impl Variant for V3 {
    #[inline(always)]
    fn v3(self) -> Option<V3> {
        Some(self)
    }
}

/// Variant for caches of the usual structure ([`Variant::USUAL`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usual<V>(pub(crate) V);

impl<V: Variant> Variant for Usual<V> {
    const USUAL: bool = true;

    #[inline(always)]
    fn v3(self) -> Option<V3> {
        self.0.v3()
    }
}

/// Returns the first way whose bit is set.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn first(ways: u32) -> Option<usize> {
    (ways != 0).then(|| ways.trailing_zeros() as usize)
}

fn find_one_by_one<T: Copy>(set: &[T], equal: impl Fn(T) -> bool) -> Option<usize> {
    set.iter().position(|&word| equal(word))
}

fn promote_one_by_one<T: Copy>(words: &mut [T], word: T) {
    let mut carried = word;
    for word in words {
        std::mem::swap(word, &mut carried);
    }
}

fn remove_one_by_one<T: Copy>(words: &mut [T], empty: T) {
    words.copy_within(1.., 0);
    if let Some(last) = words.last_mut() {
        *last = empty;
    }
}

/// Operations on four ways at a time. SSE2 is part of x86-64. A branch that depends on the way would be mispredicted, so that code for
/// the usual numbers of ways is unrolled and blends.
#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::*;

    /// Number of words in a vector.
    const LANES: usize = 4;

    #[inline(always)]
    pub(super) fn find(set: &[u32], mask: u32, key: u32) -> Option<usize> {
        let equal = if let Ok(set) = <&[u32; 16]>::try_from(set) {
            equal(set, mask, key)
        } else if let Ok(set) = <&[u32; 8]>::try_from(set) {
            equal(set, mask, key)
        } else if let Ok(set) = <&[u32; 4]>::try_from(set) {
            equal(set, mask, key)
        } else if let Ok(set) = <&[u32; 20]>::try_from(set) {
            equal(set, mask, key)
        } else {
            return find_in_many(set, mask, key);
        };
        super::first(equal)
    }

    /// Returns a bit mask of the ways whose word equals the key in the bits of `mask`.
    #[inline(always)]
    fn equal<const WAYS: usize>(set: &[u32; WAYS], mask: u32, key: u32) -> u32 {
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            let (mask, key) = (_mm_set1_epi32(mask as i32), _mm_set1_epi32(key as i32));
            let mut bits = 0;
            for (index, words) in set.chunks_exact(LANES).enumerate() {
                let words = _mm_and_si128(load(words), mask);
                let equal = _mm_castsi128_ps(_mm_cmpeq_epi32(words, key));
                bits |= (_mm_movemask_ps(equal) as u32) << (LANES * index);
            }
            bits
        }
    }

    #[cold]
    #[inline(never)]
    fn find_in_many(set: &[u32], mask: u32, key: u32) -> Option<usize> {
        // Four vectors at a time, so that few branches depend on the way of the match.
        const MANY: usize = 4 * LANES;
        let (chunks, rest) = set.as_chunks::<MANY>();
        let found = chunks.iter().enumerate().find_map(|(index, words)| {
            let equal = equal(words, mask, key);
            (equal != 0).then(|| MANY * index + equal.trailing_zeros() as usize)
        });
        found.or_else(|| {
            let (vectors, last) = rest.as_chunks::<LANES>();
            let bits = vectors.iter().enumerate().fold(0, |bits, (index, words)| {
                bits | equal(words, mask, key) << (LANES * index)
            });
            let way = super::first(bits).or_else(|| {
                let way = last.iter().position(|&word| word & mask == key)?;
                Some(LANES * vectors.len() + way)
            })?;
            Some(MANY * chunks.len() + way)
        })
    }

    #[inline(always)]
    pub(super) fn promote(set: &mut [u32], way: usize, word: u32) {
        if let Ok(set) = <&mut [u32; 16]>::try_from(&mut *set) {
            blend(set, way, word);
        } else if let Ok(set) = <&mut [u32; 8]>::try_from(&mut *set) {
            blend(set, way, word);
        } else if let Ok(set) = <&mut [u32; 4]>::try_from(&mut *set) {
            blend(set, way, word);
        } else if let Ok(set) = <&mut [u32; 20]>::try_from(&mut *set) {
            blend(set, way, word);
        } else {
            set.copy_within(..way, 1);
            set[0] = word;
        }
    }

    /// Moves the words before `way` back by one way, over the word of `way`, and puts `word` in way 0. The other ways keep their words.
    #[inline(always)]
    fn blend<const WAYS: usize>(set: &mut [u32; WAYS], way: usize, word: u32) {
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            let last = _mm_set1_epi32(way as i32);
            let mut carried = _mm_cvtsi32_si128(word as i32);
            let mut number = _mm_set_epi32(3, 2, 1, 0);
            for words in set.chunks_exact_mut(LANES) {
                let own = load(words);
                let before = _mm_or_si128(_mm_slli_si128::<4>(own), carried);
                carried = _mm_srli_si128::<12>(own);
                let stays = _mm_cmpgt_epi32(number, last);
                let new = _mm_or_si128(_mm_and_si128(stays, own), _mm_andnot_si128(stays, before));
                store(words, new);
                number = _mm_add_epi32(number, _mm_set1_epi32(LANES as i32));
            }
        }
    }

    #[inline(always)]
    pub(super) fn remove(set: &mut [u32], way: usize) {
        if let Ok(set) = <&mut [u32; 16]>::try_from(&mut *set) {
            close(set, way);
        } else if let Ok(set) = <&mut [u32; 8]>::try_from(&mut *set) {
            close(set, way);
        } else if let Ok(set) = <&mut [u32; 4]>::try_from(&mut *set) {
            close(set, way);
        } else {
            super::remove_one_by_one(&mut set[way..], 0);
        }
    }

    /// Moves the words after `way` forward by one way, over the word of `way`, and puts 0 in the last way.
    #[inline(always)]
    fn close<const WAYS: usize>(set: &mut [u32; WAYS], way: usize) {
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            let gone = _mm_set1_epi32(way as i32);
            let mut carried = _mm_setzero_si128();
            let mut number = _mm_add_epi32(
                _mm_set_epi32(3, 2, 1, 0),
                _mm_set1_epi32((WAYS - LANES) as i32),
            );
            for words in set.chunks_exact_mut(LANES).rev() {
                let own = load(words);
                let after = _mm_or_si128(_mm_srli_si128::<4>(own), carried);
                carried = _mm_slli_si128::<12>(own);
                let stays = _mm_cmplt_epi32(number, gone);
                let new = _mm_or_si128(_mm_and_si128(stays, own), _mm_andnot_si128(stays, after));
                store(words, new);
                number = _mm_sub_epi32(number, _mm_set1_epi32(LANES as i32));
            }
        }
    }

    #[inline(always)]
    fn load(words: &[u32]) -> __m128i {
        assert!(words.len() == LANES);
        // SAFETY: the slice has the 16 bytes that are read, at any alignment.
        unsafe { _mm_loadu_si128(words.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(words: &mut [u32], vector: __m128i) {
        assert!(words.len() == LANES);
        // SAFETY: the slice has the 16 bytes that are written, at any alignment.
        unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), vector) }
    }
}

/// Operations on eight ways at a time.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::V3;

    /// Returns a bit mask of the ways whose word equals the key in the bits of `mask`.
    #[inline(always)]
    pub(super) fn equal8(_host: V3, set: &[u32; 8], mask: u32, key: u32) -> u32 {
        // SAFETY: a `V3` exists only on a host with AVX2; the array has the 32 bytes that are read.
        unsafe {
            let words = _mm256_loadu_si256(set.as_ptr().cast());
            let words = _mm256_and_si256(words, _mm256_set1_epi32(mask as i32));
            let equal = _mm256_cmpeq_epi32(words, _mm256_set1_epi32(key as i32));
            _mm256_movemask_ps(_mm256_castsi256_ps(equal)) as u32
        }
    }

    /// Returns a bit mask of the ways whose word equals the key, as [`equal8`] does, for 16 ways.
    #[inline(always)]
    pub(super) fn equal16(host: V3, set: &[u32; 16], mask: u32, key: u32) -> u32 {
        let (halves, _) = set.as_chunks::<8>();
        equal8(host, &halves[0], mask, key) | (equal8(host, &halves[1], mask, key) << 8)
    }

    /// Returns a bit mask of the ways whose word equals the key, as [`equal8`] does, for 20 ways.
    #[inline(always)]
    pub(super) fn equal20(host: V3, set: &[u32; 20], mask: u32, key: u32) -> u32 {
        let (eights, rest) = set.as_chunks::<8>();
        let mut bits = equal8(host, &eights[0], mask, key);
        bits |= equal8(host, &eights[1], mask, key) << 8;
        // SAFETY: a `V3` exists only on a host with AVX; the slice has the 16 bytes that are read.
        unsafe {
            assert!(rest.len() == 4);
            let words = _mm_loadu_si128(rest.as_ptr().cast());
            let words = _mm_and_si128(words, _mm_set1_epi32(mask as i32));
            let equal = _mm_cmpeq_epi32(words, _mm_set1_epi32(key as i32));
            bits | (_mm_movemask_ps(_mm_castsi128_ps(equal)) as u32) << 16
        }
    }

    /// Moves every word back by one way, over the last one, and puts `word` in way 0.
    #[inline(always)]
    pub(super) fn push_front20(_host: V3, set: &mut [u32; 20], word: u32) {
        let words = set.as_mut_ptr();
        // SAFETY: a `V3` exists only on a host with AVX. All reads and writes are within the array: words 0 to 7, 8 to 15 and 15 to 18 are
        // read, and each is written one word further.
        unsafe {
            let low = _mm256_loadu_si256(words.cast());
            let high = _mm256_loadu_si256(words.add(8).cast());
            let last = _mm_loadu_si128(words.add(15).cast());
            _mm_storeu_si128(words.add(16).cast(), last);
            _mm256_storeu_si256(words.add(9).cast(), high);
            _mm256_storeu_si256(words.add(1).cast(), low);
        }
        set[0] = word;
    }

    /// Moves the words before `way` back by one way, over the word of `way`, and puts `word` in way 0. The other ways keep their words.
    #[inline(always)]
    pub(super) fn promote8(_host: V3, set: &mut [u32; 8], way: usize, word: u32) {
        // SAFETY: a `V3` exists only on a host with AVX2; the array has the 32 bytes that are read and written.
        unsafe {
            let own = _mm256_loadu_si256(set.as_ptr().cast());
            let number = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            // Minus one for ways up to `way`, else zero.
            let moves = _mm256_cmpgt_epi32(_mm256_set1_epi32(way as i32 + 1), number);
            let new = _mm256_permutevar8x32_epi32(own, _mm256_add_epi32(number, moves));
            let new = _mm256_blend_epi32::<1>(new, _mm256_set1_epi32(word as i32));
            _mm256_storeu_si256(set.as_mut_ptr().cast(), new);
        }
    }

    /// Does the work of [`promote8`] for 16 ways.
    #[inline(always)]
    pub(super) fn promote16(_host: V3, set: &mut [u32; 16], way: usize, word: u32) {
        let (halves, _) = set.as_chunks_mut::<8>();
        let (low, high) = (halves[0].as_mut_ptr(), halves[1].as_mut_ptr());
        // SAFETY: a `V3` exists only on a host with AVX2; either half has the 32 bytes that are read and written.
        unsafe {
            let own_low = _mm256_loadu_si256(low.cast());
            let own_high = _mm256_loadu_si256(high.cast());
            let number = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let last = _mm256_set1_epi32(way as i32 + 1);
            let moves = _mm256_cmpgt_epi32(last, number);
            let new = _mm256_permutevar8x32_epi32(own_low, _mm256_add_epi32(number, moves));
            let new = _mm256_blend_epi32::<1>(new, _mm256_set1_epi32(word as i32));
            _mm256_storeu_si256(low.cast(), new);
            let moves = _mm256_cmpgt_epi32(last, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
            let new = _mm256_permutevar8x32_epi32(own_high, _mm256_add_epi32(number, moves));
            // Way 8 gets the word of way 7 if way 8 moves.
            let seventh = _mm256_permutevar8x32_epi32(own_low, _mm256_set1_epi32(7));
            let eighth = _mm256_and_si256(moves, _mm256_setr_epi32(-1, 0, 0, 0, 0, 0, 0, 0));
            let new = _mm256_blendv_epi8(new, seventh, eighth);
            _mm256_storeu_si256(high.cast(), new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares every operation with the same one on a list: both widths, 1 to 40 ways, and all instruction sets that the host has.
    #[test]
    fn finds_and_promotes_as_a_list_does() {
        fn check<W: Word + std::fmt::Debug, V: Variant>(variant: V) {
            let mask = W::truncate(!0xff);
            for ways in 1..=40_usize {
                let words: Vec<u64> = (1..=ways as u64)
                    .map(|tag| (tag << 8) | (tag % 7))
                    .collect();
                let set: Vec<W> = words.iter().map(|&word| W::truncate(word)).collect();
                for way in 0..ways {
                    let key = W::truncate(words[way] & !0xff);
                    assert_eq!(W::find(variant, &set, mask, key), Some(way), "{ways} ways");
                    let mut list = words.clone();
                    list.remove(way);
                    list.insert(0, 0x1234);
                    let mut promoted = set.clone();
                    W::promote(variant, &mut promoted, way, W::truncate(0x1234));
                    let promoted: Vec<u64> = promoted.iter().map(|word| word.value()).collect();
                    assert_eq!(promoted, list, "{ways} ways, way {way}");
                    let mut list = words.clone();
                    list.remove(way);
                    list.push(0);
                    let mut rest = set.clone();
                    W::remove(&mut rest, way);
                    let rest: Vec<u64> = rest.iter().map(|word| word.value()).collect();
                    assert_eq!(rest, list, "{ways} ways without way {way}");
                }
                assert_eq!(W::find(variant, &set, mask, W::truncate(0xff00)), None);
            }
        }
        check::<u32, _>(Baseline);
        check::<u64, _>(Baseline);
        match V3::detect() {
            Some(v3) => check::<u32, _>(v3),
            None => {
                nodescope_test_needs::skip(nodescope_test_needs::Need::Cpu, "the host has no AVX2")
            }
        }
    }
}
