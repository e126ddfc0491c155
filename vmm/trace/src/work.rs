//! Work of a process between its MPI calls.

use nodescope_hypercall::record::Flags;

use crate::event::{MpiCall, Stamp};

/// Ratio of the time between polls to the time inside them, above which the time between them counts as work.
const WORK_BETWEEN_POLLS: u64 = 4;

/// Time and instructions of a process outside MPI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Picoseconds.
    pub time: u64,
    /// Instructions, if the process stayed on one virtual CPU.
    pub instructions: Option<u64>,
}

impl Work {
    /// Returns all that lies between two stamps.
    pub fn between(from: Stamp, to: Stamp) -> Work {
        let same = from.vcpu == to.vcpu;
        Work {
            time: to.time.saturating_sub(from.time),
            instructions: same
                .then(|| to.instructions.checked_sub(from.instructions))
                .flatten(),
        }
    }
}

/// Work since a process's previous call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkBefore {
    /// Work between polls that found nothing, if there was much of it.
    pub between_polls: Work,
    /// Work after the previous call or poll.
    pub since_last: Work,
    /// Picoseconds between polls that do not count as work: the process polled in a loop until something came, and how often it polled
    /// depends on when that was.
    pub waited: u64,
}

/// Polls that found nothing, without another call between them. A process often polls several things in turn, so that runs of polls
/// overlap.
#[derive(Clone, Copy, Debug)]
struct Polling {
    entry: Stamp,
    exit: Stamp,
    time_inside: u64,
    instructions_inside: u64,
}

impl Polling {
    fn add(&mut self, run: &MpiCall) {
        if run.exit.time > self.exit.time {
            self.exit = run.exit;
        }
        self.time_inside = self.time_inside.saturating_add(run.time_inside);
        self.instructions_inside =
            (self.instructions_inside).saturating_add(run.instructions_inside);
    }

    /// Returns the work between the polls.
    fn between(&self) -> Work {
        let all = Work::between(self.entry, self.exit);
        Work {
            time: all.time.saturating_sub(self.time_inside),
            instructions: all
                .instructions
                .map(|all| all.saturating_sub(self.instructions_inside)),
        }
    }
}

/// Observer of a process's calls, which must come in the order of the trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkBetweenCalls {
    last: Option<Stamp>,
    polling: Option<Polling>,
}

impl WorkBetweenCalls {
    /// Returns the latest end of a call until now; `None` before the first call.
    pub fn last(&self) -> Option<Stamp> {
        self.last
    }

    /// Takes the next call, or run of polls, and returns the work before it. What lies between polls is told before the call that follows
    /// all of them.
    pub fn call(&mut self, call: &MpiCall) -> WorkBefore {
        let before = if !call.record.flags.contains(Flags::POLL_RUN) {
            self.until(call.entry)
        } else if let Some(polling) = &mut self.polling {
            polling.add(call);
            WorkBefore::default()
        } else {
            let before = self.until(call.entry);
            self.polling = Some(Polling {
                entry: call.entry,
                exit: call.exit,
                time_inside: call.time_inside,
                instructions_inside: call.instructions_inside,
            });
            before
        };
        self.end(call.exit);
        before
    }

    /// Returns the work until `entry`, at which the process does something else than a traced call.
    pub fn until(&mut self, entry: Stamp) -> WorkBefore {
        let mut before = WorkBefore::default();
        if let Some(last) = self.last {
            before.since_last = Work::between(last, entry);
        }
        if let Some(polling) = self.polling.take() {
            let between = polling.between();
            if between.time > polling.time_inside.saturating_mul(WORK_BETWEEN_POLLS) {
                before.between_polls = between;
            } else {
                before.waited = between.time;
            }
        }
        before
    }

    /// Sets the end of what the process did last. Calls of several threads may overlap.
    pub fn end(&mut self, exit: Stamp) {
        if self.last.is_none_or(|last| last.time <= exit.time) {
            self.last = Some(exit);
        }
    }
}
