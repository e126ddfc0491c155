//! Tests of offloads: what one guest leaves to its device arrives complete and valid at another guest.

use super::segment::tests::packet;
use super::*;
use crate::virtio::Device;
use crate::virtio::testing::*;

const CSUM: u64 = 1;
const GUEST_CSUM: u64 = 1 << 1;
const HOST_TSO4: u64 = 1 << 11;
const MRG_RXBUF: u64 = 1 << 15;
const DATA: u64 = 0x10_0000;

fn driver(features: u64) -> Driver {
    let offloads = Offloads {
        checksum: true,
        segmentation: true,
    };
    let config = NetConfig {
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        offloads,
        backlog: 64,
    };
    Driver::new(Device::Net(Net::new(config)), VERSION_1 | features)
}

fn net(d: &mut Driver) -> &mut Net {
    match d.device.device_mut() {
        Device::Net(net) => net,
        other => panic!("{other:?} is no network device"),
    }
}

/// Sends a frame with a partial TCP checksum, in segments of `gso_size` bytes unless `gso_size` is 0.
fn send(d: &mut Driver, frame: &[u8], gso_size: u16) -> Vec<Frame> {
    let mut bytes = vec![1, u8::from(gso_size != 0), 54, 0];
    bytes.extend(gso_size.to_le_bytes());
    bytes.extend([34, 0, 16, 0, 0, 0]);
    bytes.extend(frame);
    assert!(d.ram.write(DATA, &bytes));
    d.add(1, &[(DATA, bytes.len() as u32, false)]);
    d.kick(1, 3);
    assert_eq!(d.take_used(1).len(), 1);
    net(d).take_frames()
}

#[test]
fn a_large_segment_travels_in_frames_that_verify() {
    let mut a = driver(CSUM | HOST_TSO4);
    let frames = send(&mut a, &packet(10_000), 1460);
    assert_eq!(frames.len(), 7);
    assert!(frames.iter().all(|f| f.time == 3 && f.bytes.len() <= 1514));
    assert!(frames.iter().all(|f| f.checksum_valid));
    let mut b = driver(GUEST_CSUM | MRG_RXBUF);
    for frame in frames {
        net(&mut b).inject(frame);
    }
    let mut payload = Vec::new();
    for _ in 0..7 {
        b.add(0, &[(DATA, 2048, true)]);
        b.kick(0, 10);
        let used = b.take_used(0);
        let got = b.bytes(DATA, used[0].1 as usize);
        assert_eq!(got[0], 2, "DATA_VALID");
        payload.extend_from_slice(&got[12 + 54..]);
    }
    assert_eq!(payload, packet(10_000)[54..]);
}

#[test]
fn checksums_are_filled_in_and_damaged_frames_are_not_called_valid() {
    let mut a = driver(CSUM);
    let mut frame = send(&mut a, &packet(99), 0).remove(0);
    assert!(frame.checksum_valid);
    // The bytes are changed below without their checksum, so it must be verified again.
    frame.checksum_valid = false;
    let mut b = driver(GUEST_CSUM);
    for (damage, flags) in [(0, 2), (1, 0)] {
        frame.bytes[60] ^= damage;
        net(&mut b).inject(frame.clone());
        b.add(0, &[(DATA, 2048, true)]);
        b.kick(0, 10);
        assert_eq!(b.bytes(DATA, 1), [flags]);
    }
    let mut without = driver(0);
    net(&mut without).inject(send(&mut a, &packet(99), 0).remove(0));
    without.add(0, &[(DATA, 2048, true)]);
    without.kick(0, 10);
    assert_eq!(without.bytes(DATA, 1), [0], "not agreed on");
}

#[test]
fn offloads_that_were_not_agreed_on_or_make_long_frames_are_refused() {
    for (features, len, gso_size) in [
        (0, 100, 0),
        (CSUM, 3000, 1000),
        (CSUM, 3000, 0),
        (CSUM | HOST_TSO4, 3000, 2000),
    ] {
        let mut d = driver(features);
        assert_eq!(send(&mut d, &packet(len), gso_size), []);
        assert_eq!(net(&mut d).counters().refused, 1);
    }
}

