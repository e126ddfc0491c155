//! Saved state of an entropy device.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};

/// Complete state of an entropy device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RngState {
    /// Random number generator: its seed and its position.
    pub generator: ChaCha20Rng,
    /// When what was given would be over, cycles.
    pub work_until: u64,
    /// True if requests were left in the queue until that time is near.
    pub waiting: bool,
}

impl RngState {
    /// Begins another sequence of random bytes.
    pub fn reseed(&mut self, seed: [u8; 32]) {
        self.generator = ChaCha20Rng::from_seed(seed);
    }
}
