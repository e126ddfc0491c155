//! A vCPU on KVM, behind the engine interface.
//!
//! KVM receives a restored state when the vCPU runs next, and keeps the registers between runs, since reading all of them takes a dozen
//! ioctls. The state is read from KVM only when it is needed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use kvm_ioctls::{Cap, VcpuFd};
use nodescope_counters::guest::VcpuCounters;
use nodescope_engine::{EngineError, Exit, Kicker, Limit, Platform, Vcpu};
use nodescope_plugin_api::{L0Geometry, L0Update};
use nodescope_x86::bits::{cr4, rflags, xcr0};
use nodescope_x86::state::seg;
use nodescope_x86::{CpuidTable, VcpuState};

use crate::alarm::RunningThread;
use crate::clock::{Entry, Tsc};
use crate::grace::Grace;
use crate::vm::{KvmVm, kvm_cpuid};
use crate::{msrs, raw, refused, state};

/// Types of an available and of a busy 64-bit TSS (SDM vol. 3A §3.5, table 3-2).
const AVAILABLE_TSS: u8 = 9;
const BUSY_TSS: u8 = 11;

/// Configuration of a vCPU.
#[derive(Clone, Debug)]
pub struct KvmConfig {
    /// Index of the vCPU within the node.
    pub id: u16,
    /// CPUID table of the guest; see [`with_hypercall_leaf`](crate::vm::with_hypercall_leaf).
    pub cpuid: CpuidTable,
    /// TSC frequency in Hz that the guest reads from CPUID. A host that cannot scale the TSC uses its own frequency; see
    /// [`KvmVcpu::tsc_hz`].
    pub tsc_hz: u64,
}

/// A vCPU on KVM.
pub struct KvmVcpu {
    pub(crate) vm: KvmVm,
    pub(crate) fd: VcpuFd,
    pub(crate) id: u16,
    /// State of the vCPU. If `held`, KVM has newer registers. The clock and the activity state are always current here.
    pub(crate) state: VcpuState,
    /// True if KVM's registers are older than `state`.
    stale: bool,
    /// True if KVM's registers are newer than `state`.
    held: bool,
    /// True if KVM has run this vCPU at least once.
    has_run: bool,
    pub(crate) attached: bool,
    pub(crate) tsc: Tsc,
    pub(crate) entry: Entry,
    pub(crate) grace: Grace,
    /// XSAVE state components that the guest may use.
    components: u64,
    /// MSRs that KVM refuses. Their values are only in `state`.
    kept: BTreeSet<u32>,
    /// True if an exit was served whose instruction KVM will finish at the next entry.
    pub(crate) unfinished: bool,
    /// Whether interrupts were enabled, and whether an interrupt could be injected, at the last exit from KVM.
    pub(crate) interruptible: (bool, bool),
    pub(crate) thread: Arc<RunningThread>,
    pub(crate) counters: Option<Arc<Mutex<VcpuCounters>>>,
}

impl KvmVcpu {
    /// Creates a vCPU in its reset state.
    pub fn new(vm: &KvmVm, config: KvmConfig) -> Result<Self, EngineError> {
        let fd = vm
            .inner
            .fd
            .create_vcpu(config.id.into())
            .map_err(|e| refused(format!("creating KVM vCPU {}", config.id), e))?;
        // The CPUID table must be set before any MSR, since it decides which values are valid.
        fd.set_cpuid2(&kvm_cpuid(&config.cpuid)?)
            .map_err(|e| refused(format!("the CPUID table of KVM vCPU {}", config.id), e))?;
        // Without hardware for TSC scaling, KVM would emulate a faster TSC by the host's time.
        let scales = vm.inner.fd.check_extension(Cap::TscControl);
        let khz = u32::try_from(config.tsc_hz / 1000).unwrap_or(u32::MAX);
        let native = fd.get_tsc_khz().ok().filter(|khz| *khz > 0);
        let (hz, plain) = match native {
            Some(native) if native == khz => (config.tsc_hz, true),
            Some(_) if scales && fd.set_tsc_khz(khz).is_ok() => (config.tsc_hz, false),
            Some(native) => (u64::from(native) * 1000, true),
            None => (config.tsc_hz, false),
        };
        let settable = raw::tsc_offset(&fd).is_ok();
        Ok(Self {
            vm: vm.clone(),
            fd,
            id: config.id,
            state: VcpuState::reset(),
            stale: true,
            held: false,
            has_run: false,
            attached: false,
            tsc: Tsc {
                hz,
                plain: plain && settable && vm.inner.ring0_native,
                settable,
                offset: 0,
            },
            entry: Entry::default(),
            grace: Grace::default(),
            components: config.cpuid.xcr0_supported() | xcr0::X87 | xcr0::SSE,
            kept: BTreeSet::new(),
            unfinished: false,
            interruptible: (false, false),
            thread: Arc::default(),
            counters: None,
        })
    }

    /// Counts the guest's user code on this vCPU with hardware counters of the host from now on.
    pub fn count(&mut self, counters: Arc<Mutex<VcpuCounters>>) {
        self.counters = Some(counters);
    }

    /// Returns the actual frequency of this vCPU's TSC in Hz: the configured one if the host could set it, or else the host's.
    pub fn tsc_hz(&self) -> u64 {
        self.tsc.hz
    }

    /// Returns the MSRs that this host's KVM refused. Their values stay part of the state, but the guest does not see them.
    pub fn unsupported_msrs(&self) -> Vec<u32> {
        self.kept.iter().copied().collect()
    }

