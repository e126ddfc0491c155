//! A vCPU of KVM behind the seam.
//!
//! Outside `run` the state is in [`VcpuState`] form, so it can be saved and replaced freely; KVM gets it when the vCPU
//! runs next, and gives it back before `run` returns.

use std::collections::BTreeSet;

use kvm_ioctls::VcpuFd;
use nodescope_engine::{EngineError, Exit, Limit, Platform, Vcpu};
use nodescope_plugin_api::{FilterGeometry, FilterUpdate};
use nodescope_x86::bits::{msr, rflags, xcr0};
use nodescope_x86::state::seg;
use nodescope_x86::{CpuidTable, VcpuState};

use crate::vm::{KvmVm, kvm_cpuid};
use crate::{msrs, raw, refused, state};

/// What a vCPU is made from.
#[derive(Clone, Debug)]
pub struct KvmConfig {
    /// Number within the node.
    pub id: u16,
    /// What CPUID answers; see [`with_hypercall_leaf`](crate::vm::with_hypercall_leaf).
    pub cpuid: CpuidTable,
    /// TSC frequency the guest was told, Hz. A host that cannot scale the TSC runs it at its own; see
    /// [`KvmVcpu::tsc_hz`].
    pub tsc_hz: u64,
}

/// A vCPU of KVM.
pub struct KvmVcpu {
    pub(crate) vm: KvmVm,
    pub(crate) fd: VcpuFd,
    pub(crate) id: u16,
    pub(crate) state: VcpuState,
    /// KVM's copy is older than `state`.
    stale: bool,
    pub(crate) attached: bool,
    tsc_hz: u64,
    /// State components the guest may use.
    components: u64,
    /// Registers KVM does not hold; their values stay in `state`.
    kept: BTreeSet<u32>,
    /// An exit was served whose instruction KVM finishes when it is entered next.
    pub(crate) unfinished: bool,
}

impl KvmVcpu {
    /// A vCPU in its reset state.
    pub fn new(vm: &KvmVm, config: KvmConfig) -> Result<Self, EngineError> {
        let fd = vm
            .inner
            .fd
            .create_vcpu(config.id.into())
            .map_err(|e| refused(format!("creating KVM vCPU {}", config.id), e))?;
        // Before any MSR: what may be set depends on it.
        fd.set_cpuid2(&kvm_cpuid(&config.cpuid)?)
            .map_err(|e| refused(format!("the CPUID table of KVM vCPU {}", config.id), e))?;
        let khz = u32::try_from(config.tsc_hz / 1000).unwrap_or(u32::MAX);
        let tsc_hz = match fd.get_tsc_khz() {
            Ok(native) if native == khz || fd.set_tsc_khz(khz).is_ok() => config.tsc_hz,
            Ok(native) if native > 0 => u64::from(native) * 1000,
            _ => config.tsc_hz,
        };
        Ok(Self {
            vm: vm.clone(),
            fd,
            id: config.id,
            state: VcpuState::reset(),
            stale: true,
            attached: false,
            tsc_hz,
            components: config.cpuid.xcr0_supported() | xcr0::X87 | xcr0::SSE,
            kept: BTreeSet::new(),
            unfinished: false,
        })
    }

    /// Rate at which this vCPU's TSC really runs, Hz: the one configured if the host could set it.
    pub fn tsc_hz(&self) -> u64 {
        self.tsc_hz
    }

    /// Registers that this host's KVM did not accept; their values move with the state but the guest does not see
    /// them.
    pub fn unsupported_msrs(&self) -> Vec<u32> {
        self.kept.iter().copied().collect()
    }

    /// Give KVM the state. True if the TSC's offset had to change with it, see [`load_tsc`](Self::load_tsc).
    pub(crate) fn load(&mut self) -> Result<bool, EngineError> {
        if !self.stale {
            return Ok(false);
        }
        let s = &self.state;
        let fd = &self.fd;
        let id = self.id;
        let on = |what: &str| format!("{what} of KVM vCPU {id}");
        fd.set_sregs(&state::sregs(&s.segments, &s.control))
            .map_err(|e| refused(on("setting segment and control registers"), e))?;
        if self.components & !(xcr0::X87 | xcr0::SSE) != 0 {
            fd.set_xcrs(&state::xcrs(s.control.xcr0 | xcr0::X87))
                .map_err(|e| refused(on("setting XCR0"), e))?;
        }
        let area = state::xsave(&s.fx, &s.vector, self.components);
        // SAFETY: no dynamically enabled feature (AMX) is ever asked for, so the area has its fixed 4096 bytes.
        unsafe { fd.set_xsave(&area) }.map_err(|e| refused(on("setting vector state"), e))?;
        msrs::load(fd, &s.msrs, &mut self.kept)?;
        fd.set_debug_regs(&state::debug_in(&s.debug))
            .map_err(|e| refused(on("setting debug registers"), e))?;
        fd.set_vcpu_events(&state::events_in(&s.events))
            .map_err(|e| refused(on("setting pending events"), e))?;
        fd.set_regs(&state::regs(&s.general))
            .map_err(|e| refused(on("setting general registers"), e))?;
        self.stale = false;
        self.load_tsc()
    }

