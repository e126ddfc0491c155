//! The verdict on a run: what costs its time, where, and what the removal of each cause would save.
//!
//! A traced program is replayed on its own cluster with one thing changed: a computation that is shared evenly, a call that is left out, a
//! network that costs nothing. The difference of the times is the gain ([`Class::Replayed`]). Causes are found one after the other: the
//! best remedy is applied, and the others are asked again.
//!
//! - [`cause`]: causes, their places and the verdict.
//! - `replay`: the program on its own cluster, fitted to the traced time.
//! - `checks`: the checks, each a list of candidates of remedies.
//! - `code`: the code of a computation or a thread, from a window.
//! - `scalar`: loops without vector instructions.
//! - `text`: places, causes and remedies in words.
//! - `what_if`: changes of the user's choice, and what faster functions, computations and calls gain; `shares` says which functions a
//!   computation runs.

pub mod cause;

mod checks;
mod code;
mod edit;
mod placement;
mod replay;
mod scalar;
mod shares;
mod text;
mod verdict;
mod what_if;

pub use cause::{Cause, Class, Kind, Place, RuledOut, Verdict};
pub use code::{MeasuredCode, ScalarLoop};
pub use edit::{Call, Stretch};
pub use replay::Link;
pub use shares::Sample;
pub use text::{NO_CAUSE, at, between, shown};
pub use verdict::{Error, verdict};
pub use what_if::{CallRow, CausalProfile, Change, Row, WhatIf};
