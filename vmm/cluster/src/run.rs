//! Runs a study from power-on, or from a snapshot, to the end of the job.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nodescope_devices::virtio::block::Image;
use nodescope_fabric::Capture;
use nodescope_hypercall::{Request, printable};
use nodescope_machine::clock::NodeClock;
use nodescope_machine::node::{Node, NodeStatus};
use nodescope_profile::ProfilesFile;
use nodescope_trace::{Body, Event, Header, NodeEntry, Stamp, TraceWriter, merge};
use nodescope_window::WindowsFile;

use crate::build::build_some;
use crate::config::ClusterConfig;
use crate::counting::Counting;
use crate::distribution::Distribution;
use crate::engines::{EngineName, Engines};
use crate::executor::{Executor, QuantumBatch};
use crate::folder::ResultsFolder;
use crate::monitor::{NodeMonitor, phases};
use crate::network::Network;
use crate::outcome::{Ending, Observer, Outcome, Progress, RunError, WindowProgress};
use crate::results::{Results, Stored};
use crate::saving::{Options, Saved, Saving};
use crate::snapshot::{self, Origin};
use crate::spans::PhaseSpan;
use crate::windows::Windows;

/// Longest quantum on the portable engine, and on both engines the least length of a quantum while no network interface is up, picoseconds.
const LONGEST_QUANTUM_PS: u64 = 100_000_000;
/// Virtual time after node 0's power-off in which the other nodes must power off, too, picoseconds.
const GRACE_PS: u64 = 2_000_000_000_000;
/// File name of the trace among the results.
pub const TRACE_FILE: &str = "trace.nst";
/// File name of the packet capture among the results.
pub const CAPTURE_FILE: &str = "fabric.pcap";
/// File name of the job disk's contents among the results.
pub const JOB_DISK: &str = "job.disk";

/// Returns the names, in the results folder, of the files that a run creates itself. Files that guests send are not included.
pub fn file_names(config: &ClusterConfig) -> Vec<String> {
    let attributed = config.windows.iter().any(|window| window.attribution);
    let fixed = [JOB_DISK, TRACE_FILE, WindowsFile::NAME].map(String::from);
    (0..config.guests())
        .map(|guest| config.console_log(guest))
        .chain(fixed)
        .chain(config.capture.then(|| CAPTURE_FILE.into()))
        .chain(attributed.then(|| ProfilesFile::NAME.into()))
        .collect()
}

/// Runs a study from power-on in this process. See [`run_with`].
pub fn run(
    config: &ClusterConfig,
    folder: &ResultsFolder,
    interrupted: &Arc<AtomicBool>,
    observer: &mut dyn Observer,
) -> Result<Outcome, RunError> {
    run_with(config, folder, interrupted, observer, Options::default())
}

