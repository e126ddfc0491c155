//! x86-64 architectural state, CPUID tables, exceptions and bit assignments: pure data, shared by all engines.
//!
//! This crate executes no instruction. An engine loads a [`VcpuState`], runs the vCPU, and stores the state again, so that a
//! state saved on one engine continues on another.

pub mod bits;
pub mod cpuid;
pub mod exception;
pub mod features;
pub mod state;

pub use cpuid::{CpuidEntry, CpuidRegister, CpuidTable};
pub use exception::{Exception, Vector};
pub use state::{
    Control, Debug, DescriptorTable, Events, FxImage, General, InterruptShadow, MpState, Msrs,
    Segment, Segments, Time, VcpuState, Vector256,
};

/// Size of the smallest page, bytes (SDM vol. 3A, section 4.1).
pub const PAGE_SIZE: u64 = 4096;
