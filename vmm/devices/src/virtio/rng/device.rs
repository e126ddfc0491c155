//! Life cycle of an entropy device.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;

use super::state::RngState;
use crate::state::RestoreError;
use crate::virtio::{QueueFault, Queues, VirtioDevice};

/// An entropy device.
#[derive(Debug)]
pub struct Rng {
    pub(super) generator: ChaCha20Rng,
}

impl Rng {
    /// The same seed gives the same bytes; nodes and clones need different ones.
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            generator: ChaCha20Rng::from_seed(seed),
        }
    }

    /// State.
    pub fn save(&self) -> RngState {
        RngState {
            generator: self.generator.clone(),
        }
    }

    /// Load a state.
    pub fn restore(&mut self, state: &RngState) -> Result<(), RestoreError> {
        self.generator = state.generator.clone();
        Ok(())
    }
}

impl VirtioDevice for Rng {
    fn id(&self) -> u32 {
        VIRTIO_ID_RNG
    }
    fn features(&self) -> u64 {
        0
    }
    fn queue_sizes(&self) -> &'static [u16] {
        &[64]
    }
    fn config(&self) -> Vec<u8> {
        Vec::new()
    }
    fn activate(&mut self, _features: u64, _now: u64) {}
    /// The generator goes on: a guest that resets the device does not get the same bytes again.
    fn reset(&mut self) {}
    fn reset_queue(&mut self, _queue: usize) {}
    fn notify(
        &mut self,
        queue: usize,
        queues: &mut Queues<'_>,
        _now: u64,
    ) -> Result<(), QueueFault> {
        self.fill(queue, queues)
    }
    fn advance(&mut self, _queues: &mut Queues<'_>, _now: u64) -> Result<(), QueueFault> {
        Ok(())
    }
    fn next_event(&self) -> u64 {
        u64::MAX
    }
}
