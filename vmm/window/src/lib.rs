//! Measurement windows: models are attached in windows, and their measurements are recorded.
//!
//! - [`spec`]: the user's specification of a window.
//! - [`driver`]: decisions, at the end of each quantum, on which window opens, starts measuring or closes.
//! - [`model`]: construction of the models that a window attaches to a node.
//! - [`owner`]: the rank or process to which an address space belongs.
//! - [`trigger`]: moments of a run other than those of windows.
//! - [`watch`]: a watch for a trigger.
//! - [`state`]: the driver's state for snapshots.
//! - [`record`]: the measurements of a window, and the file `windows.json`.
//!
//! A window has three moments: it *opens* (models attached, caches empty), *starts measuring* after its warm-up (statistics reset, cache
//! contents kept) and *closes* (models detached). Between windows no models are attached. All three happen at boundaries of quanta only:
//! there every node has reached the same virtual time and every event of the quantum is known. So the decision does not depend on the
//! number of host threads that ran the nodes. A window therefore opens at most one quantum after its trigger, unless another window is
//! open, and measures up to a quantum more than requested. The counts of a record belong to just the time from the begin to the end that
//! the record has.

pub mod driver;
pub mod model;
pub mod owner;
pub mod record;
mod recorder;
mod registered;
pub mod sampling;
pub mod spec;
pub mod state;
pub mod trigger;
pub mod watch;

pub use driver::{Ending, WindowAction, WindowDriver, WindowOutcome, WindowTimes};
pub use model::{
    CountingOnly, ModelError, NodeDescription, build_core_model, build_model, built_in,
};
pub use owner::{Owner, Owners};
pub use record::{CoreRecord, Measured, NodeRecord, RecordError, WindowRecord, WindowsFile};
pub use sampling::Sampling;
pub use spec::{
    Bandwidth, CoreSpec, Measure, MemorySpec, ModelSpec, RegisteredSpec, SpecFault, Trigger,
    WindowSpec,
};
pub use state::{DriverState, StateFault};
pub use trigger::Moment;
pub use watch::TriggerWatch;

pub use nodescope_plugin_api::Registry;
pub use nodescope_plugin_cache::CacheConfig;
pub use nodescope_plugin_numa::{HomeRange, Latencies, NumaConfig};
