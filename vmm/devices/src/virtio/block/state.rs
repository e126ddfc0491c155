//! Saved state of a block device, without the image under it.

use serde::{Deserialize, Serialize};

/// A request that was carried out, but not returned to the driver yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// Virtual time in cycles at which the request is returned to the driver.
    pub due: u64,
    /// Index of the request's first descriptor.
    pub head: u16,
    /// Bytes written to guest memory.
    pub written: u32,
}

/// Contents of a disk that differ from its image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskState {
    /// Size of the disk in sectors of 512 bytes.
    pub sectors: u64,
    /// Written clusters of 4096 bytes, by cluster index.
    pub written: Vec<(u64, Vec<u8>)>,
}

/// Complete state of a block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockState {
    /// Contents of the disk.
    pub disk: DiskState,
    /// Requests that were not returned to the driver yet, in the order in which they are due.
    pub completions: Vec<Completion>,
    /// Virtual time in cycles until which transfers occupy the disk.
    pub busy_until: u64,
    /// Virtual time in cycles at which the work carried out so far ends. A reset does not change it.
    pub work_until: u64,
    /// True if requests were left in the queue because of the limit of work ahead.
    pub waiting: bool,
}
