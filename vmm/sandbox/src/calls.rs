//! seccomp: the system calls that a process keeps.
//!
//! The filters are allow lists. A call that is not listed fails with ENOSYS, as if the kernel lacked it: C libraries know that answer from
//! older kernels and take another way, so that a newer C library works with an older list.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::status::State;

/// Memory, waiting, clocks, signals of this process, and the descriptors that it has.
const CORE: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_time,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Files by path, and all that a C library and Rust's standard library do with files and descriptors.
const FILES: &[i64] = &[
    libc::SYS_access,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd2,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_lstat,
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_msync,
    libc::SYS_newfstatat,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_pipe,
    libc::SYS_pipe2,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pselect6,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_stat,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_symlink,
    libc::SYS_symlinkat,
    libc::SYS_sync_file_range,
    libc::SYS_umask,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
];

/// Threads, and facts about this process and the host.
const PROCESS: &[i64] = &[
    libc::SYS_arch_prctl,
    libc::SYS_get_robust_list,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpgrp,
    libc::SYS_getppid,
    libc::SYS_getrlimit,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_membarrier,
    libc::SYS_prctl,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sysinfo,
    libc::SYS_times,
    libc::SYS_uname,
    // These only take away what is left.
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_seccomp,
];

/// Sockets, of the processes of a distributed run.
const SOCKETS: &[i64] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// Starting and ending child processes.
const CHILDREN: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_kill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_setpgid,
    libc::SYS_vfork,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Numbers of ioctls of KVM and of perf events have this byte (Documentation/userspace-api/ioctl/ioctl-number.rst).
const KVM_TYPE: u64 = 0xae;
const PERF_TYPE: u64 = 0x24;

/// Flags of clone(2) that make namespaces.
const NAMESPACES: libc::c_int = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// System calls that a process keeps, each with conditions of which one must be true. No condition allows every use of the call.
#[derive(Debug, Default)]
pub(crate) struct Calls(BTreeMap<i64, Vec<SeccompRule>>);

impl Calls {
    /// Returns the calls of a process that can only compute and use the descriptors that it has.
    pub fn cell() -> Calls {
        let mut calls = Calls::default();
        calls.all(CORE);
        // Code is data here: no page becomes executable.
        let prot_exec = libc::PROT_EXEC as u64;
        calls.when(libc::SYS_mmap, &[masked(2, prot_exec, 0)]);
        calls.when(libc::SYS_mprotect, &[masked(2, prot_exec, 0)]);
        calls.own_signals();
        calls
    }

    /// Returns the calls of a process that runs guests.
    pub fn guests() -> Calls {
        let mut calls = Calls::default();
        calls.all(CORE);
        calls.all(FILES);
        calls.all(PROCESS);
        calls.all(&[libc::SYS_mmap, libc::SYS_mprotect]);
        calls.own_signals();
        // clone3(2) keeps its flags in memory, where a filter does not see them. It is not listed, and C libraries use clone(2) then.
        let thread = libc::CLONE_THREAD as u64;
        calls.when(libc::SYS_clone, &[masked(0, thread, thread)]);
        // Limits are read; a process changes its own alone.
        calls.when(libc::SYS_prlimit64, &[equal(0, 0)]);
        let unix = [equal(0, libc::AF_UNIX as u64)];
        calls.when(libc::SYS_socketpair, &unix);
        for request in [
            libc::TCGETS,
            libc::TCSETS,
            libc::TCSETSW,
            libc::TCSETSF,
            libc::TIOCGWINSZ,
            libc::TIOCGPGRP,
            libc::FIONREAD,
            libc::FIONBIO,
            libc::FIOCLEX,
            // Sharing of file extents, by which copies cost no space: FICLONE.
            0x4004_9409,
        ] {
            calls.when(libc::SYS_ioctl, &[equal(1, request)]);
        }
        calls
    }

    /// Adds the calls of a process that talks to others by TCP.
    pub fn with_tcp(&mut self) {
        self.all(SOCKETS);
        for family in [libc::AF_INET, libc::AF_INET6] {
            self.when(libc::SYS_socket, &[equal(0, family as u64)]);
        }
    }

    /// Adds the calls of a process that starts child processes.
    pub fn with_children(&mut self) {
        self.all(CHILDREN);
        self.when(libc::SYS_clone, &[masked(0, NAMESPACES as u64, 0)]);
    }

    /// Adds the ioctls of KVM.
    pub fn with_kvm(&mut self) {
        self.when(libc::SYS_ioctl, &[masked(1, 0xff00, KVM_TYPE << 8)]);
        // vCPUs are told to leave the guest by a signal.
        self.all(&[libc::SYS_eventfd2]);
    }

    /// Adds hardware counters.
    pub fn with_counters(&mut self) {
        self.all(&[libc::SYS_perf_event_open]);
        self.when(libc::SYS_ioctl, &[masked(1, 0xff00, PERF_TYPE << 8)]);
    }

    /// Adds signals to this process itself, such as those of abort(3).
    fn own_signals(&mut self) {
        // SAFETY: getpid has no preconditions.
        let own = unsafe { libc::getpid() } as u64;
        self.when(libc::SYS_tgkill, &[equal(0, own)]);
        self.when(libc::SYS_kill, &[equal(0, own)]);
    }

    fn all(&mut self, numbers: &[i64]) {
        for number in numbers {
            self.0.insert(*number, Vec::new());
        }
    }

    /// Adds a call with conditions that must all be true. Several such sets are alternatives.
    fn when(&mut self, number: i64, conditions: &[SeccompCondition]) {
        let rule = SeccompRule::new(conditions.to_vec()).expect("a rule has conditions");
        match self.0.get_mut(&number) {
            // The call is allowed whatever its arguments.
            Some(rules) if rules.is_empty() => {}
            Some(rules) => rules.push(rule),
            None => {
                self.0.insert(number, vec![rule]);
            }
        }
    }

    /// Restricts all threads of this process to these calls.
    pub fn apply(self) -> State {
        let filter = SeccompFilter::new(
            self.0,
            SeccompAction::Errno(libc::ENOSYS as u32),
            SeccompAction::Allow,
            TargetArch::x86_64,
        )
        .expect("the lists hold at least one call");
        let program: BpfProgram = filter.try_into().expect("the lists fit a BPF program");
        match seccompiler::apply_filter_all_threads(&program) {
            Ok(()) => State::Held,
            Err(error) => State::Missing(error.to_string()),
        }
    }
}

/// True if the bits `mask` of an argument's lower half have this value.
fn masked(argument: u8, mask: u64, value: u64) -> SeccompCondition {
    let compare = SeccompCmpOp::MaskedEq(mask);
    condition(argument, compare, value)
}

/// True if an argument's lower half has this value.
fn equal(argument: u8, value: u64) -> SeccompCondition {
    condition(argument, SeccompCmpOp::Eq, value)
}

fn condition(argument: u8, compare: SeccompCmpOp, value: u64) -> SeccompCondition {
    // The kernel takes flags, numbers of processes and requests from the lower half of the register.
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compare, value)
        .expect("system calls have six arguments")
}
