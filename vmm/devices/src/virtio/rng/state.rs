//! What an entropy device saves.

use rand_chacha::ChaCha20Rng;
use serde::{Deserialize, Serialize};

/// Complete state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RngState {
    /// Seed and position.
    pub generator: ChaCha20Rng,
}
