//! The Internet checksum (RFC 1071) of TCP and UDP, filled in on the way out and verified on the way in.

const TCP: u8 = 6;
const UDP: u8 = 17;

/// One's complement sum of 16-bit big-endian words, the last padded with zero, added to `sum`.
pub(super) fn add(sum: u32, bytes: &[u8]) -> u32 {
    // In either byte order the sum is the same but for the order of its own bytes, and carries may wait (RFC 1071 §2): words of 32
    // bits in 64 have room for those of 16 GiB.
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

/// The checksum that a sum amounts to.
pub(super) fn fold(sum: u32) -> u16 {
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Complete a partial checksum: the field at `start + offset` holds the pseudo-header's sum; it gets the checksum of
/// everything from `start`. None if the field is outside the frame.
pub(super) fn fill(frame: &mut [u8], start: u16, offset: u16) -> Option<()> {
    let start = usize::from(start);
    let at = start + usize::from(offset);
    if at + 2 > frame.len() {
        return None;
    }
    let sum = fold(add(0, &frame[start..]));
    // For UDP zero means "none", and 0xffff is the same number in one's complement.
    let sum = if sum == 0 { 0xffff } else { sum };
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// Whether this is an unfragmented TCP or UDP packet over IPv4 whose checksums are right.
pub(super) fn verify(frame: &[u8]) -> bool {
    verify_v4(frame).unwrap_or(false)
}

fn verify_v4(frame: &[u8]) -> Option<bool> {
    let ip = frame.get(14..)?;
    if frame[12..14] != [8, 0] || ip.first()? >> 4 != 4 {
        return None;
    }
    let header = usize::from(ip[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    if header < 20 || total < header || ip.len() < total {
        return None;
    }
    let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff;
    let payload = &ip[header..total];
    let protocol = ip[9];
    let has_sum = match protocol {
        TCP => payload.len() >= 20,
        UDP => payload.len() >= 8 && payload[6..8] != [0, 0],
        _ => false,
    };
    if fragment != 0 || !has_sum || fold(add(0, &ip[..header])) != 0 {
        return None;
    }
    Some(fold(add(pseudo(ip, payload.len(), protocol), payload)) == 0)
}

/// Sum of the IPv4 pseudo-header; `ip` begins with the IP header.
pub(super) fn pseudo(ip: &[u8], len: usize, protocol: u8) -> u32 {
    let addresses = add(0, &ip[12..20]);
    add_word(add_word(addresses, protocol.into()), len as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::net::segment::tests::packet;

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
    fn fields_outside_the_frame_are_refused() {
        let mut frame = packet(10);
        let len = frame.len() as u16;
        assert_eq!(fill(&mut frame, len - 1, 0), None);
        assert_eq!(fill(&mut frame, u16::MAX, u16::MAX), None);
        assert_eq!(fill(&mut frame, len - 2, 0), Some(()));
    }
}
