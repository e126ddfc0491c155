//! Opens and closes windows between batches of quanta: attaches models to all nodes, and records their counts.

use std::ops::Range;

use nodescope_plugin_api::VcpuPlace;
use nodescope_trace::{Body, Event};
use nodescope_window::{
    CoreRecord, HomeRange, NodeDescription, NodeRecord, StateFault, WindowAction, WindowDriver,
    WindowRecord, WindowSpec, WindowsFile, build_core_model, build_model,
};

use nodescope_profile::{ProfilesFile, WindowProfile};
use nodescope_symbols::Names;

use crate::attribution::{Attribution, Counted, ProfileBuilder};
use crate::config::ClusterConfig;
use crate::engines::{Engines, EnginesState};
use crate::executor::Executor;
use crate::monitor::NodeMonitor;
use crate::outcome::{Phase, RunError};
use crate::state::WindowsState;

/// Number of call stacks of a window that are kept of all nodes together, unless the limits for one node require more or fewer.
const SAMPLES: usize = 16 << 10;
/// Smallest number of a window's call stacks for which each node has room; `MOST_SAMPLES` is the largest. A call stack takes up to 16 KiB.
const FEWEST_SAMPLES: usize = 128;
const MOST_SAMPLES: usize = 4096;

/// The windows of a run, and the measurements of closed windows.
pub struct Windows<'a> {
    config: &'a ClusterConfig,
    driver: WindowDriver,
    records: Vec<WindowRecord>,
    code: WindowCode<'a>,
    /// Measured intervals of the open window so far, if it is sampled, and the beginning of the running interval.
    intervals_ps: Vec<(u64, u64)>,
    interval_from_ps: Option<u64>,
    /// Files of observers, by their names in the results.
    files: Vec<(String, Vec<u8>)>,
    /// Sentences for the user about windows whose measurements are lost.
    lost: Vec<String>,
}

/// Folder among the results with the files of observers.
const MODELS: &str = "models";

/// Reason for a window without measurements. A window is recorded only if the records of all nodes are available.
const LOST: &str = "its measurements are lost with the process that died";

/// Profiles of the code of windows that have closed.
pub struct WindowCode<'a> {
    config: &'a ClusterConfig,
    attribution: Option<Attribution>,
    profiles: Vec<WindowProfile>,
    /// Name and counts, by node of this process, of the last window, whose code has no names yet.
    unnamed: Option<(String, Vec<OfNode>)>,
}

/// Number of a node of this process, and what was counted there; `None` where nothing is attributed.
type OfNode = (usize, Option<Counted>);

impl WindowCode<'_> {
    /// Finds the names of the code of the window that closed last, while guests' memory is as it was then, and adds the profile of all
    /// nodes.
    fn name(&mut self, executor: &Executor) {
        let Some((name, nodes)) = self.unnamed.take() else {
            return;
        };
        let config = self.config;
        let attribution = self.attribution.get_or_insert_with(|| {
            let names = match &config.names_program {
                Some(program) => Names::in_process(program),
                None => Names::here(),
            };
            Attribution::new(&config.kernel, &config.root, names)
        });
        let mut profile = ProfileBuilder::new(&name);
        for (index, counted) in &nodes {
            if let Some(counted) = counted {
                executor.with_node(*index, |n| attribution.add(&mut profile, n, counted));
            }
        }
        let Some(parts) = executor.gather_parts(profile.finish()) else {
            return;
        };
        let parts = parts.into_iter();
        self.profiles.extend(parts.reduce(|first, next| {
            let mut all = ProfileBuilder::from(first);
            all.append(next);
            all.finish()
        }));
    }

    /// Finds the names of the remaining code, and returns all profiles; `None` if no window of the study has attribution.
    pub fn finish(mut self, executor: &Executor) -> Option<ProfilesFile> {
        self.name(executor);
        let attributed = self.config.windows.iter().any(|window| window.attribution);
        attributed.then(|| ProfilesFile {
            version: ProfilesFile::VERSION,
            study: self.config.name.clone(),
            study_id: self.config.study_id.clone(),
            windows: self.profiles,
        })
    }
}

impl<'a> Windows<'a> {
    /// Returns the study's windows, none of which is open.
    pub fn new(config: &'a ClusterConfig) -> Result<Self, RunError> {
        Ok(Self {
            config,
            driver: WindowDriver::new(config.windows.clone())?,
            records: Vec::new(),
            code: WindowCode {
                config,
                attribution: None,
                profiles: Vec::new(),
                unnamed: None,
            },
            intervals_ps: Vec::new(),
            interval_from_ps: None,
            files: Vec::new(),
            lost: Vec::new(),
        })
    }

    /// Returns the state for [`Windows::load`]. No window may be open.
    pub fn state(&self, engines: EnginesState) -> Result<WindowsState, StateFault> {
        Ok(WindowsState {
            driver: self.driver.state()?,
            records: self.records.clone(),
            profiles: self.code.profiles.clone(),
            files: self.files.clone(),
            engines,
        })
    }

