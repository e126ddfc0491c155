//! Requests for random bytes.

use std::io::Write;

use rand_chacha::rand_core::RngCore;

use super::device::{REQUEST, Rng};
use crate::virtio::{QueueFault, Queues};

/// Most bytes returned for one request. The driver makes another request if it needs more.
const MOST: usize = 4096;

impl Rng {
    pub(super) fn fill(
        &mut self,
        queue: usize,
        queues: &mut Queues<'_>,
        now: u64,
    ) -> Result<(), QueueFault> {
        loop {
            while self.work.may_proceed(now)
                && let Some(mut chain) = queues.pop(queue)?
            {
                let mut bytes = [0; MOST];
                let bytes = &mut bytes[..chain.writer.available_bytes().min(MOST)];
                self.generator.fill_bytes(bytes);
                let (head, what) = (chain.head, "the buffer cannot be written");
                let fault = |_| QueueFault::Chain { queue, head, what };
                chain.writer.write_all(bytes).map_err(fault)?;
                queues.add_used(queue, head, bytes.len() as u32)?;
                self.work.spend(now, REQUEST.max(bytes.len() as u64));
            }
            if self.work.waiting || !queues.listen(queue)? {
                return queues.signal(queue);
            }
        }
    }
}
