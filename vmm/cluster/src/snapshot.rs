//! Snapshots of a whole run: the contents of the file, and the nodes that are restored from it. `vmm/cluster/SNAPSHOT.md` describes the
//! sections.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use nodescope_config::quantity::{Bytes, Time};
use nodescope_fabric::{Switch, SwitchStateError};
use nodescope_machine::node::{Node, NodeStatus};
use nodescope_machine::state::{NodeState, StateError};
use nodescope_memory::Ram;
use nodescope_snapshot::{Kind, Snapshot, SnapshotError, SnapshotWriter, Verify};
use nodescope_window::StateFault;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use thiserror::Error;

use crate::agreement::{Agreement, Difference, MAY_DIFFER_IN_CLONES, SHARED};
use crate::build::{BuildError, build_from};
use crate::config::ClusterConfig;
use crate::outcome::RunError;
use crate::state::{RunState, WindowsState};

/// Section with the description of a snapshot ([`About`]), as JSON.
const ABOUT: &str = "about";
/// Name of the section with the state of the run. `WINDOWS` is the section with the state of its windows, as JSON.
const RUN: &str = "run";
const WINDOWS: &str = "windows";
/// Name of the section with the packets captured so far. `TRACE` is the section with the trace as far as it is written.
pub(crate) const CAPTURE: &str = "results/capture";
pub(crate) const TRACE: &str = "results/trace";

/// Returns the name of the section with a node's state.
fn node(index: usize) -> String {
    format!("node{index}/state")
}

fn ram(index: usize) -> String {
    format!("node{index}/ram")
}

pub(crate) fn console(index: usize) -> String {
    format!("results/console{index}")
}

/// Returns the name of the section with a guest's file. The number is the file's index in the run's state, since guests choose names
/// freely.
pub(crate) fn file(index: usize) -> String {
    format!("results/file{index}")
}

/// Reason for which a snapshot cannot be taken, or a run cannot continue from one.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum SnapshotFault {
    #[error(transparent)]
    File(#[from] SnapshotError),
    #[error("cannot restore results in {}: {source}", .folder.display())]
    Restore { folder: PathBuf, source: io::Error },
    #[error("node {node} cannot be saved: {source}")]
    Save { node: usize, source: StateError },
    #[error("the snapshot {} does not fit node {node}: {source}", .path.display())]
    Node {
        path: PathBuf,
        node: usize,
        source: StateError,
    },
    #[error(transparent)]
    Windows(#[from] StateFault),
    #[error("the snapshot {} does not fit the network: {source}", .path.display())]
    Switch {
        path: PathBuf,
        source: SwitchStateError,
    },
    #[error("the state of the run in the snapshot {} cannot be used: {problem}", .path.display())]
    State { path: PathBuf, problem: String },
    #[error(
        "the study does not agree with the snapshot {}, whose cluster was booted otherwise:{}{}",
        .path.display(), list(differences), hint
    )]
    Differs {
        path: PathBuf,
        differences: Vec<Difference>,
        hint: &'static str,
    },
    #[error(
        "study.time_limit ends the study at {} of virtual time, and the snapshot {} was taken at {}; raise the limit",
        Time(*.limit_ps), .path.display(), Time(*.taken_ps)
    )]
    TimeLimit {
        path: PathBuf,
        limit_ps: u64,
        taken_ps: u64,
    },
    #[error(
        "no further snapshot can be taken at {at}, which lies before the snapshot that the run begins from; a run without --from and with cluster.boot = \"each\" begins at power-on"
    )]
    TooLate { at: String },
}

impl SnapshotFault {
    /// Returns whether the host is at fault, and not the snapshot or the study.
    pub fn is_hosts(&self) -> bool {
        match self {
            SnapshotFault::File(error) => match error {
                SnapshotError::Io { source, .. } => source.kind() != std::io::ErrorKind::NotFound,
                SnapshotError::Map { .. } | SnapshotError::Memory(_) => true,
                _ => false,
            },
            SnapshotFault::Save { .. } | SnapshotFault::Restore { .. } => true,
            _ => false,
        }
    }
}

