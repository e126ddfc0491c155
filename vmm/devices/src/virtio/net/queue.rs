//! Transfer of frames through the receive and transmit queues (virtio 1.2 §5.1.6).

use std::io::{Read, Write};

use virtio_bindings::virtio_net::*;

use super::checksum;
use super::device::{DESCRIPTOR, Net, RECEIVE, TRANSMIT};
use super::segment::TcpPacket;
use super::state::Frame;
use crate::virtio::{Chain, QueueFault, Queues};

/// Bytes of struct virtio_net_hdr with num_buffers, its form with VIRTIO_F_VERSION_1.
const HEADER: usize = 12;
/// Shortest frame in bytes: an Ethernet header.
pub(super) const SHORTEST: usize = 14;
/// Longest frame in bytes: an IP packet of 65,535 bytes, such as a TCP segment for segmentation, and an Ethernet header.
pub(super) const LONGEST: usize = 65_535 + 14;

/// Offload fields of the header that precedes a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub flags: u8,
    pub gso_type: u8,
    pub gso_size: u16,
    pub csum_start: u16,
    pub csum_offset: u16,
}

impl Header {
    fn parse(h: &[u8; HEADER]) -> Self {
        let word = |at: usize| u16::from_le_bytes([h[at], h[at + 1]]);
        Self {
            flags: h[0],
            gso_type: h[1],
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    pub fn needs_checksum(&self) -> bool {
        self.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM as u8 != 0
    }
}

impl Net {
    pub(super) fn transmit(&mut self, queues: &mut Queues<'_>, now: u64) -> Result<(), QueueFault> {
        loop {
            while self.sending.may_proceed(now)
                && let Some(chain) = queues.pop(TRANSMIT)?
            {
                let head = chain.head;
                self.send(chain, now);
                queues.add_used(TRANSMIT, head, 0)?;
            }
            // The driver need not notify the device of buffers that it added before `listen`.
            if self.sending.waiting || !queues.listen(TRANSMIT)? {
                return queues.signal(TRANSMIT);
            }
        }
    }

    /// Sends the frame in one chain. A chain without a valid frame is counted and dropped.
    fn send(&mut self, chain: Chain<'_>, now: u64) {
        let sent = self
            .read(chain)
            .and_then(|(header, bytes)| self.offload(header, bytes, now));
        if sent.is_none() {
            self.counters.refused += 1;
            // A refused chain takes as long as the shortest frame on the link.
            self.spend(now, 0);
        }
    }

    /// Returns the header and the frame in a chain. None if the length is impossible or the chain cannot be read.
    fn read(&mut self, mut chain: Chain<'_>) -> Option<(Header, Vec<u8>)> {
        let len = chain.reader.available_bytes().checked_sub(HEADER)?;
        if !(SHORTEST..=LONGEST).contains(&len) {
            return None;
        }
        let mut header = [0; HEADER];
        chain.reader.read_exact(&mut header).ok()?;
        let mut bytes = self.spares.take(len);
        chain.reader.read_exact(&mut bytes).ok()?;
        Some((Header::parse(&header), bytes))
    }

    /// Completes the checksum or splits the segment as the header requests, and sends the frame. None if the work is impossible or was not
    /// negotiated.
    fn offload(&mut self, header: Header, mut bytes: Vec<u8>, time: u64) -> Option<()> {
        if header.needs_checksum() && !self.negotiated(VIRTIO_NET_F_CSUM) {
            return None;
        }
        match u32::from(header.gso_type) {
            VIRTIO_NET_HDR_GSO_NONE if bytes.len() <= self.frame_limit() => {
                let mut checksum_valid = false;
                if header.needs_checksum() {
                    let (start, offset) = (header.csum_start, header.csum_offset);
                    checksum_valid = checksum::completes(&bytes, start, offset);
                    checksum::fill(&mut bytes, start, offset)?;
                }
                self.push(Frame {
                    time,
                    bytes,
                    checksum_valid,
                });
                Some(())
            }
            VIRTIO_NET_HDR_GSO_TCPV4 if self.negotiated(VIRTIO_NET_F_HOST_TSO4) => {
                self.send_segments(header, bytes, time)
            }
            _ => None,
        }
    }

    /// Splits a large TCP packet into frames and sends them. None if it cannot be split, or if the frames would be too long.
    fn send_segments(&mut self, header: Header, large: Vec<u8>, time: u64) -> Option<()> {
        let packet = TcpPacket::parse(&large, header)?;
        if packet.segment_len(0) > self.frame_limit() {
            return None;
        }
        for i in 0..packet.segments() {
            let mut bytes = self.spares.take(packet.segment_len(i));
            packet.write_segment(i, &mut bytes);
            self.push(Frame {
                time,
                bytes,
                checksum_valid: packet.gives_valid_segments(),
            });
        }
        self.spares.put(large);
        Some(())
    }

    fn push(&mut self, frame: Frame) {
        self.counters.sent += 1;
        self.spend(frame.time, frame.bytes.len());
        self.outgoing.push(frame);
    }

    /// Returns the length in bytes of the longest frame that may be sent.
    fn frame_limit(&self) -> usize {
        usize::from(self.config.mtu) + SHORTEST + 4 // with a VLAN tag
    }

    pub(super) fn receive(&mut self, queues: &mut Queues<'_>, now: u64) -> Result<(), QueueFault> {
        let due = self.incoming.partition_point(|f| f.time <= now);
        if self.blocked && due > self.config.backlog {
            self.drop_incoming(self.config.backlog..due);
            self.counters.dropped_backlog += (due - self.config.backlog) as u64;
        }
        self.blocked = false;
        self.receiving.waiting = false;
        if !queues.is_ready(RECEIVE) {
            self.blocked = true;
            return Ok(());
        }
        let mut any = false;
        while let Some(frame) = self.incoming.front()
            && frame.time <= now
            && self.receiving.may_proceed(now)
        {
            if self.hand_over(queues, now)? {
                any = true;
            } else {
                self.blocked = true;
                break;
            }
        }
        if any { queues.signal(RECEIVE) } else { Ok(()) }
    }
}

impl Net {
    /// Writes the first frame to the guest's buffers, to several if VIRTIO_NET_F_MRG_RXBUF was negotiated. Without this feature, a frame
    /// longer than its buffer is dropped. Returns false if there are too few buffers, so that the frame still waits. The checks of buffers
    /// take time in any case, since a guest can cause them at any time.
    fn hand_over(&mut self, queues: &mut Queues<'_>, now: u64) -> Result<bool, QueueFault> {
        let Some(frame) = self.incoming.front() else {
            return Ok(false);
        };
        let need = HEADER + frame.bytes.len();
        let mut chains: Vec<Chain<'_>> = Vec::new();
        let mut room = 0;
        while room < need {
            if chains.len() == usize::from(queues.size(RECEIVE)) {
                // All buffers that the queue can hold are too small together, until the driver adds others.
                queues.unpop(RECEIVE, chains.len() as u16);
                return Ok(false);
            }
            let Some(chain) = queues.pop(RECEIVE)? else {
                // Request a notification before putting the chains back, so that it is for the next buffer, which is missing.
                if queues.listen(RECEIVE)? {
                    continue;
                }
                queues.unpop(RECEIVE, chains.len() as u16);
                return Ok(false);
            };
            self.receiving
                .spend(now, DESCRIPTOR * u64::from(chain.descriptors.max(1)));
            room += chain.writer.available_bytes();
            chains.push(chain);
            if !self.negotiated(VIRTIO_NET_F_MRG_RXBUF) {
                break;
            }
        }
        if room < need {
            // The single buffer is too small. It returns to the queue, and the frame is dropped.
            queues.unpop(RECEIVE, 1);
            self.counters.dropped_size += 1;
            self.retire();
            return Ok(true);
        }
        let mut header = [0; HEADER];
        if self.negotiated(VIRTIO_NET_F_GUEST_CSUM)
            && (frame.checksum_valid || checksum::verify(&frame.bytes))
        {
            header[0] = VIRTIO_NET_HDR_F_DATA_VALID as u8;
        }
        header[10..12].copy_from_slice(&(chains.len() as u16).to_le_bytes());
        let mut rest = [&header[..], &frame.bytes];
        for mut chain in chains {
            let (queue, head, what) = (RECEIVE, chain.head, "the buffer cannot be written");
            for part in &mut rest {
                let (piece, after) = part.split_at(part.len().min(chain.writer.available_bytes()));
                let fault = |_| QueueFault::Chain { queue, head, what };
                chain.writer.write_all(piece).map_err(fault)?;
                *part = after;
            }
            let written = chain.writer.bytes_written() as u32;
            queues.add_used(RECEIVE, head, written)?;
        }
        self.counters.received += 1;
        self.retire();
        Ok(true)
    }

    /// Removes the first frame, which was delivered or dropped.
    fn retire(&mut self) {
        if let Some(frame) = self.incoming.pop_front() {
            self.incoming_bytes -= frame.memory();
            self.spares.put(frame.bytes);
        }
    }
}