/// Runs a study. After `interrupted` is set, the nodes stop within a few milliseconds of host time, whatever the guests do. The results are
/// written after that.
pub fn run_with(
    config: &ClusterConfig,
    folder: &ResultsFolder,
    interrupted: &Arc<AtomicBool>,
    observer: &mut dyn Observer,
    options: Options<'_>,
) -> Result<Outcome, RunError> {
    let from = options.from;
    let restoring = from.map(|_| tracing::info_span!("restore").entered());
    let cloning = match from {
        Some(origin) => origin.check(config, options.image)?,
        None => false,
    };
    let count = config.guests() as usize;
    let distributed = |what| Err(RunError::Distributed { what });
    match options.peers {
        Some(_) if config.engine.uses_kvm() => return distributed("cannot use KVM"),
        _ => {}
    }
    let distribution = match options.peers {
        Some(peers) => {
            let stop = Arc::clone(interrupted);
            Some(Distribution::new(peers, count, config.capture, stop)?)
        }
        None => None,
    };
    let own = (distribution.as_ref()).map_or(0..count, Distribution::own);
    let results = Results::create(folder, (0..config.guests()).map(|n| config.console_log(n)))?;
    let job_disk = folder.write(JOB_DISK, &config.job_disk)?;
    let earlier = from.map(|origin| origin.state());
    let earlier = earlier.transpose()?;
    let (switch, nodes) = match (from, &earlier) {
        (Some(origin), Some((state, _))) => origin.build(config, &job_disk, state, cloning, own)?,
        _ => build_some(config, &job_disk, own)?,
    };
    // A file server runs no ranks, and is no node of the trace.
    let entries = (0..config.nodes)
        .map(|n| NodeEntry {
            name: config.name_of(n),
            vcpus: config.topology.vcpus(),
            frequency_hz: config.topology.tsc_hz,
        })
        .collect();
    let header = Header::new(&config.name, &config.study_id, entries);
    let path = folder.reserve(TRACE_FILE)?;
    let trace = match (from, &earlier) {
        (Some(origin), Some((state, _))) if !cloning => {
            let written = origin.content(snapshot::TRACE, folder.path())?;
            TraceWriter::resume(path, &header, written, state.trace.clone())?
        }
        _ => TraceWriter::create(path, &header)?,
    };
    let is_master = (distribution.as_ref()).is_none_or(Distribution::is_master);
    let capture = match config.capture && is_master {
        true => {
            let path = folder.reserve(CAPTURE_FILE)?;
            let captured = |origin: &&Origin| !cloning && origin.has(snapshot::CAPTURE);
            Some(match from.filter(captured) {
                Some(origin) => {
                    Capture::resume(&path, origin.content(snapshot::CAPTURE, folder.path())?)?
                }
                None => Capture::create(&path)?,
            })
        }
        false => None,
    };
    // All nodes have the same disk images.
    let images = nodes.first().map(Node::images).unwrap_or_default();
    let mut run = Run {
        config,
        results,
        images,
        trace,
        windows: Windows::new(config)?,
        engines: Engines::new(config),
        counting: Counting::new(config.counting.clone()),
        monitors: (0..count).map(|n| NodeMonitor::new(n as u32)).collect(),
        job_status: None,
        off_since: None,
        now_ps: 0,
        active_ps: 0,
        searched_for_deadlock: false,
        saved_instructions: 0,
        saved_ps: 0,
        booted_ps: None,
        span: PhaseSpan::default(),
        warnings: Vec::new(),
        saving: options.save.map(Saving::new),
        saved: None,
        image: options.image,
    };
    let network = Network::new(switch, capture);
    let executor = match distribution {
        Some(distribution) => Executor::distributed(nodes, network, distribution)?,
        None => Executor::new(nodes, network),
    };
    if let (Some(origin), Some((state, windows))) = (from, earlier) {
        match cloning {
            true => run.load_clones(origin, &state)?,
            false => run.load(origin, state, windows, executor.statuses(), observer)?,
        }
    }
    drop(restoring);
    executor.with_own(|n| {
        let functions = run.windows.driver().functions().into_iter();
        n.subscribe(functions.chain(run.engines.function()).collect());
        n.set_stop(Arc::clone(interrupted));
    });
    let result = executor.run(config.host_threads, |run_batch| {
        loop {
            match run.advance(&executor, run_batch, interrupted, observer) {
                Ok(None) => {}
                Ok(Some(ending)) => return Ok(ending),
                Err(error) => return Err(error),
            }
        }
    });
    if let (Some(distribution), Err(error)) = (executor.distribution(), &result)
        && !error.is_known_to_all()
    {
        distribution.leave(&error.to_string());
    }
    // Results until then are written even after an error.
    let finished = run.finish(&executor, result.as_ref().ok());
    match (result, finished) {
        // If a process dies, its measurements are lost; those of all others are kept.
        (Err(RunError::Peer(_)) | Ok(_), Ok(outcome)) => Ok(outcome),
        (Err(error), _) | (Ok(_), Err(error)) => Err(error),
    }
}

pub(crate) struct Run<'a> {
    pub(crate) config: &'a ClusterConfig,
    pub(crate) results: Results<'a>,
    images: Vec<Arc<Image>>,
    pub(crate) trace: TraceWriter,
    pub(crate) windows: Windows<'a>,
    pub(crate) engines: Engines,
    counting: Counting,
    pub(crate) monitors: Vec<NodeMonitor>,
    pub(crate) job_status: Option<i32>,
    pub(crate) off_since: Option<u64>,
    pub(crate) now_ps: u64,
    /// Virtual time of the last hypercall, picoseconds. The beginning of a poll and a poll that finds nothing do not count.
    pub(crate) active_ps: u64,
    /// True if the program has been searched for a deadlock since `active_ps`, and none was found.
    pub(crate) searched_for_deadlock: bool,
    /// Instructions of all nodes when the trace was last saved.
    pub(crate) saved_instructions: u64,
    /// Virtual time at which the trace was last saved, picoseconds.
    pub(crate) saved_ps: u64,
    /// Virtual time at which a node last reported on its console that it has booted, picoseconds.
    pub(crate) booted_ps: Option<u64>,
    span: PhaseSpan,
    pub(crate) warnings: Vec<String>,
    /// The snapshot that is to be taken. `saved` is the snapshot that was taken.
    pub(crate) saving: Option<Saving>,
    pub(crate) saved: Option<Saved>,
    /// Hash of the image's contents, see [`Options::image`].
    pub(crate) image: &'a str,
}