/// Advice for a study that differs from the snapshot only in values that clones may change, such as the number of nodes or the job.
const CLONING_HINT: &str = "\nmore nodes, and other jobs, can begin from a snapshot of one node that was taken with --snapshot-at boot";

fn list(differences: &[Difference]) -> String {
    differences.iter().map(|d| format!("\n  {d}")).collect()
}

/// Description of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Name of the snapshot.
    pub name: String,
    /// Name of the study whose run was saved.
    pub study: String,
    /// Hash of the study's exact inputs, in hexadecimal.
    pub study_id: String,
    /// Moment at which the snapshot was taken, in words.
    pub at: String,
    /// Virtual time of the snapshot, picoseconds.
    pub virtual_ps: u64,
    /// Instructions that each node had retired, and the file server behind the nodes.
    pub instructions: Vec<u64>,
    /// Names of the windows that had closed.
    pub windows: Vec<String>,
    /// Values from which the cluster was booted.
    pub agreement: Agreement,
    /// True if the snapshot has a single node that has just booted. Several clones of the node may then continue, with another job.
    #[serde(rename = "renewable")]
    pub cloneable: bool,
}

impl About {
    /// Returns the number of the cluster's nodes: of the guests without the file server, which is the last one.
    pub fn nodes(&self) -> usize {
        let shared = self.agreement.rows().any(|(key, _)| key == SHARED);
        self.instructions.len() - usize::from(shared).min(self.instructions.len())
    }

    /// Reads the description, without the other contents of the snapshot. Damage in those contents is not noticed.
    ///
    /// # Errors
    ///
    /// See [`Origin::open`].
    pub fn read(path: &Path) -> Result<Self, SnapshotFault> {
        let snapshot = Snapshot::open_with(path, Verify::Table)?;
        Ok(snapshot.json(ABOUT)?)
    }
}

/// Writer of a snapshot, one section after the other.
pub(crate) struct Writing(SnapshotWriter);

impl Writing {
    pub(crate) fn create(path: &Path) -> Result<Self, SnapshotFault> {
        Ok(Self(SnapshotWriter::create(path)?))
    }

    pub(crate) fn node(&mut self, index: usize, of: &mut Node) -> Result<(), SnapshotFault> {
        let state = of.save_state();
        let state = state.map_err(|source| SnapshotFault::Save {
            node: index,
            source,
        })?;
        self.parts(index, &state, of.ram())
    }

    /// Writes the state and the RAM of a node.
    pub(crate) fn parts(
        &mut self,
        index: usize,
        state: &NodeState,
        of: &Ram,
    ) -> Result<(), SnapshotFault> {
        self.0.state(&node(index), state)?;
        self.0.ram(&ram(index), of)?;
        Ok(())
    }

    pub(crate) fn file(&mut self, section: &str, path: &Path) -> Result<(), SnapshotFault> {
        self.0.file(section, path)?;
        Ok(())
    }

    /// Writes the remaining sections, and returns the snapshot's size on disk in bytes.
    pub(crate) fn finish(
        mut self,
        about: &About,
        run: &RunState,
        windows: &WindowsState,
    ) -> Result<u64, SnapshotFault> {
        self.0.json(ABOUT, about)?;
        self.0.json(WINDOWS, windows)?;
        self.0.state(RUN, run)?;
        Ok(self.0.finish()?)
    }
}

/// Reader of a section's contents.
pub(crate) struct Content {
    file: File,
    _dir: TempDir,
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

/// A snapshot from which a run continues.
pub struct Origin {
    path: PathBuf,
    snapshot: Snapshot,
    about: About,
}

impl Origin {
    /// Opens a snapshot and reads its description.
    ///
    /// # Errors
    ///
    /// A file that is no snapshot, of another version, or damaged.
    pub fn open(path: &Path) -> Result<Self, SnapshotFault> {
        let snapshot = Snapshot::open(path)?;
        let about = snapshot.json(ABOUT)?;
        Ok(Self {
            path: path.into(),
            snapshot,
            about,
        })
    }

