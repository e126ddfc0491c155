//! Tests of virtio devices through the driver's interface.

mod impossible;

use std::io::Write as _;
use std::num::NonZeroU64;

use proptest::prelude::*;
use virtio_bindings::virtio_mmio::*;

use super::block::{Block, BlockCheck, BlockTiming, Disk, Image};
use super::net::{Frame, Net, NetConfig, Offloads};
use super::rng::Rng;
use super::testing::*;
use super::{Device, VirtioMmio};
use crate::bus::BusDevice;
use crate::time::Hertz;

const DATA: u64 = 0x10_0000;
const STATUS: u64 = 0x18_0000;

fn timing(latency_ns: u64, bytes_per_second: u64) -> BlockTiming {
    BlockTiming {
        clock: Hertz::new(1_000_000_000).unwrap(),
        latency_ns,
        bytes_per_second: NonZeroU64::new(bytes_per_second),
    }
}

fn memory_block(timing: BlockTiming) -> Device {
    Device::Block(Block::new(Disk::memory(1 << 20), "disk-0", timing))
}

fn net(offloads: Offloads) -> Device {
    let mac = [2, 0, 0, 0, 0, 1];
    Device::Net(Net::new(NetConfig {
        mac,
        mtu: 1500,
        offloads,
        backlog: 4,
    }))
}

fn as_net(d: &mut Driver) -> &mut Net {
    match d.device.device_mut() {
        Device::Net(net) => net,
        other => panic!("{other:?} is no network device"),
    }
}

/// Makes a block request with this type, first sector and data part. Returns its head.
fn request(d: &mut Driver, kind: u32, sector: u64, data: Option<Part>) -> u16 {
    let mut header = kind.to_le_bytes().to_vec();
    header.extend([0; 4]);
    header.extend(sector.to_le_bytes());
    // Requests for different sectors have their headers at different addresses, so several can be in flight.
    let at = 0x8000 + sector % 64 * 16;
    assert!(d.ram.write(at, &header));
    assert!(d.ram.write(STATUS, &[0xee]));
    let parts: Vec<Part> = [Some((at, 16, false)), data, Some((STATUS, 1, true))]
        .into_iter()
        .flatten()
        .collect();
    d.add(0, &parts)
}

#[test]
fn registers_identify_the_device_and_odd_accesses_are_harmless() {
    let mut d = Driver::cold(memory_block(timing(0, 0)));
    assert_eq!(d.get(VIRTIO_MMIO_MAGIC_VALUE), 0x7472_6976);
    assert_eq!(
        (d.get(VIRTIO_MMIO_VERSION), d.get(VIRTIO_MMIO_DEVICE_ID)),
        (2, 2)
    );
    assert_eq!(d.get(VIRTIO_MMIO_QUEUE_NUM_MAX), 256);
    assert_eq!(d.get(VIRTIO_MMIO_SHM_LEN_LOW), u32::MAX);
    d.set(VIRTIO_MMIO_QUEUE_SEL, 1);
    assert_eq!(d.get(VIRTIO_MMIO_QUEUE_NUM_MAX), 0);
    d.set(VIRTIO_MMIO_DEVICE_FEATURES_SEL, 1);
    assert_eq!(
        d.get(VIRTIO_MMIO_DEVICE_FEATURES) & 0x101,
        0x101,
        "VERSION_1 and RING_RESET"
    );
    let mut capacity = [0; 8];
    d.device.read(0x100, &mut capacity, 0);
    assert_eq!(u64::from_le_bytes(capacity), 2048);
    let mut byte = [0];
    d.device.read(0x101, &mut byte, 0);
    assert_eq!(byte, [8]);
    let mut data = [1; 8];
    d.device.read(0, &mut data, 0);
    assert_eq!(data, [0; 8]);
    d.device.read(0xffc, &mut data, 0);
    d.device.write(0x100, &[1; 8], 0);
    d.device.write(0x70, &[1], 0);
    assert_eq!(d.get(VIRTIO_MMIO_STATUS), 0);
}