    /// Continues from the state in a snapshot. Returns the indices of windows that the snapshot's study did not have
    /// ([`WindowDriver::load`]).
    pub fn load(&mut self, state: WindowsState) -> Result<Vec<usize>, StateFault> {
        let others = self.driver.load(state.driver)?;
        self.records = state.records;
        self.files = state.files;
        self.code.profiles = state.profiles;
        Ok(others)
    }

    /// Shows an event from before the snapshot to the windows with these indices, which the snapshot's study did not have.
    pub fn catch_up(&mut self, windows: &[usize], event: &Event) {
        self.driver.catch_up(windows, event);
    }

    /// Tells windows that open with the job that the job started before a snapshot at `now_ps`.
    pub fn job_started(&mut self, now_ps: u64) {
        self.driver.job_started(now_ps);
    }

    /// Returns the driver, which decides when windows open and close.
    pub fn driver(&self) -> &WindowDriver {
        &self.driver
    }

    /// Observes a recorded event.
    pub fn observe(&mut self, event: &Event) {
        self.driver.observe(event);
    }

    /// Returns the open window and its phase; `None` if no window is open.
    pub fn open(&self) -> Option<(&WindowSpec, Phase)> {
        let window = self.driver.open()?;
        let phase = match self.driver.times(window).measured_from_ps {
            Some(_) => Phase::Window,
            None => Phase::WarmUp,
        };
        Some((self.driver.spec(window), phase))
    }

    /// Opens and closes windows that are due, and moves nodes between engines. Adds the events for the trace to `events`, even where a
    /// model cannot be built.
    pub fn step(
        &mut self,
        executor: &Executor,
        monitors: &[NodeMonitor],
        engines: &mut Engines,
        now_ps: u64,
        events: &mut Vec<Body>,
    ) -> Result<(), RunError> {
        if self.driver.is_empty() || self.driver.is_done() {
            return Ok(engines.step(executor, now_ps)?);
        }
        let first = monitors.first();
        if first.is_some_and(|first| first.phase != Phase::Boot) {
            self.driver.job_started(now_ps);
        }
        let mut changed = false;
        let instructions = (0..self.config.nodes as usize)
            .map(|n| executor.instructions(n))
            .sum();
        if (0..self.config.nodes as usize).any(|n| executor.wants_interval(n)) {
            self.driver.request_interval();
        }
        for action in self.driver.step(now_ps, instructions) {
            changed = true;
            match action {
                WindowAction::Attach(window) => {
                    events.push(Body::WindowOpen(self.driver.spec(window).name.clone()));
                    engines.measure(executor, now_ps)?;
                    self.attach(executor, window)?;
                }
                WindowAction::StartMeasuring(window) => {
                    self.begin_interval(window, now_ps);
                    for n in self.measured(executor) {
                        executor.with_node(n, |n| n.start_measuring());
                    }
                }
                WindowAction::Pause(_) => {
                    self.end_interval(now_ps);
                    let nominal = self.config.nominal_cpi;
                    for n in self.measured(executor) {
                        executor.with_node(n, |n| n.pause(nominal));
                    }
                }
                WindowAction::Resume(_) => {
                    for n in self.measured(executor) {
                        executor.with_node(n, |n| n.resume());
                    }
                }
                WindowAction::StartInterval(window) => {
                    self.begin_interval(window, now_ps);
                    for n in self.measured(executor) {
                        executor.with_node(n, |n| n.start_interval());
                    }
                }
                WindowAction::Detach(window) => {
                    events.push(self.detach(executor, monitors, window, now_ps));
                    self.code.name(executor);
                }
            }
        }
        if self.driver.open().is_none() {
            engines.step(executor, now_ps)?;
        }
        if changed {
            executor.gather()?;
        }
        Ok(())
    }

    fn begin_interval(&mut self, window: usize, now_ps: u64) {
        if self.driver.spec(window).sampling.is_some() {
            self.interval_from_ps = Some(now_ps);
        }
    }

    fn end_interval(&mut self, now_ps: u64) {
        let from = self.interval_from_ps.take();
        self.intervals_ps.extend(from.map(|from| (from, now_ps)));
    }

    /// Closes the open window at the end of the run. Returns the event for the trace; `None` if no window was open. The names of the
    /// window's code are found later.
    pub fn stop(
        &mut self,
        executor: &Executor,
        monitors: &[NodeMonitor],
        now_ps: u64,
        instructions: u64,
    ) -> Option<Body> {
        match self.driver.stop(now_ps, instructions) {
            Some(WindowAction::Detach(window)) => {
                Some(self.detach(executor, monitors, window, now_ps))
            }
            _ => None,
        }
    }