    /// Returns the path of the snapshot's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version of nodescope that wrote the snapshot.
    pub fn program(&self) -> &str {
        &self.snapshot.info().nodescope
    }

    /// Returns a line of text for each section: name, offset, length, and how it is stored.
    pub fn sections(&self) -> impl Iterator<Item = String> {
        self.snapshot.info().sections.iter().map(|section| {
            let stored = match section.kind {
                Kind::Ram => "with holes where it is zero".to_owned(),
                _ => format!("{} stored", Bytes(section.stored)),
            };
            format!(
                "{:<20} at byte {:>12}: {}, {stored}",
                section.name,
                section.offset,
                Bytes(section.length),
            )
        })
    }

    /// Returns the description of the snapshot.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Makes a study's configuration take over the properties of the platform that guests learnt when they booted: the transport of
    /// hypercalls, and the features of their CPUs. Nodes of the study that would have more features lose these. A study on the portable
    /// engine can therefore continue from a cluster that KVM has booted.
    pub fn adopt(&self, config: &mut ClusterConfig) {
        self.about.agreement.adopt(config);
    }

    /// Checks that a study agrees with the snapshot. `image` is the hash of the files that the nodes boot. Returns whether the study's
    /// nodes are clones of the snapshot's node: the study has another number of nodes or another job.
    ///
    /// # Errors
    ///
    /// Keys whose values in the study and the snapshot differ, or a time limit of the study that has passed before the snapshot.
    pub fn check(&self, config: &ClusterConfig, image: &str) -> Result<bool, RunError> {
        let study = Agreement::of(config, image)?;
        let of = |may_differ| self.about.agreement.differences(&study, may_differ);
        let may_differ = match self.about.cloneable {
            true => &MAY_DIFFER_IN_CLONES[..],
            false => &[],
        };
        let differences = of(may_differ);
        if !differences.is_empty() {
            let cloning = !self.about.cloneable && of(&MAY_DIFFER_IN_CLONES).is_empty();
            return Err(SnapshotFault::Differs {
                path: self.path.clone(),
                differences,
                hint: match cloning {
                    true => CLONING_HINT,
                    false => "",
                },
            }
            .into());
        }
        if self.about.virtual_ps >= config.time_limit_ps {
            return Err(SnapshotFault::TimeLimit {
                path: self.path.clone(),
                limit_ps: config.time_limit_ps,
                taken_ps: self.about.virtual_ps,
            }
            .into());
        }
        Ok(!of(&[]).is_empty())
    }

    /// Returns all nodes of the snapshot, or clones of its node, ready to continue. [`crate::run_with`] does this for a run.
    ///
    /// # Errors
    ///
    /// A snapshot that cannot be read, or does not fit the configuration; nodes that cannot be built.
    pub fn nodes(
        &self,
        config: &ClusterConfig,
        image: &str,
        job_disk: &Path,
    ) -> Result<Vec<Node>, RunError> {
        let cloning = self.check(config, image)?;
        let (run, _) = self.state()?;
        let nodes = 0..config.guests() as usize;
        Ok(self.build(config, job_disk, &run, cloning, nodes)?.1)
    }

