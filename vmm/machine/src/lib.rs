//! One node: what the guest is told about itself (ACPI, CPUID), and how it is started.
//!
//! [`topology`] holds the description; [`cpuid`] and [`acpi`] turn the same description into what firmware and
//! processor say, so that they cannot disagree; [`boot`] puts a Linux kernel into guest RAM.

pub mod acpi;
pub mod boot;
pub mod cpuid;
pub mod topology;
