//! Tests with drivers that break the rules of queues, or request more than a device can do. The host time of each notification must be
//! bounded.

use std::num::NonZeroU64;

use virtio_bindings::virtio_blk::VIRTIO_BLK_T_IN;
use virtio_bindings::virtio_mmio::*;

use super::block::{Block, BlockTiming, Disk, Image};
use super::net::{Frame, Link, Net, NetConfig, Offloads};
use super::queues::REFILLS;
use super::rng::Rng;
use super::testing::*;
use super::{Device, DeviceState, VirtioMmio};
use crate::bus::BusDevice;
use crate::time::Hertz;

const HZ: Hertz = Hertz::new(1_000_000_000).unwrap();
const HEADER: u64 = 0x8000;
const STATUS: u64 = 0x9000;
const DATA: u64 = 0x10_0000;
const MRG_RXBUF: u64 = 1 << 15;
const MS: u64 = 1_000_000;

fn disk(contents: &[u8], bytes_per_second: u64) -> Device {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), contents).unwrap();
    let image = Image::open(file.path()).unwrap();
    let timing = BlockTiming {
        clock: HZ,
        latency_ns: 1000,
        bytes_per_second: NonZeroU64::new(bytes_per_second),
    };
    Device::Block(Block::new(Disk::read_only(image), "disk", timing))
}

fn net(link: Option<u64>) -> Device {
    let net = Net::new(NetConfig {
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        offloads: Offloads::default(),
        backlog: 4,
    });
    let on = |bandwidth| Link {
        clock: HZ,
        bandwidth,
    };
    Device::Net(match link {
        Some(bandwidth) => net.on(on(bandwidth)),
        None => net,
    })
}

fn as_net(d: &mut Driver) -> &mut Net {
    match d.device.device_mut() {
        Device::Net(net) => net,
        other => panic!("{other:?} is no network device"),
    }
}

fn header(sector: u64) -> Vec<u8> {
    let mut header = VIRTIO_BLK_T_IN.to_le_bytes().to_vec();
    header.extend([0; 4]);
    header.extend(sector.to_le_bytes());
    header
}

#[test]
fn a_read_that_writes_the_next_request_ends() {
    // Each sector has an available ring with one more entry, followed by the header of a request for the next sector.
    const SECTORS: u16 = 5000;
    let at = available(0);
    let mut contents = Vec::new();
    for sector in 0..SECTORS {
        let mut bytes = vec![0; 512];
        bytes[2..4].copy_from_slice(&(sector + 2).to_le_bytes());
        bytes[64..80].copy_from_slice(&header(u64::from(sector) + 1));
        contents.extend(bytes);
    }
    let mut d = Driver::new(disk(&contents, 2_000_000_000), VERSION_1);
    assert!(d.ram.write(at + 64, &header(0)));
    d.add(
        0,
        &[(at + 64, 16, false), (at, 512, true), (STATUS, 1, true)],
    );
    d.kick(0, 0);
    let fault = d.device.fault().unwrap();
    assert!(fault.contains("the rings never become empty"), "{fault}");
    assert_eq!(
        u32::from(d.word(at + 2)),
        u32::from(SIZE) * REFILLS + 1,
        "as many as the queue has places, so often"
    );
    assert_eq!(d.device.next_event(), u64::MAX);
    d.device.advance(u64::MAX);
}

#[test]
fn chains_longer_than_their_queue_are_refused() {
    let mut d = Driver::new(disk(&[0; 512], 0), VERSION_1);
    let parts = vec![(DATA, 512, true); usize::from(SIZE) + 1];
    d.add_indirect(0, 0xa000, &parts);
    d.kick(0, 0);
    let fault = d.device.fault().unwrap();
    assert!(fault.contains("more descriptors than the queue"), "{fault}");
    // A chain whose last descriptor points to its first.
    let mut d = Driver::new(disk(&[0; 512], 0), VERSION_1);
    d.add(0, &vec![(DATA, 512, true); usize::from(SIZE)]);
    let flags = descriptors(0) + 16 * u64::from(SIZE - 1) + 12;
    assert!(d.ram.write(flags, &[3, 0, 0, 0]));
    d.kick(0, 0);
    assert!(d.device.fault().is_some());
}

