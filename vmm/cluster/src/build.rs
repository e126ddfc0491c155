//! Builds nodes that are ready to start from a configuration.

use std::num::NonZeroU64;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodescope_devices::time::Hertz;
use nodescope_devices::virtio::Device;
use nodescope_devices::virtio::block::{Block, BlockCheck, BlockTiming, Disk, Image};
use nodescope_devices::virtio::net::{Link, Net, NetConfig, Offloads};
use nodescope_devices::virtio::rng::Rng;
use nodescope_engine::{CodeCost, Vcpu};
use nodescope_engine_soft::{DecodedPool, SharedCode, SoftConfig, SoftVcpu, Translate};
use nodescope_fabric::{LinkError, Switch};
use nodescope_hypercall::NodeIdentity;
use nodescope_image::{BLOCK_BYTES, BlockHashes, NodeCommandLine, SharedMount};
use nodescope_machine::acpi::{AcpiError, PlatformDescription, Trigger, VirtioSlot};
use nodescope_machine::boot::{BootConfig, BootError, Initramfs, KernelImage};
use nodescope_machine::cpuid::CpuidError;
use nodescope_machine::node::{AssemblyError, Node, NodeParts};
use nodescope_machine::topology::NodeTopology;
use nodescope_machine::{acpi, boot, cpuid};
use nodescope_memory::{LayoutError, Ram};
use nodescope_x86::{CpuidTable, VcpuState};
use thiserror::Error;

use crate::config::ClusterConfig;
use crate::kvm::{self, KvmError};

/// Guest-physical address of the first virtio-mmio device; each device has `VIRTIO_SIZE` bytes.
const VIRTIO_BASE: u64 = 0xd000_0000;
const VIRTIO_SIZE: u64 = 0x1000;
/// Interrupt of the first virtio device: the IOAPIC's first pin after those of ISA. Each further device has the next pin.
const VIRTIO_GSI: u32 = 16;
/// Number of frames that wait in a network card for the guest's driver before further frames are dropped.
const BACKLOG: usize = 4096;

