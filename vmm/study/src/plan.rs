//! Plan of a checked study: the cluster, the job and the measurements.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nodescope_fabric::LinkConfig;
use nodescope_hypercall::CallInterval;
use nodescope_image::{ImageSpec, NodeCommandLine};
use nodescope_machine::cpuid::CpuidOptions;
use nodescope_machine::file_server;
use nodescope_machine::files::FileLimits;
use nodescope_machine::topology::{CacheKind, NodeTopology};
use nodescope_plugin_api::Registry;
use nodescope_plugin_cache::CacheConfig;
use nodescope_plugin_core::Parallelism;
use nodescope_window::{MemorySpec, Trigger, WindowSpec};
use serde::Serialize;

use crate::collect::Collect;
use nodescope_config::problem::Position;
use nodescope_config::quantity::{BitRate, ByteRate, Bytes, Cpi, Frequency, Time, counted};

/// A study file, read and checked. The serialised form is what decides the results, except for the contents of the image and the job disk.
/// The topology's caches and distances come from the same lines of the file as the cache model and the memory model.
#[derive(Clone, Debug, Serialize)]
pub struct Study {
    /// Path of the study's file, as the user named it.
    #[serde(skip)]
    pub file: PathBuf,
    /// Text of the file, which a run stores with the results.
    #[serde(skip)]
    pub text: String,
    /// Name of the study.
    pub name: String,
    /// Seed of all random numbers, such as machine ids and the entropy devices' numbers.
    pub seed: u64,
    /// Engine that executes the guests.
    pub engine: Engine,
    /// Part of the run that KVM executes before the portable engine; `None`: no fast-forward.
    #[serde(skip_serializing_if = "is_none")]
    pub fast_forward: Option<FastForward>,
    /// Length of a quantum while KVM executes the guests. The serialised form, and so the study's identity, leaves out the default.
    #[serde(skip_serializing_if = "is_default_quantum")]
    pub kvm_quantum: Time,
    /// Number of host threads on which nodes run; never affects the result. None: one for each core of the host.
    #[serde(skip)]
    pub host_threads: Option<usize>,
    /// Virtual time after which the study is stopped.
    pub time_limit: Time,
    /// Time of the host after which the study is stopped, with its results until then. None: no limit.
    #[serde(skip)]
    pub host_time_limit: Option<Time>,
    /// Virtual time without progress of the MPI program after which the run looks for a deadlock, which ends the study; 0: no search.
    pub deadlock: Time,
    /// Nominal cycles per instruction of the virtual clock (CPI_core of the report).
    pub core_cpi: Cpi,
    /// Source of `core_cpi`, in words.
    pub cpi_source: String,
    /// CPI_core by rank, if `core_cpi` comes from files of counters; otherwise `None`. The map is empty if the counters cover only the
    /// program as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_cpi: Option<BTreeMap<u32, Cpi>>,
    /// True if hardware counters of the host count the guests while KVM runs them. The report then takes CPI_core from these counters.
    #[serde(skip_serializing_if = "is_false")]
    pub counts_guests: bool,
    /// Image that the guests boot.
    #[serde(skip)]
    pub image: ImageSource,
    /// Kernel parameters that are added to nodescope's own.
    pub kernel_parameters: Vec<String>,
    /// Number of nodes. All nodes have the same hardware.
    pub nodes: u32,
    /// True if one node boots, and all nodes are clones of it.
    #[serde(skip_serializing_if = "is_false")]
    pub boots_once: bool,
    /// File system that all nodes share; `None`: the nodes have no file system in common.
    #[serde(skip_serializing_if = "is_none")]
    pub shared: Option<SharedFileSystem>,
    /// Sockets, cores, memory, caches and clock of a node.
    pub topology: NodeTopology,
    /// Cores whose cycles are modelled, by the names of LLVM's `-mcpu`; the report shows the stack of the first, the others beside it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<String>,
    /// Memory-level parallelism: number of misses that a core waits for at a time. The report shows a further CPI with stalls divided by
    /// this number.
    #[serde(skip_serializing_if = "adds_every_stall")]
    pub memory_parallelism: Parallelism,
    /// Processor features hidden from the guests.
    pub cpuid: CpuidOptions,
    /// Processor features without which the study is refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required_features: Vec<String>,
    /// Timing of a node's disks.
    pub disk: Disk,
    /// The network between the nodes.
    pub network: Network,
    /// Job of the cluster.
    pub job: Job,
    /// Models that the study can name.
    #[serde(skip)]
    pub registry: Registry,
    /// Shared libraries of models.
    #[serde(skip)]
    pub plugins: Vec<PathBuf>,
    /// Cache model of a node (plugin `cache`).
    pub caches: CacheConfig,
    /// Memory model of a node (plugin `numa`).
    pub memory: MemorySpec,
    /// Measurement windows in the order of the file; their models are `caches` and `memory`.
    pub windows: Vec<WindowSpec>,
    /// Folder of the results. A relative path is relative to the current folder.
    #[serde(skip)]
    pub results: PathBuf,
    /// Limits of the files that guests may put into the results. The serialised form, and so the study's identity, leaves out the default.
    #[serde(skip_serializing_if = "is_default")]
    pub file_limits: FileLimits,
    /// Positions of the fields that the file sets, by name.
    #[serde(skip)]
    pub(crate) positions: BTreeMap<String, Position>,
}

