//! Network device (virtio 1.2 §5.1): frames out to the fabric, frames in at their delivery time.

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
