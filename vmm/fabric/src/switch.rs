//! A cut-through switch with one full-duplex port for each node.
//!
//! A frame occupies its sender's link for `(bytes + overhead) * 8 / bandwidth` seconds. The frame arrives one latency after its last bit
//! was sent. A frame waits while the receiver's link is busy with another frame. Between two otherwise idle nodes the one-way time is
//! therefore serialisation + latency. A receiver's link serves frames in the order in which their senders' links began to send them. A
//! frame that still waits at its sender therefore does not delay frames of other senders. The switch has a limited buffer for each receiver
//! and for all receivers together, and drops a frame that does not fit.

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::PS_PER_SECOND;

/// Shortest Ethernet frame without its checksum, in bytes: shorter frames are padded on the wire (IEEE 802.3 §3.2.8).
const MIN_FRAME: u64 = 60;
/// Checksum, preamble, start delimiter and the gap between frames, in bytes (IEEE 802.3 §3.1.1, §4.4.2).
const OVERHEAD: u64 = 24;

/// Bounds of the buffer for one receiver's link, in bytes with overhead. Within these bounds, the buffer has the bytes that the link
/// carries in half a second.
const SMALLEST_BUFFER: u64 = 1 << 20;
const LARGEST_BUFFER: u64 = 64 << 20;
/// Bytes, with overhead, that may wait for the links of all receivers together. A receiver for which at most `SMALLEST_BUFFER` bytes wait
/// gets frames beyond this bound, too.
const SHARED_BUFFER: u64 = 512 << 20;

/// A link between a node and the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkConfig {
    /// Bits per second in each direction.
    pub bandwidth: u64,
    /// One-way latency from node to node in picoseconds, without serialisation.
    pub latency_ps: u64,
}

/// Reason why a link is impossible.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LinkError {
    /// A link whose bandwidth is zero.
    #[error(
        "link of node {port}: bandwidth is 0 bit/s; give it a positive one, such as \"10 Gbit/s\""
    )]
    Bandwidth {
        /// Number of the link's node.
        port: usize,
    },
    /// A link whose latency is zero.
    #[error(
        "link of node {port}: latency is 0; nodes are synchronised once per latency, so it must be positive, such as \"1.3 us\""
    )]
    Latency {
        /// Number of the link's node.
        port: usize,
    },
}

/// A frame as a node sent it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentFrame {
    /// Virtual time at which the node handed the frame to its link, in picoseconds.
    pub time_ps: u64,
    /// Port of the sending node.
    pub port: usize,
    /// Ethernet frame without checksum. Its last `missing` bytes may be absent, with only receivers in other processes.
    pub bytes: Vec<u8>,
    /// Number of the frame's bytes that this process does not have.
    #[serde(skip)]
    pub missing: usize,
    /// True if the TCP or UDP checksum is known to be right. Otherwise the receiver must verify the checksum.
    pub checksum_valid: bool,
}

impl SentFrame {
    /// Returns the number of bytes of the whole frame.
    #[allow(clippy::len_without_is_empty, reason = "no frame is empty")]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.missing
    }
}

/// A frame on its way to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Virtual time at which the frame's last bit arrives, in picoseconds.
    pub time_ps: u64,
    /// Port of the receiving node.
    pub port: usize,
    /// Ethernet frame without checksum.
    pub bytes: Vec<u8>,
    /// True if the TCP or UDP checksum is known to be right, see [`SentFrame::checksum_valid`].
    pub checksum_valid: bool,
}

/// Counts of a node's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounts {
    /// Frames sent by the node.
    pub sent_frames: u64,
    /// Bytes sent by the node.
    pub sent_bytes: u64,
    /// Frames delivered to the node.
    pub received_frames: u64,
    /// Bytes delivered to the node.
    pub received_bytes: u64,
    /// Frames of the node that had no destination, or found the switch's buffer full. A frame for several nodes counts once for
    /// each node that it did not reach.
    pub dropped_frames: u64,
}

#[derive(Clone, Debug)]
struct Port {
    mac: [u8; 6],
    link: LinkConfig,
    /// Time at which the sending direction is free again.
    send_free_ps: u64,
    /// Frames that wait for the sending direction.
    waiting: VecDeque<SentFrame>,
    /// Time at which the receiving direction is free again.
    receive_free_ps: u64,
    counts: PortCounts,
}

/// The network switch of a cluster, with one port for each node: it forwards frames with the delay of their links.
#[derive(Clone, Debug)]
pub struct Switch {
    ports: Vec<Port>,
}

