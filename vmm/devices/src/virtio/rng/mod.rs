//! Entropy device (virtio 1.2 §5.4), whose random numbers follow from the node's seed.

mod device;
mod queue;
mod state;

pub use device::Rng;
pub use state::RngState;
