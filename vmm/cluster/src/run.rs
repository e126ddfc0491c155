//! From power-on to the end of the job.

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
use crate::executor::{Executor, Stretch};
use crate::folder::ResultsFolder;
use crate::network::Network;
use crate::outcome::{Ending, Observer, Outcome, Progress, RunError, WindowProgress};
use crate::results::{Results, Stored, console_log};
use crate::saving::{Options, Saved, Saving};
use crate::snapshot::{self, Origin};
use crate::spans::PhaseSpan;
use crate::watch::{Watch, phases};
use crate::windows::Windows;

/// Longest quantum, picoseconds: how often nodes are looked at that cannot hear of each other.
const LONGEST_QUANTUM_PS: u64 = 100_000_000;
/// Node 0 is off: the others have this much virtual time to follow, picoseconds.
const GRACE_PS: u64 = 2_000_000_000_000;
/// File name of the trace among the results.
pub const TRACE_FILE: &str = "trace.nst";
/// File name of the packet capture among the results.
pub const CAPTURE_FILE: &str = "fabric.pcap";
/// File name of the job disk's contents among the results.
pub const JOB_DISK: &str = "job.disk";

/// The files that a run is known to make, by their names in the results folder. Files that guests send are not among them.
pub fn file_names(config: &ClusterConfig) -> Vec<String> {
    let attributed = config.windows.iter().any(|window| window.attribution);
    let fixed = [JOB_DISK, TRACE_FILE, WindowsFile::NAME].map(String::from);
    (0..config.nodes)
        .map(console_log)
        .chain(fixed)
        .chain(config.capture.then(|| CAPTURE_FILE.into()))
        .chain(attributed.then(|| ProfilesFile::NAME.into()))
        .collect()
}

/// Run a study from power-on. See [`run_with`].
pub fn run(
    config: &ClusterConfig,
    folder: &ResultsFolder,
    interrupted: &Arc<AtomicBool>,
    observer: &mut dyn Observer,
) -> Result<Outcome, RunError> {
    run_with(config, folder, interrupted, observer, Options::default())
}