type RunBatch<'a> = dyn FnMut(QuantumBatch) -> (u64, Result<Vec<NodeStatus>, RunError>) + 'a;

/// Length of the longest batch while nodes are awake, picoseconds of virtual time, which takes the host some milliseconds. A batch also has
/// at most `MOST_QUANTA` quanta. Between batches the user may type or end the run.
const LONGEST_BATCH_PS: u64 = 1_000_000_000;
const MOST_QUANTA: u64 = 256;
/// Length of the longest batch of a cluster with a user at a console, picoseconds, even where the cluster is idle.
const CONSOLE_BATCH_PS: u64 = 10_000_000_000;
/// Number of vCPUs in the cluster beyond which batches are shorter, since a batch takes the host longer.
const VCPUS: u64 = 64;

/// Instructions of all nodes after which collected events are written, which take the host about a second at most. A run that is killed
/// loses no more events than that. The unit is instructions, because the bytes of a trace must not depend on the host's time.
const UNSAVED: u64 = 100_000_000;
/// Virtual time after which collected events are written on KVM, picoseconds.
const UNSAVED_PS: u64 = 1_000_000_000_000;
/// Instructions after which collected events are written while a window is open, when each instruction takes the host longer.
const UNSAVED_IN_WINDOW: u64 = 10_000_000;

