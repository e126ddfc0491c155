//! Which engine executes the guests when.

use nodescope_hypercall::Function;
use nodescope_machine::node::NodeError;
use nodescope_trace::Event;
use nodescope_window::TriggerWatch;
use serde::{Deserialize, Serialize};

use crate::config::{ClusterConfig, Engine};
use crate::executor::Executor;

/// An engine, as results name it.
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
    /// The engine.
    pub engine: EngineName,
    /// From when, picoseconds.
    pub from_ps: u64,
    /// Until when, picoseconds.
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

/// Moves all nodes between engines.
pub struct Engines {
    /// What the study says, and what holds now.
    study: Engine,
    choice: Engine,
    fast_forward: Option<TriggerWatch>,
    current: EngineName,
    since_ps: u64,
    spans: Vec<EngineSpan>,
}

impl Engines {
    /// Nodes as they are built: on the portable engine.
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

    /// The state from which [`Engines::load`] goes on.
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

    /// Goes on where another run has stopped, with nodes on the portable engine. `measured`: a window has opened there. Returns whether the study
    /// wants other engines now, and is to see earlier events.
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

    /// The run begins at this time.
    pub fn begin_at(&mut self, now_ps: u64) {
        self.since_ps = now_ps;
    }

    /// The engine that executes the guests now.
    pub fn current(&self) -> EngineName {
        self.current
    }

    /// An event has been recorded.
    pub fn observe(&mut self, event: &Event) {
        if let Some(watch) = &mut self.fast_forward {
            watch.observe(event);
        }
    }

    /// The MPI function whose calls may end the fast-forward.
    pub fn function(&self) -> Option<Function> {
        self.fast_forward.as_ref().and_then(TriggerWatch::function)
    }

    /// Until this time, picoseconds, [`Engines::step`] has nothing to do unless events are observed.
    pub fn next_ps(&self) -> u64 {
        let watch = self.fast_forward.as_ref();
        watch.map_or(u64::MAX, TriggerWatch::next_ps)
    }

    /// Between windows: KVM, if the study wants it and the fast-forward goes on.
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

    /// A window opens: the portable engine, for good where KVM was to run up to here.
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

    /// All intervals, the last of which ends now.
    pub fn spans(&mut self, now_ps: u64) -> Vec<EngineSpan> {
        self.end_span(now_ps);
        self.spans.clone()
    }
}

/// Adds an interval. One that goes on the last is a part of it.
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
