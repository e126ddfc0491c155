//! Takes a snapshot of a run, and restores a run from a snapshot.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use nodescope_config::quantity::Bytes;
use nodescope_fabric::PortState;
use nodescope_machine::node::NodeStatus;
use nodescope_trace::TraceReader;
use nodescope_window::Moment;

use crate::agreement::Agreement;
use crate::distribution::Distribution;
use crate::executor::Executor;
use crate::monitor::NodeMonitor;
use crate::node_transfer;
use crate::outcome::{Observer, Phase, RunError};
use crate::results::FILES;
use crate::run::{Run, TRACE_FILE};
use crate::saving::{Saved, When, rounded};
use crate::snapshot::{self, About, Origin, SnapshotFault, Writing};
use crate::state::{RunState, WindowsState};

impl Run<'_> {
    /// Takes the snapshot if its moment has come and no window is open. Returns whether the run is to end after the snapshot.
    pub(crate) fn save_if_due(
        &mut self,
        executor: &Executor,
        observer: &mut dyn Observer,
    ) -> Result<bool, RunError> {
        let (now_ps, monitors) = (self.now_ps, &self.monitors);
        let Some(saving) = &mut self.saving else {
            return Ok(false);
        };
        let is_requested = |flag: &AtomicBool| executor.is_snapshot_requested(flag);
        if !saving.is_due(now_ps, monitors, is_requested) {
            return Ok(false);
        }
        if let Some((spec, _)) = self.windows.open() {
            if !std::mem::replace(&mut saving.notified, true) {
                observer.note(&format!(
                    "snapshot {}: waits for the end of window \"{}\", since models of open windows cannot be saved",
                    saving.save.name, spec.name
                ));
            }
            return Ok(false);
        }
        let save = saving.save.clone();
        match &save.when {
            When::At(_) => self.saving = None,
            When::Requested(flag) => {
                flag.store(false, Ordering::Relaxed);
                saving.notified = false;
            }
        }
        let at = save.when.to_string();
        let is_master = executor.distribution().is_none_or(Distribution::is_master);
        let bytes = match is_master {
            true => self.write(executor, observer, &save.name, &at, &save.path)?,
            false => {
                self.hand_over(executor)?;
                return Ok(save.stop);
            }
        };
        let saved = Saved {
            name: save.name,
            path: save.path,
            bytes,
            virtual_ps: now_ps,
        };
        observer.note(&format!(
            "snapshot {}: taken at {} of virtual time, {} in {}",
            saved.name,
            rounded(now_ps),
            Bytes(match bytes >> 20 {
                0 => bytes,
                whole => whole << 20,
            }),
            saved.path.display()
        ));
        self.saved = Some(saved);
        Ok(save.stop)
    }

    /// Writes a snapshot, and returns its size on disk in bytes.
    fn write(
        &mut self,
        executor: &Executor,
        observer: &dyn Observer,
        name: &str,
        at: &str,
        path: &std::path::Path,
    ) -> Result<u64, RunError> {
        let _span = tracing::info_span!("snapshot").entered();
        let mut writing = Writing::create(path)?;
        let own = executor.own();
        for index in 0..executor.len() {
            match own.contains(&index) {
                true => executor.with_node(index, |node| writing.node(index, node))?,
                false => {
                    let layout = &self.config.topology_of(index as u32).socket_memory;
                    let (state, ram) = node_transfer::receive(executor, index, layout)?;
                    writing.parts(index, &state, &ram)?;
                }
            }
        }
        let folder = self.results.folder().path();
        for index in 0..executor.len() {
            let log = folder.join(self.config.console_log(index as u32));
            writing.file(&snapshot::console(index), &log)?;
        }
        writing.file(snapshot::TRACE, &folder.join(TRACE_FILE))?;
        let ports = {
            let mut network = executor.network();
            if let Some(capture) = network.captured()? {
                writing.file(snapshot::CAPTURE, capture)?;
            }
            drop(network);
            self.ports(executor)?
        };
        let (files, begun) = self.results.files();
        for (index, file) in files.iter().enumerate() {
            let path = folder.join(FILES).join(file);
            if path.is_file() {
                writing.file(&snapshot::file(index), &path)?;
            }
        }
        let run = RunState {
            now_ps: self.now_ps,
            active_ps: self.active_ps,
            searched_for_deadlock: self.searched_for_deadlock,
            saved_instructions: self.saved_instructions,
            saved_ps: self.saved_ps,
            job_status: self.job_status,
            off_since: self.off_since,
            warnings: self.warnings.clone(),
            monitors: self.monitors.iter().map(NodeMonitor::state).collect(),
            files,
            begun,
            trace: self.trace.state(),
            ports,
            observer: observer.state(),
        };
        let engines = self.engines.state(self.now_ps);
        let windows = (self.windows.state(engines)).map_err(SnapshotFault::from)?;
        let about = About {
            name: name.into(),
            study: self.config.name.clone(),
            study_id: self.config.study_id.clone(),
            at: at.into(),
            virtual_ps: self.now_ps,
            instructions: (0..executor.len())
                .map(|n| executor.instructions(n))
                .collect(),
            windows: (windows.records.iter())
                .map(|window| window.name.clone())
                .collect(),
            agreement: Agreement::of(self.config, self.image)?,
            cloneable: executor.len() == 1 && self.booted_ps == Some(self.now_ps),
        };
        Ok(writing.finish(&about, &run, &windows)?)
    }

    /// Gives the master what this process has for a snapshot.
    fn hand_over(&self, executor: &Executor) -> Result<(), RunError> {
        let own = executor.own();
        for index in own {
            executor.with_node(index, |node| node_transfer::send(executor, index, node))?;
        }
        self.ports(executor)?;
        Ok(())
    }

    /// Returns the state of all ports of the switch. Frames that wait are those of their senders' processes, which have all bytes of them.
    fn ports(&self, executor: &Executor) -> Result<Vec<PortState>, RunError> {
        let own = executor.network().state()[executor.own()].to_vec();
        match executor.distribution() {
            None => Ok(own),
            Some(distribution) => Ok(distribution.gather_json(&own)?.concat()),
        }
    }

    /// Restores the run from a snapshot. The caller has built the snapshot's nodes and copied its trace.
    pub(crate) fn load(
        &mut self,
        origin: &Origin,
        state: RunState,
        windows: WindowsState,
        statuses: Vec<NodeStatus>,
        observer: &mut dyn Observer,
    ) -> Result<(), RunError> {
        for index in 0..self.monitors.len() {
            self.console(origin, index, index)?;
        }
        for (index, file) in state.files.iter().enumerate() {
            let path = (self.results.folder()).reserve(&format!("{FILES}/{file}"))?;
            let section = snapshot::file(index);
            if origin.has(&section) {
                origin.extract(&section, &path)?;
            }
        }
        self.results.reopen(state.begun);
        self.monitors = (0..)
            .zip(state.monitors)
            .zip(statuses)
            .map(|((node, monitor), status)| NodeMonitor::load(node, status, monitor))
            .collect();
        self.now_ps = state.now_ps;
        self.active_ps = state.active_ps;
        self.searched_for_deadlock = state.searched_for_deadlock;
        self.saved_instructions = state.saved_instructions;
        self.saved_ps = state.saved_ps;
        self.job_status = state.job_status;
        self.off_since = state.off_since;
        self.warnings = state.warnings;
        let loaded = observer.load(&state.observer);
        loaded.map_err(|problem| SnapshotFault::State {
            path: origin.path().into(),
            problem,
        })?;
        let measured = !windows.records.is_empty();
        let engines = (self.engines).load(windows.engines.clone(), measured, self.now_ps);
        let others = self.windows.load(windows).map_err(SnapshotFault::from)?;
        self.catch_up(origin, &others, engines)
    }

    /// Writes the console log of node `of` in the snapshot as the beginning of the log of node `index`.
    fn console(&mut self, origin: &Origin, of: usize, index: usize) -> Result<(), RunError> {
        let folder = self.results.folder().path();
        let mut log = origin.content(&snapshot::console(of), folder)?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = log.read(&mut buffer);
            match read.map_err(|source| SnapshotFault::Restore {
                folder: folder.into(),
                source,
            })? {
                0 => return Ok(()),
                count => self.results.console(index, &buffer[..count])?,
            }
        }
    }

    /// Restores the run of clones from a snapshot of a node that had just booted. The clones have the node's time and console log, but none
    /// of its results.
    pub(crate) fn load_clones(
        &mut self,
        origin: &Origin,
        state: &RunState,
    ) -> Result<(), RunError> {
        for index in 0..self.monitors.len() {
            self.console(origin, 0, index)?;
            if let Some(monitor) = state.monitors.first() {
                let monitor = monitor.clone();
                self.monitors[index] =
                    NodeMonitor::load(index as u32, NodeStatus::Running, monitor);
            }
        }
        self.now_ps = state.now_ps;
        self.active_ps = state.now_ps;
        self.saved_instructions = state.saved_instructions;
        self.saved_ps = state.now_ps;
        self.engines.begin_at(state.now_ps);
        let about = origin.about();
        self.warnings.push(format!(
            "the nodes did not boot: they go on as the one of snapshot {}, after {} of virtual time",
            about.name,
            rounded(about.virtual_ps)
        ));
        let all: Vec<_> = (0..self.config.windows.len()).collect();
        let driver = self.windows.driver();
        (driver.check_later(&all, self.now_ps)).map_err(SnapshotFault::from)?;
        self.check_saving()
    }

    /// Shows the events before the snapshot to new windows, to a snapshot that is to be taken and, with `engines`, to a new choice of
    /// engines.
    fn catch_up(
        &mut self,
        origin: &Origin,
        windows: &[usize],
        engines: bool,
    ) -> Result<(), RunError> {
        let counts = matches!(&self.saving, Some(saving) if matches!(&saving.save.when,
            When::At(Moment::Trigger(trigger)) if trigger.time_ps().is_none()));
        if counts || engines || !windows.is_empty() {
            let path = self.results.folder().path().join(TRACE_FILE);
            let reader = TraceReader::open(&path).map_err(|error| SnapshotFault::State {
                path: origin.path().into(),
                problem: error.to_string(),
            })?;
            // The end of the file looks like a cut, since the trace is still being written.
            let written = reader.events().map_while(Result::ok);
            for event in written.chain(self.trace.collected()?) {
                self.windows.catch_up(windows, &event);
                if engines {
                    self.engines.observe(&event);
                }
                if let Some(saving) = &mut self.saving {
                    saving.observe(&event);
                }
            }
        }
        let first = self.monitors.first();
        if first.is_some_and(|first| first.phase != Phase::Boot) {
            self.windows.job_started(self.now_ps);
        }
        let driver = self.windows.driver();
        (driver.check_later(windows, self.now_ps)).map_err(SnapshotFault::from)?;
        self.check_saving()
    }

    /// Checks that the moment of the snapshot that is to be taken has not passed already.
    fn check_saving(&mut self) -> Result<(), RunError> {
        if let Some(saving) = &mut self.saving
            && saving.is_due(self.now_ps, &self.monitors, |_| false)
        {
            let at = saving.save.when.to_string();
            return Err(SnapshotFault::TooLate { at }.into());
        }
        Ok(())
    }
}