#[test]
fn features_must_be_offered_and_include_version_1() {
    for (features, status) in [
        (VERSION_1, 11),
        (0, 3),
        (VERSION_1 | 1 << 63, 3),
        (VERSION_1 | 1 << 20, 3),
    ] {
        let mut d = Driver::cold(memory_block(timing(0, 0)));
        d.set(VIRTIO_MMIO_STATUS, 1);
        d.set(VIRTIO_MMIO_STATUS, 3);
        d.accept(features);
        d.set(VIRTIO_MMIO_STATUS, 11);
        assert_eq!(d.get(VIRTIO_MMIO_STATUS), status, "{features:#x}");
    }
    let mut d = Driver::cold(memory_block(timing(0, 0)));
    d.set(VIRTIO_MMIO_STATUS, 7);
    assert_eq!(
        d.get(VIRTIO_MMIO_STATUS) & 64,
        64,
        "DRIVER_OK before FEATURES_OK"
    );
    assert!(d.device.fault().unwrap().contains("features"));
    d.set(VIRTIO_MMIO_STATUS, 0);
    assert_eq!((d.get(VIRTIO_MMIO_STATUS), d.device.fault()), (0, None));
}

#[test]
fn queues_outside_memory_and_bad_sizes_need_a_reset() {
    for (register, value) in [
        (VIRTIO_MMIO_QUEUE_NUM, 7),
        (VIRTIO_MMIO_QUEUE_NUM, 512),
        (VIRTIO_MMIO_QUEUE_NUM, 65536 + 16),
        (VIRTIO_MMIO_QUEUE_DESC_LOW, 8),
        (VIRTIO_MMIO_QUEUE_USED_LOW, 2),
    ] {
        let mut d = Driver::cold(memory_block(timing(0, 0)));
        d.set(VIRTIO_MMIO_STATUS, 3);
        d.accept(VERSION_1);
        d.set(VIRTIO_MMIO_STATUS, 11);
        d.set(register, value);
        assert_eq!(
            d.get(VIRTIO_MMIO_STATUS),
            11 | 64,
            "{register:#x} = {value:#x}"
        );
    }
    let mut d = Driver::cold(memory_block(timing(0, 0)));
    d.set(VIRTIO_MMIO_STATUS, 3);
    d.accept(VERSION_1);
    d.set(VIRTIO_MMIO_STATUS, 11);
    d.set(VIRTIO_MMIO_QUEUE_DESC_HIGH, 1);
    d.set(VIRTIO_MMIO_QUEUE_READY, 1);
    assert_eq!(
        (d.get(VIRTIO_MMIO_QUEUE_READY), d.get(VIRTIO_MMIO_STATUS)),
        (0, 11 | 64)
    );
}

#[test]
fn blocks_are_read_written_and_identified() {
    let mut d = Driver::new(memory_block(timing(0, 0)), VERSION_1);
    let text: Vec<u8> = (0..1024u32).map(|i| (i * 7) as u8).collect();
    d.ram.write(DATA, &text);
    let head = request(&mut d, 1, 5, Some((DATA, 1024, false)));
    d.kick(0, 0);
    assert_eq!(d.take_used(0), [(head, 1)]);
    assert_eq!((d.bytes(STATUS, 1), d.take_interrupt()), (vec![0], 1));
    let head = request(&mut d, 0, 4, Some((DATA + 4096, 2048, true)));
    d.kick(0, 0);
    assert_eq!(d.take_used(0), [(head, 2049)]);
    let got = d.bytes(DATA + 4096, 2048);
    assert_eq!(
        (&got[..512], &got[512..1536], &got[1536..]),
        (&[0; 512][..], &text[..], &[0; 512][..])
    );
    request(&mut d, 8, 0, Some((DATA, 20, true)));
    d.kick(0, 0);
    assert_eq!(d.bytes(DATA, 8), b"disk-0\0\0");
    request(&mut d, 4, 0, None);
    d.kick(0, 0);
    assert_eq!((d.take_used(0).len(), d.bytes(STATUS, 1)), (2, vec![0]));
}

#[test]
fn requests_that_cannot_be_served_get_an_error_status() {
    let mut d = Driver::new(memory_block(timing(0, 0)), VERSION_1);
    for (kind, sector, data, status) in [
        (0, 2047, Some((DATA, 1024, true)), 1),
        (0, u64::MAX, Some((DATA, 512, true)), 1),
        (0, 0, Some((DATA, 100, true)), 1),
        (1, 2048, Some((DATA, 512, false)), 1),
        (99, 0, None, 2),
    ] {
        request(&mut d, kind, sector, data);
        d.kick(0, 0);
        assert_eq!(
            (d.take_used(0).len(), d.bytes(STATUS, 1)),
            (1, vec![status]),
            "type {kind}, sector {sector}"
        );
    }
    assert_eq!(d.get(VIRTIO_MMIO_STATUS), 15);
}

