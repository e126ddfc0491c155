//! Interrupt messages between local APICs, the IOAPIC and message-signalled devices
//! (SDM vol. 3A, "Issuing Interprocessor Interrupts" and "Message Signalled Interrupts").

use serde::{Deserialize, Serialize};

/// Trigger mode of an interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trigger {
    /// Edge-triggered: each message is one interrupt.
    Edge,
    /// Level-triggered: the interrupt is requested until its source is served. The IOAPIC is notified of the EOI.
    Level,
}

/// Delivery mode of an interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Interrupts every destination.
    Fixed,
    /// Interrupts the destination with the lowest priority; among equals, the one with the lowest vCPU index.
    LowestPriority,
    /// System management interrupt. The message is dropped, since vCPUs have no system management mode.
    Smi,
    /// Raises a non-maskable interrupt.
    Nmi,
    /// Resets the vCPU to the wait-for-startup state.
    Init,
    /// Starts the vCPU in real mode at page `vector`.
    Startup,
    /// Interrupt of an external 8259. The message is dropped, since a node has no 8259.
    External,
    /// A reserved encoding. The message is dropped.
    Reserved,
}

impl Delivery {
    /// Decodes bits 10:8 of an ICR, LVT, redirection entry or MSI data.
    pub fn of(bits: u64) -> Self {
        match bits >> 8 & 7 {
            0 => Self::Fixed,
            1 => Self::LowestPriority,
            2 => Self::Smi,
            4 => Self::Nmi,
            5 => Self::Init,
            6 => Self::Startup,
            7 => Self::External,
            _ => Self::Reserved,
        }
    }
}

/// Receivers of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The local APIC with this ID.
    Physical(u32),
    /// Local APICs with a matching logical ID: 8 bits in xAPIC mode, cluster and mask in x2APIC mode.
    Logical(u32),
    /// Every local APIC of the node.
    All,
}

impl Destination {
    /// Decodes the 8-bit destination of an IOAPIC entry, an MSI address or an xAPIC ICR.
    pub fn narrow(destination: u8, logical: bool) -> Self {
        match (destination, logical) {
            (d, true) => Self::Logical(d.into()),
            (0xff, false) => Self::All,
            (d, false) => Self::Physical(d.into()),
        }
    }

    /// Decodes the 32-bit destination of an x2APIC ICR.
    pub fn wide(destination: u32, logical: bool) -> Self {
        match (destination, logical) {
            (u32::MAX, _) => Self::All,
            (d, true) => Self::Logical(d),
            (d, false) => Self::Physical(d),
        }
    }
}

/// An interrupt message to local APICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Receivers of the message.
    pub destination: Destination,
    /// Delivery mode of the message.
    pub delivery: Delivery,
    /// Interrupt vector, or the page number of a start-up message.
    pub vector: u8,
    /// Trigger mode of the message.
    pub trigger: Trigger,
}

impl Message {
    /// Decodes a message-signalled interrupt: a write of `data` to `address` in 0xfee0_0000..0xfef0_0000. None for any other address.
    pub fn from_msi(address: u64, data: u32) -> Option<Self> {
        if address >> 20 != 0xfee {
            return None;
        }
        let redirect = address & 1 << 3 != 0;
        let logical = redirect && address & 1 << 2 != 0;
        Some(Self {
            destination: Destination::narrow((address >> 12) as u8, logical),
            delivery: Delivery::of(data.into()),
            vector: data as u8,
            trigger: match data & 0xc000 {
                // Level-triggered with "assert". A de-assert message would carry no interrupt; devices here never send one.
                0xc000 => Trigger::Level,
                _ => Trigger::Edge,
            },
        })
    }
}

/// Action of an interrupt message on a vCPU, which the machine carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CpuAction {
    /// INIT: reset the vCPU and wait for a start-up message. The vCPU's local APIC has been reset already.
    Init {
        /// Index of the vCPU that receives the message.
        vcpu: u16,
    },
    /// Start-up: starts the vCPU in real mode at page `vector` (CS base `vector << 12`) if it waits for a start-up message.
    Startup {
        /// Index of the vCPU that receives the message.
        vcpu: u16,
        /// Number of the 4096-byte page at which the vCPU starts.
        vector: u8,
    },
    /// Non-maskable interrupt.
    Nmi {
        /// Index of the vCPU that receives the message.
        vcpu: u16,
    },
}

impl CpuAction {
    /// Returns the index of the vCPU that receives the message.
    pub fn vcpu(self) -> u16 {
        let (Self::Init { vcpu } | Self::Startup { vcpu, .. } | Self::Nmi { vcpu }) = self;
        vcpu
    }
}
