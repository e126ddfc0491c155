//! Interface between the virtio transport and a device.

use serde::{Deserialize, Serialize};

use super::block::{Block, BlockState};
use super::net::{Net, NetState};
use super::queues::{QueueFault, Queues};
use super::rng::{Rng, RngState};
use crate::state::RestoreError;

/// A virtio device without its transport.
pub trait VirtioDevice {
    /// Returns the device ID (virtio 1.2 §5).
    fn id(&self) -> u32;
    /// Returns the device-specific feature bits that the device offers. The transport adds its own.
    fn features(&self) -> u64;
    /// Returns the largest size of each queue in entries, in the order of the queues.
    fn queue_sizes(&self) -> &'static [u16];
    /// Returns the bytes of the device configuration space.
    fn config(&self) -> Vec<u8>;
    /// Activates the device at `now` (cycles): the driver is ready and has accepted `features`.
    fn activate(&mut self, features: u64, now: u64);
    /// Resets the device to its state without a driver.
    fn reset(&mut self);
    /// Drops outstanding work of a queue that the driver has reset.
    fn reset_queue(&mut self, queue: usize);
    /// Handles the driver's notification that a queue has available buffers, at `now` (cycles).
    fn notify(&mut self, queue: usize, queues: &mut Queues<'_>, now: u64)
    -> Result<(), QueueFault>;
    /// Does the work that is due at `now` (cycles).
    fn advance(&mut self, queues: &mut Queues<'_>, now: u64) -> Result<(), QueueFault>;
    /// Returns the virtual time in cycles at which `advance` must be called next; `u64::MAX` for never.
    fn next_event(&self) -> u64;
}

/// A virtio device of any kind.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Device {
    Block(Block),
    Net(Net),
    Rng(Rng),
}

/// State of a device of any kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum DeviceState {
    Block(BlockState),
    Net(NetState),
    Rng(Box<RngState>),
}

impl DeviceState {
    /// Turns the state into that of a clone: see [`crate::chipset::ChipsetState::become_clone`].
    pub(crate) fn become_clone(&mut self, fresh: &Self) -> bool {
        match (self, fresh) {
            (Self::Block(own), Self::Block(fresh)) => {
                own.disk.sectors = fresh.disk.sectors;
                own.disk.written.is_empty()
            }
            (Self::Rng(own), Self::Rng(fresh)) => {
                own.generator.clone_from(&fresh.generator);
                true
            }
            (Self::Net(_), Self::Net(_)) => true,
            _ => false,
        }
    }
}

impl Device {
    pub(super) fn get(&self) -> &dyn VirtioDevice {
        match self {
            Self::Block(d) => d,
            Self::Net(d) => d,
            Self::Rng(d) => d,
        }
    }

    pub(super) fn get_mut(&mut self) -> &mut dyn VirtioDevice {
        match self {
            Self::Block(d) => d,
            Self::Net(d) => d,
            Self::Rng(d) => d,
        }
    }

    /// Returns the state.
    pub fn save(&self) -> DeviceState {
        match self {
            Self::Block(d) => DeviceState::Block(d.save()),
            Self::Net(d) => DeviceState::Net(d.save()),
            Self::Rng(d) => DeviceState::Rng(Box::new(d.save())),
        }
    }

    /// Loads a state of a device of the same kind.
    pub fn restore(&mut self, state: &DeviceState) -> Result<(), RestoreError> {
        match (self, state) {
            (Self::Block(d), DeviceState::Block(s)) => d.restore(s),
            (Self::Net(d), DeviceState::Net(s)) => d.restore(s),
            (Self::Rng(d), DeviceState::Rng(s)) => d.restore(s),
            _ => Err(RestoreError::new("virtio device", "it is of another kind")),
        }
    }
}
