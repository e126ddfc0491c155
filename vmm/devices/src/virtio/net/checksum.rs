//! The Internet checksum (RFC 1071) of TCP and UDP, which the device fills in for frames it sends and verifies for frames it receives.

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Adds the one's complement sum of big-endian 16-bit words to `sum` and returns the result. The last word is padded with zero.
pub(super) fn add(sum: u32, bytes: &[u8]) -> u32 {
    // The byte order changes only the byte order of the sum, and carries may be added later (RFC 1071 §2). A 64-bit sum of 32-bit words
    // cannot overflow below 16 GiB.
    let (words, rest) = bytes.as_chunks::<4>();
    let mut wide: u64 = words
        .iter()
        .map(|&w| u64::from(u32::from_le_bytes(w)))
        .sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    wide += u64::from(u32::from_le_bytes(last));
    while wide > 0xffff {
        wide = (wide & 0xffff) + (wide >> 16);
    }
    add_word(sum, (wide as u16).swap_bytes())
}

fn add_word(sum: u32, word: u16) -> u32 {
    let sum = sum + u32::from(word);
    (sum & 0xffff) + (sum >> 16)
}

/// Returns the checksum of a sum: the complement of its lower 16 bits plus carries.
pub(super) fn fold(sum: u32) -> u16 {
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Completes a partial checksum. The field at `start + offset` has the sum of the pseudo-header, and gets the checksum of all bytes from
/// `start`. None if the field is outside the frame.
pub(super) fn fill(frame: &mut [u8], start: u16, offset: u16) -> Option<()> {
    let start = usize::from(start);
    let at = start + usize::from(offset);
    if at + 2 > frame.len() {
        return None;
    }
    let sum = fold(add(0, &frame[start..]));
    // For UDP, a checksum of zero means that there is none. 0xffff is the same number in one's complement.
    let sum = if sum == 0 { 0xffff } else { sum };
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// Returns whether the headers alone show that [`fill`] makes a frame that [`verify`] accepts: the field at `offset` from `start` is the
/// packet's checksum field and has the sum of the pseudo-header. False if bytes follow the packet, since `fill` would sum them as well.
pub(super) fn completes(frame: &[u8], start: u16, offset: u16) -> bool {
    let Some(packet) = Packet::parse(frame) else {
        return false;
    };
    let field = packet.field();
    let (start, offset) = (usize::from(start), usize::from(offset));
    if start != packet.payload_at || offset != field || packet.end() != frame.len() {
        return false;
    }
    let partial = u16::from_be_bytes([packet.payload[field], packet.payload[field + 1]]);
    // Zero has two forms in one's complement, so the sums are subtracted, not compared.
    fold(add_word(packet.pseudo(), !partial)) == 0
}

/// Returns whether the frame is an unfragmented TCP or UDP packet over IPv4 with correct checksums. A UDP packet without a checksum gives
/// false.
pub(super) fn verify(frame: &[u8]) -> bool {
    let Some(packet) = Packet::parse(frame) else {
        return false;
    };
    let absent = packet.protocol() == UDP && packet.payload[6..8] == [0, 0];
    !absent && fold(add(packet.pseudo(), packet.payload)) == 0
}

/// An unfragmented TCP or UDP packet over IPv4 with a correct IP header checksum.
struct Packet<'a> {
    ip: &'a [u8],
    payload: &'a [u8],
    /// Offset of the IP payload in the frame, in bytes.
    payload_at: usize,
}

impl<'a> Packet<'a> {
    fn parse(frame: &'a [u8]) -> Option<Self> {
        let ip = frame.get(14..)?;
        if frame[12..14] != [8, 0] || ip.first()? >> 4 != 4 {
            return None;
        }
        let header = usize::from(ip[0] & 0xf) * 4;
        let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
        if header < 20 || total < header || ip.len() < total {
            return None;
        }
        let packet = Self {
            ip,
            payload: &ip[header..total],
            payload_at: 14 + header,
        };
        let shortest = match packet.protocol() {
            TCP => 20,
            UDP => 8,
            _ => return None,
        };
        let sound = packet.payload.len() >= shortest && fold(add(0, &ip[..header])) == 0;
        (sound && !is_fragment(ip)).then_some(packet)
    }

    fn protocol(&self) -> u8 {
        self.ip[9]
    }

    /// Returns the offset of the checksum field in the IP payload.
    fn field(&self) -> usize {
        if self.protocol() == TCP { 16 } else { 6 }
    }

    /// Returns the offset in the frame at which the packet ends.
    fn end(&self) -> usize {
        self.payload_at + self.payload.len()
    }

    fn pseudo(&self) -> u32 {
        pseudo(self.ip, self.payload.len(), self.protocol())
    }
}

/// Returns whether an IPv4 packet is a fragment. `ip` begins with the IP header.
pub(super) fn is_fragment(ip: &[u8]) -> bool {
    // The flag "more fragments", or a fragment offset.
    u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0
}

/// Returns the sum of the IPv4 pseudo-header for `len` bytes of payload. `ip` begins with the IP header.
pub(super) fn pseudo(ip: &[u8], len: usize, protocol: u8) -> u32 {
    let addresses = add(0, &ip[12..20]);
    add_word(add_word(addresses, protocol.into()), len as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::virtio::net::segment::tests::packet;

    /// Returns a UDP/IPv4 frame with `len` bytes of payload and a partial checksum, which the device must complete.
    fn datagram(len: usize) -> Vec<u8> {
        let mut f = packet(len);
        f.drain(42..54);
        f[23] = UDP;
        f[38..40].copy_from_slice(&(8 + len as u16).to_be_bytes());
        set_partial(&mut f, 40);
        f
    }

    /// Sets the length and checksum in the IP header, and the field at offset `at` to the sum of the pseudo-header.
    fn set_partial(f: &mut [u8], at: usize) {
        let total = (f.len() - 14) as u16;
        f[16..18].copy_from_slice(&total.to_be_bytes());
        set_ip_sum(f);
        let sum = pseudo(&f[14..], f.len() - 34, f[23]) as u16;
        f[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    fn set_ip_sum(f: &mut [u8]) {
        let end = 14 + usize::from(f[14] & 0xf) * 4;
        f[24..26].fill(0);
        let sum = fold(add(0, &f[14..end]));
        f[24..26].copy_from_slice(&sum.to_be_bytes());
    }

    /// Returns the results of [`completes`] for a frame, and of [`verify`] for the filled frame.
    fn both(mut frame: Vec<u8>, start: u16, offset: u16) -> (bool, bool) {
        let known = completes(&frame, start, offset);
        let filled = fill(&mut frame, start, offset).is_some();
        (known, filled && verify(&frame))
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let sum = add(0, &[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(fold(sum), !0xddf2);
        assert_eq!(fold(add(0, &[0xff, 0xff, 0x01])), !0x0100);
    }

    #[test]
    fn sums_are_those_of_single_words() {
        let by_words = |sum: u32, bytes: &[u8]| {
            bytes.chunks(2).fold(sum, |sum, pair| {
                add_word(
                    sum,
                    u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]),
                )
            })
        };
        let bytes: Vec<u8> = (0..2000_u32).map(|i| ((i * i * 7) >> 3) as u8).collect();
        for len in (0..70).chain([1999, 2000]) {
            for bytes in [&bytes[..len], &vec![0; len], &vec![0xff; len]] {
                for sum in [0, 1, 0x1234, 0xffff] {
                    assert_eq!(
                        add(sum, bytes),
                        by_words(sum, bytes),
                        "{len} bytes, {sum:#x}"
                    );
                }
            }
        }
    }

    #[test]
    fn filled_checksums_verify_and_damage_shows() {
        let mut frame = packet(101);
        assert!(!verify(&frame), "only the pseudo-header is summed");
        fill(&mut frame, 34, 16).unwrap();
        assert!(verify(&frame));
        for at in 14..frame.len() {
            frame[at] ^= 1;
            assert!(!verify(&frame), "byte {at}");
            frame[at] ^= 1;
        }
        for len in 0..frame.len() {
            assert!(!verify(&frame[..len]), "cut to {len}");
        }
    }

    #[test]
    fn good_packets_are_known_to_be_good_before_they_are_filled() {
        for len in [0, 1, 2, 101, 1460, 65_000] {
            assert_eq!(both(packet(len), 34, 16), (true, true), "TCP, {len}");
            assert_eq!(both(datagram(len), 34, 6), (true, true), "UDP, {len}");
        }
        let mut options = packet(7);
        options[14] = 0x46;
        options.splice(34..34, [1; 4]);
        options[17] += 4;
        set_ip_sum(&mut options);
        assert_eq!(both(options.clone(), 38, 16), (true, true));
        assert_eq!(both(options, 34, 20), (false, false));
    }

    #[test]
    fn wrong_sums_of_pseudo_headers_are_noticed() {
        for (frame, at) in [(packet(101), 50), (datagram(101), 40)] {
            let offset = at as u16 - 34;
            let right = u16::from_be_bytes([frame[at], frame[at + 1]]);
            for partial in [0, 1, !right, right - 1, right + 1, 0xffff] {
                let mut frame = frame.clone();
                frame[at..at + 2].copy_from_slice(&partial.to_be_bytes());
                assert_eq!(both(frame, 34, offset), (false, false), "{partial:#x}");
            }
        }
    }

    #[test]
    fn zero_is_as_good_as_its_other_form() {
        for (mut frame, at) in [(packet(101), 50), (datagram(101), 40)] {
            // The address is changed so that the sum becomes 0xffff.
            let sum = pseudo(&frame[14..], frame.len() - 34, frame[23]) as u16;
            let word = u16::from_be_bytes([frame[32], frame[33]]) + (0xffff - sum);
            frame[32..34].copy_from_slice(&word.to_be_bytes());
            set_partial(&mut frame, at);
            assert_eq!(frame[at..at + 2], [0xff, 0xff]);
            assert_eq!(both(frame.clone(), 34, at as u16 - 34), (true, true));
            frame[at..at + 2].fill(0);
            assert_eq!(both(frame, 34, at as u16 - 34), (true, true));
        }
    }

    #[test]
    fn wrong_places_are_noticed() {
        for (start, offset) in [(34, 14), (34, 18), (34, 6), (32, 18), (36, 14), (16, 34)] {
            assert_eq!(
                both(packet(101), start, offset),
                (false, false),
                "{start}, {offset}"
            );
        }
        assert_eq!(both(datagram(101), 34, 16), (false, false));
        // A correct IP header sums to zero, so `fill` stores a valid checksum. `completes` does not detect this case and leaves it to the
        // receiver.
        assert_eq!(both(packet(101), 14, 36), (false, true));
        assert_eq!(both(packet(101), u16::MAX, u16::MAX), (false, false));
    }

    #[test]
    fn what_is_no_sound_packet_is_noticed() {
        // Fragments, another protocol, another IP version, a header too short, a length past the end, and a VLAN tag before the header.
        for (at, value) in [
            (20, 0x60),
            (21, 1),
            (23, 1),
            (14, 0x65),
            (14, 0x44),
            (16, 0x7f),
            (12, 0x81),
        ] {
            let mut frame = packet(101);
            frame[at] = value;
            set_ip_sum(&mut frame);
            assert_eq!(both(frame, 34, 16), (false, false), "byte {at}");
        }
        let mut frame = packet(101);
        frame[24] ^= 1;
        assert_eq!(
            both(frame, 34, 16),
            (false, false),
            "checksum of the IP header"
        );
    }

    #[test]
    fn nothing_is_claimed_of_packets_with_padding() {
        let mut frame = packet(101);
        frame.extend([0; 3]);
        assert_eq!(both(frame.clone(), 34, 16), (false, true), "zeros");
        frame.extend([9; 3]);
        assert_eq!(both(frame, 34, 16), (false, false), "other bytes");
    }

    #[test]
    fn datagrams_without_checksum_are_not_verified() {
        let mut frame = datagram(101);
        fill(&mut frame, 34, 6).unwrap();
        assert!(verify(&frame));
        frame[40..42].fill(0);
        assert!(!verify(&frame));
    }

    proptest! {
        #[test]
        fn what_is_known_is_what_verify_says(
            udp in any::<bool>(),
            len in 0_usize..80,
            changes in prop::collection::vec((12_usize..60, any::<u8>()), 0..3),
            sound in any::<bool>(),
        ) {
            let mut frame = if udp { datagram(len) } else { packet(len) };
            for (at, value) in changes {
                if at < frame.len() {
                    frame[at] = value;
                }
            }
            if sound && frame[14] & 0xf == 5 {
                set_ip_sum(&mut frame);
            }
            let (known, right) = both(frame.clone(), 34, if udp { 6 } else { 16 });
            prop_assert!(right || !known);
            let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            if frame[14] & 0xf == 5 && total + 14 == frame.len() && (frame[23] == UDP) == udp {
                prop_assert_eq!(known, right);
            }
        }
    }

    #[test]
    fn fields_outside_the_frame_are_refused() {
        let mut frame = packet(10);
        let len = frame.len() as u16;
        assert_eq!(fill(&mut frame, len - 1, 0), None);
        assert_eq!(fill(&mut frame, u16::MAX, u16::MAX), None);
        assert_eq!(fill(&mut frame, len - 2, 0), Some(()));
    }
}
