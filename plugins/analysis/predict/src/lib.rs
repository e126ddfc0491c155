//! Prediction: how long a traced MPI program would run on another cluster, and why.
//!
//! A [`Program`](nodescope_loop_tree::Program), folded from a trace, is interpreted on a [`Cluster`] that a file describes (`CLUSTER.md`).
//! Bursts scale to the cluster's processors. Messages and collectives cost what the cluster's network makes them cost.
//!
//! - [`cluster`]: the target, and the file that describes it.
//! - [`network`], [`topology`]: what messages cost at their ends, and the links that they share.
//! - [`collective`]: collectives as rounds of messages, by algorithm.
//! - [`delays`](mod@delays): which computations and calls cause the ranks' waiting.
//! - `interpreter`: the discrete-event interpreter.
//! - [`result`]: results of the interpreter; efficiencies.
//! - [`reduce`]: fragments of a program, reduced to what they cost.
//! - [`scale`](mod@scale): the same program with more ranks than were traced.
//! - [`sensitivity`](mod@sensitivity): derivatives of the time, and the latency that a program tolerates.
//! - [`model`]: what a program does as a function of its problem size and its number of ranks.
//! - [`timeline`], [`trace`]: each rank's calls over time, and the predicted run as a trace.
//! - [`sweep`], [`series`], [`grid`]: a parameter's values, and the predictions for them side by side; the same of two parameters.
//! - [`chart`](mod@chart): what charts have in common.
//! - `interval`: how far the true time may lie from the predicted time, by cause.
//! - [`predict()`]: the whole prediction.
//!
//! The model is that of Padaryan's ParJava (2005), with LogGP (Alexandrov et al., 1995) beside its own network. Times are
//! picoseconds. The same program, cluster and options give the same result, to the byte.

pub mod chart;
pub mod cluster;
pub mod collective;
pub mod delays;
pub mod grid;
pub mod model;
pub mod network;
pub mod reduce;
pub mod result;
pub mod scale;
pub mod sensitivity;
pub mod series;
pub mod sweep;
pub mod timeline;
pub mod topology;
pub mod trace;

mod code;
mod delays_text;
mod html;
mod interpreter;
mod interval;
mod placed;
mod predict;
mod sensitivity_text;
mod series_text;
mod text;

pub use cluster::{
    Cluster, ClusterFile, FitError, Noise, Placement, Preset, Progress, Sharing, Speed, Uncertainty,
};
pub use code::Code;
pub use collective::{Algorithm, Choice, Library, Selected};
pub use delays::{Activity, Costs, DelayRow, Delays, delays};
pub use grid::Grid;
pub use interpreter::{Options, interpret};
pub use interval::{Interval, Part, Source};
pub use network::{Channel, Frames, Model, Table};
pub use placed::{Nodes, Placed, Traced};
pub use predict::{
    ConvertedTime, Prediction, Request, Section, WindowTime, predict, predict_reduced,
};
pub use result::{
    Blocked, Composition, Connections, CriticalPath, Efficiencies, LinkLoad, Outcome, Problem,
    RankTimes, WaitKind, WaitState,
};
pub use scale::{ScaleError, ScaleRequest, Scaled, scale};
pub use sensitivity::{Derivative, Parameter, Sensitivity, Tolerance, sensitivity};
pub use series::{Point, PointResult, Series, Split};
pub use sweep::{Scale, Sweep, SweepError, Value};
pub use timeline::{Phases, Timeline};
pub use topology::Topology;
