//! A device's view of its virtqueues: chains of buffers in guest memory, which are checked before use.

use nodescope_memory::{CodeSlice, GuestRam};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use virtio_bindings::virtio_mmio::VIRTIO_MMIO_INT_VRING;
use virtio_queue::{Queue, QueueOwnedT, QueueState, QueueT, Reader, Writer};

use crate::state::RestoreError;

/// A violation of the rules of queues by the driver. The device needs a reset.
#[derive(Debug, Error)]
pub enum QueueFault {
    /// Malformed rings.
    #[error("virtqueue {queue}: {cause}")]
    Ring {
        /// Index of the queue.
        queue: usize,
        /// Error that the virtqueue library found.
        cause: virtio_queue::Error,
    },
    /// Rings that receive new buffers without end while the device works on them.
    #[error(
        "virtqueue {queue}: the rings never become empty while the device works on them: they overlap each other, or buffers lie over them"
    )]
    Changing {
        /// Index of the queue.
        queue: usize,
    },
    /// A chain of descriptors that breaks a rule.
    #[error("virtqueue {queue}, descriptor {head}: {what}")]
    Chain {
        /// Index of the queue.
        queue: usize,
        /// Index of the chain's first descriptor.
        head: u16,
        /// The rule that the chain breaks, as text for the error.
        what: &'static str,
    },
}

/// A chain of buffers that was taken from a queue.
pub struct Chain<'a> {
    /// Index of the chain's first descriptor, which identifies the chain.
    pub head: u16,
    /// Number of descriptors in the chain.
    pub descriptors: u16,
    /// Buffers that the driver has filled.
    pub reader: Reader<'a, CodeSlice>,
    /// Buffers that the device fills.
    pub writer: Writer<'a, CodeSlice>,
}

/// The queues of a device, during one call of the device.
pub struct Queues<'a> {
    ram: &'a GuestRam,
    queues: &'a mut [Queue],
    interrupt: &'a mut u32,
    /// For each queue, the number of chains taken and not put back, plus the number of times that `listen` found new buffers.
    taken: [u32; MOST_QUEUES],
}

/// Number of times that a driver may refill a queue while the device works on it.
pub(super) const REFILLS: u32 = 16;
/// Largest number of queues of a device.
const MOST_QUEUES: usize = 2;

impl<'a> Queues<'a> {
    pub(super) fn new(ram: &'a GuestRam, queues: &'a mut [Queue], interrupt: &'a mut u32) -> Self {
        debug_assert!(queues.len() <= MOST_QUEUES);
        Self {
            ram,
            queues,
            interrupt,
            taken: [0; MOST_QUEUES],
        }
    }

    /// Returns whether the driver has set up this queue.
    pub fn is_ready(&self, queue: usize) -> bool {
        self.queues.get(queue).is_some_and(|q| q.ready())
    }

    /// Returns the size of a queue in entries, as the driver chose it.
    pub fn size(&self, queue: usize) -> u16 {
        self.queues[queue].size()
    }

    /// Counts a taken chain or a refill, and fails after [`REFILLS`] times the queue's size. While no vCPU runs, a queue's entries bound
    /// this count. On KVM, other vCPUs run and may add chains meanwhile.
    fn count(&mut self, queue: usize) -> Result<(), QueueFault> {
        if self.taken[queue] >= u32::from(self.queues[queue].size()) * REFILLS {
            return Err(QueueFault::Changing { queue });
        }
        self.taken[queue] += 1;
        Ok(())
    }

