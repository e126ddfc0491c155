//! Exports of traces to the formats of other tools, and imports of other tools' traces.
//!
//! - [`export`] writes a trace in one of the [`Format`]s; `README.md` describes what data each format contains and what it loses.
//! - [`import()`] converts a trace of another tool (OTF2, SimGrid, liballprof, GOAL) into a trace.
//!
//! Both passes over a trace are shared by the formats. [`survey`] is the first: it finds processes, threads and communicators. In the
//! second, [`steps`] turns calls into messages sent, receives posted and requests completed. Each format has its own module. Traces are
//! streamed: memory grows with ranks, communicators and pending requests, not with events.

pub mod csv;
pub mod error;
pub mod import;
pub mod otf2;
pub mod steps;
pub mod survey;

mod chrome;
mod collectives;
mod dimemas;
mod goal;
mod labels;
mod left_out;
mod output;
mod paraver;
mod perfetto;
mod proto;
mod simgrid;
mod slices;
mod sorter;
mod stream;
mod tags;

use std::path::{Path, PathBuf};

pub use error::{ExportError, ImportError};
pub use import::{Imported, Kind, import, recognise};
pub use survey::Survey;

/// A format to which traces are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Open Trace Format 2, of Score-P, Vampir and Scalasca.
    Otf2,
    /// Perfetto's protocol buffers, for ui.perfetto.dev.
    Perfetto,
    /// Chrome's trace events in JSON.
    Chrome,
    /// SimGrid's time-independent trace with a platform, for `smpirun -replay`.
    Simgrid,
    /// Paraver's .prv, .pcf and .row.
    Paraver,
    /// Dimemas' .dim file.
    Dimemas,
    /// A GOAL schedule, for LogGOPSim.
    Goal,
    /// A table, one line for each event.
    Csv,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 8] = [
        Format::Otf2,
        Format::Perfetto,
        Format::Chrome,
        Format::Simgrid,
        Format::Paraver,
        Format::Dimemas,
        Format::Goal,
        Format::Csv,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Otf2 => "otf2",
            Format::Perfetto => "perfetto",
            Format::Chrome => "chrome",
            Format::Simgrid => "simgrid",
            Format::Paraver => "paraver",
            Format::Dimemas => "dimemas",
            Format::Goal => "goal",
            Format::Csv => "csv",
        }
    }

    /// Returns the names of the files and folders that an export writes into its folder, of which a trace may need only some.
    pub fn files(self) -> &'static [&'static str] {
        match self {
            Format::Otf2 => &["trace.otf2", "trace.def", "trace"],
            Format::Perfetto => &["trace.perfetto-trace"],
            Format::Chrome => &["trace.json"],
            Format::Simgrid => &[
                "trace.ti",
                "trace.ti.ranks",
                "platform.xml",
                "hostfile",
                "replay",
            ],
            Format::Paraver => &["trace.prv", "trace.pcf", "trace.row"],
            Format::Dimemas => &["trace.dim"],
            Format::Goal => &["trace.goal"],
            Format::Csv => &["trace.csv"],
        }
    }

    /// Returns whether a file of the format holds only one MPI program.
    pub fn takes_one_program(self) -> bool {
        matches!(self, Format::Simgrid | Format::Dimemas | Format::Goal)
    }
}

/// The form of the work between MPI calls in formats that replay the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bursts {
    /// The work's virtual time.
    #[default]
    Time,
    /// The work's instructions, executed at the mean speed of the job's bursts.
    Instructions,
}

/// The network between nodes, for formats that come with a platform.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Latency from node to node, picoseconds.
    pub latency_ps: u64,
    /// Bandwidth of a link, bits per second.
    pub bandwidth: u64,
}

impl Default for Network {
    /// Returns 10 Gbit/s and 1.3 us, the network of studies that describe no network.
    fn default() -> Network {
        Network {
            latency_ps: 1_300_000,
            bandwidth: 10_000_000_000,
        }
    }
}

/// Options of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// Number, from 0, of the MPI program to export in formats that contain only one; may be `None` if the trace has only one.
    pub world: Option<usize>,
    /// The form of the work between calls.
    pub bursts: Bursts,
    /// The network between the nodes.
    pub network: Network,
}

/// Summary of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Paths of the written files; for an OTF2 archive, the anchor file only.
    pub files: Vec<PathBuf>,
    /// Number of events read from the trace.
    pub events: u64,
    /// Number of MPI calls among the events.
    pub calls: u64,
    /// Notes on data of this trace that the files lack or show differently.
    pub notes: Vec<String>,
}

/// Writes a trace in a format into a folder. The folder is created if it is missing; files with the same names are replaced.
pub fn export(
    trace: &Path,
    format: Format,
    folder: &Path,
    options: &Options,
) -> Result<Summary, ExportError> {
    let survey = Survey::of(trace)?;
    if survey.calls == 0 && format != Format::Csv {
        return Err(ExportError::NoCalls(trace.into()));
    }
    output::folder(folder)?;
    let job = Job {
        trace,
        survey: &survey,
        folder,
        options,
    };
    let mut summary = match format {
        Format::Otf2 => otf2::write(&job),
        Format::Perfetto => perfetto::write(&job),
        Format::Chrome => chrome::write(&job),
        Format::Simgrid => simgrid::write(&job),
        Format::Paraver => paraver::write(&job),
        Format::Dimemas => dimemas::write(&job),
        Format::Goal => goal::write(&job),
        Format::Csv => csv::write(&job),
    }?;
    summary.events = survey.events;
    summary.calls = survey.calls;
    let mut notes = Vec::new();
    notes.extend(survey.incomplete.clone());
    if survey.strays > 0 && format != Format::Csv {
        notes.push(format!(
            "{} MPI calls of threads without a known rank are left out",
            survey.strays
        ));
    }
    if survey.lists_left_out > 0 && format != Format::Csv {
        notes.push(format!(
            "{} calls had lists too long for their records: what they completed, or their counts by rank, is unknown",
            survey.lists_left_out
        ));
    }
    notes.append(&mut summary.notes);
    summary.notes = notes;
    Ok(summary)
}

/// Arguments for the module of a format.
pub(crate) struct Job<'a> {
    pub(crate) trace: &'a Path,
    pub(crate) survey: &'a Survey,
    pub(crate) folder: &'a Path,
    pub(crate) options: &'a Options,
}

impl Job<'_> {
    /// Returns the path of a file of the export.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}