impl Run<'_> {
    /// Runs one batch of quanta, and acts on the results. Returns the ending if the run ends.
    fn advance(
        &mut self,
        executor: &Executor,
        run_batch: &mut RunBatch<'_>,
        interrupted: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<Option<Ending>, RunError> {
        // A snapshot is taken before windows open at the same time.
        if self.save_if_due(executor, observer)? {
            return Ok(Some(Ending::Saved));
        }
        let mut events = Vec::new();
        let (windows, monitors) = (&mut self.windows, &self.monitors);
        let engines = &mut self.engines;
        let stepped = windows.step(executor, monitors, engines, self.now_ps, &mut events);
        self.write_host_events(events)?;
        stepped?;
        self.warnings.append(&mut self.windows.lost());
        // A window that has just closed may have delayed a snapshot.
        if self.save_if_due(executor, observer)? {
            return Ok(Some(Ending::Saved));
        }
        let open = self.windows.open();
        let phase = open.map_or(self.monitors[0].phase, |(_, phase)| phase);
        let window = open.map(|(spec, _)| spec.name.as_str());
        if self.span.follow(phase, window) {
            observer.phase(phase, window, &|| self.progress(executor));
        }
        self.counting.follow(phase)?;
        for node in executor.own() {
            let typed = observer.typed(node as u32);
            if !typed.is_empty() {
                executor.with_node(node, |n| n.type_console(&typed));
            }
        }
        // Before `activity`, no node has anything to do. From then on, nothing that a node does reaches another node for one lookahead.
        // While no network interface is up, nothing reaches another node at all.
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
                if self.monitors.iter().all(|w| w.status == NodeStatus::Off) {
                    Ending::PoweredOff
                } else {
                    Ending::Hung
                },
            ));
        }
        let connected_ps = match self.engines.current() {
            EngineName::Portable => lookahead.unwrap_or(u64::MAX).min(LONGEST_QUANTUM_PS),
            EngineName::Kvm => self.config.kvm_quantum_ps,
        };
        let disconnected_lookahead_ps = LONGEST_QUANTUM_PS.max(connected_ps);
        let lookahead = if executor.any_connected() {
            connected_ps
        } else {
            disconnected_lookahead_ps
        };
        let end_limit_ps = self.config.time_limit_ps;
        let (reached, statuses) = run_batch(QuantumBatch {
            first_end_ps: (activity.max(self.now_ps) + lookahead).min(end_limit_ps),
            lookahead_ps: connected_ps,
            disconnected_lookahead_ps,
            end_limit_ps,
            start_limit_ps: self.next_action_ps(),
            quanta_left: (LONGEST_BATCH_PS / self.slowness() / lookahead).clamp(1, MOST_QUANTA),
        });
        // All processes must make the same decision, whenever the signal comes.
        let agreed = AtomicBool::new(executor.is_interrupted(interrupted));
        let interrupted = match executor.distribution() {
            Some(_) => &agreed,
            None => interrupted,
        };
        self.now_ps = match interrupted.load(Ordering::Relaxed) {
            // Nodes stop at once when they see the interruption, before the end of the quantum.
            true => executor.reached_ps().clamp(self.now_ps, reached),
            false => reached,
        };
        executor.network().check()?;
        self.collect(executor, observer)?;
        self.check_images()?;
        self.save(executor)?;
        if statuses.is_err()
            && let Some(panic) = self.panic()
        {
            // The message of a panic says more than the triple fault that may follow.
            return Ok(Some(panic));
        }
        for (monitor, status) in self.monitors.iter_mut().zip(statuses?) {
            monitor.status = status;
        }
        observer.progress(&|| self.progress(executor));
        Ok(match self.ending(interrupted) {
            Some(ending) => Some(ending),
            None => self.deadlock(interrupted)?,
        })
    }

    /// Returns the factor by which a batch takes the host longer than a batch of [`VCPUS`] vCPUs; at least 1.
    fn slowness(&self) -> u64 {
        let vcpus = |guest| u64::from(self.config.topology_of(guest).vcpus());
        let vcpus: u64 = (0..self.config.guests()).map(vcpus).sum();
        vcpus.div_ceil(VCPUS).max(1)
    }

    /// Writes the collected events into the trace, once they have waited long enough.
    fn save(&mut self, executor: &Executor) -> Result<(), RunError> {
        if !self.trace.has_collected() {
            return Ok(());
        }
        let instructions = (0..executor.len()).map(|n| executor.instructions(n)).sum();
        let most = match self.windows.open() {
            Some(_) => UNSAVED_IN_WINDOW,
            None => UNSAVED,
        };
        // KVM does not count instructions, and the trace of a run on KVM depends on the host in any case.
        let on_kvm = self.engines.current() == EngineName::Kvm;
        let waited_ps = self.now_ps - self.saved_ps;
        if instructions >= self.saved_instructions.saturating_add(most)
            || on_kvm && waited_ps >= UNSAVED_PS
        {
            self.trace.flush()?;
            self.saved_instructions = instructions;
            self.saved_ps = self.now_ps;
            tracing::debug!(instructions, "the trace is saved");
        }
        Ok(())
    }

    /// Checks that the guests could read all disk blocks that they requested. An error in a guest after a failed read is not the guest's
    /// fault.
    fn check_images(&self) -> Result<(), RunError> {
        let fault = self.images.iter().find_map(|image| image.fault());
        fault.map_or(Ok(()), |fault| {
            Err(RunError::Disk {
                fault: fault.clone(),
            })
        })
    }

    /// Returns the time until which the run has nothing to do between quanta, picoseconds: until then quanta may follow each other as long
    /// as no node wants attention.
    fn next_action_ps(&self) -> u64 {
        let reset = |w: &NodeMonitor| w.status == NodeStatus::Reset;
        if self.monitors.iter().any(reset) {
            return 0;
        }
        // The other nodes have `GRACE_PS` to power off after the first one.
        let stragglers = match self.monitors[0].status {
            NodeStatus::Running => u64::MAX,
            _ => self.off_since.unwrap_or(self.now_ps) + GRACE_PS + 1,
        };
        let deadlock = match self.config.deadlock_ps {
            Some(patience) if !self.searched_for_deadlock => self.active_ps + patience,
            _ => u64::MAX,
        };
        // A user who types expects an answer, even from an idle cluster.
        let console = match self.config.console {
            true => self.now_ps + CONSOLE_BATCH_PS,
            false => u64::MAX,
        };
        let until = self
            .windows
            .driver()
            .next_ps()
            .min(deadlock)
            .min(stragglers);
        let until = until.min(self.engines.next_ps());
        until.min(console).min(self.config.time_limit_ps)
    }

    fn progress(&self, executor: &Executor) -> Progress {
        let open = self.windows.open();
        let instructions: Vec<u64> = (0..executor.len())
            .map(|n| executor.instructions(n))
            .collect();
        let driver = self.windows.driver();
        let window = driver.open().map(|window| {
            let (instructions_left, ps_left) =
                driver.left(window, self.now_ps, instructions.iter().sum());
            WindowProgress {
                name: driver.spec(window).name.clone(),
                instructions_left,
                ps_left,
            }
        });
        Progress {
            virtual_ps: self.now_ps,
            phases: phases(
                &self.monitors[..self.config.nodes as usize],
                open.map(|(_, phase)| phase),
            ),
            instructions,
            window,
        }
    }

    /// Returns the ending for the first node whose kernel has panicked; `None` if no kernel has.
    fn panic(&self) -> Option<Ending> {
        (0..).zip(&self.monitors).find_map(|(node, monitor)| {
            let line = monitor.panic.clone()?;
            Some(Ending::GuestPanic { node, line })
        })
    }

    fn ending(&mut self, interrupted: &AtomicBool) -> Option<Ending> {
        if let Some(panic) = self.panic() {
            return Some(panic);
        }
        for (node, monitor) in (0..).zip(&self.monitors) {
            if monitor.status == NodeStatus::Reset {
                return Some(Ending::Reset { node });
            }
        }
        if self.monitors.iter().all(|w| w.status == NodeStatus::Off) {
            return Some(Ending::PoweredOff);
        }
        if interrupted.load(Ordering::Relaxed) {
            return Some(Ending::Interrupted);
        }
        if self.now_ps >= self.config.time_limit_ps {
            return Some(Ending::TimeLimit);
        }
        if self.monitors[0].status == NodeStatus::Off {
            let since = *self.off_since.get_or_insert(self.now_ps);
            if self.now_ps - since > GRACE_PS {
                let running = |(_, w): &(u32, &NodeMonitor)| w.status == NodeStatus::Running;
                return Some(Ending::Stragglers {
                    nodes: (0..)
                        .zip(&self.monitors)
                        .filter(running)
                        .map(|(n, _)| n)
                        .collect(),
                });
            }
        }
        None
    }

    /// Takes console output and hypercalls of the batch that has just ended: writes logs, files and trace events, and passes messages to
    /// the observer.
    fn collect(
        &mut self,
        executor: &Executor,
        observer: &mut dyn Observer,
    ) -> Result<(), RunError> {
        let mut streams = Vec::new();
        let mut files_grew = false;
        let clock = NodeClock {
            hz: self.config.topology.tsc_hz,
        };
        for index in 0..executor.len() {
            if !executor.has_output(index) {
                continue;
            }
            let (console, events) = executor.take_output(index);
            let monitor = &mut self.monitors[index];
            if !console.is_empty() {
                let before = monitor.booted;
                monitor.read_console(&console);
                if monitor.booted && !before {
                    self.booted_ps = Some(self.now_ps);
                }
                observer.console(index as u32, &console);
                self.results.console(index, &console)?;
            }
            let mut stream = Vec::new();
            for event in events {
                let stamp = Stamp {
                    time: clock.ps(event.cycles),
                    instructions: event.instructions,
                    vcpu: event.vcpu.into(),
                };
                match &event.request {
                    Request::Hello(hello) => monitor.owners.hello(event.cr3, hello),
                    Request::Message(text) => {
                        monitor.message(text, |line| observer.message(index as u32, line));
                    }
                    Request::PutFile(chunk) => {
                        files_grew = true;
                        if let Some(why) = &event.refused {
                            observer.refused_file(index as u32, &chunk.name, why);
                            continue;
                        }
                        match self.results.chunk(chunk)? {
                            Stored::Impossible(why) => {
                                observer.refused_file(index as u32, &chunk.name, &why);
                                monitor.note_unstorable_file(&chunk.name, &why);
                            }
                            _ if chunk.last => observer.file(index as u32, &chunk.name),
                            _ => {}
                        }
                    }
                    Request::JobExit(status) => self.job_status = Some(*status),
                    _ => {}
                }
                let is_activity = match &event.request {
                    Request::MpiEnter(enter, _) => !enter.function.polls(),
                    request => !matches!(request, Request::MpiPollFailed(_)),
                };
                if is_activity {
                    self.active_ps = self.active_ps.max(stamp.time.min(self.now_ps));
                    self.searched_for_deadlock = false;
                }
                monitor.assembler.request(event.request, stamp, &mut stream);
            }
            let is_traced = index < self.config.nodes as usize;
            if is_traced && !stream.is_empty() {
                streams.push(stream);
            }
        }
        if files_grew {
            self.share_file_bytes(executor);
        }
        if !streams.is_empty() {
            for event in merge(streams) {
                self.windows.observe(&event);
                self.engines.observe(&event);
                if let Some(saving) = &mut self.saving {
                    saving.observe(&event);
                }
                self.trace.write(&event)?;
            }
        }
        Ok(())
    }

    /// Sets in all nodes how many bytes guests may still add to the results.
    fn share_file_bytes(&self, executor: &Executor) {
        let used = (0..executor.len()).map(|n| executor.file_bytes(n));
        let left = self.config.file_limits.study.saturating_sub(used.sum());
        executor.with_own(|n| n.set_file_bytes_left(left));
    }

    /// Writes events that the host causes, such as windows, into the trace.
    fn write_host_events(
        &mut self,
        bodies: impl IntoIterator<Item = Body>,
    ) -> Result<(), RunError> {
        let stamp = self.stamp();
        let mut events = Vec::new();
        for body in bodies {
            let assembler = &mut self.monitors[0].assembler;
            assembler.host(body, stamp, &mut events);
        }
        for event in events {
            self.trace.write(&event)?;
        }
        Ok(())
    }

    /// Returns the present time as the stamp of an event that no vCPU has caused.
    fn stamp(&self) -> Stamp {
        Stamp {
            time: self.now_ps,
            instructions: 0,
            vcpu: 0,
        }
    }

    /// Closes the open window, writes the rest of the trace and the results, and returns the outcome. Without an ending, the run has
    /// failed.
    fn finish(mut self, executor: &Executor, ending: Option<&Ending>) -> Result<Outcome, RunError> {
        let instructions: Vec<u64> = (0..executor.len())
            .map(|n| executor.instructions(n))
            .collect();
        let total = instructions.iter().take(self.config.nodes as usize).sum();
        let (windows, monitors) = (&mut self.windows, &self.monitors);
        let closed = windows.stop(executor, monitors, self.now_ps, total);
        self.warnings.append(&mut self.windows.lost());
        self.write_host_events(closed)?;
        let stamp = self.stamp();
        let streams: Vec<Vec<Event>> = self
            .monitors
            .iter_mut()
            .take(self.config.nodes as usize)
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
        let mut of_nodes = executor.gather_notes();
        for (node, monitor) in self.monitors.iter().enumerate() {
            let mut notes = of_nodes.remove(&node).unwrap_or_default();
            notes.extend(monitor.notes());
            let name = match self.config.nodes as usize {
                nodes if node < nodes => format!("node {node}"),
                _ => self.config.name_of(node as u32),
            };
            let notes = notes.iter().map(|text| format!("{name}: {text}"));
            self.warnings.extend(notes);
        }
        self.warnings.extend(self.results.notes());
        let unknown = self.windows.driver().unknown_names().iter();
        self.warnings.extend(unknown.map(|name| {
            let name = printable(name);
            format!("the guest opened a window \"{name}\" that the study does not have")
        }));
        let engines = self.engines.spans(self.now_ps);
        let counted = self.counting.finish();
        let (windows, code, files) = self.windows.finish();
        let folder = self.results.folder();
        folder.reserve(&WindowsFile::partial_name())?;
        windows.write(folder.reserve(WindowsFile::NAME)?)?;
        for (name, bytes) in &files {
            folder.write(name, bytes)?;
        }
        // Profiles are written last: finding names takes longer the more nodes there are, and an interrupted run may not have the time.
        let profiles = code.finish(executor);
        if let Some(profiles) = &profiles {
            folder.reserve(&ProfilesFile::partial_name())?;
            profiles.write(folder.reserve(ProfilesFile::NAME)?)?;
        }
        let lost = executor.distribution().and_then(Distribution::lost);
        Ok(Outcome {
            ending: match lost {
                Some(why) => Ending::PeerLost { why },
                None => ending.cloned().unwrap_or(Ending::Interrupted),
            },
            job_status: self.job_status,
            virtual_ps: self.now_ps,
            instructions,
            network: executor.network().counts(),
            windows,
            profiles,
            engines,
            // This error is returned after everything is written: counters that cannot be read must not cost a window.
            counted: counted?,
            saved: self.saved,
            warnings: self.warnings,
        })
    }
}
