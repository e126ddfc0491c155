//! Saved state of an entropy device.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};

/// Complete state of an entropy device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RngState {
    /// Random number generator with its seed and position.
    pub generator: ChaCha20Rng,
    /// Virtual time in cycles at which the requests carried out so far end.
    pub work_until: u64,
    /// True if requests were left in the queue because of the limit of work ahead.
    pub waiting: bool,
}

impl RngState {
    /// Replaces the generator by one with this seed.
    pub fn reseed(&mut self, seed: [u8; 32]) {
        self.generator = ChaCha20Rng::from_seed(seed);
    }
}