    /// Make the guest's TSC show clock + offset. KVM takes a written TSC for an attempt to synchronise CPUs when it is
    /// near another value, so the offset is set where the host lets it be.
    ///
    /// A software KVM gives the guest the host's TSC whatever is set. Then the guest sees its TSC jump, which is what
    /// a changed offset means: the offset follows, true is returned, and the platform must hear of it.
    pub(crate) fn load_tsc(&mut self) -> Result<bool, EngineError> {
        let wanted = self
            .state
            .time
            .cycles
            .wrapping_add(self.state.time.tsc_offset);
        let by_offset = raw::tsc_offset(&self.fd).is_ok_and(|offset| {
            msrs::read(&self.fd, msr::TSC).is_ok_and(|shown| {
                let corrected = offset.wrapping_add(wanted.wrapping_sub(shown));
                raw::set_tsc_offset(&self.fd, corrected).is_ok()
            })
        });
        if !by_offset {
            msrs::write(&self.fd, msr::TSC, wanted)?;
        }
        let skew = msrs::read(&self.fd, msr::TSC)?.wrapping_sub(wanted);
        // What passed between setting and reading is far below a millisecond.
        if skew < self.tsc_hz / 1000 {
            return Ok(false);
        }
        let offset = &mut self.state.time.tsc_offset;
        *offset = offset.wrapping_add(skew);
        Ok(true)
    }

    /// The clock now, while KVM holds the state: the guest's TSC less its offset, never backwards.
    pub(crate) fn clock(&mut self) -> Result<u64, EngineError> {
        let tsc = msrs::read(&self.fd, msr::TSC)?;
        let now = tsc.wrapping_sub(self.state.time.tsc_offset);
        let time = &mut self.state.time;
        // A TSC that could not be set back may even lie before the clock.
        if now.wrapping_sub(time.cycles) < 1 << 63 {
            time.cycles = now;
        }
        Ok(time.cycles)
    }

    /// Take the state back from KVM; nothing is in flight.
    pub(crate) fn store(&mut self) -> Result<(), EngineError> {
        let id = self.id;
        let on = |what: &str| format!("{what} of KVM vCPU {id}");
        self.clock()?;
        let fd = &self.fd;
        let s = &mut self.state;
        let regs = fd
            .get_regs()
            .map_err(|e| refused(on("reading general registers"), e))?;
        let sregs = fd
            .get_sregs()
            .map_err(|e| refused(on("reading segment and control registers"), e))?;
        let xcr0_value = if self.components & !(xcr0::X87 | xcr0::SSE) != 0 {
            let xcrs = fd.get_xcrs().map_err(|e| refused(on("reading XCR0"), e))?;
            state::xcr0_of(&xcrs)
        } else {
            s.control.xcr0
        };
        let area = fd
            .get_xsave()
            .map_err(|e| refused(on("reading vector state"), e))?;
        let debug = fd
            .get_debug_regs()
            .map_err(|e| refused(on("reading debug registers"), e))?;
        let events = fd
            .get_vcpu_events()
            .map_err(|e| refused(on("reading pending events"), e))?;
        let (flags, cpl) = (s.general.rflags, s.segments.data[seg::CS].dpl());
        s.general = state::general(&regs);
        s.segments = state::segments(&sregs);
        if !self.vm.inner.ring0_native && cpl == 3 && s.segments.data[seg::CS].dpl() == 3 {
            // A software KVM runs ring 3 with its own IOPL and forgets the guest's, which user code cannot change.
            s.general.rflags = s.general.rflags & !rflags::IOPL | flags & rflags::IOPL;
        }
        s.control = state::control(&sregs, xcr0_value);
        (s.fx, s.vector) = state::vector_state(&area);
        s.debug = state::debug_out(&debug);
        s.events = state::events_out(&events, &s.events);
        msrs::store(fd, &mut s.msrs, &mut self.kept)
    }

    /// Let KVM's copy be replaced at the next run.
    pub(crate) fn mark_stale(&mut self) {
        self.stale = true;
    }
}

impl Vcpu for KvmVcpu {
    fn run(&mut self, platform: &mut dyn Platform, limit: Limit) -> Result<Exit, EngineError> {
        self.run_until(platform, limit)
    }

    fn cycles(&self) -> u64 {
        self.state.time.cycles
    }

    fn advance_to(&mut self, cycles: u64) {
        let time = &mut self.state.time;
        time.cycles = time.cycles.max(cycles);
        self.stale = true;
    }

    fn instructions(&self) -> u64 {
        self.state.time.instructions
    }

    fn save(&self) -> VcpuState {
        self.state.clone()
    }

    fn restore(&mut self, state: &VcpuState) {
        self.state = state.clone();
        self.stale = true;
    }

    fn attach(&mut self, filter: Option<FilterGeometry>) {
        self.attached = filter.is_some();
    }

    fn update_filter(&mut self, _: &[FilterUpdate]) {
        // There is no filter: running with a model attached is refused.
    }

    fn flush_counters(&mut self, _: &mut dyn Platform) {
        // Nothing is counted here.
    }
}
