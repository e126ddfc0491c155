//! The run loop: injects interrupts, enters the guest and serves its exits.

use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use kvm_bindings::kvm_run;
use kvm_ioctls::VcpuExit;
use nodescope_counters::{CountersError, guest};
use nodescope_engine::{EngineError, Exit, Limit, Platform, StopReport};
use nodescope_x86::bits::{msr, rflags};
use nodescope_x86::state::seg;
use nodescope_x86::{InterruptShadow, MpState};

use crate::alarm::{self, OnThread};
use crate::vcpu::KvmVcpu;
use crate::{hypercall, raw, refused};

/// Longest entry to the guest to deliver one injected event, in ns.
const SETTLING_NS: u64 = 100_000;

/// An exit of KVM_RUN, with data copied from the shared page where possible.
enum Event {
    PortOut {
        port: u16,
        size: usize,
        data: Vec<u8>,
    },
    PortIn {
        port: u16,
        size: usize,
        at: *mut u8,
        len: usize,
    },
    MmioRead {
        address: u64,
        len: usize,
    },
    MmioWrite {
        address: u64,
        data: Vec<u8>,
    },
    ReadMsr(u32),
    WriteMsr(u32, u64),
    Halt,
    Shutdown,
    /// The vCPU must be entered again after a check of its state: an interrupt window has opened, or the task priority has changed.
    Again,
    /// A signal ended the entry, from the alarm or from another thread.
    Cut,
    Stop(String),
}

/// Next step of the run loop after an exit was served.
enum Served {
    Continue,
    Halt,
    Shutdown,
    Stop(String),
}

fn os(what: &str) -> impl FnOnce(std::io::Error) -> EngineError {
    let what = what.to_owned();
    move |source| EngineError::Host { what, source }
}

fn uncounted(error: CountersError) -> EngineError {
    EngineError::Host {
        what: "counting the guest with the host's hardware counters".into(),
        source: std::io::Error::other(error),
    }
}

impl KvmVcpu {
    pub(crate) fn run_until(
        &mut self,
        platform: &mut dyn Platform,
        limit: Limit,
    ) -> Result<Exit, EngineError> {
        let unsupported = |what: &str| {
            Err(EngineError::Host {
                what: what.into(),
                source: std::io::ErrorKind::Unsupported.into(),
            })
        };
        if limit.instructions != u64::MAX {
            return unsupported(
                "KVM cannot stop after a number of instructions; use the portable engine",
            );
        }
        if self.attached {
            return unsupported(
                "KVM shows no memory references to a model; use the portable engine in windows",
            );
        }
        match self.state.events.mp {
            MpState::WaitForSipi => return Ok(Exit::Halted),
            MpState::Shutdown => return Ok(Exit::Shutdown),
            MpState::Running | MpState::Halted => {}
        }
        self.load()?;
        // While `on_thread` exists, the thread's alarm and signals from other threads bring this vCPU out of the guest.
        let thread = Arc::clone(&self.thread);
        let page: *mut kvm_run = self.fd.get_kvm_run();
        let on_thread = OnThread::new(&thread, page);
        let counters = self.counters.clone();
        if let Some(counters) = &counters {
            let started = guest::lock(counters).start(alarm::thread());
            started.map_err(uncounted)?;
        }
        let ended = match self.run_loop(platform, limit) {
            Ok(Ok(exit)) => self.finish_instruction(platform).map(|()| Ok(exit)),
            ended => ended,
        };
        if let Some(counters) = &counters {
            guest::lock(counters).stop().map_err(uncounted)?;
        }
        drop(on_thread);
        match ended? {
            Ok(exit) => Ok(exit),
            Err(what) => {
                self.store()?;
                Err(EngineError::Unsupported(Box::new(self.report(what))))
            }
        }
    }