    /// Loads the state into KVM, if KVM's registers are older.
    pub(crate) fn load(&mut self) -> Result<(), EngineError> {
        if !self.stale {
            return Ok(());
        }
        let s = &self.state;
        let fd = &self.fd;
        let id = self.id;
        let on = |what: &str| format!("{what} of KVM vCPU {id}");
        let mut sregs = state::sregs(&s.segments, &s.control);
        if self.vm.inner.tcg && sregs.tr.type_ == BUSY_TSS {
            sregs.tr.type_ = AVAILABLE_TSS;
        }
        if self.has_run {
            // The guest's page tables may have changed while another engine ran the vCPU. A change of paging bits in CR4 makes KVM drop its
            // translations.
            let mut other = sregs;
            other.cr4 ^= cr4::PGE;
            fd.set_sregs(&other)
                .map_err(|e| refused(on("changing CR4"), e))?;
        }
        fd.set_sregs(&sregs)
            .map_err(|e| refused(on("setting segment and control registers"), e))?;
        if self.components & !(xcr0::X87 | xcr0::SSE) != 0 {
            let wanted = match self.vm.inner.tcg {
                // Linux enables all components that the processor has.
                true => self.components,
                false => s.control.xcr0 | xcr0::X87,
            };
            fd.set_xcrs(&state::xcrs(wanted))
                .map_err(|e| refused(on("setting XCR0"), e))?;
        }
        let area = state::xsave(&s.fx, &s.vector, self.components);
        // SAFETY: dynamically enabled features (AMX) are never requested, so the area has its fixed size of 4096 bytes.
        unsafe { fd.set_xsave(&area) }.map_err(|e| refused(on("setting vector state"), e))?;
        msrs::load(fd, &s.msrs, &mut self.kept)?;
        fd.set_debug_regs(&state::debug_in(&s.debug))
            .map_err(|e| refused(on("setting debug registers"), e))?;
        fd.set_vcpu_events(&state::events_in(&s.events))
            .map_err(|e| refused(on("setting pending events"), e))?;
        fd.set_regs(&state::regs(&s.general))
            .map_err(|e| refused(on("setting general registers"), e))?;
        self.stale = false;
        Ok(())
    }

    /// Returns whether KVM's registers are newer than the state.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Records that KVM runs the vCPU, so that KVM's registers are newer than the state from now on.
    pub(crate) fn hold(&mut self) {
        self.held = true;
        self.has_run = true;
    }

    /// Reads the state back from KVM, if KVM's registers are newer. No injected event may be outstanding.
    pub(crate) fn store(&mut self) -> Result<(), EngineError> {
        if self.held {
            self.state = self.read_state()?;
            self.held = false;
        }
        Ok(())
    }

    /// Returns the state with the registers read from KVM.
    fn read_state(&self) -> Result<VcpuState, EngineError> {
        let id = self.id;
        let on = |what: &str| format!("{what} of KVM vCPU {id}");
        let fd = &self.fd;
        let mut s = self.state.clone();
        let regs = fd
            .get_regs()
            .map_err(|e| refused(on("reading general registers"), e))?;
        let sregs = fd
            .get_sregs()
            .map_err(|e| refused(on("reading segment and control registers"), e))?;
        // A guest that has not enabled XSETBV cannot have executed it, so KVM's XCR0 is not the guest's.
        let known = !self.vm.inner.tcg || sregs.cr4 & cr4::OSXSAVE != 0;
        let xcr0_value = if known && self.components & !(xcr0::X87 | xcr0::SSE) != 0 {
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
        s.segments = state::with_unstored_attributes(&state::segments(&sregs), &s.segments);
        if !self.vm.inner.ring0_native && cpl == 3 && s.segments.data[seg::CS].dpl() == 3 {
            // A software KVM runs ring 3 with its own IOPL and loses the guest's IOPL, which user code cannot change.
            s.general.rflags = s.general.rflags & !rflags::IOPL | flags & rflags::IOPL;
        }
        s.control = state::control(&sregs, xcr0_value);
        (s.fx, s.vector) = state::vector_state(&area);
        s.debug = state::debug_out(&debug);
        s.events = state::events_out(&events, &s.events, self.held);
        msrs::store(fd, &mut s.msrs, &self.kept)?;
        Ok(s)
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
    }

    fn instructions(&self) -> u64 {
        self.state.time.instructions
    }

    fn kicker(&self) -> Option<Arc<dyn Kicker>> {
        Some(Arc::clone(&self.thread) as Arc<dyn Kicker>)
    }

    fn synchronize(&mut self, platform: &mut dyn Platform) -> Result<(), EngineError> {
        if self.held {
            self.settle(platform)?;
            self.store()?;
            self.vm.sync_code()?;
        }
        Ok(())
    }

    fn check_restored(&mut self) -> Result<(), EngineError> {
        let wanted = self.state.clone();
        self.load()?;
        let found = self.read_state()?;
        if found == wanted {
            return Ok(());
        }
        let differences = state::differences(&wanted, &found);
        Err(EngineError::Host {
            what: format!("KVM vCPU {} does not hold what it was given", self.id),
            source: std::io::Error::other(differences),
        })
    }

    fn save(&self) -> VcpuState {
        if !self.held {
            return self.state.clone();
        }
        let state = self.read_state();
        let synced = self.vm.sync_code();
        synced
            .and(state)
            .expect("KVM shows the registers of a vCPU that it has run")
    }

    fn restore(&mut self, state: &VcpuState) {
        self.state = state.clone();
        self.stale = true;
        self.held = false;
        self.unfinished = false;
    }

    fn attach(&mut self, geometry: Option<L0Geometry>) {
        self.attached = geometry.is_some();
    }

    fn update_l0(&mut self, _: &[L0Update]) {
        // KVM has no L0 filter cache, since running with a model is refused.
    }

    fn flush_counters(&mut self, _: &mut dyn Platform) {
        // KVM counts no events for the platform.
    }
}
