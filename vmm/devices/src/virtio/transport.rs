//! The MMIO transport, version 2 (virtio 1.2 §4.2.2): registers, feature negotiation, device status, interrupts.

use nodescope_memory::GuestRam;
use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_config::{VIRTIO_F_RING_RESET, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_mmio::*;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestAddress;

use super::device::{Device, DeviceState};
use super::queues::{QueueElement, QueueFault, Queues};
use crate::bus::BusDevice;
use crate::state::RestoreError;

/// Bytes of MMIO for the registers of one device.
pub const VIRTIO_MMIO_SIZE: u64 = 0x1000;

const MAGIC: u32 = u32::from_le_bytes(*b"virt");
const VERSION: u32 = 2;
const VENDOR: u32 = u32::from_le_bytes(*b"NSCP");
/// Offset of register QueueReset, which virtio 1.2 added. The header from which the other constants come lacks it.
const QUEUE_RESET: u32 = 0x0c0;

const ACKNOWLEDGE: u32 = 1;
const DRIVER: u32 = 2;
const DRIVER_OK: u32 = 4;
const FEATURES_OK: u32 = 8;
const NEEDS_RESET: u32 = 64;
const FAILED: u32 = 128;

const TRANSPORT_FEATURES: u64 = 1 << VIRTIO_F_VERSION_1
    | 1 << VIRTIO_F_RING_RESET
    | 1 << VIRTIO_RING_F_EVENT_IDX
    | 1 << VIRTIO_RING_F_INDIRECT_DESC;

/// State of the transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportState {
    /// Register DeviceFeaturesSel: the 32-bit half of the device's features that the driver reads.
    pub device_features_select: u32,
    /// Register DriverFeaturesSel: the 32-bit half of the driver's features that the driver writes.
    pub driver_features_select: u32,
    /// Feature bits that the driver accepted.
    pub driver_features: u64,
    /// Register QueueSel: index of the queue that the driver accesses.
    pub queue_select: u32,
    /// Register Status: progress of the driver's initialisation.
    pub status: u32,
    /// Register InterruptStatus: causes of the interrupt.
    pub interrupt: u32,
    /// Register ConfigGeneration, which would change with the configuration.
    pub generation: u32,
    /// State of each queue.
    pub queues: Vec<QueueElement>,
    /// Reason why the device needs a reset; none if it does not.
    pub fault: Option<String>,
}

/// State of a device and its transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtioState {
    /// State of the transport.
    pub transport: TransportState,
    /// State of the device behind the transport.
    pub device: DeviceState,
}

/// A virtio device on the MMIO transport. Its interrupt is level-triggered: the line is high while [`VirtioMmio::irq_level`] returns true.
#[derive(Debug)]
pub struct VirtioMmio {
    ram: GuestRam,
    device: Device,
    config: Vec<u8>,
    queues: Vec<Queue>,
    device_features_select: u32,
    driver_features_select: u32,
    driver_features: u64,
    queue_select: u32,
    status: u32,
    interrupt: u32,
    generation: u32,
    fault: Option<String>,
}

impl VirtioMmio {
    /// Attaches a device to the MMIO transport and to guest memory.
    pub fn new(device: Device, ram: GuestRam) -> Self {
        let sizes = device.get().queue_sizes().iter();
        let queues = sizes
            .map(|&n| Queue::new(n).expect("queue sizes are powers of two"))
            .collect();
        Self {
            ram,
            config: device.get().config(),
            device,
            queues,
            device_features_select: 0,
            driver_features_select: 0,
            driver_features: 0,
            queue_select: 0,
            status: 0,
            interrupt: 0,
            generation: 0,
            fault: None,
        }
    }

    /// Returns whether the interrupt line is high.
    #[inline]
    pub fn irq_level(&self) -> bool {
        self.interrupt != 0
    }

    /// Returns the device behind the transport.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the device behind the transport for changes. The caller must call [`VirtioMmio::advance`] afterwards if the change made work
    /// due.
    pub fn device_mut(&mut self) -> &mut Device {
        &mut self.device
    }