#[test]
fn images_are_shared_read_only_and_overlays_keep_their_changes() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let content: Vec<u8> = (0..10_000u32).map(|i| (i / 3) as u8).collect();
    file.write_all(&content).unwrap();
    let image = Image::open(file.path()).unwrap();
    let block = |disk| Device::Block(Block::new(disk, "root", timing(0, 0)));
    let mut plain = Driver::new(block(Disk::read_only(image.clone())), VERSION_1 | 1 << 5);
    let mut over = Driver::new(block(Disk::overlay(image.clone())), VERSION_1);
    let other = Driver::new(block(Disk::overlay(image)), VERSION_1);
    for (d, status) in [(&mut plain, 1), (&mut over, 0)] {
        d.ram.write(DATA, &[0xab; 512]);
        request(d, 1, 9, Some((DATA, 512, false)));
        d.kick(0, 0);
        assert_eq!(d.bytes(STATUS, 1), [status]);
    }
    let mut padded = content;
    padded.resize(20 * 512, 0);
    for (d, changed) in [(plain, false), (over, true), (other, false)] {
        let mut d = d;
        request(&mut d, 0, 0, Some((DATA, 20 * 512, true)));
        d.kick(0, 0);
        let mut expect = padded.clone();
        if changed {
            expect[9 * 512..10 * 512].fill(0xab);
        }
        assert!(d.bytes(DATA, 20 * 512) == expect);
    }
    assert!(Image::open(std::path::Path::new("/nonexistent/image")).is_err());
}

/// A check that expects each byte of a block of 4 KiB to be the block's index.
#[derive(Debug)]
struct Uniform;

impl BlockCheck for Uniform {
    fn block_bytes(&self) -> u64 {
        4096
    }
    fn holds(&self, block: u64, contents: &[u8]) -> bool {
        contents.iter().all(|byte| u64::from(*byte) == block)
    }
}

#[test]
fn a_damaged_block_is_found_when_it_is_first_read_and_the_host_is_told() {
    let mut content: Vec<u8> = (0..4u8).flat_map(|block| [block; 4096]).collect();
    content.truncate(3 * 4096 + 1024);
    content[2 * 4096 + 77] ^= 1;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&content).unwrap();
    let image = Image::open_checked(file.path(), Box::new(Uniform)).unwrap();
    let disk = Disk::read_only(image.clone());
    let mut d = Driver::new(
        Device::Block(Block::new(disk, "root", timing(0, 0))),
        VERSION_1,
    );
    let mut status = |sector, sectors: u32| {
        request(&mut d, 0, sector, Some((DATA, 512 * sectors, true)));
        d.kick(0, 0);
        d.bytes(STATUS, 1)[0]
    };
    // The first two blocks, the last block, and the sectors around the damaged block.
    assert_eq!([status(0, 16), status(24, 2), status(15, 1)], [0; 3]);
    assert!(image.fault().is_none());
    // Every read that touches the damaged block fails, even the read of sectors 23 and 24, which are intact themselves.
    assert_eq!([status(16, 1), status(15, 2), status(23, 2)], [1; 3]);
    let fault = image.fault().unwrap().to_string();
    let expected = format!(
        "{}: damaged: the 4096 bytes at offset 8192 are not those that the image was made with",
        file.path().display()
    );
    assert_eq!(fault, expected);
    assert_eq!(status(0, 1), 0);
}

#[test]
fn latency_overlaps_and_bandwidth_does_not() {
    // At 1 GB/s and 1 GHz, a byte takes one cycle. The latency is 1000 cycles.
    let mut d = Driver::new(memory_block(timing(1000, 1_000_000_000)), VERSION_1);
    let a = request(&mut d, 0, 0, Some((DATA, 512, true)));
    let b = request(&mut d, 0, 1, Some((DATA, 1024, true)));
    d.kick(0, 100);
    assert_eq!(d.device.next_event(), 100 + 512 + 1000);
    d.device.advance(1611);
    assert_eq!((d.take_used(0).len(), d.take_interrupt()), (0, 0));
    d.device.advance(1612);
    assert_eq!((d.take_used(0), d.take_interrupt()), (vec![(a, 513)], 1));
    assert_eq!(d.device.next_event(), 1612 + 1024);
    d.device.advance(5000);
    assert_eq!((d.take_used(0), d.take_interrupt()), (vec![(b, 1025)], 1));
    assert_eq!(d.device.next_event(), u64::MAX);
}

