//! Reports to the user about a run, during the run and at its end.

use nodescope_counters::{CountersError, Measurement};
use nodescope_devices::virtio::block::ImageFault;
use nodescope_fabric::{CaptureError, PortCounts};
use nodescope_machine::node::NodeError;
use nodescope_profile::{ProfileError, ProfilesFile};
use nodescope_trace::WriteError;
use nodescope_window::{ModelError, RecordError, SpecFault, WindowsFile};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::build::BuildError;
use crate::distribution::PeerError;
use crate::engines::EngineSpan;
use crate::folder::FolderError;
use crate::saving::Saved;
use crate::snapshot::SnapshotFault;

/// Phase of a run, or of a node in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The kernel and the user space start.
    Boot,
    /// The job runs on the cluster.
    Job,
    /// A window warms up.
    WarmUp,
    /// A window is open and measures.
    Window,
    /// The job is over, nodes power off.
    PowerOff,
}

impl Phase {
    /// Returns the phase's name.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Boot => "boot",
            Phase::Job => "job",
            Phase::WarmUp => "warm-up",
            Phase::Window => "window",
            Phase::PowerOff => "power-off",
        }
    }
}

/// Progress of the open window.
#[derive(Clone, Debug)]
pub struct WindowProgress {
    /// Name of the window.
    pub name: String,
    /// Instructions, summed over all nodes, until the window closes; of a window that measures time, until its warm-up ends. `None` if the
    /// guest closes the window, or if a window that measures time has warmed up.
    pub instructions_left: Option<u64>,
    /// Virtual time that the window has yet to measure, picoseconds, not counting a warm-up; `None` if the window does not measure time.
    pub ps_left: Option<u64>,
}

/// Progress of a run.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Virtual time since power-on, picoseconds.
    pub virtual_ps: u64,
    /// Instructions retired by each guest: the nodes, and the file server behind them.
    pub instructions: Vec<u64>,
    /// Phase of each node, without a file server.
    pub phases: Vec<Phase>,
    /// Progress of the open window; `None` if no window is open.
    pub window: Option<WindowProgress>,
}

/// Observer of a run. All calls come from the thread that called [`run`](crate::run()).
pub trait Observer {
    /// Reports progress after every batch of quanta.
    fn progress(&mut self, progress: &dyn Fn() -> Progress);
    /// Reports that the cluster begins a phase; the name is that of the open window, if one is open.
    fn phase(&mut self, _phase: Phase, _window: Option<&str>, _progress: &dyn Fn() -> Progress) {}
    /// Reports a message of a node to the user.
    fn message(&mut self, node: u32, text: &str);
    /// Reports that a file of a node is completely among the results, by its name there.
    fn file(&mut self, _node: u32, _name: &str) {}
    /// Reports that a piece of a node's file was refused, with the file's name and the reason.
    fn refused_file(&mut self, _node: u32, _name: &str, _why: &dyn std::fmt::Display) {}
    /// Reports console output of a node.
    fn console(&mut self, node: u32, bytes: &[u8]);
    /// Returns bytes typed at a node's console since the last call.
    fn typed(&mut self, _node: u32) -> Vec<u8> {
        Vec::new()
    }
    /// Reports a note of the run itself to the user.
    fn note(&mut self, _text: &str) {}
    /// Returns the observer's state for a snapshot.
    fn state(&self) -> Vec<u8> {
        Vec::new()
    }
    /// Loads the observer's state from a snapshot.
    ///
    /// # Errors
    ///
    /// A sentence about a state that cannot be read.
    fn load(&mut self, _state: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

/// End of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All nodes have powered off.
    PoweredOff,
    /// The user interrupted the run.
    Interrupted,
    /// The virtual time has reached the study's time limit.
    TimeLimit,
    /// A guest kernel panicked.
    GuestPanic {
        /// Number of the node whose kernel panicked.
        node: u32,
        /// The line of the console with the panic's message.
        line: String,
    },
    /// A guest reset itself.
    Reset {
        /// Number of the node that reset itself.
        node: u32,
    },
    /// Every vCPU of every node sleeps, and nothing will wake one up.
    Hung,
    /// Ranks of the MPI program wait for ever, for each other or for ranks that have ended.
    Deadlock {
        /// Ranks that can never proceed.
        ranks: Vec<u32>,
    },
    /// A snapshot was taken, after which the run was to end.
    Saved,
    /// A peer process of the run died or could not continue.
    PeerLost {
        /// Error with the process and the reason.
        why: PeerError,
    },
    /// Node 0 has powered off, but other nodes have not.
    Stragglers {
        /// Numbers of the nodes that still ran.
        nodes: Vec<u32>,
    },
}

/// Outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Reason why the run ended.
    pub ending: Ending,
    /// Exit status of the job; `None` if no node has reported one.
    pub job_status: Option<i32>,
    /// Virtual time at the end of the run, picoseconds.
    pub virtual_ps: u64,
    /// Instructions retired by each node.
    pub instructions: Vec<u64>,
    /// Network counts of each node.
    pub network: Vec<PortCounts>,
    /// Measurements of the windows that opened, and how each window ended.
    pub windows: WindowsFile,
    /// Profiles of the windows; `None` if the study asks for none.
    pub profiles: Option<ProfilesFile>,
    /// Intervals of virtual time with the engine that executed the guests.
    pub engines: Vec<EngineSpan>,
    /// Counts of the job by the host's hardware counters; `None` if the study does not count, or the job did not start.
    pub counted: Option<Measurement>,
    /// Snapshot that was taken, if one was.
    pub saved: Option<Saved>,
    /// Warnings for the user, such as hypercalls that made no sense and windows of unknown names.
    pub warnings: Vec<String>,
}

/// Reason for which a run could not continue. What was recorded before is among the results.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum RunError {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A node that runs in another process failed.
    #[error("{text}")]
    Elsewhere { text: String, of_host: bool },
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A snapshot or KVM, which need all nodes in one process.
    #[error("a run over several processes {what}; run the study in one process")]
    Distributed { what: &'static str },
    /// A disk image is damaged or cannot be read, so that guests cannot have read its true contents.
    #[error("{fault}{}", fix(fault))]
    Disk { fault: ImageFault },
    #[error(transparent)]
    Results(#[from] FolderError),
    #[error(transparent)]
    Trace(#[from] WriteError),
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(transparent)]
    Window(#[from] SpecFault),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Records(#[from] RecordError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotFault),
    #[error(transparent)]
    Counters(#[from] CountersError),
}

impl RunError {
    /// Returns whether each process of a run finds the error at the same time.
    pub(crate) fn is_known_to_all(&self) -> bool {
        matches!(self, RunError::Node(_) | RunError::Elsewhere { .. })
    }
}

/// Returns advice to the user about a fault of a disk image; empty if there is none.
fn fix(fault: &ImageFault) -> &'static str {
    match fault {
        ImageFault::Damaged { .. } => {
            "; build the image again: nodescope image build --force, with the study's file where that adds packages"
        }
        ImageFault::Read { .. } => "",
    }
}
