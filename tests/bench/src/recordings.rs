//! A pipeline model that keeps what it has timed.

use std::sync::{Arc, Mutex, PoisonError};

use nodescope_plugin_api::{CoreCosts, CoreModel, Recording, RecordingPlan, Source};
use nodescope_plugin_pipeline::PipelineModel;

/// Recordings of the windows that have closed, in order.
pub type OfWindows = Arc<Mutex<Vec<Vec<Recording>>>>;

/// A pipeline model that keeps the recordings of its window.
pub struct Keeping {
    model: PipelineModel,
    kept: Mutex<Vec<Recording>>,
    closed: OfWindows,
}

impl Keeping {
    pub fn new(model: PipelineModel, closed: OfWindows) -> Self {
        Self {
            model,
            kept: Mutex::default(),
            closed,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CoreModel for Keeping {
    fn recorded(&mut self, vcpu: u16, recording: &Recording) -> Option<RecordingPlan> {
        if !recording.steps.is_empty() {
            lock(&self.kept).push(recording.clone());
        }
        self.model.recorded(vcpu, recording)
    }

    fn exposed(&mut self, block: u32, source: Source, stall: u32) -> u32 {
        self.model.exposed(block, source, stall)
    }

    fn has_timed(&self, block: u32) -> bool {
        self.model.has_timed(block)
    }

    fn reset_statistics(&mut self) {
        lock(&self.kept).clear();
        self.model.reset_statistics();
    }

    /// Returns what was learned when the window closes.
    fn costs(&self) -> CoreCosts {
        let kept = std::mem::take(&mut *lock(&self.kept));
        lock(&self.closed).push(kept);
        self.model.costs()
    }
}
