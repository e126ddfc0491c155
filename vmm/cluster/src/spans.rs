//! Spans of `tracing` for the phases of a run, by which subscribers measure the host time of each phase.

use tracing::info_span;
use tracing::span::EnteredSpan;

use crate::outcome::Phase;

/// Span of the present phase.
#[derive(Default)]
pub struct PhaseSpan {
    phase: Option<Phase>,
    span: Option<EnteredSpan>,
}

impl PhaseSpan {
    /// Enters the span of this phase, if the phase has changed, and leaves the previous one. Returns whether the phase has changed.
    pub fn follow(&mut self, phase: Phase, window: Option<&str>) -> bool {
        if self.phase == Some(phase) {
            return false;
        }
        // Dropping the previous span ends it.
        self.span = None;
        self.phase = Some(phase);
        let window = window.unwrap_or_default();
        let span = match phase {
            Phase::Boot => info_span!("boot"),
            Phase::Job => info_span!("job"),
            Phase::WarmUp => info_span!("warm-up", window),
            Phase::Window => info_span!("window", window),
            Phase::PowerOff => info_span!("power-off"),
        };
        self.span = Some(span.entered());
        true
    }
}
