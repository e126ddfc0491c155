//! Options of building an image, beyond the image itself.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ImageError;

/// Options of [`crate::build_with`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildOptions<'a> {
    /// True to build the image although it is in the cache.
    pub force: bool,
    /// Set by another thread, or by the handler of a signal, to end the build: its programs are killed, its folders removed.
    pub stop: Option<&'a AtomicBool>,
}

impl BuildOptions<'_> {
    /// Fails if the build was asked to end.
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        match self.stop {
            Some(stop) if stop.load(Ordering::Relaxed) => Err(ImageError::Interrupted),
            _ => Ok(()),
        }
    }
}