#[test]
fn a_reset_drops_what_is_under_way() {
    let mut d = Driver::new(memory_block(timing(1000, 0)), VERSION_1 | 1 << 40);
    request(&mut d, 0, 0, Some((DATA, 512, true)));
    d.kick(0, 0);
    d.set(VIRTIO_MMIO_QUEUE_SEL, 0);
    d.set(0xc0, 1);
    assert_eq!((d.get(0xc0), d.get(VIRTIO_MMIO_QUEUE_READY)), (0, 0));
    assert_eq!(d.device.next_event(), u64::MAX);
    d.set_up_queue(0);
    d.device.advance(5000);
    assert_eq!(d.word(used(0) + 2), 0);
    d.set(VIRTIO_MMIO_STATUS, 0);
    d.set_up(VERSION_1);
    request(&mut d, 0, 0, Some((DATA, 512, true)));
    d.kick(0, 6000);
    d.set(VIRTIO_MMIO_STATUS, 0);
    assert_eq!(d.device.next_event(), u64::MAX);
}

#[test]
fn event_indices_hold_back_interrupts() {
    let mut d = Driver::new(memory_block(timing(0, 0)), VERSION_1 | EVENT_IDX);
    d.set_used_event(0, 1);
    request(&mut d, 4, 0, None);
    assert!(d.wants_kick(0));
    d.kick(0, 0);
    assert_eq!(
        d.take_interrupt(),
        0,
        "used index 1 has not passed the event"
    );
    request(&mut d, 4, 0, None);
    assert!(d.wants_kick(0), "the device asked for the next");
    d.kick(0, 0);
    assert_eq!(d.take_interrupt(), 1);
}

