//! From power-on to the end of the job.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nodescope_fabric::{Capture, CaptureError, PortCounts};
use nodescope_hypercall::Request;
use nodescope_machine::clock::NodeClock;
use nodescope_machine::node::{NodeError, NodeStatus};
use nodescope_plugin_api::VcpuPlace;
use nodescope_trace::{
    Assembler, Body, Event, Header, NodeEntry, Stamp, Standing, StandingBuilder, TraceReader,
    TraceWriter, WriteError, merge,
};
use nodescope_window::{
    HomeRange, ModelError, NodeRecord, Owners, RecordError, SpecFault, WindowAction, WindowDriver,
    WindowRecord, WindowsFile, build_model,
};
use thiserror::Error;

use crate::build::{BuildError, build};
use crate::config::ClusterConfig;
use crate::executor::{Executor, Stretch};
use crate::network::Network;
use crate::results::{Results, ResultsError};

/// Longest quantum, picoseconds: how often nodes are looked at that cannot hear of each other.
const LONGEST_QUANTUM_PS: u64 = 100_000_000;
/// Node 0 is off: the others have this much virtual time to follow, picoseconds.
const GRACE_PS: u64 = 2_000_000_000_000;
/// Longest line of a console that is searched for a panic.
const LONGEST_LINE: usize = 4096;
/// File name of the trace among the results.
pub const TRACE_FILE: &str = "trace.nst";
/// File name of the packet capture among the results.
pub const CAPTURE_FILE: &str = "fabric.pcap";

/// What a cluster is doing, as users think of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Kernel and user land start.
    Boot,
    /// The job runs.
    Job,
    /// A window warms up.
    WarmUp,
    /// A window measures.
    Window,
    /// The job is over, nodes power off.
    PowerOff,
}

/// Where a run stands.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Virtual time, picoseconds.
    pub virtual_ps: u64,
    /// Instructions retired by each node.
    pub instructions: Vec<u64>,
    /// What each node is doing.
    pub phases: Vec<Phase>,
    /// Name of the open window.
    pub window: Option<String>,
}

/// Who watches a run. All calls come from the thread that called [`run`].
pub trait Observer {
    /// After every quantum.
    fn progress(&mut self, progress: &dyn Fn() -> Progress);
    /// A text for the user from a node.
    fn message(&mut self, node: u32, text: &str);
    /// Console output of a node.
    fn console(&mut self, node: u32, bytes: &[u8]);
    /// Bytes typed at a node's console since the last call.
    fn typed(&mut self, _node: u32) -> Vec<u8> {
        Vec::new()
    }
}

/// How a run came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All nodes powered off.
    PoweredOff,
    /// The user interrupted it.
    Interrupted,
    /// The study's time limit.
    TimeLimit,
    /// A guest kernel panicked: its last words.
    GuestPanic {
        /// Node.
        node: u32,
        /// The line that says so.
        line: String,
    },
    /// A guest reset itself.
    Reset {
        /// Node.
        node: u32,
    },
    /// Every vCPU of every node sleeps and nothing will wake one.
    Hung,
    /// Ranks of the MPI program wait for each other.
    Deadlock {
        /// Those that can never go on.
        ranks: Vec<u32>,
    },
    /// Node 0 is off, but another node did not follow.
    Stragglers {
        /// The nodes that still ran.
        nodes: Vec<u32>,
    },
}

/// What a run left behind.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// Exit status of the job, where it ended.
    pub job_status: Option<i32>,
    /// Virtual time at the end, picoseconds.
    pub virtual_ps: u64,
    /// Instructions retired by each node.
    pub instructions: Vec<u64>,
    /// Network counts by node.
    pub network: Vec<PortCounts>,
    /// Windows and what became of them.
    pub windows: WindowsFile,
    /// Things the user should know: hypercalls that made no sense, windows of unknown names.
    pub warnings: Vec<String>,
}

/// Why a run could not go on. What was recorded before is among the results.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum RunError {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Results(#[from] ResultsError),
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
}

