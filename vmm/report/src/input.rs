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
    /// Profiles of the code that ran in the windows; without profiles, the report has no functions and no source lines.
    pub profiles: Option<ProfilesFile>,
    /// Path of the trace; without a trace, the report has no MPI profile.
    pub trace: Option<PathBuf>,
    /// Name, identity and description of the study.
    pub study: StudyInfo,
    /// Source of CPI_core.
    pub core: CoreCpi,
    /// Modelled cores of the windows' code; may be empty.
    pub models: Vec<WindowCores>,
    /// Memory-level parallelism of modelled cores: their stalls are also shown divided by this number of overlapping misses; 1: no overlap.
    pub memory_parallelism: f64,
    /// Network traffic of each node; may be empty.
    pub network: Vec<NetworkCounts>,
    /// Further notes for the user, such as a sentence on how the job ended.
    pub notes: Vec<String>,
}

/// A section of the HTML page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSection {
    /// Title of the section.
    pub title: String,
    /// Content of the section: well-formed XML that loads no other resource.
    pub markup: String,
}

impl PageSection {
    /// Returns a section with the content of `Ok`, or with `Not shown:` and the reason of `Err`.
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

/// The times of OpenMP threads, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenMpText {
    /// A sentence for each program.
    pub summary: Vec<String>,
    /// The whole text.
    pub text: String,
}

impl ReportInput {
    /// Returns the profile of a window, if there is one.
    pub fn profile_of(&self, record: &WindowRecord) -> Option<&WindowProfile> {
        let mut windows = self.profiles.as_ref()?.windows.iter();
        windows.find(|profile| profile.name == record.name)
    }

    /// Returns the modelled cores of a window; empty if the input has none for this window.
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
    /// Identity of the study's exact inputs.
    pub id: String,
    /// Pairs of a label and a value, in the order in which the report shows them, such as `("nodes", "2 x 2 vCPUs at 2.9 GHz")`.
    pub description: Vec<(String, String)>,
}

/// Source of CPI_core, the cycles per instruction of the core without memory stalls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoreCpi {
    /// The nominal CPI that the vCPUs' clocks used during the run, plus the extra cycles of long instructions such as REP MOVS.
    Nominal {
        /// Origin of the nominal CPI, such as `stated in the study`.
        source: String,
    },
    /// A number that replaces the core's cycles outside MPI after the run. The number includes long instructions. Cycles inside MPI do not
    /// change.
    Replaced {
        /// Cycles per instruction.
        cpi: f64,
        /// Origin of the measurement, such as `perf stat on a Xeon E5-2690`.
        source: String,
    },
    /// A model of the core's cycles by basic block, plus the extra cycles of long instructions. The model replaces the core's cycles
    /// outside MPI in windows that have a modelled core ([`ReportInput::models`]). Cycles inside MPI do not change.
    Modelled {
        /// The model, such as `llvm-mca 22.1.8, core znver4`.
        source: String,
    },
    /// CPIs from hardware counters that replace the core's cycles outside MPI, as [`CoreCpi::Replaced`] does. The vCPUs' clocks used
    /// `whole` during the run.
    PerRank {
        /// Cycles per instruction of the whole program, for ranks without a CPI of their own and for code of no rank.
        whole: f64,
        /// Cycles per instruction by rank; may be empty.
        ranks: BTreeMap<u32, f64>,
        /// Origin of the numbers: tool, files, events and limits.
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
    /// Number of the node's sent frames that the network dropped: without a destination, or too many for the switch's buffer.
    pub dropped_frames: u64,
}

/// Reason why a report cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The trace cannot be opened. A truncated or damaged trace is no error: the report covers the part before the damage.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A window record contradicts itself.
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
    /// A value of CPI_core is not a number from 0 to 65535.
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
