//! The driver of windows: decides which window opens, starts measuring or closes.

use std::fmt;

use nodescope_hypercall::Function;
use nodescope_trace::{Body, Event};
use serde::{Deserialize, Serialize};

use crate::sampling::Schedule;
use crate::spec::{Measure, SpecFault, Trigger, WindowSpec};
use crate::watch::counts;

/// Action that the cluster must apply to all nodes at a boundary of quanta, in the order of [`WindowDriver::step`]. The number is the
/// window's index in the list of specifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowAction {
    /// Attach the window's models.
    Attach(usize),
    /// Reset the statistics, because the warm-up is over and measuring starts.
    StartMeasuring(usize),
    /// End an interval of a sampled window: detach the models, which keep their state.
    Pause(usize),
    /// Attach a sampled window's models again. The warm-up of the next interval begins.
    Resume(usize),
    /// Begin the next interval of a sampled window: forget the counts of its warm-up.
    StartInterval(usize),
    /// Detach the window's models, and store the measurement.
    Detach(usize),
}

/// Times of a window: picoseconds of virtual time, and instructions that all nodes together have retired, since power-on. Until the window
/// reaches a moment, the moment's time is `None` and its number of instructions is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowTimes {
    /// Virtual time at which the window's trigger fired.
    pub triggered_ps: Option<u64>,
    /// Virtual time at which the models were attached.
    pub opened_ps: Option<u64>,
    /// Virtual time at which measuring started.
    pub measured_from_ps: Option<u64>,
    /// Virtual time at which the models were detached.
    pub closed_ps: Option<u64>,
    /// Instructions of all nodes together when the window opened.
    pub opened_at: u64,
    /// Instructions of all nodes together when measuring started.
    pub measured_from: u64,
    /// Instructions of all nodes together when the window closed.
    pub closed_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    Waiting,
    Triggered,
    WarmingUp,
    Measuring,
    Closed { complete: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Window {
    pub(crate) spec: WindowSpec,
    pub(crate) phase: Phase,
    pub(crate) times: WindowTimes,
    /// Number of calls or markers that the trigger has counted.
    pub(crate) seen: u64,
    pub(crate) close_requested: bool,
    /// Where a sampled window is in its intervals; `None` before measuring starts, and for other windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) schedule: Option<Schedule>,
}

/// End of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The window measured as much as it was to measure.
    Complete,
    /// The window was closed, or the study ended, before the measurement was complete. The measurement until then is valid.
    Cut,
    /// The window was closed, or the study ended, during its warm-up. The record has the warm-up's statistics only.
    CutInWarmUp,
    /// The window's trigger fired, but the window never opened: another window was open until the end, the guest closed the window before
    /// it could open, or the study ended first.
    #[serde(rename = "no_turn")]
    NeverOpened,
    /// The window's trigger never fired.
    NeverTriggered,
}

/// Outcome of a window, for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowOutcome {
    /// Name of the window.
    pub name: String,
    /// End of the window.
    pub ending: Ending,
    /// The end as a sentence. For a window that was never triggered, with the number of events that the trigger has counted.
    pub text: String,
}

impl fmt::Display for WindowOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Driver that decides about windows at boundaries of quanta.
///
/// At most one window is open at a time. If a trigger fires while another window is open, its window opens in the step in which the other
/// window closes. Several such windows open in the order in which their triggers fired, then in the order of the list. [`WindowTimes`] show
/// the delay.
///
/// A guest's request closes the open window, whatever the window's [`Measure`]. A window that had not measured enough is then
/// [`Ending::Cut`] or [`Ending::CutInWarmUp`].
#[derive(Clone, Debug)]
pub struct WindowDriver {
    pub(crate) windows: Vec<Window>,
    pub(crate) open: Option<usize>,
    /// Names of windows that the guest opened and the study does not have.
    pub(crate) unknown_names: Vec<String>,
}

/// Maximum number of unknown names that are kept for the user.
const MOST_UNKNOWN_NAMES: usize = 16;

