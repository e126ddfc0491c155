//! One node: its description for the guest (ACPI, CPUID), its boot, its devices, and the execution of its vCPUs.
//!
//! - [`topology`] has the description. [`cpuid`] and [`acpi`] derive CPUID values and firmware tables
//!   from this description, so that both agree.
//! - [`boot`] loads a Linux kernel into guest RAM.
//! - [`motherboard`] connects the devices, and is the platform of the vCPUs. [`files`] enforces the quota of files that the guest stores.
//! - [`node`] runs the vCPUs in time slices, `parallel` runs them in parallel, and `handoff` moves them between engines.
//! - [`measurement`] is what a window measures, `counting` measures it, and `watch` looks for code whose cost is not known.
//! - [`file_server`] has the shape of a node that serves files to the others.
//! - [`samples`] copies the call stacks of vCPUs while a window is open.
//! - [`state`] saves and loads the state of a node.

pub mod acpi;
mod actions;
mod apic_ids;
pub mod boot;
pub mod clock;
mod counting;
pub mod cpuid;
mod events;
pub mod file_server;
pub mod files;
mod handoff;
pub mod measurement;
mod modelled_core;
pub mod motherboard;
pub mod node;
mod notes;
mod parallel;
pub mod samples;
pub mod state;
pub mod topology;
mod undefined;
mod vcpu_state;
mod watch;
