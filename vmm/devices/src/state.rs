//! Errors of loading saved device state.

use thiserror::Error;

/// Reason why a saved state does not fit the device that it is loaded into.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "the saved state of the {device} does not fit: {reason}; load it into a node of the same study"
)]
pub struct RestoreError {
    device: &'static str,
    reason: String,
}

impl RestoreError {
    /// Returns an error of a device; `device` as in "serial port".
    pub fn new(device: &'static str, reason: impl Into<String>) -> Self {
        Self {
            device,
            reason: reason.into(),
        }
    }
}
