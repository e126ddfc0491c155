//! Lets threads wait for other threads: they spin, yield, then sleep.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Spins before a waiting thread runs nodes of another thread. The other core has the state of these nodes in its caches, so that
/// waiting is better where the other thread is only a little late.
pub const SHORT_SPINS: u32 = 1000;
/// Further spins before a waiting thread offers its core to others: some 50 us, about the length of a quantum where every thread has a
/// core.
const LONG_SPINS: u32 = 4000;
/// Calls of `yield_now` before a waiting thread goes to sleep: some ms on an idle host. Slow work (new code, large messages) comes to one
/// node after the other. A thread therefore often waits for several times a quantum, and waking the thread up takes as long again.
const YIELDS: u32 = 2000;
/// Longest sleep. [`Parker::unpark_all`] does not wait until other threads see what has changed. A thread that goes to sleep at that time
/// may miss the call, and looks again after this time.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// Lets threads wait for a condition that other threads make true. A thread spins first, and sleeps where the wait is long: a host with
/// other work loses nothing.
#[derive(Default)]
pub struct Parker {
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Parker {
    /// Waits until `done` returns true. Calls `on_long_wait` once where the wait is longer than [`SHORT_SPINS`].
    pub fn wait_until(&self, mut done: impl FnMut() -> bool, on_long_wait: impl FnOnce()) {
        let mut spin = |spins| {
            for _ in 0..spins {
                if done() {
                    return true;
                }
                std::hint::spin_loop();
            }
            false
        };
        if spin(SHORT_SPINS) {
            return;
        }
        on_long_wait();
        if spin(LONG_SPINS) {
            return;
        }
        for _ in 0..YIELDS {
            if done() {
                return;
            }
            std::thread::yield_now();
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        while !done() {
            let woken = self.changed.wait_timeout(guard, MAX_SLEEP);
            guard = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes up all sleeping threads: the condition may have become true. The call does not wait until other threads see the change. A
    /// thread that goes to sleep during the call may miss the call, and looks again by itself ([`MAX_SLEEP`]).
    pub fn unpark_all(&self) {
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.changed.notify_all();
        }
    }
}