/// Reason for which a cluster cannot be built.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum BuildError {
    #[error(transparent)]
    Boot(#[from] BootError),
    #[error(transparent)]
    Acpi(#[from] AcpiError),
    #[error(transparent)]
    Cpuid(#[from] CpuidError),
    #[error(transparent)]
    Memory(#[from] LayoutError),
    #[error(transparent)]
    Node(#[from] AssemblyError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot open the disk image {path}: {source}; build it with `nodescope image build`")]
    Disk {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("study.engine asks for KVM: {0}")]
    Kvm(#[from] KvmError),
    #[error("the host has no memory for the costs of a node's code: {0}")]
    Costs(std::io::Error),
    #[error("the disk's bandwidth is 0 bytes/s; give it a positive one")]
    DiskBandwidth,
}

/// Check of a disk image's blocks against the hashes that were recorded when the image was built.
#[derive(Debug)]
struct Recorded(BlockHashes);

impl BlockCheck for Recorded {
    fn block_bytes(&self) -> u64 {
        BLOCK_BYTES
    }

    fn holds(&self, block: u64, contents: &[u8]) -> bool {
        self.0.holds(block, contents)
    }
}

/// Returns the MAC address of a node: locally administered, with the node's number plus 1 in the last three bytes.
pub fn mac(node: u32) -> [u8; 6] {
    let n = (node + 1).to_be_bytes();
    [0x02, 0x4e, 0x53, n[1], n[2], n[3]]
}

/// Returns a seed for a purpose in a node. The seed derives from the study's seed, and differs for each node and purpose.
fn seed(config: &ClusterConfig, node: u32, purpose: u64) -> u64 {
    // SplitMix64's finalizer over the sum of the seed and multiples of the other two numbers.
    let mut z = config
        .seed
        .wrapping_add(u64::from(node + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add(purpose.wrapping_mul(0xd1b5_4a32_d192_ed03));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// State from which a node starts.
enum Start<'a> {
    /// The node boots this kernel in new memory.
    Boot(&'a KernelImage, &'a Initramfs),
    /// The node has the memory of a node that has run, and will get a state. `true`: the node is a clone, and gets a new identity when it
    /// asks for one.
    Memory(Ram, bool),
}

/// Builds the switch and all nodes. `job_disk` is the path of a file with the job disk's contents.
pub fn build(config: &ClusterConfig, job_disk: &Path) -> Result<(Switch, Vec<Node>), BuildError> {
    build_some(config, job_disk, 0..config.guests() as usize)
}

/// Builds the switch, with the ports of all nodes, and the nodes with these numbers.
pub fn build_some(
    config: &ClusterConfig,
    job_disk: &Path,
    nodes: Range<usize>,
) -> Result<(Switch, Vec<Node>), BuildError> {
    let kernel = KernelImage::open(&config.kernel)?;
    let initramfs = Initramfs::open(&config.initramfs)?;
    let start = |node| (node as u32, Start::Boot(&kernel, &initramfs));
    build_each(config, job_disk, nodes.map(start))
}

/// Builds the switch and the nodes from number `first` on. The nodes have this memory of nodes that have run before, and no state yet. With
/// `cloning`, the nodes are clones.
pub fn build_from(
    config: &ClusterConfig,
    job_disk: &Path,
    first: usize,
    memory: Vec<Ram>,
    cloning: bool,
) -> Result<(Switch, Vec<Node>), BuildError> {
    let start = |(node, ram)| (node, Start::Memory(ram, cloning));
    build_each(config, job_disk, (first as u32..).zip(memory).map(start))
}

/// Smallest number of nodes of a cluster that shares decoded code. Measured: sharing reduces eight nodes from 926 to 695 MiB, and makes the
/// boot of two nodes a tenth slower.
const SHARING_NODES: u32 = 8;

fn build_each<'a>(
    config: &ClusterConfig,
    job_disk: &Path,
    starts: impl Iterator<Item = (u32, Start<'a>)>,
) -> Result<(Switch, Vec<Node>), BuildError> {
    let ports: Vec<_> = (0..config.guests())
        .map(|n| (mac(n), config.link))
        .collect();
    let switch = Switch::new(&ports)?;
    let open = |path: &Path, blocks: Option<&BlockHashes>| {
        let image = match blocks {
            Some(blocks) => Image::open_checked(path, Box::new(Recorded(blocks.clone()))),
            None => Image::open(path),
        };
        image.map_err(|source| BuildError::Disk {
            path: path.into(),
            source,
        })
    };
    let root = open(&config.root, config.root_blocks.as_ref())?;
    let job = open(job_disk, None)?;
    let shared = (config.nodes >= SHARING_NODES).then(Arc::<DecodedPool>::default);
    let nodes = starts
        .map(|(n, start)| {
            let pool = shared.clone().unwrap_or_default();
            build_node(config, n, start, [&root, &job], &pool)
        })
        .collect::<Result<_, _>>()?;
    Ok((switch, nodes))
}

/// Returns the CPUID table of each vCPU of a node: the study's features, without those that a snapshot lacks and, if the run uses KVM,
/// without those that this host's KVM does not offer.
pub(crate) fn cpuid_tables(
    config: &ClusterConfig,
    topology: &NodeTopology,
) -> Result<Vec<CpuidTable>, BuildError> {
    let kvm = config.engine.uses_kvm().then(kvm::usable).transpose()?;
    let allowed = |feature: &cpuid::Feature| {
        let has = |table: &CpuidTable| {
            let (leaf, subleaf) = feature.leaf;
            table.has(leaf, subleaf, feature.register, feature.bit)
        };
        let offered = config.offered_features.as_ref();
        let is_offered = offered.is_none_or(|names| names.iter().any(|name| name == feature.name));
        is_offered && (feature.is_the_platforms() || kvm.as_ref().is_none_or(|kvm| has(&kvm.cpuid)))
    };
    let required = &config.required_features;
    Ok(cpuid::tables(topology, &config.cpuid, required, allowed)?)
}

/// Returns vCPUs for a node on the portable engine, in the order of their numbers and in their reset state.
pub fn vcpus(
    config: &ClusterConfig,
    node: u32,
    ram: &Ram,
) -> Result<Vec<Box<dyn Vcpu>>, BuildError> {
    let code = SharedCode::new(ram.clone());
    let tables = cpuid_tables(config, config.topology_of(node))?;
    Ok(portable(config, node, &code, &tables))
}

fn portable(
    config: &ClusterConfig,
    node: u32,
    code: &SharedCode,
    tables: &[CpuidTable],
) -> Vec<Box<dyn Vcpu>> {
    let vcpu = |(i, cpuid): (usize, &CpuidTable)| {
        Box::new(SoftVcpu::new(SoftConfig {
            id: i as u16,
            code: code.clone(),
            cpuid: cpuid.clone(),
            cpi: config.nominal_cpi,
            seed: seed(config, node, 0x1000 + i as u64),
            translate: if config.translate {
                Translate::default()
            } else {
                Translate::Never
            },
        })) as Box<dyn Vcpu>
    };
    tables.iter().enumerate().map(vcpu).collect()
}

fn build_node(
    config: &ClusterConfig,
    index: u32,
    start: Start<'_>,
    disks: [&Arc<Image>; 2],
    pool: &Arc<DecodedPool>,
) -> Result<Node, BuildError> {
    let topology = config.topology_of(index).clone();
    topology.validate().map_err(AcpiError::from)?;
    let timing = BlockTiming {
        clock: Hertz::new(topology.tsc_hz).ok_or(AssemblyError::Clock)?,
        latency_ns: config.disk_latency_ns,
        bytes_per_second: Some(
            NonZeroU64::new(config.disk_bandwidth).ok_or(BuildError::DiskBandwidth)?,
        ),
    };
    let mut entropy = [0; 32];
    for (i, chunk) in entropy.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&seed(config, index, 0x100 + i as u64).to_le_bytes());
    }
    let network = NetConfig {
        mac: mac(index),
        mtu: config.mtu,
        offloads: Offloads {
            checksum: config.offload,
            segmentation: config.offload,
        },
        backlog: BACKLOG,
    };
    let virtio = vec![
        Device::Block(Block::new(
            Disk::read_only(disks[0].clone()),
            "root",
            timing,
        )),
        Device::Block(Block::new(Disk::read_only(disks[1].clone()), "job", timing)),
        Device::Net(Net::new(network).on(Link {
            clock: timing.clock,
            bandwidth: config.link.bandwidth,
        })),
        Device::Rng(Rng::new(entropy)),
    ];
    let platform = PlatformDescription {
        virtio: (0..virtio.len() as u32)
            .map(|i| VirtioSlot {
                base: VIRTIO_BASE + VIRTIO_SIZE * u64::from(i),
                size: VIRTIO_SIZE,
                gsi: VIRTIO_GSI + i,
                trigger: Trigger::Level,
            })
            .collect(),
        ..Default::default()
    };
    let line = NodeCommandLine {
        // Linux accepts a 64-bit decimal number; with 63 bits, the arithmetic of every shell can represent the seed.
        seed: seed(config, index, 1) >> 1,
        slots: config.slots.clone(),
        mtu: None,
        trace: config.trace,
        openmp: config.openmp,
        console: config.console,
        doorbell: config.doorbell(),
        warm: config.warm,
        shared: config.shared.as_ref().map(|shared| SharedMount {
            path: shared.path.clone(),
            bytes: shared.bytes,
        }),
        extra: config.kernel_parameters.clone(),
        ..NodeCommandLine::new(index, config.nodes, topology.tsc_hz / 1000)
    };
    let text = match start {
        Start::Memory(_, true) => line.words(),
        _ => String::new(),
    };
    let (ram, boot) = match start {
        Start::Boot(kernel, initramfs) => {
            let ram = Ram::new(&topology.socket_memory)?;
            let boot = boot::load(
                &ram,
                &BootConfig {
                    kernel,
                    initramfs: Some(initramfs),
                    command_line: &line.to_string(),
                    acpi: &acpi::build(&topology, ram.numa(), &platform)?,
                },
            )?;
            (ram, boot.state)
        }
        Start::Memory(ram, _) => (ram, VcpuState::reset()),
    };
    let cpuid = cpuid_tables(config, &topology)?;
    let code = SharedCode::with_pool(ram.clone(), pool.clone());
    if config
        .windows
        .iter()
        .any(|window| window.models.core.is_some())
        || config.core_without_window
        || !config.code_costs.is_empty()
    {
        code.cost_by_block().map_err(BuildError::Costs)?;
    }
    let mut vcpus = portable(config, index, &code, &cpuid);
    if let Some(first) = vcpus.first_mut() {
        let costs = config.code_costs.iter().map(|known| CodeCost {
            block: &known.block,
            sixteenths: known.sixteenths,
        });
        first.set_code_costs(&costs.collect::<Vec<_>>());
    }
    let on_kvm = match config.engine.uses_kvm() {
        true => kvm::vcpus(config, index, &ram, &cpuid)?,
        false => Vec::new(),
    };
    let identity = NodeIdentity {
        node: index,
        nodes: config.nodes,
        vcpus: topology.vcpus(),
        seed: seed(config, index, 2),
        ipv4: NodeCommandLine::address(index).octets(),
        prefix: 16,
        mac: mac(index),
        name: line.name(),
        text,
    };
    let mut node = Node::new(NodeParts {
        index,
        topology,
        platform,
        ram,
        vcpus,
        boot,
        virtio,
        identity,
        epoch: config.epoch,
    })?;
    node.set_file_limits(config.file_limits);
    if config.engine.uses_kvm() {
        node.set_other_engine(on_kvm);
    }
    if config.doorbell() {
        node.use_doorbell();
    }
    Ok(node)
}
