//! Power-off and reset for hardware-reduced ACPI: the sleep control, sleep status and reset registers
//! (ACPI 6.5 §4.8.3.7 and §4.8.3.6), one byte each at offsets 0, 1 and 2.

use serde::{Deserialize, Serialize};

use crate::bus::BusDevice;

/// Number of I/O ports in the range of the power registers.
pub const POWER_SIZE: u64 = 4;
/// Offset of the sleep control register.
pub const SLEEP_CONTROL: u64 = 0;
/// Offset of the sleep status register.
pub const SLEEP_STATUS: u64 = 1;
/// Offset of the reset register.
pub const RESET: u64 = 2;
/// Value that resets the node when written to the reset register (FADT field RESET_VALUE).
pub const RESET_VALUE: u8 = 0x01;
/// Sleep type of soft-off, for the `_S5` object. No other sleep state is declared, and writes of other types have no effect.
pub const SLEEP_TYPE_S5: u8 = 5;

const SLEEP_ENABLE: u8 = 1 << 5;
const WAKE_STATUS: u8 = 1 << 7;

/// A guest's request to power off or reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PowerRequest {
    /// The guest powered off (soft-off).
    PowerOff,
    /// The guest requested a reset.
    Reset,
}

/// Complete state of the power registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerState {
    /// First request that the machine has not taken yet; none if there is no request. Later requests are ignored.
    pub request: Option<PowerRequest>,
    /// Contents of the sleep status register.
    pub status: u8,
}

/// Power registers of a node: sleep control, sleep status, reset.
#[derive(Clone, Debug, Default)]
pub struct PowerControl {
    state: PowerState,
}

impl PowerControl {
    /// Returns the guest's request without taking it; none if there is no request.
    pub fn request(&self) -> Option<PowerRequest> {
        self.state.request
    }

    /// Removes and returns the guest's request; none if there is no request.
    pub fn take_request(&mut self) -> Option<PowerRequest> {
        self.state.request.take()
    }

    /// Returns the state.
    pub fn save(&self) -> PowerState {
        self.state
    }

    /// Loads a state.
    pub fn restore(&mut self, state: &PowerState) {
        self.state = *state;
    }
}

impl BusDevice for PowerControl {
    fn read(&mut self, offset: u64, data: &mut [u8], _now: u64) {
        for (at, byte) in (offset..).zip(data) {
            *byte = if at == SLEEP_STATUS {
                self.state.status
            } else {
                0
            };
        }
    }

    fn write(&mut self, offset: u64, data: &[u8], _now: u64) {
        let request = match (offset, data) {
            (SLEEP_CONTROL, &[v]) if v & SLEEP_ENABLE != 0 && v >> 2 & 7 == SLEEP_TYPE_S5 => {
                PowerRequest::PowerOff
            }
            (RESET, &[RESET_VALUE]) => PowerRequest::Reset,
            (SLEEP_STATUS, &[v]) => {
                self.state.status &= !(v & WAKE_STATUS);
                return;
            }
            _ => return,
        };
        self.state.request.get_or_insert(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_stands_until_taken() {
        let mut p = PowerControl::default();
        p.write(SLEEP_CONTROL, &[5 << 2], 0);
        p.write(SLEEP_CONTROL, &[SLEEP_ENABLE | 3 << 2], 0);
        p.write(RESET, &[0xff], 0);
        assert_eq!(p.request(), None);
        p.write(SLEEP_CONTROL, &[SLEEP_ENABLE | 5 << 2], 0);
        p.write(RESET, &[RESET_VALUE], 0);
        let mut copy = PowerControl::default();
        copy.restore(&p.save());
        assert_eq!(p.take_request(), Some(PowerRequest::PowerOff));
        assert_eq!(p.take_request(), None);
        assert_eq!(copy.request(), Some(PowerRequest::PowerOff));
    }
}
