//! The network that carries frames between nodes; frames move between quanta.

use std::ops::Range;
use std::path::Path;

use nodescope_fabric::{Capture, CaptureError, Delivery, PortCounts, PortState, SentFrame, Switch};

/// The switch, and the capture of its frames.
pub struct Network {
    switch: Switch,
    capture: Option<Capture>,
    failed: Option<CaptureError>,
}

impl Network {
    /// Returns a network with this switch. Frames are also written to the capture file, if there is one.
    pub fn new(switch: Switch, capture: Option<Capture>) -> Self {
        Self {
            switch,
            capture,
            failed: None,
        }
    }

    /// Returns the lookahead of the switch, see [`Switch::lookahead`].
    pub fn lookahead(&self) -> Option<u64> {
        self.switch.lookahead()
    }

    /// Returns the time of the switch's next event, see [`Switch::next_ps`].
    pub fn next_ps(&self) -> Option<u64> {
        self.switch.next_ps()
    }

    /// Returns whether a frame is for one of the nodes `nodes`, see [`Switch::has_receiver`].
    pub(crate) fn has_receiver(&self, frame: &SentFrame, nodes: Range<usize>) -> bool {
        self.switch.has_receiver(frame, nodes)
    }

    /// Returns the counts of all ports, see [`Switch::counts`].
    pub fn counts(&self) -> Vec<PortCounts> {
        self.switch.counts()
    }

    /// Returns the state of all ports, see [`Switch::state`].
    pub(crate) fn state(&self) -> Vec<PortState> {
        self.switch.state()
    }

    /// Returns the path of the capture file with all captured frames; `None` without a capture.
    pub(crate) fn captured(&mut self) -> Result<Option<&Path>, CaptureError> {
        let Some(capture) = &mut self.capture else {
            return Ok(None);
        };
        capture.flush()?;
        Ok(Some(capture.path()))
    }

    /// Forwards frames as [`Switch::forward`] does. Keeps an error of the capture for [`Network::check`].
    pub(crate) fn forward(&mut self, frames: Vec<SentFrame>, until_ps: u64) -> Vec<Delivery> {
        if !frames.is_empty()
            && let Some(capture) = &mut self.capture
            && let Err(error) = capture.record(&frames)
        {
            self.failed.get_or_insert(error);
        }
        self.switch.forward(frames, until_ps)
    }

    /// Returns whether the capture has failed, and the error was not returned yet.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Returns the capture's error, if it has failed; the next call returns `Ok`.
    pub(crate) fn check(&mut self) -> Result<(), CaptureError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}
