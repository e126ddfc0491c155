//! Runs of a benchmark's guest in nodescope.

use std::collections::BTreeMap;

use clap::ValueEnum;
use nodescope_cluster::{ClusterConfig, build};
use nodescope_fabric::LinkConfig;
use nodescope_hypercall::Request;
use nodescope_machine::measurement::Measurement;
use nodescope_machine::node::{Node, NodeStatus};
use nodescope_machine::topology::NodeTopology;
use nodescope_plugin_api::{CoreModel, MemoryModel, Registry, VcpuPlace};
use nodescope_plugin_cache::{CacheConfig, CacheModel};
use nodescope_plugin_numa::{Numa, NumaConfig};

use crate::Failure;
use crate::guest::{Guest, MEMORY, Marks};
use crate::session::{Edge, Mark, Recorder, Session};
use crate::time::Point;

/// Engine variant that executes guest code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// The interpreter of decoded blocks.
    Interpreter,
    /// The translator: warm blocks run as host code.
    Translator,
}

impl Engine {
    /// Every engine, the default one last. Results begin with the figures of the last measured engine.
    pub const ALL: [Engine; 2] = [Engine::Interpreter, Engine::Translator];

    /// Returns the name in tables and results.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Interpreter => "interpreter",
            Engine::Translator => "translator",
        }
    }
}

/// Models that are attached while a wanted part of a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// No models, and one vCPU.
    Nothing,
    /// Three levels of cache for instructions and data, MESIF, and NUMA memory. The node has two sockets of one vCPU each.
    CachesAndNuma,
    /// The models of `CachesAndNuma`, with events attributed to code. This is the default of studies.
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

/// Actions at the marks of a guest.
trait Parts {
    /// Returns whether the node gets a model of the core.
    fn have_core(&self) -> bool {
        false
    }
    /// Prepares a node before the boot of the guest.
    fn boot(&mut self, node: &mut Node) -> Result<(), String>;
    /// Handles any mark of the guest, before [`Parts::begin`] if the mark begins a part.
    fn mark(&mut self, _node: &mut Node) -> Result<(), String> {
        Ok(())
    }
    /// Handles the begin of a wanted part.
    fn begin(&mut self, node: &mut Node) -> Result<(), String>;
    /// Handles the end of the wanted part with this name.
    fn end(&mut self, node: &mut Node, name: &str) -> Result<(), String>;
}

impl Parts for Attached {
    fn boot(&mut self, _node: &mut Node) -> Result<(), String> {
        Ok(())
    }

    fn begin(&mut self, node: &mut Node) -> Result<(), String> {
        if *self != Attached::Nothing {
            node.attach(model(self.sockets())?, self.samples());
        }
        Ok(())
    }

    fn end(&mut self, node: &mut Node, _name: &str) -> Result<(), String> {
        if node.attached() {
            node.detach();
        }
        Ok(())
    }
}

/// Time at which the model of [`measure`] is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The model is attached at power-on.
    PowerOn,
    /// The model is attached at the guest's first mark, for a guest whose boot and launcher have more blocks than can be counted.
    FirstMark,
}

/// Model that is attached before a part begins, so that its caches are warm, and the measurements of each part. After each part, a new
/// model is attached.
struct Warm<'a> {
    from: From,
    make: &'a dyn Fn() -> Result<Box<dyn MemoryModel>, String>,
    core: Option<&'a dyn Fn() -> Box<dyn CoreModel>>,
    measured: BTreeMap<String, Measurement>,
}

impl Parts for Warm<'_> {
    fn have_core(&self) -> bool {
        self.core.is_some()
    }

    fn boot(&mut self, node: &mut Node) -> Result<(), String> {
        match self.from {
            From::PowerOn => self.mark(node),
            From::FirstMark => Ok(()),
        }
    }

    fn mark(&mut self, node: &mut Node) -> Result<(), String> {
        if !node.attached() {
            if let Some(core) = self.core {
                node.model_core(core());
            }
            node.attach((self.make)()?, Some(SAMPLES));
        }
        Ok(())
    }

    fn begin(&mut self, node: &mut Node) -> Result<(), String> {
        node.start_measuring();
        Ok(())
    }

    fn end(&mut self, node: &mut Node, name: &str) -> Result<(), String> {
        self.measured.insert(name.to_owned(), node.detach());
        self.mark(node)
    }
}

/// Virtual time between two checks of the guest's marks, in cycles of the node's clock: some tens of microseconds of host time.
const CHECK_INTERVAL: u64 = 20_000;
/// Virtual seconds after which a guest counts as hung.
const PATIENCE: u64 = 120;