/// State of a port: everything but the port's link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    send_free_ps: u64,
    waiting: VecDeque<SentFrame>,
    receive_free_ps: u64,
    counts: PortCounts,
}

/// A state that does not fit the switch.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SwitchStateError {
    /// A number of ports that differs from the switch's.
    #[error("the state is of a switch with {found} ports, and this one has {expected}")]
    Ports {
        /// Ports of the state.
        found: usize,
        /// Ports of the switch.
        expected: usize,
    },
    /// A frame that waits at one port and was sent from another.
    #[error("a frame of port {sender} waits at port {port}")]
    Frame {
        /// Port at which the frame waits.
        port: usize,
        /// Port from which the frame was sent.
        sender: usize,
    },
}

impl Switch {
    /// Returns a switch with a port for each node, from the node's MAC address and link. Fails for a link that is impossible.
    pub fn new(ports: &[([u8; 6], LinkConfig)]) -> Result<Self, LinkError> {
        for (port, (_, link)) in ports.iter().enumerate() {
            if link.bandwidth == 0 {
                return Err(LinkError::Bandwidth { port });
            }
            if link.latency_ps == 0 {
                return Err(LinkError::Latency { port });
            }
        }
        Ok(Self {
            ports: ports
                .iter()
                .map(|&(mac, link)| Port {
                    mac,
                    link,
                    send_free_ps: 0,
                    waiting: VecDeque::new(),
                    receive_free_ps: 0,
                    counts: PortCounts::default(),
                })
                .collect(),
        })
    }

    /// Returns the state of each port, for [`Switch::load`].
    pub fn state(&self) -> Vec<PortState> {
        let state = |port: &Port| PortState {
            send_free_ps: port.send_free_ps,
            waiting: port.waiting.clone(),
            receive_free_ps: port.receive_free_ps,
            counts: port.counts,
        };
        self.ports.iter().map(state).collect()
    }

    /// Continues from the state of another switch with this number of ports.
    ///
    /// # Errors
    ///
    /// A state that does not fit. The switch is then unchanged.
    pub fn load(&mut self, state: Vec<PortState>) -> Result<(), SwitchStateError> {
        if state.len() != self.ports.len() {
            return Err(SwitchStateError::Ports {
                found: state.len(),
                expected: self.ports.len(),
            });
        }
        for (port, of) in state.iter().enumerate() {
            if let Some(frame) = of.waiting.iter().find(|frame| frame.port != port) {
                let sender = frame.port;
                return Err(SwitchStateError::Frame { port, sender });
            }
        }
        for (port, state) in self.ports.iter_mut().zip(state) {
            port.send_free_ps = state.send_free_ps;
            port.waiting = state.waiting;
            port.receive_free_ps = state.receive_free_ps;
            port.counts = state.counts;
        }
        Ok(())
    }

    /// Returns the shortest latency of a link, in picoseconds. Every frame arrives later than this after its sending, so that nodes may run
    /// for a quantum of this length without frames of each other. None for fewer than two nodes.
    pub fn lookahead(&self) -> Option<u64> {
        if self.ports.len() < 2 {
            return None;
        }
        self.ports.iter().map(|p| p.link.latency_ps).min()
    }

    /// Returns whether a frame is for one of the ports `ports`, whether or not the buffer has room.
    pub fn has_receiver(&self, frame: &SentFrame, ports: Range<usize>) -> bool {
        let addressed =
            |(port, of): (usize, &Port)| port != frame.port && addressed(&frame.bytes, &of.mac);
        ports.clone().zip(&self.ports[ports]).any(addressed)
    }

    /// Returns the counts by node.
    pub fn counts(&self) -> Vec<PortCounts> {
        self.ports.iter().map(|p| p.counts).collect()
    }

    /// Returns the time at which the first of the waiting frames begins to be sent, in picoseconds; None if no frame waits.
    pub fn next_ps(&self) -> Option<u64> {
        self.next().map(|(start, _)| start)
    }

    /// Returns the time of [`Switch::next_ps`] and the port that begins to send at that time.
    fn next(&self) -> Option<(u64, usize)> {
        (self.ports.iter().enumerate())
            .filter_map(|(port, p)| Some((p.waiting.front()?.time_ps.max(p.send_free_ps), port)))
            .min()
    }

