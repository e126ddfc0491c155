//! Measurement windows: when which models are attached, and what was measured.
//!
//! - [`spec`]: what the user asks for.
//! - [`driver`]: decides, at the end of each quantum, which window opens, starts measuring or closes.
//! - [`model`]: builds the models that a window attaches to a node.
//! - [`owner`]: which rank or process an address space belongs to.
//! - [`trigger`]: moments that are no window's; [`watch`]: waits for one. [`state`]: the driver's state, and which windows may go on from it.
//! - [`record`]: what a window measured, and its file `windows.json`.
//!
//! A window has three moments: it *opens* (models attached, caches empty), *starts measuring* after its warm-up (statistics forgotten, state
//! kept) and *closes* (models detached). Between windows nothing is attached. All three happen at boundaries of quanta only: there
//! every node has reached the same virtual time and every event of the quantum is known, so the decision does not depend on how many
//! host threads ran the nodes. A window is therefore late by at most one quantum after its trigger, and measures up to a
//! quantum more than was asked for. What was measured is exact; the records say where it began and ended.

pub mod driver;
pub mod model;
pub mod owner;
pub mod record;
pub mod spec;
pub mod state;
pub mod trigger;
pub mod watch;

pub use driver::{Ending, WindowAction, WindowDriver, WindowOutcome, WindowTimes};
pub use model::{CountingOnly, ModelError, build_model};
pub use owner::{Owner, Owners};
pub use record::{Measured, NodeRecord, RecordError, WindowRecord, WindowsFile};
pub use spec::{Measure, MemorySpec, ModelSpec, SpecFault, Trigger, WindowSpec};
pub use state::{DriverState, StateFault};
pub use trigger::Moment;
pub use watch::TriggerWatch;

pub use nodescope_plugin_cache::CacheConfig;
pub use nodescope_plugin_numa::{HomeRange, Latencies, NumaConfig};