    /// Runs until the vCPU must return. `Ok(Ok(exit))` is an ordinary exit, and `Ok(Err(text))` an unsupported event to report.
    fn run_loop(
        &mut self,
        platform: &mut dyn Platform,
        limit: Limit,
    ) -> Result<Result<Exit, String>, EngineError> {
        loop {
            // The checks below may miss the cause of a signal that arrives from here on. Such a signal sets `immediate_exit`, so KVM_RUN
            // returns at once.
            self.fd.set_kvm_immediate_exit(0);
            compiler_fence(Ordering::SeqCst);
            let now = self.state.time.cycles;
            if now >= limit.cycles {
                return Ok(Ok(Exit::Limit));
            }
            if platform.attention() {
                return Ok(Ok(Exit::Attention));
            }
            let mut pending = platform.interrupt_pending(self.id, now);
            if pending && self.unfinished {
                // The instruction may end in an exception, as an access to a missing MSR does. KVM would drop an interrupt that was
                // injected before the exception.
                self.finish_instruction(platform)?;
                continue;
            }
            if self.state.events.mp == MpState::Halted {
                let (enabled, _) = self.interruptible();
                if !(pending && enabled || self.state.events.nmi_pending) {
                    return Ok(Ok(Exit::Halted));
                }
                self.state.events.mp = MpState::Running;
            }
            let (_, ready) = self.interruptible();
            if pending && ready {
                if let Some(vector) = platform.acknowledge(self.id, now) {
                    raw::interrupt(&self.fd, vector)
                        .map_err(|e| refused(format!("injecting interrupt {vector:#x}"), e))?;
                }
                pending = platform.interrupt_pending(self.id, now);
            }
            let priority = platform.task_priority(self.id);
            let page = self.fd.get_kvm_run();
            page.request_interrupt_window = pending.into();
            page.cr8 = priority.into();
            let until = limit.cycles.min(platform.next_event(self.id));
            if self.load_tsc()? {
                let time = self.state.time;
                platform.tsc_offset_changed(self.id, time.cycles, time.tsc_offset);
            }
            let event = self.enter_for(self.nanoseconds(until, now))?;
            let shown = (self.fd.get_kvm_run().cr8 & 0xf) as u8;
            if shown != priority {
                platform.set_task_priority(self.id, self.state.time.cycles, shown);
            }
            match self.serve(platform, event)? {
                Served::Continue => {}
                Served::Halt => self.state.events.mp = MpState::Halted,
                Served::Shutdown => {
                    self.state.events.mp = MpState::Shutdown;
                    return Ok(Ok(Exit::Shutdown));
                }
                Served::Stop(what) => return Ok(Err(what)),
            }
        }
    }

    /// Returns whether interrupts are enabled, and whether an interrupt can be injected now. If KVM has run the vCPU since its state was
    /// restored, the answer is KVM's; otherwise it follows from the state.
    fn interruptible(&self) -> (bool, bool) {
        if self.is_held() {
            return self.interruptible;
        }
        let flags = self.state.general.rflags & rflags::IF != 0;
        let shadow = self.state.events.shadow != InterruptShadow::None;
        (flags, flags && !shadow)
    }

    /// Returns the nanoseconds until the clock reaches `until`; `None` if `until` is never (`u64::MAX`).
    fn nanoseconds(&self, until: u64, now: u64) -> Option<u64> {
        (until != u64::MAX).then(|| {
            let cycles = u128::from(until.saturating_sub(now));
            u64::try_from(cycles * 1_000_000_000 / u128::from(self.tsc_hz())).unwrap_or(u64::MAX)
        })
    }

