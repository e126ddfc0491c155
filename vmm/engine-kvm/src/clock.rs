//! A vCPU's clock: the guest's TSC, which stops while the vCPU does not run.
//!
//! At each entry of the guest the TSC's offset is set so that the guest reads on without a gap. Time in which the host serves an
//! exit therefore does not count. Where the thread was taken off its processor, the time that it did not run is taken away again: the
//! clock advances by the thread's CPU time if the CPU time is less. README.md describes what a guest can see of this.

use nodescope_engine::EngineError;
use nodescope_x86::bits::msr;

use crate::alarm::thread_time;
use crate::vcpu::KvmVcpu;
use crate::{msrs, raw};

/// Differences between TSC and CPU time that are errors of the measurement, ns.
const SLACK_NS: u64 = 20_000;

/// TSC of a vCPU: how the TSC is set and read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tsc {
    /// Rate of the TSC, Hz.
    pub hz: u64,
    /// True if the guest's TSC is the host's plus an offset, so that no call is needed to read it.
    pub plain: bool,
    /// True if the host lets the offset be set.
    pub settable: bool,
    /// Guest's TSC less the host's, if `plain`.
    pub offset: u64,
}

/// State of the clock at the last entry.
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

    /// Makes the guest's TSC show clock + offset. KVM takes a written TSC for an attempt to synchronise CPUs when it is
    /// near another value, so the offset is set where the host lets it be.
    ///
    /// A software KVM gives the guest the host's TSC and ignores the offset. The guest then sees its TSC jump, which is what
    /// a changed offset means: the offset follows, true is returned, and the platform must hear of it.
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
        // The time between setting and reading is far below a millisecond.
        if skew < self.tsc.hz / 1000 {
            return Ok(false);
        }
        let offset = &mut self.state.time.tsc_offset;
        *offset = offset.wrapping_add(skew);
        Ok(true)
    }

    /// Starts the clock: the guest is about to be entered.
    pub(crate) fn start_clock(&mut self) {
        self.entry = Entry {
            cycles: self.state.time.cycles,
            thread_ns: thread_time(),
        };
    }

    /// Stops the clock: the guest has been left.
    pub(crate) fn stop_clock(&mut self) -> Result<(), EngineError> {
        let now = self.shown_tsc()?.wrapping_sub(self.state.time.tsc_offset);
        let passed = now.wrapping_sub(self.entry.cycles);
        // A TSC that could not be set back may even lie before the clock.
        if passed >= 1 << 63 {
            return Ok(());
        }
        let ran_ns = thread_time().saturating_sub(self.entry.thread_ns) + SLACK_NS;
        let ran = u128::from(ran_ns) * u128::from(self.tsc.hz) / 1_000_000_000;
        let ran = u64::try_from(ran).unwrap_or(u64::MAX);
        // Where the TSC cannot be set, the TSC advances by the host's time, even while the thread did not run.
        let passed = if self.tsc.settable {
            passed.min(ran)
        } else {
            passed
        };
        self.state.time.cycles = self.entry.cycles.wrapping_add(passed);
        Ok(())
    }
}
