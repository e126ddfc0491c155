//! A vCPU's clock: the guest's TSC, which stands still while the vCPU does not run.
//!
//! At each entry to the guest, the TSC offset is set so that the guest's TSC continues without a gap. So the time in which the host serves
//! an exit does not count. If the host descheduled the thread during the entry, that time is subtracted: where the offset can be set, the
//! clock advances by at most the thread's CPU time plus 20 us. README.md describes what a guest can see of this.

use nodescope_engine::EngineError;
use nodescope_x86::bits::msr;

use crate::alarm::thread_time;
use crate::vcpu::KvmVcpu;
use crate::{msrs, raw};

/// Largest difference between TSC and CPU time that is taken for a measurement error, in ns.
const SLACK_NS: u64 = 20_000;

/// Properties of the host's TSC: how a vCPU's TSC is read and set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tsc {
    /// Frequency of the guest's TSC in Hz.
    pub hz: u64,
    /// True if the guest's TSC is the host's TSC plus an offset, so that it can be read without an ioctl.
    pub plain: bool,
    /// True if the host allows setting the offset.
    pub settable: bool,
    /// Guest's TSC minus the host's TSC, if `plain`.
    pub offset: u64,
}

/// Clock values at the last entry to the guest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    cycles: u64,
    thread_ns: u64,
}

/// Returns the host's TSC.
fn host_tsc() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC, which Linux lets user code execute.
    unsafe { std::arch::x86_64::_rdtsc() }
}

impl KvmVcpu {
    fn shown_tsc(&self) -> Result<u64, EngineError> {
        if self.tsc.plain {
            return Ok(host_tsc().wrapping_add(self.tsc.offset));
        }
        msrs::read(&self.fd, msr::TSC)
    }

    /// Sets the guest's TSC to clock + offset. KVM takes a TSC value that is close to another one for an attempt to synchronise CPUs.
    /// Therefore the offset is set instead if the host allows that.
    ///
    /// A KVM that runs in software gives the guest the host's TSC and ignores the offset. The guest's TSC then jumps, as if the guest had
    /// changed the offset. In this case the offset is adjusted and true is returned, and the caller must inform the platform.
    pub(crate) fn load_tsc(&mut self) -> Result<bool, EngineError> {
        let time = &self.state.time;
        let wanted = time.cycles.wrapping_add(time.tsc_offset);
        if self.tsc.plain && self.tsc.settable {
            let offset = wanted.wrapping_sub(host_tsc());
            if raw::set_tsc_offset(&self.fd, offset).is_ok() {
                self.tsc.offset = offset;
                return Ok(false);
            }
            (self.tsc.plain, self.tsc.settable) = (false, false);
        }
        let by_offset = self.tsc.settable
            && raw::tsc_offset(&self.fd).is_ok_and(|offset| {
                msrs::read(&self.fd, msr::TSC).is_ok_and(|shown| {
                    let corrected = offset.wrapping_add(wanted.wrapping_sub(shown));
                    raw::set_tsc_offset(&self.fd, corrected).is_ok()
                })
            });
        if !by_offset {
            msrs::write(&self.fd, msr::TSC, wanted)?;
        }
        if self.vm.inner.ring0_native && by_offset {
            return Ok(false);
        }
        let skew = msrs::read(&self.fd, msr::TSC)?.wrapping_sub(wanted);
        // The time between setting and reading the TSC is much less than a millisecond.
        if skew < self.tsc.hz / 1000 {
            return Ok(false);
        }
        let offset = &mut self.state.time.tsc_offset;
        *offset = offset.wrapping_add(skew);
        Ok(true)
    }

    /// Records the clock and the thread's CPU time. Must be called just before an entry to the guest.
    pub(crate) fn start_clock(&mut self) {
        self.entry = Entry {
            cycles: self.state.time.cycles,
            thread_ns: thread_time(),
        };
    }

    /// Advances the clock by the time of the entry. Must be called after an exit from the guest.
    pub(crate) fn stop_clock(&mut self) -> Result<(), EngineError> {
        let now = self.shown_tsc()?.wrapping_sub(self.state.time.tsc_offset);
        let passed = now.wrapping_sub(self.entry.cycles);
        // If the TSC could not be set, it may be behind the clock. The clock then does not advance.
        if passed >= 1 << 63 {
            return Ok(());
        }
        let ran_ns = thread_time().saturating_sub(self.entry.thread_ns) + SLACK_NS;
        let ran = u128::from(ran_ns) * u128::from(self.tsc.hz) / 1_000_000_000;
        let ran = u64::try_from(ran).unwrap_or(u64::MAX);
        // If the TSC cannot be set, the clock advances by the host's time, even while the thread was descheduled.
        let passed = if self.tsc.settable {
            passed.min(ran)
        } else {
            passed
        };
        self.state.time.cycles = self.entry.cycles.wrapping_add(passed);
        Ok(())
    }
}
