//! State of a run between two batches of quanta, without the states of its nodes and the contents of its files.

use nodescope_fabric::PortState;
use nodescope_profile::WindowProfile;
use nodescope_trace::{AssemblerState, WriterState};
use nodescope_window::{DriverState, Owners, WindowRecord};
use serde::{Deserialize, Serialize};

use crate::engines::EnginesState;
use crate::outcome::Phase;

/// State of a `NodeMonitor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMonitorState {
    pub(crate) assembler: AssemblerState,
    pub(crate) owners: Owners,
    pub(crate) line: Vec<u8>,
    pub(crate) shown: u64,
    pub(crate) not_shown: u64,
    pub(crate) unstorable_files: Option<(String, u64)>,
    pub(crate) panic: Option<String>,
    pub(crate) phase: Phase,
    pub(crate) booted: bool,
}

/// State of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunState {
    pub(crate) now_ps: u64,
    pub(crate) active_ps: u64,
    pub(crate) searched_for_deadlock: bool,
    pub(crate) saved_instructions: u64,
    pub(crate) saved_ps: u64,
    pub(crate) job_status: Option<i32>,
    pub(crate) off_since: Option<u64>,
    pub(crate) warnings: Vec<String>,
    pub(crate) monitors: Vec<NodeMonitorState>,
    /// Names of guests' files among the results. `begun` are the unfinished ones, whose last piece has not arrived.
    pub(crate) files: Vec<String>,
    pub(crate) begun: Vec<String>,
    pub(crate) trace: WriterState,
    pub(crate) ports: Vec<PortState>,
    /// State of the run's observer, as `Observer::state` returned it.
    pub(crate) observer: Vec<u8>,
}

/// State of a run's windows and of its choice of engines, with the measurements of closed windows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowsState {
    pub(crate) driver: DriverState,
    pub(crate) records: Vec<WindowRecord>,
    pub(crate) profiles: Vec<WindowProfile>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) files: Vec<(String, Vec<u8>)>,
    pub(crate) engines: EnginesState,
}

impl RunState {
    /// Checks the values on which arithmetic relies, since the state comes from a file. `nodes` is the number of nodes in the snapshot.
    pub(crate) fn check(&self, nodes: usize) -> Result<(), String> {
        if self.monitors.len() != nodes {
            let found = self.monitors.len();
            return Err(format!(
                "it is of {found} nodes, and the snapshot has {nodes}"
            ));
        }
        let times = [Some(self.active_ps), Some(self.saved_ps), self.off_since];
        if times.into_iter().flatten().any(|ps| ps > self.now_ps) {
            return Err("it knows times that lie after the snapshot".into());
        }
        Ok(())
    }
}
