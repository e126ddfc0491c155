//! Efficiency of OpenMP programs.
//!
//! The OpenMP tracer (`guest-images/tracer`) leaves one record for each process ([`Record`]). An [`Analysis`] of records has the
//! characteristics of each interval, such as efficiency and lost time ([`Characteristics`]), the constructs that cost most with their source lines ([`Point`]),
//! the imbalance of loops, and efficiencies of hybrid programs after the POP project. `README.md` is the guide, with all definitions.

mod analysis;
mod characteristics;
mod code_location;
mod html;
mod hybrid;
mod points;
mod programs;
mod protocol;
mod record;
mod selection;
mod text;

pub use analysis::{Analysis, IntervalReport, Options, ProcessReport, RegionReport, ThreadReport};
pub use characteristics::{Characteristics, Lost, Ratio};
pub use code_location::{CodeLocation, CodeLocator};
pub use html::TITLE;
pub use hybrid::{Hybrid, NodeReport, RankMpi, RankReport, TalpTimes};
pub use points::{LoopReport, Point, Spread};
pub use programs::{MpiTime, ProcessMpi, ProgramReport};
pub use record::{
    Cell, Clock, Event, Interval, Kind, Module, Record, RecordError, STATES, SUFFIX, Schedule,
    Site, State, Thread,
};
pub use selection::{Selection, SelectionError};