#[test]
fn a_disk_works_ahead_within_bounds_and_ends_requests_when_it_always_did() {
    // At 1 MB/s, 64 KiB take 65.536 ms.
    let mut d = Driver::new(disk(&[7; 1 << 18], 1_000_000), VERSION_1);
    for number in 0..3 {
        let at = HEADER + 16 * number;
        assert!(d.ram.write(at, &header(128 * number)));
        let data = (DATA + (number << 16), 1 << 16, true);
        d.add(0, &[(at, 16, false), data, (STATUS + number, 1, true)]);
    }
    d.kick(0, 0);
    let there = |d: &Driver, number: u64| d.bytes(DATA + (number << 16), 1) == [7];
    assert!(there(&d, 0) && !there(&d, 1));
    let mut ends = Vec::new();
    let mut now = 0;
    while d.device.next_event() < u64::MAX {
        assert!(d.device.next_event() > now, "time goes on");
        now = d.device.next_event();
        // A second notification has no effect.
        d.kick(0, now);
        d.device.advance(now);
        ends.extend(d.take_used(0).iter().map(|_| now));
        assert!(ends.len() < 2 || there(&d, 1));
    }
    assert_eq!(ends, [65_537_000, 131_073_000, 196_609_000]);
    // A reset cancels the requests that were not carried out. The time of those carried out remains spent.
    let mut d = Driver::new(disk(&[7; 1 << 18], 1_000_000), VERSION_1);
    let ask = |d: &mut Driver| {
        assert!(d.ram.write(HEADER, &header(0)));
        d.ram.write(DATA, &[0]);
        d.add(
            0,
            &[
                (HEADER, 16, false),
                (DATA, 1 << 16, true),
                (STATUS, 1, true),
            ],
        );
        d.kick(0, MS);
        there(d, 0)
    };
    assert!(ask(&mut d));
    d.set(VIRTIO_MMIO_STATUS, 0);
    d.set_up(VERSION_1);
    assert!(!ask(&mut d));
}

#[test]
fn a_request_for_all_memory_many_times_over_fails() {
    let timing = BlockTiming {
        clock: HZ,
        latency_ns: 0,
        bytes_per_second: None,
    };
    let status = |parts: usize| {
        let disk = Block::new(Disk::memory(128 << 20), "disk", timing);
        let mut d = Driver::new(Device::Block(disk), VERSION_1);
        assert!(d.ram.write(HEADER, &header(0)));
        let mut chain = vec![(HEADER, 16, false)];
        chain.extend(vec![(DATA, 8 << 20, true); parts]);
        chain.push((STATUS, 1, true));
        d.add(0, &chain);
        d.kick(0, 0);
        assert_eq!(d.take_used(0).len(), 1);
        d.bytes(STATUS, 1)[0]
    };
    assert_eq!(status(8), 0);
    assert_eq!(status(9), 1, "VIRTIO_BLK_S_IOERR");
}

#[test]
fn random_bytes_take_time() {
    let mut d = Driver::new(Device::Rng(Rng::new([1; 32])), VERSION_1);
    for _ in 0..SIZE {
        d.add(0, &[(DATA, 4096, true)]);
    }
    let mut given = 0;
    for round in 1..=1000_u16 {
        // The driver makes the same buffers available again, as fast as a program can.
        let index = round.wrapping_mul(SIZE);
        assert!(d.ram.write(available(0) + 2, &index.to_le_bytes()));
        d.kick(0, 0);
        given = given.max(u32::from(d.word(used(0) + 2)));
        if d.device.fault().is_some() {
            break;
        }
    }
    // At most 1 MiB at once, and one queue of requests.
    assert!(
        given * 4096 <= (1 << 20) + u32::from(SIZE) * 4096,
        "{given}"
    );
    let resume = d.device.next_event();
    assert!(d.device.fault().is_some() || resume > 0);
}

