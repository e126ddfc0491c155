//! Block device (virtio 1.2 §5.2) with latency and bandwidth in virtual time.

mod device;
mod disk;
mod queue;
mod state;

pub use device::{Block, BlockTiming};
pub use disk::{BlockCheck, Disk, Image, ImageFault, SECTOR};
pub use state::{BlockState, Completion, DiskState};
