//! Virtio 1.2 devices behind the MMIO transport (virtio 1.2 §4.2), on split virtqueues.
//!
//! Each device folder has the same files: `device.rs` (features, configuration, life cycle), `queue.rs` (handling of buffers) and
//! `state.rs` (saved state). `queues.rs` checks the queues that drivers set up. `ahead.rs` limits the work that a device does ahead of
//! virtual time.

mod ahead;
pub mod block;
mod device;
#[cfg(test)]
mod hostile;
pub mod net;
mod queues;
pub mod rng;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod transport;

pub use device::{Device, DeviceState, VirtioDevice};
pub use queues::{Chain, QueueElement, QueueFault, Queues};
pub use transport::{TransportState, VIRTIO_MMIO_SIZE, VirtioMmio, VirtioState};
