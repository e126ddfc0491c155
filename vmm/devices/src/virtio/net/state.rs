//! Saved state of a network device.

use serde::{Deserialize, Serialize};

/// An Ethernet frame without its check sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Virtual time in cycles at which the guest sent the frame, or at which the frame arrives.
    pub time: u64,
    /// Bytes of the frame, from the destination address on.
    pub bytes: Vec<u8>,
    /// True if the TCP or UDP checksum is known to be correct. If false, the receiving device verifies the checksum, with the same result.
    /// Not saved in a state.
    #[serde(skip)]
    pub checksum_valid: bool,
}

impl Frame {
    /// Returns the number of bytes that the frame is counted with against memory limits.
    pub(super) fn memory(&self) -> usize {
        size_of::<Frame>() + self.bytes.len()
    }

    /// Returns the frame as it is saved, with `checksum_valid` false.
    pub(super) fn saved(&self) -> Self {
        Self {
            checksum_valid: false,
            ..self.clone()
        }
    }
}

/// Counters of sent, received and dropped frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetCounters {
    /// Frames that the device has sent.
    pub sent: u64,
    /// Frames delivered to the guest.
    pub received: u64,
    /// Chains that the guest queued for sending and that were refused: impossible lengths or offload requests.
    pub refused: u64,
    /// Frames that arrived before the guest's driver was ready.
    pub dropped_inactive: u64,
    /// Frames dropped because too many waited for the guest's buffers, by number or memory.
    pub dropped_backlog: u64,
    /// Frames dropped because they were longer than the guest's buffer.
    pub dropped_size: u64,
}

impl NetCounters {
    /// Returns whether the counts are below 2^62. Larger ones cannot be real, and sums of them could overflow.
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
    /// Feature bits that the driver accepted; 0 if no driver is active.
    pub features: u64,
    /// Sent frames that the fabric has not fetched.
    pub outgoing: Vec<Frame>,
    /// Frames that were not delivered to the guest yet, sorted by time.
    pub incoming: Vec<Frame>,
    /// True if the guest has too few buffers for the first of the frames that have arrived.
    pub blocked: bool,
    /// Counters of sent, received and dropped frames.
    pub counters: NetCounters,
    /// Virtual time in cycles at which the link has sent all frames taken from the queue.
    pub sending_until: u64,
    /// True if frames were left in the driver's queue because the link is busy.
    pub waiting: bool,
    /// Virtual time in cycles at which the checks of receive buffers so far end.
    pub receiving_until: u64,
    /// True if arrived frames wait because too many checks of receive buffers were done ahead of virtual time.
    pub receiving_waits: bool,
}
