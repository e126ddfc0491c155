//! One node: what the guest is told about itself (ACPI, CPUID), and how it is started.
//!
//! [`topology`] holds the description; [`cpuid`] and [`acpi`] turn the same description into what firmware and
//! processor say, so that they cannot disagree; [`boot`] puts a Linux kernel into guest RAM; [`board`] ties the devices
//! together and answers the vCPUs, with [`files`] as its book of what the guest puts among the results; [`node`] lets the vCPUs take turns, or `parallel` runs them at once, and `handoff` moves them between engines;
//! [`samples`] copies their call stacks while a window is open; [`state`] takes the state of a node out and puts it back.

pub mod acpi;
mod actions;
pub mod board;
pub mod boot;
pub mod clock;
pub mod cpuid;
mod events;
pub mod files;
mod handoff;
pub mod node;
mod notes;
mod parallel;
pub mod samples;
pub mod state;
pub mod topology;
mod vcpu_state;
