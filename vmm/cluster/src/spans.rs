//! The phases of a run as spans of `tracing`, whose subscribers learn how long each phase took the host.

use tracing::info_span;
use tracing::span::EnteredSpan;

use crate::outcome::Phase;

/// Span of the cluster's phase.
#[derive(Default)]
pub struct PhaseSpan {
    phase: Option<Phase>,
    span: Option<EnteredSpan>,
}

impl PhaseSpan {
    /// Follows the phase of the first node, with the name of the open window. Returns whether a phase begins.
    pub fn follow(&mut self, phase: Phase, window: Option<&str>) -> bool {
        if self.phase == Some(phase) {
            return false;
        }
        // The previous span ends here.
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
