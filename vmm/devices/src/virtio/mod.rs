//! Virtio 1.2 devices behind the MMIO transport (virtio 1.2 §4.2), on split virtqueues.
//!
//! Each device folder has the same anatomy: `device.rs` (features, configuration, life cycle), `queue.rs` (what is done with
//! each buffer) and `state.rs` (what is saved). `queues.rs` keeps drivers to the rules of queues, `ahead.rs` what a device does at once
//! within bounds.

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
