//! The chipset: all devices of a node and the decode of their addresses. The motherboard forwards accesses to the chipset.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use nodescope_memory::GuestRam;

use crate::bus::{Bus, BusDevice, BusError};
use crate::interrupts::{Gsi, GsiError, Interrupts, InterruptsState};
use crate::ioapic::IOAPIC_SIZE;
use crate::lapic::TimerClock;
use crate::power::{POWER_SIZE, PowerControl, PowerState};
use crate::rtc::{RTC_SIZE, Rtc, RtcState};
use crate::serial::{SERIAL_SIZE, Serial, SerialState};
use crate::state::RestoreError;
use crate::virtio::{Device, VIRTIO_MMIO_SIZE, VirtioMmio, VirtioState};

/// A virtio device with its address and interrupt.
#[derive(Debug)]
pub struct VirtioSlot {
    /// Guest-physical address of the device's 4096 bytes of MMIO registers.
    pub base: u64,
    /// Global system interrupt: level-triggered, active high.
    pub gsi: u32,
    /// The virtio device itself.
    pub device: Device,
}

/// Configuration of a node's devices: addresses, interrupts and clocks.
#[derive(Debug)]
pub struct ChipsetConfig {
    /// (x2)APIC IDs in the order of the vCPUs.
    pub apic_ids: Vec<u32>,
    /// Frequencies of the TSC and of the local APIC timers.
    pub clock: TimerClock,
    /// Guest-physical address of the IOAPIC's page.
    pub ioapic: u64,
    /// First port of the serial console.
    pub serial_port: u16,
    /// Global system interrupt of the serial console: edge-triggered.
    pub serial_gsi: u32,
    /// First port of the power registers: sleep control, sleep status, reset.
    pub power_port: u16,
    /// First port of the real-time clock.
    pub rtc_port: u16,
    /// Time of the real-time clock at cycle 0, seconds since 1970-01-01 UTC.
    pub epoch: i64,
    /// Virtio devices with their addresses and interrupts.
    pub virtio: Vec<VirtioSlot>,
}