impl WindowDriver {
    /// Returns a driver, or the first fault of the list ([`WindowSpec::faults`] lists all).
    pub fn new(specs: Vec<WindowSpec>) -> Result<WindowDriver, SpecFault> {
        if let Some(fault) = WindowSpec::faults(&specs).into_iter().next() {
            return Err(fault);
        }
        let windows = specs
            .into_iter()
            .map(|spec| Window {
                spec,
                phase: Phase::Waiting,
                times: WindowTimes::default(),
                seen: 0,
                close_requested: false,
                schedule: None,
            })
            .collect();
        Ok(WindowDriver {
            windows,
            open: None,
            unknown_names: Vec::new(),
        })
    }

    /// Processes one event. Callers pass every event of a batch of quanta of all nodes, in the order of [`nodescope_trace::merge`], before
    /// [`WindowDriver::step`]. Events that the host itself adds when it opens and closes windows do no harm.
    pub fn observe(&mut self, event: &Event) {
        if let Body::WindowOpen(name) = &event.body {
            let known = self.windows.iter().any(|window| window.spec.name == *name);
            if !known
                && self.unknown_names.len() < MOST_UNKNOWN_NAMES
                && !self.unknown_names.contains(name)
            {
                self.unknown_names.push(name.clone());
            }
        }
        for window in &mut self.windows {
            window.observe(event);
        }
    }

    /// Tells the driver that the job runs or has run. `now` is in picoseconds of virtual time.
    pub fn job_started(&mut self, now: u64) {
        for window in &mut self.windows {
            if (window.phase, &window.spec.open) == (Phase::Waiting, &Trigger::Job) {
                window.phase = Phase::Triggered;
                window.times.triggered_ps = Some(now);
            }
        }
    }

    /// Returns the MPI functions whose calls are triggers of windows.
    pub fn functions(&self) -> Vec<Function> {
        let function = |window: &Window| match &window.spec.open {
            Trigger::MpiCall { function, .. } => Some(*function),
            _ => None,
        };
        self.windows.iter().filter_map(function).collect()
    }

    /// Returns the virtual time, in picoseconds, until which [`WindowDriver::step`] has nothing to do, unless events are observed.
    pub fn next_ps(&self) -> u64 {
        let next = |window: &Window| match (window.phase, &window.spec.open) {
            (Phase::Closed { .. }, _) => u64::MAX,
            (Phase::Waiting, Trigger::Time { ps }) => *ps,
            (Phase::Waiting, Trigger::Immediately) => 0,
            (Phase::Waiting, _) => u64::MAX,
            (Phase::Measuring, _) if window.awaits_interval() => {
                window.schedule.map_or(0, |schedule| schedule.next_ps())
            }
            (Phase::Triggered | Phase::WarmingUp | Phase::Measuring, _) => 0,
        };
        self.windows.iter().map(next).min().unwrap_or(u64::MAX)
    }

    /// Decides at a boundary of quanta, and returns the actions. `now` is in picoseconds of virtual time. `instructions` are those retired
    /// by all nodes since power-on.
    pub fn step(&mut self, now: u64, instructions: u64) -> Vec<WindowAction> {
        let mut actions = Vec::new();
        for window in &mut self.windows {
            let fires = window.spec.open.time_ps().filter(|&ps| now >= ps);
            if let (Phase::Waiting, Some(time)) = (window.phase, fires) {
                window.phase = Phase::Triggered;
                window.times.triggered_ps = Some(time);
            }
        }
        if let Some(index) = self.open {
            self.windows[index].advance(index, now, instructions, &mut actions);
            if matches!(self.windows[index].phase, Phase::Closed { .. }) {
                self.open = None;
            }
        }
        while self.open.is_none() {
            let next = (0..self.windows.len())
                .filter(|&index| self.windows[index].phase == Phase::Triggered)
                .min_by_key(|&index| (self.windows[index].times.triggered_ps, index));
            let Some(index) = next else { break };
            let window = &mut self.windows[index];
            if window.close_requested {
                // The guest opened and closed the window within one quantum, or while another window was open.
                window.phase = Phase::Closed { complete: false };
                continue;
            }
            window.phase = Phase::WarmingUp;
            window.times.opened_ps = Some(now);
            window.times.opened_at = instructions;
            actions.push(WindowAction::Attach(index));
            window.advance(index, now, instructions, &mut actions);
            self.open = Some(index);
        }
        actions
    }