    /// Returns whether the buffer can take another frame for a port at a time in picoseconds.
    fn has_room(&self, port: usize, at_ps: u64) -> bool {
        let queued = self.ports[port].queued(at_ps);
        // Fast path: nearly always few bytes wait for this port, so the other ports need not be asked.
        queued <= SMALLEST_BUFFER
            || queued <= (self.ports[port].link.bandwidth / 16).min(LARGEST_BUFFER)
                && self.ports.iter().map(|p| p.queued(at_ps)).sum::<u64>() <= SHARED_BUFFER
    }

    /// Forwards the frames of one quantum, in any order, and frames that wait since earlier quanta. Frames that do not begin to be sent
    /// before `until_ps`, the quantum's end, wait. Returns the deliveries sorted by time, then by receiver.
    pub fn forward(&mut self, mut frames: Vec<SentFrame>, until_ps: u64) -> Vec<Delivery> {
        // Stable: frames of one node keep the order in which it sent them.
        frames.sort_by_key(|f| f.time_ps);
        for frame in frames {
            self.ports[frame.port].waiting.push_back(frame);
        }
        let mut deliveries = Vec::new();
        while let Some((start, port)) = self.next()
            && start < until_ps
            && let Some(frame) = self.ports[port].waiting.pop_front()
        {
            let sender = &mut self.ports[frame.port];
            sender.counts.sent_frames += 1;
            let length = frame.len() as u64;
            sender.counts.sent_bytes += length;
            let link = sender.link;
            let sent = start + serialisation_ps(length, link.bandwidth);
            sender.send_free_ps = sent;
            let first = deliveries.len();
            let mut lost = 0;
            for port in 0..self.ports.len() {
                if port == frame.port || !addressed(&frame.bytes, &self.ports[port].mac) {
                    continue;
                }
                if !self.has_room(port, start + link.latency_ps) {
                    lost += 1;
                    continue;
                }
                let receiver = &mut self.ports[port];
                // The slower link's rate and the longer of the two latencies determine the time of a path.
                let own = serialisation_ps(length, receiver.link.bandwidth);
                let first_bit = start + link.latency_ps.max(receiver.link.latency_ps);
                let last_bit = sent + link.latency_ps.max(receiver.link.latency_ps);
                let time_ps = last_bit.max(first_bit.max(receiver.receive_free_ps) + own);
                receiver.receive_free_ps = time_ps;
                receiver.counts.received_frames += 1;
                receiver.counts.received_bytes += length;
                deliveries.push(Delivery {
                    time_ps,
                    port,
                    bytes: Vec::new(),
                    checksum_valid: frame.checksum_valid,
                });
            }
            // Nearly all frames have one receiver. The last receiver gets the sender's buffer, so the bytes need not be copied.
            match deliveries[first..].split_last_mut() {
                Some((last, others)) => {
                    for other in others {
                        other.bytes.clone_from(&frame.bytes);
                    }
                    last.bytes = frame.bytes;
                }
                None => lost = lost.max(1),
            }
            self.ports[frame.port].counts.dropped_frames += lost;
        }
        deliveries.sort_by_key(|d| (d.time_ps, d.port));
        deliveries
    }
}

impl Port {
    /// Returns the number of bytes, with overhead, that wait for the port's link at a time in picoseconds.
    fn queued(&self, at_ps: u64) -> u64 {
        let wait = u128::from(self.receive_free_ps.saturating_sub(at_ps));
        (wait * u128::from(self.link.bandwidth) / (8 * u128::from(PS_PER_SECOND))) as u64
    }
}

fn addressed(frame: &[u8], mac: &[u8; 6]) -> bool {
    // The group bit marks broadcast and multicast (IEEE 802.3 §3.2.3).
    frame.len() >= 14 && (frame[0] & 1 != 0 || frame[..6] == mac[..])
}