    /// Enters KVM until it has finished an instruction that waited for user space, without executing another instruction.
    fn finish_instruction(&mut self, platform: &mut dyn Platform) -> Result<(), EngineError> {
        // An access across two MMIO pages takes several exits.
        const ENTRIES: usize = 64;
        for _ in 0..ENTRIES {
            if !self.unfinished {
                return Ok(());
            }
            self.fd.set_kvm_immediate_exit(1);
            let event = self.enter();
            self.fd.set_kvm_immediate_exit(0);
            match self.serve(platform, event?)? {
                Served::Continue => {}
                Served::Halt => self.state.events.mp = MpState::Halted,
                Served::Shutdown => self.state.events.mp = MpState::Shutdown,
                // The error will occur again, with its report, when the vCPU runs next.
                Served::Stop(_) => return Ok(()),
            }
        }
        Err(EngineError::Host {
            what: format!("KVM vCPU {} did not finish an instruction", self.id),
            source: std::io::ErrorKind::TimedOut.into(),
        })
    }

    /// Brings KVM to an instruction boundary. Delivers events that were injected but not taken by the guest yet, since a vCPU's state does
    /// not contain such events.
    pub(crate) fn settle(&mut self, platform: &mut dyn Platform) -> Result<(), EngineError> {
        // The alarm ends each entry to the guest.
        const ENTRIES: usize = 10_000;
        let thread = Arc::clone(&self.thread);
        let page: *mut kvm_run = self.fd.get_kvm_run();
        let _on_thread = OnThread::new(&thread, page);
        for _ in 0..ENTRIES {
            self.finish_instruction(platform)?;
            if self.state.events.mp == MpState::Shutdown {
                return Ok(());
            }
            let e = self
                .fd
                .get_vcpu_events()
                .map_err(|e| refused("reading pending events", e))?;
            let in_flight =
                e.exception.injected | e.exception.pending | e.interrupt.injected | e.nmi.injected;
            if in_flight == 0 {
                return Ok(());
            }
            self.fd.set_kvm_immediate_exit(0);
            self.load_tsc()?;
            let event = self.enter_for(Some(SETTLING_NS))?;
            match self.serve(platform, event)? {
                Served::Continue => {}
                Served::Halt => self.state.events.mp = MpState::Halted,
                Served::Shutdown => self.state.events.mp = MpState::Shutdown,
                Served::Stop(_) => return Ok(()),
            }
        }
        Err(EngineError::Host {
            what: format!("KVM vCPU {} did not take an injected event", self.id),
            source: std::io::ErrorKind::TimedOut.into(),
        })
    }

    /// Executes KVM_RUN once, for at most `ns` nanoseconds plus the vCPU's grace.
    fn enter_for(&mut self, ns: Option<u64>) -> Result<Event, EngineError> {
        alarm::arm(self.grace.extend(ns)).map_err(os("setting the vCPU's timer"))?;
        let event = self.enter()?;
        match event {
            Event::Cut => {
                let regs = self.fd.get_regs();
                let r = regs.map_err(|e| refused("reading general registers", e))?;
                self.grace.cut_short([r.rip, r.rsp, r.rcx, r.rflags]);
            }
            // KVM may report these events without having executed an instruction.
            Event::Again | Event::Stop(_) => {}
            _ => self.grace.progress(),
        }
        Ok(event)
    }

    /// Executes KVM_RUN once, and advances the clock.
    fn enter(&mut self) -> Result<Event, EngineError> {
        self.unfinished = false;
        self.hold();
        self.start_clock();
        let result = self.enter_guest();
        self.stop_clock()?;
        let (event, unfinished) = result?;
        self.unfinished = unfinished;
        let page = self.fd.get_kvm_run();
        let enabled = page.if_flag != 0;
        let ready = enabled && page.ready_for_interrupt_injection != 0;
        self.interruptible = (enabled, ready);
        Ok(event)
    }