    /// Returns the driver's error that made a reset necessary; none if the device needs no reset.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    fn active(&self) -> bool {
        self.status & (DRIVER_OK | NEEDS_RESET | FAILED) == DRIVER_OK
    }

    /// Returns the virtual time in cycles at which `advance` must be called next; `u64::MAX` for never.
    pub fn next_event(&self) -> u64 {
        if self.active() {
            self.device.get().next_event()
        } else {
            u64::MAX
        }
    }

    /// Does the device's work that is due at `now` (cycles).
    pub fn advance(&mut self, now: u64) {
        if self.active() {
            let mut queues = Queues::new(&self.ram, &mut self.queues, &mut self.interrupt);
            let done = self.device.get_mut().advance(&mut queues, now);
            self.check(done);
        }
    }

    fn notify(&mut self, queue: usize, now: u64) {
        if self.active() && self.queues.get(queue).is_some_and(|q| q.ready()) {
            let mut queues = Queues::new(&self.ram, &mut self.queues, &mut self.interrupt);
            let done = self.device.get_mut().notify(queue, &mut queues, now);
            self.check(done);
        }
    }

    fn check(&mut self, done: Result<(), QueueFault>) {
        if let Err(fault) = done {
            self.need_reset(fault.to_string());
        }
    }

    /// Sets the device status "needs reset" (virtio 1.2 §2.1.2). The device does no work until the driver resets it.
    fn need_reset(&mut self, why: String) {
        self.fault.get_or_insert(why);
        self.status |= NEEDS_RESET;
        if self.status & DRIVER_OK != 0 {
            self.interrupt |= VIRTIO_MMIO_INT_CONFIG;
        }
    }

    fn reset(&mut self) {
        self.device.get_mut().reset();
        self.queues.iter_mut().for_each(|q| q.reset());
        self.device_features_select = 0;
        self.driver_features_select = 0;
        self.driver_features = 0;
        self.queue_select = 0;
        self.status = 0;
        self.interrupt = 0;
        self.fault = None;
    }

    fn features(&self) -> u64 {
        self.device.get().features() | TRANSPORT_FEATURES
    }

    fn has(&self, feature: u32) -> bool {
        self.driver_features >> feature & 1 != 0
    }

    fn set_status(&mut self, value: u32, now: u64) {
        if value == 0 {
            return self.reset();
        }
        // The driver can only set bits. Only the device sets "needs reset".
        let mut new =
            value & (ACKNOWLEDGE | DRIVER | DRIVER_OK | FEATURES_OK | FAILED) & !self.status;
        if new & FEATURES_OK != 0
            && (self.driver_features & !self.features() != 0 || !self.has(VIRTIO_F_VERSION_1))
        {
            // The features are refused: the driver reads the status back and finds FEATURES_OK clear.
            new &= !(FEATURES_OK | DRIVER_OK);
        }
        if new & DRIVER_OK != 0 && (self.status | new) & FEATURES_OK == 0 {
            self.need_reset("the driver went on without agreeing on features".into());
            return;
        }
        self.status |= new;
        if new & DRIVER_OK != 0 {
            self.device.get_mut().activate(self.driver_features, now);
        }
    }

    /// Reads the register at an offset below the configuration space.
    fn register(&self, register: u32) -> u32 {
        let half = |features: u64, select: u32| match select {
            0 => features as u32,
            1 => (features >> 32) as u32,
            _ => 0,
        };
        let queue = self.queues.get(self.queue_select as usize);
        match register {
            VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            VIRTIO_MMIO_VERSION => VERSION,
            VIRTIO_MMIO_DEVICE_ID => self.device.get().id(),
            VIRTIO_MMIO_VENDOR_ID => VENDOR,
            VIRTIO_MMIO_DEVICE_FEATURES => half(self.features(), self.device_features_select),
            VIRTIO_MMIO_QUEUE_NUM_MAX => queue.map_or(0, |q| q.max_size().into()),
            VIRTIO_MMIO_QUEUE_READY => queue.map_or(0, |q| q.ready().into()),
            VIRTIO_MMIO_INTERRUPT_STATUS => self.interrupt,
            VIRTIO_MMIO_STATUS => self.status,
            VIRTIO_MMIO_CONFIG_GENERATION => self.generation,
            // There are no shared memory regions, so their lengths read as -1.
            VIRTIO_MMIO_SHM_LEN_LOW..=VIRTIO_MMIO_SHM_BASE_HIGH => u32::MAX,
            _ => 0,
        }
    }

    fn set_register(&mut self, register: u32, value: u32, now: u64) {
        match register {
            VIRTIO_MMIO_DEVICE_FEATURES_SEL => self.device_features_select = value,
            VIRTIO_MMIO_DRIVER_FEATURES_SEL => self.driver_features_select = value,
            VIRTIO_MMIO_DRIVER_FEATURES if self.status & FEATURES_OK == 0 => {
                let all = self.driver_features;
                self.driver_features = match self.driver_features_select {
                    0 => all & !0xffff_ffff | u64::from(value),
                    1 => all & 0xffff_ffff | u64::from(value) << 32,
                    _ => all,
                };
            }
            VIRTIO_MMIO_QUEUE_SEL => self.queue_select = value,
            VIRTIO_MMIO_QUEUE_NOTIFY => self.notify(value as usize, now),
            VIRTIO_MMIO_INTERRUPT_ACK => self.interrupt &= !value,
            VIRTIO_MMIO_STATUS => self.set_status(value, now),
            VIRTIO_MMIO_QUEUE_NUM..=QUEUE_RESET => self.set_queue_register(register, value),
            _ => {}
        }
    }

    fn set_queue_register(&mut self, register: u32, value: u32) {
        let index = self.queue_select as usize;
        let event_idx = self.has(VIRTIO_RING_F_EVENT_IDX);
        let ring_reset = self.has(VIRTIO_F_RING_RESET);
        let Some(queue) = self.queues.get_mut(index) else {
            return;
        };
        match register {
            VIRTIO_MMIO_QUEUE_READY if value & 1 == 0 => {
                queue.reset();
                self.device.get_mut().reset_queue(index);
                return;
            }
            QUEUE_RESET if value & 1 != 0 && ring_reset => {
                queue.reset();
                self.device.get_mut().reset_queue(index);
                return;
            }
            _ => {}
        }
        if queue.ready() || self.status & FEATURES_OK == 0 {
            return; // a queue in use does not change, and none is set up before features are agreed on
        }
        let low = |old: u64| GuestAddress(old & !0xffff_ffff | u64::from(value));
        let high = |old: u64| GuestAddress(old & 0xffff_ffff | u64::from(value) << 32);
        let done = match register {
            VIRTIO_MMIO_QUEUE_NUM => match u16::try_from(value) {
                Ok(size) => queue.try_set_size(size),
                Err(_) => Err(virtio_queue::Error::InvalidSize),
            },
            VIRTIO_MMIO_QUEUE_DESC_LOW => queue.try_set_desc_table_address(low(queue.desc_table())),
            VIRTIO_MMIO_QUEUE_DESC_HIGH => {
                queue.try_set_desc_table_address(high(queue.desc_table()))
            }
            VIRTIO_MMIO_QUEUE_AVAIL_LOW => {
                queue.try_set_avail_ring_address(low(queue.avail_ring()))
            }
            VIRTIO_MMIO_QUEUE_AVAIL_HIGH => {
                queue.try_set_avail_ring_address(high(queue.avail_ring()))
            }
            VIRTIO_MMIO_QUEUE_USED_LOW => queue.try_set_used_ring_address(low(queue.used_ring())),
            VIRTIO_MMIO_QUEUE_USED_HIGH => queue.try_set_used_ring_address(high(queue.used_ring())),
            VIRTIO_MMIO_QUEUE_READY => {
                queue.set_event_idx(event_idx);
                queue.set_ready(true);
                if queue.is_valid(&self.ram) {
                    Ok(())
                } else {
                    queue.set_ready(false);
                    Err(virtio_queue::Error::FindMemoryRegion)
                }
            }
            _ => Ok(()),
        };
        if let Err(cause) = done {
            let queue = index;
            self.need_reset(QueueFault::Ring { queue, cause }.to_string());
        }
    }

    /// Returns the state.
    pub fn save(&self) -> VirtioState {
        VirtioState {
            transport: TransportState {
                device_features_select: self.device_features_select,
                driver_features_select: self.driver_features_select,
                driver_features: self.driver_features,
                queue_select: self.queue_select,
                status: self.status,
                interrupt: self.interrupt,
                generation: self.generation,
                queues: self.queues.iter().map(QueueElement::from).collect(),
                fault: self.fault.clone(),
            },
            device: self.device.save(),
        }
    }

    /// Loads a state of the same kind of device with the same queues.
    pub fn restore(&mut self, state: &VirtioState) -> Result<(), RestoreError> {
        let t = &state.transport;
        let sizes = t.queues.iter().map(|q| q.max_size);
        if !sizes.eq(self.queues.iter().map(|q| q.max_size())) {
            return Err(RestoreError::new("virtio transport", "its queues differ"));
        }
        let queues = t
            .queues
            .iter()
            .map(Queue::try_from)
            .collect::<Result<Vec<_>, _>>()?;
        for queue in &queues {
            // All parts of a valid queue are in RAM.
            if queue.ready() && !queue.is_valid(&self.ram) {
                return Err(RestoreError::new("virtqueue", "it does not lie in RAM"));
            }
        }
        let unknown = t.driver_features & !self.features();
        if t.status & FEATURES_OK != 0 && unknown != 0 {
            let reason = format!("features {unknown:#x} are not offered");
            return Err(RestoreError::new("virtio transport", reason));
        }
        self.device.restore(&state.device)?;
        self.queues = queues;
        self.device_features_select = t.device_features_select;
        self.driver_features_select = t.driver_features_select;
        self.driver_features = t.driver_features;
        self.queue_select = t.queue_select;
        self.status = t.status;
        self.interrupt = t.interrupt;
        self.generation = t.generation;
        self.fault = t.fault.clone();
        Ok(())
    }
}

impl BusDevice for VirtioMmio {
    /// Reads a register or the configuration space. Registers can only be read with aligned 32-bit accesses; other accesses read as zero.
    /// The configuration space allows accesses of any size.
    fn read(&mut self, offset: u64, data: &mut [u8], _now: u64) {
        data.fill(0);
        match offset.checked_sub(VIRTIO_MMIO_CONFIG.into()) {
            Some(at) => {
                let config = self.config.iter().skip(at as usize);
                data.iter_mut()
                    .zip(config)
                    .for_each(|(to, from)| *to = *from);
            }
            None if data.len() == 4 && offset & 3 == 0 => {
                data.copy_from_slice(&self.register(offset as u32).to_le_bytes());
            }
            None => {}
        }
    }

    /// Writes a register with an aligned 32-bit access. Writes to the configuration space have no effect.
    fn write(&mut self, offset: u64, data: &[u8], now: u64) {
        if let (Ok(bytes), 0) = (<[u8; 4]>::try_from(data), offset & 3)
            && offset < VIRTIO_MMIO_CONFIG.into()
        {
            self.set_register(offset as u32, u32::from_le_bytes(bytes), now);
        }
    }
}
