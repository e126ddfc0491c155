//! A small driver for the tests of virtio devices.

use nodescope_memory::Ram;
use virtio_bindings::virtio_mmio::*;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};

use super::{Device, VirtioMmio};
use crate::bus::BusDevice;

pub const SIZE: u16 = 16;
pub const VERSION_1: u64 = 1 << 32;
pub const EVENT_IDX: u64 = 1 << 29;

/// A part of a request: guest-physical address, length in bytes, and whether the device writes the part.
pub type Part = (u64, u32, bool);

/// The driver's positions in the rings of one queue. The rings of each queue take 4 KiB, from 0x1000 on.
#[derive(Clone, Debug, Default)]
struct Rings {
    next_descriptor: u16,
    available: u16,
    used: u16,
}

#[derive(Debug)]
pub struct Driver {
    pub device: VirtioMmio,
    pub ram: Ram,
    rings: Vec<Rings>,
}

pub fn descriptors(queue: usize) -> u64 {
    0x1000 + queue as u64 * 0x1000
}
pub fn available(queue: usize) -> u64 {
    descriptors(queue) + 0x400
}
pub fn used(queue: usize) -> u64 {
    descriptors(queue) + 0x800
}

impl Driver {
    /// Creates a driver that has not set up its device yet.
    pub fn cold(device: Device) -> Self {
        let ram = Ram::new(&[16 << 20]).unwrap();
        Self {
            device: VirtioMmio::new(device, ram.memory().clone()),
            ram,
            rings: Vec::new(),
        }
    }

    /// Creates a driver that has set up its device with these features, at time 0.
    pub fn new(device: Device, features: u64) -> Self {
        let mut d = Self::cold(device);
        d.set_up(features);
        d
    }

    pub fn set_up(&mut self, features: u64) {
        for status in [1, 3] {
            self.set(VIRTIO_MMIO_STATUS, status);
        }
        self.accept(features);
        self.set(VIRTIO_MMIO_STATUS, 11);
        assert_eq!(self.get(VIRTIO_MMIO_STATUS), 11, "features refused");
        let mut queue = 0;
        self.rings.clear();
        loop {
            self.set(VIRTIO_MMIO_QUEUE_SEL, queue);
            if self.get(VIRTIO_MMIO_QUEUE_NUM_MAX) == 0 {
                break;
            }
            self.set_up_queue(queue as usize);
            self.rings.push(Rings::default());
            queue += 1;
        }
        self.set(VIRTIO_MMIO_STATUS, 15);
        assert_eq!(self.get(VIRTIO_MMIO_STATUS), 15);
    }

    pub fn accept(&mut self, features: u64) {
        for select in 0..2 {
            self.set(VIRTIO_MMIO_DRIVER_FEATURES_SEL, select);
            self.set(
                VIRTIO_MMIO_DRIVER_FEATURES,
                (features >> (32 * select)) as u32,
            );
        }
    }

    pub fn set_up_queue(&mut self, queue: usize) {
        self.ram.write(descriptors(queue), &[0; 0x1000]);
        self.set(VIRTIO_MMIO_QUEUE_SEL, queue as u32);
        self.set(VIRTIO_MMIO_QUEUE_NUM, SIZE.into());
        for (low, address) in [
            (VIRTIO_MMIO_QUEUE_DESC_LOW, descriptors(queue)),
            (VIRTIO_MMIO_QUEUE_AVAIL_LOW, available(queue)),
            (VIRTIO_MMIO_QUEUE_USED_LOW, used(queue)),
        ] {
            self.set(low, address as u32);
            self.set(low + 4, (address >> 32) as u32);
        }
        self.set(VIRTIO_MMIO_QUEUE_READY, 1);
        assert_eq!(self.get(VIRTIO_MMIO_QUEUE_READY), 1);
    }

    pub fn get(&mut self, register: u32) -> u32 {
        let mut data = [0; 4];
        self.device.read(register.into(), &mut data, 0);
        u32::from_le_bytes(data)
    }

    pub fn set_at(&mut self, register: u32, value: u32, now: u64) {
        self.device
            .write(register.into(), &value.to_le_bytes(), now);
    }

    pub fn set(&mut self, register: u32, value: u32) {
        self.set_at(register, value, 0);
    }

    pub fn kick(&mut self, queue: usize, now: u64) {
        self.set_at(VIRTIO_MMIO_QUEUE_NOTIFY, queue as u32, now);
    }