    /// Executes KVM_RUN. Returns the reason of its exit, and whether KVM has an instruction to finish.
    fn enter_guest(&mut self) -> Result<(Event, bool), EngineError> {
        Ok(match self.fd.run() {
            Ok(VcpuExit::IoOut(port, data)) => {
                let data = data.to_vec();
                let size = io_size(self.fd.get_kvm_run());
                (Event::PortOut { port, size, data }, true)
            }
            Ok(VcpuExit::IoIn(port, data)) => {
                let (at, len) = (data.as_mut_ptr(), data.len());
                let size = io_size(self.fd.get_kvm_run());
                (
                    Event::PortIn {
                        port,
                        size,
                        at,
                        len,
                    },
                    true,
                )
            }
            Ok(VcpuExit::MmioRead(address, data)) => {
                let len = data.len();
                (Event::MmioRead { address, len }, true)
            }
            Ok(VcpuExit::MmioWrite(address, data)) => {
                let data = data.to_vec();
                (Event::MmioWrite { address, data }, true)
            }
            Ok(VcpuExit::X86Rdmsr(read)) => (Event::ReadMsr(read.index), true),
            Ok(VcpuExit::X86Wrmsr(write)) => (Event::WriteMsr(write.index, write.data), true),
            Ok(VcpuExit::Hlt) => (Event::Halt, false),
            Ok(VcpuExit::Shutdown) => (Event::Shutdown, false),
            Ok(VcpuExit::IrqWindowOpen | VcpuExit::SetTpr) => (Event::Again, false),
            Ok(VcpuExit::Intr) => (Event::Cut, false),
            Ok(VcpuExit::InternalError) => {
                (Event::Stop(internal_error(self.fd.get_kvm_run())), false)
            }
            Ok(VcpuExit::FailEntry(reason, _)) => (
                Event::Stop(format!(
                    "the processor refused to enter the guest (reason {reason:#x})"
                )),
                false,
            ),
            Ok(VcpuExit::MemoryFault { gpa, size, .. }) => (
                Event::Stop(format!(
                    "KVM could not reach {size} bytes of guest memory at {gpa:#x}"
                )),
                false,
            ),
            Ok(other) => (
                Event::Stop(format!("KVM stopped for an unexpected reason, {other:?}")),
                false,
            ),
            Err(e) if [libc::EINTR, libc::EAGAIN].contains(&e.errno()) => (Event::Cut, false),
            Err(e) => return Err(refused(format!("KVM_RUN on vCPU {}", self.id), e)),
        })
    }

    fn serve(&mut self, platform: &mut dyn Platform, event: Event) -> Result<Served, EngineError> {
        let id = self.id;
        match event {
            Event::Again | Event::Cut => return Ok(Served::Continue),
            Event::Halt => return Ok(Served::Halt),
            Event::Shutdown => return Ok(Served::Shutdown),
            Event::Stop(what) => return Ok(Served::Stop(what)),
            Event::PortOut { port, data, .. } if hypercall::rings(port, &data) => {
                self.ring(platform)?;
            }
            Event::PortOut { port, size, data } => {
                let now = self.state.time.cycles;
                for item in data.chunks(size) {
                    platform.port_write(id, now, port, item);
                }
            }
            Event::PortIn {
                port,
                size,
                at,
                len,
            } => {
                let now = self.state.time.cycles;
                // SAFETY: KVM placed `len` bytes at `at` in the shared mapping, which exists as long as the vCPU's file. Nothing else
                // refers to these bytes until KVM_RUN is called again.
                let data = unsafe { std::slice::from_raw_parts_mut(at, len) };
                for item in data.chunks_mut(size) {
                    platform.port_read(id, now, port, item);
                }
            }
            Event::MmioRead { address, len } => {
                let now = self.state.time.cycles;
                let mut data = [0; 8];
                platform.mmio_read(id, now, address, &mut data[..len.min(8)]);
                // SAFETY: the exit was for MMIO, so this is the active field of the union; any bytes are valid.
                let mmio = unsafe { &mut self.fd.get_kvm_run().__bindgen_anon_1.mmio };
                mmio.data = data;
            }
            Event::MmioWrite { address, data } => {
                let now = self.state.time.cycles;
                platform.mmio_write(id, now, address, &data);
            }
            Event::ReadMsr(index) => {
                let answer = self.read_msr(platform, index)?;
                // SAFETY: the exit was for an MSR, so this is the active field of the union.
                let msr = unsafe { &mut self.fd.get_kvm_run().__bindgen_anon_1.msr };
                msr.error = answer.is_none().into();
                msr.data = answer.unwrap_or(0);
            }
            Event::WriteMsr(index, value) => {
                let done = self.write_msr(platform, index, value)?;
                // SAFETY: the exit was for an MSR, so this is the active field of the union.
                let msr = unsafe { &mut self.fd.get_kvm_run().__bindgen_anon_1.msr };
                msr.error = (!done).into();
            }
        }
        Ok(Served::Continue)
    }