/// Reason why a chipset cannot be built.
#[derive(Debug, Error)]
pub enum ChipsetError {
    /// A device's address range that overlaps another device's range or extends past the end of the address space.
    #[error(transparent)]
    Address(#[from] BusError),
    /// A global system interrupt without an IOAPIC pin.
    #[error(transparent)]
    Interrupt(#[from] GsiError),
    /// Two devices with the same global system interrupt.
    #[error("two devices share global system interrupt {0}; give each its own")]
    Shared(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Serial,
    Power,
    Rtc,
    IoApic,
    Virtio(usize),
}

/// State of all devices of a node, for snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ChipsetState {
    pub interrupts: InterruptsState,
    pub serial: SerialState,
    pub power: PowerState,
    pub rtc: RtcState,
    pub virtio: Vec<VirtioState>,
}

impl ChipsetState {
    /// Turns the state into that of a clone, with the random numbers and disk sizes of `fresh`. Returns false if the devices differ, or if
    /// the node has written to a disk.
    pub fn become_clone(&mut self, fresh: &Self) -> bool {
        if self.virtio.len() != fresh.virtio.len() {
            return false;
        }
        let mut devices = self.virtio.iter_mut().zip(&fresh.virtio);
        devices.all(|(own, fresh)| own.device.become_clone(&fresh.device))
    }
}

/// All devices of a node.
#[derive(Debug)]
pub struct Chipset {
    /// Local APICs and IOAPIC.
    pub interrupts: Interrupts,
    /// Serial console of the node.
    pub serial: Serial,
    /// Registers through which the guest powers off and resets.
    pub power: PowerControl,
    rtc: Rtc,
    virtio: Vec<(Gsi, VirtioMmio)>,
    serial_gsi: Gsi,
    ports: Bus<Target>,
    mmio: Bus<Target>,
}

impl Chipset {
    /// Builds the devices and assigns their addresses. `ram` is the guest memory that the devices reach by DMA.
    pub fn new(config: ChipsetConfig, ram: &GuestRam) -> Result<Self, ChipsetError> {
        let mut ports = Bus::default();
        ports.insert(config.serial_port.into(), SERIAL_SIZE, Target::Serial)?;
        ports.insert(config.power_port.into(), POWER_SIZE, Target::Power)?;
        ports.insert(config.rtc_port.into(), RTC_SIZE, Target::Rtc)?;
        let mut mmio = Bus::default();
        mmio.insert(config.ioapic, IOAPIC_SIZE, Target::IoApic)?;
        let serial_gsi = Gsi::try_from(config.serial_gsi)?;
        let mut taken = vec![serial_gsi];
        let mut virtio = Vec::new();
        for place in config.virtio {
            mmio.insert(place.base, VIRTIO_MMIO_SIZE, Target::Virtio(virtio.len()))?;
            let gsi = Gsi::try_from(place.gsi)?;
            if taken.contains(&gsi) {
                return Err(ChipsetError::Shared(place.gsi));
            }
            taken.push(gsi);
            virtio.push((gsi, VirtioMmio::new(place.device, ram.clone())));
        }
        Ok(Self {
            interrupts: Interrupts::new(&config.apic_ids, config.clock),
            serial: Serial::default(),
            power: PowerControl::default(),
            rtc: Rtc::new(config.clock.tsc, config.epoch),
            virtio,
            serial_gsi,
            ports,
            mmio,
        })
    }

    /// Executes an IN instruction: reads from the device at a port. A port without a device reads as all-ones.
    pub fn port_read(&mut self, now: u64, port: u16, data: &mut [u8]) {
        match self.ports.find(port.into(), data.len()) {
            Some((target, offset)) => self.read(target, offset, data, now),
            None => data.fill(0xff),
        }
    }

    /// Executes an OUT instruction: writes to the device at a port. A write to a port without a device has no effect.
    pub fn port_write(&mut self, now: u64, port: u16, data: &[u8]) {
        if let Some((target, offset)) = self.ports.find(port.into(), data.len()) {
            self.write(target, offset, data, now);
        }
    }

    /// Reads a guest-physical address that is not RAM. An address without a device reads as all-ones.
    pub fn mmio_read(&mut self, vcpu: u16, now: u64, address: u64, data: &mut [u8]) {
        if let Some(offset) = self.interrupts.local_page_offset(vcpu, address) {
            self.interrupts.local_read(vcpu, now, offset, data);
        } else if let Some((target, offset)) = self.mmio.find(address, data.len()) {
            self.read(target, offset, data, now);
        } else {
            data.fill(0xff);
        }
    }

    /// Writes a guest-physical address that is not RAM. A write to an address without a device has no effect.
    pub fn mmio_write(&mut self, vcpu: u16, now: u64, address: u64, data: &[u8]) {
        if let Some(offset) = self.interrupts.local_page_offset(vcpu, address) {
            self.interrupts.local_write(vcpu, now, offset, data);
        } else if let Some((target, offset)) = self.mmio.find(address, data.len()) {
            self.write(target, offset, data, now);
        }
    }

    fn read(&mut self, target: Target, offset: u64, data: &mut [u8], now: u64) {
        match target {
            Target::Serial => self.serial.read(offset, data, now),
            Target::Power => self.power.read(offset, data, now),
            Target::Rtc => self.rtc.read(offset, data, now),
            Target::IoApic => self.interrupts.ioapic_read(offset, data),
            Target::Virtio(index) => self.virtio[index].1.read(offset, data, now),
        }
        self.forward(target);
    }

    fn write(&mut self, target: Target, offset: u64, data: &[u8], now: u64) {
        match target {
            Target::Serial => self.serial.write(offset, data, now),
            Target::Power => self.power.write(offset, data, now),
            Target::Rtc => self.rtc.write(offset, data, now),
            Target::IoApic => self.interrupts.ioapic_write(offset, data),
            Target::Virtio(index) => self.virtio[index].1.write(offset, data, now),
        }
        self.forward(target);
    }

    /// Updates the interrupt router with the device's interrupt line.
    fn forward(&mut self, target: Target) {
        match target {
            Target::Serial => {
                if self.serial.take_edge() {
                    self.interrupts.pulse(self.serial_gsi);
                }
            }
            Target::Virtio(index) => {
                let (gsi, device) = &self.virtio[index];
                self.interrupts.set_line(*gsi, device.irq_level());
            }
            Target::Power | Target::Rtc | Target::IoApic => {}
        }
    }

    /// Queues bytes as input of the serial console.
    pub fn console_input(&mut self, bytes: &[u8]) {
        self.serial.queue_input(bytes);
        self.forward(Target::Serial);
    }

    /// Returns the virtual time in cycles at which [`Chipset::advance`] must be called next, or `u64::MAX` for never. Local APIC timers are
    /// not included, since [`Interrupts::next_event`] reports them.
    pub fn next_event(&self) -> u64 {
        let events = self.virtio.iter().map(|(_, v)| v.next_event());
        events.min().unwrap_or(u64::MAX)
    }

    /// Runs the virtio devices' work that is due at `now` (cycles).
    pub fn advance(&mut self, now: u64) {
        for index in 0..self.virtio.len() {
            if self.virtio[index].1.next_event() <= now {
                self.virtio[index].1.advance(now);
                self.forward(Target::Virtio(index));
            }
        }
    }

    /// Returns the virtio devices in the order of the configuration.
    pub fn virtio(&self) -> impl Iterator<Item = &VirtioMmio> {
        self.virtio.iter().map(|(_, v)| v)
    }

    /// Returns the virtio device with this index in the configuration; none if there are fewer.
    pub fn virtio_device_mut(&mut self, index: usize) -> Option<&mut Device> {
        self.virtio.get_mut(index).map(|(_, v)| v.device_mut())
    }

    /// Returns the state of all devices.
    pub fn save(&self) -> ChipsetState {
        ChipsetState {
            interrupts: self.interrupts.save(),
            serial: self.serial.save(),
            power: self.power.save(),
            rtc: self.rtc.save(),
            virtio: self.virtio.iter().map(|(_, v)| v.save()).collect(),
        }
    }

    /// Loads a state into a chipset of the same configuration. After an error, the chipset must not be used.
    pub fn restore(&mut self, state: &ChipsetState) -> Result<(), RestoreError> {
        if state.virtio.len() != self.virtio.len() {
            return Err(RestoreError::new(
                "node",
                "it has another number of virtio devices",
            ));
        }
        if !self.interrupts.restore(&state.interrupts) {
            return Err(RestoreError::new(
                "interrupt controllers",
                "it has other vCPUs",
            ));
        }
        self.serial.restore(&state.serial)?;
        self.power.restore(&state.power);
        self.rtc.restore(&state.rtc)?;
        for ((_, device), state) in self.virtio.iter_mut().zip(&state.virtio) {
            device.restore(state)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lapic::registers::{EOI, SVR};
    use crate::power::{PowerRequest, RESET, RESET_VALUE};
    use crate::time::Hertz;
    use crate::virtio::rng::Rng;
    use nodescope_memory::Ram;

    const APIC: u64 = 0xfee0_0000;
    const IOAPIC: u64 = 0xfec0_0000;
    const VIRTIO: u64 = 0xd000_0000;

    fn config() -> ChipsetConfig {
        let ghz = Hertz::new(1_000_000_000).unwrap();
        ChipsetConfig {
            apic_ids: vec![0, 1],
            clock: TimerClock {
                tsc: ghz,
                input: ghz,
            },
            ioapic: IOAPIC,
            serial_port: 0x3f8,
            serial_gsi: 4,
            power_port: 0x600,
            rtc_port: 0x70,
            epoch: 0,
            virtio: vec![VirtioSlot {
                base: VIRTIO,
                gsi: 16,
                device: Device::Rng(Rng::new([1; 32])),
            }],
        }
    }

    fn chipset() -> (Chipset, Ram) {
        let ram = Ram::new(&[2 << 20]).unwrap();
        let mut c = Chipset::new(config(), ram.memory()).unwrap();
        for vcpu in 0..2 {
            set(&mut c, vcpu, APIC + u64::from(SVR), 0x1ff);
        }
        (c, ram)
    }

    fn set(c: &mut Chipset, vcpu: u16, address: u64, value: u32) {
        c.mmio_write(vcpu, 0, address, &value.to_le_bytes());
    }

    fn get(c: &mut Chipset, address: u64) -> u32 {
        let mut data = [0; 4];
        c.mmio_read(0, 0, address, &mut data);
        u32::from_le_bytes(data)
    }

    fn redirect(c: &mut Chipset, pin: u32, entry: u64) {
        for (half, value) in [(0, entry as u32), (1, (entry >> 32) as u32)] {
            set(c, 0, IOAPIC, 0x10 + 2 * pin + half);
            set(c, 0, IOAPIC + 0x10, value);
        }
    }

    /// Requests random bytes from the virtio device, acknowledges the interrupt, and returns the bytes.
    fn request(c: &mut Chipset, ram: &Ram) -> Vec<u8> {
        for (register, value) in [
            (0x70, 3),
            (0x24, 1),
            (0x20, 1),
            (0x70, 11),
            (0x38, 8),
            (0x80, 0x1000),
            (0x90, 0x2000),
            (0xa0, 0x3000),
            (0x44, 1),
            (0x70, 15),
        ] {
            set(c, 0, VIRTIO + register, value);
        }
        ram.write(
            0x1000,
            &[0, 0x50, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 2, 0, 0, 0],
        );
        ram.write(0x2000, &[0, 0, 1, 0, 0, 0]);
        set(c, 0, VIRTIO + 0x50, 0);
        let mut bytes = vec![0; 32];
        assert!(ram.read(0x5000, &mut bytes));
        bytes
    }

    #[test]
    fn a_virtio_interrupt_travels_from_the_device_to_the_vcpu_and_ends() {
        let (mut c, ram) = chipset();
        redirect(&mut c, 16, 1 << 56 | 1 << 15 | 0x51);
        let bytes = request(&mut c, &ram);
        assert_ne!(bytes, [0; 32]);
        assert_eq!(
            (c.interrupts.pending(0, 0), c.interrupts.acknowledge(1, 0)),
            (None, Some(0x51))
        );
        assert_eq!(get(&mut c, VIRTIO + 0x60), 1);
        set(&mut c, 1, VIRTIO + 0x64, 1);
        set(&mut c, 1, APIC + u64::from(EOI), 0);
        assert_eq!(c.interrupts.pending(1, 0), None);
        let (mut again, ram) = chipset();
        redirect(&mut again, 16, 1 << 56 | 1 << 15 | 0x51);
        assert_eq!(
            request(&mut again, &ram),
            bytes,
            "the same run gives the same bytes"
        );
    }

    #[test]
    fn the_console_interrupts_by_edges() {
        let (mut c, _ram) = chipset();
        redirect(&mut c, 4, 0x34);
        c.port_write(0, 0x3f9, &[1]);
        c.console_input(b"hi");
        assert_eq!(c.interrupts.acknowledge(0, 0), Some(0x34));
        let mut byte = [0];
        c.port_read(0, 0x3f8, &mut byte);
        assert_eq!(&byte, b"h");
        c.port_write(0, 0x3f8, b"!");
        assert_eq!(c.serial.take_output(), b"!");
    }

    #[test]
    fn what_is_not_there_reads_as_all_ones() {
        let (mut c, _ram) = chipset();
        let mut data = [0; 4];
        c.port_read(0, 0x64, &mut data[..1]);
        c.mmio_read(0, 0, VIRTIO + 0x1000, &mut data[1..]);
        assert_eq!(data, [0xff; 4]);
        c.mmio_write(0, 0, VIRTIO + 0xffe, &[0; 4]);
        c.port_write(0, 0x80, &[1]);
        c.port_write(0, 0x600 + RESET as u16, &[RESET_VALUE]);
        assert_eq!(c.power.take_request(), Some(PowerRequest::Reset));
    }

    #[test]
    fn impossible_places_are_refused() {
        let ram = Ram::new(&[2 << 20]).unwrap();
        let refused = |config| Chipset::new(config, ram.memory()).unwrap_err().to_string();
        assert!(
            refused(ChipsetConfig {
                power_port: 0x3f9,
                ..config()
            })
            .contains("overlaps")
        );
        assert!(
            refused(ChipsetConfig {
                serial_gsi: 16,
                ..config()
            })
            .contains("share")
        );
        let mut c = config();
        c.virtio[0].gsi = 24;
        assert!(refused(c).contains("below 24"));
    }

    #[test]
    fn a_restored_chipset_equals_the_saved() {
        let (mut a, ram) = chipset();
        redirect(&mut a, 16, 1 << 15 | 0x51);
        request(&mut a, &ram);
        a.console_input(b"input");
        for byte in b"output" {
            a.port_write(0, 0x3f8, &[*byte]);
        }
        let saved = a.save();
        let text = serde_json::to_string(&saved).unwrap();
        let mut b = Chipset::new(config(), ram.memory()).unwrap();
        b.restore(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(b.save(), saved);
        assert_eq!(b.interrupts.acknowledge(0, 0), Some(0x51));
        assert_eq!(b.serial.take_output(), b"output");
        let mut other = config();
        other.virtio.clear();
        let mut other = Chipset::new(other, ram.memory()).unwrap();
        assert!(other.restore(&saved).is_err());
    }
}
