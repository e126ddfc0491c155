//! Chooses the engine that executes the guests, and moves the nodes between engines.

use nodescope_hypercall::Function;
use nodescope_machine::node::NodeError;
use nodescope_trace::Event;
use nodescope_window::TriggerWatch;
use serde::{Deserialize, Serialize};

use crate::config::{ClusterConfig, Engine};
use crate::executor::Executor;

/// Name of an engine in results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineName {
    /// The portable engine: exact, and the same in each run.
    Portable,
    /// KVM: instructions are not counted, and times depend on the host.
    Kvm,
}

/// An interval of virtual time in which all nodes ran on one engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSpan {
    /// Name of the engine that executed the guests in this interval.
    pub engine: EngineName,
    /// Begin of the interval, picoseconds of virtual time.
    pub from_ps: u64,
    /// End of the interval, picoseconds of virtual time.
    pub to_ps: u64,
}

/// State of [`Engines`] between two batches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnginesState {
    study: Engine,
    choice: Engine,
    fast_forward: Option<TriggerWatch>,
    spans: Vec<EngineSpan>,
}

/// Chooses the engine of all nodes, and records which engine ran when.
pub struct Engines {
    /// The study's choice of engines. `choice` is the present one, which changes when a fast-forward ends.
    study: Engine,
    choice: Engine,
    fast_forward: Option<TriggerWatch>,
    current: EngineName,
    since_ps: u64,
    spans: Vec<EngineSpan>,
}

impl Engines {
    /// Returns the state of new nodes, which are on the portable engine.
    pub fn new(config: &ClusterConfig) -> Self {
        let fast_forward = match &config.engine {
            Engine::FastForward(Some(trigger)) => Some(TriggerWatch::new(trigger.clone())),
            _ => None,
        };
        Self {
            study: config.engine.clone(),
            choice: config.engine.clone(),
            fast_forward,
            current: EngineName::Portable,
            since_ps: 0,
            spans: Vec::new(),
        }
    }

    /// Returns the state at this time for [`Engines::load`].
    pub fn state(&self, now_ps: u64) -> EnginesState {
        let mut spans = self.spans.clone();
        add_span(&mut spans, self.current, self.since_ps, now_ps);
        EnginesState {
            study: self.study.clone(),
            choice: self.choice.clone(),
            fast_forward: self.fast_forward.clone(),
            spans,
        }
    }

    /// Continues from the state in a snapshot, with nodes on the portable engine. `measured` is true if a window has opened before the
    /// snapshot. Returns whether the study has another choice of engines than the snapshot, and must therefore observe earlier events.
    pub fn load(&mut self, state: EnginesState, measured: bool, now_ps: u64) -> bool {
        self.spans = state.spans;
        self.since_ps = now_ps;
        let other = state.study != self.study;
        if !other {
            self.choice = state.choice;
            self.fast_forward = state.fast_forward;
        } else if measured && matches!(self.choice, Engine::FastForward(_)) {
            self.choice = Engine::Portable;
            self.fast_forward = None;
        }
        other
    }

    /// Sets the time at which the run begins.
    pub fn begin_at(&mut self, now_ps: u64) {
        self.since_ps = now_ps;
    }

    /// Returns the engine that executes the guests now.
    pub fn current(&self) -> EngineName {
        self.current
    }

    /// Observes a recorded event, which may end the fast-forward.
    pub fn observe(&mut self, event: &Event) {
        if let Some(watch) = &mut self.fast_forward {
            watch.observe(event);
        }
    }

    /// Returns the MPI function whose calls may end the fast-forward; `None` if none may.
    pub fn function(&self) -> Option<Function> {
        self.fast_forward.as_ref().and_then(TriggerWatch::function)
    }

    /// Returns the time until which [`Engines::step`] has nothing to do unless events are observed, picoseconds.
    pub fn next_ps(&self) -> u64 {
        let watch = self.fast_forward.as_ref();
        watch.map_or(u64::MAX, TriggerWatch::next_ps)
    }

    /// Moves the nodes to the engine for the time between windows: to KVM if the study chooses KVM and no fast-forward has ended.
    pub fn step(&mut self, executor: &Executor, now_ps: u64) -> Result<(), NodeError> {
        if let Some(watch) = &mut self.fast_forward
            && watch.has_fired(now_ps)
        {
            self.choice = Engine::Portable;
            self.fast_forward = None;
        }
        let wanted = match self.choice {
            Engine::Portable => EngineName::Portable,
            Engine::Kvm | Engine::FastForward(_) => EngineName::Kvm,
        };
        self.change(executor, wanted, now_ps)
    }

    /// Moves the nodes to the portable engine, since a window opens. A fast-forward ends for good.
    pub fn measure(&mut self, executor: &Executor, now_ps: u64) -> Result<(), NodeError> {
        if matches!(self.choice, Engine::FastForward(_)) {
            self.choice = Engine::Portable;
            self.fast_forward = None;
        }
        self.change(executor, EngineName::Portable, now_ps)
    }

    fn change(
        &mut self,
        executor: &Executor,
        wanted: EngineName,
        now_ps: u64,
    ) -> Result<(), NodeError> {
        if self.current == wanted {
            return Ok(());
        }
        for node in executor.own() {
            executor.with_node(node, |node| node.change_engine())?;
        }
        executor.keep_on_threads(wanted == EngineName::Kvm);
        tracing::debug!(engine = ?wanted, now_ps, "all nodes change engines");
        self.end_span(now_ps);
        self.current = wanted;
        Ok(())
    }

    fn end_span(&mut self, now_ps: u64) {
        add_span(&mut self.spans, self.current, self.since_ps, now_ps);
        self.since_ps = now_ps;
    }

    /// Returns all intervals. The last one ends at `now_ps`.
    pub fn spans(&mut self, now_ps: u64) -> Vec<EngineSpan> {
        self.end_span(now_ps);
        self.spans.clone()
    }
}

/// Adds an interval, or extends the last interval if that has the same engine and ends where this one begins. Ignores empty intervals.
fn add_span(spans: &mut Vec<EngineSpan>, engine: EngineName, from_ps: u64, to_ps: u64) {
    if to_ps <= from_ps {
        return;
    }
    match spans.last_mut() {
        Some(last) if last.engine == engine && last.to_ps == from_ps => last.to_ps = to_ps,
        _ => spans.push(EngineSpan {
            engine,
            from_ps,
            to_ps,
        }),
    }
}
