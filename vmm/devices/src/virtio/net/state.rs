//! Saved state of a network device.

use serde::{Deserialize, Serialize};

/// An Ethernet frame without its check sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// When the guest sent it or when it is to arrive, cycles.
    pub time: u64,
    /// From the destination address on.
    pub bytes: Vec<u8>,
    /// True if the TCP or UDP checksum is known to be right. Otherwise the receiver verifies the checksum, as the receiver does after a
    /// state was loaded: the result is the same.
    #[serde(skip)]
    pub checksum_valid: bool,
}

impl Frame {
    /// Returns the number of bytes that the frame takes in memory.
    pub(super) fn memory(&self) -> usize {
        size_of::<Frame>() + self.bytes.len()
    }

    /// Returns the frame as a state has it.
    pub(super) fn saved(&self) -> Self {
        Self {
            checksum_valid: false,
            ..self.clone()
        }
    }
}

/// Counters of passed and dropped frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetCounters {
    /// Frames that the device has sent.
    pub sent: u64,
    /// Frames handed to the guest.
    pub received: u64,
    /// Frames that the guest asked to be sent and that cannot be: impossible lengths or offload requests.
    pub refused: u64,
    /// Frames that came while the guest's driver was not ready.
    pub dropped_inactive: u64,
    /// Frames that came while the backlog for missing buffers was full, or there was no memory for more.
    pub dropped_backlog: u64,
    /// Frames longer than the guest's buffers.
    pub dropped_size: u64,
}

impl NetCounters {
    /// Returns whether real counts can be so large. Sums of counters must not wrap.
    pub(super) fn are_possible(&self) -> bool {
        let Self {
            sent,
            received,
            refused,
            dropped_inactive,
            dropped_backlog,
            dropped_size,
        } = *self;
        let counts = [
            sent,
            received,
            refused,
            dropped_inactive,
            dropped_backlog,
            dropped_size,
        ];
        counts.iter().all(|count| *count < 1 << 62)
    }
}

/// Complete state of a network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetState {
    /// Features that the driver accepted.
    pub features: u64,
    /// Frames that the fabric has not fetched.
    pub outgoing: Vec<Frame>,
    /// Frames that have not been handed to the guest, in the order of their times.
    pub incoming: Vec<Frame>,
    /// True if the guest has no buffers for the first of these frames.
    pub blocked: bool,
    /// Counters of passed and dropped frames.
    pub counters: NetCounters,
    /// Time at which the link has sent what it was given, cycles.
    pub sending_until: u64,
    /// True if frames were left in the driver's queue until that time is near.
    pub waiting: bool,
    /// Time at which the device would have checked the receive buffers that it was given, cycles.
    pub receiving_until: u64,
    /// True if frames that have arrived are kept until that time is near.
    pub receiving_waits: bool,
}
