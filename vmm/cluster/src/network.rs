//! What carries frames between nodes, between quanta.

use std::path::Path;

use nodescope_fabric::{Capture, CaptureError, Delivery, PortCounts, PortState, SentFrame, Switch};

/// The switch, and the capture of what goes through it.
pub struct Network {
    switch: Switch,
    capture: Option<Capture>,
    failed: Option<CaptureError>,
}

impl Network {
    /// Frames go through this switch, and are written to the capture, if there is one.
    pub fn new(switch: Switch, capture: Option<Capture>) -> Self {
        Self {
            switch,
            capture,
            failed: None,
        }
    }

    /// See [`Switch::lookahead`].
    pub fn lookahead(&self) -> Option<u64> {
        self.switch.lookahead()
    }

    /// See [`Switch::next_ps`].
    pub fn next_ps(&self) -> Option<u64> {
        self.switch.next_ps()
    }

    /// See [`Switch::counts`].
    pub fn counts(&self) -> Vec<PortCounts> {
        self.switch.counts()
    }

    /// See [`Switch::state`].
    pub(crate) fn state(&self) -> Vec<PortState> {
        self.switch.state()
    }

    /// The capture's file, with all that was captured, if there is one.
    pub(crate) fn captured(&mut self) -> Result<Option<&Path>, CaptureError> {
        let Some(capture) = &mut self.capture else {
            return Ok(None);
        };
        capture.flush()?;
        Ok(Some(capture.path()))
    }

    /// See [`Switch::forward`]. What the capture cannot take is remembered for [`Network::check`].
    pub(crate) fn forward(&mut self, frames: Vec<SentFrame>, until_ps: u64) -> Vec<Delivery> {
        if !frames.is_empty()
            && let Some(capture) = &mut self.capture
            && let Err(error) = capture.record(&frames)
        {
            self.failed.get_or_insert(error);
        }
        self.switch.forward(frames, until_ps)
    }

    /// Whether the capture could not be written.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Why the capture could not be written, once.
    pub(crate) fn check(&mut self) -> Result<(), CaptureError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}
