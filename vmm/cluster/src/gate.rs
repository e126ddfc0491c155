//! Waiting for what other threads do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Spins before a waiting thread offers its core to others: some 50 us, about what a quantum takes where every thread has a core.
const SPINS: u32 = 4000;
/// Offers before it goes to sleep: some ms on an idle host. Nodes take turns at what is slow (new code, large messages), so that
/// a thread often waits for several times a quantum, and waking it up takes as long again.
const YIELDS: u32 = 2000;
/// Spins before a waiting thread takes nodes that are another's: a core has those nodes' state in its caches, so that a thread which
/// is only a little late is waited for.
pub const PATIENCE: u32 = 1000;
/// Longest sleep: [`Gate::open`] does not wait until what it tells of is seen, so that who goes to sleep at the same time may miss it.
const NAP: Duration = Duration::from_millis(1);

/// Lets threads wait for a condition that others make true: spinning first, asleep where that takes long, so that a host
/// with other work loses nothing.
#[derive(Default)]
pub struct Gate {
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    /// Wait until `done`; `impatient` is called once, where that takes long.
    pub fn wait(&self, mut done: impl FnMut() -> bool, impatient: impl FnOnce()) {
        let mut spin = |spins| {
            for _ in 0..spins {
                if done() {
                    return true;
                }
                std::hint::spin_loop();
            }
            false
        };
        if spin(PATIENCE) {
            return;
        }
        impatient();
        if spin(SPINS) {
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
            let woken = self.changed.wait_timeout(guard, NAP);
            guard = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// The condition may have become true. Nothing waits until others see it, and a sleeper that comes at the same time may be missed: it
    /// looks again by itself.
    pub fn open(&self) {
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.changed.notify_all();
        }
    }
}
