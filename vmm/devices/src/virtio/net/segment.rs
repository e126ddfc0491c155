//! Cutting one large TCP segment into frames, as a network card with TCP segmentation offload does.

use super::checksum::{add, fold, pseudo};
use super::queue::Header;

const ETHERNET: usize = 14;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// Cut a TCP/IPv4 packet into segments of `gso_size` bytes of payload. None if it is none or the header contradicts it.
pub(super) fn tcp_v4(frame: &[u8], header: Header) -> Option<Vec<Vec<u8>>> {
    let ip_at = ETHERNET;
    let ip = frame.get(ip_at..)?;
    if frame[12..14] != [8, 0] || ip.len() < 20 || ip[0] >> 4 != 4 || ip[9] != 6 {
        return None;
    }
    let tcp_at = ip_at + usize::from(ip[0] & 0xf) * 4;
    let tcp = frame.get(tcp_at..)?;
    if tcp_at < ip_at + 20 || tcp.len() < 20 || usize::from(header.csum_start) != tcp_at {
        return None;
    }
    let data_at = tcp_at + usize::from(tcp[12] >> 4) * 4;
    let data = frame.get(data_at..)?;
    let size = usize::from(header.gso_size);
    if data_at < tcp_at + 20 || size == 0 || data.is_empty() || !header.needs_checksum() {
        return None;
    }
    let identification = u16::from_be_bytes([ip[4], ip[5]]);
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let flags = tcp[13];
    let count = data.len().div_ceil(size);
    let segments = data.chunks(size).enumerate().map(|(i, piece)| {
        let mut out = frame[..data_at].to_vec();
        out.extend_from_slice(piece);
        let total = (out.len() - ip_at) as u16;
        out[ip_at + 2..ip_at + 4].copy_from_slice(&total.to_be_bytes());
        let id = identification.wrapping_add(i as u16);
        out[ip_at + 4..ip_at + 6].copy_from_slice(&id.to_be_bytes());
        out[ip_at + 10..ip_at + 12].fill(0);
        let sum = fold(add(0, &out[ip_at..tcp_at]));
        out[ip_at + 10..ip_at + 12].copy_from_slice(&sum.to_be_bytes());
        let at = sequence.wrapping_add((i * size) as u32);
        out[tcp_at + 4..tcp_at + 8].copy_from_slice(&at.to_be_bytes());
        let mut own = flags;
        if i + 1 < count {
            own &= !(FIN | PSH);
        }
        if i > 0 {
            own &= !CWR;
        }
        out[tcp_at + 13] = own;
        out[tcp_at + 16..tcp_at + 18].fill(0);
        let start = pseudo(&out[ip_at..], out.len() - tcp_at, 6);
        let sum = fold(add(start, &out[tcp_at..]));
        out[tcp_at + 16..tcp_at + 18].copy_from_slice(&sum.to_be_bytes());
        out
    });
    Some(segments.collect())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::virtio::net::checksum::{fill, verify};

    /// A TCP/IPv4 frame with `len` bytes of payload, its TCP checksum left to the device.
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
        let frames = tcp_v4(&packet(2500), header(1000)).unwrap();
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
    fn one_segment_is_the_packet_with_its_checksum() {
        let mut whole = packet(700);
        let frames = tcp_v4(&whole, header(1000)).unwrap();
        fill(&mut whole, 34, 16).unwrap();
        assert_eq!(frames, [whole]);
    }

    #[test]
    fn what_is_no_tcp_packet_is_refused() {
        for len in 0..54 {
            assert!(
                tcp_v4(&packet(100)[..len], header(10)).is_none(),
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
            assert!(tcp_v4(&f, header(10)).is_none(), "byte {at} = {value:#x}");
        }
        assert!(tcp_v4(&packet(100), header(0)).is_none());
        assert!(
            tcp_v4(
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
