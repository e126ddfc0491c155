//! Error for saved device state that cannot be loaded.

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
    /// Creates an error. `device` is a noun for the message, such as "serial port".
    pub fn new(device: &'static str, reason: impl Into<String>) -> Self {
        Self {
            device,
            reason: reason.into(),
        }
    }
}
