//! A child process that can only compute.

use std::io;

use crate::calls::Calls;
use crate::paths::Rules;
use crate::process::{earlier_threads, no_new_privileges};
use crate::status::{Measure, State, Status};

/// Limits of a child process that reads what a guest made.
///
/// The child enters the cell at the beginning of its work, after its libraries are loaded. From then on it can read and write the
/// descriptors that it has, get memory up to the limit, and exit. It opens no file, makes no socket, thread or process, and makes no page
/// executable. It reads and writes by blocking calls: poll(2) needs a limit of descriptors above its own. Its end by SIGXCPU or SIGKILL says that it used up its processor time; memory beyond the limit is refused, so that Rust's
/// allocator aborts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Bytes of address space, the program and its libraries included (`RLIMIT_AS`).
    pub memory: u64,
    /// Seconds of processor time, counted from the start of the process (`RLIMIT_CPU`).
    pub processor_seconds: u64,
}

impl Cell {
    /// Restricts this process for the rest of its life. The process must have one thread: Landlock holds threads that began before only
    /// from Linux 7.0 on, and this is counted as a gap.
    pub fn enter(&self) -> Status {
        let mut status = Status::default();
        status.add(Measure::NoNewPrivileges, no_new_privileges());
        let earlier = earlier_threads();
        // A child without paths: no error is possible.
        let landlock = Rules::default().apply();
        let landlock = landlock.unwrap_or_else(|error| State::Missing(error.to_string()));
        status.add(Measure::Landlock, landlock);
        if let Some(earlier) = earlier {
            status.lacks(Measure::Landlock, &earlier);
        }
        // Landlock took a descriptor for its rules; from here on there is none, and setrlimit(2) is not among the calls that are left.
        status.add(Measure::Limits, self.limit());
        status.add(Measure::Seccomp, Calls::cell().apply());
        status
    }

    fn limit(&self) -> State {
        let seconds = self.processor_seconds;
        let limits = [
            (libc::RLIMIT_CORE, 0, 0),
            (libc::RLIMIT_AS, self.memory, self.memory),
            // SIGXCPU comes first, SIGKILL a second later.
            (libc::RLIMIT_CPU, seconds, seconds + 1),
            // Descriptors that are open stay open, and there will be no new one.
            (libc::RLIMIT_NOFILE, 0, 0),
        ];
        for (resource, soft, hard) in limits {
            let limit = libc::rlimit {
                rlim_cur: soft,
                rlim_max: hard,
            };
            // SAFETY: `limit` outlives the call, which only reads it.
            if unsafe { libc::setrlimit(resource, &limit) } != 0 {
                return State::Missing(io::Error::last_os_error().to_string());
            }
        }
        State::Held
    }
}
