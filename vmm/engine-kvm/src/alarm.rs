//! Bringing a vCPU out of KVM_RUN in time: a timer that signals the thread.
//!
//! The signal's handler does nothing; a pending signal makes KVM_RUN return. A signal that arrives just before the
//! call would be lost, therefore the timer fires again and again until it is disarmed.

use std::io;
use std::sync::Once;

/// Interval of repeated firing, ns.
const AGAIN: i64 = 200_000;

/// Signal used; handlers of other signals are left alone.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 4
}

extern "C" fn ignore(_: libc::c_int) {}

/// A timer of the thread that made it.
pub(crate) struct Alarm {
    timer: libc::timer_t,
}

impl Alarm {
    /// A disarmed timer for the calling thread.
    pub fn new() -> io::Result<Self> {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| {
            // SAFETY: zeros are a valid sigaction; the handler is async-signal-safe, for it does nothing.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = ignore as *const () as usize;
                libc::sigaction(signal(), &action, std::ptr::null_mut());
            }
        });
        let mut timer = std::ptr::null_mut();
        // SAFETY: zeros are a valid sigevent; both pointers are to live locals.
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

    /// Fire in `after` ns and then repeatedly; `None` disarms.
    pub fn arm(&self, after: Option<u64>) -> io::Result<()> {
        let first = after.map_or(0, |ns| ns.clamp(1, i64::MAX as u64) as i64);
        let time = |ns: i64| libc::timespec {
            tv_sec: ns / 1_000_000_000,
            tv_nsec: ns % 1_000_000_000,
        };
        let setting = libc::itimerspec {
            it_interval: time(if after.is_some() { AGAIN } else { 0 }),
            it_value: time(first),
        };
        // SAFETY: the timer is ours and alive; the setting outlives the call.
        let code = unsafe { libc::timer_settime(self.timer, 0, &setting, std::ptr::null_mut()) };
        if code < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: the timer is ours and is not used afterwards.
        unsafe { libc::timer_delete(self.timer) };
    }
}