#[test]
fn frames_wait_in_the_queue_while_the_link_is_busy() {
    // A frame of 1514 bytes takes 1.2304 ms at 10 Mbit/s.
    let mut d = Driver::new(net(Some(10_000_000)), VERSION_1);
    assert!(d.ram.write(DATA, &[0; 12]));
    let frame = [(DATA, 12 + 1514, false)];
    let mut sent = 0;
    loop {
        d.add(1, &frame);
        d.kick(1, 5);
        if d.take_used(1).is_empty() {
            break;
        }
        sent += 1;
    }
    // 256 KiB of frames with their overhead on the wire.
    assert_eq!(sent, (256 << 10) / 1538 + 1);
    assert_eq!(as_net(&mut d).take_frames().len(), sent);
    // From now on, the device takes one frame each time that another has been sent.
    let mut times = Vec::new();
    for _ in 0..100 {
        let now = d.device.next_event();
        d.device.advance(now);
        assert_eq!(d.take_used(1).len(), 1);
        times.push(now);
        d.add(1, &frame);
        d.kick(1, now);
        assert!(d.take_used(1).is_empty());
    }
    assert!(
        times.windows(2).all(|pair| pair[1] - pair[0] == 1_230_400),
        "{times:?}"
    );
    let frames = as_net(&mut d).take_frames();
    assert!(
        frames
            .iter()
            .map(|frame| frame.time)
            .eq(times.iter().copied())
    );
    // A reset does not let the device take more frames.
    d.set(VIRTIO_MMIO_STATUS, 0);
    d.set_up(VERSION_1);
    d.add(1, &frame);
    d.kick(1, times[99]);
    assert!(d.take_used(1).is_empty());
    // The frames that were taken are sent, and no others.
    d.device.advance(d.device.next_event());
    assert_eq!(as_net(&mut d).take_frames().len(), 1);
    d.device.advance(u64::MAX);
    assert_eq!(d.device.next_event(), u64::MAX);
}

#[test]
fn frames_that_arrive_are_not_counted_against_those_that_leave() {
    const FRAMES: u16 = SIZE - 6;
    let mut d = Driver::new(net(Some(10_000_000)), VERSION_1);
    assert!(d.ram.write(DATA, &[0; 12]));
    let out = [(DATA, 12 + 1514, false)];
    loop {
        d.add(1, &out);
        d.kick(1, 5);
        if d.take_used(1).is_empty() {
            break;
        }
    }
    for _ in 1..FRAMES {
        d.add(1, &out);
    }
    // Both queues have nearly as many chains as entries, and the device takes all of them in one call.
    let later = 1000 * MS;
    for _ in 0..FRAMES {
        d.add(0, &[(2 * DATA, 2048, true)]);
        as_frame(&mut d, later, 60);
    }
    d.device.advance(later);
    assert_eq!(d.device.fault(), None);
    for queue in 0..2 {
        assert_eq!(d.take_used(queue).len(), usize::from(FRAMES), "{queue}");
    }
}

/// Returns a driver with a waiting frame and receive buffers of 0 bytes, each with as many descriptors as the queue may have.
fn guest_with_empty_buffers() -> Driver {
    let mut d = Driver::new(net(None), VERSION_1 | MRG_RXBUF);
    let parts = vec![(DATA, 0, true); usize::from(SIZE)];
    for _ in 1..SIZE {
        d.add_indirect(0, 0xa000, &parts);
    }
    as_frame(&mut d, 1, 60);
    d
}

/// Notifies the device at each of 2000 cycles, as a program can, so that it checks its receive buffers as often as it may. Returns the
/// number of checks of all buffers, and the cycle after the last notification.
fn ask_in_vain(d: &mut Driver, from: u64) -> (u64, u64) {
    let look = u64::from(SIZE - 1) * u64::from(SIZE) * 20;
    let until = |d: &Driver| match d.device.save().device {
        DeviceState::Net(state) => state.receiving_until,
        other => panic!("{other:?} is of no network device"),
    };
    let before = until(d).max(from);
    let mut now = from;
    for _ in 0..2000 {
        d.kick(0, now);
        now += 1;
    }
    assert_eq!((until(d) - before) % look, 0);
    ((until(d) - before) / look, now)
}