/// Returns the configuration of `nodes` nodes that run the guest, with `sockets` sockets of one vCPU each, on one host thread.
pub fn config(guest: &Guest, engine: Engine, nodes: u32, sockets: u16) -> ClusterConfig {
    ClusterConfig {
        name: "bench".into(),
        study_id: "0".into(),
        seed: 1,
        nodes,
        shared: None,
        topology: NodeTopology::uniform(sockets.into(), 1, 1, MEMORY / u64::from(sockets)),
        cpuid: Default::default(),
        required_features: Vec::new(),
        engine: Default::default(),
        kvm_quantum_ps: nodescope_cluster::config::KVM_QUANTUM_PS,
        counting: None,
        doorbell: false,
        offered_features: None,
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
        openmp: false,
        slots: Vec::new(),
        console: false,
        kernel_parameters: guest.parameters.clone(),
        warm: false,
        epoch: 1_700_000_000,
        disk_latency_ns: 20_000,
        disk_bandwidth: 2_000_000_000,
        file_limits: Default::default(),
        names_program: None,
        code_costs: Default::default(),
        core_without_window: false,
        windows: Vec::new(),
        registry: Registry::default(),
        time_limit_ps: PATIENCE * 1_000_000_000_000,
        deadlock_ps: None,
        host_threads: 1,
    }
}

/// Maximum number of call stacks that are sampled in a window; a study of one node has the same number.
const SAMPLES: usize = 4096;

/// Runs a guest until it powers off.
pub fn run(guest: &Guest, engine: Engine, attached: Attached) -> Result<Session, Failure> {
    run_watched(guest, engine, attached, &mut |_, _| {})
}

/// Runs a guest until it powers off. Calls `watch` with the name of each wanted part when the part has begun and when it has ended.
pub fn run_watched(
    guest: &Guest,
    engine: Engine,
    attached: Attached,
    watch: &mut dyn FnMut(Edge, &str),
) -> Result<Session, Failure> {
    let mut parts = attached;
    boot(guest, engine, attached.sockets(), &mut parts, watch)
}

/// Runs a guest of one socket in the translator, with models that are attached early, so that caches are warm when a part begins. `core`
/// makes the model of the core. Returns the measurements of each wanted part, attributed to code.
pub fn measure(
    guest: &Guest,
    from: From,
    model: &dyn Fn() -> Result<Box<dyn MemoryModel>, String>,
    core: Option<&dyn Fn() -> Box<dyn CoreModel>>,
) -> Result<BTreeMap<String, Measurement>, Failure> {
    let mut parts = Warm {
        from,
        make: model,
        core,
        measured: BTreeMap::new(),
    };
    boot(guest, Engine::Translator, 1, &mut parts, &mut |_, _| {})?;
    Ok(parts.measured)
}

/// Runs a guest as [`measure`] does. Returns the time of each wanted part.
pub fn run_warm(
    guest: &Guest,
    model: &dyn Fn() -> Result<Box<dyn MemoryModel>, String>,
    core: Option<&dyn Fn() -> Box<dyn CoreModel>>,
) -> Result<Session, Failure> {
    let mut parts = Warm {
        from: From::FirstMark,
        make: model,
        core,
        measured: BTreeMap::new(),
    };
    boot(guest, Engine::Translator, 1, &mut parts, &mut |_, _| {})
}

fn boot(
    guest: &Guest,
    engine: Engine,
    sockets: u16,
    parts: &mut dyn Parts,
    watch: &mut dyn FnMut(Edge, &str),
) -> Result<Session, Failure> {
    let start = Point::now();
    let config = ClusterConfig {
        core_without_window: parts.have_core(),
        ..config(guest, engine, 1, sockets)
    };
    let (_, mut nodes) =
        build::build(&config, guest.job.path()).map_err(|e| Failure::Guest(e.to_string()))?;
    let mut node = nodes.remove(0);
    let mut console = Console::default();
    let recorder = Recorder::new(&guest.wanted, start);
    let driven = drive(&mut node, guest.marks, parts, recorder, &mut console, watch);
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
    parts: &mut dyn Parts,
    mut recorder: Recorder<'_>,
    console: &mut Console,
    watch: &mut dyn FnMut(Edge, &str),
) -> Result<Session, String> {
    let mut target = 0;
    parts.boot(node)?;
    loop {
        target += CHECK_INTERVAL;
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
            parts.mark(node)?;
            if edge == Some(Edge::Begun) {
                parts.begin(node)?;
            }
            if let Some(edge) = edge {
                watch(edge, &mark.name);
            }
            let name = mark.name.clone();
            recorder.record(mark, Point::now(), node.instructions());
            if edge == Some(Edge::Ended) {
                parts.end(node, &name)?;
            }
        }
        match status {
            NodeStatus::Running => {}
            NodeStatus::Off => return recorder.finish(),
            NodeStatus::Reset => return Err("the guest reset itself".into()),
        }
    }
}

/// Console output of a guest.
#[derive(Default)]
pub struct Console {
    all: Vec<u8>,
    /// Number of bytes in the lines that [`Console::take`] has returned.
    taken: usize,
}

impl Console {
    /// Returns all output.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.all).into_owned()
    }

    /// Adds bytes, and returns the lines that these bytes complete, without line ends.
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

/// Makes a model of three cache levels, with MESIF between sockets and NUMA memory.
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