/// Run a study. `interrupted` is looked at every few milliseconds of the host's time.
pub fn run(
    config: &ClusterConfig,
    results_dir: &Path,
    interrupted: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Outcome, RunError> {
    let results = Results::create(results_dir, config.nodes)?;
    let job_disk = results.write("job.disk", &config.job_disk)?;
    let (switch, nodes) = build(config, &job_disk)?;
    let entries = nodes
        .iter()
        .map(|n| NodeEntry {
            name: format!("node{}", n.index()),
            vcpus: config.topology.vcpus(),
            frequency_hz: n.clock().hz,
        })
        .collect();
    let header = Header::new(&config.name, &config.study_id, entries);
    let trace = TraceWriter::create(results.path(TRACE_FILE), &header)?;
    let capture = config
        .capture
        .then(|| Capture::create(&results.path(CAPTURE_FILE)))
        .transpose()?;
    let count = nodes.len();
    let mut run = Run {
        config,
        results,
        trace,
        driver: WindowDriver::new(config.windows.clone())?,
        watches: (0..count).map(|n| Watch::new(n as u32)).collect(),
        records: Vec::new(),
        job_status: None,
        off_since: None,
        now_ps: 0,
        active_ps: 0,
        judged: false,
        warnings: Vec::new(),
        measuring: false,
    };
    let executor = Executor::new(nodes, Network::new(switch, capture));
    for node in 0..count {
        executor.with_node(node, |n| n.heed(run.driver.functions()));
    }
    let result = executor.run(config.host_threads, |quanta| {
        loop {
            match run.turn(&executor, quanta, interrupted, observer) {
                Ok(None) => {}
                Ok(Some(ending)) => return Ok(ending),
                Err(error) => return Err(error),
            }
        }
    });
    // Whatever happened, what is known is written.
    let finished = run.finish(&executor, result.as_ref().ok());
    match (result, finished) {
        (Err(error), _) | (Ok(_), Err(error)) => Err(error),
        (Ok(_), Ok(outcome)) => Ok(outcome),
    }
}

/// What is followed of each node between quanta.
struct Watch {
    assembler: Assembler,
    owners: Owners,
    clock: Option<NodeClock>,
    line: Vec<u8>,
    panic: Option<String>,
    status: NodeStatus,
    phase: Phase,
}

impl Watch {
    fn new(node: u32) -> Self {
        Self {
            assembler: Assembler::new(node),
            owners: Owners::default(),
            clock: None,
            line: Vec::new(),
            panic: None,
            status: NodeStatus::Running,
            phase: Phase::Boot,
        }
    }

    /// Look for a panic and for the start and end of the job in console output.
    fn read_console(&mut self, bytes: &[u8]) {
        for &b in bytes {
            if b != b'\n' {
                if self.line.len() < LONGEST_LINE {
                    self.line.push(b);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).trim_end().to_owned();
            self.line.clear();
            if self.panic.is_none() && line.contains("Kernel panic - not syncing") {
                self.panic = Some(line);
            } else if line.starts_with("nodescope: job starts") {
                self.phase = Phase::Job;
            } else if line.starts_with("nodescope: job ends") {
                self.phase = Phase::PowerOff;
            }
        }
    }
}

struct Run<'a> {
    config: &'a ClusterConfig,
    results: Results,
    trace: TraceWriter,
    driver: WindowDriver,
    watches: Vec<Watch>,
    records: Vec<WindowRecord>,
    job_status: Option<i32>,
    off_since: Option<u64>,
    now_ps: u64,
    /// When a call of MPI last began or ended, polls that find nothing aside.
    active_ps: u64,
    /// Since then it has been found that this is no deadlock.
    judged: bool,
    warnings: Vec<String>,
    measuring: bool,
}

type Quanta<'a> = dyn FnMut(Stretch) -> (u64, Result<Vec<NodeStatus>, NodeError>) + 'a;

/// Between two looks at the host, who may type or end the run: so much virtual time where nodes are awake, which takes the host
/// some milliseconds, and so many quanta.
const LONGEST_STRETCH_PS: u64 = 1_000_000_000;
const MOST_QUANTA: u64 = 256;

impl Run<'_> {
    /// The quanta until something happens, and what follows from it.
    fn turn(
        &mut self,
        executor: &Executor,
        quanta: &mut Quanta<'_>,
        interrupted: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<Option<Ending>, RunError> {
        self.windows(executor)?;
        for node in 0..executor.len() {
            let typed = observer.typed(node as u32);
            if !typed.is_empty() {
                executor.with_node(node, |n| n.type_console(&typed));
            }
        }
        // Nothing happens before the first node has something to do; from then on nothing reaches another node for one
        // lookahead, and nothing at all before a driver has brought an interface up.
        let (waiting, lookahead) = {
            let network = executor.network();
            (network.next_ps(), network.lookahead())
        };
        let activity = (0..executor.len())
            .map(|n| executor.next_activity_ps(n))
            .chain(waiting)
            .min()
            .unwrap_or(u64::MAX);
        if activity == u64::MAX {
            return Ok(Some(
                if self.watches.iter().all(|w| w.status == NodeStatus::Off) {
                    Ending::PoweredOff
                } else {
                    Ending::Hung
                },
            ));
        }
        let connected_ps = lookahead.unwrap_or(u64::MAX).min(LONGEST_QUANTUM_PS);
        let lookahead = if executor.any_connected() {
            connected_ps
        } else {
            LONGEST_QUANTUM_PS
        };
        let limit_ps = self.config.time_limit_ps;
        let (reached, statuses) = quanta(Stretch {
            first_ps: (activity.max(self.now_ps) + lookahead).min(limit_ps),
            lookahead_ps: connected_ps,
            apart_ps: LONGEST_QUANTUM_PS,
            limit_ps,
            until_ps: self.undisturbed_ps(),
            most: (LONGEST_STRETCH_PS / lookahead).clamp(1, MOST_QUANTA),
        });
        self.now_ps = reached;
        executor.network().check()?;
        self.collect(executor, observer)?;
        if statuses.is_err()
            && let Some(panic) = self.panic()
        {
            // The triple fault that ends a panic says less than its message.
            return Ok(Some(panic));
        }
        for (watch, status) in self.watches.iter_mut().zip(statuses?) {
            watch.status = status;
        }
        let open = self.driver.open().map(|w| self.driver.spec(w).name.clone());
        observer.progress(&|| self.progress(executor, open.clone()));
        Ok(match self.ending(interrupted) {
            Some(ending) => Some(ending),
            None => self.deadlock()?,
        })
    }

    /// Until when quanta may follow each other as long as no node wants attention: nothing else is to be done between them.
    fn undisturbed_ps(&self) -> u64 {
        let running = |w: &Watch| w.status == NodeStatus::Running;
        if !self.watches.iter().all(running) {
            return 0;
        }
        let deadlock = match self.config.deadlock_ps {
            Some(patience) if !self.judged => self.active_ps + patience,
            _ => u64::MAX,
        };
        let until = self.driver.next_ps().min(deadlock);
        until.min(self.config.time_limit_ps)
    }

    /// Whether the MPI program is deadlocked, looked at once each time it has been quiet for as long as the study says. The trace
    /// tells, as far as it is written, and the calls that stand: following messages all along would cost every call something.
    fn deadlock(&mut self) -> Result<Option<Ending>, RunError> {
        let Some(patience) = self.config.deadlock_ps else {
            return Ok(None);
        };
        let quiet = self.now_ps - self.active_ps >= patience;
        if self.judged || !quiet || !self.watches.iter().any(|w| w.assembler.has_unfinished()) {
            return Ok(None);
        }
        self.judged = true;
        let standing = self.standing()?;
        Ok(standing.deadlocks.into_iter().next().map(|deadlock| {
            let ranks = deadlock.ranks;
            Ending::Deadlock { ranks }
        }))
    }

    fn standing(&mut self) -> Result<Standing, RunError> {
        self.trace.flush()?;
        let mut builder = StandingBuilder::default();
        // Without the messages before them, calls that stand may look as if nothing could end them.
        let reader = match TraceReader::open(self.results.path(TRACE_FILE)) {
            Ok(reader) => reader,
            Err(error) => {
                tracing::warn!(%error, "deadlocks cannot be looked for: the trace does not read back");
                return Ok(Standing::default());
            }
        };
        // The file ends where writing goes on later, which reads as a cut.
        for event in reader.events().map_while(Result::ok) {
            builder.add(&event);
        }
        for (node, watch) in (0..).zip(&self.watches) {
            for call in watch.assembler.unfinished() {
                builder.add(&Event {
                    node,
                    sequence: 0,
                    stamp: Stamp::default(),
                    body: Body::Unfinished(Box::new(call)),
                });
            }
        }
        Ok(builder.finish())
    }

    fn progress(&self, executor: &Executor, window: Option<String>) -> Progress {
        let phase = |w: &Watch| match (&window, self.measuring) {
            (Some(_), false) => Phase::WarmUp,
            (Some(_), true) => Phase::Window,
            (None, _) => w.phase,
        };
        Progress {
            virtual_ps: self.now_ps,
            instructions: (0..executor.len())
                .map(|n| executor.with_node(n, |n| n.instructions()))
                .collect(),
            phases: self.watches.iter().map(phase).collect(),
            window,
        }
    }

    /// The first node whose kernel has panicked.
    fn panic(&self) -> Option<Ending> {
        (0..).zip(&self.watches).find_map(|(node, watch)| {
            let line = watch.panic.clone()?;
            Some(Ending::GuestPanic { node, line })
        })
    }

    fn ending(&mut self, interrupted: &AtomicBool) -> Option<Ending> {
        if let Some(panic) = self.panic() {
            return Some(panic);
        }
        for (node, watch) in (0..).zip(&self.watches) {
            if watch.status == NodeStatus::Reset {
                return Some(Ending::Reset { node });
            }
        }
        if self.watches.iter().all(|w| w.status == NodeStatus::Off) {
            return Some(Ending::PoweredOff);
        }
        if interrupted.load(Ordering::Relaxed) {
            return Some(Ending::Interrupted);
        }
        if self.now_ps >= self.config.time_limit_ps {
            return Some(Ending::TimeLimit);
        }
        if self.watches[0].status == NodeStatus::Off {
            let since = *self.off_since.get_or_insert(self.now_ps);
            if self.now_ps - since > GRACE_PS {
                let running = |(_, w): &(u32, &Watch)| w.status == NodeStatus::Running;
                return Some(Ending::Stragglers {
                    nodes: (0..)
                        .zip(&self.watches)
                        .filter(running)
                        .map(|(n, _)| n)
                        .collect(),
                });
            }
        }
        None
    }

    /// Console output and hypercalls of the stretch that has just ended.
    fn collect(
        &mut self,
        executor: &Executor,
        observer: &mut dyn Observer,
    ) -> Result<(), RunError> {
        let mut streams = Vec::new();
        for index in 0..executor.len() {
            if !executor.has_output(index) {
                continue;
            }
            let (clock, console, events, bad) = executor.with_node(index, |n| {
                (
                    n.clock(),
                    n.take_console(),
                    n.take_events(),
                    n.take_bad_hypercalls(),
                )
            });
            let watch = &mut self.watches[index];
            watch.clock = Some(clock);
            if !console.is_empty() {
                watch.read_console(&console);
                observer.console(index as u32, &console);
                self.results.console(index, &console)?;
            }
            for text in bad {
                self.warnings.push(format!("node {index}: {text}"));
            }
            let mut stream = Vec::new();
            for event in events {
                let stamp = Stamp {
                    time: clock.ps(event.cycles),
                    instructions: event.instructions,
                    vcpu: event.vcpu.into(),
                };
                match &event.request {
                    Request::Hello(hello) => watch.owners.hello(event.cr3, hello),
                    Request::Message(text) => observer.message(index as u32, text),
                    Request::PutFile(chunk) => self.results.chunk(chunk)?,
                    Request::JobExit(status) => self.job_status = Some(*status),
                    _ => {}
                }
                let goes_on = match &event.request {
                    Request::MpiEnter(enter, _) => !enter.function.polls(),
                    request => !matches!(request, Request::MpiPollFailed(_)),
                };
                if goes_on {
                    self.active_ps = self.active_ps.max(stamp.time.min(self.now_ps));
                    self.judged = false;
                }
                watch.assembler.request(event.request, stamp, &mut stream);
            }
            if !stream.is_empty() {
                streams.push(stream);
            }
        }
        if !streams.is_empty() {
            for event in merge(streams) {
                self.driver.observe(&event);
                self.trace.write(&event)?;
            }
        }
        Ok(())
    }

    /// Open and close windows that are due.
    fn windows(&mut self, executor: &Executor) -> Result<(), RunError> {
        if self.driver.is_empty() || self.driver.is_done() {
            return Ok(());
        }
        let instructions = (0..executor.len()).map(|n| executor.instructions(n)).sum();
        for action in self.driver.step(self.now_ps, instructions) {
            match action {
                WindowAction::Attach(window) => {
                    let name = self.driver.spec(window).name.clone();
                    self.note(Body::WindowOpen(name))?;
                    self.attach(executor, window)?;
                }
                WindowAction::StartMeasuring(_) => {
                    for n in 0..executor.len() {
                        executor.with_node(n, |n| n.start_measuring());
                    }
                    self.measuring = true;
                }
                WindowAction::Detach(window) => self.detach(executor, window)?,
            }
        }
        Ok(())
    }

    /// A host event into the trace.
    fn note(&mut self, body: Body) -> Result<(), RunError> {
        let stamp = Stamp {
            time: self.now_ps,
            instructions: 0,
            vcpu: 0,
        };
        let mut events = Vec::new();
        self.watches[0].assembler.host(body, stamp, &mut events);
        for event in events {
            self.trace.write(&event)?;
        }
        Ok(())
    }

    fn places(&self) -> Vec<VcpuPlace> {
        let topology = &self.config.topology;
        let place = |p: nodescope_machine::topology::VcpuPlace| VcpuPlace {
            core: (p.socket * topology.cores_per_socket + p.core) as u16,
            socket: p.socket as u16,
        };
        topology.places().map(place).collect()
    }

    fn attach(&mut self, executor: &Executor, window: usize) -> Result<(), RunError> {
        let places = self.places();
        for n in 0..executor.len() {
            let ranges: Vec<HomeRange> = executor.with_node(n, |n| {
                let range = |r: &nodescope_memory::NumaRange| HomeRange {
                    start: r.start,
                    length: r.len,
                    socket: r.node as u16,
                };
                n.ram().numa().iter().map(range).collect()
            });
            let model = build_model(&self.driver.spec(window).models, &places, &ranges)?;
            executor.with_node(n, |n| n.attach(model));
        }
        self.measuring = false;
        Ok(())
    }

    fn detach(&mut self, executor: &Executor, window: usize) -> Result<(), RunError> {
        let places = self.places();
        let nodes = (0..executor.len())
            .map(|index| {
                let (measurement, clock) = executor.with_node(index, |n| (n.detach(), n.clock()));
                let owners = &self.watches[index].owners;
                NodeRecord {
                    node: index as u32,
                    name: format!("node{index}"),
                    frequency_hz: clock.hz,
                    nominal_cpi_65536: self.config.nominal_cpi,
                    vcpus: places.clone(),
                    cycles: measurement.cycles,
                    counters: measurement.counters,
                    statistics: measurement.statistics,
                    owners: measurement
                        .activities
                        .iter()
                        .map(|a| owners.owner(a.cr3, a.function))
                        .collect(),
                }
            })
            .collect();
        self.measuring = false;
        let times = self.driver.times(window);
        let spec = self.driver.spec(window).clone();
        self.note(Body::WindowClose(spec.name.clone()))?;
        self.records.push(WindowRecord {
            name: spec.name.clone(),
            spec,
            triggered_ps: times.triggered_ps.unwrap_or(self.now_ps),
            opened_ps: times.opened_ps.unwrap_or(self.now_ps),
            measured_from_ps: times.measured_from_ps,
            closed_ps: times.closed_ps.unwrap_or(self.now_ps),
            complete: self.driver.is_complete(window),
            nodes,
        });
        Ok(())
    }

    /// Close what is open and write what is known.
    fn finish(mut self, executor: &Executor, ending: Option<&Ending>) -> Result<Outcome, RunError> {
        let instructions: Vec<u64> = (0..executor.len())
            .map(|n| executor.with_node(n, |n| n.instructions()))
            .collect();
        if let Some(WindowAction::Detach(window)) =
            self.driver.stop(self.now_ps, instructions.iter().sum())
        {
            self.detach(executor, window)?;
        }
        let stamp = Stamp {
            time: self.now_ps,
            instructions: 0,
            vcpu: 0,
        };
        let streams: Vec<Vec<Event>> = self
            .watches
            .iter_mut()
            .map(|w| {
                let mut events = Vec::new();
                w.assembler.finish(stamp, &mut events);
                events
            })
            .collect();
        for event in merge(streams) {
            self.trace.write(&event)?;
        }
        self.trace.finish()?;
        let windows = WindowsFile {
            version: WindowsFile::VERSION,
            study: self.config.name.clone(),
            study_id: self.config.study_id.clone(),
            windows: self.records,
            outcomes: self.driver.finish(),
        };
        windows.write(self.results.path(WindowsFile::NAME))?;
        let unknown = self.driver.unknown_names().iter();
        self.warnings
            .extend(unknown.map(|n| {
                format!("the guest opened a window \"{n}\" that the study does not have")
            }));
        Ok(Outcome {
            ending: ending.cloned().unwrap_or(Ending::Interrupted),
            job_status: self.job_status,
            virtual_ps: self.now_ps,
            instructions,
            network: executor.network().counts(),
            windows,
            warnings: self.warnings,
        })
    }
}