#[test]
fn looks_for_room_in_receive_buffers_are_bounded() {
    let mut d = guest_with_empty_buffers();
    let (looks, now) = ask_in_vain(&mut d, 1);
    // Checks for 2^20 cycles are done at once, at 4800 cycles each.
    assert_eq!(looks, (1 << 20) / 4800 + 1);
    let next = d.device.next_event();
    assert!(next > now && next < now + 4800, "{next}");
    // One more check is possible each time that the time of one is over. Without a notification there is none.
    d.device.advance(next - 1);
    assert_eq!(d.device.next_event(), next);
    d.device.advance(next);
    assert_eq!(d.device.next_event(), u64::MAX);
    assert_eq!(ask_in_vain(&mut d, next).0, 0);
    assert_eq!(d.device.next_event(), next + 4800);
    // A buffer that is large enough does not bring the next check forward, and needs no further notification.
    d.add(0, &[(DATA, 2048, true)]);
    d.kick(0, next + 1);
    let mut other = Driver::new(net(None), VERSION_1);
    other.device = VirtioMmio::new(net(None), d.ram.memory().clone());
    other.device.restore(&d.device.save()).unwrap();
    assert_eq!(other.device.save(), d.device.save());
    assert_eq!(other.device.next_event(), next + 4800);
    assert_eq!(as_net(&mut d).counters().received, 0);
    d.device.advance(next + 4800);
    assert_eq!(as_net(&mut d).counters().received, 1);
    assert_eq!(d.take_used(0).len(), usize::from(SIZE));
    assert_eq!(d.device.next_event(), u64::MAX);
}

#[test]
fn resets_make_no_time_for_more_looks() {
    let mut d = guest_with_empty_buffers();
    let (_, now) = ask_in_vain(&mut d, 1);
    let next = d.device.next_event();
    for reset in [VIRTIO_MMIO_STATUS, VIRTIO_MMIO_QUEUE_READY] {
        d.set(VIRTIO_MMIO_QUEUE_SEL, 0);
        d.set(reset, 0);
        assert!(!as_net(&mut d).save().receiving_waits);
        d.set(VIRTIO_MMIO_STATUS, 0);
        d.set_up(VERSION_1 | MRG_RXBUF);
        d.add(0, &[(DATA, 2048, true)]);
        d.kick(0, now);
        assert!(d.take_used(0).is_empty());
        assert_eq!(d.device.next_event(), next);
    }
}

#[test]
fn frames_of_a_driver_that_takes_them_arrive_at_their_time() {
    let mut d = Driver::new(net(None), VERSION_1 | MRG_RXBUF);
    let mut now = 0;
    // Ten times more checks than are done at once, in bursts for all buffers.
    for _ in 0..(10 << 20) / (20 * u64::from(SIZE - 1)) {
        now += 1000;
        for _ in 1..SIZE {
            d.add(0, &[(DATA, 2048, true)]);
            as_frame(&mut d, now, 1514);
        }
        d.kick(0, now - 1);
        assert_eq!(d.device.next_event(), now);
        d.device.advance(now);
        assert_eq!(d.take_used(0).len(), usize::from(SIZE - 1));
    }
    assert_eq!(d.device.fault(), None);
}

#[test]
fn a_guest_that_takes_no_frames_fills_bounded_memory() {
    let mut d = Driver::new(net(None), VERSION_1);
    for _ in 0..200 {
        as_net(&mut d).inject(Frame {
            time: 1,
            bytes: vec![0; 1 << 20],
            checksum_valid: false,
        });
    }
    assert_eq!(as_net(&mut d).counters().dropped_backlog, 200 - 127);
    // Frames are dropped when the guest adds buffers, and then new frames are accepted.
    d.add(0, &[(DATA, 100, true)]);
    d.kick(0, 2);
    assert_eq!(as_net(&mut d).counters().dropped_size, 127);
    as_net(&mut d).inject(Frame {
        time: 1,
        bytes: vec![0; 1 << 20],
        checksum_valid: false,
    });
    assert_eq!(as_net(&mut d).counters().dropped_backlog, 200 - 127);
}

