//! Profiles of measurement windows: counts by basic block, function and source line.
//!
//! [`record`] is the form of a profile in a results directory; [`totals`] sums it up. A profile contains counts, no times: cycles of the
//! core come from a model of the core (the nominal CPI, counters or a core model), which implements [`totals::CoreCycles`].
//!
//! [`change`] says what code would cost if functions, lines or waiting for memory were faster.
//!
//! [`paths`] divides costs among sampled call paths. [`flame`] draws the paths; [`folded`], [`pprof`] and [`perf_script`] write them for
//! other tools.

pub mod change;
pub mod flame;
pub mod folded;
pub mod paths;
pub mod perf_script;
pub mod pprof;
pub mod record;
pub mod totals;

pub use change::{Clock, CodeChange, CodePlace, NoSuchCode};
pub use paths::{ContextLabel, Detail, Frame, Labels, Stack, Stacks};
pub use record::{
    Block, ContendedLine, Count, Function, Inlined, LineUse, Module, ModuleKind, Path,
    ProfileError, ProfilesFile, SourceLine, SourceRange, Variable, WindowProfile,
    is_openmp_runtime,
};
pub use totals::{CoreCycles, Costs, NominalCore, Scope};
