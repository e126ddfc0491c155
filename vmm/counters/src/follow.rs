//! Counts the ranks that a launcher starts on this machine, each separately, without changing the command.
//!
//! The launcher and the processes that it starts are followed with `ptrace(2)`, but stop only at a fork, a new thread, an `exec` and a
//! signal: between these they run at full speed. A process that executes a program with a rank in its environment is a rank. Its counters,
//! which count all that it starts, too, are opened while it is stopped at the `exec`. From there on the process is no longer followed.
//! Ranks on other nodes are not seen.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{c_int, c_long, pid_t};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::command::cannot_start;
use crate::error::CountersError;
use crate::open::{CountTarget, Counters, Sum, open};
use crate::tables::Event;

/// Variables in which launchers pass its rank to a process: Open MPI, PMIx (Open MPI 4 and later), PMI (MPICH's hydra, Intel MPI), Slurm.
const RANK_VARIABLES: [&str; 4] = [
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
];

/// Counts of a launcher's processes.
#[derive(Clone, Debug, Default)]
pub struct Followed {
    /// Sums by rank, one for each event, in the order of the events in all groups.
    pub ranks: BTreeMap<u32, Vec<Sum>>,
    /// Sums of all processes that are no ranks, one for each event, in the order of the events in all groups.
    pub others: Vec<Sum>,
    /// Exit status of the command; 128 plus the signal's number if a signal ended it.
    pub status: i32,
}

/// Returns the rank in an environment, which is `NAME=value` texts separated by zero bytes. `own` returns whether this process has a
/// variable, too: such variables come from an outer launcher, such as a batch job's, and are ignored.
pub fn rank_of(environment: &[u8], own: impl Fn(&str) -> bool) -> Option<u32> {
    RANK_VARIABLES
        .iter()
        .filter(|name| !own(name))
        .find_map(|name| {
            let mut texts = environment.split(|&byte| byte == 0);
            let value =
                texts.find_map(|text| text.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
            std::str::from_utf8(value).ok()?.parse().ok()
        })
}

/// Returns the rank of this process by its environment; `None` if no launcher started it as a rank.
pub fn own_rank() -> Option<u32> {
    let value = |name: &&str| std::env::var(name).ok()?.parse().ok();
    RANK_VARIABLES.iter().find_map(value)
}

/// Runs a command and counts its ranks, and separately all other processes.
///
/// # Errors
///
/// Counters that cannot be opened, a command that cannot be started, or a system that forbids following processes.
pub fn follow(groups: &[&[Event]], command: &[OsString]) -> Result<Followed, CountersError> {
    let mut builder = Command::new(&command[0]);
    builder.args(&command[1..]);
    // A rank has about twenty counters, each an open file, so this process raises its limit. The command gets the limit from before.
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let raised = setrlimit(Resource::Nofile, raised).is_ok();
    let trace_me = move || {
        if raised {
            setrlimit(Resource::Nofile, limit)?;
        }
        ptrace(libc::PTRACE_TRACEME, 0, 0).map(drop)
    };
    // SAFETY: between fork and exec the closure makes two system calls and touches no memory but its own.
    unsafe { builder.pre_exec(trace_me) };
    let child = builder
        .spawn()
        .map_err(|cause| match cause.raw_os_error() {
            Some(libc::EPERM) => CountersError::Follow { cause },
            _ => cannot_start(command, cause),
        })?;
    let events = groups.iter().map(|group| group.len()).sum();
    let mut follower = Follower {
        groups,
        events,
        top: child.id() as pid_t,
        tasks: BTreeMap::new(),
        ranks: BTreeMap::new(),
        others: vec![Sum::default(); events],
    };
    let run = follower.run();
    if run.is_err() {
        // After an error nobody handles the events of the command: end the command, and detach from all tasks.
        let mut child = child;
        let _ = child.kill();
        follower.drain();
    }
    let status = run?;
    let mut ranks = BTreeMap::new();
    for (rank, trees) in &mut follower.ranks {
        let sums: &mut Vec<Sum> = ranks
            .entry(*rank)
            .or_insert_with(|| vec![Sum::default(); events]);
        for counters in trees {
            counters.read(sums)?;
        }
    }
    Ok(Followed {
        ranks,
        others: follower.others,
        status,
    })
}

/// Process number that no process has.
const NOBODY: pid_t = 0;

struct Follower<'a> {
    groups: &'a [&'a [Event]],
    events: usize,
    /// Process number of the command, or `NOBODY` once it has ended.
    top: pid_t,
    /// Followed tasks, which are threads and processes that are no ranks; `None` where a task's counters could not be opened in time.
    tasks: BTreeMap<pid_t, Option<Counters>>,
    /// Counters of each rank with all that it started: several if the command starts several jobs in turn.
    ranks: BTreeMap<u32, Vec<Counters>>,
    others: Vec<Sum>,
}

