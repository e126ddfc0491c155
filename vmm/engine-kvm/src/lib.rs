//! The KVM engine: runs vCPUs on the host's processor between windows.
//!
//! The engine implements the engine interface and exchanges states with the portable engine. A vCPU can therefore change engines at any
//! instruction boundary.
//!
//! Reading order:
//! - [`probe`](mod@probe): what the host offers.
//! - [`vm`]: memory slots. [`vcpu`]: the engine interface.
//! - `run`: the loop and its exits. `clock`: virtual time. `hypercall`: the doorbell.
//! - `state` and `msrs`: the exchanged state.
//! - `alarm`: how a vCPU is brought out of the guest. `grace`: progress on hosts with slow entries.
//! - `raw`: ioctls that kvm-ioctls lacks.
//!
//! Limits of this engine:
//! - Instructions are not counted: `instructions()` returns the restored count, and a limit in instructions is refused.
//! - The clock is the guest's TSC, which advances with the host's while the vCPU runs (`clock`). A study that needs byte-identical results
//!   must use the portable engine.
//! - Models cannot be attached, since memory references are not visible. Running with a model is refused.
//! - The platform emulates the interrupt controllers. The in-kernel irqchip is not used.
//! - KVM answers CPUID from a table. The hypercall leaf in the table announces the doorbell ([`vm::with_hypercall_leaf`]).

mod alarm;
mod clock;
mod grace;
mod hypercall;
mod msrs;
pub mod probe;
mod raw;
mod run;
mod state;
pub mod vcpu;
pub mod vm;

pub use probe::{Probe, Unavailable, probe};
pub use vcpu::{KvmConfig, KvmVcpu};
pub use vm::KvmVm;

use nodescope_engine::EngineError;

/// Makes the error for an ioctl that the host refused.
fn refused(what: impl Into<String>, error: kvm_ioctls::Error) -> EngineError {
    EngineError::Host {
        what: what.into(),
        source: std::io::Error::from_raw_os_error(error.errno()),
    }
}
