//! The link that a card sends on, as far as the card must know it: how long it is busy with a frame.

use crate::time::{Hertz, scale_up};

/// Shortest Ethernet frame without its checksum: shorter ones are padded on the wire (IEEE 802.3 §3.2.8).
const MIN_FRAME: usize = 60;
/// Checksum, preamble, start delimiter and the gap between frames, in bytes (IEEE 802.3 §3.1.1, §4.4.2).
const OVERHEAD: usize = 24;
/// A card's buffer holds what its link sends in so many nanoseconds, within these bounds in bytes.
const BUFFER_NS: u64 = 10_000_000;
const SMALLEST_BUFFER: u64 = 256 << 10;
const LARGEST_BUFFER: u64 = 16 << 20;

/// Link of a network device to the switch, in the direction of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Clock that cycles count.
    pub clock: Hertz,
    /// Bits per second; not 0.
    pub bandwidth: u64,
}

impl Link {
    /// Returns the cycles for which a frame of so many bytes keeps it busy.
    pub(super) fn cycles(&self, bytes: usize) -> u64 {
        self.cycles_of_bits(8 * (bytes.max(MIN_FRAME) + OVERHEAD) as u64)
    }

    fn cycles_of_bits(&self, bits: u64) -> u64 {
        scale_up(bits, self.clock.get().into(), self.bandwidth.max(1).into())
    }

    /// Returns the cycles that it may have frames for and still be given more.
    pub(super) fn most_ahead(&self) -> u64 {
        let buffer = scale_up(BUFFER_NS, self.bandwidth.into(), 8_000_000_000);
        self.cycles_of_bits(8 * buffer.clamp(SMALLEST_BUFFER, LARGEST_BUFFER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_hold_some_milliseconds() {
        let link = |bandwidth| Link {
            clock: Hertz::new(1_000_000_000).unwrap(),
            bandwidth,
        };
        // (1514 + 24) * 8 bit at 10 Gbit/s = 1230.4 ns
        assert_eq!(link(10_000_000_000).cycles(1514), 1231);
        assert_eq!(link(10_000_000_000).cycles(0), 68);
        assert_eq!(link(10_000_000_000).most_ahead(), 10_000_000);
        assert_eq!(
            link(1_000_000_000_000).most_ahead(),
            (16 << 20) * 8 / 1000 + 1
        );
        assert_eq!(link(10_000_000).most_ahead(), (256 << 10) * 800);
    }
}
