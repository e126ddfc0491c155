//! Life cycle of a block device.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;

use super::disk::{Disk, SECTOR};
use super::state::{BlockState, Completion};
use crate::state::RestoreError;
use crate::time::Hertz;
use crate::virtio::ahead::Ahead;
use crate::virtio::{QueueFault, Queues, VirtioDevice};

const QUEUE_SIZE: u16 = 256;

/// Limit of the data that is moved ahead of virtual time, in bytes at the disk's bandwidth. The limit of `AHEAD_NS` nanoseconds applies as
/// well.
const AHEAD_BYTES: u64 = 16 << 20;
const AHEAD_NS: u64 = 10_000_000;
/// Bandwidth in bytes a second that limits the work ahead for disks with a higher or unlimited bandwidth. Transfers in virtual time do not
/// use it.
const FASTEST: NonZeroU64 = NonZeroU64::new(64_000_000_000).unwrap();

fn work_rate(timing: &BlockTiming) -> NonZeroU64 {
    timing.bytes_per_second.unwrap_or(FASTEST).min(FASTEST)
}

/// Timing of requests in virtual time. Transfers follow one another, and latencies overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTiming {
    /// Frequency of the clock whose cycles measure virtual time.
    pub clock: Hertz,
    /// Time from the end of the transfer to the interrupt, nanoseconds.
    pub latency_ns: u64,
    /// Bandwidth in bytes a second; None for no limit.
    pub bytes_per_second: Option<NonZeroU64>,
}

/// A virtio block device.
#[derive(Debug)]
pub struct Block {
    pub(super) disk: Disk,
    pub(super) serial: [u8; VIRTIO_BLK_ID_BYTES as usize],
    pub(super) timing: BlockTiming,
    pub(super) completions: VecDeque<Completion>,
    pub(super) busy_until: u64,
    /// Work carried out ahead of virtual time. Unlike `busy_until`, its end survives a reset. Otherwise a guest could get unbounded work
    /// done in no virtual time.
    pub(super) work: Ahead,
}

impl Block {
    /// Creates a device with this disk. The guest sees the first 20 bytes of `serial` as the disk's serial number.
    pub fn new(disk: Disk, serial: &str, timing: BlockTiming) -> Self {
        let mut id = [0; VIRTIO_BLK_ID_BYTES as usize];
        for (to, from) in id.iter_mut().zip(serial.bytes()) {
            *to = from;
        }
        Self {
            disk,
            serial: id,
            timing,
            completions: VecDeque::new(),
            busy_until: 0,
            work: Ahead::new(
                (timing
                    .clock
                    .cycles_for_bytes(AHEAD_BYTES, Some(work_rate(&timing))))
                .min(timing.clock.cycles_from_ns(AHEAD_NS)),
            ),
        }
    }

    /// Returns the cycles that a request counts against the limit of work ahead: those of its transfer, or those for a fixed overhead per
    /// request and descriptor if that is more.
    pub(super) fn work(&self, moved: u64, descriptors: u16) -> u64 {
        let rate = Some(work_rate(&self.timing));
        let overhead = 100 + 20 * u64::from(descriptors);
        let overhead = self.timing.clock.cycles_from_ns(overhead);
        self.timing
            .clock
            .cycles_for_bytes(moved, rate)
            .max(overhead)
    }

    /// Returns the disk.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Returns the state.
    pub fn save(&self) -> BlockState {
        BlockState {
            disk: self.disk.save(),
            completions: self.completions.iter().copied().collect(),
            busy_until: self.busy_until,
            work_until: self.work.until,
            waiting: self.work.waiting,
        }
    }

    /// Loads a state into a device with the same image. Refused if the state does not fit the disk or has impossible descriptors.
    pub fn restore(&mut self, state: &BlockState) -> Result<(), RestoreError> {
        if state.completions.iter().any(|c| c.head >= QUEUE_SIZE) {
            return Err(RestoreError::new(
                "block device",
                "a request has no descriptor",
            ));
        }
        self.disk.restore(&state.disk)?;
        self.completions = state.completions.iter().copied().collect();
        self.busy_until = state.busy_until;
        self.work.until = state.work_until;
        self.work.waiting = state.waiting;
        Ok(())
    }
}

impl VirtioDevice for Block {
    fn id(&self) -> u32 {
        VIRTIO_ID_BLOCK
    }

    fn features(&self) -> u64 {
        let read_only = u64::from(self.disk.is_read_only());
        1 << VIRTIO_BLK_F_SEG_MAX
            | 1 << VIRTIO_BLK_F_BLK_SIZE
            | 1 << VIRTIO_BLK_F_FLUSH
            | read_only << VIRTIO_BLK_F_RO
    }

    fn queue_sizes(&self) -> &'static [u16] {
        &[QUEUE_SIZE]
    }

    /// Returns the bytes of struct virtio_blk_config: capacity, size_max, seg_max, geometry, blk_size (virtio 1.2 §5.2.4).
    fn config(&self) -> Vec<u8> {
        let mut config = vec![0; 60];
        config[0..8].copy_from_slice(&self.disk.sectors().to_le_bytes());
        config[12..16].copy_from_slice(&u32::from(QUEUE_SIZE - 2).to_le_bytes());
        config[20..24].copy_from_slice(&(SECTOR as u32).to_le_bytes());
        config
    }

    fn activate(&mut self, _features: u64, _now: u64) {}

    fn reset(&mut self) {
        self.completions.clear();
        self.busy_until = 0;
        self.work.waiting = false;
    }

    fn reset_queue(&mut self, _queue: usize) {
        self.completions.clear();
        self.work.waiting = false;
    }

    fn notify(
        &mut self,
        queue: usize,
        queues: &mut Queues<'_>,
        now: u64,
    ) -> Result<(), QueueFault> {
        self.take_requests(queue, queues, now)
    }

    fn advance(&mut self, queues: &mut Queues<'_>, now: u64) -> Result<(), QueueFault> {
        if self.work.resume(now) && queues.is_ready(0) {
            return self.take_requests(0, queues, now);
        }
        self.complete(queues, now)
    }

    fn next_event(&self) -> u64 {
        let completion = self.completions.front().map_or(u64::MAX, |c| c.due);
        completion.min(self.work.next_event())
    }
}