    /// Lets the next interval of an open sampled window begin in the next step.
    pub fn request_interval(&mut self) {
        if let Some(index) = self.open
            && let Some(schedule) = &mut self.windows[index].schedule
        {
            schedule.request();
        }
    }

    /// Returns the index of the open window, if a window is open.
    pub fn open(&self) -> Option<usize> {
        self.open
    }

    /// Returns the instructions of all nodes and the picoseconds of virtual time that are left until an open window closes. A window that
    /// measures by time has both during its warm-up: the instructions of the warm-up come first. `None` if unlimited or not known, as for a
    /// window that the guest closes.
    pub fn left(&self, window: usize, now: u64, instructions: u64) -> (Option<u64>, Option<u64>) {
        let Window {
            spec, phase, times, ..
        } = &self.windows[window];
        let warm_up = match phase {
            Phase::WarmingUp => {
                let done = instructions.saturating_sub(times.opened_at);
                Some(spec.warm_up.saturating_sub(done))
            }
            _ => None,
        };
        match spec.measure {
            Measure::Guest => (None, None),
            Measure::Instructions(count) => (
                Some(match warm_up {
                    Some(rest) => rest.saturating_add(count),
                    None => count.saturating_sub(instructions.saturating_sub(times.measured_from)),
                }),
                None,
            ),
            Measure::Time { ps } => {
                let from = times.measured_from_ps.filter(|_| warm_up.is_none());
                let done = from.map_or(0, |from| now.saturating_sub(from));
                (warm_up, Some(ps.saturating_sub(done)))
            }
        }
    }

    /// Returns a window's specification.
    pub fn spec(&self, window: usize) -> &WindowSpec {
        &self.windows[window].spec
    }

    /// Returns the number of windows.
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    /// Returns whether there is no window.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Returns the times of a window.
    pub fn times(&self, window: usize) -> WindowTimes {
        self.windows[window].times
    }

    /// Returns whether a window measured as much as it was to measure.
    pub fn is_complete(&self, window: usize) -> bool {
        self.windows[window].phase == Phase::Closed { complete: true }
    }

    /// Returns whether no window is open and no window can still open: the study need not continue for windows.
    pub fn is_done(&self) -> bool {
        self.windows
            .iter()
            .all(|window| matches!(window.phase, Phase::Closed { .. }))
    }

    /// Closes the open window at the end of the study, and returns the action that detaches its models. Returns `None` if no window is
    /// open.
    pub fn stop(&mut self, now: u64, instructions: u64) -> Option<WindowAction> {
        let index = self.open.take()?;
        let window = &mut self.windows[index];
        // A sampled window without a length measures up to the end of the study.
        let complete = window.schedule.is_some() && window.spec.measure == Measure::Guest;
        window.close(complete, now, instructions);
        Some(WindowAction::Detach(index))
    }

    /// Returns the outcome of every window, in the order of the list.
    pub fn finish(&self) -> Vec<WindowOutcome> {
        self.windows
            .iter()
            .map(|window| {
                let (ending, text) = window.outcome();
                WindowOutcome {
                    name: window.spec.name.clone(),
                    ending,
                    text,
                }
            })
            .collect()
    }

    /// Returns the window names that the guest opened and the study does not have; at most 16 names.
    pub fn unknown_names(&self) -> &[String] {
        &self.unknown_names
    }
}

impl Window {
    pub(crate) fn observe(&mut self, event: &Event) {
        let fired = match (&self.spec.open, &event.body) {
            (Trigger::Guest, Body::WindowOpen(name)) => *name == self.spec.name,
            (trigger, _) => counts(trigger, &mut self.seen, event),
        };
        if fired && self.phase == Phase::Waiting {
            self.phase = Phase::Triggered;
            self.times.triggered_ps = Some(event.stamp.time);
        }
        let closes = matches!(&event.body, Body::WindowClose(name) if *name == self.spec.name);
        if closes
            && matches!(
                self.phase,
                Phase::Triggered | Phase::WarmingUp | Phase::Measuring
            )
        {
            self.close_requested = true;
        }
    }

