//! A model of an out-of-order core that times every micro-operation of recorded instructions.
//!
//! Input is a [`nodescope_plugin_api::Recording`]: instructions in program order, with the addresses of their accesses and the caches that
//! answered. Output are cycles: of the whole recording, and of each block by cause. `README.md` describes the model.

mod branch;
mod micro;
mod tlb;

pub use branch::{Predictor, PredictorConfig, PredictorConfigError};
pub use micro::{Flow, Instruction, Kind, MicroOperation, NONE, Ports, Resource, resource};
pub use tlb::{DataTlb, TlbAnswer, TlbConfig, TlbConfigError, Walker};
