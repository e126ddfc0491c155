//! Figures of a scaling study: one program on growing numbers of nodes, from the results folders of its runs.
//!
//! - [`point`]: the figures of one run, read from `report.json` and `host.json`.
//! - [`read()`]: results folders, or the JSON of an earlier analysis.
//! - [`analysis`]: comparison of the runs of one program, and the variation of each CPI term.
//! - [`plan`]: host cost of a larger cluster, by a fit of the measured runs.
//!
//! The equations (1) to (6) are those of Rechistov's full-platform simulation (2013); `vmm/report` computes them for each run.
//! Equal files always give equal analyses, byte for byte.

pub mod analysis;
pub mod plan;
pub mod point;

pub mod chart;
mod html;
mod read;
mod text;
mod work;

pub use analysis::{Analysis, AnalysisError, Series, Spread};
pub use html::Figure;
pub use plan::{Plan, PlanError, PlanRequest};
pub use point::{Host, Point, PointError, Section};
pub use read::{ReadError, read};
pub use work::Work;
