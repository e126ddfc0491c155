//! The KVM engine: runs a vCPU on the host's processor between windows.
//!
//! The engine implements the engine interface and exchanges the state of the portable engine. A vCPU can therefore move between the two at
//! any instruction boundary. Reading order: [`probe`](mod@probe) (what the host offers), [`vm`] (memory slots), [`vcpu`] (the engine
//! interface), `run` (the loop and its exits), `clock` (virtual time), `hypercall` (the doorbell), `state` and `msrs` (what moves), `alarm`
//! (how a vCPU is brought out of the guest), `grace` (progress where entries are slow), `raw` (ioctls that kvm-ioctls lacks).
//!
//! Limits of this engine:
//! - Instructions are not counted: `instructions()` stays what was restored, and a limit in instructions is refused.
//! - The clock is the guest's TSC, which runs by the host's while the vCPU runs (`clock`): a study that needs byte-identical
//!   results runs on the portable engine.
//! - Models cannot be attached: memory references are not visible. Running with one attached is refused.
//! - Interrupt controllers are the platform's: nothing of the in-kernel irqchip is used.
//! - CPUID is answered by KVM from a table; the hypercall leaf announces the doorbell ([`vm::with_hypercall_leaf`]).

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

/// Returns the error of an ioctl that the host refused.
fn refused(what: impl Into<String>, error: kvm_ioctls::Error) -> EngineError {
    EngineError::Host {
        what: what.into(),
        source: std::io::Error::from_raw_os_error(error.errno()),
    }
}