    /// Returns sentences for the user about windows whose measurements are lost, each once.
    pub fn lost(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lost)
    }

    /// Returns the measurements of all windows with the outcome of each, the profiles of their code, and the files of observers.
    pub fn finish(self) -> (WindowsFile, WindowCode<'a>, Vec<(String, Vec<u8>)>) {
        let windows = WindowsFile {
            version: WindowsFile::VERSION,
            study: self.config.name.clone(),
            study_id: self.config.study_id.clone(),
            windows: self.records,
            outcomes: self.driver.finish(),
        };
        (windows, self.code, self.files)
    }

    fn places(&self) -> Vec<VcpuPlace> {
        let topology = &self.config.topology;
        let place = |p: nodescope_machine::topology::VcpuPlace| VcpuPlace {
            core: (p.socket * topology.cores_per_socket + p.core) as u16,
            socket: p.socket as u16,
        };
        topology.places().map(place).collect()
    }

    /// Returns the numbers of this process's nodes that windows measure: all but a file server.
    fn measured(&self, executor: &Executor) -> Range<usize> {
        let (own, nodes) = (executor.own(), self.config.nodes as usize);
        own.start.min(nodes)..own.end.min(nodes)
    }

    fn attach(&self, executor: &Executor, window: usize) -> Result<(), RunError> {
        let places = self.places();
        let spec = self.driver.spec(window);
        let samples =
            (SAMPLES / (self.config.nodes as usize).max(1)).clamp(FEWEST_SAMPLES, MOST_SAMPLES);
        for n in self.measured(executor) {
            let ranges: Vec<HomeRange> = executor.with_node(n, |n| {
                let range = |r: &nodescope_memory::NumaRange| HomeRange {
                    start: r.start,
                    length: r.len,
                    socket: r.node as u16,
                };
                n.ram().numa().iter().map(range).collect()
            });
            let node = NodeDescription {
                places: &places,
                ranges: &ranges,
                hertz: self.config.topology.tsc_hz,
            };
            let model = build_model(&spec.models, &node, &self.config.registry)?;
            let samples = spec.attribution.then_some(samples);
            let core = build_core_model(&spec.models, spec.sampling.is_some())?;
            let core = core.filter(|_| spec.attribution);
            executor.with_node(n, |n| {
                if let Some(core) = core {
                    n.model_core(core);
                }
                n.attach(model, samples);
            });
        }
        Ok(())
    }

    fn detach(
        &mut self,
        executor: &Executor,
        monitors: &[NodeMonitor],
        window: usize,
        now_ps: u64,
    ) -> Body {
        self.end_interval(now_ps);
        let intervals_ps = std::mem::take(&mut self.intervals_ps);
        let places = self.places();
        let spec = self.driver.spec(window).clone();
        let name = spec.name.clone();
        let mut unnamed = Vec::new();
        let mut files: Vec<(String, Vec<u8>)> = Vec::new();
        let measured = self.measured(executor);
        let record = |index: usize| {
            let monitor = &monitors[index];
            let (measurement, clock) = executor.with_node(index, |n| (n.detach(), n.clock()));
            let counted = measurement.blocks.map(|blocks| Counted {
                blocks,
                samples: measurement.samples,
                contended: measurement.contended,
                spaces: measurement.activities.iter().map(|a| a.cr3).collect(),
            });
            unnamed.push((index, counted));
            files.extend(measurement.files.into_iter().map(|file| {
                let name = format!("{MODELS}/{}-{name}-node{index}", file.model);
                (name, file.bytes)
            }));
            let activities = measurement.activities.iter();
            NodeRecord {
                node: index as u32,
                name: format!("node{index}"),
                frequency_hz: clock.hz,
                nominal_cpi_65536: self.config.nominal_cpi,
                vcpus: places.clone(),
                cycles: measurement.cycles,
                counters: measurement.counters,
                statistics: measurement.statistics,
                core: measurement.core.map(|costs| CoreRecord {
                    core: costs.core,
                    timed: costs.timed,
                    intervals: measurement.intervals,
                }),
                owners: activities
                    .map(|a| monitor.owners.owner(a.cr3, a.function))
                    .collect(),
            }
        };
        let nodes: Vec<NodeRecord> = measured.map(record).collect();
        let parts = executor.gather_parts((nodes, files));
        let Some(parts) = parts else {
            self.lost.push(format!("window \"{name}\": {LOST}"));
            return Body::WindowClose(name);
        };
        let (nodes, files): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let nodes = nodes.into_iter().flatten().collect();
        self.files.extend(files.into_iter().flatten());
        if spec.attribution {
            self.code.unnamed = Some((name.clone(), unnamed));
        }
        let times = self.driver.times(window);
        self.records.push(WindowRecord {
            name: name.clone(),
            spec,
            triggered_ps: times.triggered_ps.unwrap_or(now_ps),
            opened_ps: times.opened_ps.unwrap_or(now_ps),
            measured_from_ps: times.measured_from_ps,
            closed_ps: times.closed_ps.unwrap_or(now_ps),
            complete: self.driver.is_complete(window),
            intervals_ps,
            nodes,
        });
        Body::WindowClose(name)
    }
}
