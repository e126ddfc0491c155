//! A cluster: nodes, the fabric between them, the trace, and the windows, from power-on to the end of the job.
//!
//! - [`config`] describes what to run, and [`build`] puts the nodes together.
//! - [`executor`] runs the nodes on host threads in quanta. `host_thread` is the loop of a thread, `barrier` the barrier between quanta,
//!   `batch` the lengths of quanta, `parker` the waiting of threads. Between quanta the [`network`] forwards frames.
//! - [`run`](mod@run) acts between batches of quanta. Hypercalls become trace events and files (`monitor` follows each node), nodes change
//!   engines ([`engines`], [`kvm`]), windows open and close (`windows`), and code that ran in windows gets names (`attribution`).
//! - `counting` reads the host's hardware counters.
//! - [`distribution`] distributes the nodes over several processes.
//! - [`saving`] and [`snapshot`] take snapshots, from which other runs continue. [`folder`] holds results. [`outcome`] is the part that
//!   users see.
//!
//! Nothing here reads the host's clock.

pub mod agreement;
mod attribution;
mod barrier;
mod batch;
pub mod build;
pub mod config;
mod counting;
mod deadlock;
pub mod distribution;
pub mod engines;
pub mod executor;
pub mod folder;
mod host_thread;
pub mod kvm;
mod monitor;
pub mod network;
mod node_transfer;
pub mod once;
pub mod outcome;
mod pace;
mod parker;
pub mod results;
pub mod run;
mod save;
pub mod saving;
pub mod snapshot;
mod spans;
pub mod state;
mod sync;
mod windows;

pub use config::{ClusterConfig, Engine, KnownCost};
pub use distribution::{PeerError, Peers};
pub use engines::{EngineName, EngineSpan};
pub use folder::{FolderError, ResultsFolder};
pub use outcome::{Ending, Observer, Outcome, Phase, Progress, RunError, WindowProgress};
pub use results::{Results, Stored};
pub use run::{run, run_with};
pub use saving::{Options, Save, Saved, When};
pub use snapshot::{About, Origin, SnapshotFault};
