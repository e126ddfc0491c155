//! Configuration of a run: a study in which every path is resolved and every quantity is a number.

use std::path::PathBuf;
use std::sync::Arc;

use nodescope_counters::guest::GuestCounting;
use nodescope_fabric::LinkConfig;
use nodescope_image::{BlockHashes, NodeCommandLine};
use nodescope_machine::cpuid::CpuidOptions;
use nodescope_machine::files::FileLimits;
use nodescope_machine::topology::NodeTopology;
use nodescope_plugin_api::{ProfiledBlock, Registry};
use nodescope_window::{Trigger, WindowSpec};
use serde::{Deserialize, Serialize};

/// Engine that executes the guests' instructions between windows. Windows always run on the portable engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// The portable engine. The same study gives the same bytes in each run.
    #[default]
    Portable,
    /// The KVM engine between windows, the portable engine in windows.
    Kvm,
    /// KVM until the trigger fires or a window opens, the portable engine from then on. `None`: until a window opens.
    FastForward(Option<Trigger>),
}

/// Default length of a quantum on KVM, picoseconds. Each end of a quantum brings every vCPU out of its guest. A
/// quantum as short as a network's latency would therefore leave no time to run.
pub const KVM_QUANTUM_PS: u64 = 100_000_000;

impl Engine {
    /// Returns whether KVM executes any of the guests' instructions.
    pub fn uses_kvm(&self) -> bool {
        *self != Engine::Portable
    }
}

/// The file system that all nodes share, and the file server: a node beside the cluster's, which serves the files and runs no ranks.
#[derive(Clone, Debug)]
pub struct SharedFiles {
    /// Folder in which the nodes mount the file system.
    pub path: String,
    /// Size of the file system, bytes.
    pub bytes: u64,
    /// Topology of the file server.
    pub server: NodeTopology,
}

/// What one execution of a basic block costs.
#[derive(Clone, Debug)]
pub struct KnownCost {
    /// The block. Its bytes, its offset within the page and the width of its code segment tell it from others.
    pub block: ProfiledBlock,
    /// Cost of one execution in sixteenths of a cycle.
    pub sixteenths: u64,
}