fn serialisation_ps(bytes: u64, bandwidth: u64) -> u64 {
    let bits = u128::from((bytes.max(MIN_FRAME) + OVERHEAD) * 8);
    (bits * u128::from(PS_PER_SECOND)).div_ceil(u128::from(bandwidth)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const C: [u8; 6] = [2, 0, 0, 0, 0, 3];
    const TEN_GBIT: LinkConfig = LinkConfig {
        bandwidth: 10_000_000_000,
        latency_ps: 1_300_000,
    };

    fn frame(to: [u8; 6], len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes[..6].copy_from_slice(&to);
        bytes
    }

    fn switch() -> Switch {
        Switch::new(&[(A, TEN_GBIT), (B, TEN_GBIT), (C, TEN_GBIT)]).unwrap()
    }

    #[test]
    fn one_way_time_is_serialisation_plus_latency() {
        let out = switch().forward(
            vec![SentFrame {
                time_ps: 1000,
                port: 0,
                bytes: frame(B, 1514),
                missing: 0,
                checksum_valid: false,
            }],
            u64::MAX,
        );
        // (1514 + 24) * 8 bit at 10 Gbit/s = 1230.4 ns
        assert_eq!(out.len(), 1);
        assert_eq!(
            (out[0].time_ps, out[0].port),
            (1000 + 1_230_400 + 1_300_000, 1)
        );
    }

    #[test]
    fn back_to_back_frames_queue_on_the_senders_link() {
        let mut s = switch();
        let f = |t| SentFrame {
            time_ps: t,
            port: 0,
            bytes: frame(B, 1514),
            missing: 0,
            checksum_valid: false,
        };
        let out = s.forward(vec![f(0), f(0), f(0)], u64::MAX);
        let times: Vec<_> = out.iter().map(|d| d.time_ps).collect();
        assert_eq!(times, [2_530_400, 3_760_800, 4_991_200]);
        // The link is still busy in the next quantum.
        assert_eq!(
            s.forward(vec![f(1_300_000)], u64::MAX)[0].time_ps,
            6_221_600
        );
    }

    #[test]
    fn two_senders_share_the_receivers_link() {
        let out = switch().forward(
            vec![
                SentFrame {
                    time_ps: 0,
                    port: 0,
                    bytes: frame(C, 1514),
                    missing: 0,
                    checksum_valid: false,
                },
                SentFrame {
                    time_ps: 0,
                    port: 1,
                    bytes: frame(C, 1514),
                    missing: 0,
                    checksum_valid: false,
                },
            ],
            u64::MAX,
        );
        let times: Vec<_> = out.iter().map(|d| d.time_ps).collect();
        assert_eq!(times, [2_530_400, 3_760_800]);
    }

    #[test]
    fn a_frame_that_waits_at_its_sender_keeps_no_other_from_the_receiver() {
        let f = |time_ps, port, to| SentFrame {
            time_ps,
            port,
            bytes: frame(to, 1514),
            missing: 0,
            checksum_valid: false,
        };
        let frames = vec![f(0, 0, B), f(0, 0, B), f(0, 0, C), f(1_000_000, 1, C)];
        let mut s = switch();
        // In quanta of 1.3 us: what is not sent in one waits for the next.
        let mut out = s.forward(frames.clone(), 1_300_000);
        assert_eq!(s.next_ps(), Some(2_460_800));
        out.extend(s.forward(Vec::new(), 2_600_000));
        assert_eq!(s.next_ps(), None);
        let times: Vec<_> = out.iter().map(|d| (d.time_ps, d.port)).collect();
        let late = 2_460_800 + 1_230_400 + 1_300_000;
        assert_eq!(
            times,
            [(2_530_400, 1), (3_530_400, 2), (3_760_800, 1), (late, 2)]
        );
        // As without quanta.
        assert_eq!(switch().forward(frames, u64::MAX), out);
    }

    #[test]
    fn a_switch_goes_on_from_the_state_of_another() {
        let f = |time_ps, to| SentFrame {
            time_ps,
            port: 0,
            bytes: frame(to, 1514),
            missing: 0,
            checksum_valid: true,
        };
        let mut first = switch();
        first.forward(vec![f(0, B), f(0, B), f(0, C)], 1_300_000);
        let mut second = switch();
        second.load(first.state()).unwrap();
        assert_eq!(second.next_ps(), first.next_ps());
        let later = vec![f(2_000_000, C)];
        assert_eq!(
            second.forward(later.clone(), u64::MAX),
            first.forward(later, u64::MAX)
        );
        assert_eq!(second.counts(), first.counts());
        let mut state = switch().state();
        state[1].waiting.push_back(f(0, B));
        let wrong = SwitchStateError::Frame { port: 1, sender: 0 };
        assert_eq!(second.load(state.clone()), Err(wrong));
        state.pop();
        assert!(second.load(state).is_err());
    }

    #[test]
    fn broadcast_reaches_all_others_and_unknown_is_dropped() {
        let mut s = switch();
        let out = s.forward(
            vec![SentFrame {
                time_ps: 0,
                port: 1,
                bytes: frame([0xff; 6], 60),
                missing: 0,
                checksum_valid: false,
            }],
            u64::MAX,
        );
        assert_eq!(out.iter().map(|d| d.port).collect::<Vec<_>>(), [0, 2]);
        assert!(
            s.forward(
                vec![SentFrame {
                    time_ps: 0,
                    port: 1,
                    bytes: frame([4; 6], 60),
                    missing: 0,
                    checksum_valid: false,
                }],
                u64::MAX
            )
            .is_empty()
        );
        assert_eq!(s.counts()[1].dropped_frames, 1);
        assert_eq!(s.counts()[1].sent_frames, 2);
        assert_eq!(s.counts()[0].received_bytes, 60);
    }

    #[test]
    fn all_receivers_get_the_bytes_and_the_last_gets_the_buffer() {
        let mut bytes = frame([0xff; 6], 60);
        bytes[20] = 7;
        let sent = SentFrame {
            time_ps: 0,
            port: 2,
            bytes: bytes.clone(),
            missing: 0,
            checksum_valid: true,
        };
        let buffer = sent.bytes.as_ptr();
        let out = switch().forward(vec![sent], u64::MAX);
        assert_eq!(out.len(), 2);
        for delivery in &out {
            assert_eq!(delivery.bytes, bytes);
            assert!(delivery.checksum_valid);
        }
        assert_eq!(out[1].bytes.as_ptr(), buffer);
    }

    #[test]
    fn what_the_switch_cannot_hold_is_dropped() {
        let slow = LinkConfig {
            bandwidth: 10_000_000,
            ..TEN_GBIT
        };
        let mut s = Switch::new(&[(A, TEN_GBIT), (B, slow), (C, TEN_GBIT)]).unwrap();
        let f = |port, to, time_ps| SentFrame {
            time_ps,
            port,
            bytes: frame(to, 1 << 16),
            missing: 0,
            checksum_valid: false,
        };
        // The sender's link takes 0.05 ms for a frame, the receiver's 52 ms, and 1 MiB may wait.
        let out = s.forward((0..100).map(|_| f(0, B, 0)).collect(), u64::MAX);
        assert_eq!(
            out.len(),
            17,
            "16, and one when the first has begun to leave"
        );
        assert_eq!(s.counts()[0].dropped_frames, 83);
        assert_eq!(s.counts()[1].received_frames, 17);
        // Others are reached, and B again when there is room.
        let second = PS_PER_SECOND;
        let out = s.forward(vec![f(2, [0xff; 6], second / 100)], u64::MAX);
        assert_eq!(out.iter().map(|d| d.port).collect::<Vec<_>>(), [0]);
        assert_eq!(s.counts()[2].dropped_frames, 1);
        let out = s.forward(vec![f(2, [0xff; 6], 10 * second)], u64::MAX);
        assert_eq!(out.iter().map(|d| d.port).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn impossible_links_are_refused() {
        let dead = LinkConfig {
            bandwidth: 0,
            ..TEN_GBIT
        };
        assert_eq!(
            Switch::new(&[(A, TEN_GBIT), (B, dead)]).unwrap_err(),
            LinkError::Bandwidth { port: 1 }
        );
        let instant = LinkConfig {
            latency_ps: 0,
            ..TEN_GBIT
        };
        assert!(
            Switch::new(&[(A, instant)])
                .unwrap_err()
                .to_string()
                .contains("1.3 us")
        );
    }

    proptest! {
        #[test]
        fn the_order_of_collection_does_not_matter_and_nothing_arrives_early(
            frames in prop::collection::vec((0_u64..2_000_000, 0_usize..3, 0_usize..3, 60_usize..1514), 0..40),
            seed in any::<u64>(),
        ) {
            let macs = [A, B, C];
            let mut sent: Vec<SentFrame> = frames
                .iter()
                .enumerate()
                .map(|(i, &(t, from, to, len))| {
                    let mut bytes = frame(macs[to], len);
                    bytes[14] = i as u8;
                    SentFrame { time_ps: t * 7 + i as u64, port: from, bytes, missing: 0, checksum_valid: false }
                })
                .collect();
            let expected = switch().forward(sent.clone(), u64::MAX);
            let n = sent.len().max(1);
            for i in 0..sent.len() {
                sent.swap(i, (seed as usize ^ (i * 31)) % n);
            }
            prop_assert_eq!(&switch().forward(sent.clone(), u64::MAX), &expected);
            for d in &expected {
                let origin = sent.iter().find(|s| s.bytes == d.bytes).unwrap();
                prop_assert!(d.time_ps >= origin.time_ps + switch().lookahead().unwrap());
            }
        }
    }
}