    /// Builds the switch and the nodes with these numbers, and restores their states from the snapshot. With `cloning`, all are clones of
    /// the snapshot's node.
    pub(crate) fn build(
        &self,
        config: &ClusterConfig,
        job_disk: &Path,
        run: &RunState,
        cloning: bool,
        numbers: Range<usize>,
    ) -> Result<(Switch, Vec<Node>), RunError> {
        let of = |index| if cloning { 0 } else { index };
        // Clones share the mapped memory of the snapshot's node. Other nodes get memory of their own, which can be in large pages of the
        // host.
        let memory = |index| -> Result<Ram, RunError> {
            let section = ram(of(index));
            let layout = &config.topology_of(index as u32).socket_memory;
            if cloning {
                let shared = self.snapshot.ram(&section, layout);
                return Ok(shared.map_err(SnapshotFault::from)?);
            }
            let own = Ram::new(layout).map_err(BuildError::from)?;
            let read = self.snapshot.read_ram(&section, &own);
            read.map_err(SnapshotFault::from)?;
            Ok(own)
        };
        let rams = (numbers.clone())
            .map(memory)
            .collect::<Result<Vec<_>, _>>()?;
        let first = numbers.start;
        let (mut switch, mut nodes) = build_from(config, job_disk, first, rams, cloning)?;
        for (index, built) in numbers.zip(&mut nodes) {
            let state = self.snapshot.state(&node(of(index)));
            let mut state: NodeState = state.map_err(SnapshotFault::from)?;
            self.check_time(&state, built, run.now_ps)?;
            let failed = |source| SnapshotFault::Node {
                path: self.path.clone(),
                node: index,
                source,
            };
            if cloning {
                let own = built.save_state().map_err(failed)?;
                if !state.chipset.become_clone(&own.chipset) {
                    return Err(SnapshotFault::State {
                        path: self.path.clone(),
                        problem: "its node has other devices, or has written to a disk".into(),
                    }
                    .into());
                }
            }
            built.load_state(state).map_err(failed)?;
        }
        if !cloning {
            let loaded = switch.load(run.ports.clone());
            loaded.map_err(|source| SnapshotFault::Switch {
                path: self.path.clone(),
                source,
            })?;
        }
        Ok((switch, nodes))
    }

    /// Checks that the clock of a running node shows the time of the run, and that of another node no later time.
    fn check_time(&self, state: &NodeState, node: &Node, now_ps: u64) -> Result<(), SnapshotFault> {
        let reached = node.clock().cycles(now_ps);
        let fits = match state.status {
            NodeStatus::Running => state.now == reached,
            _ => state.now <= reached,
        };
        match fits {
            true => Ok(()),
            false => Err(SnapshotFault::State {
                path: self.path.clone(),
                problem: format!(
                    "node {} has reached cycle {}, and the run cycle {reached}",
                    node.index(),
                    state.now
                ),
            }),
        }
    }

    /// Reads and checks the state of the run, and reads the state of its windows.
    pub(crate) fn state(&self) -> Result<(RunState, WindowsState), SnapshotFault> {
        let run: RunState = self.snapshot.state(RUN)?;
        run.check(self.about.instructions.len())
            .map_err(|problem| SnapshotFault::State {
                path: self.path.clone(),
                problem,
            })?;
        let windows = self.snapshot.json(WINDOWS)?;
        Ok((run, windows))
    }

    /// Returns a reader of a section's contents, which may have any length. The contents are in a temporary file in this folder.
    pub(crate) fn content(&self, section: &str, folder: &Path) -> Result<Content, SnapshotFault> {
        let failed = |source| SnapshotFault::Restore {
            folder: folder.into(),
            source,
        };
        let dir = tempfile::Builder::new()
            .prefix(".nodescope-")
            .tempdir_in(folder)
            .map_err(failed)?;
        let path = dir.path().join("content");
        self.snapshot.extract(section, &path)?;
        let file = File::open(path).map_err(failed)?;
        Ok(Content { file, _dir: dir })
    }

    /// Returns whether the snapshot has a section of this name.
    pub(crate) fn has(&self, section: &str) -> bool {
        self.snapshot.has(section)
    }

    /// Writes the contents of a section into a file.
    pub(crate) fn extract(&self, section: &str, path: &Path) -> Result<(), SnapshotFault> {
        self.snapshot.extract(section, path)?;
        Ok(())
    }
}
