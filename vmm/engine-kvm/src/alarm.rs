//! Bringing a vCPU out of KVM_RUN, with a timer of its thread or on request of another thread.
//!
//! In both cases, a signal reaches the thread. Its handler sets `immediate_exit` in the page that KVM shares with the vCPU. So a signal
//! that arrives just before KVM_RUN is not lost (Documentation/virt/kvm/api.rst, section 5, `immediate_exit`).

use std::cell::{Cell, OnceCell};
use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use kvm_bindings::kvm_run;
use nodescope_engine::Kicker;

/// Returns the number of the alarm's signal. No handlers of other signals are changed.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 4
}

/// Period of the repeated signals of an alarm, in ns.
const AGAIN_NS: i64 = 10_000_000;

thread_local! {
    /// The kvm_run page of the vCPU that runs on this thread, or null.
    static PAGE: Cell<*mut kvm_run> = const { Cell::new(std::ptr::null_mut()) };
    static ALARM: OnceCell<Alarm> = const { OnceCell::new() };
}

extern "C" fn leave_guest(_: libc::c_int) {
    let page = PAGE.with(Cell::get);
    if !page.is_null() {
        // SAFETY: the page is mapped while its vCPU exists, and `OnThread` removes it from the thread before the vCPU can be dropped. The
        // thread-local is initialized by a constant and has no destructor, so reading it is async-signal-safe.
        unsafe { (&raw mut (*page).immediate_exit).write_volatile(1) };
    }
}

fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // SAFETY: zeros are a valid sigaction, and the handler is async-signal-safe, as `leave_guest` shows.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = leave_guest as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal(), &action, std::ptr::null_mut());
        }
    });
}

/// A POSIX timer that signals the thread that created it.
struct Alarm {
    timer: libc::timer_t,
}

impl Alarm {
    /// Creates a disarmed timer for the calling thread.
    fn new() -> io::Result<Self> {
        install();
        let mut timer = std::ptr::null_mut();
        // SAFETY: zeros are a valid sigevent, and both pointers are to live locals.
        let code = unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal();
            event.sigev_notify_thread_id = libc::gettid();
            libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer)
        };
        if code < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { timer })
    }

    fn arm(&self, after: Option<u64>) -> io::Result<()> {
        let first = after.map_or(0, |ns| ns.clamp(1, i64::MAX as u64) as i64);
        let time = |ns: i64| libc::timespec {
            tv_sec: ns / 1_000_000_000,
            tv_nsec: ns % 1_000_000_000,
        };
        // The timer fires repeatedly. If the guest were entered again after a single signal, the vCPU would never end its quantum.
        let setting = libc::itimerspec {
            it_interval: time(AGAIN_NS),
            it_value: time(first),
        };
        // SAFETY: this value owns the timer, which exists, and the setting outlives the call.
        let code = unsafe { libc::timer_settime(self.timer, 0, &setting, std::ptr::null_mut()) };
        if code < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: this value owns the timer, which is not used afterwards.
        unsafe { libc::timer_delete(self.timer) };
    }
}

/// Arms the calling thread's alarm to fire after `after` ns and then every [`AGAIN_NS`], until it is armed again. `None` disarms it.
pub(crate) fn arm(after: Option<u64>) -> io::Result<()> {
    ALARM.with(|cell| {
        let alarm = match cell.get() {
            Some(alarm) => alarm,
            None => {
                let alarm = Alarm::new()?;
                cell.get_or_init(|| alarm)
            }
        };
        alarm.arm(after)
    })
}

/// Returns the CPU time of the calling thread in ns.
pub(crate) fn thread_time() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock exists on every Linux, and the pointer is to a live local.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the thread ID of the calling thread.
pub(crate) fn thread() -> libc::pid_t {
    // SAFETY: gettid has no arguments and always succeeds.
    unsafe { libc::gettid() }
}

/// ID of the thread on which a vCPU runs; 0 if the vCPU does not run.
#[derive(Debug, Default)]
pub(crate) struct RunningThread(AtomicI32);

impl Kicker for RunningThread {
    fn kick(&self) {
        let thread = self.0.load(Ordering::Acquire);
        if thread != 0 {
            // SAFETY: the signal's handler is installed before a thread's ID is stored here, and has no effect on threads without a vCPU.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal()) };
        }
    }
}

/// Registration of the calling thread as the one that runs a vCPU. While this value exists, signals to the thread bring the vCPU out of the
/// guest. Dropping it disarms the thread's alarm.
pub(crate) struct OnThread<'a>(&'a RunningThread);

impl<'a> OnThread<'a> {
    pub fn new(this: &'a RunningThread, page: *mut kvm_run) -> Self {
        install();
        PAGE.with(|cell| cell.set(page));
        this.0.store(thread(), Ordering::Release);
        Self(this)
    }
}

impl Drop for OnThread<'_> {
    fn drop(&mut self) {
        // Disarming an existing timer does not fail.
        let _ = arm(None);
        self.0.0.store(0, Ordering::Release);
        PAGE.with(|cell| cell.set(std::ptr::null_mut()));
    }
}
