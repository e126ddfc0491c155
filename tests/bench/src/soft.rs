//! The kernels in a guest of nodescope's portable engine.

use std::collections::BTreeMap;
use std::path::Path;

use nodescope_cluster::{ClusterConfig, build};
use nodescope_fabric::LinkConfig;
use nodescope_hypercall::Request;
use nodescope_image::{JobFile, job_disk};
use nodescope_machine::node::{Node, NodeStatus};
use nodescope_machine::topology::NodeTopology;
use nodescope_plugin_api::VcpuPlace;
use nodescope_plugin_cache::{CacheConfig, CacheModel};
use nodescope_plugin_numa::{Numa, NumaConfig};

use crate::Failure;
use crate::kernels::Mark;
use crate::time::{Point, Spent};

/// Instructions executed and the time it took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    /// Instructions retired by all vCPUs.
    pub instructions: u64,
    /// Host time.
    pub spent: Spent,
}

impl Run {
    /// Million instructions a second of processor time.
    pub fn speed(&self) -> f64 {
        self.instructions as f64 / self.spent.cpu / 1e6
    }
}

/// A boot and the kernels in it.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// From power-on to the first kernel.
    pub boot: Run,
    /// Each kernel.
    pub kernels: BTreeMap<String, Run>,
}

/// Memory of the guest in bytes.
pub const MEMORY: u64 = 512 << 20;
/// Turns between two looks at the guest's markers, in cycles: some microseconds of host time.
const LOOK: u64 = 20_000;
/// Virtual seconds after which a guest has hung.
const PATIENCE: u64 = 60;

/// Run the program in a guest of `sockets` sockets with one vCPU each, with caches and NUMA attached while a kernel runs if
/// `attached`.
pub fn run(
    image: &Path,
    program: &Path,
    arguments: &[String],
    sockets: u16,
    attached: bool,
) -> Result<Session, Failure> {
    let topology = NodeTopology::uniform(sockets.into(), 1, 1, MEMORY / u64::from(sockets));
    let hz = topology.tsc_hz;
    let script = format!("#!/bin/sh\nexec ./kernels {}\n", arguments.join(" "));
    let file = |path: &str, data| JobFile {
        path: path.into(),
        mode: 0o755,
        data,
    };
    let disk = job_disk(&[
        file("run", script.into_bytes()),
        file("kernels", std::fs::read(program).map_err(Failure::Files)?),
    ])
    .map_err(|e| Failure::Guest(e.to_string()))?;
    let job = tempfile::NamedTempFile::new().map_err(Failure::Files)?;
    std::fs::write(job.path(), &disk).map_err(Failure::Files)?;
    let config = ClusterConfig {
        name: "bench".into(),
        study_id: "0".into(),
        seed: 1,
        nodes: 1,
        topology,
        cpuid: Default::default(),
        nominal_cpi: 1 << 16,
        kernel: image.join("vmlinux"),
        initramfs: image.join("initramfs.cpio"),
        root: image.join("root.img"),
        job_disk: disk,
        link: LinkConfig {
            bandwidth: 10_000_000_000,
            latency_ps: 1_300_000,
        },
        mtu: 1500,
        offload: true,
        capture: false,
        trace: false,
        slots: Vec::new(),
        console: false,
        kernel_parameters: Vec::new(),
        epoch: 1_700_000_000,
        disk_latency_ns: 20_000,
        disk_bandwidth: 2_000_000_000,
        windows: Vec::new(),
        time_limit_ps: 0,
        host_threads: 1,
    };
    let (_, mut nodes) =
        build::build(&config, job.path()).map_err(|e| Failure::Guest(e.to_string()))?;
    let mut node = nodes.remove(0);
    let mut console = Vec::new();
    let outcome = drive(&mut node, hz, sockets, attached, &mut console);
    outcome.map_err(|problem| {
        Failure::Guest(format!(
            "{problem}; the guest's console:\n{}",
            String::from_utf8_lossy(&console)
        ))
    })
}

fn drive(
    node: &mut Node,
    hz: u64,
    sockets: u16,
    attached: bool,
    console: &mut Vec<u8>,
) -> Result<Session, String> {
    let mut session = Session::default();
    let start = Point::now();
    let mut open: Option<(Point, u64)> = None;
    let mut target = 0;
    loop {
        target += LOOK;
        if target > PATIENCE * hz {
            return Err(format!(
                "the guest runs for more than {PATIENCE} virtual seconds"
            ));
        }
        let status = node.run_until(target).map_err(|e| e.to_string())?;
        console.extend(node.take_console());
        node.take_frames();
        for event in node.take_events() {
            let Request::Mark(text) = &event.request else {
                continue;
            };
            let Some(mark) = Mark::parse(text) else {
                continue;
            };
            if mark.begin {
                if session.kernels.is_empty() && open.is_none() {
                    session.boot = Run {
                        instructions: node.instructions(),
                        spent: start.to(Point::now()),
                    };
                }
                if attached {
                    node.attach(model(sockets)?);
                }
                open = Some((Point::now(), node.instructions()));
            } else if let Some((began, before)) = open.take() {
                let run = Run {
                    instructions: node.instructions() - before,
                    spent: began.to(Point::now()),
                };
                if attached {
                    node.detach();
                }
                session.kernels.insert(mark.kernel, run);
            }
        }
        match status {
            NodeStatus::Running => {}
            NodeStatus::Off => break,
            NodeStatus::Reset => return Err("the guest reset itself".into()),
        }
    }
    if session.kernels.is_empty() {
        return Err("no kernel ran".into());
    }
    Ok(session)
}

/// Three cache levels with MESIF between sockets, in front of NUMA memory.
fn model(sockets: u16) -> Result<Box<CacheModel>, String> {
    let memory = Numa::new(&NumaConfig::contiguous(sockets, 4 << 30)).map_err(|e| e.to_string())?;
    CacheModel::new(
        &CacheConfig::xeon_e5_2690(),
        &VcpuPlace::grid(sockets, 1, 1),
        Box::new(memory),
    )
    .map(Box::new)
    .map_err(|e| e.to_string())
}
