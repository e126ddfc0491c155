//! Guests in nodescope.

use clap::ValueEnum;
use nodescope_cluster::{ClusterConfig, build};
use nodescope_fabric::LinkConfig;
use nodescope_hypercall::Request;
use nodescope_machine::node::{Node, NodeStatus};
use nodescope_machine::topology::NodeTopology;
use nodescope_plugin_api::VcpuPlace;
use nodescope_plugin_cache::{CacheConfig, CacheModel};
use nodescope_plugin_numa::{Numa, NumaConfig};

use crate::Failure;
use crate::guest::{Guest, MEMORY, Marks};
use crate::session::{Edge, Mark, Recorder, Session};
use crate::time::Point;

/// How the portable engine executes guest code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Decoded blocks, instruction by instruction.
    Interpreter,
    /// Warm blocks as host code.
    Translator,
}

impl Engine {
    /// All of them, the default last: its figures are the ones that results begin with.
    pub const ALL: [Engine; 2] = [Engine::Interpreter, Engine::Translator];

    /// As tables and results call it.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Interpreter => "interpreter",
            Engine::Translator => "translator",
        }
    }
}

/// Whether models see what a guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// None: one vCPU.
    Nothing,
    /// Three levels of cache for instructions and data, MESIF, and NUMA memory, while a wanted part runs: two sockets of one
    /// vCPU.
    CachesAndNuma,
    /// The same, and what is counted is attributed to code, as studies do unless they say otherwise.
    Attributed,
}

impl Attached {
    fn sockets(self) -> u16 {
        match self {
            Attached::Nothing => 1,
            Attached::CachesAndNuma | Attached::Attributed => 2,
        }
    }

    fn samples(self) -> Option<usize> {
        (self == Attached::Attributed).then_some(SAMPLES)
    }
}

/// Turns between two looks at the guest's marks, in cycles: some microseconds of host time.
const LOOK: u64 = 20_000;
/// Virtual seconds after which a guest has hung.
const PATIENCE: u64 = 120;

/// `nodes` of such guests with `sockets` sockets each, on one host thread.
pub fn config(guest: &Guest, engine: Engine, nodes: u32, sockets: u16) -> ClusterConfig {
    ClusterConfig {
        name: "bench".into(),
        study_id: "0".into(),
        seed: 1,
        nodes,
        topology: NodeTopology::uniform(sockets.into(), 1, 1, MEMORY / u64::from(sockets)),
        cpuid: Default::default(),
        nominal_cpi: 1 << 16,
        translate: engine == Engine::Translator,
        kernel: guest.kernel.clone(),
        initramfs: guest.initramfs.clone(),
        root: guest.root.clone(),
        root_blocks: None,
        job_disk: guest.disk.clone(),
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
        kernel_parameters: guest.parameters.clone(),
        epoch: 1_700_000_000,
        disk_latency_ns: 20_000,
        disk_bandwidth: 2_000_000_000,
        file_limits: Default::default(),
        windows: Vec::new(),
        time_limit_ps: PATIENCE * 1_000_000_000_000,
        deadlock_ps: None,
        host_threads: 1,
    }
}

/// Call stacks that are sampled of a window, as a study of one node has them.
const SAMPLES: usize = 4096;

/// Run a guest to its end.
pub fn run(guest: &Guest, engine: Engine, attached: Attached) -> Result<Session, Failure> {
    run_watched(guest, engine, attached, &mut |_, _| {})
}

/// The same; `watch` is called with the name of each wanted part when it has begun and when it has ended.
pub fn run_watched(
    guest: &Guest,
    engine: Engine,
    attached: Attached,
    watch: &mut dyn FnMut(Edge, &str),
) -> Result<Session, Failure> {
    let start = Point::now();
    let config = config(guest, engine, 1, attached.sockets());
    let (_, mut nodes) =
        build::build(&config, guest.job.path()).map_err(|e| Failure::Guest(e.to_string()))?;
    let mut node = nodes.remove(0);
    let mut console = Console::default();
    let recorder = Recorder::new(&guest.wanted, start);
    let driven = drive(
        &mut node,
        guest.marks,
        attached,
        recorder,
        &mut console,
        watch,
    );
    driven.map_err(|problem| {
        Failure::Guest(format!(
            "{problem}; the guest's console:\n{}",
            console.text()
        ))
    })
}

fn drive(
    node: &mut Node,
    marks: Marks,
    attached: Attached,
    mut recorder: Recorder<'_>,
    console: &mut Console,
    watch: &mut dyn FnMut(Edge, &str),
) -> Result<Session, String> {
    let mut target = 0;
    loop {
        target += LOOK;
        if target > PATIENCE * node.clock().hz {
            return Err(format!(
                "the guest runs for more than {PATIENCE} virtual seconds"
            ));
        }
        let status = node.run_until(target).map_err(|e| e.to_string())?;
        let lines = console.take(node.take_console());
        node.take_frames();
        let mut seen: Vec<Mark> = Vec::new();
        for event in node.take_events() {
            if let (Marks::Hypercall, Request::Mark(text)) = (marks, &event.request) {
                seen.extend(Mark::parse(text));
            }
        }
        if marks == Marks::Console {
            seen.extend(lines.iter().filter_map(|l| Mark::parse(l)));
        }
        for mark in seen {
            let edge = recorder.edge(&mark);
            if attached != Attached::Nothing && edge == Some(Edge::Begun) {
                node.attach(model(attached.sockets())?, attached.samples());
            }
            if let Some(edge) = edge {
                watch(edge, &mark.name);
            }
            recorder.record(mark, Point::now(), node.instructions());
            if node.attached() && edge == Some(Edge::Ended) {
                node.detach();
            }
        }
        match status {
            NodeStatus::Running => {}
            NodeStatus::Off => return recorder.finish(),
            NodeStatus::Reset => return Err("the guest reset itself".into()),
        }
    }
}

/// What a guest printed.
#[derive(Default)]
pub struct Console {
    all: Vec<u8>,
    /// Bytes of the lines that were handed out.
    taken: usize,
}

impl Console {
    /// All of it.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.all).into_owned()
    }

    /// Add bytes; the lines that they complete.
    pub fn take(&mut self, bytes: Vec<u8>) -> Vec<String> {
        if bytes.is_empty() {
            return Vec::new();
        }
        self.all.extend(bytes);
        let mut lines = Vec::new();
        while let Some(n) = self.all[self.taken..].iter().position(|b| *b == b'\n') {
            let line = &self.all[self.taken..self.taken + n];
            lines.push(String::from_utf8_lossy(line).into_owned());
            self.taken += n + 1;
        }
        lines
    }
}

/// Three cache levels with MESIF between sockets, in front of NUMA memory.
fn model(sockets: u16) -> Result<Box<CacheModel>, String> {
    let bytes = MEMORY / u64::from(sockets);
    let memory = Numa::new(&NumaConfig::contiguous(sockets, bytes)).map_err(|e| e.to_string())?;
    CacheModel::new(
        &CacheConfig::xeon_e5_2690(),
        &VcpuPlace::grid(sockets, 1, 1),
        Box::new(memory),
    )
    .map(Box::new)
    .map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_when_they_are_complete() {
        let mut console = Console::default();
        assert!(console.take(b"one\ntw".to_vec()) == ["one"]);
        assert!(console.take(Vec::new()).is_empty());
        assert!(console.take(b"o\n\nthree".to_vec()) == ["two", ""]);
    }
}
