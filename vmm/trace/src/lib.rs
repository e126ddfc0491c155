//! Traces: the events of a study's guests, with virtual times.
//!
//! - [`event`]: the events and the header of a trace.
//! - [`assemble`]: assembly of events from hypercalls, which the host stamps.
//! - [`writer`], [`reader`]: the file. Its format is documented in `FORMAT.md`, well enough to write another reader.
//! - [`pending`]: pending calls at the end of a trace, deadlocks, messages that nobody received.
//! - [`waiting`]: how long calls waited for other ranks.
//! - [`work`]: what processes do between their calls.
//! - [`site`]: call sites, and the names of their places in the source.
//! - [`programs`]: the MPI programs of a trace, each with an `MPI_COMM_WORLD` of its own.
//! - [`profile`]: sums over events by rank and function, and the communication matrix.
//!
//! Times are picoseconds of virtual time since power-on. Instructions are those that the calling virtual CPU has retired since power-on.

pub mod assemble;
pub mod event;
pub mod pending;
pub mod profile;
pub mod programs;
pub mod reader;
pub mod site;
pub mod waiting;
pub mod work;
pub mod writer;

mod format;

pub use assemble::{Assembler, AssemblerState};
pub use event::{Body, Event, Header, MpiCall, NodeEntry, Stamp, Unfinished, merge};
pub use format::MAGIC;
pub use pending::{PendingCalls, PendingCallsBuilder};
pub use profile::{FunctionProfile, Matrix, MatrixBuilder, Profile};
pub use programs::{Caller, MpiProgram, ProgramFinder, ProgramList};
pub use reader::{Events, TraceError, TraceReader};
pub use site::{Call, Place, Site, SiteNames};
pub use waiting::{Message, Wait, WaitBuilder};
pub use work::{Work, WorkBefore, WorkBetweenCalls};
pub use writer::{TraceWriter, WriteError, WriterState};
