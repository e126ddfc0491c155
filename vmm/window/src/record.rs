//! Measurements of windows, and their file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nodescope_plugin_api::{Context, Counters, Interval, Privilege, Statistic, Timed, VcpuPlace};
use serde::{Deserialize, Serialize};

use crate::driver::WindowOutcome;
use crate::owner::Owner;
use crate::spec::WindowSpec;

/// Measurement of a window: its times, and the counters of all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowRecord {
    /// Name of the window.
    pub name: String,
    /// Specification of the window.
    pub spec: WindowSpec,
    /// Virtual time at which the window's trigger fired, picoseconds.
    pub triggered_ps: u64,
    /// Virtual time at which the models were attached, picoseconds.
    pub opened_ps: u64,
    /// Virtual time at which measuring started, picoseconds. `None` if the window was cut during its warm-up; `nodes` then has the
    /// statistics of the warm-up.
    pub measured_from_ps: Option<u64>,
    /// Virtual time at which the models were detached, picoseconds.
    pub closed_ps: u64,
    /// True if the window measured as much as it was to measure.
    pub complete: bool,
    /// Measured intervals of a sampled window in virtual time, picoseconds; empty for other windows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intervals_ps: Vec<(u64, u64)>,
    /// Measurements of all nodes, by the nodes' numbers.
    pub nodes: Vec<NodeRecord>,
}

impl WindowRecord {
    /// Returns the virtual time at which the measured part begins, picoseconds. For a window that was cut during its warm-up, this is the
    /// opening.
    pub fn measured_from(&self) -> u64 {
        self.measured_from_ps.unwrap_or(self.opened_ps)
    }

    /// Returns the measured parts of the window in virtual time, picoseconds: one, or the intervals of a sampled window.
    pub fn measured_parts(&self) -> Vec<(u64, u64)> {
        match self.intervals_ps.is_empty() {
            true => vec![(self.measured_from(), self.closed_ps)],
            false => self.intervals_ps.clone(),
        }
    }

    /// Returns the length of all measured parts in virtual time, picoseconds.
    pub fn measured_ps(&self) -> u64 {
        let parts = self.measured_parts().into_iter();
        parts.map(|(from, to)| to.saturating_sub(from)).sum()
    }
}

/// Counters of one vCPU in one context at one privilege.
pub type Measured = (u16, Context, Privilege, Counters);

/// Measurement of a node in a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Number of the node.
    pub node: u32,
    /// Host name of the node.
    pub name: String,
    /// Nominal frequency of the node's vCPUs, hertz.
    pub frequency_hz: u64,
    /// Nominal cycles per instruction, in 1/65536. The clock advances by this value for every instruction, before stalls.
    pub nominal_cpi_65536: u32,
    /// Socket and core of each vCPU.
    pub vcpus: Vec<VcpuPlace>,
    /// Clock of each vCPU at the start and at the end of measuring, cycles.
    pub cycles: Vec<(u64, u64)>,
    /// Counters that the engine counted.
    pub counters: Vec<Measured>,
    /// Counters that the models counted.
    pub statistics: Vec<Statistic>,
    /// What a model of the core has timed; `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreRecord>,
    /// Owners of contexts: the element at index `n` is the owner of `Context(n)`.
    pub owners: Vec<Owner>,
}

/// What a model of the core has timed on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreRecord {
    /// Name of the core.
    pub core: String,
    /// Instructions that were timed, and their cycles.
    pub timed: Timed,
    /// Intervals of a sampled window; empty for other windows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<Interval>,
}

/// The content of `windows.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowsFile {
    /// Format version, [`WindowsFile::VERSION`].
    pub version: u32,
    /// Name of the study.
    pub study: String,
    /// Identity of the study's exact inputs, as in the trace.
    pub study_id: String,
    /// Measurements, in the order in which the windows opened.
    pub windows: Vec<WindowRecord>,
    /// Outcome of every window of the study, in the study's order.
    pub outcomes: Vec<WindowOutcome>,
}

/// Reason why a file of window records cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The operating system cannot read or write the file.
    #[error("cannot {action} the window records {}: {cause}", .file.display())]
    Io {
        /// Path of the record file.
        file: PathBuf,
        /// Name of the action: `read` or `write`.
        action: &'static str,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The file has a format version that this program does not know.
    #[error("the window records {} have format version {version}; this program reads version {}", .file.display(), WindowsFile::VERSION)]
    UnknownVersion {
        /// Path of the record file.
        file: PathBuf,
        /// Format version of the file.
        version: u64,
    },
    /// The file is cut or damaged, or is no file of window records.
    #[error("the window records {} are damaged at line {line}, column {column}: {cause}", .file.display())]
    Damaged {
        /// Path of the record file.
        file: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Number of the column, from 1.
        column: usize,
        /// Error of the JSON reader.
        cause: serde_json::Error,
    },
}

impl WindowsFile {
    /// The version of the format that this program writes and reads.
    pub const VERSION: u32 = 1;
    /// The file's name in a results directory.
    pub const NAME: &'static str = "windows.json";

    /// Returns the content of the file for a study.
    pub fn new(
        study: impl Into<String>,
        study_id: impl Into<String>,
        windows: Vec<WindowRecord>,
        outcomes: Vec<WindowOutcome>,
    ) -> WindowsFile {
        WindowsFile {
            version: Self::VERSION,
            study: study.into(),
            study_id: study_id.into(),
            windows,
            outcomes,
        }
    }

    /// Returns the name of the file that is written first and then replaces [`WindowsFile::NAME`].
    pub fn partial_name() -> String {
        format!("{}.partial", Self::NAME)
    }

    /// Writes the file. An existing file is replaced as a whole or not at all.
    pub fn write(&self, file: impl AsRef<Path>) -> Result<(), RecordError> {
        let file = file.as_ref();
        let failed = |cause| RecordError::Io {
            file: file.into(),
            action: "write",
            cause,
        };
        let text = serde_json::to_vec(self).map_err(|cause| failed(cause.into()))?;
        let mut partial = file.as_os_str().to_owned();
        partial.push(".partial");
        fs::write(&partial, text)
            .and_then(|()| fs::rename(&partial, file))
            .map_err(failed)
    }

    /// Reads a file of window records, and checks its version.
    pub fn read(file: impl AsRef<Path>) -> Result<WindowsFile, RecordError> {
        #[derive(Deserialize)]
        struct Version {
            version: u64,
        }
        let file = file.as_ref();
        let text = fs::read(file).map_err(|cause| RecordError::Io {
            file: file.into(),
            action: "read",
            cause,
        })?;
        let damaged = |cause: serde_json::Error| RecordError::Damaged {
            file: file.into(),
            line: cause.line(),
            column: cause.column(),
            cause,
        };
        let Version { version } = serde_json::from_slice(&text).map_err(damaged)?;
        if version != u64::from(Self::VERSION) {
            return Err(RecordError::UnknownVersion {
                file: file.into(),
                version,
            });
        }
        serde_json::from_slice(&text).map_err(damaged)
    }
}
