//! The process that runs guests.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::SandboxError;
use crate::calls::Calls;
use crate::paths::{Rules, Use};
use crate::status::{Measure, State, Status};

/// Files and devices of the host that every run may read: what Rust's standard library and C libraries ask for.
const HOST_FILES: [&str; 10] = [
    "/dev/null",
    "/dev/urandom",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/self",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system",
    "/sys/fs/cgroup",
];

/// Folders with the libraries of programs that the process may start.
const LIBRARIES: [&str; 5] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store"];

/// What a process that runs guests keeps. Everything else is given up at [`Sandbox::enter`].
#[derive(Debug)]
pub struct Sandbox {
    rules: Rules,
    calls: Calls,
}

impl Default for Sandbox {
    fn default() -> Self {
        Sandbox::new()
    }
}

impl Sandbox {
    /// Returns a sandbox that keeps memory, threads, open descriptors, and facts about the host.
    pub fn new() -> Sandbox {
        let sandbox = Sandbox {
            rules: Rules::default(),
            calls: Calls::guests(),
        };
        let sandbox = HOST_FILES
            .iter()
            .fold(sandbox, |sandbox, path| sandbox.read(path));
        sandbox.with("/dev/null".as_ref(), Use::Device)
    }

    fn with(mut self, path: &Path, of: Use) -> Sandbox {
        self.rules.paths.push((path.into(), of));
        self
    }

    /// Keeps reading a file, or all files beneath a folder.
    pub fn read(self, path: impl AsRef<Path>) -> Sandbox {
        self.with(path.as_ref(), Use::Read)
    }

    /// Keeps making, reading, writing and removing files beneath a folder. The folder must exist when the process enters the sandbox.
    pub fn write(self, path: impl AsRef<Path>) -> Sandbox {
        self.with(path.as_ref(), Use::Write)
    }

    /// Keeps starting this program as a child process, with its libraries. The child has the sandbox of its parent. Where Landlock is
    /// missing, the process may start any program; that is part of what [`Status`] reports as missing.
    pub fn start(mut self, program: impl AsRef<Path>) -> Sandbox {
        let program = program.as_ref();
        self.calls.with_children();
        let program = fs::canonicalize(program).unwrap_or_else(|_| program.into());
        // Programs outside of the system's folders bring libraries in a folder beside their own.
        let beside = program.parent().and_then(Path::parent);
        let beside = beside.map(|folder| folder.join("lib"));
        let libraries = LIBRARIES.iter().map(PathBuf::from).chain(beside);
        let sandbox = libraries.fold(self, Sandbox::read);
        sandbox
            .with("/lib64/ld-linux-x86-64.so.2".as_ref(), Use::Execute)
            .with(&program, Use::Execute)
    }

    /// Keeps TCP, for a run of several processes.
    pub fn tcp(mut self) -> Sandbox {
        self.rules.tcp = true;
        self.calls.with_tcp();
        self
    }

    /// Keeps `/dev/kvm`.
    pub fn kvm(mut self) -> Sandbox {
        self.calls.with_kvm();
        self.with("/dev/kvm".as_ref(), Use::Device)
    }

    /// Keeps hardware counters.
    pub fn counters(mut self) -> Sandbox {
        self.calls.with_counters();
        self.read("/sys/bus/event_source")
            .read("/proc/sys/kernel/perf_event_paranoid")
    }

    /// Gives up everything else, for the rest of the process. Threads that the process has now keep their files where the kernel cannot
    /// restrict them, which is a gap of the status; enter with one thread. Fails if a kept path exists and cannot be opened.
    pub fn enter(self) -> Result<Status, SandboxError> {
        let mut status = Status::default();
        status.add(Measure::NoNewPrivileges, no_new_privileges());
        let earlier = earlier_threads();
        status.add(Measure::Landlock, self.rules.apply()?);
        if let Some(earlier) = earlier {
            status.lacks(Measure::Landlock, &earlier);
        }
        status.add(Measure::Seccomp, self.calls.apply());
        Ok(status)
    }
}

/// Returns a clause about threads that Landlock cannot hold, since they began before this one restricts itself; `None` without any.
pub(crate) fn earlier_threads() -> Option<String> {
    let count = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    (count > 1).then(|| format!("threads that began before keep their files: {}", count - 1))
}

/// Sets no_new_privs for this thread and what it starts. A seccomp filter for all threads sets it for the others.
pub(crate) fn no_new_privileges() -> State {
    // SAFETY: this prctl takes plain numbers and changes only an attribute of the thread.
    match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
        0 => State::Held,
        _ => State::Missing(io::Error::last_os_error().to_string()),
    }
}