    /// Takes the next available chain; None if there is none.
    pub fn pop(&mut self, queue: usize) -> Result<Option<Chain<'a>>, QueueFault> {
        let q = &mut self.queues[queue];
        let Some(chain) = q.iter(self.ram).map_err(ring(queue))?.next() else {
            return Ok(None);
        };
        let head = chain.head_index();
        if head >= q.size() {
            let what = "the available ring names a descriptor past the table";
            return Err(QueueFault::Chain { queue, head, what });
        }
        // "The driver MUST NOT create a descriptor chain longer than the Queue Size of the device" (virtio 1.2 §2.7.5). The rule holds for
        // indirect tables, too (§2.7.5.3.1).
        let size = q.size();
        let descriptors = chain.clone().take(usize::from(size) + 1).count();
        if descriptors > usize::from(size) {
            let what = "the chain has more descriptors than the queue";
            return Err(QueueFault::Chain { queue, head, what });
        }
        self.count(queue)?;
        let reader = chain.clone().reader(self.ram).map_err(ring(queue))?;
        let writer = chain.writer(self.ram).map_err(ring(queue))?;
        Ok(Some(Chain {
            head,
            descriptors: descriptors as u16,
            reader,
            writer,
        }))
    }

    /// Puts back the last `count` chains that were taken.
    pub fn unpop(&mut self, queue: usize, count: u16) {
        let q = &mut self.queues[queue];
        q.set_next_avail(q.next_avail().wrapping_sub(count));
        self.taken[queue] = self.taken[queue].saturating_sub(count.into());
    }

    /// Returns a chain to the driver, with `written` bytes filled. [`Queues::signal`] must follow.
    pub fn add_used(&mut self, queue: usize, head: u16, written: u32) -> Result<(), QueueFault> {
        self.queues[queue]
            .add_used(self.ram, head, written)
            .map_err(ring(queue))
    }

    /// Interrupts the driver for the chains returned since the last call, unless the driver has suppressed interrupts.
    pub fn signal(&mut self, queue: usize) -> Result<(), QueueFault> {
        let q = &mut self.queues[queue];
        if q.needs_notification(self.ram).map_err(ring(queue))? {
            *self.interrupt |= VIRTIO_MMIO_INT_VRING;
        }
        Ok(())
    }

    /// Enables the driver's notifications after the queue was found empty. Returns true if buffers were added meanwhile.
    pub fn listen(&mut self, queue: usize) -> Result<bool, QueueFault> {
        let more = self.queues[queue]
            .enable_notification(self.ram)
            .map_err(ring(queue))?;
        if more {
            self.count(queue)?;
        }
        Ok(more)
    }
}

fn ring(queue: usize) -> impl Fn(virtio_queue::Error) -> QueueFault {
    move |cause| QueueFault::Ring { queue, cause }
}

/// Saved form of one virtqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueElement {
    /// Largest size that the device offers, in entries.
    pub max_size: u16,
    /// Index of the next entry of the available ring to take.
    pub next_avail: u16,
    /// Index of the next entry of the used ring to fill.
    pub next_used: u16,
    /// True if VIRTIO_F_EVENT_IDX was negotiated.
    pub event_idx: bool,
    /// Size that the driver chose, in entries.
    pub size: u16,
    /// True once the driver has set the queue up.
    pub ready: bool,
    /// Guest-physical address of the descriptor table.
    pub descriptors: u64,
    /// Guest-physical address of the available ring.
    pub available: u64,
    /// Guest-physical address of the used ring.
    pub used: u64,
}

impl From<&Queue> for QueueElement {
    fn from(queue: &Queue) -> Self {
        let s = queue.state();
        Self {
            max_size: s.max_size,
            next_avail: s.next_avail,
            next_used: s.next_used,
            event_idx: s.event_idx_enabled,
            size: s.size,
            ready: s.ready,
            descriptors: s.desc_table,
            available: s.avail_ring,
            used: s.used_ring,
        }
    }
}

impl TryFrom<&QueueElement> for Queue {
    type Error = RestoreError;

    fn try_from(q: &QueueElement) -> Result<Self, RestoreError> {
        let state = QueueState {
            max_size: q.max_size,
            next_avail: q.next_avail,
            next_used: q.next_used,
            event_idx_enabled: q.event_idx,
            size: q.size,
            ready: q.ready,
            desc_table: q.descriptors,
            avail_ring: q.available,
            used_ring: q.used,
        };
        state
            .try_into()
            .map_err(|e: virtio_queue::Error| RestoreError::new("virtqueue", e.to_string()))
    }
}