/// Returns the header and the bytes of a frame as the guest receives them.
fn received(d: &mut Driver, frame: Frame) -> Vec<u8> {
    net(d).inject(frame);
    d.add(0, &[(DATA, 2048, true)]);
    d.kick(0, 10);
    let used = d.take_used(0);
    d.bytes(DATA, used[0].1 as usize)
}

#[test]
fn guests_get_the_same_whether_the_sum_is_known_or_made() {
    let mut wrong_partial = packet(99);
    wrong_partial[50] ^= 1;
    let mut fragment = packet(99);
    // The flag "don't fragment" becomes "more fragments", and the header checksum is adjusted.
    fragment[20] -= 0x20;
    fragment[24] += 0x20;
    let mut padded = packet(99);
    padded.extend([0; 5]);
    for (frame, known, flags) in [
        (packet(99), true, 2),
        (wrong_partial, false, 0),
        (fragment, false, 0),
        (padded, false, 2),
    ] {
        let sent = send(&mut driver(CSUM), &frame, 0).remove(0);
        assert_eq!(sent.checksum_valid, known);
        let unknown = Frame {
            checksum_valid: false,
            ..sent.clone()
        };
        let got = received(&mut driver(GUEST_CSUM), sent);
        assert_eq!(got[0], flags);
        assert_eq!(got, received(&mut driver(GUEST_CSUM), unknown));
    }
}

#[test]
fn states_do_not_tell_known_sums_and_restored_devices_hand_over_the_same() {
    let mut a = driver(CSUM | GUEST_CSUM);
    let frame = send(&mut a, &packet(99), 0).remove(0);
    net(&mut a).inject(frame.clone());
    let state = net(&mut a).save();
    assert!(!state.incoming[0].checksum_valid);
    let mut b = driver(CSUM | GUEST_CSUM);
    net(&mut b).restore(&state).unwrap();
    assert_eq!(net(&mut b).save(), state);
    let got: Vec<Vec<u8>> = [a, b]
        .iter_mut()
        .map(|d| {
            d.add(0, &[(DATA, 2048, true)]);
            d.kick(0, 10);
            d.bytes(DATA, 12 + frame.bytes.len())
        })
        .collect();
    assert_eq!(got[0], got[1]);
    assert_eq!((got[0][0], &got[0][12..]), (2, &frame.bytes[..]));
}

#[test]
fn a_received_frames_buffer_carries_the_next_that_is_sent() {
    let mut d = driver(CSUM | GUEST_CSUM);
    let frame = send(&mut d, &packet(150), 0).remove(0);
    let buffer = frame.bytes.as_ptr();
    received(&mut d, frame);
    let mut expected = packet(99);
    checksum::fill(&mut expected, 34, 16).unwrap();
    let sent = send(&mut d, &packet(99), 0).remove(0);
    assert_eq!(sent.bytes, expected, "nothing is left of the longer frame");
    assert_eq!(sent.bytes.as_ptr(), buffer);
    assert_ne!(send(&mut d, &packet(99), 0)[0].bytes.as_ptr(), buffer);
}

#[test]
fn frames_are_gathered_from_pieces_wherever_they_are_cut() {
    let mut bytes = vec![0; 12];
    bytes.extend(packet(99));
    let len = bytes.len() as u32;
    for (a, b) in [(5, 6), (5, 7), (5, 8), (12, 1), (13, 40), (1, len - 2)] {
        let mut d = driver(CSUM);
        assert!(d.ram.write(DATA, &bytes));
        let rest = u64::from(a + b);
        let pieces = [
            (DATA, a, false),
            (DATA + u64::from(a), b, false),
            (DATA, 0, false),
            (DATA + rest, len - a - b, false),
        ];
        d.add(1, &pieces);
        d.kick(1, 3);
        let frames = net(&mut d).take_frames();
        assert_eq!(frames.len(), 1, "cut after {a} and {b} bytes");
        assert_eq!(frames[0].bytes, packet(99));
    }
}
