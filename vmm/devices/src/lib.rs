//! Devices of a node, driven by virtual time.
//!
//! No device reads a clock: time arrives with each access and with `advance`, in cycles of the node's nominal clock, and
//! each device says when it wants to be called next. Devices know neither their address nor the engine; they reach guest
//! memory through [`nodescope_memory::GuestRam`]. All devices of a node are driven from one thread.

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