    /// Returns whether nothing but the next interval of a sampled window can be due: no request to close the window, and no length.
    fn awaits_interval(&self) -> bool {
        self.schedule.is_some() && !self.close_requested && self.spec.measure == Measure::Guest
    }

    fn close(&mut self, complete: bool, now: u64, instructions: u64) {
        self.phase = Phase::Closed { complete };
        self.times.closed_ps = Some(now);
        self.times.closed_at = instructions;
    }

    fn advance(
        &mut self,
        index: usize,
        now: u64,
        instructions: u64,
        actions: &mut Vec<WindowAction>,
    ) {
        if self.phase == Phase::WarmingUp
            && !self.close_requested
            && instructions.saturating_sub(self.times.opened_at) >= self.spec.warm_up
        {
            self.phase = Phase::Measuring;
            self.times.measured_from_ps = Some(now);
            self.times.measured_from = instructions;
            let sampling = self.spec.sampling.as_ref();
            self.schedule = sampling.map(|sampling| Schedule::new(sampling, now, instructions));
            actions.push(WindowAction::StartMeasuring(index));
            return;
        }
        let measured = self.phase == Phase::Measuring
            && match self.spec.measure {
                Measure::Instructions(count) => {
                    instructions.saturating_sub(self.times.measured_from) >= count
                }
                Measure::Time { ps } => {
                    now.saturating_sub(self.times.measured_from_ps.unwrap_or(now)) >= ps
                }
                Measure::Guest => self.close_requested,
            };
        if measured || self.close_requested {
            self.close(measured, now, instructions);
            actions.push(WindowAction::Detach(index));
            return;
        }
        if let (Some(schedule), Some(sampling)) = (&mut self.schedule, &self.spec.sampling) {
            actions.extend(schedule.step(sampling, index, now, instructions));
        }
    }

    fn outcome(&self) -> (Ending, String) {
        let WindowSpec {
            name,
            open,
            warm_up,
            measure,
            ..
        } = &self.spec;
        let late = match (self.times.triggered_ps, self.times.opened_ps) {
            (Some(trigger), Some(opened)) if opened > trigger => {
                format!(", {} s after its trigger", (opened - trigger) as f64 / 1e12)
            }
            _ => String::new(),
        };
        let measured = self
            .times
            .closed_at
            .saturating_sub(self.times.measured_from);
        let started = self.times.measured_from_ps.is_some();
        match self.phase {
            Phase::Waiting => {
                let seen = match open {
                    Trigger::MpiCall { function, rank, .. } => {
                        format!("; seen: {} {function} calls on rank {rank}", self.seen)
                    }
                    Trigger::Marker { name, .. } => {
                        format!("; seen: {} markers \"{name}\"", self.seen)
                    }
                    _ => String::new(),
                };
                (
                    Ending::NeverTriggered,
                    format!("window \"{name}\" never opened: its trigger was {open}{seen}"),
                )
            }
            Phase::Triggered => (
                Ending::NeverOpened,
                format!(
                    "window \"{name}\" never opened: its trigger ({open}) fired, but another window was open then, or the run ended"
                ),
            ),
            Phase::Closed { .. } if self.times.opened_ps.is_none() => (
                Ending::NeverOpened,
                format!(
                    "window \"{name}\" never opened: the guest closed it before the window could be opened"
                ),
            ),
            Phase::Closed { complete: true } => (
                Ending::Complete,
                format!("window \"{name}\" opened{late} and measured {measured} instructions"),
            ),
            Phase::WarmingUp | Phase::Measuring | Phase::Closed { .. } if !started => (
                Ending::CutInWarmUp,
                format!(
                    "window \"{name}\" was cut during its warm-up of {warm_up} instructions: nothing was measured"
                ),
            ),
            Phase::WarmingUp | Phase::Measuring | Phase::Closed { .. } => (
                Ending::Cut,
                format!(
                    "window \"{name}\" was cut after measuring {measured} instructions; it was to measure {measure}"
                ),
            ),
        }
    }
}