fn is_default(limits: &FileLimits) -> bool {
    *limits == FileLimits::default()
}

/// Default quantum on KVM: 100 us.
pub(crate) const KVM_QUANTUM: Time = Time(100_000_000);

fn is_false(value: &bool) -> bool {
    !value
}

fn is_default_quantum(quantum: &Time) -> bool {
    *quantum == KVM_QUANTUM
}

fn adds_every_stall(parallelism: &Parallelism) -> bool {
    *parallelism == Parallelism::NONE
}

/// Engine that executes the guests' instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Engine {
    /// The portable engine for the whole run.
    Soft,
    /// The KVM engine between windows, the portable engine in windows.
    Kvm,
}

fn is_none<T>(option: &Option<T>) -> bool {
    option.is_none()
}

/// Fast-forward: KVM executes the guests from power-on, and the portable engine from the trigger or the first window on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FastForward {
    /// Event that ends the fast-forward; `None`: the first window ends the fast-forward.
    pub until: Option<Trigger>,
}

/// Source of kernel, initramfs and root disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// An image that nodescope builds from Debian packages, or takes from its cache.
    Debian(ImageSpec),
    /// The user's own files, checked to be complete.
    Files {
        /// Kernel: an x86-64 ELF file or a bzImage.
        kernel: PathBuf,
        /// Initial RAM file system.
        initramfs: PathBuf,
        /// Read-only root disk, the first disk of a node.
        root: PathBuf,
    },
}

/// File system that all nodes share. A node of its own, which runs no ranks, serves it by NFS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedFileSystem {
    /// Folder in which every node mounts the file system: an absolute path.
    pub path: String,
    /// Size of the file system, which is in the memory of the file server.
    pub size: Bytes,
}

/// Timing of a node's disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// Time from the end of a request's transfer to its interrupt, a whole number of nanoseconds.
    pub latency: Time,
    /// Bandwidth of the disk, bytes per second.
    pub bandwidth: ByteRate,
}

/// The network between the nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// Link between each node and the switch.
    pub link: LinkConfig,
    /// MTU of the guests' interfaces in bytes.
    pub mtu: u16,
    /// True if the network device offers checksum and segmentation offload.
    pub offload: bool,
    /// True if all frames are captured to a pcap file among the results.
    pub capture: bool,
}

/// MPI implementation that starts the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mpi {
    /// Open MPI, whose launcher is `mpirun`.
    Openmpi,
    /// MPICH, whose launcher is `mpiexec.hydra`.
    Mpich,
    /// No MPI: the command runs once, on node 0.
    None,
}

/// Program that runs in the cluster, with its ranks, files and tracing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Job {
    /// Command or script. The serialised form leaves out the program and the files, because their contents are on the job disk.
    #[serde(skip)]
    pub program: Program,
    /// Number of MPI ranks.
    pub ranks: u32,
    /// MPI implementation that starts the ranks.
    pub mpi: Mpi,
    /// MPI slots of a node: the maximum number of ranks that a launcher starts on the node.
    pub slots: u32,
    /// Files for the guest's `/job` folder: path on the host, path below `/job`.
    #[serde(skip)]
    pub files: Vec<(PathBuf, String)>,
    /// Files below `/job` that are copied into the results when the job has ended.
    pub collect: Vec<Collect>,
    /// True if MPI calls are traced.
    pub trace: bool,
    /// True if OpenMP constructs are recorded.
    #[serde(skip_serializing_if = "is_false")]
    pub openmp: bool,
    /// Intervals between MPI calls that OpenMP records distinguish.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub openmp_intervals: Vec<CallInterval>,
    /// Environment of the job and of every rank.
    pub environment: BTreeMap<String, String>,
}

