//! The input of a report.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nodescope_page::Page;
use nodescope_profile::{ProfilesFile, WindowProfile};
use nodescope_trace::TraceError;
use nodescope_window::{WindowRecord, WindowsFile};
use serde::{Deserialize, Serialize};

use crate::cores::{ModelledCore, WindowCores};

/// Input of a report. A report depends on nothing else: it reads no clock and no other file.
#[derive(Clone, Debug)]
pub struct ReportInput {
    /// Measurements of the windows.
    pub windows: WindowsFile,
    /// Profiles of the code that ran in the windows; without one there are no functions and source lines.
    pub profiles: Option<ProfilesFile>,
    /// The trace; without one there is no MPI profile.
    pub trace: Option<PathBuf>,
    /// Name, identity and description of the study.
    pub study: StudyInfo,
    /// Source of CPI_core.
    pub core: CoreCpi,
    /// Modelled cores of the windows' code; may be empty.
    pub models: Vec<WindowCores>,
    /// Misses that overlap in the stacks of modelled cores, beside the published formula; 1: none.
    pub memory_parallelism: f64,
    /// Network traffic of each node; may be empty.
    pub network: Vec<NetworkCounts>,
    /// Sentences for the user, such as how the job ended.
    pub notes: Vec<String>,
}

/// A section of the HTML page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSection {
    /// Title of the section.
    pub title: String,
    /// Content of the section: well-formed XML that loads nothing.
    pub markup: String,
}

impl PageSection {
    /// Returns a section with its content, or with why there is none.
    pub fn new(title: &str, content: Result<String, String>) -> PageSection {
        let not_shown = |why: String| {
            let mut page = Page::default();
            page.element("p", "", &format!("Not shown: {why}"));
            page.markup()
        };
        PageSection {
            title: title.to_owned(),
            markup: content.unwrap_or_else(not_shown),
        }
    }
}

impl ReportInput {
    /// Returns the profile of a window, if there is one.
    pub fn profile_of(&self, record: &WindowRecord) -> Option<&WindowProfile> {
        let mut windows = self.profiles.as_ref()?.windows.iter();
        windows.find(|profile| profile.name == record.name)
    }

    /// Returns the modelled cores of a window.
    pub fn cores_of(&self, record: &WindowRecord) -> &[ModelledCore] {
        let mut models = self.models.iter();
        let models = models.find(|cores| cores.window == record.name);
        models.map_or(&[], |models| &models.cores)
    }
}

/// The study, for the head of the report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyInfo {
    /// Name of the study.
    pub name: String,
    /// Identifies the study's exact inputs.
    pub id: String,
    /// Labels and values in the order to be shown, such as `("nodes", "2 x 2 vCPUs at 2.9 GHz")`.
    pub description: Vec<(String, String)>,
}

/// Source of CPI_core, the cycles per instruction of the core without memory stalls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoreCpi {
    /// The nominal CPI that the clocks ran with, and the extra cycles of long instructions.
    Nominal {
        /// The source, such as `stated in the study`.
        source: String,
    },
    /// A number that replaces the core's cycles outside MPI after the run. The number includes long instructions. Cycles inside MPI stay as
    /// they were.
    Replaced {
        /// Cycles per instruction.
        cpi: f64,
        /// Origin of the measurement, such as `perf stat on a Xeon E5-2690`.
        source: String,
    },
    /// A model of the core's time by basic block, which replaces the core's cycles outside MPI where a window has one
    /// ([`ReportInput::models`]), and the extra cycles of long instructions. Cycles inside MPI stay as they were.
    Modelled {
        /// The model, such as `llvm-mca 22.1.8, core znver4`.
        source: String,
    },
    /// Numbers of hardware counters that replace the core's cycles outside MPI, as [`CoreCpi::Replaced`] does. The clocks ran with `whole`.
    PerRank {
        /// Cycles per instruction of the whole program, for ranks without a number of their own and for all that is no rank.
        whole: f64,
        /// Cycles per instruction by rank; may be empty.
        ranks: BTreeMap<u32, f64>,
        /// Tool, files, events and limits.
        source: String,
    },
}

/// Network traffic of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkCounts {
    /// Host name of the node.
    pub node: String,
    /// Number of frames that the node sent.
    pub sent_frames: u64,
    /// Bytes of the frames that the node sent.
    pub sent_bytes: u64,
    /// Number of frames that the node received.
    pub received_frames: u64,
    /// Bytes of the frames that the node received.
    pub received_bytes: u64,
    /// Frames that had no destination, or did not fit into the switch's buffer.
    pub dropped_frames: u64,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The trace cannot be opened. A trace that is cut or damaged is reported as far as it goes.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Records that contradict themselves.
    #[error("the record of window \"{window}\", node {node}, is inconsistent: {what}")]
    Inconsistent {
        /// Name of the window.
        window: String,
        /// Number of the node.
        node: u32,
        /// Description of the contradiction.
        what: String,
    },
    /// The code of a window cannot be shown.
    #[error("the code of window \"{window}\" cannot be shown: {what}")]
    Code {
        /// Name of the window.
        window: String,
        /// Reason why the code cannot be shown.
        what: String,
    },
    /// A CPI that cannot be one.
    #[error("CPI_core is {cpi} ({origin}); give a number from 0 to 65535 cycles per instruction")]
    CoreCpi {
        /// Value of the CPI.
        cpi: f64,
        /// Origin of the value.
        origin: String,
    },
    /// The drawing library failed.
    #[error("cannot draw the {chart}: {cause}")]
    Drawing {
        /// Name of the chart.
        chart: &'static str,
        /// The drawing library's message.
        cause: String,
    },
}
