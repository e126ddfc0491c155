//! Options of building an image that do not change the image.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ImageError;

/// Options of [`crate::build_with`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildOptions<'a> {
    /// True to build the image even if it is in the cache.
    pub force: bool,
    /// Flag that another thread or a signal handler sets to end the build. The build's programs are then killed and its folders removed.
    pub stop: Option<&'a AtomicBool>,
}

impl BuildOptions<'_> {
    /// Returns [`ImageError::Interrupted`] if the stop flag is set.
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        match self.stop {
            Some(stop) if stop.load(Ordering::Relaxed) => Err(ImageError::Interrupted),
            _ => Ok(()),
        }
    }
}