/// Run a study. When `interrupted` is set, the run ends within a few milliseconds of the host's time, wherever the guests are.
pub fn run_with(
    config: &ClusterConfig,
    folder: &ResultsFolder,
    interrupted: &Arc<AtomicBool>,
    observer: &mut dyn Observer,
    options: Options<'_>,
) -> Result<Outcome, RunError> {
    let from = options.from;
    let restoring = from.map(|_| tracing::info_span!("restore").entered());
    let renews = match from {
        Some(origin) => origin.check(config, options.image)?,
        None => false,
    };
    let count = config.nodes as usize;
    let distributed = |what| Err(RunError::Distributed { what });
    match options.peers {
        Some(_) if config.engine.uses_kvm() => return distributed("cannot use KVM"),
        Some(_) if options.save.is_some() => return distributed("cannot take a snapshot"),
        _ => {}
    }
    let distribution = match options.peers {
        Some(peers) => Some(Distribution::new(peers, count, Arc::clone(interrupted))?),
        None => None,
    };
    let own = (distribution.as_ref()).map_or(0..count, Distribution::own);
    let results = Results::create(folder, config.nodes)?;
    let job_disk = folder.write(JOB_DISK, &config.job_disk)?;
    let earlier = from.map(|origin| origin.state());
    let earlier = earlier.transpose()?;
    let (switch, nodes) = match (from, &earlier) {
        (Some(origin), Some((state, _))) => origin.build(config, &job_disk, state, renews, own)?,
        _ => build_some(config, &job_disk, own)?,
    };
    let entries = (0..count)
        .map(|n| NodeEntry {
            name: format!("node{n}"),
            vcpus: config.topology.vcpus(),
            frequency_hz: config.topology.tsc_hz,
        })
        .collect();
    let header = Header::new(&config.name, &config.study_id, entries);
    let path = folder.reserve(TRACE_FILE)?;
    let trace = match (from, &earlier) {
        (Some(origin), Some((state, _))) if !renews => {
            let written = origin.content(snapshot::TRACE, folder.path())?;
            TraceWriter::resume(path, &header, written, state.trace.clone())?
        }
        _ => TraceWriter::create(path, &header)?,
    };
    let capture = match config.capture {
        true => {
            let path = folder.reserve(CAPTURE_FILE)?;
            let captured = |origin: &&Origin| !renews && origin.has(snapshot::CAPTURE);
            Some(match from.filter(captured) {
                Some(origin) => {
                    Capture::resume(&path, origin.content(snapshot::CAPTURE, folder.path())?)?
                }
                None => Capture::create(&path)?,
            })
        }
        false => None,
    };
    // All nodes have the same.
    let images = nodes.first().map(Node::images).unwrap_or_default();
    let mut run = Run {
        config,
        results,
        images,
        trace,
        windows: Windows::new(config)?,
        engines: Engines::new(config),
        counting: Counting::new(config.counting.clone()),
        watches: (0..count).map(|n| Watch::new(n as u32)).collect(),
        job_status: None,
        off_since: None,
        now_ps: 0,
        active_ps: 0,
        judged: false,
        saved_at: 0,
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
        match renews {
            true => run.renew(origin, &state)?,
            false => run.load(origin, state, windows, executor.statuses(), observer)?,
        }
    }
    drop(restoring);
    executor.with_own(|n| {
        let functions = run.windows.driver().functions().into_iter();
        n.heed(functions.chain(run.engines.function()).collect());
        n.set_stop(Arc::clone(interrupted));
    });
    let result = executor.run(config.host_threads, |quanta| {
        loop {
            match run.turn(&executor, quanta, interrupted, observer) {
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
    // Whatever happened, what is known is written.
    let finished = run.finish(&executor, result.as_ref().ok());
    match (result, finished) {
        // Measurements of a process that died are lost; those of all others are kept.
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
    pub(crate) watches: Vec<Watch>,
    pub(crate) job_status: Option<i32>,
    pub(crate) off_since: Option<u64>,
    pub(crate) now_ps: u64,
    /// When a call of MPI last began or ended, polls that find nothing aside.
    pub(crate) active_ps: u64,
    /// Since then it has been found that this is no deadlock.
    pub(crate) judged: bool,
    /// Instructions of all nodes when the trace was last saved.
    pub(crate) saved_at: u64,
    /// Virtual time then.
    pub(crate) saved_ps: u64,
    /// When a node's console last said that the node has booted.
    pub(crate) booted_ps: Option<u64>,
    span: PhaseSpan,
    pub(crate) warnings: Vec<String>,
    /// The snapshot that is to be taken, and the one that was.
    pub(crate) saving: Option<Saving>,
    pub(crate) saved: Option<Saved>,
    /// See [`Options::image`].
    pub(crate) image: &'a str,
}

type Quanta<'a> = dyn FnMut(Stretch) -> (u64, Result<Vec<NodeStatus>, RunError>) + 'a;

/// Between two looks at the host, who may type or end the run: so much virtual time where nodes are awake, which takes the host
/// some milliseconds, and so many quanta.
const LONGEST_STRETCH_PS: u64 = 1_000_000_000;
const MOST_QUANTA: u64 = 256;
/// A cluster with somebody at a console does not run on for longer than this, picoseconds, however idle it is.
const CONSOLE_STRETCH_PS: u64 = 10_000_000_000;
/// With more vCPUs than these a stretch is shorter, since it takes the host longer.
const VCPUS: u64 = 64;

/// Events wait to be written for this many instructions of all nodes. The host takes about a second at most for them: a run that is
/// killed loses no more. Instructions stand for time here, because the bytes of a trace must not depend on the host.
const UNSAVED: u64 = 100_000_000;
/// The limit on KVM, picoseconds of virtual time.
const UNSAVED_PS: u64 = 1_000_000_000_000;
/// The limit while a window is open, when the host needs longer for an instruction.
const UNSAVED_IN_WINDOW: u64 = 10_000_000;

impl Run<'_> {
    /// The quanta until something happens, and what follows from it.
    fn turn(
        &mut self,
        executor: &Executor,
        quanta: &mut Quanta<'_>,
        interrupted: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<Option<Ending>, RunError> {
        // Before windows that the same moment opens.
        if self.save_if_due(executor, observer)? {
            return Ok(Some(Ending::Saved));
        }
        let mut said = Vec::new();
        let (windows, watches) = (&mut self.windows, &self.watches);
        let engines = &mut self.engines;
        let stepped = windows.step(executor, watches, engines, self.now_ps, &mut said);
        self.note(said)?;
        stepped?;
        self.warnings.append(&mut self.windows.lost());
        // Behind one that has closed.
        if self.save_if_due(executor, observer)? {
            return Ok(Some(Ending::Saved));
        }
        let open = self.windows.open();
        let phase = open.map_or(self.watches[0].phase, |(_, phase)| phase);
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
        let connected_ps = match self.engines.current() {
            EngineName::Portable => lookahead.unwrap_or(u64::MAX).min(LONGEST_QUANTUM_PS),
            EngineName::Kvm => self.config.kvm_quantum_ps,
        };
        let apart_ps = LONGEST_QUANTUM_PS.max(connected_ps);
        let lookahead = if executor.any_connected() {
            connected_ps
        } else {
            apart_ps
        };
        let limit_ps = self.config.time_limit_ps;
        let (reached, statuses) = quanta(Stretch {
            first_ps: (activity.max(self.now_ps) + lookahead).min(limit_ps),
            lookahead_ps: connected_ps,
            apart_ps,
            limit_ps,
            until_ps: self.undisturbed_ps(),
            most: (LONGEST_STRETCH_PS / self.slowness() / lookahead).clamp(1, MOST_QUANTA),
        });
        // All processes must decide alike, whenever the signal comes.
        let agreed = AtomicBool::new(executor.is_interrupted(interrupted));
        let interrupted = match executor.distribution() {
            Some(_) => &agreed,
            None => interrupted,
        };
        self.now_ps = match interrupted.load(Ordering::Relaxed) {
            // Nodes stand still where they saw it.
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
            // The triple fault that ends a panic says less than its message.
            return Ok(Some(panic));
        }
        for (watch, status) in self.watches.iter_mut().zip(statuses?) {
            watch.status = status;
        }
        observer.progress(&|| self.progress(executor));
        Ok(match self.ending(interrupted) {
            Some(ending) => Some(ending),
            None => self.deadlock(interrupted)?,
        })
    }

    /// How many times longer than usual a stretch would take the host, by the number of vCPUs.
    fn slowness(&self) -> u64 {
        let vcpus = u64::from(self.config.nodes) * u64::from(self.config.topology.vcpus());
        vcpus.div_ceil(VCPUS).max(1)
    }

    /// Writes the events that have been collected, once they have waited long enough.
    fn save(&mut self, executor: &Executor) -> Result<(), RunError> {
        if !self.trace.has_collected() {
            return Ok(());
        }
        let instructions = (0..executor.len()).map(|n| executor.instructions(n)).sum();
        let most = match self.windows.open() {
            Some(_) => UNSAVED_IN_WINDOW,
            None => UNSAVED,
        };
        // KVM does not count instructions, and its traces depend on the host anyway.
        let on_kvm = self.engines.current() == EngineName::Kvm;
        let waited_ps = self.now_ps - self.saved_ps;
        if instructions >= self.saved_at.saturating_add(most) || on_kvm && waited_ps >= UNSAVED_PS {
            self.trace.flush()?;
            self.saved_at = instructions;
            self.saved_ps = self.now_ps;
            tracing::debug!(instructions, "the trace is saved");
        }
        Ok(())
    }

    /// Checks that the guests could read all blocks that they asked for. An error in a guest after a failed read is not the guest's
    /// fault.
    fn check_images(&self) -> Result<(), RunError> {
        let fault = self.images.iter().find_map(|image| image.fault());
        fault.map_or(Ok(()), |fault| {
            Err(RunError::Disk {
                fault: fault.clone(),
            })
        })
    }

    /// Until when quanta may follow each other as long as no node wants attention: nothing else is to be done between them.
    fn undisturbed_ps(&self) -> u64 {
        let reset = |w: &Watch| w.status == NodeStatus::Reset;
        if self.watches.iter().any(reset) {
            return 0;
        }
        // The others have some time to follow the first node.
        let stragglers = match self.watches[0].status {
            NodeStatus::Running => u64::MAX,
            _ => self.off_since.unwrap_or(self.now_ps) + GRACE_PS + 1,
        };
        let deadlock = match self.config.deadlock_ps {
            Some(patience) if !self.judged => self.active_ps + patience,
            _ => u64::MAX,
        };
        // Somebody who types wants an answer.
        let console = match self.config.console {
            true => self.now_ps + CONSOLE_STRETCH_PS,
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
            phases: phases(&self.watches, open.map(|(_, phase)| phase)),
            instructions,
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
        let mut files_grew = false;
        let clock = NodeClock {
            hz: self.config.topology.tsc_hz,
        };
        for index in 0..executor.len() {
            if !executor.has_output(index) {
                continue;
            }
            let (console, events) = executor.take_output(index);
            let watch = &mut self.watches[index];
            if !console.is_empty() {
                let before = watch.booted;
                watch.read_console(&console);
                if watch.booted && !before {
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
                    Request::Hello(hello) => watch.owners.hello(event.cr3, hello),
                    Request::Message(text) => {
                        watch.message(text, |line| observer.message(index as u32, line));
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
                                watch.impossible_file(&chunk.name, &why);
                            }
                            _ if chunk.last => observer.file(index as u32, &chunk.name),
                            _ => {}
                        }
                    }
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

    /// Tell all nodes what guests may still put among the results.
    fn share_file_bytes(&self, executor: &Executor) {
        let used = (0..executor.len()).map(|n| executor.file_bytes(n));
        let left = self.config.file_limits.study.saturating_sub(used.sum());
        executor.with_own(|n| n.set_file_bytes_left(left));
    }

    /// Events of the host into the trace.
    fn note(&mut self, said: impl IntoIterator<Item = Body>) -> Result<(), RunError> {
        let stamp = self.stamp();
        let mut events = Vec::new();
        for body in said {
            let assembler = &mut self.watches[0].assembler;
            assembler.host(body, stamp, &mut events);
        }
        for event in events {
            self.trace.write(&event)?;
        }
        Ok(())
    }

    /// Of what no vCPU has done.
    fn stamp(&self) -> Stamp {
        Stamp {
            time: self.now_ps,
            instructions: 0,
            vcpu: 0,
        }
    }

    /// Close what is open and write what is known.
    fn finish(mut self, executor: &Executor, ending: Option<&Ending>) -> Result<Outcome, RunError> {
        let instructions: Vec<u64> = (0..executor.len())
            .map(|n| executor.instructions(n))
            .collect();
        let total = instructions.iter().sum();
        let (windows, watches) = (&mut self.windows, &self.watches);
        let said = windows.stop(executor, watches, self.now_ps, total);
        self.warnings.append(&mut self.windows.lost());
        self.note(said)?;
        let stamp = self.stamp();
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
        let mut of_nodes = executor.gather_notes();
        for (node, watch) in self.watches.iter().enumerate() {
            let mut notes = of_nodes.remove(&node).unwrap_or_default();
            notes.extend(watch.notes());
            let notes = notes.iter().map(|text| format!("node {node}: {text}"));
            self.warnings.extend(notes);
        }
        let unknown = self.windows.driver().unknown_names().iter();
        self.warnings.extend(unknown.map(|name| {
            let name = printable(name);
            format!("the guest opened a window \"{name}\" that the study does not have")
        }));
        let engines = self.engines.spans(self.now_ps);
        let counted = self.counting.finish();
        let (windows, code) = self.windows.finish();
        let folder = self.results.folder();
        folder.reserve(&WindowsFile::partial_name())?;
        windows.write(folder.reserve(WindowsFile::NAME)?)?;
        // Names take longer the more nodes there are, and an interrupted run may not have the time.
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
            // Behind all that is written: counters that cannot be read must not cost a window.
            counted: counted?,
            saved: self.saved,
            warnings: self.warnings,
        })
    }
}
