//! RDRAND and RDSEED from a seed: deterministic, different for each vCPU.

/// A counter-based generator (SplitMix64). Each value depends on the seed and on its number; the vCPU's state has the number of values
/// drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomSource {
    /// Seed of this vCPU.
    pub seed: u64,
}

impl RandomSource {
    /// Returns the `draw`-th value, counted from 1.
    pub fn value(self, draw: u64) -> u64 {
        let mut z = self
            .seed
            .wrapping_add(draw.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
