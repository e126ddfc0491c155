//! A cluster: nodes, the fabric between them, the trace, and the windows, from power-on to the end of the job.
//!
//! [`config`] says what to run, [`build`] puts the nodes together, [`executor`] runs them on host threads in quanta, between which
//! the [`network`] forwards frames; [`run`](mod@run) is what happens between stretches of quanta: hypercalls become trace events and
//! files, nodes change engines ([`engines`], [`kvm`]), windows open and close (`windows`), and the code that ran in them gets names (`attribution`);
//! `counting` reads the host's hardware counters.
//! [`distribution`] deals the nodes to several processes. [`saving`] and [`snapshot`] keep a run half-way for others to go on from; [`folder`] is where results go; [`outcome`] is what users hear of it. Nothing here reads the
//! host's clock.

pub mod agreement;
mod attribution;
pub mod build;
pub mod config;
mod counting;
mod crew;
mod deadlock;
pub mod distribution;
pub mod engines;
pub mod executor;
pub mod folder;
mod gate;
pub mod kvm;
mod meetings;
pub mod network;
pub mod once;
pub mod outcome;
mod pace;
pub mod results;
pub mod run;
mod save;
pub mod saving;
pub mod snapshot;
mod spans;
pub mod state;
mod stretch;
mod sync;
mod watch;
mod windows;

pub use config::{ClusterConfig, Engine};
pub use distribution::{PeerError, Peers};
pub use engines::{EngineName, EngineSpan};
pub use folder::{FolderError, ResultsFolder};
pub use outcome::{Ending, Observer, Outcome, Phase, Progress, RunError, WindowProgress};
pub use results::{Results, Stored};
pub use run::{run, run_with};
pub use saving::{Options, Save, Saved};
pub use snapshot::{About, Origin, SnapshotFault};