    fn read_msr(
        &mut self,
        platform: &mut dyn Platform,
        index: u32,
    ) -> Result<Option<u64>, EngineError> {
        if index == msr::TSC_ADJUST {
            return Ok(Some(self.state.msrs.tsc_adjust));
        }
        let now = self.state.time.cycles;
        Ok(platform.msr_read(self.id, now, index).ok())
    }

    /// Writes an MSR. Returns false if the platform refuses the register. A write of the TSC changes the TSC offset, and TSC_ADJUST by the
    /// same amount (SDM vol. 3B §17.17.3).
    fn write_msr(
        &mut self,
        platform: &mut dyn Platform,
        index: u32,
        value: u64,
    ) -> Result<bool, EngineError> {
        let now = self.state.time.cycles;
        let delta = match index {
            msr::TSC => value.wrapping_sub(now.wrapping_add(self.state.time.tsc_offset)),
            msr::TSC_ADJUST => value.wrapping_sub(self.state.msrs.tsc_adjust),
            _ => return Ok(platform.msr_write(self.id, now, index, value).is_ok()),
        };
        let (time, msrs) = (&mut self.state.time, &mut self.state.msrs);
        time.tsc_offset = time.tsc_offset.wrapping_add(delta);
        msrs.tsc_adjust = msrs.tsc_adjust.wrapping_add(delta);
        self.load_tsc()?;
        platform.tsc_offset_changed(self.id, now, self.state.time.tsc_offset);
        Ok(true)
    }

    fn report(&self, what: String) -> StopReport {
        let linear = self.state.segments.data[seg::CS]
            .base
            .wrapping_add(self.state.general.rip);
        let mut bytes = Vec::new();
        for i in 0..15 {
            let mut byte = [0];
            let Ok(t) = self.fd.translate_gva(linear.wrapping_add(i)) else {
                break;
            };
            if t.valid == 0 || !self.vm.inner.ram.read(t.physical_address, &mut byte) {
                break;
            }
            bytes.push(byte[0]);
        }
        StopReport {
            vcpu: self.id,
            what,
            bytes,
            state: Box::new(self.state.clone()),
        }
    }
}

/// Returns the size in bytes of one item of a port access. String instructions transfer several items in one exit.
fn io_size(page: &kvm_run) -> usize {
    // SAFETY: the caller saw a port exit, so this is the active field of the union.
    usize::from(unsafe { page.__bindgen_anon_1.io.size }).max(1)
}

fn internal_error(page: &kvm_run) -> String {
    // SAFETY: the caller saw an internal error, so this is the active field of the union.
    let internal = unsafe { page.__bindgen_anon_1.internal };
    let cause = match internal.suberror {
        kvm_bindings::KVM_INTERNAL_ERROR_EMULATION => {
            "an instruction that its emulator does not know"
        }
        kvm_bindings::KVM_INTERNAL_ERROR_SIMUL_EX => "simultaneous exceptions",
        kvm_bindings::KVM_INTERNAL_ERROR_DELIVERY_EV => "an exit while it delivered an event",
        kvm_bindings::KVM_INTERNAL_ERROR_UNEXPECTED_EXIT_REASON => "an unexpected exit reason",
        _ => "a cause it does not explain",
    };
    format!("KVM internal error {} ({cause})", internal.suberror)
}
