//! Network device (virtio 1.2 §5.1). It passes sent frames to the fabric, and delivers received frames at their time.

mod checksum;
mod device;
mod link;
mod queue;
mod segment;
mod spares;
mod state;
#[cfg(test)]
mod tests;

pub use device::{Net, NetConfig, Offloads};
pub use link::Link;
pub use state::{Frame, NetCounters, NetState};
