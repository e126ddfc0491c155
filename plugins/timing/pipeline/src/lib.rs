//! A model of an out-of-order core that times every micro-operation of recorded instructions.
//!
//! Input is a [`nodescope_plugin_api::Recording`]: instructions in program order, with the addresses of their accesses and the caches that
//! answered. Output are cycles: of the whole recording, and of each block by cause. `README.md` describes the model.

mod branch;
mod class;
mod decode;
mod description;
mod file;
mod learning;
mod lines;
mod micro;
mod model;
mod parameters;
mod queues;
mod stores;
mod timing;
mod tlb;
mod wrong_path;

pub use branch::{Predictor, PredictorConfig, PredictorConfigError};
pub use class::Class;
pub use decode::decode;
pub use description::{
    Bandwidth, Core, Costs, DescriptionError, Fusion, Idiom, Indexed, Load, Pipeline, Recipe,
    Renaming, Scheduler, Step, Store, Strings, Tlb,
};
pub use file::Recordings;
pub use micro::{
    Flow, Instruction, Kind, MicroOperation, NO_ACCESS, NONE, Ports, Resource, resource,
};
pub use model::PipelineModel;
pub use tlb::{DataTlb, TlbAnswer, TlbConfig, TlbConfigError, Walker};