    pub fn word(&self, address: u64) -> u16 {
        let mut data = [0; 2];
        assert!(self.ram.read(address, &mut data));
        u16::from_le_bytes(data)
    }

    pub fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        assert!(self.ram.read(address, &mut data));
        data
    }

    fn descriptor(&self, at: u64, part: Part, flags: u32, next: u16) {
        let flags = flags | if part.2 { VRING_DESC_F_WRITE } else { 0 };
        let mut d = Vec::new();
        d.extend(part.0.to_le_bytes());
        d.extend(part.1.to_le_bytes());
        d.extend((flags as u16).to_le_bytes());
        d.extend(next.to_le_bytes());
        assert!(self.ram.write(at, &d));
    }

    /// Makes a request available and returns its head. The caller must not have more than [`SIZE`] descriptors in flight.
    pub fn add(&mut self, queue: usize, parts: &[Part]) -> u16 {
        let head = self.rings[queue].next_descriptor % SIZE;
        for (i, &part) in parts.iter().enumerate() {
            let at = (head + i as u16) % SIZE;
            let more = if i + 1 < parts.len() {
                VRING_DESC_F_NEXT
            } else {
                0
            };
            self.descriptor(
                descriptors(queue) + 16 * u64::from(at),
                part,
                more,
                (at + 1) % SIZE,
            );
        }
        let next = &mut self.rings[queue].next_descriptor;
        *next = next.wrapping_add(parts.len() as u16);
        self.publish(queue, head);
        head
    }

    /// Makes a request available through an indirect table at `table`, and returns its head.
    pub fn add_indirect(&mut self, queue: usize, table: u64, parts: &[Part]) -> u16 {
        for (i, &part) in parts.iter().enumerate() {
            let more = if i + 1 < parts.len() {
                VRING_DESC_F_NEXT
            } else {
                0
            };
            self.descriptor(table + 16 * i as u64, part, more, i as u16 + 1);
        }
        let head = self.rings[queue].next_descriptor % SIZE;
        let whole = (table, 16 * parts.len() as u32, false);
        self.descriptor(
            descriptors(queue) + 16 * u64::from(head),
            whole,
            VRING_DESC_F_INDIRECT,
            0,
        );
        let next = &mut self.rings[queue].next_descriptor;
        *next = next.wrapping_add(1);
        self.publish(queue, head);
        head
    }

    fn publish(&mut self, queue: usize, head: u16) {
        let r = &mut self.rings[queue];
        let slot = available(queue) + 4 + 2 * u64::from(r.available % SIZE);
        r.available = r.available.wrapping_add(1);
        assert!(self.ram.write(slot, &head.to_le_bytes()));
        assert!(
            self.ram
                .write(available(queue) + 2, &r.available.to_le_bytes())
        );
    }

    /// Requests an interrupt once the used index passes `index`.
    pub fn set_used_event(&mut self, queue: usize, index: u16) {
        assert!(self.ram.write(
            available(queue) + 4 + 2 * u64::from(SIZE),
            &index.to_le_bytes()
        ));
    }

    /// Returns whether a driver with event indices would notify the device of the last added entry.
    pub fn wants_kick(&self, queue: usize) -> bool {
        let event = self.word(used(queue) + 4 + 8 * u64::from(SIZE));
        event == self.rings[queue].available.wrapping_sub(1)
    }

    /// Returns the requests that the device returned since the last call, as head and length.
    pub fn take_used(&mut self, queue: usize) -> Vec<(u16, u32)> {
        let index = self.word(used(queue) + 2);
        let mut all = Vec::new();
        while self.rings[queue].used != index {
            let slot = used(queue) + 4 + 8 * u64::from(self.rings[queue].used % SIZE);
            let b = self.bytes(slot, 8);
            assert_eq!(b[2..4], [0, 0]);
            let len = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
            all.push((u16::from_le_bytes([b[0], b[1]]), len));
            self.rings[queue].used = self.rings[queue].used.wrapping_add(1);
        }
        all
    }

    /// Returns the causes of the interrupt, and acknowledges them.
    pub fn take_interrupt(&mut self) -> u32 {
        let causes = self.get(VIRTIO_MMIO_INTERRUPT_STATUS);
        assert_eq!(self.device.irq_level(), causes != 0);
        self.set(VIRTIO_MMIO_INTERRUPT_ACK, causes);
        assert!(!self.device.irq_level());
        causes
    }
}

impl Driver {
    /// Copies another driver's positions in the rings.
    pub fn follow(&mut self, other: &Driver) {
        self.rings = other.rings.clone();
    }
}
