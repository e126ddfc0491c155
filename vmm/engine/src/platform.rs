//! What a vCPU asks of the machine around it.

use nodescope_plugin_api::exported::AcceptedExport;
use nodescope_plugin_api::{
    Charges, Context, Counters, Hits, L0Update, MemRef, Outcome, Privilege,
};

/// An access to an MSR that the platform refuses; the engine raises `#GP(0)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsrFault;

/// A guest-virtual address that is not mapped, found while serving a hypercall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFault {
    /// First address that could not be reached.
    pub address: u64,
}

/// Guest-virtual memory of the vCPU that made a hypercall, at its current privilege.
pub trait GuestVirtual {
    /// Read; nothing of `buf` is meaningful on a fault.
    fn read(&mut self, address: u64, buf: &mut [u8]) -> Result<(), MemoryFault>;
    /// Write; bytes before the fault may have been written.
    fn write(&mut self, address: u64, buf: &[u8]) -> Result<(), MemoryFault>;
}

/// Registers of the magic CPUID, or of the doorbell's OUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hypercall {
    /// vCPU within its node.
    pub vcpu: u16,
    /// ECX.
    pub operation: u32,
    /// RSI, RDI, R8, R9, R10.
    pub args: [u64; 5],
    /// The vCPU's clock in cycles.
    pub now: u64,
    /// Instructions retired by the vCPU, this CPUID included.
    pub instructions: u64,
    /// CR3 of the caller: its address space.
    pub cr3: u64,
    /// Privilege of the caller.
    pub privilege: Privilege,
}

/// Answer to the guest, in RAX, RBX, RCX and RDX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct HypercallAnswer {
    pub eax: u32,
    pub ebx: u32,
    pub ecx: u32,
    pub edx: u32,
}

/// The machine as one of its vCPUs sees it. `now` is that vCPU's clock in cycles.
pub trait Platform {
    /// IN.
    fn port_read(&mut self, vcpu: u16, now: u64, port: u16, data: &mut [u8]);
    /// OUT.
    fn port_write(&mut self, vcpu: u16, now: u64, port: u16, data: &[u8]);
    /// Read of a guest-physical address that is not RAM.
    fn mmio_read(&mut self, vcpu: u16, now: u64, physical: u64, data: &mut [u8]);
    /// Write of a guest-physical address that is not RAM.
    fn mmio_write(&mut self, vcpu: u16, now: u64, physical: u64, data: &[u8]);

    /// RDMSR of a register that the vCPU does not hold itself (local APIC, TSC deadline).
    fn msr_read(&mut self, vcpu: u16, now: u64, msr: u32) -> Result<u64, MsrFault>;
    /// WRMSR of such a register.
    fn msr_write(&mut self, vcpu: u16, now: u64, msr: u32, value: u64) -> Result<(), MsrFault>;
    /// The TSC was written: TSC = cycles + offset from now on.
    fn tsc_offset_changed(&mut self, vcpu: u16, now: u64, offset: u64);

    /// Task priority as CR8 (APIC TPR bits 7:4).
    fn task_priority(&mut self, vcpu: u16) -> u8;
    /// MOV to CR8.
    fn set_task_priority(&mut self, vcpu: u16, now: u64, priority: u8);
    /// Whether an interrupt is deliverable to this vCPU now (timers that are due included).
    fn interrupt_pending(&mut self, vcpu: u16, now: u64) -> bool;
    /// Take the interrupt: its vector, now in service. None if it went away.
    fn acknowledge(&mut self, vcpu: u16, now: u64) -> Option<u8>;
    /// Clock at which something may become pending for this vCPU without its own doing (its timer); `u64::MAX` if never.
    /// Asked again after every access to the platform.
    fn next_event(&mut self, vcpu: u16) -> u64;
    /// The vCPU's clock has reached its limit ([`crate::Limit::cycles`]): a later one, where the machine has nothing to do with the vCPU
    /// before it would let it run on. Asked only where [`crate::Limit::extends`] says so, and not again after `None`; the limit
    /// that was told last is the one that the vCPU comes back at.
    fn extend(&mut self, vcpu: u16) -> Option<u64> {
        let _ = vcpu;
        None
    }
    /// Whether the machine wants the running vCPU to return (power-off, reset, INIT of another vCPU, a window trigger).
    /// Asked after every access to the platform.
    fn attention(&mut self) -> bool;

    /// The magic CPUID, or the doorbell (`vmm/hypercall`).
    fn hypercall(&mut self, call: &Hypercall, memory: &mut dyn GuestVirtual) -> HypercallAnswer;

    /// Index of what runs in the address space of this CR3, for counters and references. Asked while a model is attached:
    /// when the vCPU starts to run, when CR3 changes, and after accesses to the platform.
    fn context(&mut self, vcpu: u16, cr3: u64) -> Context;
    /// One memory reference that the L0 filter cache could not answer. Updates of the running vCPU's own L0 filter cache are pushed to
    /// `updates`; the platform keeps those of other vCPUs until they run. `hits` are the hits that were answered before.
    fn reference(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome;
    /// [`nodescope_plugin_api::MemoryModel::miss`].
    fn miss(&mut self, modified: &[u64], oldest: u64, reference: &MemRef) -> Option<Outcome>;
    /// Returns the export of [`nodescope_plugin_api::MemoryModel::export_state`], accepted by the platform; None where the model exports
    /// nothing.
    fn exported_state(&mut self, vcpu: u16) -> Option<AcceptedExport> {
        let _ = vcpu;
        None
    }
    /// [`nodescope_plugin_api::MemoryModel::take_charges`].
    fn take_charges(&mut self) -> Charges {
        Charges::default()
    }
    /// Lines that the running vCPU wrote under [`nodescope_plugin_api::Permission::Exclusive`], reported before another vCPU runs.
    fn modified(&mut self, vcpu: u16, lines: &[u64]);
    /// Counters of the running vCPU since the last call, for one address space and privilege.
    fn account(&mut self, vcpu: u16, context: Context, privilege: Privilege, counters: &Counters);
}
