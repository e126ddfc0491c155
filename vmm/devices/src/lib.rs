//! Devices of a node, driven by virtual time.
//!
//! No device reads a host clock. Accesses and `advance` pass the virtual time in cycles of the node's nominal clock, and a device reports
//! when it must be called next. Devices know neither their address nor the engine. They reach guest memory through
//! [`nodescope_memory::GuestRam`]. All devices of a node run on one thread.

pub mod bus;
pub mod chipset;
pub mod interrupts;
pub mod ioapic;
pub mod lapic;
pub mod power;
pub mod rtc;
pub mod serial;
pub mod state;
pub mod time;
pub mod virtio;