/// The program of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A shell command that every rank executes.
    Command(String),
    /// A script of the host that node 0 executes once; the script starts the ranks.
    Script(PathBuf),
}

impl Study {
    /// Returns whether KVM executes any of the guests' instructions.
    pub fn uses_kvm(&self) -> bool {
        self.engine == Engine::Kvm || self.fast_forward.is_some()
    }

    /// Returns keys that the file sets and whose effect is narrower than their name, each with a sentence.
    pub fn remarks(&self) -> Vec<(&'static str, String)> {
        crate::sections::remarks(self)
    }

    /// Returns the study in a few lines for people: labels and values.
    pub fn description(&self) -> Vec<(String, String)> {
        let node = &self.topology;
        let job = match &self.job.program {
            Program::Command(command) => command.clone(),
            Program::Script(path) => path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into(),
        };
        let mpi = match self.job.mpi {
            Mpi::Openmpi => format!(", {} under Open MPI", counted(self.job.ranks, "rank")),
            Mpi::Mpich => format!(", {} under MPICH", counted(self.job.ranks, "rank")),
            Mpi::None => String::new(),
        };
        let caches = node.sorted_caches();
        let caches: Vec<_> = caches
            .iter()
            .map(|cache| {
                let letter = match cache.kind {
                    CacheKind::Data => "d",
                    CacheKind::Instruction => "i",
                    CacheKind::Unified => "",
                };
                format!("L{}{letter} {}", cache.level, Bytes(cache.size))
            })
            .collect();
        let rows = [
            (
                "nodes",
                format!(
                    "{} x {} vCPUs (sockets x cores x threads: {} x {} x {}) at {}, {}{}",
                    self.nodes,
                    node.vcpus(),
                    node.sockets,
                    node.cores_per_socket,
                    node.threads_per_core,
                    self.frequency(),
                    self.node_memory(),
                    if self.boots_once {
                        ", made of one that has booted"
                    } else {
                        ""
                    }
                ),
            ),
            ("caches", caches.join(", ")),
            (
                "network",
                format!(
                    "{}, {}, MTU {} B",
                    BitRate(self.network.link.bandwidth),
                    Time(self.network.link.latency_ps),
                    self.network.mtu
                ),
            ),
            ("job", format!("{job}{mpi}")),
        ];
        let shared = (self.shared.as_ref().zip(self.file_server())).map(|(shared, server)| {
            let memory = Bytes(server.socket_memory.iter().sum());
            let (vcpus, size) = (counted(server.vcpus(), "vCPU"), shared.size);
            (
                "shared files",
                format!(
                    "{size} in {}, served by NFS from a further node of {vcpus} and {memory}, which runs no ranks",
                    shared.path
                ),
            )
        });
        (rows.into_iter().chain(shared))
            .map(|(label, value)| (label.to_owned(), value))
            .collect()
    }

    /// Returns the memory of a node.
    pub fn node_memory(&self) -> Bytes {
        Bytes(self.topology.socket_memory.iter().sum())
    }

    /// Returns the topology of the node that serves the shared file system; `None` if the study has no shared file system. If one node boots
    /// for all, the file server is made of this node, too, and has its topology.
    pub fn file_server(&self) -> Option<NodeTopology> {
        let shared = self.shared.as_ref()?;
        Some(match self.boots_once {
            true => self.topology.clone(),
            false => file_server::topology(&self.topology, shared.size.0),
        })
    }

    /// Returns the names of all guests: of the nodes, in the order of their numbers, and of the file server behind them.
    pub fn guest_names(&self) -> Vec<String> {
        let guests = self.nodes + u32::from(self.shared.is_some());
        let name = |guest| NodeCommandLine::new(guest, self.nodes, 0).name();
        (0..guests).map(name).collect()
    }

    /// Returns the frequency of the nodes' clocks.
    pub fn frequency(&self) -> Frequency {
        Frequency(self.topology.tsc_hz)
    }

    /// Returns the position at which the file sets `field`, such as `node.memory`; `None` if the file does not set the field.
    pub fn position_of(&self, field: &str) -> Option<Position> {
        self.positions.get(field).copied()
    }
}

/// Latency between two nodes where a study gives none.
pub const DEFAULT_LATENCY: Time = Time(1_300_000);
/// Bit rate of a node's link where a study gives none.
pub const DEFAULT_BANDWIDTH: BitRate = BitRate(10_000_000_000);
