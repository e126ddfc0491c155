//! Sending side of a network device's link: the time that each frame occupies the link.

use crate::time::{Hertz, scale_up};

/// Shortest Ethernet frame in bytes, without its check sequence. Shorter frames are padded on the wire (IEEE 802.3 §3.2.8).
const MIN_FRAME: usize = 60;
/// Check sequence, preamble, start delimiter and the gap between frames, in bytes (IEEE 802.3 §3.1.1, §4.4.2).
const OVERHEAD: usize = 24;
/// Time of sending that a card's buffer holds, in nanoseconds. `SMALLEST_BUFFER` and `LARGEST_BUFFER` bound the buffer in bytes.
const BUFFER_NS: u64 = 10_000_000;
const SMALLEST_BUFFER: u64 = 256 << 10;
const LARGEST_BUFFER: u64 = 16 << 20;

/// Link from a network device to the switch, in the sending direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Frequency of the clock whose cycles measure virtual time.
    pub clock: Hertz,
    /// Bandwidth in bits per second; not 0.
    pub bandwidth: u64,
}

impl Link {
    /// Returns the cycles for which a frame of `bytes` occupies the link.
    pub(super) fn cycles(&self, bytes: usize) -> u64 {
        self.cycles_of_bits(8 * (bytes.max(MIN_FRAME) + OVERHEAD) as u64)
    }

    fn cycles_of_bits(&self, bits: u64) -> u64 {
        scale_up(bits, self.clock.get().into(), self.bandwidth.max(1).into())
    }

    /// Returns the limit in cycles of the frames that a card buffers: while they take less time, the card takes further frames.
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