impl Follower<'_> {
    /// Follows the command until its end, and returns its exit status.
    fn run(&mut self) -> Result<c_int, CountersError> {
        loop {
            let (pid, status) = wait().map_err(|cause| CountersError::Follow { cause })?;
            if libc::WIFSTOPPED(status) {
                self.stopped(pid, status)?;
                continue;
            }
            let is_top = pid == self.top;
            if is_top {
                self.top = NOBODY;
            }
            self.ended(pid)?;
            if is_top {
                return Ok(match libc::WIFEXITED(status) {
                    true => libc::WEXITSTATUS(status),
                    false => 128 + libc::WTERMSIG(status),
                });
            }
        }
    }

    /// Detaches from all tasks that are still followed, so that none remains stopped for ever, and waits for the command's end.
    fn drain(&mut self) {
        while self.top != NOBODY
            && let Ok((pid, status)) = wait()
        {
            if libc::WIFSTOPPED(status) {
                let _ = ptrace(libc::PTRACE_DETACH, pid, 0);
            } else if pid == self.top {
                self.top = NOBODY;
            }
        }
    }

    fn stopped(&mut self, pid: pid_t, status: c_int) -> Result<(), CountersError> {
        let signal = libc::WSTOPSIG(status);
        if !self.tasks.contains_key(&pid) {
            // The command at its first exec, or a new task before its first instruction.
            let counters = self.open(CountTarget::Task(pid))?;
            self.tasks.insert(pid, counters);
            if pid == self.top {
                let options = libc::PTRACE_O_TRACEFORK
                    | libc::PTRACE_O_TRACEVFORK
                    | libc::PTRACE_O_TRACECLONE
                    | libc::PTRACE_O_TRACEEXEC;
                ptrace(libc::PTRACE_SETOPTIONS, pid, options.into())
                    .map_err(|cause| CountersError::Follow { cause })?;
                return self.executes(pid);
            }
            return go_on(pid, 0);
        }
        match status >> 16 {
            libc::PTRACE_EVENT_EXEC => {
                // A thread that executes a program takes over the process's number. The other threads end without an event.
                if let Some(before) = event_message(pid).filter(|&before| before != pid)
                    && let Some(counters) = self.tasks.remove(&before)
                {
                    let ended = self.tasks.insert(pid, counters);
                    self.count(ended.flatten())?;
                }
                self.executes(pid)
            }
            0 => {
                // A signal for the task, or a stop of the whole group, which is not delivered.
                let deliver = if is_group_stop(pid) { 0 } else { signal };
                go_on(pid, deliver)
            }
            _ => go_on(pid, 0),
        }
    }

    /// Handles a process that is stopped at an exec: continues to follow it, or begins to count it as a rank.
    fn executes(&mut self, pid: pid_t) -> Result<(), CountersError> {
        // A process that has ended has no environment.
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let own = |name: &str| std::env::var_os(name).is_some();
        let Some(rank) = rank_of(&environment, own) else {
            return go_on(pid, 0);
        };
        if let Some(tree) = self.open(CountTarget::Tree(pid))? {
            self.ranks.entry(rank).or_default().push(tree);
        }
        self.ended(pid)?;
        ignore_gone(ptrace(libc::PTRACE_DETACH, pid, 0))
    }

    /// Opens counters; `None` if the task has ended in the meantime.
    fn open(&self, target: CountTarget) -> Result<Option<Counters>, CountersError> {
        match open(self.groups, target) {
            Ok(counters) => Ok(Some(counters)),
            Err(CountersError::Counter { cause, .. })
                if cause.raw_os_error() == Some(libc::ESRCH) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn ended(&mut self, pid: pid_t) -> Result<(), CountersError> {
        let counters = self.tasks.remove(&pid);
        self.count(counters.flatten())
    }

    fn count(&mut self, counters: Option<Counters>) -> Result<(), CountersError> {
        debug_assert_eq!(self.others.len(), self.events);
        match counters {
            Some(mut counters) => counters.read(&mut self.others),
            None => Ok(()),
        }
    }
}

/// Continues a stopped task, and delivers a signal to it unless `signal` is 0.
fn go_on(pid: pid_t, signal: c_int) -> Result<(), CountersError> {
    ignore_gone(ptrace(libc::PTRACE_CONT, pid, signal.into()))
}

/// Ignores the error for a task that no longer exists: a task may be killed while it is stopped.
fn ignore_gone(result: io::Result<c_long>) -> Result<(), CountersError> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        Err(cause) => Err(CountersError::Follow { cause }),
    }
}

/// Returns whether a stop is one of the whole group, in which a tracer cannot read a signal (ptrace(2), "Group-stop").
fn is_group_stop(pid: pid_t) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::uninit();
    // SAFETY: the kernel writes at most one siginfo_t to the address, which is that of one.
    let result =
        unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, pid, 0 as c_long, info.as_mut_ptr()) };
    result == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

/// Returns the message of a task's last ptrace event, as a process number; `None` if there is none.
fn event_message(pid: pid_t) -> Option<pid_t> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes one unsigned long to the address, which is that of one.
    let result =
        unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, pid, 0 as c_long, &raw mut message) };
    (result == 0).then_some(message as pid_t)
}

/// Makes a ptrace request whose arguments are numbers and no addresses.
fn ptrace(request: libc::c_uint, pid: pid_t, data: c_long) -> io::Result<c_long> {
    // SAFETY: no request that is passed to this function takes an address.
    match unsafe { libc::ptrace(request, pid, 0 as c_long, data) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Waits for the next event of a task that this thread follows. Children of other threads of this process are not waited for.
fn wait() -> io::Result<(pid_t, c_int)> {
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes one int to the address, which is that of one.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) } {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
            pid => return Ok((pid, status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_known_by_their_environment() {
        let none = |_: &str| false;
        assert_eq!(rank_of(b"A=1\0OMPI_COMM_WORLD_RANK=3\0", none), Some(3));
        assert_eq!(rank_of(b"PMI_RANK=12\0PMI_SIZE=16", none), Some(12));
        assert_eq!(rank_of(b"XPMI_RANK=12\0PMI_RANKS=3\0", none), None);
        assert_eq!(rank_of(b"PMI_RANK=-1\0SLURM_PROCID=x\0", none), None);
        assert_eq!(rank_of(b"", none), None);
        // The rank of an outer batch job is not that of the job's processes.
        let outer = |name: &str| name == "SLURM_PROCID";
        assert_eq!(rank_of(b"SLURM_PROCID=0\0", outer), None);
        assert_eq!(rank_of(b"SLURM_PROCID=0\0PMI_RANK=2\0", outer), Some(2));
    }
}
