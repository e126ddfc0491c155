//! Trace compression: a traced MPI program as loop trees. The trees contain what every rank computes and which MPI operations the rank
//! calls.
//!
//! - [`op`]: the operations, free of handles, serials and other values that change from one iteration to the next.
//! - [`sequence`]: from a trace to one sequence of bursts and operations per rank.
//! - [`fold`]: exact folding of repeated sub-sequences into loops; unfolding gives the sequence back.
//! - [`clock`]: one clock for all bursts of a run with measurement windows.
//! - [`origin`]: where and how the program ran when it was traced.
//! - [`program`]: the trees that equal ranks share, and the bursts with their values, not only their means.
//! - [`build`]: programs written by hand, for tests and synthetic studies.
//!
//! The trees follow the tree of control structures and leaves of Padaryan's ParJava (2005), made here from what an unmodified
//! binary did rather than from its source. Times are picoseconds.

pub mod build;
pub mod clock;
pub mod fold;
pub mod op;
pub mod origin;
pub mod program;
pub mod sequence;

pub use build::ProgramBuilder;
pub use clock::Converted;
pub use fold::{Forest, Node};
pub use op::{Action, Collective, CollectiveKind, Mode, Op, PeerRef, Site, Source};
pub use origin::{Origin, WindowSpan};
pub use program::{Bursts, Column, Program, ProgramSize, Rank};
pub use sequence::{Burst, Entry, Sequence, SequenceError, SequenceOptions, Sequences};