/// Configuration of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Name of the study, for results and snapshots.
    pub name: String,
    /// Hash of the study's exact inputs, in hexadecimal.
    pub study_id: String,
    /// Seed of everything that is random in the guests.
    pub seed: u64,
    /// Number of the cluster's nodes.
    pub nodes: u32,
    /// File system that all nodes share; `None`: no such file system, and no file server.
    pub shared: Option<SharedFiles>,
    /// Topology of each node: sockets, cores, threads, caches, memory, clock.
    pub topology: NodeTopology,
    /// CPU features that are hidden from guests, and the hypervisor that they see.
    pub cpuid: CpuidOptions,
    /// Features without which the study is refused, by the names of `/proc/cpuinfo`.
    pub required_features: Vec<String>,
    /// Largest set of the nodes' CPU features, by the names of `/proc/cpuinfo`: the features in the snapshot from which the nodes continue.
    /// `None`: all features that the study, the engines and the host allow.
    pub offered_features: Option<Vec<String>>,
    /// Engine that executes the guests' instructions between windows.
    pub engine: Engine,
    /// Length of a quantum on KVM, picoseconds.
    pub kvm_quantum_ps: u64,
    /// Counters of the host's processor that count the guests of this run while KVM runs them; `None` if the study does not count.
    pub counting: Option<Arc<GuestCounting>>,
    /// True if hypercalls use the doorbell even where the portable engine executes everything.
    pub doorbell: bool,
    /// Cycles of the virtual clock that an instruction takes, in units of 1/65536.
    pub nominal_cpi: u32,
    /// True if guest code is translated to host code; false: all guest code is interpreted, with the same results.
    pub translate: bool,
    /// Path of the Linux kernel.
    pub kernel: PathBuf,
    /// Path of the initial RAM file system.
    pub initramfs: PathBuf,
    /// Path of the root disk's image, which all nodes read and none writes.
    pub root: PathBuf,
    /// Hashes of the root image's blocks, each checked when the block is first read; `None`: blocks are not checked.
    pub root_blocks: Option<BlockHashes>,
    /// The job disk's contents (`nodescope_image::job_disk`).
    pub job_disk: Vec<u8>,
    /// Latency and bandwidth of each node's link.
    pub link: LinkConfig,
    /// Largest payload of a frame, bytes.
    pub mtu: u16,
    /// True if the network card computes checksums and splits TCP segments for the guest.
    pub offload: bool,
    /// True if all frames are captured to a pcap file among the results.
    pub capture: bool,
    /// True if MPI ranks are preloaded with the MPI tracer.
    pub trace: bool,
    /// True if MPI ranks are preloaded with the OpenMP tracer.
    pub openmp: bool,
    /// MPI slots of each node in the order of the nodes; a single number is for all nodes. Empty: as many as a node has vCPUs.
    pub slots: Vec<u32>,
    /// True if nodes start a shell on the console in place of the job.
    pub console: bool,
    /// Kernel parameters in addition to those that every node gets.
    pub kernel_parameters: Vec<String>,
    /// True if nodes read the files that MPI jobs need (`/opt/nodescope/warm` of the image) while they boot.
    pub warm: bool,
    /// Time of the real-time clocks at power-on, seconds since 1970-01-01 UTC.
    pub epoch: i64,
    /// Time between a disk's transfer and its interrupt, nanoseconds.
    pub disk_latency_ns: u64,
    /// Bandwidth of a disk in bytes per second.
    pub disk_bandwidth: u64,
    /// Limits of the files that guests may put among the results.
    pub file_limits: FileLimits,
    /// Program that makes the names of windows' code in a process of its own ([`nodescope_symbols::Names::in_process`]); `None`: this
    /// process makes them, within the limits of that crate.
    pub names_program: Option<PathBuf>,
    /// What code costs, by which clocks advance from power-on on, on the portable engine; empty: each instruction has its nominal cost. Windows
    /// with a core replace these costs.
    pub code_costs: Arc<[KnownCost]>,
    /// True for callers that give nodes a model of the core themselves, not by a window: clocks can then go by costs of code.
    pub core_without_window: bool,
    /// Measurement windows of the study.
    pub windows: Vec<WindowSpec>,
    /// Registered models that windows may attach.
    pub registry: Registry,
    /// Virtual time at which the study ends at the latest, picoseconds.
    pub time_limit_ps: u64,
    /// Virtual time without hypercalls, polls aside, after which the run searches for a deadlock of the MPI program and ends if there is
    /// one, picoseconds; `None`: the run does not search for deadlocks.
    pub deadlock_ps: Option<u64>,
    /// Number of host threads that run nodes.
    pub host_threads: usize,
}

impl ClusterConfig {
    /// Returns the number of guests: the cluster's nodes, and the file server if there is one. The file server has the last number.
    pub fn guests(&self) -> u32 {
        self.nodes + u32::from(self.shared.is_some())
    }

    /// Returns the topology of a guest.
    pub fn topology_of(&self, guest: u32) -> &NodeTopology {
        match &self.shared {
            Some(shared) if guest >= self.nodes => &shared.server,
            _ => &self.topology,
        }
    }

    /// Returns the name of a guest: `node0`, `node1`, …, and `fileserver`.
    pub fn name_of(&self, guest: u32) -> String {
        NodeCommandLine::new(guest, self.nodes, 0).name()
    }

    /// Returns the name of a guest's console log among the results.
    pub fn console_log(&self, guest: u32) -> String {
        format!("console-{}.log", self.name_of(guest))
    }

    /// Returns whether hypercalls use the doorbell, which is required where KVM executes any of the guests' instructions.
    pub fn doorbell(&self) -> bool {
        self.doorbell || self.engine.uses_kvm()
    }
}
