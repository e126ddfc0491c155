//! Interface of models. A crate of models depends on this crate alone: the models that come with nodescope (`plugins/timing`), and those of
//! others. `docs/extending.md` shows how to write one.
//!
//! A plugin is attached only while a measurement window is open, its warm-up included. The engine then gives the plugin every memory
//! reference that its L0 filter cache cannot answer. The L0 filter cache holds the most recently used lines of sets of the first-level
//! cache. A reference to a set's most recently used line with sufficient permission changes nothing in an LRU model. Further lines of a
//! set are held only as the model permits ([`L0Geometry`]). The engine counts all references,
//! answered by the L0 filter cache or not ([`Counters`]), so that hits are exactly `references - misses`.

pub mod abi;
mod block_profile;
mod charges;
pub mod conformance;
mod containment;
mod contended;
mod core_model;
mod counters;
mod declaration;
mod direct;
mod event;
pub mod export;
mod ledger;
mod observer;
mod policy;
mod prefetcher;
mod recording;
mod reference;
mod registry;
pub mod stream;
mod topology;

pub use block_profile::{BlockCounts, BlockProfile, PartialCounts, ProfiledBlock};
pub use charges::{Charges, SOURCES, STALL_TERMS, Source, StallTerm};
pub use containment::{Failure, MOST_WANTED, Misbehaviour};
pub use contended::{ContendedLine, LineUse};
pub use core_model::{
    CAUSES, Cause, CauseCycles, CodeCosts, CoreCosts, CoreModel, Interval, Timed,
};
pub use counters::{Counters, FLOP_CLASSES, FlopClass};
pub use declaration::{
    Declaration, EventKind, Kind, MOST_EVENTS, MOST_PARAMETERS, Needs, Parameter, Unit,
};
pub use direct::{AcceptedDirectMisses, DirectMiss, DirectMissFunction, DirectMisses};
pub use event::{Batch, Event, Reason, STREAM_VERSION};
pub use ledger::{Account, Key, Ledger, Tally};
pub use observer::{
    Answered, Extra, Latency, MOST_FILE_BYTES, MemoryLatency, MemoryRequest, ModelFile, Observer,
    ReferenceTiming,
};
pub use policy::{Replacement, SetState};
pub use prefetcher::{CacheAnswer, Observed, Prefetcher};
pub use recording::{
    Answer, DataAccess, Prefetched, RecordedBlock, Recording, RecordingPlan, Step,
};
pub use reference::{
    Access, Context, Hits, L0Geometry, L0Update, LineMoves, MemRef, MemoryModel, MemoryTiming,
    MemoryTimingModel, MissRef, Outcome, Permission, Privilege, Side, Site, Statistic, Term,
};
pub use registry::{CacheShape, Model, ModelName, NodeShape, Registry, Values};
pub use topology::VcpuPlace;
