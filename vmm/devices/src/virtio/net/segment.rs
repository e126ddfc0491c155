//! TCP segmentation offload: splits one large TCP segment into frames, as a network card does.

use super::checksum::{add, fold, is_fragment, pseudo};
use super::queue::Header;

/// Offset of the IP header in a frame, in bytes.
const IP: usize = 14;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// A large TCP/IPv4 packet to be split.
pub(super) struct TcpPacket<'a> {
    frame: &'a [u8],
    /// Offset of the TCP header in the frame, in bytes.
    tcp_at: usize,
    /// Offset of the payload in the frame, in bytes.
    data_at: usize,
    /// Payload of a segment in bytes. The last segment may have less.
    size: usize,
}

impl<'a> TcpPacket<'a> {
    /// Parses a packet to be split into segments of `gso_size` bytes of payload. None if the frame is not a TCP/IPv4 packet with payload,
    /// or if the header does not fit it.
    pub fn parse(frame: &'a [u8], header: Header) -> Option<Self> {
        let ip = frame.get(IP..)?;
        if frame[12..14] != [8, 0] || ip.len() < 20 || ip[0] >> 4 != 4 || ip[9] != 6 {
            return None;
        }
        let tcp_at = IP + usize::from(ip[0] & 0xf) * 4;
        let tcp = frame.get(tcp_at..)?;
        if tcp_at < IP + 20 || tcp.len() < 20 || usize::from(header.csum_start) != tcp_at {
            return None;
        }
        let data_at = tcp_at + usize::from(tcp[12] >> 4) * 4;
        let data = frame.get(data_at..)?;
        let size = usize::from(header.gso_size);
        if data_at < tcp_at + 20 || size == 0 || data.is_empty() || !header.needs_checksum() {
            return None;
        }
        Some(Self {
            frame,
            tcp_at,
            data_at,
            size,
        })
    }

    /// Returns the number of segments.
    pub fn segments(&self) -> usize {
        (self.frame.len() - self.data_at).div_ceil(self.size)
    }

    /// Returns the length in bytes of the frame of segment `i`, from 0. The first frame is the longest.
    pub fn segment_len(&self, i: usize) -> usize {
        let rest = self.frame.len() - i * self.size;
        rest.min(self.data_at + self.size)
    }

    /// Returns whether [`super::checksum::verify`] accepts the segments. It accepts no fragments of IP packets.
    pub fn gives_valid_segments(&self) -> bool {
        !is_fragment(&self.frame[IP..])
    }

    /// Writes the frame of segment `i` to `out`, whose length must be [`TcpPacket::segment_len`].
    pub fn write_segment(&self, i: usize, out: &mut [u8]) {
        let (headers, data) = out.split_at_mut(self.data_at);
        headers.copy_from_slice(&self.frame[..self.data_at]);
        let from = self.data_at + i * self.size;
        data.copy_from_slice(&self.frame[from..from + data.len()]);
        self.set_ip_header(i, out);
        self.set_tcp_header(i, out);
    }

    /// Sets length, identification and checksum of the segment's IP header.
    fn set_ip_header(&self, i: usize, out: &mut [u8]) {
        let ip = &mut out[IP..];
        let total = ip.len() as u16;
        let identification = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(i as u16);
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[4..6].copy_from_slice(&identification.to_be_bytes());
        ip[10..12].fill(0);
        let sum = fold(add(0, &ip[..self.tcp_at - IP]));
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }

    /// Sets sequence number, flags and checksum of the segment's TCP header.
    fn set_tcp_header(&self, i: usize, out: &mut [u8]) {
        let len = out.len() - self.tcp_at;
        let pseudo = pseudo(&out[IP..], len, 6);
        let tcp = &mut out[self.tcp_at..];
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])
            .wrapping_add((i * self.size) as u32);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        if i + 1 < self.segments() {
            tcp[13] &= !(FIN | PSH);
        }
        if i > 0 {
            tcp[13] &= !CWR;
        }
        tcp[16..18].fill(0);
        let sum = fold(add(pseudo, tcp));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::virtio::net::checksum::{fill, verify};

    /// Returns a TCP/IPv4 frame with `len` bytes of payload and a partial TCP checksum, which the device must complete.
    pub fn packet(len: usize) -> Vec<u8> {
        let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        f.extend([
            0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        f[16..18].copy_from_slice(&(40 + len as u16).to_be_bytes());
        let sum = fold(add(0, &f[14..34]));
        f[24..26].copy_from_slice(&sum.to_be_bytes());
        f.extend([
            0x1f, 0x90, 0x9c, 0x40, 0xff, 0xff, 0xff, 0, 0, 0, 0, 9, 0x50, 0x99, 1, 0, 0, 0, 0, 0,
        ]);
        let partial = !fold(pseudo(&f[14..], 20 + len, 6));
        f[50..52].copy_from_slice(&partial.to_be_bytes());
        f.extend((0..len).map(|i| i as u8));
        f
    }

    /// Returns the frames of all segments. None if the packet cannot be split.
    fn cut(frame: &[u8], header: Header) -> Option<Vec<Vec<u8>>> {
        let packet = TcpPacket::parse(frame, header)?;
        let segment = |i| {
            // The buffer has other contents, which must be overwritten.
            let mut out = vec![0xa5; packet.segment_len(i)];
            packet.write_segment(i, &mut out);
            out
        };
        Some((0..packet.segments()).map(segment).collect())
    }

    fn header(size: u16) -> Header {
        Header {
            flags: 1,
            gso_type: 1,
            gso_size: size,
            csum_start: 34,
            csum_offset: 16,
        }
    }

    #[test]
    fn segments_are_whole_packets_in_sequence() {
        let frames = cut(&packet(2500), header(1000)).unwrap();
        assert_eq!(frames.len(), 3);
        let mut data = Vec::new();
        for (i, f) in frames.iter().enumerate() {
            assert!(verify(f), "segment {i}");
            assert_eq!(u16::from_be_bytes([f[18], f[19]]), 0x1234 + i as u16);
            let sequence = u32::from_be_bytes([f[38], f[39], f[40], f[41]]);
            assert_eq!(sequence, 0xffff_ff00u32.wrapping_add(1000 * i as u32));
            data.extend_from_slice(&f[54..]);
        }
        assert_eq!(
            frames.iter().map(|f| f[47]).collect::<Vec<_>>(),
            [0x90, 0x10, 0x19]
        );
        assert_eq!(data, packet(2500)[54..]);
    }

    #[test]
    fn segments_are_called_valid_where_they_verify() {
        for (flags, valid) in [(0x40, true), (0, true), (0x20, false), (0x01, false)] {
            let mut large = packet(2500);
            large[20] = flags;
            let packet = TcpPacket::parse(&large, header(1000)).unwrap();
            assert_eq!(packet.gives_valid_segments(), valid, "{flags:#x}");
            for f in cut(&large, header(1000)).unwrap() {
                assert_eq!(verify(&f), valid, "{flags:#x}");
            }
        }
    }

    #[test]
    fn one_segment_is_the_packet_with_its_checksum() {
        let mut whole = packet(700);
        let frames = cut(&whole, header(1000)).unwrap();
        fill(&mut whole, 34, 16).unwrap();
        assert_eq!(frames, [whole]);
    }

    #[test]
    fn what_is_no_tcp_packet_is_refused() {
        for len in 0..54 {
            assert!(
                cut(&packet(100)[..len], header(10)).is_none(),
                "cut to {len}"
            );
        }
        for (at, value) in [
            (12, 0x86),
            (14, 0x65),
            (14, 0x44),
            (23, 17),
            (46, 0x40),
            (46, 0xf0),
        ] {
            let mut f = packet(1);
            f[at] = value;
            assert!(cut(&f, header(10)).is_none(), "byte {at} = {value:#x}");
        }
        assert!(cut(&packet(100), header(0)).is_none());
        assert!(
            cut(
                &packet(100),
                Header {
                    csum_start: 30,
                    ..header(10)
                }
            )
            .is_none()
        );
    }
}
