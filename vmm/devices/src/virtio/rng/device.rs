//! Life cycle of an entropy device.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;

use super::state::RngState;
use crate::state::RestoreError;
use crate::virtio::ahead::Ahead;
use crate::virtio::{QueueFault, Queues, VirtioDevice};

/// A virtio entropy device.
#[derive(Debug)]
pub struct Rng {
    pub(super) generator: ChaCha20Rng,
    /// Limit of the work ahead of virtual time. A request takes one cycle for each byte, but at least [`REQUEST`].
    pub(super) work: Ahead,
}

/// Least cycles that a request takes.
pub(super) const REQUEST: u64 = 500;
/// Limit of the requests that are carried out ahead of virtual time, in cycles. A driver normally has one request under way.
const AHEAD: u64 = 1 << 20;

impl Rng {
    /// Creates a device whose random bytes depend only on the seed. Nodes and clones need different seeds.
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            generator: ChaCha20Rng::from_seed(seed),
            work: Ahead::new(AHEAD),
        }
    }

    /// Returns the state.
    pub fn save(&self) -> RngState {
        RngState {
            generator: self.generator.clone(),
            work_until: self.work.until,
            waiting: self.work.waiting,
        }
    }

    /// Loads a state.
    pub fn restore(&mut self, state: &RngState) -> Result<(), RestoreError> {
        self.generator = state.generator.clone();
        self.work.until = state.work_until;
        self.work.waiting = state.waiting;
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
    /// Resets the device. The generator's position does not change, so a guest that resets the device does not get the same bytes again.
    fn reset(&mut self) {
        self.work.waiting = false;
    }
    fn reset_queue(&mut self, _queue: usize) {
        self.work.waiting = false;
    }
    fn notify(
        &mut self,
        queue: usize,
        queues: &mut Queues<'_>,
        now: u64,
    ) -> Result<(), QueueFault> {
        self.fill(queue, queues, now)
    }
    fn advance(&mut self, queues: &mut Queues<'_>, now: u64) -> Result<(), QueueFault> {
        if self.work.resume(now) && queues.is_ready(0) {
            return self.fill(0, queues, now);
        }
        Ok(())
    }
    fn next_event(&self) -> u64 {
        self.work.next_event()
    }
}
