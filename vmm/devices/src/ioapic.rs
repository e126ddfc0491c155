//! IOAPIC with 24 pins, version 0x20 (82093AA data sheet; the EOI register is from later chipsets).

use serde::{Deserialize, Serialize};

use crate::lapic::{Delivery, Destination, Message, Trigger};

/// Number of interrupt inputs.
pub const PINS: usize = 24;

/// Size of the IOAPIC's register window in bytes.
pub const IOAPIC_SIZE: u64 = 0x1000;

const VERSION: u32 = 0x20 | (PINS as u32 - 1) << 16;

const REMOTE_IRR: u64 = 1 << 14;
const LEVEL: u64 = 1 << 15;
const MASKED: u64 = 1 << 16;
/// Writable bits of a redirection entry: vector, delivery mode, destination mode, polarity, trigger mode, mask, destination. Delivery
/// status and remote IRR are read-only.
const WRITABLE: u64 = 0xff00_0000_0001_afff;

/// Complete state of the IOAPIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoApicState {
    /// ID register, bits 27:24.
    pub id: u32,
    /// Register select: index of the register that the data window accesses.
    pub select: u8,
    /// Redirection table: one entry for each input pin.
    pub entries: [u64; PINS],
    /// Levels of the inputs: bit `n` is pin `n`.
    pub lines: u32,
}

/// IOAPIC of a node. The owner of the IOAPIC delivers its interrupt messages.
#[derive(Clone, Debug)]
pub struct IoApic {
    state: IoApicState,
}

impl Default for IoApic {
    fn default() -> Self {
        Self {
            state: IoApicState {
                id: 0,
                select: 0,
                entries: [MASKED; PINS],
                lines: 0,
            },
        }
    }
}

impl IoApic {
    /// Returns a copy of the state.
    pub fn save(&self) -> IoApicState {
        self.state.clone()
    }

    /// Loads a state.
    pub fn restore(&mut self, state: &IoApicState) {
        self.state = state.clone();
    }

    /// Reads from the register window.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let value = match offset & !3 {
            0x00 => self.state.select.into(),
            0x10 => self.register(),
            _ => 0u32,
        };
        let within = (offset & 3) as usize;
        for (to, from) in data.iter_mut().zip(&value.to_le_bytes()[within..]) {
            *to = *from;
        }
    }

    fn register(&self) -> u32 {
        match self.state.select {
            0 | 2 => self.state.id,
            1 => VERSION,
            select => match self
                .state
                .entries
                .get((select as usize).wrapping_sub(0x10) / 2)
            {
                Some(&entry) if select & 1 == 0 => entry as u32,
                Some(&entry) => (entry >> 32) as u32,
                None => 0,
            },
        }
    }

    /// Writes to the register window. Afterwards, any level-triggered pin may have a message to deliver.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut bytes = [0; 4];
        let len = data.len().min(4);
        bytes[..len].copy_from_slice(&data[..len]);
        let value = u32::from_le_bytes(bytes);
        match offset {
            0x00 => self.state.select = value as u8,
            0x10 => self.set_register(value),
            0x40 => self.end_of_interrupt(value as u8),
            _ => {}
        }
    }

    fn set_register(&mut self, value: u32) {
        let select = self.state.select as usize;
        if select == 0 {
            self.state.id = value & 0x0f00_0000;
        } else if let Some(entry) = self.state.entries.get_mut(select.wrapping_sub(0x10) / 2) {
            let (shift, value) = (32 * (select & 1), u64::from(value));
            let writable = WRITABLE & u64::from(u32::MAX) << shift;
            *entry = *entry & !writable | value << shift & writable;
            if *entry & LEVEL == 0 {
                *entry &= !REMOTE_IRR;
            }
        }
    }

    /// Handles the end of a level-triggered interrupt with this vector. Afterwards, pins with this vector may have a message to deliver
    /// again.
    pub fn end_of_interrupt(&mut self, vector: u8) {
        for entry in &mut self.state.entries {
            if *entry & LEVEL != 0 && *entry as u8 == vector {
                *entry &= !REMOTE_IRR;
            }
        }
    }

    /// Sets the level of an input. Returns true on a rising edge of an unmasked, edge-triggered pin, whose message must then be delivered.
    /// Edges of masked pins are lost.
    pub fn set_line(&mut self, pin: u8, high: bool) -> bool {
        let bit = 1 << pin;
        let rising = high && self.state.lines & bit == 0;
        self.state.lines = self.state.lines & !bit | if high { bit } else { 0 };
        rising && self.state.entries[usize::from(pin)] & (LEVEL | MASKED) == 0
    }

    /// Returns whether a level-triggered pin has a message to deliver.
    pub fn level_due(&self, pin: u8) -> bool {
        let entry = self.state.entries[usize::from(pin)];
        self.state.lines & 1 << pin != 0 && entry & (LEVEL | MASKED | REMOTE_IRR) == LEVEL
    }

    /// Returns the message that a pin's redirection entry describes.
    pub fn message(&self, pin: u8) -> Message {
        let entry = self.state.entries[usize::from(pin)];
        Message {
            destination: Destination::narrow((entry >> 56) as u8, entry & 1 << 11 != 0),
            delivery: Delivery::of(entry),
            vector: entry as u8,
            trigger: if entry & LEVEL != 0 {
                Trigger::Level
            } else {
                Trigger::Edge
            },
        }
    }

    /// Records that a local APIC accepted the message of a level-triggered pin.
    pub fn accepted(&mut self, pin: u8) {
        self.state.entries[usize::from(pin)] |= REMOTE_IRR;
    }
}
