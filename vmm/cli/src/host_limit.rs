//! `study.host_time_limit`: ends a run after some time of the host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::exit::{Exit, Failure};

/// Time limit of a run. Dropping ends the watch.
pub struct HostLimit {
    reached: Arc<AtomicBool>,
    _running: Sender<()>,
}

impl HostLimit {
    /// Sets `stop` after this time, from now on.
    pub fn start(limit: Duration, stop: &Arc<AtomicBool>) -> Result<HostLimit, Failure> {
        let reached = Arc::new(AtomicBool::new(false));
        let (running, ended) = channel();
        let (is_reached, stop) = (Arc::clone(&reached), Arc::clone(stop));
        let watch = move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                is_reached.store(true, Ordering::SeqCst);
                stop.store(true, Ordering::SeqCst);
            }
        };
        std::thread::Builder::new()
            .name("host time limit".into())
            .spawn(watch)
            .map_err(|error| Failure::of(Exit::Host, &error))?;
        Ok(HostLimit {
            reached,
            _running: running,
        })
    }

    /// Returns whether the time is over.
    pub fn is_reached(&self) -> bool {
        self.reached.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_time_stops_the_run() {
        let stop = Arc::new(AtomicBool::new(false));
        let limit = HostLimit::start(Duration::from_millis(1), &stop).unwrap();
        while !stop.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert!(limit.is_reached());
    }

    #[test]
    fn a_run_that_ends_before_is_not_stopped() {
        let stop = Arc::new(AtomicBool::new(false));
        let limit = HostLimit::start(Duration::from_secs(3600), &stop).unwrap();
        assert!(!limit.is_reached());
        drop(limit);
        assert!(!stop.load(Ordering::SeqCst));
    }
}