#[test]
fn indirect_tables() {
    let mut d = Driver::new(memory_block(timing(0, 0)), VERSION_1 | 1 << 28);
    d.ram
        .write(0x8000, &[8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let parts = [(0x8000, 16, false), (DATA, 20, true), (STATUS, 1, true)];
    let head = d.add_indirect(0, 0x9000, &parts);
    d.kick(0, 0);
    assert_eq!(d.take_used(0), [(head, 21)]);
    assert_eq!(d.bytes(DATA, 6), b"disk-0");
}

#[test]
fn malformed_requests_need_a_reset_and_say_why() {
    let cases: [(&[Part], &str); 4] = [
        (&[(0x8000, 15, false), (STATUS, 1, true)], "header"),
        (&[(0x8000, 16, false)], "status byte"),
        (
            &[(0x8000, 16, false), (0x100_0000 - 8, 16, true)],
            "invalid descriptor chain",
        ),
        (
            &[(u64::MAX - 3, 16, false), (STATUS, 1, true)],
            "invalid descriptor chain",
        ),
    ];
    for (parts, why) in cases {
        let mut d = Driver::new(memory_block(timing(0, 0)), VERSION_1);
        d.add(0, parts);
        d.kick(0, 0);
        assert_eq!(d.get(VIRTIO_MMIO_STATUS), 15 | 64);
        let fault = d.device.fault().unwrap().to_owned();
        assert!(
            fault.contains(why) && fault.contains("virtqueue 0"),
            "{fault}"
        );
        assert_eq!(d.take_interrupt(), 2, "configuration change");
        d.set(VIRTIO_MMIO_STATUS, 0);
        d.set_up(VERSION_1);
        request(&mut d, 4, 0, None);
        d.kick(0, 0);
        assert_eq!(d.take_used(0).len(), 1, "works again after the reset");
    }
}

fn frame(time: u64, len: usize, fill: u8) -> Frame {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    bytes.resize(len, fill);
    Frame {
        time,
        bytes,
        checksum_valid: false,
    }
}

#[test]
fn frames_go_out_with_their_time_and_without_their_header() {
    let mut d = Driver::new(net(Offloads::default()), VERSION_1);
    let sent = frame(77, 60, 9);
    d.ram.write(DATA, &[0; 12]);
    d.ram.write(DATA + 0x100, &sent.bytes);
    let head = d.add(1, &[(DATA, 12, false), (DATA + 0x100, 60, false)]);
    d.kick(1, 77);
    assert_eq!(d.take_used(1), [(head, 0)]);
    assert_eq!(as_net(&mut d).take_frames(), [sent]);
    for len in [3, 12, 12 + 13, 12 + 1519] {
        d.add(1, &[(DATA, len, false)]);
        d.kick(1, 78);
    }
    let n = as_net(&mut d);
    assert!(!n.has_frames());
    assert_eq!((n.counters().sent, n.counters().refused), (1, 4));
    assert_eq!(d.get(VIRTIO_MMIO_STATUS), 15);
}

#[test]
fn frames_arrive_at_their_time_and_in_order() {
    let mut d = Driver::new(net(Offloads::default()), VERSION_1);
    for i in 0..3 {
        d.add(0, &[(DATA + i * 0x1000, 2048, true)]);
    }
    d.kick(0, 0);
    for (time, fill) in [(300, 3), (100, 1), (300, 4)] {
        as_net(&mut d).inject(frame(time, 60, fill));
    }
    assert_eq!(d.device.next_event(), 100);
    d.device.advance(99);
    assert!(d.take_used(0).is_empty());
    d.device.advance(100);
    assert_eq!((d.take_used(0), d.take_interrupt()), (vec![(0, 72)], 1));
    let mut expect = vec![0; 12];
    expect[10] = 1;
    expect.extend(frame(0, 60, 1).bytes);
    assert_eq!(d.bytes(DATA, 72), expect);
    assert_eq!(d.device.next_event(), 300);
    d.device.advance(1000);
    assert_eq!(d.take_used(0), [(1, 72), (2, 72)]);
    assert_eq!(
        (
            d.bytes(DATA + 0x1000 + 71, 1),
            d.bytes(DATA + 0x2000 + 71, 1)
        ),
        (vec![3], vec![4])
    );
}

#[test]
fn frames_wait_for_buffers_and_the_backlog_is_bounded() {
    let mut d = Driver::new(net(Offloads::default()), VERSION_1 | EVENT_IDX);
    for i in 0..7 {
        as_net(&mut d).inject(frame(10 + i, 60, i as u8));
    }
    d.device.advance(20);
    assert_eq!(
        d.device.next_event(),
        u64::MAX,
        "nothing to do before there are buffers"
    );
    for i in 0..6 {
        d.add(0, &[(DATA + i * 0x100, 0x100, true)]);
        assert_eq!(d.wants_kick(0), i == 0);
    }
    d.kick(0, 30);
    assert_eq!(d.take_used(0).len(), 4);
    let last: Vec<u8> = (0..4)
        .map(|i| d.bytes(DATA + i * 0x100 + 71, 1)[0])
        .collect();
    assert_eq!(last, [0, 1, 2, 3]);
    let c = *as_net(&mut d).counters();
    assert_eq!((c.received, c.dropped_backlog), (4, 3));
}

#[test]
fn long_frames_take_several_buffers_where_agreed() {
    for (features, used) in [
        (VERSION_1 | 1 << 15, vec![(0, 50), (1, 50), (2, 12)]),
        (VERSION_1, vec![]),
    ] {
        let mut d = Driver::new(net(Offloads::default()), features | EVENT_IDX);
        as_net(&mut d).inject(frame(5, 100, 7));
        for i in 0..2 {
            d.add(0, &[(DATA + i * 0x100, 50, true)]);
        }
        d.kick(0, 10);
        assert_eq!(d.take_used(0), []);
        if features & 1 << 15 != 0 {
            d.add(0, &[(DATA + 0x200, 50, true)]);
            assert!(d.wants_kick(0));
            d.kick(0, 11);
            assert_eq!(d.bytes(DATA + 10, 2), [3, 0]);
        }
        assert_eq!(d.take_used(0), used);
        assert_eq!(
            as_net(&mut d).counters().dropped_size,
            u64::from(used.is_empty())
        );
    }
}

#[test]
fn frames_that_come_before_the_driver_are_lost() {
    let mut d = Driver::cold(net(Offloads::default()));
    as_net(&mut d).inject(frame(10, 60, 0));
    as_net(&mut d).inject(frame(30, 60, 0));
    assert_eq!(d.device.next_event(), u64::MAX);
    d.device.advance(20);
    d.set(VIRTIO_MMIO_STATUS, 3);
    d.accept(VERSION_1);
    d.set(VIRTIO_MMIO_STATUS, 11);
    d.set_at(VIRTIO_MMIO_STATUS, 15, 20);
    assert_eq!(as_net(&mut d).counters().dropped_inactive, 1);
    assert_eq!(d.device.next_event(), 30);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let bytes = |seed| {
        let mut d = Driver::new(Device::Rng(Rng::new([seed; 32])), VERSION_1);
        let head = d.add(0, &[(DATA, 32, true), (DATA + 32, 32, true)]);
        d.kick(0, 0);
        assert_eq!((d.take_used(0), d.take_interrupt()), (vec![(head, 64)], 1));
        d.bytes(DATA, 64)
    };
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
    let mut d = Driver::new(Device::Rng(Rng::new([1; 32])), VERSION_1);
    d.add(0, &[(DATA, 0x4_0000, true)]);
    d.kick(0, 0);
    assert_eq!(d.take_used(0), [(0, 4096)]);
}

/// Saves a device's state and restores it from JSON into the device `make`, with a copy of guest memory.
fn copy(d: &Driver, make: Device) -> Driver {
    let state = d.device.save();
    let text = serde_json::to_string(&state).unwrap();
    let mut c = Driver::new(make, VERSION_1);
    c.device
        .restore(&serde_json::from_str(&text).unwrap())
        .unwrap();
    assert_eq!(c.device.save(), state);
    assert!(c.ram.write(0, &d.bytes(0, 2 << 20)));
    c.follow(d);
    c
}

#[test]
fn restored_devices_go_on_as_the_saved() {
    let mut a = Driver::new(memory_block(timing(1000, 0)), VERSION_1);
    a.ram.write(DATA, &[5; 512]);
    request(&mut a, 1, 3, Some((DATA, 512, false)));
    a.kick(0, 10);
    let mut b = copy(&a, memory_block(timing(1000, 0)));
    for d in [&mut a, &mut b] {
        d.device.advance(2000);
        request(d, 0, 3, Some((DATA + 0x1000, 512, true)));
    }
    for d in [&mut a, &mut b] {
        d.kick(0, 2100);
        d.device.advance(9000);
        assert_eq!(
            (d.take_used(0).len(), d.bytes(DATA + 0x1000, 512)),
            (2, vec![5; 512])
        );
    }
    assert_eq!(a.device.save(), b.device.save());

    let mut a = Driver::new(Device::Rng(Rng::new([3; 32])), VERSION_1);
    a.add(0, &[(DATA, 100, true)]);
    a.kick(0, 0);
    let mut b = copy(&a, Device::Rng(Rng::new([0; 32])));
    for d in [&mut a, &mut b] {
        d.add(0, &[(DATA, 100, true)]);
        d.kick(0, 0);
    }
    assert_eq!(a.bytes(DATA, 100), b.bytes(DATA, 100));

    let mut a = Driver::new(net(Offloads::default()), VERSION_1);
    as_net(&mut a).inject(frame(50, 60, 1));
    a.add(0, &[(DATA, 100, true)]);
    let mut b = copy(&a, net(Offloads::default()));
    for d in [&mut a, &mut b] {
        d.device.advance(60);
        assert_eq!(d.word(used(0) + 2), 1);
    }
    assert_eq!(a.device.save(), b.device.save());
}

#[test]
fn states_of_other_devices_are_refused() {
    let net_state = Driver::new(net(Offloads::default()), VERSION_1)
        .device
        .save();
    let ram = Driver::cold(net(Offloads::default())).ram;
    let mut rng = VirtioMmio::new(Device::Rng(Rng::new([0; 32])), ram.memory().clone());
    assert!(
        rng.restore(&net_state)
            .unwrap_err()
            .to_string()
            .contains("queues differ")
    );
    let mut state = Driver::new(memory_block(timing(0, 0)), VERSION_1)
        .device
        .save();
    let small = Device::Block(Block::new(Disk::memory(512), "", timing(0, 0)));
    let mut small = VirtioMmio::new(small, ram.memory().clone());
    assert!(
        small
            .restore(&state)
            .unwrap_err()
            .to_string()
            .contains("2048 sectors")
    );
    state.transport.queues[0].size = 3;
    let mut block = VirtioMmio::new(memory_block(timing(0, 0)), ram.memory().clone());
    assert!(block.restore(&state).is_err());
}

/// Generates bytes in and around the rings, for every device. Whatever the rings contain, no device may panic or access memory outside the
/// guest's (vm-memory checks accesses). The device must answer or need a reset.
fn arbitrary_rings() -> impl Strategy<Value = Vec<(u16, u8)>> {
    prop::collection::vec((0u16..0x1000, any::<u8>()), 0..400)
}

/// Generates descriptors that often point into guest memory.
fn arbitrary_descriptor() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let address = prop_oneof![0u64..0x20_0000, 0x1f_ff00u64..0x20_0100, any::<u64>()];
    let len = prop_oneof![0u32..64, 0u32..0x1_0000, any::<u32>()];
    (address, len, 0u16..8, prop_oneof![0u16..SIZE, any::<u16>()])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_ring_contents_can_break_a_device(
        kind in 0..3,
        features in any::<u64>(),
        noise in arbitrary_rings(),
        descriptors_of in prop::collection::vec(arbitrary_descriptor(), SIZE as usize),
        heads in prop::collection::vec(prop_oneof![0u16..SIZE, any::<u16>()], SIZE as usize),
        index in prop_oneof![0u16..=SIZE, any::<u16>()],
        header in any::<[u8; 32]>(),
    ) {
        let all = Offloads { checksum: true, segmentation: true };
        let device = match kind {
            0 => memory_block(timing(10, 1_000_000)),
            1 => net(all),
            _ => Device::Rng(Rng::new([1; 32])),
        };
        let mut d = Driver::cold(device);
        let mut offered = 0;
        for select in 0..2 {
            d.set(VIRTIO_MMIO_DEVICE_FEATURES_SEL, select);
            offered |= u64::from(d.get(VIRTIO_MMIO_DEVICE_FEATURES)) << (32 * select);
        }
        d.set_up(features & offered | VERSION_1);
        d.ram.write(0x8000, &header);
        for queue in 0..2 {
            for (i, (address, len, flags, next)) in descriptors_of.iter().enumerate() {
                let mut bytes = address.to_le_bytes().to_vec();
                bytes.extend(len.to_le_bytes());
                bytes.extend(flags.to_le_bytes());
                bytes.extend(next.to_le_bytes());
                d.ram.write(descriptors(queue) + 16 * i as u64, &bytes);
            }
            for (i, head) in heads.iter().enumerate() {
                d.ram.write(available(queue) + 4 + 2 * i as u64, &head.to_le_bytes());
            }
            d.ram.write(available(queue) + 2, &index.to_le_bytes());
            for &(at, byte) in &noise {
                d.ram.write(descriptors(queue) + u64::from(at), &[byte]);
            }
        }
        if let Device::Net(net) = d.device.device_mut() {
            net.inject(frame(5, 700, 1));
        }
        for now in [0, 5, 1_000_000] {
            for queue in 0..3 {
                d.kick(queue, now);
            }
            d.device.advance(now);
        }
        let state = d.device.save();
        prop_assert_eq!(state.transport.fault.is_some(), state.transport.status & 64 != 0);
        d.device.restore(&state).unwrap();
        d.set(VIRTIO_MMIO_STATUS, 0);
        d.set_up(VERSION_1);
    }

    #[test]
    fn no_register_access_can_break_a_device(
        writes in prop::collection::vec((0u64..0x110, any::<u32>(), 0usize..8), 0..100),
    ) {
        let mut d = Driver::cold(net(Offloads::default()));
        for (offset, value, len) in writes {
            let value = value.to_le_bytes();
            let value = [value, value].concat();
            let offset = if len == 4 { offset & !3 } else { offset };
            d.device.write(offset, &value[..len], 1);
            let mut data = [0; 8];
            d.device.read(offset, &mut data[..len], 1);
            d.device.advance(2);
        }
        d.device.restore(&d.device.save()).unwrap();
    }
}
