//! Saved state of a block device. The image under the device is not part of the state.

use serde::{Deserialize, Serialize};

/// A request that was carried out, and of whose end the driver has not been notified yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// When the driver is notified, cycles.
    pub due: u64,
    /// First descriptor of the request.
    pub head: u16,
    /// Bytes written to guest memory.
    pub written: u32,
}

/// Contents that differ from the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskState {
    /// Size of the disk in sectors of 512 bytes.
    pub sectors: u64,
    /// Clusters of 4096 bytes that were written, by index.
    pub written: Vec<(u64, Vec<u8>)>,
}

/// Complete state of a block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockState {
    /// Contents of the disk.
    pub disk: DiskState,
    /// Requests under way, in the order of their ends.
    pub completions: Vec<Completion>,
    /// Until when transfers keep the disk busy, cycles.
    pub busy_until: u64,
    /// When what was carried out would be over if there had been no reset, cycles.
    pub work_until: u64,
    /// True if requests were left in the queue until that time is near.
    pub waiting: bool,
}