/// Checks that a device returns from every call, whatever a driver writes to its registers, rings and buffers.
#[test]
fn whatever_a_driver_does_a_device_comes_back() {
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for round in 0..400 {
        let device = match round % 3 {
            0 => disk(&[1; 1 << 16], 1 << next(40)),
            1 => net(Some(1000 << next(30))),
            _ => Device::Rng(Rng::new([round as u8; 32])),
        };
        let features = VERSION_1 | [0, EVENT_IDX, 1 << 28][next(3) as usize];
        let mut d = Driver::new(device, features);
        // Rings that overlap each other and the buffers: all are within two pages.
        let mut now = 0;
        for _ in 0..60 {
            match next(8) {
                0 | 1 => {
                    // A plausible descriptor: an address within the pages, any flags, sometimes an indirect table.
                    let mut bytes = (0x1000 + next(0x2000)).to_le_bytes().to_vec();
                    let length = [next(64), 16 * next(40), next(1 << 32)][next(3) as usize];
                    bytes.extend((length as u32).to_le_bytes());
                    bytes.extend((next(8) as u16).to_le_bytes());
                    bytes.extend((next(18) as u16).to_le_bytes());
                    assert!(d.ram.write(0x1000 + 16 * next(0x200), &bytes));
                }
                2 => {
                    let index = d.word(available(0) + 2).wrapping_add(next(18) as u16);
                    assert!(d.ram.write(available(0) + 2, &index.to_le_bytes()));
                }
                3 => {
                    let address = 0x1000 + 2 * next(0x1000);
                    assert!(d.ram.write(address, &(next(20) as u16).to_le_bytes()));
                }
                4 => d.set_at(4 * next(0x40) as u32, next(1 << 32) as u32, now),
                5 => {
                    // Rings at any address within the same pages.
                    d.set(VIRTIO_MMIO_STATUS, 0);
                    for status in [1, 3] {
                        d.set(VIRTIO_MMIO_STATUS, status);
                    }
                    d.accept(features);
                    d.set(VIRTIO_MMIO_STATUS, 11);
                    for queue in 0..2 {
                        d.set(VIRTIO_MMIO_QUEUE_SEL, queue);
                        d.set(VIRTIO_MMIO_QUEUE_NUM, 1 << next(9));
                        for low in [
                            VIRTIO_MMIO_QUEUE_DESC_LOW,
                            VIRTIO_MMIO_QUEUE_AVAIL_LOW,
                            VIRTIO_MMIO_QUEUE_USED_LOW,
                        ] {
                            let address = [0x1000 + 16 * next(0x100), next(1 << 32)];
                            d.set(low, address[usize::from(next(20) == 0)] as u32);
                        }
                        d.set(VIRTIO_MMIO_QUEUE_READY, 1);
                    }
                    d.set(VIRTIO_MMIO_STATUS, 15);
                }
                6 => as_frame(&mut d, now, next(2000) as usize),
                _ => {
                    now += next(1 << 20);
                    d.kick(next(3) as usize, now);
                }
            }
            // Advances the device as a node would. A few events suffice, each of which must be later than the one before.
            for _ in 0..4 {
                let event = d.device.next_event();
                if event == u64::MAX {
                    break;
                }
                now = now.max(event);
                d.device.advance(now);
                assert!(d.device.next_event() > now, "round {round}");
            }
        }
        let state = d.device.save();
        let mut other = VirtioMmio::new(any_device(round % 3), d.ram.memory().clone());
        // A state may have values that no driver could set up. It must be loaded or refused.
        let _ = other.restore(&state);
        let mut byte = [0; 4];
        other.read(0, &mut byte, now);
        assert_eq!(&byte, b"virt");
    }
}

/// Restores states with waiting requests although the queue is not set up. The device must not report events without end.
#[test]
fn restored_requests_that_wait_for_nothing_are_no_endless_event() {
    for kind in 0..3 {
        let mut d = Driver::new(any_device(kind), VERSION_1);
        let mut state = d.device.save();
        match &mut state.device {
            DeviceState::Block(s) => s.waiting = true,
            DeviceState::Net(s) => s.waiting = true,
            DeviceState::Rng(s) => s.waiting = true,
        }
        for queue in &mut state.transport.queues {
            queue.ready = false;
        }
        d.device.restore(&state).unwrap();
        assert!(d.device.next_event() <= 1);
        d.device.advance(1);
        assert_eq!(d.device.next_event(), u64::MAX, "{kind}");
    }
}

fn any_device(kind: u32) -> Device {
    match kind {
        0 => disk(&[1; 1 << 16], 1),
        1 => net(None),
        _ => Device::Rng(Rng::new([0; 32])),
    }
}

/// Delivers a frame to a network device; has no effect on other devices.
fn as_frame(d: &mut Driver, time: u64, len: usize) {
    if let Device::Net(net) = d.device.device_mut() {
        net.inject(Frame {
            time,
            bytes: vec![1; len],
            checksum_valid: false,
        });
    }
}
