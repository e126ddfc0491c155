//! Waits of a process for others.

use std::time::{Duration, Instant};

use nodescope_cluster::PeerError;

use crate::control::Control;

/// Polls before a waiting process offers its core to others, where each process of the host has a core.
pub const SPINS: u32 = 4000;
/// Waiting time after which a process sleeps between polls: the other processes are stopped, or far behind.
const PATIENCE: Duration = Duration::from_millis(20);
const NAP: Duration = Duration::from_micros(100);
/// Interval in which a waiting process looks at the control line.
const CONTROL_INTERVAL: Duration = Duration::from_millis(1);
/// Longest wait for the control line to say which process is gone, where MPI has noticed first, and for messages that other processes have
/// sent before the master ended.
pub const REASON_LIMIT: Duration = Duration::from_secs(2);

/// A wait for other processes: polls, then offers the core to others, then sleeps between polls.
pub struct Wait {
    spins: u32,
    /// Begin of the wait, once the process no longer spins, and the last look at the control line.
    begin: Option<Instant>,
    looked: Instant,
}

impl Wait {
    /// Returns a wait with so many polls without a pause.
    pub fn new(spins: u32) -> Self {
        Self {
            spins,
            begin: None,
            looked: Instant::now(),
        }
    }

    /// Returns whether the wait is longer than any that a process that runs needs.
    pub fn is_long(&self) -> bool {
        self.begin
            .is_some_and(|begin| begin.elapsed() > REASON_LIMIT)
    }

    /// Pauses between two polls. Looks at the control line from time to time.
    pub fn pause(&mut self, control: &mut Control, awaited: &[usize]) -> Result<(), PeerError> {
        if self.spins > 0 {
            self.spins -= 1;
            std::hint::spin_loop();
            return Ok(());
        }
        let now = Instant::now();
        let begin = *self.begin.get_or_insert(now);
        if now - self.looked >= CONTROL_INTERVAL {
            control.read(Duration::ZERO)?;
            control.probe(awaited)?;
            self.looked = now;
        }
        match now - begin > PATIENCE {
            true => std::thread::sleep(NAP),
            false => std::thread::yield_now(),
        }
        Ok(())
    }
}
